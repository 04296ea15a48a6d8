"""One entry of ``detectors``: a name, or a mapping of the name, an id and the options."""

from __future__ import annotations

from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails

from pipeline import detectors, sweeps
from pipeline.config.problems import detail, did_you_mean, no_number, refusal, words
from pipeline.config.sections import truth
from pipeline.content import hints
from pipeline.errors import ConfigError, FeatfoldError, UnknownNameError
from pipeline.procedure import Detector

HEAD = "head"
CHOICES = ("preset", "fit_split")
"""Options of every detector."""


class DetectorConfig(BaseModel):
    """A detector by name, its options, and the id that names its row in tables."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    id: str
    """Empty for a sweep that was given none."""
    options: dict[str, Any]
    members: dict[str, Any] = Field(exclude=True)
    """The detector by its id, or, where options are lists, every detector of the sweep.

    Their heads, where they have one, are still to be given by the job.
    """

    @property
    def sweep(self) -> str:
        """The name of the sweep that it is; empty for a single detector."""
        (made, *_) = self.members.values()
        return made.sweep if isinstance(made, detectors.Chosen) else ""

    @property
    def fit_split(self) -> str:
        """The split that it is fitted on; empty for that of the job."""
        (made, *_) = self.members.values()
        return str(made.fit_split) if isinstance(made, detectors.Chosen) else ""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        entry = {"name": given} if isinstance(given, str) else given
        if not isinstance(entry, dict):
            raise ConfigError(f"expected a name or a mapping with a name, got {given!r}")
        if not isinstance(entry.get("name"), str):
            known = ", ".join(detectors.names())
            raise refusal(detail(("name",), f"a detector needs its name, one of {known}", given))
        try:
            made = detectors.load(entry["name"])
        except UnknownNameError as error:
            raise refusal(detail(("name",), str(error), given)) from None
        options = {key: option for key, option in entry.items() if key not in sweeps.OWN}
        name = entry.get("id")
        if "id" in entry and (not isinstance(name, str) or not name.strip()):
            raise refusal(detail(("id",), f"expected text, got {name!r}", given))
        if name == HEAD:
            text = f"{HEAD!r} cannot name a detector: the head of the job is called so"
            raise refusal(detail(("id",), text, given))
        members = _members(made, entry["name"], name, options)
        own = name or ("" if sweeps.swept(made, options) else next(iter(members)))
        return {"name": entry["name"], "id": own, "options": options, "members": members}

    @model_serializer
    def _plain(self) -> dict[str, Any]:
        return {"name": self.name, **({"id": self.id} if self.id else {}), **self.options}


def _members(cls: type[Any], name: str, given: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return the detectors of an entry by id, or raise one refusal of what is wrong with it."""
    try:
        several = list(sweeps.combinations(cls, options))
        return sweeps.identified(given, [(_make(cls, name, each), own) for each, own in several])
    except ValidationError:
        raise
    except ConfigError as error:
        key, _, rest = str(error).partition(": ")
        where = (key,) if key in options else ()
        raise refusal(detail(where, rest if where else str(error), options)) from None


def _make(cls: type[Any], name: str, options: dict[str, Any]) -> Detector:
    """Return the detector, or raise one refusal of all options that it does not take."""
    fields = hints(cls) | dict.fromkeys(CHOICES, str)
    taken: dict[str, Any] = {}
    wrong: list[InitErrorDetails] = []
    for key, given in options.items():
        if key not in fields or key == HEAD:
            wrong.append(detail((key,), _unknown(key, name, list(fields)), given, of_key=True))
            continue
        try:
            taken[key] = _typed(fields[key], given)
        except (ValidationError, ConfigError) as error:
            wrong.append(detail((key,), _mistyped(error), given))
    preset = detectors.presets_of(cls).get(str(options.get("preset")), {})
    needed = [key for key in detectors.required(cls) if key not in {*options, *preset}]
    wrong += [detail((key,), f"{name} needs the option {key}") for key in needed]
    if wrong:
        raise refusal(*wrong)
    try:
        return detectors.make(name, **taken)  # type: ignore[no-any-return]
    except FeatfoldError as error:
        key, _, rest = str(error).partition(": ")
        if key in options:
            raise refusal(detail((key,), rest, options[key])) from None
        raise refusal(detail((), str(error), options)) from None


def _unknown(key: str, name: str, fields: list[str]) -> str:
    if key == HEAD and HEAD in fields:
        return "the head is chosen once for the job, by the key head at top level"
    known = [field for field in fields if field != HEAD]
    listed = ", ".join(known) or "none"
    return f"{name} has no such option: {did_you_mean(key, known)}known: {listed}"


def _typed(hint: Any, given: Any) -> Any:
    adapter: TypeAdapter[Any] = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
    taken = adapter.validate_python(given)
    _refuse_guesses(given, taken)
    return taken


def _refuse_guesses(given: Any, taken: Any) -> None:
    """Raise :class:`ConfigError` where a number or a truth value was made of something else."""
    if isinstance(taken, (list, tuple)) and isinstance(given, (list, tuple)):
        for pair in zip(given, taken, strict=True):
            _refuse_guesses(*pair)
    elif isinstance(taken, bool):
        truth(given)
    elif isinstance(taken, (int, float)):
        if isinstance(given, bool):
            raise ConfigError(f"expected a number, got {str(given).lower()}")
        if isinstance(given, str):
            raise ConfigError(no_number("a number", given))


def _mistyped(error: ValidationError | ConfigError) -> str:
    return words(dict(error.errors()[0]), ()) if isinstance(error, ValidationError) else str(error)
