"""What makes a model or rows: a callable by its path, or one of the kinds that we bring."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from pipeline.config.problems import detail, did_you_mean, refusal
from pipeline.errors import ConfigError

IMPORT = "import"


class Kind(NamedTuple):
    """A key that stands for one of our factories: ``{folder: X}`` calls it with ``path=X``."""

    factory: str
    parameter: str


MODELS = {
    "timm": Kind("pipeline.extract.models.timm:load", "name"),
    "torchvision": Kind("pipeline.extract.models.torchvision:load", "name"),
    "transformers": Kind("pipeline.extract.models.transformers:load", "name"),
}
DATA = {
    "folder": Kind("pipeline.extract.data.folder:folder", "path"),
    "huggingface": Kind("pipeline.extract.data.huggingface:huggingface", "path"),
    "webdataset": Kind("pipeline.extract.data.webdataset:webdataset", "urls"),
}
KINDS = MODELS | DATA
PROBES = {
    "adascale": "pipeline.extract.probes.activation_shift:adascale",
    "checkpoints": "pipeline.extract.probes.members:checkpoints",
    "dropout": "pipeline.extract.probes.dropping:dropout",
    "mahalanobis": "pipeline.extract.probes.gaussian:mahalanobis",
    "odin": "pipeline.extract.probes.perturbation:odin",
}
"""What adds arrays to a model, by the name that a job calls it."""
ADDED = "probes"


def _factory(path: str) -> str:
    module, _, name = path.partition(":")
    if not (name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ConfigError(f"expected the form package.module:factory, got {path!r}")
    return path


class Factory(BaseModel):
    """A callable that makes a model or a source, and the arguments it is called with.

    ``{import: "package.module:factory", ...}``, or, in its place, the key of one of :data:`KINDS`.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    kinds: ClassVar[dict[str, Kind]] = KINDS
    own: ClassVar[tuple[str, ...]] = ()
    """Keys that are no arguments of the factory."""

    factory: Annotated[str, AfterValidator(_factory)] = Field(alias="import")

    @property
    def arguments(self) -> dict[str, Any]:
        """Every key but ``import``, and those of our own."""
        return {k: given for k, given in (self.model_extra or {}).items() if k not in self.own}

    @model_validator(mode="before")
    @classmethod
    def _of_a_kind(cls, given: Any) -> Any:
        """Write a kind as the import that it stands for."""
        if not isinstance(given, dict) or IMPORT in given or not given:
            return given
        kinds = [key for key in given if key in KINDS]
        if not kinds:
            raise refusal(detail((next(iter(given)),), cls._unknown(given), of_key=True))
        if len(kinds) > 1:
            text = f"{kinds[0]} and {kinds[1]}: expected one of them"
            raise refusal(detail((kinds[1],), text, of_key=True))
        (kind,) = kinds
        if kind not in cls.kinds:
            text = f"{kind} does not belong here: expected one of {cls._expected()}"
            raise refusal(detail((kind,), text, of_key=True))
        factory, parameter = KINDS[kind]
        rest = {key: value for key, value in given.items() if key != kind}
        _check_arguments(kind, given[kind], {k: v for k, v in rest.items() if k not in cls.own})
        return {IMPORT: factory, parameter: given[kind], **rest}

    @classmethod
    def _expected(cls) -> str:
        return ", ".join((IMPORT, *cls.kinds))

    @classmethod
    def _unknown(cls, given: dict[str, Any]) -> str:
        near = next(filter(None, (did_you_mean(key, (IMPORT, *cls.kinds)) for key in given)), "")
        return f"{near}expected one of {cls._expected()} among the keys"


class ModelFactory(Factory):
    """What makes a model, and its ``probes``, which add arrays to what it gives.

    They are no field, so that a job without them says what it always has.
    """

    kinds: ClassVar[dict[str, Kind]] = MODELS
    own: ClassVar[tuple[str, ...]] = (ADDED,)

    @property
    def probes(self) -> tuple[dict[str, Any], ...]:
        """Each probe with its name and options, in the order in which they are added."""
        return tuple((self.model_extra or {}).get(ADDED, ()))

    @model_validator(mode="after")
    def _with_known_probes(self) -> ModelFactory:
        given = (self.model_extra or {}).get(ADDED, ())
        if not isinstance(given, (list, tuple)):
            text = f"expected a list, such as [{{name: odin}}], got {given!r}"
            raise refusal(detail((ADDED,), text))
        if wrong := [one for place, probe in enumerate(given) for one in _faults(place, probe)]:
            raise refusal(*wrong)
        return self


class DataFactory(Factory):
    """What makes the rows of a split."""

    kinds: ClassVar[dict[str, Kind]] = DATA


def _check_arguments(kind: str, given: Any, rest: dict[str, Any]) -> None:
    """Refuse what the factory of a kind does not take; nothing of it is imported."""
    texts = given if isinstance(given, list) and given else [given]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise refusal(detail((kind,), f"expected some text, got {given!r}"))
    factory, parameter = KINDS[kind]
    taken = _parameters(factory)
    wrong = [detail((parameter,), f"{kind} says it already", of_key=True)] * (parameter in rest)
    known = [name for name in taken or () if name != parameter]
    wrong += [
        detail((key,), f"{kind} has no such option: {did_you_mean(key, known)}known: "
               f"{', '.join(known)}", of_key=True)
        for key in rest if taken is not None and key not in taken
    ]  # fmt: skip
    if wrong:
        raise refusal(*wrong)


def _faults(place: int, probe: Any) -> list[Any]:
    """Return what is wrong with the keys of a probe; nothing of it is imported."""
    if not isinstance(probe, dict) or "name" not in probe:
        text = f"expected a mapping with the name of a probe, such as {{name: odin}}, got {probe!r}"
        return [detail((ADDED, place), text)]
    name = probe["name"]
    if name not in PROBES:
        text = f"unknown probe {name!r}: {did_you_mean(name, PROBES)}known: {', '.join(PROBES)}"
        return [detail((ADDED, place, "name"), text)]
    known = [each for each in _parameters(PROBES[name]) or () if each != "model"]
    return [
        detail((ADDED, place, key), f"the probe {name} has no such option: "
               f"{did_you_mean(key, known)}known: {', '.join(known)}", of_key=True)
        for key in probe if key not in ("name", *known)
    ]  # fmt: skip


@lru_cache
def _parameters(factory: str) -> tuple[str, ...] | None:
    """Return the parameters of a factory of ours, as its file has them; None if it takes any."""
    module, _, name = factory.partition(":")
    file = Path(__file__).parents[2].joinpath(*module.split(".")).with_suffix(".py")
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == name and not node.args.kwarg:
            return tuple(one.arg for one in (*node.args.args, *node.args.kwonlyargs))
    return None
