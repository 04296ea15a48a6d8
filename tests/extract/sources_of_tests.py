"""Rows, models and stores that several tests of extraction share."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import torch

from pipeline.errors import DataError
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


def same(one, other):
    """Compare two splits, bit for bit."""
    for name in ("features", "labels", "ids"):
        np.testing.assert_array_equal(rows_of(one, name), rows_of(other, name))


class Killing(Numbers):
    """Kills the process that reads a row: once, or whoever reads it."""

    def __init__(self, row, marker=None):
        super().__init__(50)
        self.row, self.marker, self.home = row, marker, os.getpid()

    def read(self, start, stop):
        there = start <= self.row < stop and os.getpid() != self.home
        if there and not (self.marker and Path(self.marker).exists()):
            if self.marker:
                Path(self.marker).touch()
            time.sleep(0.2)  # what it has told is on its way
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(start, stop)


class Failing(Numbers):
    """Cannot read one row."""

    def read(self, start, stop):
        if start <= 30 < stop:
            raise DataError("row 30 is gone")
        return super().read(start, stop)


class Slow(Numbers):
    """Takes its time for every row but the first, and leaves a mark for it in a file."""

    def __init__(self, file):
        super().__init__(50)
        self.file = file

    def read(self, start, stop):
        if start:
            time.sleep(0.3 * (stop - start))
            with Path(self.file).open("a") as file:
                file.write(".")
        return super().read(start, stop)


def unseeded():
    """Return a model with other weights in every process, and rows."""
    model = Mixed()
    torch.nn.init.normal_(model.layer.weight, mean=os.getpid() % 1000)
    return model, Numbers(50)
