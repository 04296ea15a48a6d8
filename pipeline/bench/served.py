"""The peer's process: started in its own interpreter, asked for one task at a time."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import FeatfoldError


@contextmanager
def served(
    python: str, data: Mapping[str, Any], dim: int, directory: Path
) -> Iterator[tuple[dict[str, str], Callable[[str], float]]]:
    """Start the peer's process; yield its versions, and what runs one of its tasks."""
    for name, array in data.items():
        np.save(directory / f"{name}.npy", array)
    command = [python, str(Path(__file__).with_name("peer.py")), str(directory), str(dim)]
    errors = directory / "peer.err"
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
        )

    def answer(asked: str = "") -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        if asked:
            process.stdin.write(f"{asked}\n")
            process.stdin.flush()
        if line := process.stdout.readline():
            return json.loads(line)
        why = errors.read_text().strip().rpartition("\n")[2]
        raise FeatfoldError(f"{python} cannot run the peer: {why}; it must have pytorch-ood")

    try:
        yield answer(), answer
    finally:
        with process:
            process.terminate()
