"""Heads that read shaped features: what detectors by activation shaping share."""

from __future__ import annotations

from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.heads import Head, logits_present, refuse_without_weights, with_weights
from pipeline.procedure import Passes
from pipeline.views import Linear, LogSumExp, View


def head_over(schema: Schema, head: Head, features: View, detector: str) -> Passes[Linear]:
    """Return the logits of a head with weights over ``features``; ConfigError for any other."""
    refuse_without_weights(head, detector)
    logits = yield from head.passes(schema)
    return with_weights(logits, features, detector)


def energy_of(logits: Linear, shaped: View, *notes: str) -> ShapedEnergy:
    """Return the scorer of the head that reads ``shaped`` in place of its own features.

    Classes that the head cannot predict are left out, however large the shaped features.
    """
    again = Linear(shaped, logits.weight, logits.bias)
    return ShapedEnergy(LogSumExp(logits_present(again)), notes)


@value
class ShapedEnergy:
    """Minus the log partition function of shaped logits, of changed features or weights."""

    log_partition: View
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.log_partition,)

    def score(self, chunk: Chunk) -> Array:
        return -self.log_partition(chunk)
