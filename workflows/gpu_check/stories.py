"""(f) The calls of story 1: model on the device, loader on the CPU, device= given in every way."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sites import Site
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pipeline as ff
from pipeline.extract import probes

CLASSES = 4
STORY = ["kl_matching", "she", "mahalanobis", "relative_mahalanobis", "mc_dropout"]
TOLERANCE = 1e-3
"""Of scores, relative to their spread: convolutions of another device round otherwise."""


class Net(nn.Module):
    """A small network of images, with dropout before its last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.dropped, self.head = nn.Dropout(0.2), nn.Linear(16, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self.head(self.dropped(self.body(images)))


def show(site: Site) -> dict[str, Any]:
    """Fit and score with device omitted, cpu and the device's: one set of numbers."""
    torch.manual_seed(0)
    net = Net().to(site.torch_device)
    home = next(net.parameters()).device
    tapped = ff.tapped(
        net, {"features": "body", "logits": "head"}, layouts={"features": "ND"}, head="head"
    )
    model = probes.dropout(tapped, samples=4)
    n = site.size(2_000, 120)
    images, labels = torch.randn(n, 3, 16, 16), torch.arange(n) % CLASSES
    images += labels[:, None, None, None]
    loader = DataLoader(TensorDataset(images, labels), batch_size=50)
    found = {}
    for device in (None, "cpu", site.torch_device):
        fitted = ff.fit(STORY, loader, model=model, device=device)
        found[str(device)] = ff.score(fitted, loader, model=model, device=device)
        assert next(net.parameters()).device == home, "the model was moved"
    worst = {name: _apart([scores[name] for scores in found.values()]) for name in STORY}
    assert max(worst.values()) <= TOLERANCE, worst
    return {"device_of_the_model": str(home), "largest_difference_by_spread": worst}


def _apart(several: list[np.ndarray[Any, Any]]) -> float:
    spread = float(several[0].std()) or 1.0
    return max(float(np.abs(scores - several[0]).max()) for scores in several[1:]) / spread
