"""The sections of a job: one model each, every unknown key refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails

from pipeline.chunk import ArraySpec
from pipeline.cluster import check_kind, parse_nbytes
from pipeline.config.factories import DataFactory, ModelFactory
from pipeline.config.problems import detail, did_you_mean, no_number, refusal
from pipeline.detectors import fit_split_name
from pipeline.errors import ConfigError, FeatfoldError
from pipeline.heads import LDAHead
from pipeline.store import declaration, layout

HEADS = ("auto", "lda", "stored", "model")
TRUTHS = ("true", "false", "yes", "no", "on", "off")
"""Words for truth values, as people write them; YAML takes most of them for text."""


class Section(BaseModel):
    """A mapping whose keys are all known."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def integer(given: Any) -> Any:
    """Return what is no truth value and no text, or raise."""
    return _no_guess(given, "an integer")


def _no_guess(given: Any, expected: str) -> Any:
    if isinstance(given, bool):
        raise ConfigError(f"expected {expected}, got {str(given).lower()}")
    if isinstance(given, str):
        raise ConfigError(no_number(expected, given))
    return given


def truth(given: Any) -> Any:
    """Return a truth value, or the word for one, or raise."""
    if not isinstance(given, bool) and str(given).lower() not in TRUTHS:
        raise ConfigError(f"expected true or false, got {given!r}")
    return given


def _text(given: str) -> str:
    if not given.strip():
        raise ConfigError(f"expected some text, got {given!r}")
    return given


def _auto_or_integer(given: Any) -> Any:
    if given is None or given == "auto":
        return None
    if isinstance(given, bool) or not isinstance(given, int):
        raise ConfigError(f"expected a number of workers, or auto, got {given!r}")
    return given


def _auto_or_rows(given: Any) -> Any:
    if given == "auto":
        return None
    if isinstance(given, bool) or not isinstance(given, int):
        raise ConfigError(f"expected a number of rows, or auto, got {given!r}")
    return given


def _split_name(name: str) -> str:
    try:
        layout.check_split_name(name)
    except ConfigError as error:
        raise ConfigError(f"{did_you_mean(name, layout.KINDS)}{error}") from None
    return name


def _fit_split(name: str) -> str:
    return fit_split_name(name, "split")


def _cluster(kind: str) -> str:
    check_kind(kind)
    return kind


def size_of(given: Any, alternative: str = "") -> Any:
    """Return a size in bytes as a job may write it, or raise."""
    try:
        if isinstance(given, bool) or parse_nbytes(given) < 1:
            raise ConfigError
    except (ConfigError, TypeError, AttributeError):
        expected = f"a size such as 512MiB or 8GB{alternative}"
        raise ConfigError(f"expected {expected}, got {given!r}") from None
    return given


def _auto_or_size(given: Any) -> Any:
    return given if given == "auto" else size_of(given, ", or auto")


def _none_or_size(given: Any) -> Any:
    return None if given is None else size_of(given, ", or leave it out")


def head_of(given: Any) -> Any:
    """Return the head that a job may name, or raise."""
    if given in HEADS:
        return given
    if isinstance(given, dict) and set(given) == {"lda"}:
        return {"lda": _lda_options(given["lda"])}
    if isinstance(given, dict) and set(given) == {"weights"}:
        path = given["weights"]
        if isinstance(path, str) and path.strip():
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
        _no_guess(ridge, "a number")
    except ConfigError as error:
        raise refusal(detail(("lda", "ridge"), str(error))) from None
    try:
        return {"ridge": LDAHead(ridge=float(ridge)).ridge}
    except (TypeError, ValueError):
        text = f"expected a finite number above 0, got {ridge!r}"
        raise refusal(detail(("lda", "ridge"), text)) from None


Count = Annotated[int, BeforeValidator(integer), Field(ge=1)]
Text = Annotated[str, AfterValidator(_text)]
SplitName = Annotated[str, AfterValidator(_split_name)]
Workers = Annotated[
    Annotated[int, Field(ge=1)] | None,
    BeforeValidator(_auto_or_integer),
    PlainSerializer(lambda count: "auto" if count is None else count),
]


BatchRows = Annotated[
    Annotated[int, Field(ge=1)] | None,
    BeforeValidator(_auto_or_rows),
    PlainSerializer(lambda rows: "auto" if rows is None else rows),
]


def _texts(given: Any) -> Any:
    return (given,) if isinstance(given, str) else given


class Source(Section):
    """A split that is extracted from data by a model, or imported from files, unless it exists."""

    split: SplitName
    data: DataFactory = None  # type: ignore[assignment]  # files take its place
    model: ModelFactory = None  # type: ignore[assignment]  # the job's own model takes its place
    batch: BatchRows = 32
    """Rows that the model is given at once; None stands for ``auto``: what its device can hold."""
    autocast: Literal["none", "bfloat16", "float16"] = "none"
    """Precision of the products within the model."""
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """What floating outputs are stored as; ``auto``: as the model gives them."""
    nonfinite: Literal["raise", "keep"] = "raise"
    workers: Count = 1
    """Processes that each take whole blocks."""
    files: Annotated[tuple[Text, ...], BeforeValidator(_texts)] = ()
    """Files, folders and globs of features that are there already: see ``ff.import_split``."""
    map: dict[Text, Text] = {}
    """Names in the store by those in the files."""
    labels: Text | Literal[False] | None = None
    """An array of the files, or another file; false for none."""
    layouts: dict[Text, Text] = {}
    scores: dict[Text, Literal["higher-is-ood", "higher-is-id", "not-scores"]] = {}
    """What high numbers of imported scores mean."""

    @model_validator(mode="after")
    def _data_or_files(self) -> Source:
        if not self.files and self.data is None:
            raise refusal(InitErrorDetails(type="missing", loc=("data",), input=None))
        if self.files and self.data is not None:
            raise refusal(detail(("files",), "data are given as well: expected one", of_key=True))
        if wrong := sorted(self.model_fields_set & self._not_asked()):
            text = (
                "does not go with files, which no model is run for" if self.files
                else "goes with files that are imported, not with data"
            )  # fmt: skip
            raise refusal(*(detail((key,), text, of_key=True) for key in wrong))
        return self

    @model_serializer(mode="wrap")
    def _asked(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: x for key, x in dump(self).items() if key not in self._not_asked()}

    def _not_asked(self) -> set[str]:
        """Return the keys that do not belong to what the rows come from."""
        if self.files:
            return {"data", "model", "batch", "autocast", "nonfinite", "workers"}
        return {"files", "map", "labels", "layouts", "scores"}


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
    baselines: tuple[Text, ...] = ()
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
    device_memory: Annotated[Any, BeforeValidator(_auto_or_size)] = "auto"
    """Per worker, on its GPU."""
    cache: Text | None = None
    cache_limit: Annotated[Any, BeforeValidator(_none_or_size)] = None
    """Bytes that partials may take; None: all are kept."""
    dashboard: Annotated[bool, BeforeValidator(truth)] = False


class Report(Section):
    """Where runs leave their results."""

    directory: Text = "runs"
