"""A tiny bench of the import: both sides ran, and nothing is left."""

import json

import pytest

from pipeline.__main__ import main


def test_both_sides_end_and_leave_nothing(capsys, tmp_path):
    code = main(["bench", "import", "--rows", "300", "--features", "64", "--repeat", "2",
                 "--scratch", str(tmp_path), "--json"])  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["nbytes"] == 300 * (64 * 4 + 8) + 2 * 128
    assert {side: len(seconds) for side, seconds in found["seconds"].items()} == {
        "raw copy": 2, "import": 2,
    }  # fmt: skip
    middle = found["median_seconds"]
    assert found["share_of_raw_speed"] == pytest.approx(middle["raw copy"] / middle["import"])
    assert 0 < found["peak_nbytes"] < 300e6
    assert not list(tmp_path.iterdir())
