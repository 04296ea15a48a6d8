"""The examples of the documentation are run, against the real libraries they speak of."""

import doctest
import warnings
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("name", sorted(path.name for path in DOCS.glob("*.md")))
def test_examples_print_what_the_page_says(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other libraries warn where they have no value
        failed, tried = doctest.testfile(
            str(DOCS / name), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE
        )
    assert tried > 0
    assert failed == 0
