"""The laws themselves: each planted fault must break the law that is there for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

from pipeline import arrays
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.detectors.mahalanobis import Mahalanobis
from pipeline.statistics import ClassMeans, ClassScatters, Means, SecondMoment, Spread
from pipeline.statistics.class_means import ClassSums
from pipeline.statistics.second_moment import OpenSpread
from pipeline.testing import DetectorLaws, StatisticLaws
from pipeline.testing.strategies import OFFSETS
from pipeline.views import Every, Labels, Pooled, Valid, View


def breaks(law: Callable[[], None]) -> None:
    with pytest.raises((AssertionError, ValueError)):
        law()


@value
class Faulty:
    """Class means that are right; the faults below change one method each."""

    of: View = Pooled()
    by: View = Labels()
    where: View = Valid()
    version: ClassVar[int] = 1

    views = ClassMeans.views
    fields = ClassMeans.fields
    empty = ClassMeans.empty
    absorb = ClassMeans.absorb
    close = ClassMeans.close
    merge = ClassMeans.merge
    finalize = ClassMeans.finalize
    state_nbytes = ClassMeans.state_nbytes
    work_nbytes = ClassMeans.work_nbytes


@value
class MergesInPlace(Faulty):
    def merge(self, a: ClassSums, b: ClassSums) -> ClassSums:
        a.count[:] += b.count
        a.total[:] += b.total
        return a


@value
class KeepsTheChunk(Faulty):
    def absorb(self, state: Any, chunk: Chunk) -> Any:
        return ClassSums(state.count, self.of(chunk)[:5])


@value
class GrowsWithRows(Faulty):
    def absorb(self, state: Any, chunk: Chunk) -> Any:
        return ClassSums(state.count, np.concatenate([state.total, self.of(chunk)]))


@value
class NeedsMoreThanItSays(Faulty):
    def work_nbytes(self, schema: Schema, rows: int) -> int:
        return 0


@value
class CountsVoidRows(Faulty):
    def absorb(self, state: Any, chunk: Chunk) -> Any:
        labels = np.maximum(self.by(chunk), 0)
        return ClassSums(
            state.count + arrays.bincount(labels, 5),
            arrays.add_rows_into(state.total, *arrays.sum_by_id(self.of(chunk), labels)),
        )


@value
class AveragesAverages(Faulty):
    def merge(self, a: ClassSums, b: ClassSums) -> ClassSums:
        return ClassSums(a.count + b.count, (a.total + b.total) / 2)


class ClassMeansLaws(StatisticLaws):
    def reference(self, rows: Mapping[str, Any]) -> Means:
        y, x = rows["labels"], rows["features"].mean(axis=1)
        kept = np.maximum([(y == c).sum() for c in range(5)], 0)
        means = [x[y == c].mean(axis=0) if (y == c).any() else np.zeros(12) for c in range(5)]
        return Means(kept, np.array(means))


@pytest.mark.parametrize(
    ("statistic", "law"),
    [
        (MergesInPlace(), "test_merge_leaves_its_inputs_alone_and_shares_no_memory"),
        (KeepsTheChunk(), "test_a_state_keeps_no_memory_of_the_chunk"),
        (GrowsWithRows(), "test_state_size_is_known_and_does_not_depend_on_the_rows"),
        (CountsVoidRows(), "test_a_class_may_be_absent"),
        (AveragesAverages(), "test_a_class_may_be_absent"),
        (AveragesAverages(), "test_no_rows_are_the_identity"),
        (Faulty(where=Every()), "test_half_precision_is_upcast"),
    ],
    ids=lambda entry: entry if isinstance(entry, str) else type(entry).__name__,
)
def test_faults_of_statistics_are_found(statistic: Any, law: str) -> None:
    laws = ClassMeansLaws()
    laws.statistic = Faulty()
    getattr(laws, law)()
    laws.statistic = statistic
    breaks(getattr(laws, law))


def test_undeclared_memory_is_found() -> None:
    laws = ClassMeansLaws()
    laws.statistic = NeedsMoreThanItSays()
    breaks(laws.test_work_memory_is_declared)


@value
class SkipsAClass(ClassScatters):
    """Stripes that leave out the last class, and do not get narrower."""

    def stripes(self, schema: Schema, n: int) -> Any:
        return ClassScatters(stripe=(0, schema.classes - 1)).stripes(schema, n)


@value
class NeverNarrower(ClassScatters):
    def stripes(self, schema: Schema, n: int) -> Any:
        return [self] * n


@pytest.mark.parametrize("statistic", [SkipsAClass(), NeverNarrower()])
def test_stripes_that_do_not_join_to_the_whole_are_found(statistic: Any) -> None:
    laws = StatisticLaws()
    laws.statistic = ClassScatters()
    laws.test_stripes_join_to_the_same_bits()
    laws.statistic = statistic
    breaks(laws.test_stripes_join_to_the_same_bits)


@value
class RawSecondMoment(SecondMoment):
    """Sums of x and xx', which lose all digits at an offset."""

    def absorb(self, state: Any, chunk: Chunk) -> Any:
        x = self.of(chunk)[self.where(chunk)]
        return OpenSpread(
            state.count + len(x), state.centre, state.total + x.sum(axis=0), state.scatter + x.T @ x
        )


class SecondMomentLaws(StatisticLaws):
    statistic = RawSecondMoment()

    def reference(self, rows: Mapping[str, Any]) -> Spread:
        x = rows["features"].mean(axis=1)[rows["labels"] >= 0]
        r = x - x.mean(axis=0)
        return Spread(np.array([len(x)]), x.mean(axis=0), r.T @ r)


def test_raw_moments_fail_at_the_offsets_that_are_drawn() -> None:
    laws = SecondMomentLaws()
    laws.assert_as_reference(laws.rows())
    for offset in OFFSETS[2:]:
        breaks(lambda offset=offset: laws.assert_as_reference(laws.rows().shifted(offset)))


@value
class TheWrongWayRound(Mahalanobis):
    def passes(self, schema: Schema) -> Any:
        return Negated((yield from super().passes(schema)))


@value
class Negated:
    scorer: Any

    @property
    def views(self) -> Any:
        return self.scorer.views

    def score(self, chunk: Chunk) -> Any:
        return -self.scorer.score(chunk)


def test_a_detector_whose_scores_point_the_wrong_way_is_found() -> None:
    laws = DetectorLaws()
    laws.detector = Mahalanobis()
    laws.test_larger_is_out_of_distribution()
    laws.detector = TheWrongWayRound()
    breaks(laws.test_larger_is_out_of_distribution)
