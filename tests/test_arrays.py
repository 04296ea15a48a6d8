from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy.linalg import solve_triangular

from pipeline import arrays
from pipeline.arrays import Kernel, sums
from pipeline.testing.drive import PLACES
from pipeline.testing.fake_device import PLACE, fake_device
from pipeline.testing.strategies import LAW

LIBRARIES = sorted(PLACES)
RNG = np.random.default_rng(0)

in_every_library = pytest.mark.parametrize("library", LIBRARIES)


def put(library: str, *hosts: Any) -> list[Any]:
    return [PLACES[library].put(np.array(host)) for host in hosts]


def ids(n: int, k: int) -> Any:
    return RNG.integers(0, k, n)


ARGUMENTS: dict[str, list[tuple[Any, ...]]] = {
    "top_k": [(RNG.standard_normal((4, 9)), k) for k in (1, 4, 9)],
    "syrk_into": [(np.ones((3, 3)), RNG.standard_normal((20, 3)).astype(dtype))
                  for dtype in (np.float64, np.float32)],
    "add_into": [(np.ones(3), np.ones(3, np.float32)), (np.ones(3, np.int64), ids(3, 9))],
    "add_rows_into": [(np.ones((5, 2)), np.array([4, 0]), RNG.standard_normal((2, 2)))],
    "subtract_into": [(np.empty((3, 4)), np.ones((3, 4)), RNG.standard_normal((1, 4)))],
    "scatter_rows": [(np.ones((5, 2)), np.array([4, 0]), RNG.standard_normal((2, 2)))],
    "clear_at": [(np.ones((3, 4)), np.array([3, 0, 3]))],
    "sort_in_place": [(RNG.standard_normal(20),)],
    "sort_keys": [(np.array([-np.inf, -1.5, -0.0, 0.0, 5e-324, 2.5, np.inf]),)],
    "bincount": [(ids(50, 9), 9), (ids(50, 70_000), 70_001), (ids(0, 9), 2)],
    "sum_integers_in_bins": [(ids(50, 9), RNG.integers(-(2**40), 2**40, 50), 9)],
}  # fmt: skip
"""Some for each kernel with a body for cupy, but for ``solve_lower``: numpy has none."""


def test_every_body_for_cupy_is_tried() -> None:
    kernels = {n for n, k in vars(arrays).items() if isinstance(k, Kernel) and "cupy" in k.bodies}
    assert kernels == {*ARGUMENTS, "solve_lower"}


@in_every_library
def test_a_round_trip_changes_nothing(library: str) -> None:
    host = RNG.standard_normal((3, 4))
    host.flags.writeable = False
    placed = PLACES[library].put(host)
    assert arrays.is_array(placed)
    assert arrays.library(placed) == library
    np.testing.assert_array_equal(arrays.to_host(placed), host)
    again = arrays.like(host, placed)
    assert arrays.device_of(again) == arrays.device_of(placed)
    assert arrays.nbytes({"a": [placed, (placed, 1)]}) == 2 * 96


def test_only_arrays_of_one_library_mix() -> None:
    numpy, torch = put("numpy", [1.0])[0], put("torch", [1.0])[0]
    with pytest.raises(TypeError):
        arrays.namespace(numpy, torch)
    assert not arrays.is_array([1.0])


def test_map_arrays_keeps_the_form_of_a_tree() -> None:
    tree = {"a": (np.ones(2), "text"), "b": [3]}
    assert arrays.map_arrays(lambda x: x.sum(), tree) == {"a": (2.0, "text"), "b": [3]}


def test_versions_import_nothing() -> None:
    before = set(sys.modules)
    assert arrays.versions()["numpy"] == np.__version__
    assert arrays.versions(("numpy", "no_such_library")).keys() == {"numpy"}
    assert set(sys.modules) == before


@in_every_library
def test_by_tiles_joins_what_tiles_become(library: str) -> None:
    rows = 2 * arrays.TILE_ROWS + 3
    x, y = RNG.standard_normal((rows, 2)), RNG.standard_normal(rows)
    for n in (0, 1, arrays.TILE_ROWS, rows):
        placed = put(library, x[:n], y[:n])
        found = arrays.by_tiles(lambda x, y: x * y[:, None], *placed)
        np.testing.assert_array_equal(arrays.to_host(found), x[:n] * y[:n, None])
    (placed,) = put(library, x)
    found = arrays.by_tiles(lambda x: x[:, 0], placed, tile_rows=5)
    np.testing.assert_array_equal(arrays.to_host(found), x[:, 0])


@in_every_library
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_row_products(library: str, dtype: Any) -> None:
    x, w = RNG.standard_normal((150, 2, 5)).astype(dtype), RNG.standard_normal((5, 3))
    origin = RNG.standard_normal(5)
    placed = put(library, x, w, origin)
    expected = (x.astype(np.float64) - origin) @ w
    found = arrays.to_host(arrays.row_products(*placed))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    found = arrays.to_host(arrays.row_products(*placed[:2]))
    np.testing.assert_allclose(found, x.astype(np.float64) @ w, rtol=1e-12, atol=1e-12)
    assert arrays.row_products(placed[0][:0, ...], placed[1]).shape == (0, 2, 3)


