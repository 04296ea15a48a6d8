"""A detector of another distribution: found by name in Python, in a job and by the table."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pipeline as ff
from pipeline import config, detectors
from pipeline.detector_table import entry, own

MODULE = '''
"""Distance to the mean of the fit rows."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline import arrays
from pipeline.content import Const, value
from pipeline.statistics import Sums
from pipeline.views import Pooled, View


@value
class GlobalMean:
    """Squared distance to the mean: |z - m|^2."""

    paper: ClassVar[str] = "Nobody 2026"
    formula: ClassVar[str] = "|z - m|^2"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"openood-1.5": {"scale": 2.0}}

    scale: float = 1.0

    def passes(self, schema):
        results = yield {"mean": Sums(of=Pooled())}
        return GlobalMeanScorer(Pooled(), Const(results["mean"].mean), self.scale)


@value
class GlobalMeanScorer:
    features: View
    mean: Const
    scale: float

    @property
    def views(self):
        return (self.features,)

    def score(self, chunk):
        z = self.features(chunk)
        xp = arrays.namespace(z)
        return self.scale * xp.sum((z - self.mean.like(z)) ** 2, axis=1)
'''
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "featfold-global-mean"
version = "1.0"

[project.entry-points."featfold.detectors"]
global_mean = "featfold_global_mean:GlobalMean"
"""
BACKEND = """
import zipfile

NAME = "featfold_global_mean-1.0"


def build_wheel(directory, config_settings=None, metadata_directory=None):
    contents = {
        "featfold_global_mean.py": open("featfold_global_mean.py").read(),
        f"{NAME}.dist-info/METADATA": "Metadata-Version: 2.1\\nName: featfold-global-mean\\n"
        "Version: 1.0\\n",
        f"{NAME}.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\n"
        "Tag: py3-none-any\\n",
        f"{NAME}.dist-info/entry_points.txt": "[featfold.detectors]\\n"
        "global_mean = featfold_global_mean:GlobalMean\\n",
    }
    records = "".join(f"{name},,\\n" for name in contents) + f"{NAME}.dist-info/RECORD,,\\n"
    with zipfile.ZipFile(f"{directory}/{NAME}-py3-none-any.whl", "w") as wheel:
        for name, text in {**contents, f"{NAME}.dist-info/RECORD": records}.items():
            wheel.writestr(name, text)
    return f"{NAME}-py3-none-any.whl"
"""
"""A build backend of its own: nothing is downloaded."""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder that pip has installed the distribution into."""
    project, target = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("site")
    for name, text in (
        ("pyproject.toml", PROJECT), ("backend.py", BACKEND), ("featfold_global_mean.py", MODULE),
    ):  # fmt: skip
        (project / name).write_text(text)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "--target", str(target), str(project)],
        check=True, timeout=200,
    )  # fmt: skip
    return target


@pytest.fixture
def plugin(site, monkeypatch):
    monkeypatch.syspath_prepend(str(site))
    yield
    sys.modules.pop("featfold_global_mean", None)


@pytest.mark.usefixtures("plugin")
def test_python_finds_it_by_name():
    z = np.random.default_rng(0).standard_normal((50, 4))
    fitted = ff.fit(["global_mean", {"name": "global_mean", "preset": "openood-1.5"}],
                    (z, np.zeros(50, int)))  # fmt: skip
    assert list(fitted) == ["global_mean", "global_mean(preset=openood-1.5)"]
    expected = ((z - z.mean(axis=0)) ** 2).sum(axis=1)
    np.testing.assert_allclose(fitted["global_mean"](z), expected)
    np.testing.assert_allclose(fitted["global_mean(preset=openood-1.5)"](z), 2 * expected)


@pytest.mark.usefixtures("plugin")
def test_it_is_saved_and_loaded(tmp_path):
    z = np.random.default_rng(0).standard_normal((50, 4))
    ff.fit("global_mean", (z, np.zeros(50, int))).save(tmp_path / "fit")
    loaded = ff.load(tmp_path / "fit")["global_mean"]
    assert detectors.name_of(loaded.detector) == "global_mean"
    assert loaded(z).shape == (50,)


@pytest.mark.usefixtures("plugin")
def test_a_job_takes_it_with_its_options():
    job = "name: x\nstore: s.zarr\ndetectors: [{name: global_mean, scale: 3}]\n"
    (made,) = config.parse(job, "job").detectors.values()
    assert made == detectors.load("global_mean")(scale=3.0)


@pytest.mark.usefixtures("plugin")
def test_the_table_has_a_row_for_it_and_the_readme_none():
    row = entry("global_mean")
    assert row.cells()[:6] == (
        "`global_mean`", "Nobody 2026", "\\|z - m\\|^2", "features, labels", "1 (1)", "yes",
    )  # fmt: skip
    assert "global_mean" in detectors.names()
    assert "global_mean" not in own()


CONFTEST = "from pipeline.testing.fixtures import dask_client, one_blas_thread\n"
LAWS = """
from featfold_global_mean import GlobalMean

from pipeline.testing import DetectorLaws


class TestGlobalMean(DetectorLaws):
    detector = GlobalMean()

    def reference(self, train, test):
        kept = train["labels"] >= 0
        z, fit = (rows["features"].mean(axis=1) for rows in (test, train))
        return ((z - fit[kept].mean(axis=0)) ** 2).sum(axis=1)
"""


def test_its_laws_need_nothing_but_the_fixtures_of_the_package(site, tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_global_mean.py").write_text(LAWS)
    paths = os.pathsep.join([str(Path(ff.__file__).parents[1]), str(site)])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
         "-k", "processes or reference or not_finite or libraries", str(tmp_path)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths, "FEATFOLD_EXAMPLES": "2"},
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_without_it_the_name_is_unknown():
    with pytest.raises(ff.errors.UnknownNameError, match="unknown detector 'global_mean'"):
        ff.fit("global_mean", np.zeros((3, 2)))
