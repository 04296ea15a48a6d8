"""Where words go: results to stdout, everything else to stderr; with ``--json`` one object."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.text import Text

from pipeline.cli.progress import Bars, Lines, Quiet, Watched

WIDTH = 110
"""Columns of tables where the output is no terminal."""


class Terminal:
    """What a verb prints with; configured by its options."""

    def __init__(self) -> None:
        self.as_json = self.quiet = self.verbose = False
        self.emitted = False
        self._results, self._log = _console(stderr=False), _console(stderr=True)

    def configure(self, *, as_json: bool, quiet: bool, verbose: bool) -> None:
        """Take over the common options of a verb."""
        self.as_json, self.quiet, self.verbose = as_json, quiet, verbose
        if verbose:
            logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")

    def say(self, text: str) -> None:
        """Print a line on stderr, unless asked to be quiet."""
        if not self.quiet:
            _print(self._log, text)

    def show(self, result: Any) -> None:
        """Print text or a table for people: on stdout, or on stderr beside a JSON object."""
        _print(self._log if self.as_json else self._results, result)

    def emit(self, content: Mapping[str, Any]) -> None:
        """With ``--json``, print the one object of this command."""
        if self.as_json and not self.emitted:
            self.emitted = True
            sys.stdout.write(json.dumps(content, indent=1, allow_nan=False) + "\n")
            sys.stdout.flush()

    def fail(self, error: str, exit_code: int) -> None:
        """Print why the command ends with ``exit_code``."""
        self._log.print(Text.assemble(("error: ", "bold red"), error), soft_wrap=True)
        self.emit({"error": error, "exit_code": exit_code})

    @contextmanager
    def progress(self, wanted: bool) -> Iterator[Watched]:
        """Yield what shows progress: bars on a terminal, log lines elsewhere, nothing if quiet."""
        watched: Watched = Quiet(self.say)
        if wanted and not self.quiet:
            watched = Bars(self._log) if self._log.is_terminal else Lines(self.say)
        try:
            yield watched
        finally:
            watched.close()


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=WIDTH)


def _print(console: Console, content: Any) -> None:
    if isinstance(content, str):
        console.print(content, markup=False, soft_wrap=True)
    else:
        console.print(content)
