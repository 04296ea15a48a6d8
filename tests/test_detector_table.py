"""The table of detectors in the README: made from the code, and what it says of some of them."""

from pathlib import Path
from typing import ClassVar

import pytest

from pipeline import detector_table, detectors
from pipeline.content import value
from pipeline.detector_table import BEGIN, END, entry, methods, own, table, written
from pipeline.detectors.mahalanobis import Mahalanobis
from pipeline.errors import ConfigError

README = Path(__file__).parents[1] / "README.md"
METHODS = 36
"""Distinct methods by their first publication, at least."""
K, D = detector_table.K, detector_table.D


def test_the_readme_has_the_table_that_the_code_makes():
    text = README.read_text()
    assert written(text) == text, "run `python -m pipeline.detector_table`: it writes the table"


def test_there_are_as_many_methods_as_promised():
    assert methods(own()) >= METHODS


def test_variants_of_a_publication_count_once(monkeypatch):
    monkeypatch.setattr(Mahalanobis, "paper", "after Ren et al. 2021")
    assert methods(["mahalanobis", "relative_mahalanobis"]) == 1
    monkeypatch.setattr(Mahalanobis, "paper", "")  # an ensemble is no method
    assert methods(["mahalanobis", "relative_mahalanobis"]) == 1


def test_a_row_says_what_the_detector_does():
    she = entry("she")
    assert she.paper == "Zhang et al. 2023"
    assert she.needs == ("features", "logits", "labels")
    assert (she.passes, she.passes_lda, she.incremental) == (1, 2, True)
    assert she.state_nbytes == 8 * (K * D + K)
    assert she.cells()[-2:] == ("8.2 MB", "pytorch-ood-0.4, openood-1.5")


def test_later_passes_that_depend_on_the_first_are_told():
    vim = entry("vim")
    assert vim.needs == ("features", "labels", "head weights")
    assert (vim.passes, vim.incremental) == (2, False)
    assert "first pass" in vim.cells()
    energy = entry("energy")
    assert (energy.passes, energy.passes_lda, energy.cells()[5:7]) == (0, 1, ("-", "none"))


def test_a_bank_is_given_by_the_row():
    assert entry("knn").cells()[6] == "bank, 8.19 kB a row"


def test_bars_of_a_formula_do_not_end_its_cell():
    (*_, row) = table(["grad_uncertainty"]).splitlines()
    assert row.replace("\\|", "").count("|") == len(detector_table.HEADER) + 1


@value
class Nameless:
    """A detector that does not say where it comes from."""

    formula: ClassVar[str] = "-"


@value
class Demanding:
    """A detector with an option that has no default."""

    paper: ClassVar[str] = "Nobody 2026"
    formula: ClassVar[str] = "-"
    share: float


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (
            Nameless,
            ["test_detector_table.py: Nameless has no paper", "ClassVars paper and formula"],
        ),
        (Demanding, ["it has no default and no preset for share"]),
    ],
)
def test_a_detector_that_does_not_say_its_part_is_named(monkeypatch, cls, words):
    monkeypatch.setattr(detectors, "load", lambda name: cls)
    with pytest.raises(ConfigError) as caught:
        entry("it")
    for word in words:
        assert word in str(caught.value)


def test_the_table_takes_the_place_between_its_marks(monkeypatch):
    monkeypatch.setattr(detector_table, "own", lambda: ("msp",))
    once = written(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert once == written(once)
    assert once.startswith(f"before\n{BEGIN}\n\n| name | paper ")
    assert once.endswith(f"|\n\n{END}\nafter\n")
    with pytest.raises(ConfigError, match="no place for the table"):
        written("no marks")


def test_bytes_have_three_digits():
    assert [detector_table.decimal(n) for n in (12, 8192, 24_816_000, 8_400_000_000)] == [
        "12 B", "8.19 kB", "24.8 MB", "8.4 GB",
    ]  # fmt: skip
