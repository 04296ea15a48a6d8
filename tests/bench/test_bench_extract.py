"""A tiny bench of extraction: every side ran over the same images, and nothing is left."""

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.__main__ import main
from pipeline.bench.extract import Noise


def test_workers_stand_beside_loops_and_leave_nothing(capsys, tmp_path):
    code = main(["bench", "extract", "--images", "7", "--batch", "2", "--network", "plain",
                 "--repeat", "1", "--scratch", str(tmp_path), "--json"])  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert (found["images"], found["network"]) == (7, "plain")
    middle = found["median_images_per_second"]
    assert set(middle) == {"plain loop", "two plain loops", "one worker", "two workers"}
    for name, floor in (("one worker", "plain loop"), ("two workers", "two plain loops")):
        assert found["share_of_loops"][name] == pytest.approx(middle[name] / middle[floor])
    ratio = middle["two workers"] / middle["one worker"]
    assert found["two_workers_over_one"] == pytest.approx(ratio)
    assert min(found["peak_nbytes"].values()) > 50e6  # torch alone is more
    assert not list(Path(tmp_path).iterdir())


def test_every_row_has_the_images_that_the_loop_is_given():
    source = Noise(7, 2)
    assert source.pool.shape == (4, 2, 224, 224, 3)
    np.testing.assert_array_equal(source.read(4, 6).inputs, source.pool[2])
    last = source.read(6, 7)
    np.testing.assert_array_equal(last.inputs, source.pool[3][:1])
    assert last.ids.tolist() == [6]
