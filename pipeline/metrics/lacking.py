"""What is said where a metric of scores finds none: classes that were predicted are no scores."""

from __future__ import annotations

from pipeline.chunk import Schema
from pipeline.errors import MissingInputError

__all__ = ["lacking_scores"]


def lacking_scores(metric: object, schema: Schema, wanted: str, task: str) -> MissingInputError:
    """Return the error of a metric that needs an array of scores which a split does not have."""
    there = ", ".join(sorted(schema.arrays))
    name = type(metric).__name__
    given = schema.arrays.get("predictions")
    if given is None:
        return MissingInputError(
            f"{schema.split}: {name} needs an array of {wanted}; there are {there}"
        )
    shape = "(n, k, ...), one for each class" if task == "multiclass" else "of the shape of labels"
    return MissingInputError(
        f"{schema.split}: {name} needs scores, and predictions of {given.dtype} are classes; give "
        f"scores as floats, {shape}"
    )
