"""Fitted detectors in the place of those of other libraries, which run the network themselves.

What is fitted is a detector of ``ff.fit``; it is asked batch by batch. Neither library is needed
until its function is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

Scores = Callable[[dict[str, Tensor]], "np.ndarray[Any, Any]"]
"""A fitted detector: float64 scores (n,) of arrays by name."""


def as_pytorch_ood(
    fitted: Scores,
    encoder: Callable[[Tensor], Tensor] | None = None,
    head: Callable[[Tensor], Tensor] | None = None,
) -> Any:
    """Return a ``pytorch_ood.api.FeaturesDetector``: ``predict(x)``, ``predict_features(z)``.

    ``encoder`` gives features (n, d) of inputs, ``head`` logits (n, k) of features, where the
    detector reads stored ones. ``fit`` returns it as it is, as of all that need no fit there.
    """
    from pytorch_ood.api import FeaturesDetector, ModelNotSetException

    class FittedDetector(FeaturesDetector):  # type: ignore[misc]
        """A detector that featfold has fitted."""

        def __init__(self) -> None:
            self.encoder, self.head = encoder, head

        def predict(self, x: Tensor) -> Tensor:
            """Return outlier scores (n,) of inputs."""
            if self.encoder is None:
                raise ModelNotSetException
            with torch.no_grad():
                return self.predict_features(self.encoder(x))

        def predict_features(self, x: Tensor) -> Tensor:
            """Return outlier scores (n,) of features (n, d)."""
            with torch.no_grad():
                return _scores(fitted, x, self.head(x) if self.head else None)

    return FittedDetector()


def as_openood(fitted: Scores) -> Any:
    """Return an ``openood.postprocessors.BasePostprocessor`` for OpenOOD's ``Evaluator``.

    The network gives (logits, features) for ``return_feature=True``, as all of OpenOOD's do. Its
    confidence is minus the score. Works on the device of the network.
    """
    from openood.postprocessors import BasePostprocessor

    class FittedPostprocessor(BasePostprocessor):  # type: ignore[misc]
        """A detector that featfold has fitted: there is nothing to set up or to search."""

        APS_mode = False

        def postprocess(self, net: Any, data: Any) -> tuple[Tensor, Tensor]:
            """Return predictions and confidences (n,) of a batch."""
            with torch.no_grad():
                logits, features = net(data, return_feature=True)
            return logits.argmax(dim=1), -_scores(fitted, features, logits)

        def inference(self, net: Any, data_loader: Any, progress: bool = True) -> tuple[Any, ...]:
            """Return predictions, confidences and labels (n,) of all batches as numpy arrays."""
            device = next(net.parameters()).device
            pairs = [(self.postprocess(net, b["data"].to(device)), b["label"]) for b in data_loader]
            columns = zip(*((*found, label) for found, label in pairs), strict=True)
            predicted, confidence, labels = (torch.cat(c).cpu().numpy() for c in columns)
            return predicted.astype(int), confidence, labels.astype(int)

    return FittedPostprocessor(None)


def _scores(fitted: Scores, features: Tensor, logits: Tensor | None) -> Tensor:
    arrays = {"features": features} | ({} if logits is None else {"logits": logits})
    scores = fitted({name: array.detach() for name, array in arrays.items()})
    return torch.from_numpy(scores).to(features.device)