@LAW
@given(
    d=st.sampled_from((1, 3, 12, 49, 100, 512)),
    q=st.sampled_from((1, 2, 5, 10, 100, 500)),
    library=st.sampled_from(("numpy", "torch")),
    transposed=st.booleans(),
    cut=st.tuples(st.integers(0, 299), st.integers(1, 300)),
)
def test_the_bits_of_a_row_do_not_depend_on_the_rows_beside_it(
    d: int, q: int, library: str, transposed: bool, cut: tuple[int, int]
) -> None:
    rng = np.random.default_rng(d * q)
    w = rng.standard_normal((q, d)).T if transposed else rng.standard_normal((d, q))
    x, w = (PLACES[library].put(y) for y in (rng.standard_normal((300, d)), w))
    rows = slice(cut[0], min(300, sum(cut)))
    whole, part = (arrays.to_host(arrays.row_products(y, w)) for y in (x, x[rows, ...]))
    np.testing.assert_array_equal(part, whole[rows])


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("d", [1, 12, 31, 300])
@pytest.mark.parametrize("q", [1, 3, 10, 100, 500, 1000, 1023])
def test_rows_that_are_equal_have_equal_products(library: str, d: int, q: int) -> None:
    x, w = RNG.standard_normal((1, d)).repeat(200, axis=0), RNG.standard_normal((d, q))
    for head in (w, np.asfortranarray(w)):
        found = arrays.to_host(arrays.row_products(*put(library, x, head)))
        np.testing.assert_array_equal(found, found[:1].repeat(200, axis=0))


@in_every_library
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("rows", [0, 1, 50, 2000])
def test_sum_by_id(library: str, shape: tuple[int, ...], rows: int) -> None:
    x = RNG.standard_normal((rows, *shape)).astype(np.float32)
    ids = 2 * RNG.integers(0, 6, rows)
    expected = np.zeros((12, *shape))
    np.add.at(expected, ids, x.astype(np.float64))
    present, sums = (arrays.to_host(y) for y in arrays.sum_by_id(*put(library, x, ids)))
    np.testing.assert_array_equal(present, np.unique(ids))
    assert sums.dtype == np.float64
    np.testing.assert_allclose(sums, expected[present], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("classes", [3, 100])
def test_sum_by_id_holds_little_beside_its_result(
    monkeypatch: pytest.MonkeyPatch, classes: int
) -> None:
    monkeypatch.setattr(sums, "ENTRIES", 64 * 8)
    x, ids = RNG.standard_normal((1000, 8)), RNG.integers(0, classes, 1000)
    _, expected = arrays.sum_by_id(x, ids)
    with fake_device() as device:
        placed = [PLACE.put(x), PLACE.put(ids)]
        before = device.used_nbytes()
        _, found = arrays.sum_by_id(*placed)
        np.testing.assert_allclose(arrays.to_host(found), expected, rtol=1e-12, atol=1e-12)
        assert device.peak_nbytes() < before + expected.nbytes + 3 * ids.nbytes + 3 * 8 * 64**2


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_what_cupy_does_is_what_the_standard_does(name: str) -> None:
    """Bodies for cupy are in what it shares with numpy: here they are given arrays of numpy."""
    kernel: Kernel = getattr(arrays, name)
    for arguments in ARGUMENTS[name]:
        fast = kernel.bodies["cupy"](*copy.deepcopy(arguments))
        placed = [PLACE.put(x) if isinstance(x, np.ndarray) else x for x in arguments]
        portable = kernel.portable(*placed)
        np.testing.assert_allclose(fast, arrays.to_host(portable), rtol=1e-12, atol=1e-12)
        assert fast.dtype == arrays.to_host(portable).dtype


@in_every_library
@pytest.mark.parametrize("shape", [(7,), (7, 3)])
def test_add_rows_into(library: str, shape: tuple[int, ...]) -> None:
    total, ids = RNG.standard_normal(shape), np.array([4, 0])
    rows = RNG.standard_normal((2, *shape[1:]))
    expected = total.copy()
    expected[ids] += rows
    found = arrays.to_host(arrays.add_rows_into(*put(library, total, ids, rows)))
    np.testing.assert_allclose(found, expected, rtol=1e-15)


@in_every_library
def test_clear_at(library: str) -> None:
    x, ids = RNG.standard_normal((3, 4)), np.array([3, 0, 3])
    expected = np.where(np.arange(4) == ids[:, None], 0, x)
    found = arrays.to_host(arrays.clear_at(*put(library, x, ids)))
    np.testing.assert_array_equal(found, expected)


@in_every_library
def test_bincount(library: str) -> None:
    ids = np.array([5, 0, 5, 2])
    found = arrays.to_host(arrays.bincount(*put(library, ids), 8))
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, [1, 0, 1, 0, 0, 2, 0, 0])
    none = arrays.to_host(arrays.bincount(*put(library, ids[:0]), 2))
    np.testing.assert_array_equal(none, [0, 0])


