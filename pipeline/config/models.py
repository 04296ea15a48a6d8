"""What a job may say: one model per section of its YAML, every unknown key refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from pipeline.chunk import ArraySpec
from pipeline.cluster import parse_nbytes, settle
from pipeline.config import document
from pipeline.config.detector import DetectorConfig
from pipeline.config.problems import detail, did_you_mean, refusal
from pipeline.detectors import fit_split_name
from pipeline.errors import ConfigError, FeatfoldError
from pipeline.heads import LDAHead
from pipeline.procedure import Detector
from pipeline.store import declaration, layout

HEADS = ("auto", "lda", "stored")


class Section(BaseModel):
    """A mapping whose keys are all known."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _integer(given: Any) -> Any:
    if isinstance(given, bool):
        raise ConfigError(f"expected an integer, got {str(given).lower()}")
    return given


def _auto_or_integer(given: Any) -> Any:
    if given is None or given == "auto":
        return None
    if isinstance(given, bool) or not isinstance(given, int):
        raise ConfigError(f"expected a number of workers, or auto, got {given!r}")
    return given


def _split_name(name: str) -> str:
    try:
        layout.check_split_name(name)
    except ConfigError as error:
        raise ConfigError(f"{did_you_mean(name, layout.KINDS)}{error}") from None
    return name


def _fit_split(name: str) -> str:
    return fit_split_name(name, "split")


