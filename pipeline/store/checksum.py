"""crc32c of bytes that come in pieces: each piece is read once, for its chunk and its block."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import google_crc32c
import numpy as np

_POLYNOMIAL = 0x82F63B78
"""Castagnoli's, bits reversed."""
_ONE = 1 << 31


def crc32c(rows: np.ndarray[Any, Any], so_far: int = 0) -> int:
    """Continue a crc32c checksum over contiguous rows."""
    return int(google_crc32c.extend(so_far, rows))


def joined(first: int, second: int, second_nbytes: int) -> int:
    """Return the checksum of two runs of bytes, one after the other, from those of each."""
    return _times(_shift(second_nbytes), first) ^ second


def hexadecimal(checksum: int) -> str:
    """Return a checksum as eight digits."""
    return f"{checksum:08x}"


def _times(a: int, b: int) -> int:
    """Multiply two polynomials over GF(2), bits reversed, modulo Castagnoli's."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


@lru_cache(maxsize=256)
def _shift(nbytes: int) -> int:
    """Return x to the power of the bits in ``nbytes``: what appending them multiplies by."""
    power, result, left = _ONE >> 1, _ONE, 8 * nbytes
    while left:
        if left & 1:
            result = _times(power, result)
        power, left = _times(power, power), left >> 1
    return result
