"""What people pass in, brought into the types of the engine: detectors, heads, splits, jobs."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import detectors, sweeps
from pipeline.arrays import is_array
from pipeline.chunk import Schema, Split
from pipeline.content import Const, replaced
from pipeline.detectors import Chosen, plain
from pipeline.engine import Job
from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.heads import Head, HeadOf, LDAHead, LinearHead, ModelHead, StoredHead
from pipeline.procedure import TRAIN, VAL, Detector
from pipeline.store import ArraySplit, DeclaredSplit, SavedHead
from pipeline.store.place import at, is_url
from pipeline.views import POOLS, Linear, Pooled

HEAD = "head"
"""Name of the job that fits the head by itself, for the classification in a report."""
VAL_SPLIT = "id/val"
One = str | Detector | Mapping[str, Any]
Detectors = One | Iterable[One] | Mapping[str, One]


def is_text(given: Any) -> bool:
    """Tell whether something is a string of more than blanks."""
    return isinstance(given, str) and bool(given.strip())


def detectors_by_id(given: Detectors) -> dict[str, Detector]:
    """Return detectors by the id that names their rows in tables.

    ``given`` is a name, a detector, a mapping with its ``name`` and options as in a job, several
    of these, or a mapping from id to one. An option that is a list is swept: one detector for each
    entry, with an id that says it. Raises :class:`ConfigError` for two equal ids, and for
    none at all.
    """
    if isinstance(given, Mapping) and "name" not in given:
        entries = [_members(entry, "" if name is None else name) for name, entry in given.items()]
    else:
        one = isinstance(given, (str, type, Mapping)) or hasattr(given, "passes")
        several: list[Any] = list(given) if isinstance(given, Iterable) and not one else [given]
        entries = [_members(entry) for entry in several]
    _refuse_twice(entries)
    pairs = [pair for members in entries for pair in members]
    chosen = dict(pairs)
    if odd := [name for name in chosen if not is_text(name) or name == HEAD]:
        raise ConfigError(f"{odd[0]!r} cannot name a detector; give an id such as 'mine'")
    if not chosen:
        raise ConfigError(f"no detector was named; known: {', '.join(detectors.names())}")
    if len(chosen) < len(pairs):
        twice = sorted({name for name, _ in pairs if [n for n, _ in pairs].count(name) > 1})
        raise ConfigError(f"two detectors are called {', '.join(twice)}; give one another id")
    return chosen


def _refuse_twice(several: Sequence[Sequence[tuple[Any, Detector]]]) -> None:
    """Raise :class:`ConfigError` for two sweeps of one name: one choice would stand for both."""
    swept = [{made.sweep for _, made in members if isinstance(made, Chosen)} for members in several]
    names = [name for each in swept for name in each if name]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"two sweeps are called {', '.join(twice)}; give one another id")


def _members(entry: Any, name: Any = None) -> list[tuple[Any, Detector]]:
    """Return the detectors that an entry stands for, with their ids: all of a sweep."""
    if isinstance(entry, Mapping):
        if not isinstance(entry.get("name"), str):
            raise ConfigError(f"a detector needs its name, such as {{'name': 'msp'}}; got {entry}")
        return list(sweeps.members(entry if name is None else {**entry, "id": name}).items())
    made = _detector(entry)
    return [(detectors.default_id(made) if name is None else name, made)]


def _detector(entry: Any) -> Detector:
    if isinstance(entry, str):
        return detectors.make(entry)  # type: ignore[no-any-return]
    if isinstance(entry, type) or not callable(getattr(entry, "passes", None)):
        raise ConfigError(
            f"{entry!r} is not a detector; pass a name such as 'msp', a value such as "
            "ff.detectors.Mahalanobis(ridge=1e-5), or {'name': 'msp'} with its options"
        )
    return entry  # type: ignore[no-any-return]


def choose_head(given: Any, schema: Schema, split: Split | None = None) -> Head:
    """Return the head that ``given`` names: auto, lda, stored, model, or a head as it is.

    ``model`` is the final layer of the model that ``split`` comes from, saved with its features.
    ``auto`` takes stored logits where the split has them, else that layer where it fits classes
    and features, and fits one by lda otherwise. {"lda": {"ridge": 0.01}} gives lda its options,
    {"weights": file} reads W and b.
    """
    if given in (None, "auto"):
        given = "stored" if "logits" in schema.arrays else _saved_or_lda(schema, split)
    if given == "model":
        return _model_head(schema, split)
    if given == "lda":
        return LDAHead()
    if given == "stored":
        return StoredHead()
    if isinstance(given, Mapping) and set(given) == {"lda"}:
        return _lda_head(given["lda"])
    if (
        isinstance(given, Mapping)
        and set(given) == {"weights"}
        and isinstance(given["weights"], (str, Path))
        and str(given["weights"]).strip()
    ):
        return LinearHead.read(given["weights"], Pooled())
    if hasattr(given, "passes"):
        return given  # type: ignore[no-any-return]
    raise ConfigError(
        f"head: {given!r} is unknown; choose auto, lda, stored, model or {{weights: FILE}}"
    )


def _saved_or_lda(schema: Schema, split: Split | None) -> Any:
    if getattr(split, "head", None) is None:
        return "lda"
    try:
        head = _model_head(schema, split)
        Linear(head.linear.of, head.linear.weight, head.linear.bias).shape(schema)
    except (DataError, MissingInputError):
        return "lda"  # a head over other classes, or features that this split lacks
    return head


def _model_head(schema: Schema, split: Split | None) -> ModelHead:
    saved: SavedHead | None = getattr(split, "head", None)
    if isinstance(split, DeclaredSplit):  # what one will be like: values are for no plan
        (d,), k = Pooled().shape(schema), schema.classes
        saved = SavedHead(np.zeros((k, d)), np.zeros(k), {})
    if saved is None:
        raise MissingInputError(
            f"head: model: no head is saved with {schema.split or 'these rows'}; extract them by a "
            "model with head: LAYER, or choose head: lda or {weights: FILE}"
        )
    said: Mapping[str, Any] = getattr(split, "attributes", {})
    for key in saved.attributes.keys() & said.keys() & {"model", "weights_sha256"}:
        if saved.attributes[key] != said[key]:
            raise DataError(
                f"head: model: the saved head is of {key} {saved.attributes[key]!r}, the features "
                f"of {schema.split} are of {said[key]!r}; choose another head"
            )
    how, field = (saved.attributes.get(key, "") for key in ("how", "field"))
    weight, bias = (Const(each.astype(np.float64)) for each in (saved.weight, saved.bias))
    return ModelHead(LinearHead(weight, bias, Pooled(how or "mean", field or "features")))


def _lda_head(options: Any) -> LDAHead:
    known = isinstance(options, Mapping) and set(options) <= {"of", "ridge"}
    if not known or not callable(options.get("of", Pooled())):
        raise ConfigError(f"head: lda takes {{'ridge': NUMBER}}, got {options!r}")
    try:
        return LDAHead(**options)
    except ConfigError as error:
        raise ConfigError(f"head: lda: {error}") from None


def with_head(detector: Detector, head: Head) -> Detector:
    """Return the detector with ``head``, if it, or a member of it, has one and was given none.

    A head over pooled features reads those that the detector reads: its pool, and its field.
    """

    def change(own: Head, of: Any) -> Head:
        return _over_features_of(of, head) if own == StoredHead() else own

    return with_each_head(detector, change)


def _over_features_of(detector: Any, head: Head) -> Head:
    pool, field = getattr(detector, "pool", "mean"), getattr(detector, "field", "features")
    if not isinstance(head, (LDAHead, LinearHead)) or head.of != Pooled() or pool not in POOLS:
        return head
    return replaced(head, of=Pooled(pool, field))


def with_each_head(detector: Detector, change: Callable[[Head, Any], Head]) -> Detector:
    """Return the detector with its head, and those of its members, changed."""
    fields = {field.name for field in dataclasses.fields(detector)}  # type: ignore[arg-type]
    own: Any = detector
    if "head" in fields:
        return replaced(detector, head=change(own.head, own))
    if detectors.MEMBERS in fields:
        members = tuple(with_each_head(member, change) for member in own.detectors)
        return replaced(detector, detectors=members)
    if isinstance(own, Chosen):
        return replaced(detector, detector=with_each_head(own.detector, change))
    return detector


def has_head(detector: Any) -> bool:
    """Tell whether a detector, or a member of it, has a head."""
    plain_one = plain(detector)
    return hasattr(plain_one, "head") or any(
        has_head(member) for member in getattr(plain_one, detectors.MEMBERS, ())
    )


def as_split(data: Any, *, name: str = "id/train", classes: int | None = None) -> Split:
    """Return ``data`` as a split.

    It may be a split, an array of features (n, d) or (n, t, d), a tuple (features, labels), or a
    mapping of arrays by name; arrays are numpy, torch, cupy, zarr or dask ones.
    """
    if hasattr(data, "blocks") and hasattr(data, "read"):
        return data  # type: ignore[no-any-return]
    if isinstance(data, Mapping):
        return ArraySplit(arrays=data, name=name, classes=classes)
    if isinstance(data, tuple) and len(data) == 2:
        return ArraySplit(data[0], data[1], name=name, classes=classes)
    if is_array(data) or hasattr(data, "shape"):
        return ArraySplit(data, name=name, classes=classes)
    raise ConfigError(
        f"cannot read rows from a {type(data).__name__}; pass a split of a store, an array, "
        "(features, labels), or a mapping of arrays; with a loader of inputs, pass model= as well"
    )


def val_split(data: Any, classes: int) -> Split:
    """Return rows that some detectors are fitted on; :class:`ConfigError` for those of a test."""
    split = as_split(data, name=VAL_SPLIT, classes=classes)
    detectors.fit_split_name(split.name, "val")
    return split


def ood_splits(group: str, given: Any, classes: int) -> Sequence[Split]:
    """Return the splits of a group of an evaluation: a mapping of names to data, or splits."""
    if not isinstance(given, Mapping):
        several = isinstance(given, (list, tuple)) and all(hasattr(s, "schema") for s in given)
        if not several:
            raise ConfigError(
                f"{group}: expected a mapping of names to data, such as {{'svhn': features}}, or "
                f"a list of splits, got {type(given).__name__}"
            )
        return tuple(given)
    if odd := [name for name in given if not is_text(name) or "/" in name]:
        raise ConfigError(f"{group}: {odd[0]!r} cannot name a set; give a name such as 'svhn'")
    kind = "id/csid" if group == "csid" else f"ood/{group}"
    return tuple(
        as_split(data, name=f"{kind}/{name}", classes=classes) for name, data in given.items()
    )


def fit_jobs(
    chosen: Mapping[str, Detector],
    split: Split,
    head: Head,
    further: Mapping[str, Split] | None = None,
) -> dict[str, Job]:
    """Return one job per detector, and one for the head if anybody needs its logits.

    ``further`` are the splits, by name, of detectors that are not fitted on ``split``; their head
    is. Rows of id/val among them scale ensembles. Raises :class:`MissingInputError` where there is
    none of the name that a detector wants.
    """
    made = {
        name: _fit_job(name, detector, split, head, further or {})
        for name, detector in chosen.items()
    }
    if isinstance(head, StoredHead) or any(has_head(j.procedure) for j in made.values()):
        made[HEAD] = Job(head, {TRAIN: (split,)})
    return made


def _fit_job(
    name: str, chosen: Detector, split: Split, head: Head, further: Mapping[str, Split]
) -> Job:
    detector: Any = with_head(plain(chosen), head)
    wanted = chosen.fit_split if isinstance(chosen, Chosen) else ""
    if wanted in ("", split.name):
        return _with_scales(name, Job(detector, {TRAIN: (split,)}), further)
    if wanted not in further:
        raise MissingInputError(
            f"{name} is fitted on {wanted}, and only {split.name} was given; pass its rows as "
            f"val=, or choose fit_split {split.name.removeprefix('id/')} for it"
        )
    own = further[wanted]
    if own.schema.classes != split.schema.classes:
        raise DataError(
            f"{name}: {own.name} has {own.schema.classes} classes, {split.name} "
            f"{split.schema.classes}; state the classes of both alike"
        )
    roles = {TRAIN: (own,)}
    if has_head(detector):
        roles[split.name] = (split,)
        detector = with_each_head(
            detector, lambda h, _: h if isinstance(h, StoredHead) else HeadOf(h, split.name)
        )
    return _with_scales(name, Job(detector, roles), further)


def scales_of(detector: Any) -> set[str]:
    """Return the rows that the ensembles which a detector is, or has, ask for their scales."""
    own = plain(detector)
    members = getattr(own, detectors.MEMBERS, ())
    scaled = members and getattr(own, "normalize", "") != "none"
    asked = {getattr(own, "scales", TRAIN)} if scaled else set()
    return asked.union(*map(scales_of, members))


def _with_scales(name: str, job: Job, further: Mapping[str, Split]) -> Job:
    """Return a job whose ensembles are scaled by rows of id/val, where these are there and fit."""
    asked = scales_of(job.procedure)
    fitted_on = job.splits[TRAIN][0]
    val = further.get(VAL_SPLIT, fitted_on if fitted_on.name == VAL_SPLIT else None)
    if VAL in asked and val is None:
        raise MissingInputError(
            f"{name}: scales: val needs rows of {VAL_SPLIT}; pass them as val=, store that split, "
            "or choose scales: auto"
        )
    instead = val is not None and val is not fitted_on and _suits(val, fitted_on)
    if VAL not in asked and not ("auto" in asked and instead):
        return job
    detector: Any = _scaled(job.procedure, VAL if instead else TRAIN)
    return Job(detector, {**job.splits, VAL: (val,)}, job.asker)  # type: ignore[dict-item]


def _scaled(detector: Any, auto: str) -> Any:
    """Return a detector whose ensembles, itself and members of it, take other rows for ``auto``."""
    members = tuple(_scaled(member, auto) for member in getattr(detector, detectors.MEMBERS, ()))
    if not members:
        return detector
    own = {"scales": auto} if getattr(detector, "scales", "") == "auto" else {}
    return replaced(detector, detectors=members, **own)


def _suits(val: Split, fitted_on: Split) -> bool:
    """Tell whether rows can be scored by what is fitted on others: labels do not matter."""
    ours, theirs = val.schema, fitted_on.schema
    return ours.classes == theirs.classes and all(
        name in ours.arrays and ours.arrays[name].shape == spec.shape
        for name, spec in theirs.arrays.items()
        if name not in ("labels", "ids")
    )


def cache_directory(given: str | Path | None, store: str | Path | None = None) -> Path:
    """Return where constants and partials go: as given, beside a writable store, else at home."""
    if given is not None:
        if not isinstance(given, os.PathLike) and not is_text(given):
            raise ConfigError(f"cache: {given!r}; expected the path of a directory")
        if is_url(given):
            raise ConfigError("cache: expected a directory of this machine, not a URL")
        return Path(given)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "featfold"
    if store is None:
        return home
    path = at(store)
    if isinstance(path, Path) and os.access(path.parent, os.W_OK):
        return path.with_name(f"{path.name}.cache")
    return home / hashlib.sha256(str(path).encode()).hexdigest()[:16]
