"""Errors keep their kind, and so the exit code, on their way from worker processes."""

import pytest
from distributed.core import clean_exception, error_message

from pipeline import errors

KINDS = [each for each in vars(errors).values() if isinstance(each, type)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_a_dask_worker_is_raised_as_what_it_was(kind):
    try:
        raise kind("row 7 is gone") from ValueError("as told")
    except kind as error:
        sent = error_message(error)
    parts = {name: sent[name].data for name in ("exception", "traceback")}
    _, found, _ = clean_exception(**parts)
    assert type(found) is kind
    assert str(found) == "row 7 is gone"
