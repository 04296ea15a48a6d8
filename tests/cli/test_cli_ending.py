"""Whatever happens inside a verb, there is one clear message and an exit code."""

import json

import click
import pytest

from pipeline.cli import featfold
from pipeline.cli.options import common
from pipeline.errors import BudgetError, IncompleteError


@pytest.fixture
def verb(monkeypatch):
    """Make ``featfold boom`` raise an exception."""

    def raising(error):
        @click.command()
        @common
        def boom(terminal):
            raise error

        monkeypatch.setitem(featfold.commands, "boom", boom)

    return raising


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BudgetError("too large\n  by far"), 3),
        (IncompleteError("rows 8-16 are missing"), 4),
        (OSError(28, "No space left on device", "runs/x"), 1),
        (PermissionError(13, "Permission denied", "runs"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_an_error_is_one_block_on_stderr(cli, verb, error, code):
    verb(error)
    ended = cli("boom")
    assert (ended.code, ended.out) == (code, "")
    assert str(error) in ended.err
    assert ended.err.startswith("error: ") or code == 130
    assert "Traceback" not in ended.err
    assert "bug" not in ended.err


def test_an_interrupted_command_says_what_is_kept_of_it(cli, verb, monkeypatch):
    verb(KeyboardInterrupt())
    assert "committed blocks are kept" in cli("boom").err
    monkeypatch.setitem(featfold.commands, "eval", featfold.commands["boom"])
    code, _, err = cli("eval")
    assert (code, err.strip()) == (
        130, "error: interrupted; nothing is kept, run the same again"
    )  # fmt: skip


def test_anything_else_is_called_a_bug(cli, verb):
    verb(ZeroDivisionError("[red]odd[/red]"))
    code, _, err = cli("boom")
    assert code == 1
    assert err == (
        "error: ZeroDivisionError: [red]odd[/red]; this is a bug, run with -v for the traceback\n"
    )
    code, _, err = cli("boom", "-v")
    assert code == 1
    assert "Traceback" in err
    assert "in boom" in err


def test_an_error_is_the_one_json_object(cli, verb):
    verb(BudgetError("too large"))
    code, out, err = cli("boom", "--json")
    assert code == 3
    assert json.loads(out) == {"error": "too large", "exit_code": 3}
    assert "too large" in err
