"""Errors of models that say in their own words what is wrong, and where within the model."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from pipeline.config.document import Keys, parse

KIND = "job"


def detail(
    keys: Keys, text: str, given: Any = None, *, of_key: bool = False, other: Keys | None = None
) -> InitErrorDetails:
    """Return one error about what lies at ``keys`` within a model.

    ``of_key`` points at the key and not its value; ``other`` is a second place, from the root.
    """
    context = {"text": text, "of_key": of_key, "other": other}
    return InitErrorDetails(
        type=PydanticCustomError(KIND, "{text}", context), loc=keys, input=given
    )


def refusal(*details: InitErrorDetails) -> ValidationError:
    """Return what a validator raises for several errors at once."""
    return ValidationError.from_exception_data(KIND, list(details))


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """Return the words that suggest the nearest known name, or nothing."""
    near = get_close_matches(str(name), list(known), n=1)
    return f"did you mean {near[0]!r}? " if near else ""


def no_number(expected: str, given: str) -> str:
    """Return the words for a text where a number is wanted: quoted, or, as 0o17 or 010, no YAML."""
    quoted = isinstance(parse(given, "").tree, (int, float)) if given.isprintable() else False
    remedy = "leave out its quotes" if quoted else "write decimal digits, without leading zeros"
    return f"expected {expected}, got the text {given!r}; {remedy}"


def words(error: dict[str, Any], keys: Keys) -> str:
    """Return what pydantic found at ``keys`` in the words of all other errors."""
    kind, given, context = error["type"], error["input"], error.get("ctx", {})
    if kind == KIND:
        return str(context["text"])
    if kind == "value_error":
        return str(context["error"]).removeprefix(f"{keys[-1]}: " if keys else "")
    if kind == "missing":
        return "is missing"
    if kind == "string_too_short":
        return "expected some text"
    return f"{_expected(error)}, got {given!r}"


def _expected(error: dict[str, Any]) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "greater_than_equal":
        return f"expected at least {context['ge']}"
    if kind == "string_pattern_mismatch":
        return "expected letters, digits, dots, dashes and underscores"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return "expected a mapping of keys"
    if kind in ("tuple_type", "list_type"):
        return "expected a list"
    if kind == "literal_error":
        return f"expected {context['expected']}"
    return str(error["msg"]).partition(",")[0].replace("Input should be", "expected")
