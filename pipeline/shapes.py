"""Shapes from the command line: a split, and a job over it, of which nothing exists yet."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pipeline.chunk import ArraySpec
from pipeline.cluster import parse_nbytes
from pipeline.config import JobConfig, parse
from pipeline.errors import ConfigError, FeatfoldError
from pipeline.plan import human
from pipeline.store import DeclaredSplit

FORM = "ROWSxTOKENSxFEATURES[:DTYPE[:CLASSES]], such as 50000x49x1024:float32:1000"
DTYPE, CLASSES = "float32", 1000
LARGEST_NBYTES = 10**15
"""Largest split that is made up: two million blocks."""
_SIZE = r"\d+(\.\d+)?\s*[kKMGTP]i?B"
USUAL_JOB = """\
name: synthetic
store: synthetic.zarr
detectors: [mahalanobis, relative_mahalanobis, kl_matching, she]
"""


def usual_job(overrides: Iterable[str] = ()) -> JobConfig:
    """Return a job of the detectors that are fitted in one pass."""
    return parse(USUAL_JOB, "the usual job", overrides)


def made_up(text: str, name: str) -> DeclaredSplit:
    """Return the split that a shape describes, with logits and labels.

    ``text`` is ROWSxTOKENSxFEATURES or, of pooled features, ROWSxFEATURES. ROWS may be a size: as
    many rows as it holds of the features.
    """
    shape, dtype, classes = (*text.split(":"), "", "")[:3]
    first, *rest = (part.strip() for part in re.split("x", shape))
    try:
        lengths = tuple(_number(part, "a length") for part in rest)
        spec = ArraySpec(lengths, dtype or DTYPE, "TD"[-len(lengths) :])
        k = _number(classes or str(CLASSES), "classes")
        arrays = {
            "features": spec,
            "logits": ArraySpec((k,), "float32", "K"),
            "labels": ArraySpec((), "int64"),
        }
        if text.count(":") > 2 or len(lengths) not in (1, 2):
            raise ValueError("expected one or two lengths after the rows")
        rows = _rows(first, spec.nbytes)
        if rows * sum(array.nbytes for array in arrays.values()) > LARGEST_NBYTES:
            raise ValueError(f"more than {human(LARGEST_NBYTES)} are not planned")
        return DeclaredSplit.of(name, arrays, classes=k, rows=rows)
    except (ValueError, TypeError, OverflowError, FeatfoldError) as error:
        raise ConfigError(f"--synthetic: {text!r}: {error}; expected {FORM}") from None


def _rows(text: str, row_nbytes: int) -> int:
    """Return the rows that are asked for, or that a size such as 32TB holds."""
    if not re.fullmatch(_SIZE, text):
        return _number(text, "the rows")
    rows = parse_nbytes(text) // row_nbytes
    if rows < 1:
        raise ValueError(f"{text} hold less than one row of {human(row_nbytes)}")
    return rows


def _number(text: str, what: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{what}: {text!r} is not a whole number")
    return int(text)
