"""Quantiles equal those of the whole array to the last bit, whatever the values and the cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from pipeline import quantiles as module
from pipeline.content import value
from pipeline.engine import Job, Trace, rehearse, run_jobs
from pipeline.procedure import Passes
from pipeline.quantiles import order_statistics, quantiles
from pipeline.testing import Data, drive, partitions, recipes
from pipeline.testing.strategies import LAW
from pipeline.views import Every, Pooled, Stored, Valid, View

SHARES = (0.0, 0.001, 0.1, 0.25, 0.5, 0.9, 0.95, 0.999, 1.0)


@value
class Wanted:
    probabilities: tuple[float, ...] = SHARES
    of: View = Stored("x")
    where: View = Every()
    per_column: bool = False

    def passes(self, schema: Any) -> Passes[Any]:
        return (
            yield from quantiles(
                schema, self.of, self.probabilities, where=self.where, per_column=self.per_column
            )
        )


def found(x: Any, cut: Any = None, **options: Any) -> tuple[Any, int]:
    """Return the quantiles, and the passes that they took."""
    trace = Trace()
    jobs = {"it": Job(Wanted(**options), {"train": (Data({"x": x}, 2).cut(cut),)})}
    return run_jobs(jobs, trace=trace)["it"], len(trace.passes)


def planned(x: Any, **options: Any) -> int:
    jobs = {"it": Job(Wanted(**options), {"train": (Data({"x": x}, 2).cut(),)})}
    return len(rehearse(jobs)[0])


def small_tables(monkeypatch: Any, room: int = 8) -> None:
    monkeypatch.setattr(module, "ROOM", room)
    monkeypatch.setattr(module, "LEAST_ROOM", 2)


floats = st.one_of(
    st.sampled_from([0.0, -0.0, 5e-324, -5e-324, 1.0, 1.0 + 2**-52, 1.0 - 2**-53, -1e300]),
    st.floats(-1e300, 1e300),
)


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("room", [2, 8, 2**17])
def test_any_values_in_any_cut(room: int, per_column: bool) -> None:
    @LAW
    @given(data=st.data())
    def law(data: Any) -> None:
        shape = data.draw(st.tuples(st.integers(1, 30), st.integers(1, 3)))
        dtype = data.draw(st.sampled_from([np.float64, np.float64, np.float32, np.float16]))
        limit = float(np.finfo(dtype).max)
        x = data.draw(npst.arrays(np.float64, shape, elements=floats)).clip(-limit, limit)
        x = x.astype(dtype)
        cut = data.draw(partitions(len(x)))
        with pytest.MonkeyPatch.context() as patch:
            small_tables(patch, room)
            answer, _ = found(x, cut, per_column=per_column)
        axis = 0 if per_column else None
        np.testing.assert_array_equal(answer, np.quantile(x.astype(np.float64), SHARES, axis=axis))

    law()


ADVERSARIES = {
    "one value": np.full((40, 5), 3.25),
    "two values": np.where(np.arange(200).reshape(40, 5) % 7 < 3, -1.0, 2.0),
    "zeros of both signs": np.where(np.arange(200).reshape(40, 5) % 2, 0.0, -0.0),
    "denormals": np.arange(200).reshape(40, 5) * 5e-324,
    "neighbours": 1.0 + np.arange(200).reshape(40, 5) * 2.0**-52,
    "every size": 2.0 ** np.arange(-1000, 1000, 10).reshape(40, 5),
    "neighbours among every size": np.where(
        np.arange(200).reshape(40, 5) % 2,
        2.0 ** np.arange(-1000, 1000, 10).reshape(40, 5),
        1.0 + np.arange(200).reshape(40, 5) * 2.0**-52,
    ),
    "one row": np.array([[4.0, 1.0, -2.0]]),
    "one number": np.array([[4.0]]),
    "scores": np.random.default_rng(0).standard_normal(300),
    "huge": np.array([[-1.7e308, 1.7e308, 1.0]]),
}


@pytest.mark.parametrize("room", [3, 64, 2**17])
@pytest.mark.parametrize("name", ADVERSARIES)
def test_adversaries(name: str, room: int, monkeypatch: Any) -> None:
    small_tables(monkeypatch, room)
    x = ADVERSARIES[name]
    if name == "huge":  # numpy overflows between the two
        assert np.isfinite(found(x)[0]).all()
        return
    np.testing.assert_array_equal(found(x)[0], np.quantile(x, SHARES))


@pytest.mark.parametrize("per_column", [False, True])
def test_two_passes_are_planned_and_taken(per_column: bool, monkeypatch: Any) -> None:
    small_tables(monkeypatch, 512)
    x = np.random.default_rng(0).standard_normal((3000, 4))
    answer, passes = found(x, [[500] * 6], per_column=per_column)
    assert passes == planned(x, per_column=per_column) == 2
    np.testing.assert_array_equal(answer, np.quantile(x, SHARES, axis=0 if per_column else None))


def test_few_values_take_one_pass() -> None:
    x = np.random.default_rng(0).standard_normal((200, 4))
    assert found(x)[1] == planned(x) == 1
    assert found(x, per_column=True)[1] == planned(x, per_column=True) == 1


def test_values_that_crowd_take_more_passes_and_no_more_memory(monkeypatch: Any) -> None:
    small_tables(monkeypatch, 256)
    rng = np.random.default_rng(0)
    wide = 2.0 ** rng.uniform(-1000, 1000, (3000, 4))
    x = np.where(rng.random((3000, 4)) < 0.5, wide, 1.0 + 2.0**-40 * rng.random((3000, 4)))
    answer, passes = found(x, probabilities=(0.5, 0.6))
    assert 2 < passes <= 8
    np.testing.assert_array_equal(answer, np.quantile(x, (0.5, 0.6)))


def test_several_procedures_share_the_passes(monkeypatch: Any) -> None:
    small_tables(monkeypatch, 512)
    split = Data({"x": np.random.default_rng(0).standard_normal((3000, 4))}, 2).cut()
    trace = Trace()
    jobs = {str(p): Job(Wanted((p,)), {"train": (split,)}) for p in (0.1, 0.5, 0.9)}
    run_jobs(jobs, trace=trace)
    assert [len(pass_.works[0].statistics) for pass_ in trace.passes] == [1, 3]


def test_void_rows_do_not_count() -> None:
    data = recipes.labelled()
    pooled = data.arrays["features"].mean(axis=1, dtype=np.float64)[data.arrays["labels"] >= 0]
    asked = Wanted(of=Pooled(), where=Valid())
    answer = drive.outcome(asked, data.cut([[7] * 30, [30]]))
    np.testing.assert_allclose(answer, np.quantile(pooled, SHARES), rtol=1e-15)


@value
class Ranked:
    ranks: tuple[int, ...]

    def passes(self, schema: Any) -> Passes[Any]:
        return (yield from order_statistics(schema, Stored("x"), lambda n: self.ranks))


@pytest.mark.parametrize("infinite", [False, True])
def test_order_statistics_of_scores(infinite: bool) -> None:
    x = np.random.default_rng(0).standard_normal(50)
    if infinite:
        x[[3, 7]] = -np.inf, np.inf
    data = Data({"x": x, "labels": np.zeros(50, int)}, 2)
    split = drive.chunks(data.cut(), {"x", "labels"})
    statistic = next(Ranked((0,)).passes(data.schema))["values"]
    state = statistic.empty(data.schema)
    for chunk in next(split):
        state = statistic.absorb(state, chunk)
    steps = Ranked((0, 1, 25, 49)).passes(data.schema)
    next(steps)
    with pytest.raises(StopIteration) as stop:
        steps.send({"values": statistic.finalize(state)})
    count, values = stop.value.value
    assert count == 50
    np.testing.assert_array_equal(values[:, 0], np.sort(x)[[0, 1, 25, 49]])
