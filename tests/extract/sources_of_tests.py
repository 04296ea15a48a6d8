"""Rows, models and stores that several tests of extraction share."""

import numpy as np
import torch

from pipeline.extract.model import Description
from pipeline.extract.sources import Batch


class Numbers:
    """Rows 0, 1, 2, ... as float32 (n, 1), with labels in turn."""

    def __init__(self, rows, classes=3, name="numbers"):
        self.rows, self.classes, self.name = rows, classes, name

    def __len__(self):
        return self.rows

    def read(self, start, stop):
        ids = np.arange(start, stop)
        return Batch(ids.astype(np.float32)[:, None], ids % self.classes, ids)


class Mixed(torch.nn.Module):
    """A layer with fixed weights, from 1 to 5 features."""

    description = Description({"model": "mixed"}, {})

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 5)
        with torch.no_grad():
            self.layer.weight.copy_(torch.arange(1.0, 6.0)[:, None] / 7)
            self.layer.bias.copy_(torch.arange(5.0) / 3)

    def forward(self, x):
        return self.layer(x.float().reshape(len(x), -1)[:, :1])


BLOCKS = {"block_nbytes": 600, "chunk_nbytes": 300}
"""Options of a store: blocks of few rows of 5 features."""


def rows_of(split, name):
    """Return a whole array of a split."""
    chunks = [c[name].copy() for block in split.blocks for c in split.read(block, {name})]
    return np.concatenate(chunks)
