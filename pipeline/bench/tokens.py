"""Made-up token features on disk, as large as asked for and not compressible.

Every image is the mean of its class plus noise: a window at a random place into a pool of standard
normal numbers, with a random sign. Writing gigabytes of fresh normals would take minutes; windows
take no time, and because place, sign and class differ no two chunks have the same bytes. Logits
are fresh normals with the right class ahead of the others, for nine rows out of ten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.chunk import ArraySpec, Block
from pipeline.errors import ConfigError
from pipeline.store import SplitWriter, Store

SPLIT = "id/train"
MADE_BY = "featfold bench make-tokens"
DTYPES = ("float16", "float32", "float64")
POOL = 2**23
"""Numbers in the pool of noise, beside one window."""
AHEAD = 8.0
"""What the logit of the right class has more than the others."""
SHARE_RIGHT = 0.9
_POOL, _MEANS = 0, 1  # which random stream of a seed

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Recipe:
    """What is made: equal recipes make equal bytes, whoever writes which block."""

    rows: int = 50_000
    tokens: int = 49
    """Tokens of an image; 0 makes pooled features (n, d)."""
    features: int = 1024
    classes: int = 1000
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype: {self.dtype!r}; choose {', '.join(DTYPES)}")
        least = {"rows": 1, "tokens": 0, "features": 1, "classes": 1, "seed": 0}
        for name, limit in least.items():
            if getattr(self, name) < limit:
                raise ConfigError(f"{name}: {getattr(self, name)}; expected at least {limit}")

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row of features: (t, d), or (d,) without tokens."""
        return (self.tokens, self.features) if self.tokens else (self.features,)

    @property
    def arrays(self) -> dict[str, ArraySpec]:
        """The arrays of the split."""
        return {
            "features": ArraySpec(self.row_shape, self.dtype, "TD" if self.tokens else "D"),
            "logits": ArraySpec((self.classes,), "float32", "K"),
            "labels": ArraySpec((), "int64"),
        }

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.rows * sum(spec.nbytes for spec in self.arrays.values())

    @cached_property
    def means(self) -> np.ndarray[Any, Any]:
        """Class means (k, d), float32."""
        return self._normals(_MEANS, (self.classes, self.features))

    @cached_property
    def pool(self) -> np.ndarray[Any, Any]:
        """Standard normal numbers that windows look into, float32."""
        return self._normals(_POOL, (POOL + int(np.prod(self.row_shape)),))

    def _normals(self, stream: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        random = np.random.default_rng([self.seed, stream])
        return random.standard_normal(shape, dtype=np.float32)

    def block(self, block: Block) -> dict[str, np.ndarray[Any, Any]]:
        """Return the rows of a block."""
        random = np.random.default_rng([self.seed, 2, block.index])
        labels = random.integers(0, self.classes, block.rows)
        logits = random.standard_normal((block.rows, self.classes), dtype=np.float32)
        ahead = np.where(random.random(block.rows) < SHARE_RIGHT, AHEAD, 0.0)
        logits[np.arange(block.rows), labels] += ahead.astype(np.float32)
        return {
            "features": self._features(labels, random),
            "logits": logits,
            "labels": labels,
        }

    def _features(self, labels: Any, random: np.random.Generator) -> np.ndarray[Any, Any]:
        width = int(np.prod(self.row_shape))
        places = random.integers(0, POOL + 1, len(labels))
        signs = random.choice(np.array([-1, 1], np.float32), len(labels))
        out = np.empty((len(labels), *self.row_shape), self.dtype)
        for i, (place, sign, label) in enumerate(zip(places, signs, labels, strict=True)):
            window = self.pool[place : place + width].reshape(self.row_shape)
            out[i] = window * sign + self.means[label]
        return out


def make(
    path: Path,
    recipe: Recipe,
    workers: int = 2,
    advance: Advance = lambda nbytes: None,
    **sizes: int,
) -> int:
    """Write the split ``id/train`` of a store; return the blocks that were missing.

    Blocks that are there are kept, so that a killed run goes on. ``advance`` is told of the bytes
    of every block that is there; ``sizes`` are those of ``Store.create_split``.

    Raises ExistsRefusedError where another recipe was used, LockedError while somebody else writes.
    """
    writer, lock = _open(path, recipe, sizes)
    with lock:
        missing = writer.missing()
        row_nbytes = recipe.nbytes // recipe.rows
        advance(row_nbytes * (recipe.rows - sum(block.rows for block in missing)))
        for rows in _write_all(writer, recipe, missing, workers):
            advance(row_nbytes * rows)
    return len(missing)


def _open(
    path: Path, recipe: Recipe, sizes: Mapping[str, int]
) -> tuple[SplitWriter, AbstractContextManager[object]]:
    there = path.exists() and any(path.iterdir())
    store = Store.open(path) if there else Store.create(path)
    writer = store.create_split(
        SPLIT,
        recipe.arrays,
        classes=recipe.classes,
        rows=recipe.rows,
        attributes={"made_by": MADE_BY, "recipe": asdict(recipe)},
        exist_ok=True,
        **sizes,
    )
    return writer, store.lock(SPLIT)


def _write_all(
    writer: SplitWriter, recipe: Recipe, missing: list[Block], workers: int
) -> Iterator[int]:
    """Write blocks and yield the rows of each when it is done."""
    if len(missing) < 2 or workers < 2:
        for block in missing:
            yield _write(writer, recipe, block)
        return
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        started = [pool.submit(_write, writer, recipe, block) for block in missing]
        try:
            for done in as_completed(started):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _write(writer: SplitWriter, recipe: Recipe, block: Block) -> int:
    writer.write(block.index, _known(recipe).block(block))
    return block.rows


@lru_cache(maxsize=1)
def _known(recipe: Recipe) -> Recipe:
    """Return the recipe that this process used before: its pool is made but once."""
    return recipe
