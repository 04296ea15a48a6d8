"""The shape of ``results.json``, which every table, figure and page derives from.

Keys beyond the declared ones pass untouched, which lets a later version add to the file without a
new schema number.
"""

from typing import Any, NotRequired, TypedDict

SCHEMA = 1


class Value(TypedDict):
    """One number with its bounds; ``value`` is null where undefined, and ``reason`` says why.

    A mean over ``seeds`` has the number of each beside it.
    """

    value: float | None
    lower: NotRequired[float | None]
    upper: NotRequired[float | None]
    exact: NotRequired[bool]
    reason: NotRequired[str]
    seeds: NotRequired[list[float]]


class Verdict(TypedDict):
    """How the run ended."""

    status: str
    seconds: float
    bytes_read: int
    passes: int


class ArrayFacts(TypedDict):
    """Row shape and dtype of one stored array."""

    shape: list[int]
    dtype: str


class SplitFacts(TypedDict):
    """One split the run read; ``role`` is id_train, id_val, ood_val, id_test, near, far or csid."""

    split: str
    role: str
    rows: int
    void: int
    nbytes: int
    arrays: dict[str, ArrayFacts]
    class_counts: list[int] | None


class DetectorFacts(TypedDict):
    """One detector; ``baseline`` marks a trivial score that the others must beat.

    ``options`` differ from the defaults, ``overrides`` from those of the ``preset`` as well.
    """

    id: str
    name: str
    options: dict[str, Any]
    preset: NotRequired[str]
    overrides: NotRequired[dict[str, Any]]
    fit_split: NotRequired[str]
    passes: int
    needs: list[str]
    state_nbytes: int
    notes: list[str]
    baseline: bool


class Score(TypedDict):
    """One detector on one out-of-distribution set."""

    detector: str
    ood: str
    group: str
    n_id: int
    n_ood: int
    metrics: dict[str, Value]


class Histogram(TypedDict):
    """Scores of one detector over shared bins: b + 1 edges, b counts for each split.

    ``scale`` is log or linear. ``beyond`` has the rows of each split below the first and above
    the last edge, which the end bins count too.
    """

    detector: str
    edges: list[float | None]
    counts: dict[str, list[int]]
    scale: NotRequired[str]
    beyond: NotRequired[dict[str, list[int]]]


class Curve(TypedDict):
    """ROC curve of one detector on one out-of-distribution set (OOD is positive)."""

    detector: str
    ood: str
    fpr: list[float]
    tpr: list[float]


class Against(TypedDict):
    """One detector minus the best: standard error, two-sided p, and whether they are tied."""

    detector: str
    difference: float | None
    error: float | None
    p: float | None
    tied: bool


class Comparison(TypedDict):
    """Who is best on a set, or on the mean over the sets of a group, and who is not worse."""

    over: str
    group: str
    sets: list[str]
    metric: str
    method: str
    best: str
    others: list[Against]


class Agreement(TypedDict):
    """Spearman's rank correlation between detectors over all rows; null where undefined."""

    detectors: list[str]
    rows: int
    spearman: list[list[float | None]]


PerClass = TypedDict(
    "PerClass",
    {
        "class": int,
        "support": int,
        "precision": float | None,
        "recall": float | None,
        "f1": float | None,
        "iou": float | None,
        "dice": float | None,
    },
)


class Classification(TypedDict):
    """In-distribution classification; ``confusion`` has true classes as rows."""

    split: str
    rows: int
    overall: dict[str, Value]
    per_class: list[PerClass]
    confusion: list[list[int]]
    logits: str


class StatisticFacts(TypedDict):
    """One statistic of a pass and the procedures that asked for it."""

    name: str
    asked_by: list[str]
    state_nbytes: int


class PassFacts(TypedDict):
    """One pass over the data."""

    name: str
    blocks: int
    nbytes: int
    seconds: float
    fields: list[str]
    statistics: list[StatisticFacts]


class MemoryPart(TypedDict):
    """One term of the projection."""

    name: str
    nbytes: int


class Memory(TypedDict):
    """Memory per worker: what the plan projected, what was allowed, what was measured."""

    cluster: str
    workers: int
    reserved_nbytes: int
    projected_nbytes: int
    allowed_nbytes: int | None
    measured_nbytes: int | None
    parts: list[MemoryPart]


class Provenance(TypedDict):
    """What is needed to run it again."""

    featfold: str
    python: str
    platform: str
    versions: dict[str, str]
    config: str
    command: str
    store: str
    checksums: dict[str, str]


class Results(TypedDict):
    """The whole of ``results.json``."""

    schema: int
    name: str
    run: str
    created: str
    verdict: Verdict
    data: list[SplitFacts]
    detectors: list[DetectorFacts]
    scores: list[Score]
    histograms: list[Histogram]
    curves: list[Curve]
    comparisons: NotRequired[list[Comparison]]
    agreement: NotRequired[Agreement | None]
    classification: Classification | None
    passes: list[PassFacts]
    memory: Memory
    conventions: list[str]
    provenance: Provenance
    seeds: NotRequired[list[str]]
