"""Metrics of a training loop: update with batches, merge, compute; in memory, on one process.

A :class:`Collection` folds batches into the statistics that its metrics ask for. Metrics that ask
for equal statistics share one state, by what they declare; the values of states are never looked
at. Nothing here is a collective operation: see :mod:`pipeline.ddp` for distributed training.
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
from collections.abc import ItemsView, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from pipeline import arrays, files
from pipeline.batches import SCORES, batch, elements, empty_batch
from pipeline.choice import Metrics, choice, declared, differing
from pipeline.chunk import Chunk, Schema
from pipeline.content import digest, from_tree, to_tree
from pipeline.errors import ConfigError, CorruptError, DataError, MissingInputError
from pipeline.procedure import Metric
from pipeline.running import AnyStatistic, Running, is_additive, leaves, rebuilt

__all__ = ["Collection"]

DECLARATION, DECLARED, SCHEMA, UPDATES = "declaration", "declared", "schema", "updates"


class Collection:
    """Several metrics over the batches of a loop, as torchmetrics has them.

    ``metrics``: names such as ``"iou"``, values such as ``ff.metrics.IoU(average="none")``, a list
    of these, or a mapping from the name that keys start with. ``classes`` is their number, or
    their names, 2 in a binary task. ``task``: ``multiclass``, ``binary`` (class 1 is positive) or
    ``multilabel``. ``task``, ``ignore``, ``top_k`` and ``threshold`` are those of names, and of
    values that leave them at their defaults. ``weighted``: rows count by the weights that come with
    each batch.

    Raises :class:`ConfigError` for metrics that go by one name, and for those that must read
    their data more than once.
    """

    def __init__(
        self,
        metrics: Metrics,
        *,
        classes: int | Sequence[str] | None = None,
        task: str = "multiclass",
        ignore: int | Sequence[int] = (),
        top_k: int = 1,
        threshold: float = 0.5,
        weighted: bool = False,
        prefix: str = "",
        **others: Any,
    ) -> None:
        self.choice = choice(
            metrics, classes=classes, task=task, ignore=ignore, top_k=top_k, threshold=threshold,
            weighted=weighted, others=others,
        )  # fmt: skip
        for name, metric in self.items():
            if getattr(metric, "keeps_rows", False):
                raise ConfigError(f"{name} keeps a table of all rows: compute it with ff.measure")
        self.prefix = prefix
        self._running: Running | None = None
        self._updates = 0
        self.of_all_ranks = False
        """Whether it is known to hold what all ranks took in, as merged partial files do."""

    def update(self, preds: Any, target: Any, *, weights: Any = None) -> None:
        """Take in a batch; see :func:`pipeline.batches.batch` for shapes and dtypes.

        A batch that is refused with :class:`DataError` changes nothing. Raises
        :class:`ConfigError` for ``weights`` that some metric would not count.
        """
        name = f"update {self._updates + 1}"
        if weights is None:
            self.choice.check_weights_given(name)
        else:
            self.choice.check_weighted()
        chunk = batch(
            preds, target, weights, task=self.choice.task, classes=self.choice.classes, name=name
        )
        running = self._running or self._started(chunk.schema)
        self._refuse_other_arrays(running.schema, chunk)
        flat = elements(chunk) if SCORES in chunk.arrays else chunk
        with arrays.several_threads():
            running.absorb(lambda statistic: flat if SCORES in statistic.fields else chunk)
        self._running, self._updates = running, self._updates + 1

    def merge(self, *others: Collection) -> None:
        """Add what other collections of the same declaration have taken in.

        Raises :class:`ConfigError` for one that declares other metrics, classes or options.
        """
        for other in others:
            if not isinstance(other, Collection):
                raise ConfigError(
                    f"merge: {other!r} is no Collection; what save wrote is taken in by a clone: "
                    "part = collection.clone(); part.load(path); collection.merge(part)"
                )
            self._check_declaration(other.declaration, declared(other.choice))
        for other in others:
            self._add(other._running, other._updates)

    def compute(self) -> dict[str, Any]:
        """Return the numbers by key, each an :class:`~pipeline.procedure.Estimate`.

        A confusion matrix is a :class:`~pipeline.metrics.ConfusionTable`. What was taken in stays:
        further updates go on from here. Numbers of no update are NaN with a reason. Warns where
        this process is one of several that train together, and its numbers are a part of theirs.
        """
        if not self.of_all_ranks:
            _warn_of_others()
        return self.numbers()

    def numbers(self) -> dict[str, Any]:
        """Return the numbers of what this process has taken in, whatever others there are."""
        running = self._now
        results = running.results()
        outcomes = {
            name: _outcome(name, metric, running.schema, results) for name, metric in self.items()
        }
        return {self.prefix + k: number for k, number in self.choice.keyed(outcomes).items()}

    def plot(self, metric: str | None = None, *, theme: str = "light") -> Any:
        """Return a chart of a metric, by default of the first that has one: a matplotlib figure.

        A confusion matrix, a curve, a reliability diagram, or the bars of its classes; see
        :func:`pipeline.report.charts.save` for files. Raises :class:`ConfigError` for a metric that
        is one number.
        """
        from pipeline.report import charts

        names = list(self.choice.metrics)
        if metric is not None and metric not in names:
            raise ConfigError(f"plot: no metric is called {metric!r}; there are {', '.join(names)}")
        numbers = {key.removeprefix(self.prefix): one for key, one in self.numbers().items()}
        drawn = [metric] if metric is not None else charts.drawable(numbers, names) or names
        class_names = self.choice.class_names or None
        return charts.chart_of(numbers, drawn[0], class_names, theme=theme)

    def reset(self) -> None:
        """Forget every batch."""
        self._running, self._updates = None, 0

    def clone(self, prefix: str | None = None) -> Self:
        """Return an independent copy, with what was taken in, and another prefix if given."""
        made = type(self).__new__(type(self))
        vars(made).update(vars(self))
        made._running = copy.deepcopy(self._running)
        made.prefix = self.prefix if prefix is None else prefix
        return made

    def __copy__(self) -> Self:
        return self.clone()  # two that share a state would count each other's batches

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.clone()

    def items(self) -> ItemsView[str, Metric]:
        """Return the metrics by name."""
        return self.choice.metrics.items()

    def __len__(self) -> int:
        return len(self.choice.metrics)

    def __repr__(self) -> str:
        names = ", ".join(self.choice.metrics)
        task, classes = self.choice.task, self.choice.classes
        return f"Collection({names}; {task}, {classes} classes, {self._updates} updates)"

    @property
    def updates(self) -> int:
        """Batches taken in, those of merged collections included."""
        return self._updates

    @property
    def declaration(self) -> str:
        """Digest of the metrics, their names, the classes and the task; the prefix has no part."""
        return self.choice.declaration

    @property
    def schema(self) -> Schema:
        """What a batch holds; before the first one, what a batch of scores would."""
        return self._now.schema

    @property
    def states(self) -> dict[str, Any]:
        """States on the host by the digest of their statistic; copies."""
        running = self._now
        return {key: running.state(key) for key in running.statistics}

    @property
    def fixed(self) -> bool:
        """Whether all states are whole numbers of fixed shapes, so that their sum merges them."""
        return self._now.additive

    def packed(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return updates and all states as one int64 vector, whose sum over processes is merged.

        Its length depends on the declaration alone. Raises :class:`ConfigError` where a state is
        not :attr:`fixed`.
        """
        self._refuse_growing()
        flat = [leaf.reshape(-1) for state in self.states.values() for leaf in leaves(state)]
        return np.concatenate([np.array([self._updates], np.int64), *flat])

    def with_packed(self, vector: Any) -> Self:
        """Return a collection whose states are those of ``vector``; this one stays as it is."""
        self._refuse_growing()
        states, used = self.states, 1
        wanted = 1 + sum(leaf.size for state in states.values() for leaf in leaves(state))
        if np.shape(vector) != (wanted,):
            raise DataError(f"packed numbers of shape {np.shape(vector)}; these have ({wanted},)")
        for state in states.values():
            for leaf in leaves(state):
                leaf[...] = vector[used : used + leaf.size].reshape(leaf.shape)
                used += leaf.size
        made = self.clone()
        made.reset()
        running = made._started(self._now.schema)
        running.add(states)
        made._running, made._updates = running, int(vector[0])
        return made

    def state_dict(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return all that was taken in as numpy arrays by key, for :meth:`load_state_dict`.

        In a file of torch.save they need ``torch.load(weights_only=False)``, unless each is made a
        tensor, which is loaded as well; :meth:`save` writes a file that runs nothing when read.
        """
        about = {
            DECLARATION: self.declaration,
            DECLARED: declared(self.choice),
            UPDATES: self._updates,
            SCHEMA: to_tree(self._running.schema) if self._running else None,
        }
        text = np.frombuffer(json.dumps(about).encode(), np.uint8)
        named = {
            f"{key}/{number}": leaf
            for key, state in (self.states if self._running else {}).items()
            for number, leaf in enumerate(leaves(state))
        }
        return {"about": text, **named}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the place of what was taken in by the contents of :meth:`state_dict`.

        Raises :class:`ConfigError` where they are of other metrics, classes or options.
        """
        about = _about(state_dict)
        self._check_declaration(about[DECLARATION], about.get(DECLARED))
        running = None
        if about[SCHEMA] is not None:
            running = self._started(from_tree(about[SCHEMA], {}))
            running.add({key: _saved(running, key, state_dict) for key in running.statistics})
        self.reset()
        self._running, self._updates = running, about[UPDATES]

    def save(self, path: str | Path) -> None:
        """Write what was taken in to a safetensors file, whole or not at all."""
        from safetensors.numpy import save

        content = save({name: np.ascontiguousarray(x) for name, x in self.state_dict().items()})
        files.write_whole(
            Path(path), lambda file: file.write(content), len(content), "name another file"
        )

    def load(self, path: str | Path) -> None:
        """Take the place of what was taken in by what :meth:`save` wrote."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        if not Path(path).is_file():
            raise MissingInputError(f"{path} is not there; save a collection to it first")
        try:
            saved = load_file(path)
        except SafetensorError as error:
            raise CorruptError(f"{path} cannot be read ({error}); save the states again") from None
        self.load_state_dict(saved)

    def _started(self, schema: Schema) -> Running:
        statistics = [  # in an order that does not depend on the one they were given in
            statistic
            for _, metric in sorted(self.items())
            for statistic in _asked(metric, schema).values()
        ]
        return Running(statistics, schema)

    @property
    def _now(self) -> Running:
        """What was taken in; before the first batch, what a batch of scores would start."""
        if self._running is not None:
            return self._running
        return self._started(empty_batch(self.choice.task, self.choice.classes).schema)

    def _add(self, other: Running | None, updates: int) -> None:
        if other is None:
            return
        running = self._running or self._started(other.schema)
        if running.statistics.keys() != other.statistics.keys():
            raise DataError("scores and predicted classes cannot be merged: give one of them")
        running.add({key: other.state(key) for key in other.statistics})
        self._running, self._updates = running, self._updates + updates

    def _refuse_other_arrays(self, schema: Schema, chunk: Chunk) -> None:
        before, now = (sorted(s.arrays) for s in (schema, chunk.schema))
        if before != now:
            raise DataError(
                f"{chunk.split} holds {', '.join(now)}, the ones before {', '.join(before)}; "
                "give all batches alike, or reset"
            )

    def _refuse_growing(self) -> None:
        schema = self._now.schema
        growing = [
            name
            for name, metric in self.items()
            if not all(map(is_additive, _asked(metric, schema).values()))
        ]
        if growing:
            raise ConfigError(
                f"states of {', '.join(growing)} grow with the rows and cannot be packed; "
                "merge files of partial states instead, or give those metrics fixed=True"
            )

    def _check_declaration(self, other: str, said: Mapping[str, str] | None) -> None:
        if other != self.declaration:
            how = "of other metrics, classes or options, or another version of featfold"
            if said is not None and (found := differing(said, declared(self.choice))):
                how = f"declared otherwise: {found}"
            raise ConfigError(f"states that do not belong to {self!r}, {how}")


def _about(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Return what saved states say of themselves."""
    try:
        text = np.asarray(state_dict["about"], np.uint8).tobytes()
        about: dict[str, Any] = json.loads(text)
        if {DECLARATION, UPDATES, SCHEMA} <= about.keys():
            return about
    except (KeyError, TypeError, ValueError):
        pass
    raise CorruptError("these are no saved states of a collection; give what state_dict() returned")


def _saved(running: Running, key: str, state_dict: Mapping[str, Any]) -> Any:
    """Return the state of a statistic from arrays by key."""
    state = running.state(key)
    names = [f"{key}/{number}" for number, _ in enumerate(leaves(state))]
    if missing := [name for name in names if name not in state_dict]:
        raise CorruptError(
            f"the saved states lack {missing[0]}: they are of another version of featfold, whose "
            "counts mean something else; take the data in again"
        )
    return rebuilt(state, (np.asarray(state_dict[name]) for name in names))


def _warn_of_others() -> None:
    """Warn where torch.distributed, if it is in use at all, has several processes."""
    group = sys.modules.get("torch.distributed")
    if group is None or not group.is_available() or not group.is_initialized():
        return
    if group.get_world_size() > 1:
        warnings.warn(
            f"numbers of rank {group.get_rank()} of {group.get_world_size()} alone; those of all "
            "ranks are what ff.ddp.Collection computes",
            stacklevel=3,
        )


def _asked(metric: Metric, schema: Schema) -> dict[str, AnyStatistic]:
    """Return the statistics of the first pass of a metric, by the name of the request."""
    return dict(next(metric.passes(schema)))


def _outcome(name: str, metric: Metric, schema: Schema, results: Mapping[str, Any]) -> Any:
    passes = metric.passes(schema)
    asked = next(passes)
    try:
        passes.send({key: results[digest(request)] for key, request in asked.items()})
    except StopIteration as stop:
        return stop.value
    raise ConfigError(f"{name} reads its data more than once: compute it with featfold eval")
