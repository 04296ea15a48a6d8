"""``featfold doctor`` on GPUs: judged from records of machines, and asked of this one."""

import os
import resource

import pytest

from pipeline.cli import gpu_checks
from pipeline.cli.gpu_checks import Gpus
from pipeline.cluster.nvml import Device, Sight

GB = 10**9
MISSING = Sight((), "no NVIDIA driver is installed here: install one")


def device(place="0", nbytes=80 * GB, links=0, name="NVIDIA H100"):
    return Device(place, name, f"GPU-{place}", nbytes, GB, links)


def machine(*devices, cuda=12, **rest):
    return Gpus(Sight(devices or (device(),), "", "570.86", cuda), **rest)


NOWHERE = Gpus(MISSING)
CUPY12, CUPY13 = {"cupy-cuda12x": "14.2.0"}, {"cupy-cuda13x": "14.2.0"}


@pytest.mark.parametrize(
    ("check", "gpus", "state", "words"),
    [
        ("devices", NOWHERE, "ok", "none visible: jobs run on the CPU"),
        ("devices", Gpus(MISSING, "nvidia-smi shows A100"), "warn", "jobs cannot use it"),
        ("devices", machine(), "ok", "NVIDIA H100, 74.5 GiB, 953.7 MiB in use; driver 570.86"),
        ("devices", machine(device(nbytes=None)), "ok", "memory of the host"),
        ("cupy", NOWHERE, "ok", "only needed for GPU workers"),
        ("cupy", machine(), "warn", "torch is a CPU build"),
        ("cupy", machine(torch_cuda="12.8"), "ok", "torch, of CUDA 12.8, takes its place"),
        ("cupy", machine(installed=CUPY12), "ok", "cupy-cuda12x 14.2.0"),
        ("cupy", machine(installed=CUPY12 | CUPY13), "fail", "overwrites"),
        ("cupy", Gpus(MISSING, installed=CUPY12 | CUPY13), "warn", "overwrites"),
        ("dask_cuda", NOWHERE, "ok", "only needed for GPU workers"),
        ("dask_cuda", machine(), "warn", "cluster: cuda needs it"),
        ("dask_cuda", machine(installed={"dask-cuda": "26.10.0"}), "ok", "26.10.0"),
        ("dask_cuda", machine(installed={"dask-cuda": "0.18.0"}), "fail", "too old"),
        ("dask_cuda", Gpus(MISSING, installed={"dask-cuda": "26.4.0"}), "fail", "too old"),
        ("cuda", machine(installed=CUPY12, torch_cuda="12.8"), "ok", "driver 12, cupy-cuda12x 12"),
        ("cuda", machine(), "ok", "driver 12"),
        ("cuda", machine(installed=CUPY13), "fail", "driver 12, cupy-cuda13x 13"),
        ("cuda", machine(installed={}, torch_cuda="13.0"), "fail", "torch 13"),
        ("cuda", machine(cuda=13, installed=CUPY12, torch_cuda="13.0"), "warn", "torch 13"),
        ("cuda", machine(cuda=13, installed=CUPY12), "ok", "driver 13, cupy-cuda12x 12"),
        ("rmm", machine(), "ok", "not installed"),
        ("rmm", machine(installed={"rmm-cu12": "26.10", **CUPY12}), "ok", "rmm-cu12 26.10"),
        ("rmm", machine(installed={"rmm-cu13": "26.10", **CUPY12}), "warn", "beside cupy-cuda12x"),
        ("rmm", machine(installed={"rmm-cu12": "1", "rmm-cu13": "1"}), "warn", "no cupy"),
        ("pinned", machine(), "ok", "not limited"),
        ("pinned", machine(locked_nbytes=8 * 2**20), "warn", "may lock 8.0 MiB"),
        ("pinned", machine(locked_nbytes=2**33), "ok", "may lock 8.0 GiB"),
        ("links", machine(), "ok", "none; jobs send only partials"),
        ("links", machine(device("0", links=18), device("1", links=12)), "ok", "by device: 18, 12"),
    ],
)
def test_what_is_found_and_how_to_mend_it(check, gpus, state, words):
    found = getattr(gpu_checks, f"check_{check}")(gpus)
    assert (found.state, words in found.found) == (state, True), found
    assert bool(found.remedy) == (state != "ok")


def test_the_remedy_of_a_mismatch_installs_what_torch_has():
    found = gpu_checks.check_cuda(machine(cuda=13, installed=CUPY12, torch_cuda="13.0"))
    assert found.remedy == "pip uninstall -y cupy-cuda12x; pip install cupy-cuda13x"


@pytest.mark.parametrize(("gpus", "count"), [(NOWHERE, 3), (machine(), 7)])
def test_devices_are_judged_only_where_there_are_some(monkeypatch, gpus, count):
    monkeypatch.setattr(gpu_checks, "gather", lambda: gpus)
    found = list(gpu_checks.diagnose())
    assert len({check.name for check in found}) == count
    assert all(check.state != "fail" for check in found)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'NVIDIA H100, 81559 MiB, 550.54'", "nvidia-smi shows NVIDIA H100, 81559 MiB"),
        ("echo 'No devices were found' >&2; exit 6", "finds no GPU: No devices were found"),
    ],
)
def test_the_program_of_the_driver_is_asked_where_nvml_shows_nothing(
    tmp_path, monkeypatch, script, words
):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # of a machine that has some
    gpus = gpu_checks.gather()
    assert words in gpus.smi
    found = gpu_checks.check_devices(gpus)
    assert (found.state, found.remedy) == ("warn", gpus.sight.missing)


def test_what_may_be_locked_is_that_of_the_process():
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, hard))
    try:
        assert gpu_checks.gather().locked_nbytes == 65536
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))
