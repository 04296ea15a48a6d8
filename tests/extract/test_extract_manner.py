"""How a model is run: batches that fit, half precision, and values that are not finite."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from sources_of_tests import BLOCKS, Mixed, Numbers, rows_of

from pipeline.errors import ConfigError, DataError, FeatfoldError
from pipeline.extract.filling import extract_split
from pipeline.extract.passing import Manner
from pipeline.store import Store


@pytest.fixture
def store(tmp_path):
    return Store.create(tmp_path / "f.zarr")


class Tight(Mixed):
    """Has memory for few rows at once."""

    def __init__(self, most):
        super().__init__()
        self.most, self.sizes = most, []

    def forward(self, x):
        self.sizes.append(len(x))
        if len(x) > self.most:
            raise torch.OutOfMemoryError("no memory for so many")
        return super().forward(x)


def extracted(store, model, rows=50, name="id/train", source=None, **options):
    manner = Manner(**options)
    source = source or Numbers(rows)
    extract_split(store, name, model, source, classes=3, manner=manner, **BLOCKS)
    return rows_of(store.split(name, verify=True), "features")


def expected(rows=50):
    return Mixed()(torch.arange(rows)).detach().numpy()


@pytest.mark.parametrize("batch", [1, 7, 49, 50, 64, "auto"])
def test_features_do_not_depend_on_the_size_of_batches(store, batch):
    found = extracted(store, Mixed(), batch_rows=batch)
    np.testing.assert_allclose(found, expected(), rtol=0, atol=1e-5)


def test_batches_are_halved_until_they_fit_and_the_size_is_kept(store):
    tight = Tight(9)
    np.testing.assert_allclose(extracted(store, tight, batch_rows="auto"), expected(), atol=1e-5)
    assert tight.sizes[:3] == [32, 16, 8]
    assert max(tight.sizes[3:]) == 8
    assert store.attributes("id/train")["batch_rows"] == 8


def test_a_resumed_split_has_the_batches_it_was_begun_with(store):
    failing = Tight(9)
    calls = iter(range(10_000))
    inner = failing.forward
    failing.forward = lambda x: 1 / 0 if next(calls) == 6 else inner(x)
    with pytest.raises(DataError, match="the model raised ZeroDivisionError"):
        extracted(store, failing, batch_rows="auto")
    wide = Tight(1000)
    extracted(store, wide, batch_rows="auto")
    assert max(wide.sizes) == 8


def test_a_model_that_uses_its_output_memory_again_keeps_the_rows_of_every_piece(store):
    """Batches of a stream have their own size, so they come as pieces."""

    class Reusing(Mixed):
        memory = torch.empty(4, 5)

        def forward(self, x):
            if len(x) > 4:
                raise torch.OutOfMemoryError("no memory for so many")
            found = self.memory[: len(x)]
            found.copy_(super().forward(x))
            return found

    batches = [(torch.arange(n, n + 10.0)[:, None], [0] * 10) for n in range(0, 50, 10)]
    found = extracted(store, Reusing(), source=iter(batches), batch_rows="auto")
    np.testing.assert_allclose(found, expected(), atol=1e-5)


def test_memory_that_runs_out_later_halves_batches_from_there_on(store):
    tight = Tight(32)
    inner = tight.forward

    def shrinking(x):
        tight.most = 32 if len(tight.sizes) < 2 else 5
        return inner(x)

    tight.forward = shrinking
    np.testing.assert_allclose(extracted(store, tight, batch_rows="auto"), expected(), atol=1e-5)
    assert max(tight.sizes[4:]) <= 5


def test_memory_that_runs_out_for_real_halves_batches(tmp_path):
    """A process that may address few gigabytes, and a model that takes 512 MiB a row."""
    script = f"""
import resource, sys
sys.path[:0] = {sys.path!r}
import torch
from sources_of_tests import Mixed, Numbers
from pipeline.extract.filling import extract_split
from pipeline.extract.passing import Manner
from pipeline.store import Store

