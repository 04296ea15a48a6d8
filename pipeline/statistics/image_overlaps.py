"""A row of a table for every image: how many of its pixels are true, predicted and both, by class.

All that metrics of images need, and much smaller than masks. An image is a row: it lies in one
chunk.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array, OutsideClassError
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import DataError
from pipeline.statistics.base import fields_of
from pipeline.statistics.elements import check_integers, check_shapes, elements_of, outside
from pipeline.views import Every, Truth, View
from pipeline.views.base import floats_nbytes, memoised

LARGEST_IMAGE = 2**31 - 1
"""Pixels of an image whose counts are int32."""


@value
class ImageOverlaps:
    """Pixels (k, 3) int32 of each class of an image: right, true and predicted.

    ``of`` and ``by`` are integers (...) of the same shape, one axis at least. Pixels whose label is
    one of ``ignore`` do not count, and such a value outside 0 to k-1 may be predicted; images that
    ``where`` leaves out have no pixels. Raises :class:`DataError` for a pixel that counts and whose
    true or predicted class is not one of 0 to k-1, with its image, and for labels that are no
    masks.
    """

    of: View
    by: View = Truth()
    where: View = Every()
    ignore: tuple[int, ...] = ()
    version: ClassVar[int] = 1

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(self.of, self.by, self.where)

    def shape(self, schema: Schema) -> tuple[int, ...]:
        if not self.by.shape(schema):
            raise _no_masks(schema.split)
        if elements_of(self.by, schema) > LARGEST_IMAGE:
            raise DataError(
                f"{schema.split}: images of {elements_of(self.by, schema):,} pixels; expected at "
                f"most {LARGEST_IMAGE:,}, so cut them into smaller ones"
            )
        return (schema.classes, 3)

    def nbytes(self, schema: Schema, rows: int) -> int:
        image = elements_of(self.by, schema) * 48
        tables = 32 * schema.classes + 2**20
        return floats_nbytes(self.shape(schema), rows, 4) + min(image, 2**23) + tables

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        truth, predicted = self.by(chunk), self.of(chunk)
        for view, ids in ((self.by, truth), (self.of, predicted)):
            check_integers(chunk, view, ids)
        check_shapes(chunk, truth, predicted)
        if truth.ndim < 2:
            raise _no_masks(chunk.split)
        xp = arrays.namespace(truth)
        k = chunk.schema.classes
        table = xp.zeros((chunk.rows, k, 3), dtype=xp.int32, device=arrays.device_of(truth))
        for row in np.flatnonzero(arrays.to_host(self.where(chunk))).tolist():
            found = self._image(chunk, row, truth[row, ...], predicted[row, ...])
            table[row, ...] = xp.astype(xp.stack(found, axis=1), xp.int32)
        return table

    def _image(
        self, chunk: Chunk, row: int, truth: Array, predicted: Array
    ) -> tuple[Array, Array, Array]:
        try:
            found: tuple[Array, Array, Array] = arrays.count_margins(
                truth, predicted, chunk.schema.classes, self.ignore
            )
        except OutsideClassError as error:
            alone = Chunk(chunk.schema, chunk.start + row, 1, {"truth": truth[None, ...]})
            shown = truth[None, ...]
            raise outside(alone, self.of, Every(), shown, chunk.schema.classes, error) from None
        return found


def _no_masks(split: str) -> DataError:
    return DataError(
        f"{split}: labels are one number a row; metrics of images need masks, with rows of shape "
        "(h, w)"
    )
