"""The rates of a machine: kept, found again, and measured without leaving anything behind."""

import json

import pytest

from pipeline.calibration import FILE, Calibration, measure

RATES = Calibration(1.5e9, 2e11, 1e11, 2e9, 3e8)


def test_what_was_saved_is_loaded(tmp_path):
    path = RATES.save(tmp_path / "cache")
    assert path == tmp_path / "cache" / FILE
    assert Calibration.load(tmp_path / "cache") == RATES


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "[]",
        "{}",
        json.dumps({"read_bytes_per_second": 1.0, "float32_flops": "x", "float64_flops": 1}),
        json.dumps({"read_bytes_per_second": 0, "float32_flops": 1, "float64_flops": 1}),
        '{"read_bytes_per_second": NaN, "float32_flops": 1, "float64_flops": 1}',
    ],
)
def test_what_cannot_be_used_is_none(tmp_path, content):
    if content is not None:
        (tmp_path / FILE).write_text(content)
    assert Calibration.load(tmp_path) is None


def test_measuring_gives_rates_and_leaves_no_file(tmp_path):
    rates = measure(tmp_path)
    assert rates.read_bytes_per_second > 1e6
    assert rates.float32_flops > 1e8
    assert rates.float64_flops > 1e8
    assert rates.sum_bytes_per_second > 1e6
    assert rates.write_bytes_per_second > 1e6
    assert list(tmp_path.iterdir()) == []
