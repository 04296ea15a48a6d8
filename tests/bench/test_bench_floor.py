"""The floor: which files a pass reads, which products it forms, and how they are shared out."""

from math import ceil

import numpy as np
import pytest

from pipeline.bench import fitting, floor
from pipeline.bench.measuring import Processes, alternate, machine, medians
from pipeline.bench.scheduler import line_through
from pipeline.bench.tokens import Recipe, make
from pipeline.store import Store

RECIPE = Recipe(rows=60, tokens=3, features=16, classes=4)


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    path = tmp_path_factory.mktemp("floor") / "s.zarr"
    make(path, RECIPE, 1, chunk_nbytes=2_000, block_nbytes=4_000)
    return Store.open(path).split("id/train")


def passes(split, names, pool="tokens"):
    return fitting.passes_of(fitting.jobs_of(fitting.chosen(names, pool), split))


def test_files_are_those_of_the_arrays_that_are_read(split):
    read = floor.files_of(passes(split, ["mahalanobis"]))
    assert {path.relative_to(split.root / split.name).parts[0] for path in read} == {
        "features", "labels",
    }  # fmt: skip
    rows = split.declared.chunk_rows
    assert len(read) == len(set(read)) == sum(ceil(60 / rows[n]) for n in ("features", "labels"))
    held = sum(path.stat().st_size for path in read)
    assert held >= RECIPE.rows * split.schema.row_nbytes({"features", "labels"})


def test_a_second_pass_reads_files_again(split):
    one = floor.files_of(passes(split, ["mahalanobis"]))
    doubled = passes(split, ["mahalanobis"]) * 2
    assert len(floor.files_of(doubled)) == 2 * len(one)


def test_products_count_tokens_in_float32_and_pooled_rows_in_float64(split):
    (of_tokens,) = floor.products_of(passes(split, ["mahalanobis", "relative_mahalanobis", "she"]))
    assert (of_tokens.rows, of_tokens.features, of_tokens.dtype) == (180, 16, "float32")
    assert of_tokens.flops == 2 * 180 * 16**2
    (pooled,) = floor.products_of(passes(split, ["mahalanobis"], "mean"))
    assert (pooled.rows, pooled.dtype) == (60, "float64")
    assert floor.products_of(passes(split, ["msp"])) == []


def test_reading_and_products_take_time_in_processes(split):
    paths = floor.files_of(passes(split, ["mahalanobis"]))
    products = floor.products_of(passes(split, ["mahalanobis"]))
    with Processes(3) as processes:
        floor.drop(paths)
        assert floor.read_seconds(processes, paths) > 0
        assert floor.read_seconds(processes, paths[:1]) > 0
        assert floor.products_seconds(processes, products) > 0
        assert floor.products_seconds(processes, []) == 0


def test_a_file_that_is_gone_is_an_error(tmp_path):
    with Processes(1) as processes, pytest.raises(FileNotFoundError):
        floor.read_seconds(processes, [tmp_path / "none"])


def test_sides_take_turns():
    order = []

    def side(name, seconds):
        return lambda: order.append(name) or seconds

    said = []
    taken = alternate({"a": side("a", 1.0), "b": side("b", 2.0)}, 3, said.append)
    assert order == ["a", "b"] * 3
    assert taken == {"a": [1.0] * 3, "b": [2.0] * 3}
    assert said[-1] == "3/3: a 1 s, b 2 s"
    assert medians({"x": [3.0, 1.0, 8.0]}) == {"x": 3.0}


def test_a_line_goes_through_its_points():
    a, b = line_through([100, 1000, 5000], [1.2, 3.0, 11.0])
    np.testing.assert_allclose([a, b], [1.0, 0.002])
    assert line_through([50], [2.0]) == (0.0, 0.04)


def test_the_machine_is_named():
    here = machine()
    assert {"cpu", "cores", "numpy", "blas", "date", "memory_nbytes"} <= set(here)
    assert here["cpu"]