@in_every_library
@pytest.mark.parametrize("k", [1, 3, 9])
def test_top_k(library: str, k: int) -> None:
    x = RNG.integers(0, 5, (4, 9)).astype(np.float64)
    x[0, 0] = np.inf
    found = arrays.to_host(arrays.top_k(*put(library, x), k))
    np.testing.assert_array_equal(found, -np.sort(-x, axis=1)[:, :k])


@in_every_library
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_syrk_into(library: str, dtype: Any) -> None:
    x, total = RNG.standard_normal((20, 4)).astype(dtype), RNG.standard_normal((4, 4))
    expected = total + x.astype(np.float64).T @ x
    found = arrays.to_host(arrays.syrk_into(*put(library, total, x)))
    assert found.dtype == np.float64
    rtol = 1e-12 if dtype == np.float64 else 1e-5
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol)


TOLD = """
import torch
from pipeline.arrays.kernels import torch_rounds
assert not torch_rounds()
{}
assert torch_rounds()
"""


@pytest.mark.parametrize(
    "setting",
    [
        "torch.set_float32_matmul_precision('high')",
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    ],
)
def test_products_in_tf32_are_known_however_torch_was_told(setting: str) -> None:
    subprocess.run([sys.executable, "-c", TOLD.format(setting)], check=True)


@in_every_library
def test_add_and_subtract_into(library: str) -> None:
    total, x = RNG.standard_normal((3, 4)), RNG.standard_normal((3, 4)).astype(np.float32)
    found = arrays.to_host(arrays.add_into(*put(library, total, x)))
    np.testing.assert_allclose(found, total + x)
    counts = arrays.to_host(arrays.add_into(*put(library, np.array([1, 2]), np.array([3, 4]))))
    np.testing.assert_array_equal(counts, [4, 6])
    out, y = np.empty((3, 4)), RNG.standard_normal((1, 4))
    found = arrays.to_host(arrays.subtract_into(*put(library, out, x, y)))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, x - y)


@in_every_library
def test_scatter_rows(library: str) -> None:
    out, rows = np.zeros((5, 2)), np.array([[1.0, 2.0], [3.0, 4.0]])
    found = arrays.to_host(arrays.scatter_rows(*put(library, out, np.array([4, 1]), rows)))
    np.testing.assert_array_equal(found[[4, 1]], rows)
    np.testing.assert_array_equal(found[[0, 2, 3]], 0)


@in_every_library
def test_solve_lower(library: str) -> None:
    factor, x = np.tri(4) + np.eye(4), RNG.standard_normal((4, 3))
    found = arrays.to_host(arrays.solve_lower(*put(library, factor, x)))
    np.testing.assert_allclose(found, solve_triangular(factor, x, lower=True), rtol=1e-12)


TINY = 2.0**-1022
special = st.sampled_from([0.0, -0.0, np.inf, -np.inf, 5e-324, TINY, np.nextafter(TINY, 0), 1e308])
floats = npst.arrays(
    np.float64,
    st.integers(0, 60),
    elements=special | st.floats(allow_nan=False) | st.integers(-1074, 1023).map(lambda e: 2.0**e),
)


@LAW
@given(x=floats)
def test_keys_have_the_order_of_the_floats(x: Any) -> None:
    keys = {library: arrays.to_host(arrays.sort_keys(*put(library, x))) for library in LIBRARIES}
    portable = arrays.sort_keys.portable(*put("array_api_strict", x))
    for found in (*keys.values(), arrays.to_host(portable)):
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, keys["numpy"])
    ours = keys["numpy"]
    np.testing.assert_array_equal(ours[:, None] > ours[None, :], x[:, None] > x[None, :])
    np.testing.assert_array_equal(ours[:, None] == ours[None, :], x[:, None] == x[None, :])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_keys_of_narrow_floats_are_those_of_their_values(dtype: Any) -> None:
    x = np.array([1.5, -2.25, 0.0, 6e-8], dtype)
    np.testing.assert_array_equal(arrays.sort_keys(x), arrays.sort_keys(x.astype(np.float64)))


@in_every_library
def test_sum_in_bins(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "GATHER_ROWS", 2)
    monkeypatch.setattr(sums, "ENTRIES", 3)
    ids, x = np.array([3, 0, 3, 1, 3, 0, 0]), np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
    found = arrays.to_host(arrays.sum_in_bins(*put(library, ids, x), 5))
    np.testing.assert_array_equal(found, [98.0, 8.0, 0.0, 21.0, 0.0])
    found = arrays.to_host(
        arrays.sum_integers_in_bins(*put(library, ids, -(x.astype(int) << 32)), 5)
    )
    np.testing.assert_array_equal(found, [-98 << 32, -8 << 32, 0, -21 << 32, 0])
