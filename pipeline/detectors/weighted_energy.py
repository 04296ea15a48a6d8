"""Weighted energy: minus the log partition function, with a learned weight for each class."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError, MissingInputError
from pipeline.heads import Head, StoredHead
from pipeline.linalg import Host
from pipeline.procedure import Passes
from pipeline.views import View

__all__ = ["WeightedEnergy"]


@value
class WeightedEnergy:
    """Weighted energy of the logits, as VOS learns it: -log sum_c max(w_c, 0) exp(f_c).

    f (n, k) are the logits. ``weights`` are the k numbers that were learned with the network,
    given one by one, or as a safetensors file whose one tensor named ``weight`` is (k,) or (1, k),
    such as that of ``torch.nn.Linear(k, 1)``. Nothing is fitted.

    Raises :class:`ConfigError` for weights that are not finite, none of which is above 0, or that
    are not one for each class, and :class:`MissingInputError` without the file.

    Reference: Du, Wang, Cai and Li 2022, "VOS: learning what you don't know by virtual outlier
    synthesis", arXiv 2202.01197.
    Differs from the reference code: weights are added as logarithms, about the largest weighted
    logit, so that nothing overflows or vanishes whatever the logits.
    """

    weights: Const | str | tuple[float, ...]
    head: Head = StoredHead()
    paper: ClassVar[str] = "Du et al. 2022"
    formula: ClassVar[str] = "- log sum of w exp(logit)"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"pytorch-ood-0.4": {}}

    def __post_init__(self) -> None:
        weights = _array_of(self.weights)
        if weights.ndim != 1 or weights.size == 0:
            raise ConfigError(
                f"weights: an array of shape {weights.shape}; expected one number for each class"
            )
        if not np.isfinite(weights).all():
            raise ConfigError("weights: not all of them are finite")
        if not (weights > 0).any():
            raise ConfigError(
                "weights: none is above 0, and weights below count as 0, so that every score would "
                "be infinite; give those that VOS has learned"
            )
        object.__setattr__(self, "weights", Const(weights))

    def passes(self, schema: Schema) -> Passes[WeightedEnergyScorer]:
        assert isinstance(self.weights, Const)
        if self.weights.shape != (schema.classes,):
            raise ConfigError(
                f"weights: {self.weights.shape[0]} numbers for the {schema.classes} classes of "
                f"{schema.split}; expected one for each"
            )
        logits = yield from self.head.passes(schema)
        weights = np.maximum(self.weights.array, 0.0)
        with np.errstate(divide="ignore"):
            return WeightedEnergyScorer(logits, Const(np.log(weights)))


def _array_of(given: Any) -> Host:
    """Return the weights that were given, or that a file holds, as float64."""
    if isinstance(given, Const):
        found = given.array
    elif isinstance(given, str):
        found = _read(Path(given))
    else:
        try:
            found = np.asarray(given, np.float64)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"weights: {given!r}; expected a list of numbers") from error
    found = found.astype(np.float64)
    return found[0] if found.ndim == 2 and len(found) == 1 else found


def _read(path: Path) -> Host:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if not path.is_file():
        raise MissingInputError(f"weights: there is no file {path}")
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ConfigError(f"weights: {path} is not a safetensors file ({error})") from error
    names = [name for name in tensors if name.rpartition(".")[2] == "weight"]
    if len(names) != 1:
        raise ConfigError(
            f"weights: {path} holds {', '.join(sorted(tensors)) or 'nothing'}; expected exactly "
            "one tensor named weight, (k,) or (1, k)"
        )
    found: Host = tensors[names[0]]
    return found


@value
class WeightedEnergyScorer:
    """Minus the log of the weighted sum of exponentials."""

    logits: View
    log_weights: Const
    """log max(w, 0): (k,), -inf for a class that does not count."""

    @property
    def views(self) -> tuple[View, ...]:
        return (self.logits,)

    def score(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(self._energies, self.logits(chunk))

    def _energies(self, f: Array) -> Array:
        xp = arrays.namespace(f)
        weighted = f + self.log_weights.like(f)[None, :]
        top = xp.max(weighted, axis=1)
        return -(top + xp.log(xp.sum(xp.exp(weighted - top[:, None]), axis=1)))
