"""What statistics of classes count: the elements of rows, each with a true and a predicted class.

A row may hold any number of elements: one for an image, one per pixel of a mask. An element whose
true class is one of ``ignore`` does not count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array, OutsideClassError
from pipeline.arrays.counting import CACHED_ELEMENTS, LARGEST_CODE
from pipeline.chunk import Chunk, Schema
from pipeline.errors import DataError
from pipeline.statistics.base import kept
from pipeline.views import AtLeast, Every, View
from pipeline.views.class_ids import NO_CLASS, NO_PROBABILITY

T = TypeVar("T")

TABLES_NBYTES = 2**20
"""Tables that elements are counted in, beside those of the counts."""
ELEMENT_NBYTES, TILE_NBYTES = 22, 3 * 2**20
"""Temporaries for each element that is counted, and of all elements of a tile."""
WIDE_ELEMENT_NBYTES = 38
"""The same where a pair of classes takes more than 16 bits."""


def count_elements(
    count: Callable[[Array, Array, int, tuple[int, ...]], T],
    chunk: Chunk,
    of: View,
    by: View,
    where: View,
    ignore: tuple[int, ...],
) -> T:
    """Return ``count`` of true and predicted classes, k and ``ignore``: a kernel of arrays.

    Raises :class:`DataError` for views of two shapes, for floats, and for a class outside 0 to k-1,
    with the first of its rows.
    """
    predicted, truth = kept(chunk, where, of, by)
    for view, ids in ((by, truth), (of, predicted)):
        check_integers(chunk, view, ids)
    check_shapes(chunk, truth, predicted)
    try:
        return count(truth, predicted, chunk.schema.classes, ignore)
    except OutsideClassError as error:
        raise outside(chunk, of, where, truth, chunk.schema.classes, error) from None


def check_integers(chunk: Chunk, view: View, ids: Array) -> None:
    """Raise :class:`DataError` for classes that are not whole numbers, or beyond int64."""
    if not arrays.namespace(ids).isdtype(ids.dtype, ("integral", "bool")):
        raise DataError(
            f"{chunk.split}: classes of rows {chunk.start}-{chunk.stop - 1} have dtype "
            f"{ids.dtype}; expected integers ({view})"
        )
    xp = arrays.namespace(ids)
    if ids.dtype == xp.uint64 and bool(xp.any(ids > xp.iinfo(xp.int64).max)):
        raise DataError(
            f"{chunk.split}: classes of rows {chunk.start}-{chunk.stop - 1} are up to "
            f"{int(xp.max(ids))}; negative numbers in an unsigned dtype? Store them as int64"
        )


def check_shapes(chunk: Chunk, truth: Array, predicted: Array) -> None:
    """Raise :class:`DataError` unless there is one prediction for each label."""
    if tuple(truth.shape) != tuple(predicted.shape):
        raise DataError(
            f"{chunk.split}: rows of predictions have shape {tuple(predicted.shape[1:])}, those of "
            f"labels {tuple(truth.shape[1:])}; expected one prediction for each label"
        )


def outside(
    chunk: Chunk, of: View, where: View, truth: Array, k: int, error: OutsideClassError
) -> DataError:
    """Return the error of elements that hold none of ``k`` classes: the first row, and remedies."""
    each = max(1, int(np.prod(truth.shape[1:], dtype=np.int64)))
    row = chunk.start + int(np.flatnonzero(arrays.to_host(where(chunk)))[error.first // each])
    found = DataError(_outside(chunk, of, row, k, error))
    found.row = row
    return found


def _outside(chunk: Chunk, of: View, row: int, k: int, error: OutsideClassError) -> str:
    values = ", ".join(map(str, error.values))
    many = "s" if error.count > 1 else ""
    if error.side == "truth":
        more = f", or declare classes={error.values[-1] + 1}" if error.values[-1] >= k else ""
        if more and k == 2:  # a binary task, or labels that are 0 or 1, have no more classes
            more = ", or declare a multiclass task and all of its classes"
        return (
            f"{chunk.split}: {error.count} label{many} outside 0 to {k - 1}, first in row {row}: "
            f"{values}; add what must not count to ignore{more}"
        )
    if NO_CLASS in error.values and getattr(of, "from_scores", False):
        return (
            f"{chunk.split}: scores of {error.count} element{many} are NaN, first in row {row}, "
            "and choose no class; mend what computed them, or ignore the labels there"
        )
    if NO_PROBABILITY in error.values and isinstance(of, AtLeast):
        return (
            f"{chunk.split}: scores of {error.count} element{many} are outside [0, 1], first in "
            f"row {row}, beside a threshold of {of.threshold:g}; give threshold=0 for logits, or "
            "give probabilities, or the classes as integers"
        )
    return (
        f"{chunk.split}: {error.count} prediction{many} outside 0 to {k - 1}, first in row {row}: "
        f"{values}; expected one of {k} classes"
    )


def elements_of(view: View, schema: Schema) -> int:
    """Return the number of elements of a row."""
    return int(np.prod(view.shape(schema), dtype=np.int64))


def counting_nbytes(of: View, by: View, where: View, schema: Schema, rows: int, width: int) -> int:
    """Return what counting the elements of some rows in ``width`` counts holds, on the host."""
    elements = rows * elements_of(by, schema)
    if (schema.classes + 1) ** 2 > LARGEST_CODE:
        tile = WIDE_ELEMENT_NBYTES * min(elements, max(CACHED_ELEMENTS, width))
    else:
        tile = min(TILE_NBYTES, ELEMENT_NBYTES * elements)
    return 24 * width + TABLES_NBYTES + tile + kept_nbytes(of, by, where, schema, rows)


def kept_nbytes(of: View, by: View, where: View, schema: Schema, rows: int) -> int:
    """Return the bytes of the classes of rows that count, which are copied where some do not."""
    if where == Every():
        return 0
    element = sum(_itemsize(view, schema) for view in (of, by))
    return rows * elements_of(by, schema) * element


def _itemsize(view: View, schema: Schema) -> int:
    if isinstance(view, AtLeast):
        return 1
    stored = [schema.arrays[name].memory_dtype for name in view.fields if name in schema.arrays]
    return stored[0].itemsize if len(stored) == 1 and stored[0].kind in "biu" else 8
