"""(b) A fit of tokens held in host memory, beside the copy and the products alone; (c) a peer's."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from sites import CannotShow, Site, fits, jobs_of

from pipeline.arrays import devices
from pipeline.engine import rehearse
from pipeline.plan import project_device

T, D, CLASSES = 49, 1024, 1000
PINNED_NBYTES = 2**28
PRODUCT_ROWS = 2**15
TOKENS = [{"name": f"{prefix}mahalanobis", "pool": "tokens"} for prefix in ("", "relative_")]
STORY = ["kl_matching", "she", "mahalanobis", "relative_mahalanobis"]


def held(site: Site) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return float32 tokens (n, t, d) and labels, in the memory of the host."""
    n = site.size(50_000, 400)
    t, d = (T, D) if not site.rehearsal else (7, 32)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, site.size(CLASSES, 10), n)
    some = rng.standard_normal((min(n, 1000), t, d), dtype="f4")
    features = np.empty((n, t, d), "f4")
    for start in range(0, n, len(some)):  # other rows, at the price of a copy
        part = features[start : start + len(some)]
        np.add(some[: len(part)], labels[start : start + len(part), None, None] * 1e-3, out=part)
    return features, labels


def show(site: Site) -> dict[str, Any]:
    """Fit; say how near the time is to the floor, and the memory to what was planned."""
    features, labels = held(site)
    copy, product = _copied_per_second(site), _products_per_second(site)
    shown: dict[str, Any] = {
        "features_nbytes": features.nbytes,
        "pinned_copy_nbytes_per_second": copy,
        "float32_flops": product,
    }
    for name, detectors, products in (("tokens", TOKENS, T), ("pooled", STORY, 1)):
        flop = 2 * products * len(features) * features.shape[2] ** 2
        floor = max(features.nbytes / copy, flop / product)
        device = devices.of(site.place)
        began = time.perf_counter()
        fits(detectors, (features, labels), site.place)
        site.wait()
        seconds = time.perf_counter() - began
        shown[name] = {
            "seconds": seconds,
            "nbytes_per_second": features.nbytes / seconds,
            "floor_seconds": floor,
            "times_the_floor": seconds / floor,
            "peak_nbytes": device.peak_nbytes(),
            "projected_nbytes": _projected(detectors, (features, labels)),
        }
    return shown


def _projected(detectors: Any, data: Any) -> int:
    passes, _ = rehearse(jobs_of(detectors, data))
    return max(project_device(pass_).nbytes for pass_ in passes)


def _copied_per_second(site: Site) -> float:
    import torch

    cuda = site.torch_device != "cpu"
    host = torch.zeros(site.size(PINNED_NBYTES, 2**20), dtype=torch.uint8, pin_memory=cuda)
    there = torch.empty_like(host, device=site.torch_device)
    return host.nbytes / site.seconds(lambda: there.copy_(host, non_blocking=True))


def _products_per_second(site: Site) -> float:
    import torch

    rows, d = site.size(PRODUCT_ROWS, 256), site.size(D, 32)
    x = torch.randn(rows, d, device=site.torch_device)
    return 2 * rows * d * d / site.seconds(lambda: x.T @ x)


def beside_the_peer(site: Site) -> dict[str, Any]:
    """Fit pooled features with pytorch-ood on the same device, and with featfold."""
    try:
        from pytorch_ood.detector import Mahalanobis
    except ImportError as error:
        raise CannotShow(f"pytorch-ood is not installed ({error})") from error
    import torch

    rng = np.random.default_rng(0)
    n, d = site.size(50_000, 500), site.size(D, 32)
    labels = rng.integers(0, site.size(CLASSES, 10), n)
    pooled = rng.standard_normal((n, d), dtype="f4")

    def theirs() -> None:
        x = torch.from_numpy(pooled).to(site.torch_device)
        y = torch.from_numpy(labels).to(site.torch_device)
        Mahalanobis(lambda z: z).fit_features(x, y, device=site.torch_device)

    def ours() -> None:
        fits(["mahalanobis"], (pooled, labels), site.place)

    shown = {"rows": n, "theirs_seconds": site.seconds(theirs), "ours_seconds": site.seconds(ours)}
    return shown | {"times_theirs": shown["ours_seconds"] / shown["theirs_seconds"]}
