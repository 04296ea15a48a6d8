"""Fit, score and evaluate from Python: ``ff.fit(["mahalanobis", "msp"], data)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import evaluation
from pipeline.chunk import Split
from pipeline.engine import Job, Trace, run_jobs
from pipeline.errors import ConfigError
from pipeline.evaluation import Evaluation, Sets
from pipeline.fitted import Fitted, FittedDetector, members_of
from pipeline.inputs import Detectors, as_split, detectors_by_id, is_text, ood_splits
from pipeline.loaders import Call, Given, fit_at_work
from pipeline.procedure import Scored
from pipeline.scoring import classes_of, scores_of, skips_of
from pipeline.views import Stored, View
from pipeline.workplace import pinned_to, store_of, workplace


def fit(
    detectors: Detectors,
    data: Any,
    *,
    head: Any = None,
    classes: int | None = None,
    nonfinite: str = "raise",
    cluster: str = "auto",
    workers: int | None = None,
    memory: str | int = "auto",
    device_memory: str | int = "auto",
    cache: str | Path | None = None,
    pin: Fitted | None = None,
    val: Any = None,
    model: Any = None,
    device: Any = None,
    stream: bool | None = None,
) -> Fitted:
    """Fit detectors out of core, all in the same passes over the data.

    ``detectors``: names or values, one or several, or a mapping from id; also
    {"name": "gen", "preset": "pytorch-ood-0.4"} with options as in a job. ``data``: a split, an
    array of features (n, d) or (n, t, d), (features, labels), or a mapping of arrays; numpy,
    torch, cupy, zarr and dask arrays are read chunk by chunk. ``head`` gives the logits where the
    data stores none: see :func:`pipeline.inputs.choose_head`. Rows with labels < 0 are left out.
    ``val`` are further in-distribution rows, for the detectors with ``fit_split: val`` and for the
    scales of ensembles.
    ``device="cuda"`` has rows folded on GPUs, as ``cluster="cuda"`` does.
    With ``model``, a module or any callable that runs on ``device``, ``data`` and ``val`` are
    loaders of (inputs, labels), read once: see :func:`pipeline.extract.loading.opened`. Where one
    pass is enough for every detector, rows go straight from the model into the statistics and are
    written nowhere; else they lie in temporary files of ``cache`` meanwhile. ``stream=True`` asks
    for the former, and raises :class:`~pipeline.errors.ConfigError` after one batch, naming the
    detectors that need a second pass; ``stream=False`` asks for the latter. The number of classes
    must be known for it, from ``classes`` or the logits. The memory of the model is not planned.

    ``memory`` is what each worker may hold, ``device_memory`` what it may hold on its GPU with
    ``cluster="cuda"``, or with workers elsewhere that have GPUs.

    What a stored split was fitted on before is not read again: partials are kept in ``cache``.
    ``pin`` is an earlier fit of the same store whose first passes are kept as they were, so that
    appended blocks do not make later passes read everything again.

    Raises :class:`~pipeline.errors.BudgetError` before reading if a worker could not hold the
    projected memory, :class:`~pipeline.errors.DataError` for data that cannot be fitted on.
    """
    skips = skips_of(nonfinite)
    chosen = detectors_by_id(detectors)
    trace = Trace()
    given = Given(data, val, head, classes)
    call = Call(model, device, stream, cluster, workers, memory, device_memory, cache)
    with fit_at_work(chosen, given, call) as (prepared, place):
        pinned = pinned_to(pin.turns, cache, store_of(prepared)) if pin else None
        outcomes = run_jobs(
            prepared, place.execute, skip_nonfinite=skips, trace=trace, pin=pinned, room=place.room
        )
    return members_of(chosen, prepared, outcomes, trace)


def score(
    fitted: Mapping[str, FittedDetector],
    data: Any,
    *,
    per_image: bool = False,
    nonfinite: str = "raise",
    cluster: str = "auto",
    workers: int | None = None,
    memory: str | int = "auto",
    device_memory: str | int = "auto",
    cache: str | Path | None = None,
    model: Any = None,
    device: Any = None,
    stream: bool | None = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the scores of every fitted detector by id, all from one pass over ``data``.

    float64 (n,), or maps (n, t) of token detectors, NaN for masked tokens; ``per_image`` makes one
    score of each, as the detector's ``image`` says. Higher means more out-of-distribution. A row
    that is not finite in what a detector reads is an error; with ``nonfinite="skip"`` its score is
    NaN: thresholds and metrics leave it out, ``predict`` gives -1. With ``model``, ``data`` is a
    loader of inputs, as in :func:`fit`; with ``stream=False`` it goes through temporary files.
    ``device`` and ``device_memory`` are those of :func:`fit`.
    """
    return scores_of(
        fitted,
        data,
        per_image=per_image,
        nonfinite=nonfinite,
        cluster=cluster,
        workers=workers,
        memory=memory,
        device_memory=device_memory,
        cache=cache,
        model=model,
        device=device,
        stream=stream,
    )