class Hungry(Mixed):
    def forward(self, x):
        torch.empty(len(x), 2**29, dtype=torch.uint8)
        return super().forward(x)

store = Store.create({str(tmp_path / "r.zarr")!r})
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 5 * 2**30, resource.RLIM_INFINITY))
done = extract_split(store, "id/train", Hungry(), Numbers(40), classes=3,
                     manner=Manner("auto"))
print(done.batch_rows, done.rows)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["8", "40"], done.stderr


def test_a_size_that_was_given_is_an_error_where_it_does_not_fit(store):
    with pytest.raises(FeatfoldError, match=r"rows \d+-\d+: cpu ran out of memory with \d+ rows"):
        extracted(store, Tight(3), batch_rows=16)
    with pytest.raises(DataError, match="OutOfMemoryError"):
        extracted(store, Tight(0), batch_rows="auto", name="id/test")


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_autocast_takes_products_in_half_precision_and_says_so(store, half):
    found = extracted(store, Mixed(), autocast=half)
    dtype = getattr(torch, half)
    with torch.autocast("cpu", dtype=dtype):
        wanted = Mixed()(torch.arange(50)).detach()
    assert wanted.dtype == dtype
    np.testing.assert_array_equal(found.astype("f4"), wanted.float().numpy())
    assert store.attributes("id/train")["autocast"] == half
    assert store.split("id/train").schema.arrays["features"].dtype == half


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_outputs_are_cast_to_the_dtype_of_the_store(store, dtype):
    found = extracted(store, Mixed(), dtype=dtype)
    wanted = Mixed()(torch.arange(50)).detach().to(getattr(torch, dtype)).float().numpy()
    np.testing.assert_allclose(found.astype("f4"), wanted, rtol=0, atol=1e-5 + 2**-4)
    assert store.split("id/train").schema.arrays["features"].dtype == dtype
    half = extracted(store, Mixed(), autocast="bfloat16", dtype="float32", name="id/test")
    assert half.dtype == np.float32


class Odd(Mixed):
    """Row 17 has one NaN and row 30 two infinities."""

    def forward(self, x):
        found = super().forward(x)
        found[x[:, 0] == 17, 2] = torch.nan
        found[x[:, 0] == 30, :2] = torch.inf
        return {"features": found, "logits": found * 0 + 1, "counts": x.long()}


def test_values_that_are_not_finite_are_named_at_their_rows(store):
    with pytest.raises(DataError, match=r"id/train: features .* row 17 \(id 17\): 1, of 5 each"):
        extracted(store, Odd(), batch_rows=7)
    with pytest.raises(DataError, match=r"row 17 \(id 17\): 1, row 30 \(id 30\): 2, of 5"):
        extract_split(store, "id/val", Odd(), Numbers(50), classes=3, batch_rows=50)
    assert extracted(store, Odd(), batch_rows=7, nonfinite="keep", name="id/test").shape == (50, 5)
    found = rows_of(store.split("id/test"), "features")
    assert np.argwhere(~np.isfinite(found)).tolist() == [[17, 2], [30, 0], [30, 1]]


def test_a_cast_that_overflows_is_named(store):
    large = lambda x: x.float() * 1e5  # noqa: E731
    with pytest.raises(DataError, match=r"not finite, in torch\.float16: row 1 \(id 1\)"):
        extracted(store, large, dtype="float16")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"batch_rows": 0}, "batch_rows is at least 1, or auto, got 0"),
        ({"batch_rows": "many"}, "batch_rows is at least 1, or auto, got many"),
        ({"autocast": "tf32"}, "autocast: expected one of none, bfloat16, float16, got 'tf32'"),
        ({"dtype": "int8"}, "dtype: expected one of auto, bfloat16, float16, float32"),
        ({"nonfinite": "skip"}, "nonfinite: expected one of raise, keep"),
    ],
)
def test_what_a_manner_cannot_be_is_refused(wrong, words):
    with pytest.raises(ConfigError, match=words):
        Manner(**wrong)
