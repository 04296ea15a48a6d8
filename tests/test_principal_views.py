import numpy as np
import pytest

from pipeline.content import Const
from pipeline.errors import DataError
from pipeline.statistics import SecondMoment, Spread, Sums
from pipeline.testing import Data, StatisticLaws, drive
from pipeline.testing.memory_laws import MemoryLaws
from pipeline.testing.recipes import Shape, regular
from pipeline.views import (
    Pooled,
    Projected,
    RandomFourier,
    ReconstructionError,
    SquaredLength,
    Tokens,
)

AXES = np.linalg.qr(np.random.default_rng(0).standard_normal((512, 512)))[0]
SHAPES = (
    Shape(1, 2, 512, 10),
    Shape(4096, 1, 512, 10),
    Shape(64, 49, 512, 100, "float16", masked=True),
    Shape(500, 4, 512, 10, "float64"),
)


def of_width(d, q, view=Pooled):
    axes = np.ascontiguousarray(AXES[:d, :d] if d == 512 else np.linalg.qr(AXES[:d, :d])[0])
    return view(), Const(axes[:, :q]), Const(np.linspace(-1, 1, d))


class TestMemoryOfErrors(MemoryLaws):
    statistic = Sums(of=ReconstructionError(*of_width(512, 100)))
    memory_shapes = SHAPES

    def rows(self):
        return Shape(80, 2, 512, 5).data


class TestMemoryOfErrorsOfTokens(TestMemoryOfErrors):
    statistic = Sums(of=ReconstructionError(*of_width(512, 400, Tokens)))

    def test_state_size_is_known_and_does_not_depend_on_the_rows(self):
        pass  # as many scores as tokens, whose number the shapes change


class TestMemoryOfSquaredLength(TestMemoryOfErrors):
    statistic = Sums(of=SquaredLength(Projected(*of_width(512, 400, Pooled))))


class TestMemoryOfRandomFourier(TestMemoryOfErrors):
    statistic = SecondMoment(of=RandomFourier.drawn(Pooled(), 512, 700, 2.0, 0))


class TestMomentsOfRandomFourier(StatisticLaws):
    statistic = SecondMoment(of=RandomFourier.drawn(Pooled(), 12, 9, 0.01, 0))
    memory_shapes = (Shape(4096, 2, 12, 10), Shape(500, 4, 12, 10, "float64"))

    def reference(self, rows):
        view = self.statistic.of
        x = rows["features"][rows["labels"] >= 0].mean(axis=1)
        x = np.sqrt(2 / 9) * np.cos(x @ view.frequencies.array + view.phases.array)
        about = x - x.mean(axis=0)
        return Spread(np.array([len(x)]), x.mean(axis=0), about.T @ about)


def chunk_of(view, features, sizes=None):
    labels = np.zeros(len(features), np.int64)
    data = Data({"features": features, "labels": labels}, 1)
    split = data.cut(regular(len(features), sizes) if sizes else None)
    parts = [view(c) for block in drive.chunks(split, view.fields) for c in block]
    return np.concatenate(parts)


@pytest.mark.parametrize("q", [1, 5, 11])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_error_is_what_the_axes_leave(q, dtype):
    x = np.random.default_rng(1).standard_normal((230, 3, 12)).astype(dtype)
    view = ReconstructionError(*of_width(12, q, Tokens))
    axes, origin = view.axes.array, view.origin.array
    rest = x.astype(np.float64) - origin
    expected = ((rest - rest @ axes @ axes.T) ** 2).sum(axis=-1)
    np.testing.assert_allclose(chunk_of(view, x), expected, rtol=1e-10)
    for size in (1, 7, 229):
        assert (chunk_of(view, x, size) == chunk_of(view, x)).all()


def test_a_row_in_the_principal_space_keeps_the_digits_of_its_error():
    view = ReconstructionError(Pooled(), Const(np.eye(3, 2)), Const(np.zeros(3)))
    x = np.array([[1e8, -1e8, 1e-6]])
    assert chunk_of(view, x)[0] == pytest.approx(1e-12, rel=1e-9)


def test_fourier_features_are_drawn_from_their_seed():
    first, second = (RandomFourier.drawn(Pooled(), 4, 9, 2.0, seed) for seed in (3, 3))
    assert first == second
    assert first != RandomFourier.drawn(Pooled(), 4, 9, 2.0, 4)
    assert first != RandomFourier.drawn(Pooled(), 4, 9, 1.0, 3)


def test_the_bits_of_a_fourier_row_do_not_depend_on_the_rows_beside_it():
    x = np.random.default_rng(1).standard_normal((230, 12))
    view = RandomFourier.drawn(Pooled(), 12, 37, 2.0, 0)
    for size in (1, 7, 229):
        assert (chunk_of(view, x, size) == chunk_of(view, x)).all()


@pytest.mark.parametrize(
    "view", [ReconstructionError(*of_width(12, 3)), RandomFourier.drawn(Pooled(), 12, 5, 1.0, 0)]
)
def test_features_of_another_width_are_refused(view):
    data = Data({"features": np.zeros((3, 11)), "labels": np.zeros(3, np.int64)}, 1)
    with pytest.raises(DataError, match=r"\(12,\).*do not fit"):
        view.shape(data.schema)
