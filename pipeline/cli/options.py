"""Options that several verbs have, so that they mean the same everywhere."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import click

from pipeline.errors import ConfigError

Command = Callable[..., Any]
CLUSTER = "auto, threads, local, cuda, tcp://..., tls://... or FILE.json."
MEMORY = "Memory per worker: 512MiB, 8GB or auto."
DEVICE_MEMORY = "Memory per worker on its GPU: 8GB or auto."


def detector_names(_context: Any, _option: Any, typed: str) -> list[str]:
    """Complete the last name of a list of detectors for a shell."""
    from pipeline import detectors

    before, comma, last = typed.rpartition(",")
    return [before + comma + name for name in detectors.names() if name.startswith(last)]


def assignments(context: Any, option: Any, typed: str) -> list[str]:
    """Complete a key of a job at top level, or the name of a detector that one is set to."""
    key, equals, last = typed.partition("=")
    if equals:
        names = detector_names(context, option, last) if key.startswith("detectors.") else []
        return [f"{key}={name}" for name in names]
    from pipeline.config import JobConfig

    known = [field.alias or name for name, field in JobConfig.model_fields.items()]
    return [name for name in known if name.startswith(key)]


def common(command: Command) -> Command:
    """Add ``--json``, ``-q`` and ``-v``, and hand the command the terminal they configure."""

    @click.option(
        "--json", "as_json", is_flag=True, help="One JSON object on stdout; text on stderr."
    )
    @click.option("-q", "--quiet", is_flag=True, help="Only results and errors.")
    @click.option("-v", "--verbose", is_flag=True, help="Log messages, and tracebacks of bugs.")
    @click.pass_obj
    @functools.wraps(command)
    def configured(terminal: Any, /, as_json: bool, quiet: bool, verbose: bool, **rest: Any) -> Any:
        terminal.configure(as_json=as_json, quiet=quiet, verbose=verbose)
        return command(terminal, **rest)

    return configured


def job_options(command: Command) -> Command:
    """Add the options that override a job, and hand the command ``overrides`` for ``load``."""

    @click.option("--memory", metavar="SIZE", help=MEMORY)
    @click.option("--device-memory", metavar="SIZE", help=DEVICE_MEMORY)
    @click.option("--workers", metavar="N", help="Number of workers, or auto.")
    @click.option("--cluster", metavar="WHERE", help=CLUSTER)
    @click.option("--cache", metavar="DIR", help="Where constants and partials go.")
    @click.option(
        "--cache-limit", metavar="SIZE", help="Disk that partials may take: merged ones go first."
    )
    @click.option(
        "--dashboard/--no-dashboard", default=None, help="Start worker processes with a dashboard."
    )
    @click.option(
        "--set", "assignments", metavar="KEY=VALUE", multiple=True, shell_complete=assignments,
        help="Override any key of the job, e.g. detectors.0.ridge=1e-3; may be repeated.",
    )  # fmt: skip
    @functools.wraps(command)
    def overriding(
        *args: Any,
        memory: str | None,
        device_memory: str | None,
        workers: str | None,
        cluster: str | None,
        cache: str | None,
        cache_limit: str | None,
        dashboard: bool | None,
        assignments: tuple[str, ...],
        **rest: Any,
    ) -> Any:
        given = {
            "memory": _quoted(memory),
            "device_memory": _quoted(device_memory),
            "workers": workers,
            "cluster": _quoted(cluster),
            "cache": _quoted(cache),
            "cache_limit": _quoted(cache_limit),
            "dashboard": None if dashboard is None else str(dashboard).lower(),
        }
        named = [f"resources.{key}={text}" for key, text in given.items() if text is not None]
        return command(*args, overrides=[*assignments, *named], **rest)

    return overriding


def progress_option(command: Command) -> Command:
    """Add ``--no-progress``, handed on as ``progress``."""
    return click.option(
        "--no-progress", "progress", flag_value=False, default=True, is_flag=True,
        help="Neither bars nor progress lines.",
    )(command)  # fmt: skip


def part_of(text: str | None) -> tuple[int, int] | None:
    """Return (i, n) of the "i/n" of ``--blocks``; raises :class:`ConfigError` for other text."""
    if text is None:
        return None
    index, _, parts = text.partition("/")
    if not (index.isdecimal() and parts.isdecimal() and 1 <= int(index) <= int(parts)):
        raise ConfigError(f"--blocks: {text!r}; expected I/N with I from 1 to N, such as 2/8")
    return int(index), int(parts)


def _quoted(text: str | None) -> str | None:
    """Return text as YAML that stays text, whatever it looks like."""
    return None if text is None else json.dumps(text)
