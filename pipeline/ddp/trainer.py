"""What metrics need to know of a Lightning trainer: its collections, loaders, and moments.

Works for both packages, ``lightning`` and ``pytorch_lightning``: it looks at objects and imports
neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.collection import Collection as OneProcess
from pipeline.ddp.collection import Collection
from pipeline.ddp.files import Moment
from pipeline.ddp.rows import Expected
from pipeline.ddp.sampler import WITHOUT_SAMPLER, Share, share_of
from pipeline.errors import ConfigError

__all__ = [
    "PHASES",
    "Found",
    "Loaders",
    "batches_trained",
    "check_phases",
    "collections_of",
    "moment",
]

PHASES: Mapping[str, tuple[str, ...]] = {
    "train": ("train", "training", "fit"),
    "val": ("val", "valid", "validation", "validate"),
    "test": ("test", "testing"),
}


class Found(NamedTuple):
    """A collection of a module."""

    name: str
    """Where the module holds it, such as ``val_metrics``."""
    phase: str
    collection: Collection


def collections_of(module: Any, phases: Mapping[str, str]) -> list[Found]:
    """Return the collections that a module holds: attributes, and entries of lists and dicts.

    The phase is the one that ``phases`` gives for its name, else the word in its prefix, such as
    ``val/``, or in its name. Raises :class:`ConfigError` where there is none, where it is not
    clear, and for a collection that knows nothing of other ranks.
    """
    found: dict[int, Found] = {}
    for name, one in _held(module):
        if not isinstance(one, Collection):
            raise ConfigError(
                f"{name} is a Collection of one process; import it from pipeline.ddp, whose "
                "numbers are those of all ranks"
            )
        found.setdefault(id(one), Found(name, phases.get(name) or _phase(name, one), one))
    if not found:
        raise ConfigError(
            f"{type(module).__name__} holds no Collection of pipeline.ddp; make one in __init__, "
            "such as self.val_metrics = metrics.clone(prefix='val/')"
        )
    return list(found.values())


def check_phases(option: str, phases: Iterable[str]) -> None:
    """Raise :class:`ConfigError` for phases that there are none of."""
    given = [phases] if isinstance(phases, str) else list(phases)
    if isinstance(phases, str) or any(phase not in PHASES for phase in given):
        raise ConfigError(
            f"{option}: {', '.join(map(repr, given))}; expected a list of {', '.join(PHASES)}"
        )


def _held(module: Any) -> Iterator[tuple[str, OneProcess]]:
    for path, part in module.named_modules():
        for name, one in vars(part).items():
            yield from _within(one, f"{path}.{name}" if path else name)


def _within(one: Any, name: str) -> Iterator[tuple[str, OneProcess]]:
    if isinstance(one, OneProcess):
        yield re.sub(r"[^\w]+", "-", name), one
    elif isinstance(one, dict):
        for key, entry in one.items():
            yield from _within(entry, f"{name}.{key}")
    elif isinstance(one, (list, tuple)):
        for place, entry in enumerate(one):
            yield from _within(entry, f"{name}.{place}")


def _phase(name: str, collection: Collection) -> str:
    for text in (collection.prefix, name):
        words = re.split(r"[^a-z]+", text.lower())
        meant = {phase for phase, said in PHASES.items() if set(said) & set(words)}
        if len(meant) == 1:
            return meant.pop()
    raise ConfigError(
        f"{name} (prefix {collection.prefix!r}): is it of train, val or test? Clone it with a "
        f"prefix such as 'val/', or give the callback phases={{{name!r}: 'val'}}"
    )


class Loaders:
    """The loaders of a phase, and how they share samples out among the ranks."""

    def __init__(self, trainer: Any, phase: str) -> None:
        combined = _combined(trainer, phase)
        self.each: Sequence[Any] = [] if combined is None else list(combined.flattened)
        mode = getattr(combined, "_mode", "sequential")
        self._at_once = len(self.each) > 1 and (phase == "train" or mode != "sequential")
        self._rank, self._size = trainer.global_rank, trainer.world_size
        self._shares: dict[int, Share | ConfigError | None] = {}

    def expected(self, batch: int, loader: int = 0) -> Expected:
        """Return the rows of a batch, by its place since the loader began."""
        share = self._share(loader)
        if isinstance(share, ConfigError):
            return Expected.unknown(share)
        if share is None:
            return Expected.everything()
        return Expected(share.rows_of_batch(batch), share.counted_rows(batch))

    def rows(self) -> int | None:
        """Return the samples of all loaders, each once; None where that is not known."""
        shares = [self._share(place) for place in range(len(self.each))]
        if not all(isinstance(share, Share) for share in shares):
            return None
        return sum(share.dataset_rows for share in shares if isinstance(share, Share))

    def resumable(self) -> bool:
        """Tell whether loaders go on where a checkpoint left them, instead of beginning again."""
        return all(hasattr(one, "load_state_dict") for one in self.each)

    def _share(self, loader: int) -> Share | ConfigError | None:
        if loader not in self._shares:
            self._shares[loader] = self._found(loader)
        return self._shares[loader]

    def _found(self, loader: int) -> Share | ConfigError | None:
        if self._size > 1 and self._at_once:
            return ConfigError(
                f"batches of {len(self.each)} loaders come at once, and which of their rows repeat "
                f"others is not known; {WITHOUT_SAMPLER}"
            )
        try:
            return share_of(self.each[loader], self._rank, self._size)
        except ConfigError as error:
            return error


def _combined(trainer: Any, phase: str) -> Any:
    if phase == "train":
        return trainer.fit_loop._combined_loader
    if phase == "test":
        return trainer.test_loop._combined_loader
    fitting = trainer.state.fn == "fit"
    return (
        trainer.fit_loop.epoch_loop.val_loop if fitting else trainer.validate_loop
    )._combined_loader


def batches_trained(trainer: Any) -> int:
    """Return how many batches were trained on, earlier attempts included."""
    return int(trainer.fit_loop.epoch_loop.batch_progress.total.ready)


def moment(trainer: Any, found: Found, loaded: Mapping[str, Any] | None) -> Moment:
    """Return where a run stands; ``loaded`` is what a checkpoint said of where its weights do."""
    step, batch = int(trainer.global_step), batches_trained(trainer)
    if loaded is not None and trainer.state.fn != "fit":
        step, batch = loaded["step"], loaded["batch"]
    return Moment(found.phase, step, batch, bool(trainer.sanity_checking), found.name)
