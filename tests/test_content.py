from __future__ import annotations

import gc
import json
import pickle
import subprocess
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import content
from pipeline.arrays import to_host
from pipeline.content import Const, constants_in, digest, from_tree, replaced, to_tree, value
from pipeline.errors import ConfigError, CorruptError, MissingInputError
from pipeline.testing.drive import PLACES
from pipeline.testing.strategies import LAW


@value
class Inner:
    scale: float = 1.0


@value
class Outer:
    """One of everything a value may hold."""

    rate: float
    steps: int = 3
    flag: bool = False
    name: str = "a"
    sizes: tuple[int, ...] = ()
    span: tuple[int, float] = (0, 1.0)
    inner: Inner = Inner()
    limit: float | None = None
    table: Const | None = None
    by_name: Mapping[str, Inner] | None = None
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise ConfigError("rate: below 0")


@value
class Weights:
    of: Mapping[str, tuple[float, ...]]


@value
class Other:
    rate: float


def test_numbers_and_sequences_are_brought_into_one_form() -> None:
    plain = Outer(1.0, steps=2, flag=True, sizes=(1, 2), limit=4.0, span=(2, 3.0))
    for same in (
        Outer(1, steps=2.0, flag=1, sizes=[1.0, 2], limit=4, span=[2.0, 3]),  # type: ignore[arg-type]
        Outer(
            np.float32(1),
            steps=np.int8(2),
            flag=np.True_,
            sizes=(1, 2),
            limit=np.int64(4),
            span=(np.uint8(2), 3),
        ),  # type: ignore[arg-type]
    ):
        assert same == plain
        assert hash(same) == hash(plain)
        assert digest(same) == digest(plain)
        assert type(same.rate) is float
        assert type(same.steps) is int
        assert type(same.flag) is bool
        assert [type(entry) for entry in (*same.sizes, *same.span)] == [int, int, int, float]


def test_mappings_are_copied_and_brought_into_one_form() -> None:
    given = {"x": [1, 2]}
    made = Weights(given)  # type: ignore[arg-type]
    given["y"] = [3]
    assert made == Weights({"x": (1.0, 2.0)})


@pytest.mark.parametrize(
    "change",
    [
        {"rate": 2.0}, {"steps": 4}, {"flag": True}, {"name": "b"}, {"sizes": (0,)},
        {"inner": Inner(2.0)}, {"limit": 0.0}, {"table": Const(np.zeros(1))},
        {"by_name": {"x": Inner()}},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_every_field_counts(change: dict[str, Any]) -> None:
    assert replaced(Outer(1.0), **change) != Outer(1.0)
    assert digest(replaced(Outer(1.0), **change)) != digest(Outer(1.0))


def test_class_and_version_count() -> None:
    assert Other(1.0) != Outer(1.0)
    assert digest(Inner(1.0)) != digest(Other(1.0))
    before = to_tree(Outer(1.0))
    assert before["version"] == 1
    with pytest.raises(ConfigError, match="saved as version 2, this is 1: fit again"):
        from_tree({**before, "version": 2}, {})


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected float, got 'x'"):
        Outer("x")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"expected int, got 2\.5"):
        Outer(1.0, steps=2.5)  # type: ignore[arg-type]
    for endless in (np.inf, np.nan):
        with pytest.raises(ConfigError, match="expected int"):
            Outer(1.0, steps=endless)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"steps: expected int, got \[1, 2\]"):
        Outer(1.0, steps=[1, 2])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected 2 entries"):
        Outer(1.0, span=(1, 2.0, 3.0))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Const\(array\)"):
        Outer(1.0, sizes=np.zeros(2))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="rate: below 0"):
        Outer(-1)
    with pytest.raises(ConfigError, match="a value holds"):
        to_tree(object())
    with pytest.raises(AttributeError):
        Outer(1.0).rate = 2.0  # type: ignore[misc]


numbers = st.floats(allow_nan=False, min_value=0)
outers = st.builds(
    Outer,
    rate=numbers,
    steps=st.integers(),
    flag=st.booleans(),
    name=st.text(max_size=5),
    sizes=st.lists(st.integers(), max_size=3),
    inner=st.builds(Inner, numbers),
    limit=st.none() | numbers,
    by_name=st.none() | st.dictionaries(st.text(max_size=3), st.builds(Inner, numbers), max_size=3),
)


@LAW
@given(entry=outers, table=st.none() | st.lists(numbers, max_size=3).map(np.array).map(Const))
def test_a_value_survives_its_saved_form(entry: Outer, table: Const | None) -> None:
    entry = replaced(entry, table=table)
    tree = json.loads(json.dumps(to_tree(entry)))
    again = from_tree(tree, {const.digest: const for const in constants_in(entry)})
    assert again == entry
    assert digest(again) == digest(entry)
    assert pickle.loads(pickle.dumps(entry)) == entry


