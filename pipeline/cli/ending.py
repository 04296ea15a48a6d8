"""How the command line ends: every ending has its exit code, and none is a traceback."""

from __future__ import annotations

import io
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from pipeline import stopping
from pipeline.cli import featfold
from pipeline.cli.terminal import Terminal
from pipeline.errors import FeatfoldError, PartDoneError

INTERRUPTED, TERMINATED = 130, 143
KEEPING_NOTHING = {"compare", "doctor", "eval", "gc", "inspect", "plan", "report", "--no-store"}
"""Verbs, and the option of one, that have nothing to go on from."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; never ends in a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a table must not fail for an arrow
    terminal = Terminal()
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = featfold.main(arguments, prog_name="featfold", obj=terminal, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.Abort:
        terminal.fail(f"interrupted; {_kept(arguments)}, run the same again", INTERRUPTED)
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except PartDoneError as done:
        terminal.show(str(done))
        return done.exit_code
    except FeatfoldError as error:
        terminal.fail(str(error), error.exit_code)
        return error.exit_code
    except OSError as error:
        terminal.fail(str(error), 1)
        return 1
    except Exception as error:
        if terminal.verbose:
            traceback.print_exc()
        hint = "" if terminal.verbose else ", run with -v for the traceback"
        terminal.fail(f"{type(error).__name__}: {error}; this is a bug{hint}", 1)
        return 1


def _kept(arguments: Sequence[str] | None) -> str:
    """Say what an interrupted command leaves behind for the next one."""
    given = sys.argv[1:] if arguments is None else arguments
    verb = next((word for word in given if not word.startswith("-")), "")
    lost = KEEPING_NOTHING & {verb, *(word for word in given if word.startswith("--"))}
    return "nothing is kept" if lost else "committed blocks are kept"


def _terminate(*_: Any) -> None:
    """Finish the blocks in flight where there are any; else, or asked again, leave at once.

    Leaving goes by way of every ``finally``, so that workers stop and files are whole.
    """
    if not stopping.request():
        sys.exit(TERMINATED)
