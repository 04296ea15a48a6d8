"""A split that is declared but not written yet: what plans are made for before there is data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pipeline.chunk import ArraySpec, Block, Chunk, Schema
from pipeline.errors import MissingInputError
from pipeline.store import layout
from pipeline.store.column import reading_nbytes
from pipeline.store.declaration import declare, widest
from pipeline.store.prefetch import SLOTS


@dataclass(frozen=True)
class DeclaredSplit:
    """The blocks and chunks that a store would give rows of this shape."""

    schema: Schema
    blocks: tuple[Block, ...] = field(hash=False)  # many: what they are follows from the rest
    chunk_rows: int

    @classmethod
    def of(
        cls, name: str, arrays: Mapping[str, ArraySpec], *, classes: int, rows: int
    ) -> DeclaredSplit:
        """Declare ``rows`` rows; raises as ``Store.create_split`` would."""
        layout.check_split_name(name)
        declared = declare(
            arrays,
            classes=classes,
            rows=rows,
            block_nbytes=layout.BLOCK_NBYTES,
            chunk_nbytes=layout.CHUNK_NBYTES,
            attributes={},
        )
        return cls(Schema(rows, classes, arrays, name), declared.allotted, declared.step_rows)

    @property
    def name(self) -> str:
        return self.schema.split

    @property
    def is_ood(self) -> bool:
        return layout.is_ood(self.name)

    def only(self, block: Block) -> DeclaredSplit:
        """Return itself."""
        return self

    def read(
        self, block: Block, fields: frozenset[str], step_rows: int | None = None
    ) -> Iterator[Chunk]:
        """Raise: there is nothing to read."""
        raise MissingInputError(f"{self.name} is declared only; extract or import it first")

    def reading_nbytes(self, fields: frozenset[str], step_rows: int | None = None) -> int:
        """Return what reading will hold at most: as if every array were worth compressing."""
        specs = {name: self.schema.arrays[name] for name in self.schema.touched(fields)}
        largest = max((block.rows for block in self.blocks), default=0)
        coded = {
            name: min(largest, max(1, layout.CHUNK_NBYTES // spec.nbytes))
            for name, spec in specs.items()
        }
        widest_of_all = widest(self.schema.arrays)
        if widest_of_all in coded:
            coded[widest_of_all] = self.chunk_rows
        return reading_nbytes(specs, coded, step_rows or self.chunk_rows, SLOTS)

    def identity(self, block: Block, fields: frozenset[str]) -> str:
        """Return a name that no partial has: once stored, the rows will have checksums."""
        return f"declared-{self.name.replace('/', '-')}-{block.index}"

    def checksums(self, block: Block, fields: frozenset[str]) -> Mapping[str, str]:
        """Raise: there is nothing to read."""
        raise MissingInputError(f"{self.name} is declared only; extract or import it first")
