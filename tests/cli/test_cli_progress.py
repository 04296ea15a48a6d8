"""Progress on a terminal and in a log."""

import io
import threading

from rich.console import Console

from pipeline.cli.progress import Bars, Lines
from pipeline.cli.terminal import Terminal

GiB = 2**30


class Clock:
    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


def test_a_log_gets_a_line_every_half_minute():
    said, clock = [], Clock()
    lines = Lines(said.append, clock)
    lines.say("runs on 2 threads")
    lines.begin("fit-pass1", 10 * GiB)
    for _ in range(10):
        clock.seconds += 10.0
        lines.advance(GiB)
    lines.end()
    assert said == [
        "runs on 2 threads",
        "fit-pass1: 30%, 3.0 GiB of 10.0 GiB, 102.4 MiB/s, 1 min 10 s left",
        "fit-pass1: 60%, 6.0 GiB of 10.0 GiB, 102.4 MiB/s, 40.0 s left",
        "fit-pass1: 90%, 9.0 GiB of 10.0 GiB, 102.4 MiB/s, 10.0 s left",
        "fit-pass1: 10.0 GiB in 1 min 40 s",
    ]


def test_a_stream_has_a_rate_and_no_end():
    said, clock = [], Clock()
    lines = Lines(said.append, clock)
    lines.begin("extract id/train", 0, "images")
    clock.seconds = 30.0
    lines.advance(90)
    clock.seconds = 60.0
    lines.advance(37_000)
    lines.end()
    assert said == [
        "extract id/train: 90 images, 3 images/s",
        "extract id/train: 37090 images, 618 images/s",
        "extract id/train: 37090 images in 1 min 00 s",
    ]


def test_other_units_and_empty_stages():
    said, clock = [], Clock()
    lines = Lines(said.append, clock)
    lines.begin("extract id/train", 80, "rows")
    clock.seconds = 40.0
    lines.advance(0)
    clock.seconds = 80.0
    lines.advance(20)
    lines.end()
    lines.begin("score", 0)
    clock.seconds = 120.0
    lines.advance(0)
    lines.end()
    lines.advance(5)
    lines.end()
    assert said == [
        "extract id/train: 0%, 0 rows of 80 rows, starting",
        "extract id/train: 25%, 20 rows of 80 rows, 0.25 rows/s, 4 min 00 s left",
        "extract id/train: 20 rows in 1 min 20 s",
        "score: 100%, 0 B of 0 B, starting",
        "score: 0 B in 40.0 s",
    ]


def test_advances_from_many_threads_all_count():
    said = []
    lines = Lines(said.append)
    lines.begin("fit-pass1", 8 * 1000)
    threads = [
        threading.Thread(target=lambda: [lines.advance(1) for _ in range(1000)]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines.end()
    assert said[-1].startswith("fit-pass1: 7.8 KiB in")


def test_a_terminal_gets_bars_with_messages_above():
    screen, clock = io.StringIO(), Clock()
    bars = Bars(Console(file=screen, force_terminal=True, width=120, color_system=None), clock)
    bars.begin("fit-pass1", 4 * GiB)
    clock.seconds = 2.0
    bars.advance(GiB)
    bars.say("dashboard: http://127.0.0.1:8787/[status]")
    bars.end()
    bars.begin("score", 0)
    bars.end()
    bars.advance(1)
    bars.close()
    text = screen.getvalue()
    assert "dashboard: http://127.0.0.1:8787/[status]" in text
    final = text.split("\x1b[2K")[-1]
    assert "100 % 4.0 GiB" not in final
    assert "1.0 GiB in 2.0 s" in text
    assert "score" in text


def test_a_quiet_terminal_shows_no_progress(capsys):
    terminal = Terminal()
    terminal.configure(as_json=False, quiet=True, verbose=False)
    with terminal.progress(True) as watched:
        watched.begin("fit-pass1", 1)
        watched.advance(1)
        watched.say("runs on 2 threads")
        watched.end()
    assert tuple(capsys.readouterr()) == ("", "")
