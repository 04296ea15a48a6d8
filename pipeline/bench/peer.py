"""The other side of ``featfold bench small``: pytorch-ood, in an interpreter that has it.

Run by its path, and not imported: it knows nothing of this package. Reads names of tasks, one a
line, from stdin; answers each with its seconds. The first line it writes says that it is ready.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def tasks(directory: Path, dim: int) -> dict[str, Callable[[], Any]]:
    """Return the fits by name, and the scoring of the queries by a fitted Mahalanobis."""
    import torch
    from pytorch_ood.detector import (  # type: ignore[import-not-found,unused-ignore]
        RMD,
        SHE,
        KLMatching,
        Mahalanobis,
        ViM,
    )

    torch.set_num_threads(2)
    names = ("features", "logits", "labels", "weight", "bias", "queries")
    data = {name: torch.from_numpy(np.load(directory / f"{name}.npy")) for name in names}
    z, y, weight, bias = (data[name] for name in ("features", "labels", "weight", "bias"))
    head = torch.nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.copy_(bias)
    fitted = Mahalanobis(None).fit_features(z, y)
    return {
        "mahalanobis": lambda: Mahalanobis(None).fit_features(z, y),
        "relative_mahalanobis": lambda: RMD(None).fit_features(z, y),
        "kl_matching": lambda: KLMatching(None).fit_logits(data["logits"], y),
        "she": lambda: SHE(None, head).fit_features(z, y),
        "vim": lambda: ViM(None, d=dim, w=weight, b=bias).fit_features(z, y),
        "score": lambda: fitted.predict_features(data["queries"]),
    }


def serve(directory: Path, dim: int) -> None:
    """Answer every name on stdin with the seconds that its task takes."""
    from importlib.metadata import version

    known = tasks(directory, dim)
    print(json.dumps({name: version(name) for name in ("pytorch-ood", "torch")}), flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        known[line.strip()]()
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
