"""Shapes that every fit or score of a split would refuse: refused before its rows are stored."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.chunk import ArraySpec
from pipeline.errors import DataError

NO_VECTORS = ("labels", "ids", "mask")


def check_usable(
    specs: Mapping[str, ArraySpec],
    classes: int,
    split: str,
    others: Mapping[str, Mapping[str, ArraySpec]],
) -> None:
    """Raise :class:`DataError` for arrays that no procedure takes under their names.

    ``others`` are the arrays of the splits that the store has, by split: what is fitted on rows of
    one shape scores no others.
    """
    shapes = {name: spec.shape for name, spec in specs.items()}
    if (got := shapes.get("labels", ())) != ():
        raise DataError(
            f"{split}: labels have rows of shape {got}; expected one integer a row, (n,): save "
            "the class of each row, or map them to another name"
        )
    if (got := shapes.get("logits", (classes,))) != (classes,):
        raise DataError(
            f"{split}: logits have rows of shape {got}; expected ({classes},), one for each of the "
            "classes: mend --classes (classes=) or the files, or map them to another name"
        )
    if len(got := shapes.get("features", (1,))) not in (1, 2):
        raise DataError(
            f"{split}: features have rows of shape {got}; expected (d,) or (t, d): reshape them, "
            "or map them to another name"
        )
    for other, theirs in others.items():
        for name in specs.keys() & theirs.keys() - {*NO_VECTORS}:
            ours, its = specs[name], theirs[name]
            if (ours.shape, ours.layout) != (its.shape, its.layout):
                raise DataError(
                    f"{split}: {name} have rows of shape {ours.shape} {ours.layout}; those of "
                    f"{other} in the store are {its.shape} {its.layout}, and what is fitted on one "
                    "scores no other: import features of the same model, use another store, or "
                    "map them to another name"
                )
