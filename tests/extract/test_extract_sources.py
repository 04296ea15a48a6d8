"""Factories named in a configuration: what resolves, and what each mistake is answered with."""

import subprocess
import sys

import numpy as np
import pytest

from pipeline.errors import ConfigError, MissingInputError, UnknownNameError
from pipeline.extract import build, mean_pixel, resolve
from pipeline.extract.sources import Batch


def test_a_path_gives_the_callable_it_names():
    assert resolve("pipeline.extract.sources:build") is build


@pytest.mark.parametrize("path", ["", "os", "os:", ":getcwd", "os.getcwd"])
def test_a_path_of_another_form_is_refused(path):
    with pytest.raises(ConfigError, match=r"the form package\.module:factory"):
        resolve(path)


def test_near_names_are_suggested():
    with pytest.raises(UnknownNameError, match="did you mean 'sample_images'"):
        resolve("pipeline.extract.sample_image:digits")
    with pytest.raises(UnknownNameError, match="did you mean 'digits'"):
        resolve("pipeline.extract.sample_images:digit")
    with pytest.raises(UnknownNameError, match="no module 'no_such_package'"):
        resolve("no_such_package.inner:thing")
    with pytest.raises(ConfigError, match="expected a factory, got int"):
        resolve("pipeline.extract.sample_images:SIDE")


def test_a_module_that_lacks_a_package_is_not_called_unknown(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import package_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingInputError, match="needs 'package_that_is_not_there'"):
        resolve("needs_more:factory")


def test_arguments_are_checked_before_the_call():
    with pytest.raises(ConfigError, match=r"did you mean 'split'.*it takes: split, classes"):
        build("pipeline.extract.sample_images:digits", splt="train")
    with pytest.raises(ConfigError, match="missing a required argument"):
        build("pipeline.extract.sources:resolve")
    assert build("builtins:dict", a=1) == {"a": 1}


def test_mean_pixel_is_the_mean_of_every_image():
    images = np.random.default_rng(0).integers(0, 256, (150, 5, 7, 3), dtype=np.uint8)

    class Images:
        name = "noise"

        def __len__(self):
            return len(images)

        def read(self, start, stop):
            none = np.full(stop - start, -1)
            return Batch(images[start:stop], none, none)

    expected = images.astype(np.float64).mean(axis=(1, 2, 3))
    np.testing.assert_allclose(mean_pixel(Images()), expected, rtol=1e-13)


def test_sources_need_no_torch():
    code = (
        "import sys, pipeline.extract, pipeline.extract.sample_images as s\n"
        "heavy = {'torch', 'sklearn', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
