"""Bits of whole numbers."""

from __future__ import annotations

from pipeline.arrays.libraries import Array, namespace

KEY_BITS = 64


def bit_lengths(x: Array) -> Array:
    """Return the number of bits (m,) of int64 numbers; 64 for those below zero."""
    xp = namespace(x)
    below = x < 0
    rest = xp.where(below, xp.zeros_like(x), x)
    length = xp.zeros_like(x)
    for step in (32, 16, 8, 4, 2, 1):
        large = xp.astype((rest >> step) > 0, xp.int64) * step
        length, rest = length + large, rest >> large
    length = length + rest  # what is left is 0 or 1
    return xp.where(below, xp.full_like(x, KEY_BITS), length)
