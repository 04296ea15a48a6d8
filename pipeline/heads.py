"""Heads: where the logits of a detector come from, as one more procedure.

``logits = yield from head.passes(schema)`` gives a view, whether logits are stored, computed from
saved weights, or fitted in closed form first; detectors make no case distinction.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pipeline.chunk import Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.linalg import check_regularisation, whiten
from pipeline.procedure import On, together
from pipeline.statistics import ClassMoments, Moments
from pipeline.views import Columns, Linear, Logits, Pooled, View

ABSENT_BIAS = -1e30
"""Bias of a class without rows: never predicted, and still finite in log space."""
WEIGHTS = (
    "head: {weights: FILE}, or head: model, the final layer that is saved with features where the "
    "job names it (model: {..., head: LAYER}, ff.tapped(model, ..., head=LAYER))"
)
"""Heads that are known, and where they come from."""


class Head(Protocol):
    """A value whose passes end in a view of logits (k,)."""

    @property
    def label(self) -> str:
        """What the logits are, for reports."""
        ...

    def passes(self, schema: Schema) -> Generator[Any, Any, View]:
        """Yield what the head must know of the data; return its logits."""
        ...


@value
class StoredHead:
    """The logits that the split stores."""

    field: str = "logits"

    @property
    def label(self) -> str:
        return "stored logits"

    def passes(self, schema: Schema) -> Generator[Any, Any, View]:
        if self.field not in schema.arrays:
            raise MissingInputError(
                f"split {schema.split or '(in memory)'} stores no {self.field!r} (it has "
                f"{', '.join(sorted(schema.arrays))}); choose head: lda, which is fitted on the "
                f"features, or {WEIGHTS}"
            )
        Logits(self.field).shape(schema)
        return Logits(self.field)
        yield  # a generator that asks for nothing


@value
class LinearHead:
    """A linear head with known weights: W (k, d), b (k,). Raises ConfigError for other shapes."""

    weight: Const
    bias: Const
    of: View = Pooled()

    def __post_init__(self) -> None:
        if len(self.weight.shape) != 2 or self.bias.shape != self.weight.shape[:1]:
            raise ConfigError(
                f"a head needs weights of shape (k, d) and a bias of shape (k,), got "
                f"{self.weight.shape} and {self.bias.shape}"
            )

    @classmethod
    def read(cls, path: str | Path, of: View | None = None) -> LinearHead:
        """Return the head that a safetensors file holds: ``weight``, and ``bias`` if it has one.

        The names may carry a prefix (``fc.weight``). Raises :class:`MissingInputError` without the
        file, :class:`ConfigError` where it does not hold exactly one weight.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        if not Path(path).is_file():
            raise MissingInputError(f"head: there is no file {path}")
        try:
            tensors = load_file(path)
        except SafetensorError as error:
            raise ConfigError(f"head: {path} is not a safetensors file ({error})") from error
        names = [name for name in tensors if name.rpartition(".")[2] == "weight"]
        if len(names) != 1:
            raise ConfigError(
                f"head: {path} holds {', '.join(sorted(tensors)) or 'nothing'}; expected exactly "
                "one tensor named weight, (k, d), and one named bias, (k,)"
            )
        weight = tensors[names[0]].astype(np.float64)
        bias = tensors.get(names[0].removesuffix("weight") + "bias", np.zeros(len(weight)))
        return cls(Const(weight), Const(bias.astype(np.float64)), of or Pooled())

    @property
    def label(self) -> str:
        return "given weights"

    def passes(self, schema: Schema) -> Generator[Any, Any, View]:
        if not (np.isfinite(self.weight.array).all() and np.isfinite(self.bias.array).all()):
            raise ConfigError("the weights or the bias of the head are not finite")
        logits = Linear(self.of, self.weight, self.bias)
        logits.shape(schema)
        return logits
        yield  # a generator that asks for nothing


@value
class ModelHead:
    """The final layer of the model that the features come from, over those that it reads itself."""

    linear: LinearHead

    @property
    def label(self) -> str:
        return "head of the model"

    def passes(self, schema: Schema) -> Generator[Any, Any, View]:
        return (yield from self.linear.passes(schema))


