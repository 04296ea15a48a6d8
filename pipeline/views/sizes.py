"""Bytes of the rows of views."""

from __future__ import annotations

import numpy as np

from pipeline.chunk import Schema
from pipeline.views.base import View
from pipeline.views.normalized import tokens_of


def row_nbytes(view: View, schema: Schema) -> int:
    """Return the bytes of one row of a view."""
    values = int(np.prod(view.shape(schema), dtype=np.int64))
    tokens = tokens_of(view)  # the one view of floats that may be narrower than float64
    if tokens is None:
        return values * 8
    return values * max(4, schema.spec(tokens.field).memory_dtype.itemsize)
