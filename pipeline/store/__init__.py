"""Features on disk: a chunked zarr store that is written by blocks and read by chunks."""

from pipeline.store.artifacts import load, save
from pipeline.store.catalog import Store
from pipeline.store.declared import DeclaredSplit
from pipeline.store.head import SavedHead
from pipeline.store.mask_folder import MaskFolders
from pipeline.store.memory import ArraySplit
from pipeline.store.predictions import PredictionSplit, open_predictions
from pipeline.store.reader import StoredSplit
from pipeline.store.writer import SplitWriter

__all__ = [
    "ArraySplit",
    "DeclaredSplit",
    "MaskFolders",
    "PredictionSplit",
    "SavedHead",
    "SplitWriter",
    "Store",
    "StoredSplit",
    "load",
    "open_predictions",
    "save",
]
