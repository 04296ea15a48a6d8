"""The JSON Schema of a job, for editors and for checks without featfold.

It says what a job may look like; what must agree between its keys is found by ``featfold plan``.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

from pipeline import detectors, sweeps
from pipeline.config.detector import CHOICES, HEAD
from pipeline.config.factories import ADDED, DATA, IMPORT, MODELS, PROBES
from pipeline.config.job import JobConfig
from pipeline.config.sections import HEADS, TRUTHS
from pipeline.content import hints

DIALECT = "https://json-schema.org/draft/2020-12/schema"
AUTO: dict[str, Any] = {"const": "auto"}
SIZE: dict[str, Any] = {
    "type": ["string", "integer"], "description": "Bytes: 512MiB, 8GB or a number; or auto."
}  # fmt: skip
COUNT: dict[str, Any] = {"type": "integer", "minimum": 1}


def job_schema() -> dict[str, Any]:
    """Return the schema of a job as it is written, with the detectors that are installed here."""
    schema = JobConfig.model_json_schema(by_alias=True)
    parts = schema["$defs"]
    parts["DetectorConfig"] = _detector()
    parts["ModelFactory"] |= _factory(list(MODELS))
    parts["ModelFactory"]["properties"][ADDED] = {
        "type": "array",
        "items": {"required": ["name"], "properties": {"name": {"enum": list(PROBES)}}},
    }
    parts["DataFactory"] |= _factory(list(DATA))
    parts["Source"]["properties"]["batch"] = {"anyOf": [COUNT, AUTO], "default": 32}
    files = parts["Source"]["properties"]["files"]
    files["anyOf"] = [{"type": "string"}, {"type": files.pop("type"), "items": files.pop("items")}]
    resources = parts["Resources"]["properties"]
    resources["workers"] = {"anyOf": [COUNT, AUTO], "default": "auto"}
    resources["dashboard"] = {"enum": [True, False, *TRUTHS], "default": False}
    for key in [key for key in resources if "memory" in key]:
        resources[key] |= SIZE
    resources["cache_limit"] = {"anyOf": [SIZE, {"type": "null"}], "default": None}
    schema["properties"]["block"] |= SIZE
    of_head = [{"type": "object", "required": [key]} for key in ("lda", "weights")]
    schema["properties"]["head"]["anyOf"] = [{"enum": list(HEADS)}, *of_head]
    _with_bounds(schema)
    return {"$schema": DIALECT, **schema, "title": "A job of featfold"}


def _factory(kinds: list[str]) -> dict[str, Any]:
    """Return what is wanted of a factory: exactly one of the keys that say what it is."""
    keys = (IMPORT, *kinds)
    return {
        "properties": {key: {} for key in keys} | {IMPORT: {"type": "string", "pattern": ":"}},
        "required": [],
        "oneOf": [{"required": [key]} for key in keys],
    }


def _detector() -> dict[str, Any]:
    """Return the schema of an entry: a name, or a mapping with the options of one detector."""
    names = list(detectors.names())
    return {"anyOf": [{"enum": names}, *map(_options, names)]}


def _options(name: str) -> dict[str, Any]:
    cls = detectors.load(name)
    properties: dict[str, Any] = {"name": {"const": name}, "id": {"type": "string"}}
    properties |= {key: {"type": "string"} for key in CHOICES}
    for option, hint in hints(cls).items():
        if option != HEAD:
            one = _typed(hint)
            several = {"type": "array", "items": one}
            swept = sweeps.swept(cls, {option: []})
            properties[option] = {"anyOf": [one, several]} if swept and one else one
    return {
        "type": "object", "title": name, "description": (cls.__doc__ or "").partition("\n")[0],
        "properties": properties, "required": ["name"], "additionalProperties": False,
    }  # fmt: skip


def _typed(hint: Any) -> dict[str, Any]:
    """Return the schema of an option; anything where its type has none, as that of arrays."""
    try:
        return TypeAdapter(hint).json_schema()
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError):
        return {}


def _with_bounds(part: Any) -> None:
    """Write bounds as JSON Schema has them; pydantic leaves those beside own validators."""
    if isinstance(part, dict):
        if isinstance(part.get("ge"), (int, float)):
            part["minimum"] = part.pop("ge")
        part = list(part.values())
    if isinstance(part, list):
        for each in part:
            _with_bounds(each)
