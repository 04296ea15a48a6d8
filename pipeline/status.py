"""How far a run is, or how it ended: from its events, and from the lock that it holds or held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline import config, events, locks
from pipeline.errors import MissingInputError
from pipeline.planning import LATEST, family_of

STOPPED = (130, 143)


@dataclass(frozen=True)
class Status:
    """A run, or one part of an array job."""

    place: str
    """Directory of the run, or of all runs of its job while it has none of its own."""
    state: str
    """running, done, failed, stopped (asked to; state saved), or killed (no last word, no lock)."""
    host: str
    pid: int
    command: str
    started: str
    seconds: float
    """From its start to its end, or to its last event where it was killed."""
    stage: str
    """What it does, or did last."""
    unit: str
    done: int
    total: int
    """0 where nobody knows."""
    blocks_done: int
    blocks: int
    """Of the pass; 0 for an extraction."""
    stage_seconds: float
    last_event: str
    last_event_seconds: float
    """How long ago that was."""
    exit_code: int | None
    error: str

    @property
    def rate(self) -> float | None:
        """Bytes, or rows, per second of the stage."""
        return self.done / self.stage_seconds if self.stage_seconds > 0 and self.done else None

    @property
    def seconds_left(self) -> float | None:
        """What the stage will take at this rate."""
        if not self.rate or self.total <= 0 or self.state != "running":
            return None
        return max(0.0, (self.total - self.done) / self.rate)

    def to_dict(self) -> dict[str, Any]:
        """Return the content as JSON values."""
        return asdict(self) | {"rate": self.rate, "seconds_left": self.seconds_left}


def of(place: Path) -> list[Status]:
    """Return the runs at a place, unfinished ones first.

    A place is the directory of a run, that of all runs of a job, one of several jobs, or the YAML
    of a job. Raises :class:`MissingInputError` where no run has told anything.
    """
    if place.suffix in (".yaml", ".yml") and place.is_file():
        place = family_of(config.load(place))
    found = _at(place)
    if not found and place.is_dir():
        found = [each for folder in sorted(place.iterdir()) for each in _at(folder)]
    if not found:
        raise MissingInputError(
            f"{place}: no run here has left {events.FILE_NAME}; expected a directory of runs, such "
            "as runs/NAME, or a job that `featfold run` has begun"
        )
    return found


def _at(place: Path) -> list[Status]:
    """Return the run of a directory, or those of a job: unfinished ones, and the last."""
    if (place / events.FILE_NAME).is_file():
        return [_read(place / events.FILE_NAME, ())]
    holders = locks.holders_of_family(place) if place.is_dir() else []
    found = [_read(path, holders) for path in events.unfinished(place)]
    latest = place / LATEST
    if latest.is_file():
        last = place / latest.read_text().strip() / events.FILE_NAME
        found += [_read(last, ())] if last.is_file() else []
    return found


def _read(path: Path, holders: Iterable[Mapping[str, Any]]) -> Status:
    first: dict[str, Any] = {}
    stage: dict[str, Any] = {}
    last: dict[str, Any] = {}
    began = until = None
    for last in events.read(path):
        match last["kind"]:
            case "run":
                first = last
            case "begin":
                stage, began, until = {**last, "done": 0, "read": 0}, _time(last), None
            case "advance" | "end":
                stage |= {"done": last["done"], "read": last["blocks"]}
                until = _time(last) if last["kind"] == "end" else None
    now = datetime.now(UTC)
    code = last.get("exit_code")
    who = {key: first.get(key) for key in ("host", "pid")}
    alive = code is None and any({k: h.get(k) for k in who} == who for h in holders)
    end = now if alive else _time(last, now)
    return Status(
        place=str(path.parent), state=_state(code, alive), host=first.get("host", ""),
        pid=first.get("pid", 0), command=first.get("command", ""), started=first.get("time", ""),
        seconds=(end - _time(first, end)).total_seconds(),
        stage=stage.get("stage", ""), unit=stage.get("unit", ""), done=stage.get("done", 0),
        total=stage.get("total", 0),
        blocks_done=stage.get("read", 0), blocks=stage.get("blocks", 0),
        stage_seconds=((until or end) - (began or end)).total_seconds(),
        last_event=_words(last), last_event_seconds=(now - _time(last, now)).total_seconds(),
        exit_code=code, error=last.get("error", ""),
    )  # fmt: skip


def _state(code: int | None, alive: bool) -> str:
    if code is None:
        return "running" if alive else "killed"
    return "done" if code == 0 else "stopped" if code in STOPPED else "failed"


def _time(event: Mapping[str, Any], otherwise: datetime | None = None) -> datetime:
    return datetime.fromisoformat(event["time"]) if event else otherwise or datetime.now(UTC)


def _words(event: Mapping[str, Any]) -> str:
    told = event.get("text") or event.get("error") or event.get("stage") or event.get("directory")
    return f"{event.get('kind', 'none')}: {told}" if told else str(event.get("kind", "none"))
