"""The JSON Schema of ``results.json``, made from the types that it is checked against."""

from __future__ import annotations

import types
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from pipeline.report.schema import SCHEMA, Results

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_LEAVES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def results_schema() -> dict[str, Any]:
    """Return the schema; keys beyond the declared ones are allowed, as a later version has them."""
    parts: dict[str, Any] = {}
    _of(Results, parts)
    whole = parts.pop(Results.__name__)
    whole["properties"]["schema"] = {"const": SCHEMA}
    return {"$schema": DIALECT, "title": "results.json of featfold", **whole, "$defs": parts}


def _of(hint: Any, parts: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type; those of mappings with known keys become ``parts``."""
    origin, inner = get_origin(hint), get_args(hint)
    if is_typeddict(hint):
        if hint.__name__ not in parts:
            parts[hint.__name__] = made = {"type": "object", "description": hint.__doc__ or ""}
            hints = get_type_hints(hint)
            made["properties"] = {name: _of(each, parts) for name, each in hints.items()}
            made["required"] = sorted(hint.__required_keys__)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_of(each, parts) for each in inner]}
    if origin is list:
        return {"type": "array", "items": _of(inner[0], parts)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of(inner[1], parts)}
    return {} if hint is Any else {"type": _LEAVES[hint]}
