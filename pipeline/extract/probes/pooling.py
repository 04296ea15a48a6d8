"""One vector of the tokens of a row, as detectors pool them, with or without a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pipeline.errors import DataError
from pipeline.extract.probes.probing import output

MASK = "mask"


def pooled_of(outputs: Mapping[str, Any], name: str, probe: str) -> torch.Tensor:
    """Return features (n, d) float64: those of an output (n, d), or the mean of its valid tokens.

    Raises :class:`DataError` for another shape.
    """
    found = output(outputs, name, probe)
    if found.ndim not in (2, 3):
        raise DataError(
            f"probe {probe}: {name!r} has shape {tuple(found.shape)}; expected (n, d) or tokens "
            "(n, t, d)"
        )
    wide = found.double()
    if found.ndim == 2:
        return wide
    mask = outputs.get(MASK)
    if not isinstance(mask, torch.Tensor):
        return wide.mean(dim=1)
    valid = mask.to(wide.device).bool()[:, :, None]
    # NaN where no token is valid: such a row is void.
    return wide.masked_fill(~valid, 0).sum(dim=1) / valid.sum(dim=1).double().masked_fill(
        ~valid.any(dim=1), torch.nan
    )
