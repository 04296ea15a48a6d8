"""Features on disk: a chunked zarr store that is written by blocks and read by chunks."""

from pipeline.store.artifacts import load, save
from pipeline.store.catalog import Store
from pipeline.store.declared import DeclaredSplit
from pipeline.store.memory import ArraySplit
from pipeline.store.reader import StoredSplit
from pipeline.store.writer import SplitWriter

__all__ = ["ArraySplit", "DeclaredSplit", "SplitWriter", "Store", "StoredSplit", "load", "save"]
