"""Random masks that belong to rows: the same on every device, in any batch and any order.

Bits come from a counter, not from a generator with a state: those of an entry are SplitMix64 of the
key of its row plus its place times the golden ratio (Steele, Lea and Flood 2014, "Fast splittable
pseudorandom number generators", OOPSLA). The key of a row is a hash of what the model is given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from math import prod
from typing import Any

import torch

from pipeline.extract.model import bits, count_rows

GOLDEN = 0x9E3779B97F4A7C15
FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SHIFTS = (30, 27, 31)
BITS = 24
"""Bits of a uniform number: those that a float32 holds."""
TILE_ENTRIES = 2**21
"""Entries whose bits are drawn at a time: they take 8 bytes, and as much for what is shifted."""


def row_keys(inputs: Any, seed: int) -> list[int]:
    """Return 64 bits for each row of inputs (n, ...), or of a mapping of them by name."""
    named = inputs if isinstance(inputs, Mapping) else {"": inputs}
    columns = [(name, bits(torch.as_tensor(named[name]).detach())) for name in sorted(named)]
    keys = []
    for row in range(count_rows(inputs)):
        hashed = hashlib.blake2b(digest_size=8, key=seed.to_bytes(8, "little"))
        for name, rows in columns:
            hashed.update(f"{name} {rows.dtype} {rows.shape[1:]}".encode())
            hashed.update(rows[row].tobytes())
        keys.append(int.from_bytes(hashed.digest(), "little"))
    return keys


def kept(keys: list[int], shape: tuple[int, ...], p: float, device: Any) -> torch.Tensor:
    """Return which entries of rows (n, \\*shape) stay, each with probability 1 - p: bool."""
    size = prod(shape)
    starts = torch.tensor([_signed(key) for key in keys], dtype=torch.int64, device=device)
    found = torch.empty((len(keys), size), dtype=torch.bool, device=device)
    least = round(p * 2**BITS)
    step = max(1, TILE_ENTRIES // max(1, len(keys)))
    for start in range(0, size, step):
        places = torch.arange(start, min(start + step, size), dtype=torch.int64, device=device)
        drawn = _mixed(starts[:, None] + places[None, :] * _signed(GOLDEN))
        found[:, start : start + step] = _shifted(drawn, 64 - BITS) >= least
    return found.reshape(len(keys), *shape)


def derived(key: int, *numbers: int) -> int:
    """Return 64 bits of a key and of what else they belong to."""
    text = b"".join(number.to_bytes(8, "little") for number in (key, *numbers))
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _mixed(z: torch.Tensor) -> torch.Tensor:
    for shift, factor in zip(SHIFTS, FACTORS, strict=False):
        z = (z ^ _shifted(z, shift)) * _signed(factor)
    return z ^ _shifted(z, SHIFTS[-1])


def _shifted(z: torch.Tensor, by: int) -> torch.Tensor:
    """Shift int64 right as if it had no sign."""
    return (z >> by) & (2 ** (64 - by) - 1)


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number
