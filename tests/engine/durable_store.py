"""A small store of token features in many blocks, and what it was made from."""

import numpy as np

from pipeline.chunk import ArraySpec
from pipeline.store import Store

TOKENS, D, K = 4, 16, 5
BLOCK_ROWS, CHUNK_ROWS = 40, 8
SPECS = {
    "features": ArraySpec((TOKENS, D), "float32", "TD"),
    "logits": ArraySpec((K,), "float32", "K"),
    "labels": ArraySpec((), "int64"),
}


def rows(count, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, K, count)
    features = rng.standard_normal((count, TOKENS, D)) + 2 * np.eye(K, D)[labels][:, None]
    logits = rng.standard_normal((count, K)) + 4 * np.eye(K)[labels]
    return {
        "features": features.astype("f4"),
        "logits": logits.astype("f4"),
        "labels": labels,
    }


def make(path, blocks, split="id/train"):
    store = Store.open(path) if path.exists() else Store.create(path)
    writer = store.create_split(
        split, SPECS, classes=K, rows=blocks * BLOCK_ROWS,
        block_nbytes=BLOCK_ROWS * (TOKENS * D * 4 + K * 4 + 8),
        chunk_nbytes=CHUNK_ROWS * TOKENS * D * 4,
    )  # fmt: skip
    assert len(writer.blocks) == blocks
    for block in writer.blocks:
        writer.write(block.index, rows(block.rows, seed=block.index))
    return store
