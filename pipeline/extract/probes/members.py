"""Deep ensembles: logits of one architecture with the weights of several checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from pipeline.errors import ConfigError
from pipeline.extract.models.weights import load_into
from pipeline.extract.probes.probing import LOGITS, Base, Probed, logits_of, probed

Tensors = dict[str, torch.Tensor]


def checkpoints(
    model: Callable[[Any], Any],
    weights: Sequence[str | Path],
    *,
    logits: str = LOGITS,
    array: str = "checkpoint_logits",
) -> Probed:
    """Return a model that also gives ``checkpoint_logits`` (m k,): those of m sets of weights.

    ``weights`` are files, safetensors or torch.save of a state_dict, of the same architecture; the
    model's own weights are a member only where their file is named, too. All are held in memory,
    beside the model, and each costs one more forward pass. The model has its own weights before and
    after. The detector ``deep_ensemble`` scores them.

    Raises :class:`ConfigError` for fewer than two files, the same file twice, or a callable that
    holds no module, or several; and what :func:`pipeline.extract.models.weights.load_into` does:
    MissingInputError, CorruptError, and DataError for weights of another architecture.

    Reference: Lakshminarayanan, Pritzel and Blundell 2017, "Simple and scalable predictive
    uncertainty estimation using deep ensembles", arXiv 1612.01474.
    Differs from the reference code: nothing is trained; OpenOOD ignores weights that do not fit.
    """
    if isinstance(weights, (str, Path)) or len(weights) < 2:
        raise ConfigError(f"weights: {weights!r}; expected two files or more, one for each member")
    roots = Base(model).roots
    if len(roots) != 1:
        raise ConfigError(
            f"probe checkpoints: it puts weights into one module, and the model holds {len(roots)}"
        )
    return probed(model, CheckpointsProbe(roots[0], weights, logits, array))


class CheckpointsProbe:
    """See :func:`checkpoints`."""

    layout = "D"

    def __init__(self, root: Any, weights: Sequence[str | Path], logits: str, array: str) -> None:
        self.logits, self.array = logits, array
        self.digests = tuple(_sha256(Path(each)) for each in weights)
        twice = [w for w, one in zip(weights, self.digests, strict=True)
                 if self.digests.count(one) > 1]  # fmt: skip
        if twice:
            raise ConfigError(f"weights: {twice[0]} and {twice[1]} are the same weights")
        self.members = _read(root, weights)

    @property
    def said(self) -> str:
        return f"checkpoints: of {self.logits}, weights {', '.join(self.digests)}"

    def check(self, base: Base) -> None:
        """Nothing is left to check: the weights fitted."""

    def outputs(self, base: Base, inputs: Any) -> torch.Tensor:
        (root,) = base.roots
        found = []
        for member in self.members:
            with _with_weights(root, member):
                found.append(logits_of(base.run(inputs), self.logits, "checkpoints"))
        return torch.cat(found, dim=1)


def _read(root: Any, weights: Sequence[str | Path]) -> list[Tensors]:
    """Return the weights of files as a module would have them, which keeps its own."""
    own = _copied(root)
    try:
        found = []
        for path in weights:
            load_into(root, path)
            found.append(_copied(root))
        return found
    finally:
        with torch.no_grad():
            for name, tensor in _tensors(root).items():
                tensor.copy_(own[name])


@contextmanager
def _with_weights(root: Any, member: Tensors) -> Iterator[None]:
    """Have a module compute with other weights; they stay on its device for further calls."""
    taken = []
    try:
        for name, tensor in _tensors(root).items():
            member[name] = member[name].to(tensor.device, tensor.dtype)
            taken.append((tensor, tensor.data))
            tensor.data = member[name]
        yield
    finally:
        for tensor, data in reversed(taken):  # weights that are tied come twice
            tensor.data = data


def _tensors(root: Any) -> Tensors:
    found = root.state_dict(keep_vars=True)
    return {name: each for name, each in found.items() if isinstance(each, torch.Tensor)}


def _copied(root: Any) -> Tensors:
    return {name: each.detach().clone() for name, each in _tensors(root).items()}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else str(path)
