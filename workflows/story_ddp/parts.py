"""A small segmentation task: synthetic masks of 21 classes, and a network like a UNet."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 21
ABSENT = 19
"""A class that no mask holds: its recall is undefined."""
COLOURS = np.random.default_rng(7).random((CLASSES, 3), np.float32)


class Shapes(Dataset[tuple[Tensor, Tensor]]):
    """Images (3, h, w) of rectangles whose colours tell their classes, and their masks (h, w)."""

    def __init__(self, samples: int, side: int, first: int = 0) -> None:
        self.samples, self.side, self.first = samples, side, first

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng(self.first + index)
        mask = np.zeros((self.side, self.side), np.int64)
        known = [c for c in range(1, CLASSES) if c != ABSENT]
        for label in rng.choice(known, 6):
            top, left = rng.integers(0, self.side * 3 // 4, 2)
            height, width = rng.integers(self.side // 8, self.side // 2, 2)
            mask[top : top + height, left : left + width] = label
        image = COLOURS[mask].transpose(2, 0, 1)
        noise = rng.normal(0, 0.1, image.shape).astype(np.float32)
        return torch.from_numpy(image + noise), torch.from_numpy(mask)


def loader(samples: int, side: int, first: int, batch_size: int, shuffle: bool) -> DataLoader:
    """Return a loader of batches (images, masks) without ids."""
    return DataLoader(Shapes(samples, side, first), batch_size=batch_size, shuffle=shuffle)


class UNet(nn.Module):
    """Two levels down, two up, with skips: logits (n, 21, h, w) of images (n, 3, h, w).

    It starts as the nearest of the colours, so that a few steps of training have all classes.
    """

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = _block(3, width)
        self.down = _block(width, 2 * width)
        self.bottom = _block(2 * width, 2 * width)
        self.up = _block(4 * width, width)
        self.head = nn.Conv2d(2 * width + 3, CLASSES, 1)
        colours = torch.from_numpy(COLOURS)
        with torch.no_grad():
            self.head.weight *= 0.1
            self.head.weight[:, -3:] = 40 * colours[:, :, None, None]
            self.head.bias.copy_(-20 * (colours**2).sum(1))

    def forward(self, images: Tensor) -> Tensor:
        stem = self.stem(images)
        down = self.down(nn.functional.max_pool2d(stem, 2))
        bottom = self.bottom(nn.functional.max_pool2d(down, 2))
        up = self.up(torch.cat([nn.functional.interpolate(bottom, scale_factor=2.0), down], 1))
        logits: Tensor = self.head(
            torch.cat([nn.functional.interpolate(up, scale_factor=2.0), stem, images], 1)
        )
        return logits


def _block(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU())