def evaluate(
    fitted: Fitted,
    id_test: Any,
    *,
    near: Mapping[str, Any] | Sequence[Split] = (),
    far: Mapping[str, Any] | Sequence[Split] = (),
    csid: Mapping[str, Any] | Sequence[Split] = (),
    baselines: Sequence[str] = (),
    nonfinite: str = "raise",
    cluster: str = "auto",
    workers: int | None = None,
    memory: str | int = "auto",
    device_memory: str | int = "auto",
    cache: str | Path | None = None,
) -> Evaluation:
    """Return AUROC, AUPR and FPR95 of every fitted detector against every OOD set, exactly.

    ``near``, ``far`` and ``csid`` map names to data, or list splits. ``baselines`` names stored
    arrays () that are taken for scores as they are. All sets are read once.
    """
    skips = skips_of(nonfinite)
    _check_baselines(baselines)
    groups = {"near": near, "far": far, "csid": csid}
    classes = classes_of(fitted)
    ood = {group: ood_splits(group, given, classes) for group, given in groups.items()}
    sets = Sets(
        as_split(id_test, name="id/test", classes=classes),
        {group: splits for group, splits in ood.items() if splits},
    )
    prepared = evaluation_jobs(fitted, sets, baselines)
    with workplace(
        prepared, cluster, workers, memory, cache, device_memory=device_memory, stage="score"
    ) as place:
        outcomes = run_jobs(
            prepared, place.execute, stage="score", skip_nonfinite=skips, room=place.room
        )
    return evaluation_of(fitted, sets, baselines, outcomes)


def _check_baselines(given: Any) -> None:
    if not isinstance(given, (list, tuple)) or not all(map(is_text, given)):
        raise ConfigError(
            f"baselines: {given!r}; expected a list of names of stored arrays, such as ['plain']"
        )


def evaluation_jobs(fitted: Fitted, sets: Sets, baselines: Sequence[str]) -> dict[str, Job]:
    """Return the jobs of an evaluation; raises where a split does not suit a detector."""
    views = _score_views(fitted, baselines)
    for split in sets.all:
        for member in fitted.values():
            member.accept(split)
        for name in baselines:
            split.schema.spec(name)
    return evaluation.jobs(views, sets, fitted.logits, tables=True)


def _score_views(fitted: Fitted, baselines: Sequence[str]) -> dict[str, View]:
    if taken := sorted(set(baselines) & set(fitted)):
        raise ConfigError(
            f"baselines: {', '.join(taken)} names a fitted detector as well; fit it under another "
            "id, as in {'mine': 'msp'}, or store the baseline under another name"
        )
    views: dict[str, View] = {name: Scored(member.scorer) for name, member in fitted.items()}
    return views | {name: Stored(name) for name in baselines}


def evaluation_of(
    fitted: Fitted, sets: Sets, baselines: Sequence[str], outcomes: Mapping[str, Any]
) -> Evaluation:
    """Return the evaluation from the outcomes of its jobs."""
    return evaluation.collect(outcomes, _score_views(fitted, baselines), sets, baselines)
