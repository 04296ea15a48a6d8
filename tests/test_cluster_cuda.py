"""GPUs: which are found, what each worker may hold, and what people without them are told.

No test here needs a GPU or its driver. Those of dask-cuda run where it is installed:
workflows/gpu_extras.sh installs it and runs this file.
"""

import inspect
import sys
from importlib.util import find_spec

import fake_nvml
import pytest

from pipeline import arrays, cluster
from pipeline.cluster import cuda, nvml, settling
from pipeline.cluster.nvml import Device
from pipeline.errors import ConfigError

GB = 10**9
without_dask_cuda = pytest.mark.skipif(
    find_spec("dask_cuda") is not None, reason="dask-cuda is installed"
)


def device(place="0", nbytes=80 * GB, name="NVIDIA H100"):
    return Device(place, name, f"GPU-{place}", nbytes)


def usable(nbytes, processes=1):
    return int(0.9 * (nbytes - processes * cuda.CONTEXT_NBYTES))


@pytest.fixture
def machine(monkeypatch):
    """A machine with devices that its driver shows, with dask-cuda and cupy."""

    def of(*devices, visible=None):
        monkeypatch.setitem(sys.modules, "pynvml", fake_nvml)
        monkeypatch.setattr(fake_nvml, "DEVICES", devices)
        monkeypatch.setattr(cuda, "installed", lambda: "26.10.0")
        monkeypatch.setattr(cuda, "gpu_place", lambda: arrays.Place("cupy"))
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return of


H100, A100 = ("NVIDIA H100", 80 * GB, None), ("NVIDIA A100", 40 * GB, None)
CUT = ("NVIDIA H200", 141 * GB, (35 * GB, 18 * GB))


@pytest.mark.parametrize(
    ("visible", "places"),
    [
        (None, ["0", "1", "MIG-2-0", "MIG-2-1"]),
        ("1", ["1"]),
        ("1,0", ["1", "0"]),
        (" 1, 0", ["1", "0"]),
        ("0,-1,1", ["0"]),
        ("GPU-1", ["GPU-1"]),
        ("MIG-2-1", ["MIG-2-1"]),
        ("2", ["MIG-2-0", "MIG-2-1"]),
    ],
)
def test_the_devices_that_the_environment_leaves(machine, visible, places):
    machine(H100, A100, CUT, visible=visible)
    sight = nvml.look()
    assert [found.place for found in sight.devices] == places
    assert (sight.driver, sight.cuda, sight.missing) == ("570.86", 12, "")


def test_a_part_of_a_device_has_its_own_memory(machine):
    machine(H100, CUT)
    assert [found.nbytes for found in nvml.look().devices] == [80 * GB, 35 * GB, 18 * GB]
    assert [found.links for found in nvml.look().devices] == [2, 2, 2]


@pytest.mark.parametrize(
    ("visible", "words"),
    [
        ("", "CUDA_VISIBLE_DEVICES hides every device: unset it"),
        ("-1", "CUDA_VISIBLE_DEVICES hides every device: unset it"),
        ("3", "CUDA_VISIBLE_DEVICES is 3: name devices as nvidia-smi -L does"),
        ("GPU-9", "CUDA_VISIBLE_DEVICES is GPU-9: name devices"),
    ],
)
def test_devices_that_are_hidden_or_unknown_are_told(machine, visible, words):
    machine(H100, visible=visible)
    with pytest.raises(ConfigError, match=words):
        cluster.settle("cuda")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("NVMLError_LibraryNotFound", "no NVIDIA driver is installed here"),
        ("NVMLError_DriverNotLoaded", "driver does not answer .*see what nvidia-smi says"),
    ],
)
def test_a_driver_that_is_missing_or_broken_is_told(machine, monkeypatch, error, words):
    def failing():
        raise getattr(fake_nvml, error)("as NVML says")

    machine(H100)
    monkeypatch.setattr(fake_nvml, "nvmlInit", failing)
    with pytest.raises(ConfigError, match=f"{words}.*choose cluster: local"):
        cluster.settle("cuda")


@without_dask_cuda
def test_without_dask_cuda_it_is_named_with_the_command_that_installs_it():
    with pytest.raises(ConfigError, match=r"needs dask-cuda.*pip install 'featfold\[cuda12\]'"):
        cluster.settle("cuda")


def test_an_old_dask_cuda_is_refused(machine, monkeypatch):
    machine(H100)
    for version in ("0.18.0", "26.4.1"):
        monkeypatch.setattr(cuda, "installed", lambda version=version: version)
        with pytest.raises(ConfigError, match=rf"dask-cuda {version} is too old.*fresh"):
            cluster.settle("cuda")


def test_a_machine_without_a_library_for_its_devices_is_told(machine, monkeypatch):
    machine(H100)
    monkeypatch.setattr(cuda, "gpu_place", lambda: None)
    with pytest.raises(ConfigError, match="needs cupy, or a CUDA build of torch"):
        cluster.settle("cuda")


