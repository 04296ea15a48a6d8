"""Scores of pytorch-ood's activation shaping on pooled features."""

import numpy as np
import torch
from peers import peer


def scores_of_peer(name, z, weight, bias, **options):
    """Return what a detector of pytorch-ood gives, fitted on and predicting pooled features."""
    z, weight, bias = (torch.from_numpy(np.ascontiguousarray(x)) for x in (z, weight, bias))

    def head(x):
        return torch.nn.functional.linear(x.flatten(1), weight, bias)

    detector = peer(name)(None, head=head, **options)
    if name == "LTS":
        return detector.predict_features(z).numpy()
    maps = z[:, :, None, None]
    if hasattr(detector, "fit_feature_maps"):
        detector.fit_feature_maps(maps, torch.zeros(len(z), dtype=torch.int64))
    return detector.predict_feature_maps(maps).numpy()
