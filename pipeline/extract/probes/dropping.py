"""Monte Carlo dropout: logits of several runs, each with entries dropped at random."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules import dropout as torch_dropout

from pipeline.errors import ConfigError, DataError
from pipeline.extract.probes.probing import LOGITS, Base, Probed, logits_of, probed
from pipeline.extract.probes.random_masks import derived, kept, row_keys

ALPHA = -1.7580993408473766
"""What entries become that alpha dropout drops: the least value of SELU."""
WHOLE_CHANNELS = (
    torch_dropout.Dropout1d,
    torch_dropout.Dropout2d,
    torch_dropout.Dropout3d,
    torch_dropout.FeatureAlphaDropout,
)
SELU = (torch_dropout.AlphaDropout, torch_dropout.FeatureAlphaDropout)
KNOWN = (torch_dropout.Dropout, *WHOLE_CHANNELS, torch_dropout.AlphaDropout)


def dropout(
    model: Callable[[Any], Any],
    samples: int = 10,
    *,
    seed: int = 0,
    p: float | None = None,
    logits: str = LOGITS,
    array: str = "dropout_logits",
) -> Probed:
    """Return a model that also gives ``dropout_logits`` (s k,): those of s runs with dropout.

    Modules of torch.nn that drop (Dropout, Dropout1d to 3d, AlphaDropout, FeatureAlphaDropout) do
    so, at their own rate or at ``p``; everything else stays in evaluation mode. That costs s more
    forward passes. The detector ``mc_dropout`` scores them.

    What is dropped of a row depends on ``seed``, on the number of the run and on the bits that the
    model is given for it, and on nothing else: not on the batch, the order, the device, or torch's
    random states. A resumed extraction has the bits of an uninterrupted one. Two exceptions: where
    a module sees its rows elsewhere than first, what is dropped depends on the batch; and texts
    padded to another length are other inputs.

    Dropout that is no module, such as that of attention weights or torch.nn.functional.dropout, and
    modules that drop whole paths (DropPath, StochasticDepth) do nothing.

    Raises :class:`ConfigError` for fewer than two samples, and a model without modules that drop at
    a rate above 0; :class:`DataError` where none of them runs.

    Reference: Gal and Ghahramani 2016, "Dropout as a Bayesian approximation: representing model
    uncertainty in deep learning", arXiv 1506.02142.
    Differs from the reference code: masks of SplitMix64 for each row; pytorch-ood puts the whole
    model but BatchNorm into training mode.
    """
    for name, given, least in (("samples", samples, 2), ("seed", seed, 0)):
        if isinstance(given, bool) or not isinstance(given, int) or not least <= given < 2**63:
            raise ConfigError(f"{name}: {given!r}; expected a number of at least {least}")
    if p is not None and (isinstance(p, bool) or not 0 < p < 1):
        raise ConfigError(f"p: {p!r}; expected a rate between 0 and 1, or none for their own")
    return probed(model, DropoutProbe(samples, seed, p, logits, array))


@dataclass(frozen=True)
class DropoutProbe:
    """See :func:`dropout`."""

    samples: int
    seed: int
    p: float | None
    logits: str
    array: str
    layout: str = "D"

    @property
    def said(self) -> str:
        return (
            f"dropout: {self.samples} samples, seed {self.seed}, p {self.p}, of {self.logits}, "
            "masks of SplitMix64 by the content of each row"
        )

    def check(self, base: Base) -> None:
        for module in _dropouts(base):
            ours = next((known for known in KNOWN if isinstance(module, known)), None)
            if ours is None or type(module).forward is not ours.forward:
                raise ConfigError(
                    f"probe dropout: what {type(module).__qualname__} drops is not known here; "
                    f"known: {', '.join(known.__name__ for known in KNOWN)} of torch.nn"
                )
        if not self._active(base):
            raise ConfigError(
                "probe dropout: the model has no torch.nn.Dropout, or alike, of a rate above 0: "
                "all runs would be the same; choose a model that was trained with dropout, or give "
                "p, a rate for all of its dropout modules"
            )

    def outputs(self, base: Base, inputs: Any) -> torch.Tensor:
        keys = row_keys(inputs, self.seed)
        runs = []
        for sample in range(self.samples):
            with self._dropping(base, keys, sample):
                runs.append(logits_of(base.run(inputs), self.logits, "dropout"))
        return torch.cat(runs, dim=1)

    def _active(self, base: Base) -> list[Any]:
        return [module for module in _dropouts(base) if self._rate(module) > 0]

    def _rate(self, module: Any) -> float:
        return float(module.p) if self.p is None else self.p

    @contextmanager
    def _dropping(self, base: Base, keys: list[int], sample: int) -> Iterator[None]:
        """Have all dropout modules drop in one run, in which at least one of them must run."""
        calls = 0

        def hook(module: Any, _: Any, output: torch.Tensor) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return _dropped(module, output, self._rate(module), keys, (sample, calls))

        with ExitStack() as stack:
            for module in self._active(base):
                stack.callback(module.register_forward_hook(hook).remove)
            yield
        if not calls:
            raise DataError(
                "probe dropout: none of its dropout modules ran in this pass: all runs are the "
                "same (modules that are compiled, and fused layers, do not run theirs)"
            )


def _dropouts(base: Base) -> list[Any]:
    return [
        module
        for network in base.networks
        for module in network.modules()
        if isinstance(module, torch_dropout._DropoutNd)
    ]


def _dropped(
    module: Any, x: torch.Tensor, p: float, keys: list[int], run: tuple[int, int]
) -> torch.Tensor:
    """Return x with entries, or whole channels, dropped as the module would in training mode."""
    if p >= 1:
        return torch.zeros_like(x)
    rows, n = x.shape[0], len(keys)
    if isinstance(module, WHOLE_CHANNELS) and x.ndim < 3:
        raise DataError(
            f"probe dropout: a {type(module).__name__} is given {tuple(x.shape)}; it drops whole "
            "channels of rows (n, c, ...)"
        )
    width = 2 if isinstance(module, WHOLE_CHANNELS) else x.ndim
    shape = (*x.shape[1:width], *(1,) * (x.ndim - width))
    if rows % n:  # rows are not first: what is dropped belongs to the batch
        own = [derived(0, *keys, *run)]
        stay = kept(own, (rows, *shape), p, x.device)[0]
    else:  # parts of a row, such as windows, follow one another
        own = [derived(key, *run) for key in keys]
        stay = kept(own, (rows // n, *shape), p, x.device).reshape(rows, *shape)
    if isinstance(module, SELU):
        scale = ((1 - p) * (1 + p * ALPHA**2)) ** -0.5
        return scale * (torch.where(stay, x, ALPHA) - ALPHA * p)
    return torch.where(stay, x / (1 - p), 0)