@value
class LDAHead:
    """Linear discriminant analysis in closed form from the class moments.

    W = S^-1 mu, b = -mu' S^-1 mu / 2 + log prior, with the within-class covariance S (Fisher
    1936; Hastie, Tibshirani and Friedman 2009, section 4.3). Features are taken about the overall
    mean, which changes no difference of logits and keeps them small. Classes without rows get a
    bias that is never the largest.
    """

    of: View = Pooled()
    ridge: float = 1e-6

    def __post_init__(self) -> None:
        check_regularisation("ridge", self.ridge)

    @property
    def label(self) -> str:
        return "linear discriminant analysis"

    def passes(self, schema: Schema) -> Generator[Any, Any, View]:
        results = yield {"moments": ClassMoments(of=self.of)}
        moments: Moments = results["moments"]
        present = moments.count > 0
        if int(present.sum()) < 2:
            raise DataError(
                f"{schema.split}: an lda head needs rows of at least 2 classes, found "
                f"{int(present.sum())} of {schema.classes}"
            )
        centre = moments.overall_mean
        white = whiten(moments.covariance, "ridge", self.ridge).matrix
        means = np.where(present[:, None], moments.mean - centre, 0.0) @ white
        weight = means @ white.T
        prior = np.log(np.where(present, moments.count, 1) / moments.rows)
        bias = prior - (means**2).sum(axis=1) / 2 - weight @ centre
        return Linear(self.of, Const(weight), Const(np.where(present, bias, ABSENT_BIAS)))


@value
class HeadOf:
    """A head that is fitted on another split than the detector that uses its logits."""

    head: Any
    split: str
    """Name of that split, and of its role in the job."""

    @property
    def label(self) -> str:
        return str(self.head.label)

    def passes(self, schema: Schema) -> Generator[Any, Any, View]:
        steps = self.head.passes(replace(schema, split=self.split))
        results: Any = None
        while True:
            try:
                asked = next(steps) if results is None else steps.send(results)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            results = yield {name: On(self.split, request) for name, request in asked.items()}


def refuse_without_weights(head: Head, detector: str) -> None:
    """Raise :class:`ConfigError` for a head that has logits but no weights."""
    if isinstance(head, StoredHead):
        raise ConfigError(
            f"{detector} needs the weights of the head, stored logits are not enough: choose "
            f"{WEIGHTS}, or head: lda"
        )


def with_weights(logits: View, features: View, detector: str) -> Linear:
    """Return the logits as the linear view they are; :class:`ConfigError` unless over ``features``.

    What a detector computes from the weights holds for the features that the head reads alone.
    """
    if not isinstance(logits, Linear) or logits.of != features:
        raise ConfigError(
            f"{detector} needs a head with weights over its own features {features}, got {logits}; "
            "give both the same pool and field"
        )
    return logits


def weights_present(logits: Linear) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return W (c, d) and b (c,) of the classes that a head can predict."""
    weight, bias = logits.weight.array, logits.bias.array
    present = bias > ABSENT_BIAS
    return weight[present], bias[present]


def beside_head(
    head: Head, schema: Schema, statistic: Any
) -> Generator[Any, Any, tuple[View, Any]]:
    """Ask for a statistic in the pass that fits the head, if any; return the logits and the result.

    ``logits, mean = yield from beside_head(head, schema, Sums(of=features))``
    """

    def asked() -> Generator[Any, Any, Any]:
        results = yield {"result": statistic}
        return results["result"]

    first = yield from together({"head": head.passes(schema), "statistic": asked()})
    return first["head"], first["statistic"]


def logits_present(logits: View) -> View:
    """Return the logits (c,) of the classes that a head can predict, as ``weights_present`` does.

    Stored logits are all of them.
    """
    if not isinstance(logits, Linear):
        return logits
    present = logits.bias.array > ABSENT_BIAS
    return logits if present.all() else Columns(logits, Const(np.flatnonzero(present)))


def refuse_other_features(logits: View, features: View, detector: str) -> None:
    """Raise :class:`ConfigError` where weights are known, and read other features than these.

    What stored logits were computed from is not known.
    """
    if isinstance(logits, Linear):
        with_weights(logits, features, detector)
