"""What several predictions of one row say together: their mean, its entropy, how they differ.

Formulas alone, over logits (n, s, k) of s runs or members; what detectors of such arrays share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.views import View, softmax_outside_largest


def _logs(f: Array) -> Array:
    """Return log softmax (n, s, k) of logits; finite where they are."""
    xp = arrays.namespace(f)
    below = f - xp.max(f, axis=2, keepdims=True)
    return below - xp.log(xp.sum(xp.exp(below), axis=2, keepdims=True))


def _log_mean(log_p: Array) -> Array:
    """Return the logarithm (n, k) of the mean over runs of probabilities, without underflow."""
    xp = arrays.namespace(log_p)
    top = xp.max(log_p, axis=1, keepdims=True)
    return top[:, 0, :] + xp.log(xp.mean(xp.exp(log_p - top), axis=1))


def _confidence(f: Array) -> Array:
    """Return 1 - max_c mean_s p_sc, summed from the other classes: it keeps its order near 0."""
    xp = arrays.namespace(f)
    mean = xp.exp(_log_mean(_logs(f)))
    return xp.sum(arrays.clear_at(mean, xp.argmax(mean, axis=1)), axis=1)


def _mean_logits(f: Array) -> Array:
    return softmax_outside_largest(arrays.namespace(f).mean(f, axis=1))


def _entropy(f: Array) -> Array:
    """Return - sum_c q_c log q_c of the mean q over runs."""
    xp = arrays.namespace(f)
    log_q = _log_mean(_logs(f))
    q = xp.exp(log_q)
    rest = xp.sum(arrays.clear_at(q, xp.argmax(q, axis=1)), axis=1)
    top = xp.max(log_q, axis=1)
    # The largest q may round to 1, while its logarithm is minus what the others have.
    own = -(1.0 - rest) * xp.where(rest < 0.5, xp.log1p(-rest), top)
    others = arrays.clear_at(-xp.exp(log_q) * log_q, xp.argmax(log_q, axis=1))
    return own + xp.sum(others, axis=1)


def _information(f: Array) -> Array:
    """Return the mean over runs of KL(p_s | q): each is at least 0, and none is a difference."""
    xp = arrays.namespace(f)
    log_p = _logs(f)
    against = xp.exp(log_p) * (log_p - _log_mean(log_p)[:, None, :])
    return xp.mean(xp.sum(against, axis=2), axis=1)


def _variance(f: Array) -> Array:
    """Return the mean over classes of the variance over runs of p, divided by s - 1."""
    xp = arrays.namespace(f)
    runs, classes = f.shape[1], f.shape[2]
    p = xp.exp(_logs(f))
    top = xp.argmax(xp.sum(p, axis=1), axis=1)
    flat = xp.reshape(p, (-1, classes))
    others = arrays.clear_at(flat, xp.reshape(_repeated(top, runs), (-1,)))
    # In place of the class that is most probable, whose p may round to 1, all others together.
    rest = xp.reshape(xp.sum(others, axis=1, keepdims=True), (-1, runs, 1))
    p = xp.concat((xp.reshape(others, (-1, runs, classes)), rest), axis=2)
    p = p - xp.mean(p, axis=1, keepdims=True)
    return xp.sum(xp.sum(p * p, axis=1), axis=1) / ((runs - 1) * classes)


def _repeated(ids: Array, times: int) -> Array:
    xp = arrays.namespace(ids)
    return xp.broadcast_to(ids[:, None], (ids.shape[0], times))


MEASURES: Mapping[str, Callable[[Array], Array]] = {
    "confidence": _confidence,
    "entropy": _entropy,
    "mutual_information": _information,
    "variance": _variance,
    "mean_logits": _mean_logits,
}
"""``confidence``: 1 - max_c q_c, q the mean over runs of the softmax; ``entropy`` of q;
``mutual_information``: entropy of q less the mean entropy of the runs; ``variance`` over runs of
each p_c, averaged over classes; ``mean_logits``: 1 - max softmax of the mean logits."""


def check_measure(measure: str) -> None:
    """Raise :class:`ConfigError` for a measure that is not known."""
    if measure not in MEASURES:
        raise ConfigError(f"measure: {measure!r} is unknown; choose {', '.join(MEASURES)}")


@value
class DisagreementScorer:
    """One of :data:`MEASURES` of the logits (s k,) of several runs, one after the other."""

    sampled: View
    runs: int
    measure: str
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.sampled,)

    def score(self, chunk: Chunk) -> Array:
        x = self.sampled(chunk)
        xp = arrays.namespace(x)
        measured = MEASURES[self.measure]

        def of_tile(part: Array) -> Array:
            wide = xp.astype(part, xp.float64)
            classes = wide.shape[1] // self.runs
            return measured(xp.reshape(wide, (wide.shape[0], self.runs, classes)))

        return arrays.by_tiles(of_tile, x, tile_rows=max(1, arrays.TILE_ROWS // self.runs))
