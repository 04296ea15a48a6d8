"""Formats of other packages, by entry point; names of shards; files that are opened by a path."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import MissingInputError
from pipeline.store.file_arrays import opened_array
from pipeline.store.importers import Unreadable, array_name, format_of
from pipeline.store.importers.npy import npy_rows
from pipeline.store.importers.npz import npz_rows
from pipeline.store.importers.shards import gather, natural

PLUGIN = """
import numpy as np
from pipeline.store.importers import Importer, has_suffix

def arrays(path):
    return {"features": np.loadtxt(path, ndmin=2, dtype="f4")}

FORMAT = Importer("words", (".words",), has_suffix(".words"), arrays)
"""
RUN = """
import sys
import pipeline as ff
ff.import_split(sys.argv[1], "id/train", sys.argv[2], classes=0)
"""


def test_a_format_of_another_package(folder):
    package = folder / "site" / "words.py"
    info = folder / "site" / "words-1.0.dist-info"
    info.mkdir(parents=True)
    package.write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: words\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[featfold.importers]\nwords = words:FORMAT\n")
    (folder / "x.words").write_text("1 2 3\n4 5 6\n")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(package.parent)!r})\n{RUN}",
         str(folder / "s.zarr"), str(folder / "x.words")],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = opened_array(folder / "s.zarr/id/train/features", "features")
    np.testing.assert_array_equal(found[:], [[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("img_emb_2.npy", "img_emb"), ("a-00002-of-00010.npy", "a"), ("layer4.npy", "layer4"),
        ("17.npy", "17"), ("_3.npy", "_3"), ("x.0017.npy", "x"), ("features.npy", "features"),
    ],
)  # fmt: skip
def test_names_of_shards(file, name):
    assert array_name(Path(file)) == name


def test_natural_order():
    names = ["b1", "a10", "a9", "a09", "a1b2", "a1b10", "a", "10", "9"]
    expected = ["9", "10", "a", "a1b2", "a1b10", "a09", "a9", "a10", "b1"]
    assert sorted(names, key=natural) == expected


def test_rows_are_read_in_any_order_and_across_files(folder):
    whole = np.arange(60.0).reshape(20, 3)
    for i, part in enumerate((slice(0, 7), slice(7, 8), slice(8, 20))):
        np.savez_compressed(folder / f"x_{i}.npz", x=whole[part])
    rows = gather([f"{folder}/*.npz"]).arrays["x"]
    for part in (slice(0, 20), slice(15, 18), slice(5, 9), slice(0, 1), slice(19, 20), slice(4, 4)):
        np.testing.assert_array_equal(rows[part], whole[part])
    with pytest.raises(MissingInputError, match="rows 19-21"):
        rows.read_into(np.empty((2, 3)), 19)
    rows.close()


def test_an_array_that_cannot_be_read_does_not_hide_the_others(folder):
    np.savez(folder / "a.npz", good=np.ones((3, 2)), bad=np.array([{}, None], object))
    found = npz_rows(folder / "a.npz")
    assert isinstance(found["bad"], Unreadable)
    np.testing.assert_array_equal(found["good"][1:], np.ones((2, 2)))
    assert format_of(folder / "a.npz").name == "npz"


def test_a_file_that_went_away_is_named(folder):
    np.save(folder / "a.npy", np.ones((3, 2)))
    rows = npy_rows(folder / "a.npy")
    (folder / "a.npy").unlink()
    with pytest.raises(MissingInputError, match=r"a\.npy lacks rows 1-3"):
        rows[1:]
