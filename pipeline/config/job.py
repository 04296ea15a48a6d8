"""What a job may say as a whole: its sections, and what must agree between them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from pipeline.cluster import parse_nbytes
from pipeline.config import document
from pipeline.config.detector import DetectorConfig
from pipeline.config.factories import ModelFactory
from pipeline.config.problems import detail, refusal
from pipeline.config.sections import (
    Count,
    Declared,
    Evaluate,
    Fit,
    Report,
    Resources,
    Section,
    Select,
    Source,
    SplitName,
    Text,
    head_of,
    integer,
    size_of,
)
from pipeline.errors import ConfigError
from pipeline.inputs import VAL_SPLIT, scales_of
from pipeline.procedure import VAL, Detector
from pipeline.store import layout
from pipeline.store.place import check_url, is_url

STORED = "stored"
"""What a job is read for: whether it will keep its features in a store."""


class JobConfig(Section):
    """A job: a store, what fills it, the detectors to fit and the splits to evaluate on."""

    version: Annotated[Literal[1], BeforeValidator(integer)] = 1
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")]
    store: str = ""
    seeds: tuple[Text, ...] = ()
    """Stores of one checkpoint each, instead of one store: numbers become their mean and spread."""
    classes: Count | None = None
    """Number of classes k of the splits that sources fill."""
    model: ModelFactory | None = None
    """Model of the sources that name none."""
    sources: tuple[Source, ...] = ()
    block: Annotated[Any, BeforeValidator(size_of)] = f"{layout.BLOCK_NBYTES // 2**20}MiB"
    """Logical bytes of a block of the splits that sources fill: the unit of work and of resume."""
    declare: dict[SplitName, Declared] = Field(default_factory=dict)
    head: Annotated[Any, BeforeValidator(head_of)] = "auto"
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
            needs_model = source.model is None and not source.files
            if needs_model and usual is None and "model" in info.data:
                text = "no model: give one here, or one for all sources at top level"
                wrong.append(detail((n,), text))
        if wrong:
            raise refusal(*wrong)
        return tuple(
            s if s.model or s.files else s.model_copy(update={"model": usual}) for s in sources
        )

    @field_validator("entries", mode="after")
    @classmethod
    def _distinct(cls, entries: tuple[DetectorConfig, ...]) -> tuple[DetectorConfig, ...]:
        if not entries:
            raise ConfigError("expected at least one")
        members = [(n, name) for n, entry in enumerate(entries) for name in entry.members]
        swept = [(n, entry.sweep) for n, entry in enumerate(entries) if entry.sweep]
        wrong = [
            detail(
                (n, "id"), f"two {what} are called {name!r}, give one another id",
                other=("detectors", first[name]),
            )
            for what, ids in (("detectors", members), ("sweeps", swept))
            for first in [{name: n for n, name in reversed(ids)}]
            for n, name in ids if first[name] != n
        ]  # fmt: skip
        if wrong:
            raise refusal(*wrong)
        return entries

    @model_validator(mode="after")
    def _one_store_or_several(self, info: ValidationInfo) -> JobConfig:
        if self.store and not self.store.strip():
            raise refusal(detail(("store",), f"expected some text, got {self.store!r}"))
        for key, name in [("store", self.store), *(("seeds", name) for name in self.seeds)]:
            try:
                check_url(name)
            except ConfigError as error:  # before a run keeps the text of the job
                raise refusal(detail((key,), str(error))) from None
        if is_url(self.report.directory):
            text = "reports are written to a folder of this machine, not to a URL"
            raise refusal(detail(("report", "directory"), text))
        unstored = info.context is not None and not info.context[STORED]
        if bool(self.store) == bool(self.seeds) and (self.store or not unstored):
            both = "both are given" if self.store else "neither is given"
            text = f"{both}: a job has a store, or seeds, one store for each checkpoint"
            text += "" if self.store else "; run --no-store alone needs none"
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
        if self.select is not None and not any(entry.sweep for entry in self.entries):
            text = "no option of a detector is a list: there is nothing to choose from"
            raise refusal(detail(("select",), text))
        taken = {*self.detectors, *(self.evaluate.baselines if self.evaluate else ())}
        wrong = [
            detail(
                ("detectors", n, "id"),
                f"{entry.sweep!r} will be what select keeps of this sweep, and names another "
                "detector; give one another id",
            )
            for n, entry in enumerate(self.entries)
            if self.select and entry.sweep in taken
        ]  # fmt: skip
        if wrong:
            raise refusal(*wrong)
        return self

    @model_validator(mode="after")
    def _chosen_on_other_rows(self) -> JobConfig:
        if self.select is None or self.evaluate is None:
            return self
        tested = self.evaluate
        places = {("id",): tested.id} | {
            (group, n): name
            for group, names in {
                "near": tested.near,
                "far": tested.far,
                "csid": tested.csid,
            }.items()
            for n, name in enumerate(names)
        }
        wrong = [
            detail(
                ("evaluate", *place), f"{name} is what select chooses on; evaluate on other rows"
            )
            for place, name in places.items()
            if name in (self.select.id, self.select.ood)
        ]
        if wrong:
            raise refusal(*wrong)
        return self

    @model_validator(mode="after")
    def _tested_on_other_rows(self) -> JobConfig:
        tested = self.evaluate.id if self.evaluate else ""
        seen = {self.fit.split: ["the job"], **self.further_splits}.get(tested)
        if seen:
            text = f"{tested} is what {', '.join(seen)} is fitted on; evaluate on other rows"
            raise refusal(detail(("evaluate", "id"), text))
        scaled = [name for name, made in self.detectors.items() if VAL in scales_of(made)]
        if scaled and tested == VAL_SPLIT:
            text = f"{tested} is what {', '.join(scaled)} is scaled by; evaluate on other rows"
            raise refusal(detail(("evaluate", "id"), text))
        return self