def test_digests_are_the_same_in_every_process() -> None:
    code = (
        "import numpy as np; from pipeline.content import Const, digest;"
        "from pipeline.views import *;"
        "print(digest(Linear(Pooled(), Const(np.eye(3)), Const(np.arange(3.0)))))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


# Constants


def test_constants_compare_by_content() -> None:
    x = np.arange(6.0).reshape(2, 3)
    assert Const(x) == Const(x.copy())
    assert Const(x) == Const(np.asfortranarray(x))
    assert len({Const(x), Const(x.copy())}) == 1
    for other in (x.astype(np.float32), x.reshape(3, 2), x + 1, x.ravel()):
        assert Const(other) != Const(x)
    assert Const(np.float64(2.0)).shape == ()
    assert Const(x) != x.tobytes()


def test_a_renamed_constant_counts_for_itself_and_shares_its_bytes() -> None:
    one = Const(np.eye(3))
    first, second = one.renamed("first"), one.renamed("second")
    assert len({one, first, second, one.renamed("first")}) == 3
    assert first.array is one.array
    assert first.shape == (3, 3)
    np.testing.assert_array_equal(second.like(np.zeros(1)), np.eye(3))


def test_a_constant_cannot_change() -> None:
    x = np.zeros(3)
    window = x[:]
    window.flags.writeable = False
    consts = [Const(x), Const(window)]
    const = consts[0]
    x[:] = 7
    for each in consts:
        np.testing.assert_array_equal(each.array, 0)
    with pytest.raises(ValueError, match="read-only"):
        const.array[0] = 1


@pytest.mark.parametrize("library", sorted(PLACES))
def test_a_constant_is_placed_once(library: str) -> None:
    const = Const(np.arange(3.0))
    x = PLACES[library].put(np.zeros(1))
    placed = const.like(x)
    assert const.like(PLACES[library].put(np.ones(2))) is placed
    np.testing.assert_array_equal(to_host(placed), const.array)


def test_constants_pickle_small_and_come_back_from_the_table() -> None:
    const = Const(np.random.default_rng(0).standard_normal(10_000))
    pickled = pickle.dumps(const)
    assert len(pickled) < 500
    again = pickle.loads(pickled)
    assert again == const
    assert again.array is const.array


@value
class Scaled:
    by: Const


@value
class Twice:
    inner: Scaled
    name: str = "a"


def test_what_is_remembered_of_digests_keeps_no_constant() -> None:
    const = Const(np.random.default_rng(1).standard_normal(10))
    digests = [digest(Twice(Scaled(const))) for _ in range(2)]
    assert digests[0] == digests[1] != digest(Twice(Scaled(Const(np.ones(10)))))
    array = weakref.ref(const.array)
    del const
    gc.collect()
    assert array() is None


def in_another_process(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )


UNPICKLE = (
    "import pickle, sys; from pipeline.content import read_constants_from;"
    "read_constants_from(sys.argv[2]);"
    "print(pickle.load(open(sys.argv[1], 'rb')).array.sum())"
)


def test_another_process_reads_constants_from_files(tmp_path: Path) -> None:
    const = Const(np.arange(5.0))
    pickled = tmp_path / "const.pickle"
    pickled.write_bytes(pickle.dumps(const))
    missing = in_another_process(UNPICKLE, str(pickled), str(tmp_path / "constants"))
    assert MissingInputError.__name__ in missing.stderr
    assert const.digest[:12] in missing.stderr
    const.save(tmp_path / "constants")
    const.save(tmp_path / "constants")
    assert len(list((tmp_path / "constants").iterdir())) == 1
    assert (
        in_another_process(UNPICKLE, str(pickled), str(tmp_path / "constants")).stdout == "10.0\n"
    )


def test_a_damaged_constant_is_not_used(tmp_path: Path) -> None:
    const = Const(np.arange(5.0))
    (tmp_path / "const.pickle").write_bytes(pickle.dumps(const))
    np.save(tmp_path / f"{const.digest}.npy", np.zeros(5))
    found = in_another_process(UNPICKLE, str(tmp_path / "const.pickle"), str(tmp_path))
    assert CorruptError.__name__ in found.stderr


def test_every_constant_is_found() -> None:
    a, b = Const(np.zeros(1)), Const(np.ones(1))
    held = [{"x": Outer(1.0, table=a)}, (b, frozenset({a}))]
    assert set(constants_in(held)) == {a, b}


def test_only_classes_of_values_come_back() -> None:
    for name in ("os:system", "pipeline.content:digest", "pipeline.no_such_module:X"):
        with pytest.raises((ConfigError, ModuleNotFoundError)):
            from_tree({"class": name, "fields": {}}, {})


def test_field_hints_are_those_of_the_class() -> None:
    assert content.hints(Inner) == {"scale": float}
