"""Groups of rows: a bank in files is read once for as many of them as a budget of bytes holds.

A search in such a bank waits until a group is together. Of the chunks that it comes from, only the
views are held that the search and what depends on it are made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pipeline.chunk import Schema
from pipeline.statistics import fields_of
from pipeline.views import Finite, Stored, View
from pipeline.views.sizes import row_nbytes

GROUP_NBYTES = 128 * 2**20
"""Bytes of a group: what is held of its rows, and what searches find for them."""
MASK = "mask"


def streamed(view: View) -> bool:
    """Tell whether a view, or one that it is made of, searches a bank in files."""
    return any(_searches(part) for part in _with_parts(view))


def searches(views: Iterable[View]) -> list[View]:
    """Return the searches in banks in files behind views: each reads its bank once for a group."""
    return [view for view in _behind(views) if _searches(view)]


def waiting(requests: Iterable[Any]) -> tuple[View, ...]:
    """Return the views of the requests (statistics, tables of rows) that wait for a search."""
    waits = [request for request in requests if any(map(streamed, request.views))]
    return tuple(dict.fromkeys(view for request in waits for view in request.views))


def held(views: Iterable[View], schema: Schema) -> tuple[View, ...]:
    """Return the views that must be held of a chunk, so that ``views`` need nothing else of it."""
    found: dict[View, None] = {}
    for view in views:
        found |= dict.fromkeys(_inputs(view))
        if streamed(view) and MASK in schema.touched(view.fields):
            found[Stored(MASK)] = None
    return tuple(found)


def group_rows(views: Iterable[View], schema: Schema, step_rows: int, shrink: int = 0) -> int:
    """Return the rows of a group for the views that wait, at least those of a step.

    The budget is halved ``shrink`` times, as the steps are.
    """
    views = tuple(views)
    found = [view for view in _behind(views) if streamed(view)]
    nbytes = group_nbytes(views, schema, 1)
    nbytes += sum(view.nbytes(schema, 2) - view.nbytes(schema, 1) for view in found)
    return max(step_rows, (GROUP_NBYTES >> shrink) // max(1, nbytes))


def group_nbytes(views: Iterable[View], schema: Schema, rows: int) -> int:
    """Return the bytes that a group of rows holds of the chunks that it comes from."""
    return rows * sum(row_nbytes(view, schema) for view in held(views, schema))


def _searches(view: View) -> bool:
    return bool(getattr(getattr(view, "bank", None), "files", ()))


def _behind(views: Iterable[View]) -> dict[View, None]:
    """Return views and all that they are made of, each once."""
    return dict.fromkeys(part for view in views for part in _with_parts(view))


def _with_parts(view: View) -> Iterator[View]:
    yield view
    for part in _parts(view):
        yield from _with_parts(part)


def _parts(view: View) -> Iterator[View]:
    """Yield the views that a view itself is made of."""
    for entry in vars(view).values():
        several = entry if isinstance(entry, tuple) else (entry,)
        yield from (part for part in several if hasattr(part, "nbytes") and callable(part))
    scorer = getattr(view, "scorer", None)
    if scorer is not None:
        yield from scorer.views


def _inputs(view: View) -> Iterator[View]:
    """Yield what a view looks at that does not wait for a search."""
    if not streamed(view):
        yield view
        return
    parts = list(_parts(view))
    for part in parts:
        yield from _inputs(part)
    if hasattr(view, "scorer"):  # scores of rows that are not finite are none
        yield Finite(tuple(sorted(view.fields)))
    for name in sorted(view.fields - fields_of(*parts)):
        yield Stored(name)