def test_the_smallest_device_counts(machine):
    machine(H100, A100)
    found = cluster.settle("cuda")
    assert (found.kind, found.workers, found.label) == ("cuda", 2, "2 GPUs")
    assert found.device_nbytes == usable(40 * GB)
    assert found.why == "as asked: NVIDIA H100, NVIDIA A100"
    one = cluster.settle("cuda", workers=1)
    assert (one.device_nbytes, one.label) == (usable(80 * GB), "1 GPU")
    assert one.allowed_nbytes >= 2 * found.allowed_nbytes - 1  # of the host


@pytest.mark.parametrize(
    ("workers", "least"),
    [
        ([(device("0"), 1)], usable(80 * GB)),
        ([(device("0"), 4)], usable(80 * GB) // 4),
        ([(device("0"), 1), (device("0"), 1)], usable(80 * GB, 2) // 2),
        ([(device("0"), 1), (device("0"), 3)], usable(80 * GB, 2) // 4),
        ([(device("0"), 1), (device("1", 16 * GB), 1)], usable(16 * GB)),
        ([(device("0"), 8), (device("1", 16 * GB), 1)], usable(80 * GB) // 8),
        ([(device("0"), 1), (device("1", None), 1)], None),
    ],
)
def test_workers_share_the_device_that_they_are_on(workers, least):
    found = cuda.least_nbytes(workers)
    assert found == least or abs(found - least) <= 1


def test_memory_of_devices_may_be_given(machine):
    machine(H100, A100)
    assert cluster.settle("cuda", device_memory="8GB").device_nbytes == 8 * GB
    with pytest.raises(ConfigError, match=r"device_memory: 46.6 GiB.*smallest GPU has 37.3 GiB"):
        cluster.settle("cuda", device_memory="50GB")
    with pytest.raises(ConfigError, match="device_memory: 'much' is not a size"):
        cluster.settle("cuda", device_memory="much")


@pytest.mark.parametrize("nbytes", [None, 500 * 10**6])
def test_devices_whose_memory_is_unknown_or_too_little_need_a_size(machine, nbytes):
    machine(("Tegra", nbytes, None))
    with pytest.raises(ConfigError, match="give a size"):
        cluster.settle("cuda")
    assert cluster.settle("cuda", device_memory="400MB").device_nbytes == 400 * 10**6


def test_more_workers_than_devices_are_refused(machine):
    machine(H100)
    with pytest.raises(ConfigError, match="workers: 2, and cluster: cuda starts one for each GPU"):
        cluster.settle("cuda", workers=2)


def test_auto_takes_devices_for_large_inputs_where_they_can_be_used(machine, monkeypatch):
    large = settling.SMALL_NBYTES
    machine(visible="")
    assert cluster.settle("auto", input_nbytes=large, memory="1GiB").kind == "local"
    machine(H100, H100)
    found = cluster.settle("auto", input_nbytes=large)
    assert (found.kind, found.why) == ("cuda", "3.73 GiB of input: NVIDIA H100")
    assert cluster.settle("auto", input_nbytes=large - 1).kind == "threads"
    assert cluster.settle("auto", dashboard=True).kind == "local"
    assert cluster.settle("auto", 3, input_nbytes=large).kind == "local"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert cluster.settle("auto", input_nbytes=large).kind == "local"


def test_elsewhere_given_memory_of_devices_says_that_there_are_some():
    there = "tcp://127.0.0.1:1"
    assert cluster.settle(there, 2, "1GiB").device_nbytes is None
    found = cluster.settle(there, 2, "1GiB", device_memory="8GB")
    assert (found.device_nbytes, found.label) == (8 * GB, "2 remote GPUs")
    for kind in ("threads", "local"):  # a job says it for whichever machine it runs on
        assert cluster.settle(kind, 2, "1GiB", device_memory="8GB").device_nbytes is None


def test_only_a_worker_of_dask_cuda_has_a_device_of_its_own(machine, monkeypatch):
    machine(H100, A100, visible="1,0")
    monkeypatch.delitem(sys.modules, "dask_cuda", raising=False)
    assert nvml.own() is None
    monkeypatch.setitem(sys.modules, "dask_cuda", fake_nvml)
    assert nvml.own().name == "NVIDIA A100"


def test_workers_are_started_with_names_that_dask_cuda_knows():
    dask_cuda = pytest.importorskip("dask_cuda", reason="dask-cuda is not installed")
    from distributed import LocalCluster

    known = inspect.signature(dask_cuda.LocalCUDACluster.__init__).parameters
    assert {*cuda.options(["0", "MIG-1"])} <= {*known}
    # The rest goes on to LocalCluster.
    assert {"n_workers", "threads_per_worker", "memory_limit"} <= {*known}
    assert {"dashboard_address", "host", "processes"} <= {
        *inspect.signature(LocalCluster.__init__).parameters
    }


def test_a_machine_without_a_driver_is_told_by_the_real_nvml():
    pynvml = pytest.importorskip("pynvml", reason="pynvml is not installed")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        assert "no NVIDIA driver is installed here" in nvml.look().missing
    else:
        pynvml.nvmlShutdown()
        pytest.skip("there is a driver")