def _factory(path: str) -> str:
    module, _, name = path.partition(":")
    if not (name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ConfigError(f"expected the form package.module:factory, got {path!r}")
    return path


def _cluster(kind: str) -> str:
    settle(kind, memory="1GiB")
    return kind


def _size(given: Any, alternative: str = "") -> Any:
    try:
        if isinstance(given, bool) or parse_nbytes(given) < 1:
            raise ConfigError
    except (ConfigError, TypeError, AttributeError):
        expected = f"a size such as 512MiB or 8GB{alternative}"
        raise ConfigError(f"expected {expected}, got {given!r}") from None
    return given


def _auto_or_size(given: Any) -> Any:
    return given if given == "auto" else _size(given, ", or auto")


def _none_or_size(given: Any) -> Any:
    return None if given is None else _size(given, ", or leave it out")


def _head(given: Any) -> Any:
    if given in HEADS:
        return given
    if isinstance(given, dict) and set(given) == {"lda"}:
        return {"lda": _lda_options(given["lda"])}
    if isinstance(given, dict) and set(given) == {"weights"} and isinstance(given["weights"], str):
        return given
    raise ConfigError(
        f"{did_you_mean(given, HEADS)}expected {', '.join(HEADS)}, {{lda: {{ridge: NUMBER}}}} or "
        f"{{weights: FILE.safetensors}}, got {given!r}"
    )


def _lda_options(given: Any) -> dict[str, float]:
    if not isinstance(given, dict) or set(given) != {"ridge"}:
        raise refusal(detail(("lda",), f"expected {{ridge: NUMBER}}, got {given!r}"))
    ridge = given["ridge"]
    try:
        return {"ridge": LDAHead(ridge=float(ridge)).ridge}
    except (TypeError, ValueError):
        text = f"expected a finite number above 0, got {ridge!r}"
        raise refusal(detail(("lda", "ridge"), text)) from None


Count = Annotated[int, BeforeValidator(_integer), Field(ge=1)]
SplitName = Annotated[str, AfterValidator(_split_name)]
Workers = Annotated[
    Annotated[int, Field(ge=1)] | None,
    BeforeValidator(_auto_or_integer),
    PlainSerializer(lambda count: "auto" if count is None else count),
]


class Factory(BaseModel):
    """A callable that makes a model or a source, and the arguments it is called with."""

    model_config = ConfigDict(extra="allow", frozen=True)

    factory: Annotated[str, AfterValidator(_factory)] = Field(alias="import")

    @property
    def arguments(self) -> dict[str, Any]:
        """Every key but ``import``."""
        return dict(self.model_extra or {})


class Source(Section):
    """A split that is extracted from data by a model, unless it exists."""

    split: SplitName
    data: Factory
    model: Factory = None  # type: ignore[assignment]  # the job's own model takes its place


class DeclaredArray(Section):
    """Row shape, dtype and layout of an array that does not exist yet."""

    shape: tuple[Count, ...] = ()
    dtype: str = "float32"
    layout: str = ""


class Declared(Section):
    """A split that does not exist yet, for planning; int64 labels are implied."""

    rows: Count
    classes: Count
    arrays: dict[str, DeclaredArray]

    @field_validator("arrays", mode="before")
    @classmethod
    def _with_labels(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        labels = given.get("labels", {})
        if not isinstance(labels, dict):
            return given
        return {**given, "labels": {"dtype": "int64", **labels}}

    @model_validator(mode="after")
    def _can_be_stored(self) -> Declared:
        specs = {n: ArraySpec(a.shape, a.dtype, a.layout) for n, a in self.arrays.items()}
        try:
            declaration.declare(
                specs,
                classes=self.classes,
                rows=self.rows,
                block_nbytes=layout.BLOCK_NBYTES,
                chunk_nbytes=layout.CHUNK_NBYTES,
                attributes={},
            )
        except FeatfoldError as error:
            name, _, rest = str(error).partition(": ")
            if name in specs:
                raise refusal(detail(("arrays", name), rest)) from None
            raise refusal(detail(("arrays",), str(error))) from None
        return self


class Fit(Section):
    """What detectors are fitted on."""

    split: Annotated[SplitName, AfterValidator(_fit_split)] = "id/train"


class Evaluate(Section):
    """What is scored: one in-distribution split, and out-of-distribution ones by group."""

    id: SplitName = "id/test"
    near: tuple[SplitName, ...] = ()
    far: tuple[SplitName, ...] = ()
    csid: tuple[SplitName, ...] = ()
    baselines: tuple[str, ...] = ()
    """Stored arrays that are taken for scores as they are."""

    @field_validator("id", "near", "far", "csid", mode="after")
    @classmethod
    def _below(cls, given: Any, info: ValidationInfo) -> Any:
        kind = {"id": "id/", "csid": "id/csid/"}.get(str(info.field_name), "ood/")
        names = (given,) if isinstance(given, str) else given
        wrong = [
            detail(() if isinstance(given, str) else (n,), text)
            for n, name in enumerate(names)
            if (text := _misplaced(name, kind, names[:n]))
        ]
        if wrong:
            raise refusal(*wrong)
        return given


def _misplaced(name: str, kind: str, before: tuple[str, ...]) -> str:
    if not name.startswith(kind):
        return f"expected a split whose name begins with {kind}, got {name!r}"
    return f"{name!r} is in this list already" if name in before else ""


class Select(Section):
    """Which member of each sweep is kept: the best on validation rows."""

    id: Annotated[SplitName, AfterValidator(_fit_split)] = "id/val"
    ood: SplitName = "ood/val"
    metric: Literal["auroc", "aupr_in", "aupr_out", "fpr95"] = "auroc"

    @field_validator("ood", mode="after")
    @classmethod
    def _kept_for_that(cls, given: str) -> str:
        if given != "ood/val" and not given.startswith("ood/val/"):
            raise ConfigError(
                f"{given!r} may be tested on; expected ood/val, out-of-distribution rows that are "
                "kept for choosing"
            )
        return given


class Resources(Section):
    """Where the job runs, and what it may use."""

    cluster: Annotated[str, AfterValidator(_cluster)] = "auto"
    workers: Workers = None
    """None stands for ``auto``: one per core."""
    memory: Annotated[Any, BeforeValidator(_auto_or_size)] = "auto"
    """Per worker."""
    cache: str | None = None
    cache_limit: Annotated[Any, BeforeValidator(_none_or_size)] = None
    """Bytes that partials may take; None: all are kept."""
    dashboard: bool = False


class Report(Section):
    """Where runs leave their results."""

    directory: str = "runs"


class JobConfig(Section):
    """A job: a store, what fills it, the detectors to fit and the splits to evaluate on."""

    version: Literal[1] = 1
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")]
    store: str = ""
    seeds: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Stores of one checkpoint each, instead of one store: numbers become their mean and spread."""
    classes: Count | None = None
    """Number of classes k of the splits that sources fill."""
    model: Factory | None = None
    """Model of the sources that name none."""
    sources: tuple[Source, ...] = ()
    block: Annotated[Any, BeforeValidator(_size)] = f"{layout.BLOCK_NBYTES // 2**20}MiB"
    """Logical bytes of a block of the splits that sources fill: the unit of work and of resume."""
    declare: dict[SplitName, Declared] = Field(default_factory=dict)
    head: Annotated[Any, BeforeValidator(_head)] = "auto"
    entries: tuple[DetectorConfig, ...] = Field(alias="detectors")
    fit: Fit = Fit()
    nonfinite: Literal["raise", "skip"] = "raise"
    select: Select | None = None
    evaluate: Evaluate | None = None
    resources: Resources = Resources()
    report: Report = Report()

    _text: str = PrivateAttr(default="")

    @property
    def text(self) -> str:
        """The YAML that the job was read from."""
        return self._text

    def each(self) -> tuple[JobConfig, ...]:
        """Return one job for each seed, or the job itself."""
        return tuple(
            self.model_copy(
                update={"store": store, "seeds": (), "name": f"{self.name}-seed-{place}"}
            )
            for place, store in enumerate(self.seeds, 1)
        ) or (self,)

    @property
    def detectors(self) -> dict[str, Detector]:
        """The detectors by id; the head of those that have one is still to be given."""
        return {name: made for entry in self.entries for name, made in entry.members.items()}

    @property
    def further_splits(self) -> dict[str, list[str]]:
        """Splits that detectors are fitted on instead of that of the job, with their ids."""
        found: dict[str, list[str]] = {}
        for entry in self.entries:
            if entry.fit_split not in ("", self.fit.split):
                found.setdefault(entry.fit_split, []).extend(entry.members)
        return found

    @property
    def block_nbytes(self) -> int:
        """Bytes of a block."""
        return parse_nbytes(self.block)

    def resolved(self) -> str:
        """Return YAML with every default written out, which loads to the same job."""
        return document.dump(self.model_dump(mode="json", by_alias=True))

    @field_validator("sources", mode="after")
    @classmethod
    def _complete(cls, sources: tuple[Source, ...], info: ValidationInfo) -> tuple[Source, ...]:
        if sources and info.data.get("classes", 0) is None:
            raise ConfigError("classes is missing at top level: how many classes do labels have?")
        names = [source.split for source in sources]
        usual = info.data.get("model")
        wrong = []
        for n, (source, name) in enumerate(zip(sources, names, strict=True)):
            if name in names[:n]:
                first = ("sources", names.index(name), "split")
                wrong.append(detail((n, "split"), f"{name} has a source", other=first))
            if source.model is None and usual is None and "model" in info.data:
                text = "no model: give one here, or one for all sources at top level"
                wrong.append(detail((n,), text))
        if wrong:
            raise refusal(*wrong)
        return tuple(s if s.model else s.model_copy(update={"model": usual}) for s in sources)

    @field_validator("entries", mode="after")
    @classmethod
    def _distinct(cls, entries: tuple[DetectorConfig, ...]) -> tuple[DetectorConfig, ...]:
        if not entries:
            raise ConfigError("expected at least one")
        ids = [(n, name) for n, entry in enumerate(entries) for name in entry.members]
        first = {name: n for n, name in reversed(ids)}
        wrong = [
            detail(
                (n, "id"), f"two detectors are called {name!r}, give one another id",
                other=("detectors", first[name]),
            )
            for n, name in ids if first[name] != n
        ]  # fmt: skip
        if wrong:
            raise refusal(*wrong)
        return entries

    @model_validator(mode="after")
    def _one_store_or_several(self) -> JobConfig:
        if bool(self.store) == bool(self.seeds):
            both = "both are given" if self.store else "neither is given"
            text = f"{both}: a job has a store, or seeds, one store for each checkpoint"
            raise refusal(detail(("store",), text))
        if self.seeds and self.sources:
            text = "the stores of seeds must be there: extract each by a job of its own"
            raise refusal(detail(("sources",), text))
        twice = [name for name in self.seeds if self.seeds.count(name) > 1]
        if twice:
            raise refusal(detail(("seeds",), f"{twice[0]} is in this list twice"))
        return self

    @model_validator(mode="after")
    def _something_to_select(self) -> JobConfig:
        swept = any(len(entry.members) > 1 for entry in self.entries)
        if self.select is not None and not swept:
            text = "no option of a detector is a list: there is nothing to choose from"
            raise refusal(detail(("select",), text))
        return self

    @model_validator(mode="after")
    def _tested_on_other_rows(self) -> JobConfig:
        tested = self.evaluate.id if self.evaluate else ""
        seen = {self.fit.split: ["the job"], **self.further_splits}.get(tested)
        if seen:
            text = f"{tested} is what {', '.join(seen)} is fitted on; evaluate on other rows"
            raise refusal(detail(("evaluate", "id"), text))
        return self
