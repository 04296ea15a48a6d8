"""Committed blocks whose bytes are not those written any more: which they are, to write them again.

Reading everything is the only way to know: each block is compared with its checksums.
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline.chunk import Block
from pipeline.errors import CorruptError
from pipeline.store.catalog import Store
from pipeline.store.column import Finding
from pipeline.store.survey import damage


def damaged_blocks(
    store: Store, name: str, told: Callable[[str], object] | None = None
) -> list[Block]:
    """Return the committed blocks of a split that are damaged, in order; reads all that is stored.

    Write them again with ``store.writer(name).write(block.index, rows, overwrite=True)``. ``told``
    is called with what was found. Raises :class:`CorruptError` for damage of what belongs to no
    block alone.
    """
    found: dict[int, Finding] = {}
    for finding in damage(store, name):
        if finding.block < 0:
            raise CorruptError(f"{store.path}: {finding}")
        if told is not None:
            told(str(finding))
        found[finding.block] = finding
    blocks = {block.index: block for block in store.writer(name).blocks}
    return [blocks[index] for index in sorted(found)]
