"""Data for the laws: small labelled splits in memory, cut into chunks and blocks at will."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from pipeline.chunk import ArraySpec, Block, Chunk, Schema

Host = np.ndarray[Any, Any]
Partition = Sequence[Sequence[int]]
"""Chunk sizes, block by block; zeros are legal."""


@dataclass(frozen=True, eq=False)
class Data:
    """Rows of one split, in host memory."""

    arrays: Mapping[str, Host]
    classes: int
    name: str = "id/train"
    is_ood: bool = False

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.arrays.values())))

    @property
    def schema(self) -> Schema:
        """What a store would say of these rows."""
        specs = {name: ArraySpec(x.shape[1:], x.dtype.name) for name, x in self.arrays.items()}
        return Schema(self.rows, self.classes, specs, self.name)

    def take(self, rows: Any) -> Data:
        """Return the given rows, in the given order."""
        return replace(self, arrays={name: x[rows] for name, x in self.arrays.items()})

    def with_arrays(self, **changes: Host) -> Data:
        """Return the same rows with some arrays replaced."""
        return replace(self, arrays={**self.arrays, **changes})

    def upcast(self) -> Mapping[str, Host]:
        """Return the arrays as references want them: floats in float64."""
        return {
            name: x.astype(np.float64) if x.dtype.kind == "f" else x
            for name, x in self.arrays.items()
        }

    def shifted(self, offset: float) -> Data:
        """Return the rows with ``offset`` added to their features, in float64."""
        return self.with_arrays(features=self.arrays["features"].astype(np.float64) + offset)

    def sorted_by_class(self) -> Data:
        """Return the rows in the order of their labels."""
        return self.take(np.argsort(self.arrays["labels"], kind="stable"))

    def ordered(self, order: str) -> Data:
        """Return the rows as ``drawn``, ``by class`` or ``reversed``."""
        if order == "by class":
            return self.sorted_by_class()
        return self.take(slice(None, None, -1)) if order == "reversed" else self

    def cut(self, partition: Partition | None = None) -> CutSplit:
        """Return the rows as a split of one block, or of the given blocks and chunks."""
        sizes = [[self.rows]] if partition is None else partition
        return CutSplit(self, tuple(tuple(block) for block in sizes))


@dataclass(frozen=True, eq=False)
class CutSplit:
    """A split in memory whose blocks and chunks have the sizes that were asked for."""

    data: Data
    sizes: tuple[tuple[int, ...], ...]

    @property
    def name(self) -> str:
        """Name of the split."""
        return self.data.name

    @property
    def schema(self) -> Schema:
        """Schema of the data."""
        return self.data.schema

    @property
    def is_ood(self) -> bool:
        """Whether the rows are out-of-distribution."""
        return self.data.is_ood

    @property
    def blocks(self) -> Sequence[Block]:
        """Blocks, as long as their chunks together."""
        ends = np.cumsum([0, *(sum(block) for block in self.sizes)])
        return [Block(i, int(ends[i]), int(ends[i + 1])) for i in range(len(self.sizes))]

    @property
    def chunk_rows(self) -> int:
        """Rows of the longest chunk."""
        return max((size for block in self.sizes for size in block), default=0)

    def only(self, block: Block) -> CutSplit:
        """Return the split itself: it is small."""
        return self

    def read(
        self, block: Block, fields: frozenset[str], step_rows: int | None = None
    ) -> Iterator[Chunk]:
        """Yield copies of the rows, in the chunks that were asked for."""
        start = block.start
        sizes = self.sizes[block.index] if step_rows is None else _steps(block.rows, step_rows)
        for size in sizes:
            names = self.schema.touched(fields)
            rows = {name: self.data.arrays[name][start : start + size].copy() for name in names}
            yield Chunk(self.schema, start, size, rows, is_ood=self.is_ood)
            start += size

    def reading_nbytes(self, fields: frozenset[str], step_rows: int | None = None) -> int:
        """Return the bytes of the copies of two chunks: one in use while the next is made."""
        return 2 * (step_rows or self.chunk_rows) * self.schema.row_nbytes(fields)

    def identity(self, block: Block, fields: frozenset[str]) -> str | None:
        """Return None: rows in memory are known only by reading them."""
        return None

    def checksums(self, block: Block, fields: frozenset[str]) -> Mapping[str, str]:
        """Return the sha256 of the bytes of a block, array by array."""
        names = self.schema.touched(fields)
        rows = {name: self.data.arrays[name][block.start : block.stop] for name in names}
        return {name: hashlib.sha256(x.tobytes()).hexdigest() for name, x in rows.items()}


def _steps(rows: int, step_rows: int) -> Sequence[int]:
    return [min(step_rows, rows - start) for start in range(0, rows, step_rows)]


def regular(rows: int, chunk_rows: int, chunks_per_block: int = 3) -> Partition:
    """Return the sizes of equal chunks (the last may be shorter), three to a block."""
    sizes = [min(chunk_rows, rows - start) for start in range(0, rows, chunk_rows)]
    return [sizes[i : i + chunks_per_block] for i in range(0, len(sizes), chunks_per_block)]


class Shape(NamedTuple):
    """Sizes of a split: memory is measured over a grid of them."""

    rows: int
    tokens: int
    features: int
    classes: int
    dtype: str = "float32"
    masked: bool = False

    @property
    def data(self) -> Data:
        """Rows of this shape, a few of them void; all arrays that :func:`labelled` has."""
        rng = np.random.default_rng(0)
        n, t, d, k, dtype, masked = self
        labels = rng.integers(0, k, n)
        labels[n // 2 : n // 2 + n // 64] = -1
        logits = rng.standard_normal((n, k))
        logits[np.arange(n), labels] += 8.0
        arrays = {
            "features": rng.standard_normal((n, t, d), np.float32).astype(dtype),
            "labels": labels,
            "logits": logits,
            "scores": -logits.max(axis=1),
        }
        if masked:
            arrays["mask"] = np.arange(t) <= np.arange(n)[:, None] % t
        return Data(arrays, k)


SHAPES = (
    Shape(1, 2, 1024, 1000),
    Shape(4096, 1, 512, 10),
    Shape(512, 1, 1024, 1000),
    Shape(64, 49, 512, 100),
    Shape(64, 49, 256, 1000, "float16", masked=True),
    Shape(500, 4, 256, 10, "float64"),
)
"""Few and many rows, features and classes; every width of floats; with and without masks."""
SMALL_SHAPES = (
    Shape(1, 2, 128, 20),
    Shape(4096, 2, 64, 10, "float16"),
    Shape(500, 4, 128, 20, "float64", masked=True),
    Shape(64, 16, 256, 6),
)
"""The same for statistics with a covariance per class or position."""


CLASSES, TOKENS, FEATURES = 5, 4, 12


def labelled(rows: int = 240, seed: int = 0, name: str = "id/train") -> Data:
    """Rows of five separable classes, with a few void ones (label -1).

    Token features (n, 4, 12) float32: class means in the first five coordinates, a constant
    offset, correlated noise. Logits (n, 5) float64 are linear in the pooled features; scores (n,)
    are minus their largest.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, rows)
    labels[rng.random(rows) < 0.04] = -1
    means = 6.0 * np.eye(CLASSES, FEATURES)
    means[:, 1] += 1.0
    mixing = np.eye(FEATURES) + 0.2 * np.tri(FEATURES, k=-1)
    noise = rng.standard_normal((rows, 1, FEATURES)) @ mixing
    noise = noise + 0.3 * rng.standard_normal((rows, TOKENS, FEATURES))
    features = (means[np.maximum(labels, 0)][:, None, :] + 0.7 * noise).astype(np.float32)
    return _with_logits(features, labels, name, is_ood=False)


def planted(rows: int = 80, seed: int = 1, name: str = "ood/far/planted") -> Data:
    """Out-of-distribution rows: far from every class mean, outside the span of the means."""
    rng = np.random.default_rng(seed)
    centre = np.zeros(FEATURES)
    centre[CLASSES:] = 6.0
    features = centre + 0.7 * rng.standard_normal((rows, TOKENS, FEATURES))
    return _with_logits(features.astype(np.float32), np.full(rows, -1), name, is_ood=True)


def _with_logits(features: Host, labels: Host, name: str, *, is_ood: bool) -> Data:
    pooled = features.mean(axis=1, dtype=np.float64)
    logits = pooled[:, :CLASSES] * 1.5 - 0.5 * np.arange(CLASSES)
    arrays = {
        "features": features,
        "labels": labels.astype(np.int64),
        "logits": logits,
        "scores": -logits.max(axis=1),
    }
    return Data(arrays, CLASSES, name, is_ood)
