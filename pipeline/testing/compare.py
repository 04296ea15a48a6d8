"""How the laws compare results: integers exactly, floats relative to the size of their array."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from pipeline import arrays


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the arrays and numbers of a result with the path to each."""
    if isinstance(tree, dict):
        children = list(tree.items())
    elif isinstance(tree, tuple) and hasattr(tree, "_fields"):
        children = list(zip(tree._fields, tree, strict=True))
    elif isinstance(tree, (tuple, list)):
        children = list(enumerate(tree))
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        children = [(f.name, getattr(tree, f.name)) for f in dataclasses.fields(tree)]
    else:
        yield path, arrays.to_host(tree)
        return
    for name, child in children:
        yield from leaves(child, f"{path}.{name}")


def scale_of(x: np.ndarray[Any, Any]) -> Any:
    """Return the size an error is relative to: sqrt(C_ii C_jj) for scatters, else the largest."""
    size = np.abs(x[np.isfinite(x)])
    largest = size.max() if size.size else 1.0
    square = x.ndim == 2 and x.shape[0] == x.shape[1] and len(x) > 0
    if square and np.isfinite(x).all() and np.allclose(x, x.T, rtol=1e-9, atol=0):
        diagonal = np.diag(x)
        if (diagonal >= 0).all():
            return np.sqrt(np.outer(diagonal, diagonal)) + 1e-300
    return largest + 1e-300


def assert_close(actual: Any, expected: Any, tolerance: float) -> None:
    """Fail unless two results have the same form, equal integers and close floats."""
    ours, theirs = dict(leaves(actual)), dict(leaves(expected))
    assert ours.keys() == theirs.keys()
    for path, x in ours.items():
        y = theirs[path]
        assert x.shape == y.shape, f"{path}: {x.shape} is not {y.shape}"
        if x.dtype.kind != "f":
            np.testing.assert_array_equal(x, y, err_msg=path)
            continue
        np.testing.assert_array_equal(np.isnan(x), np.isnan(y), err_msg=path)
        exact = ~np.isfinite(y)
        np.testing.assert_array_equal(x[exact], y[exact], err_msg=path)
        error = np.abs(np.where(exact, 0.0, x) - np.where(exact, 0.0, y)) / scale_of(y)
        worst = error.max() if error.size else 0.0
        assert worst <= tolerance, f"{path}: relative error {worst:.1e} above {tolerance:.0e}"


def assert_same(actual: Any, expected: Any) -> None:
    """Fail unless two results are equal bit for bit."""
    ours, theirs = dict(leaves(actual)), dict(leaves(expected))
    assert ours.keys() == theirs.keys()
    for path, x in ours.items():
        assert x.dtype == theirs[path].dtype, path
        np.testing.assert_array_equal(x, theirs[path], err_msg=path)
