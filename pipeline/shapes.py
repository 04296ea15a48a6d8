"""Shapes from the command line: a split, and a job over it, of which nothing exists yet."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pipeline.chunk import ArraySpec
from pipeline.cluster import parse_nbytes
from pipeline.config import JobConfig, parse
from pipeline.errors import ConfigError, FeatfoldError
from pipeline.store import DeclaredSplit

FORM = "ROWSxTOKENSxFEATURES[:DTYPE[:CLASSES]], such as 50000x49x1024:float32:1000"
DTYPE, CLASSES = "float32", 1000
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
        lengths = tuple(int(part) for part in rest)
        spec = ArraySpec(lengths, dtype or DTYPE, "TD"[-len(lengths) :])
        k = int(classes or CLASSES)
        arrays = {
            "features": spec,
            "logits": ArraySpec((k,), "float32", "K"),
            "labels": ArraySpec((), "int64"),
        }
        if text.count(":") > 2 or len(lengths) not in (1, 2):
            raise ValueError("expected one or two lengths after the rows")
        rows = int(first) if first.isdecimal() else parse_nbytes(first) // spec.nbytes
        return DeclaredSplit.of(name, arrays, classes=k, rows=rows)
    except (ValueError, TypeError, FeatfoldError) as error:
        raise ConfigError(f"--synthetic: {text!r}: {error}; expected {FORM}") from None
