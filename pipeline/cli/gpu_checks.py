"""What ``featfold doctor`` says of GPUs: gathered once, and judged without any."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import distributions

from pipeline.cli.checks import FAIL, OK, WARN, Check
from pipeline.cluster.nvml import INSTALL, Sight
from pipeline.report.text import size

SMI_SECONDS = 20
FEW_LOCKED_NBYTES = 2**30
WHEELS = {"cupy-cuda11x": 11, "cupy-cuda12x": 12, "cupy-cuda13x": 13}
"""Distributions of cupy and the CUDA they are built for."""
_GPU_LIBRARY = re.compile(r"cupy(-cuda\d+x)?|dask-cuda|rmm(-cu\d+)?")


@dataclass(frozen=True)
class Gpus:
    """What there is of GPUs, and of what is needed to compute on them."""

    sight: Sight
    smi: str = ""
    """What nvidia-smi says, where NVML cannot be asked; empty without it."""
    installed: Mapping[str, str] = field(default_factory=dict)
    """Versions of the distributions of cupy, dask-cuda and rmm."""
    torch_cuda: str = ""
    """The CUDA that torch is built for; empty for a CPU build."""
    locked_nbytes: int | None = None
    """Memory that this process may lock; None for no limit."""

    @property
    def any(self) -> bool:
        """Whether a device may be used."""
        return bool(self.sight.devices)

    @property
    def cupy(self) -> list[str]:
        """The distributions that install the package ``cupy``."""
        return [name for name in self.installed if name.startswith("cupy")]


def diagnose() -> Iterator[Check]:
    """Yield the checks of this machine; those of devices only where there are some."""
    gpus = gather()
    for check in (check_devices, check_cupy, check_dask_cuda):
        yield check(gpus)
    if gpus.any:
        for check in (check_cuda, check_rmm, check_pinned, check_links):
            yield check(gpus)


def gather() -> Gpus:
    """Look at this machine; no GPU library is loaded, and no CUDA context is made."""
    from pipeline.arrays import torch_cuda
    from pipeline.cluster import nvml

    names = {dist.metadata["Name"].lower(): dist.version for dist in distributions()}
    found = {name: v for name, v in names.items() if _GPU_LIBRARY.fullmatch(name)}
    sight = nvml.look()
    smi = "" if sight.devices else _ask_smi()
    return Gpus(sight, smi, found, torch_cuda(), _locked_nbytes())


def check_devices(gpus: Gpus) -> Check:
    """The driver answers, and shows devices."""
    sight = gpus.sight
    if sight.devices:
        each = "; ".join(
            f"{d.name}, {size(d.nbytes) if d.nbytes else 'memory of the host'}"
            + (f", {size(d.used_nbytes)} in use" if d.used_nbytes else "")
            for d in sight.devices
        )
        return Check("gpu", OK, f"{each}; driver {sight.driver}, CUDA {sight.cuda}")
    if not gpus.smi:
        return Check("gpu", OK, "none visible: jobs run on the CPU")
    return Check("gpu", WARN, f"{gpus.smi}, but jobs cannot use it", sight.missing)


def check_cupy(gpus: Gpus) -> Check:
    """There is one array library for the device, and only one cupy."""
    found = ", ".join(f"{name} {gpus.installed[name]}" for name in gpus.cupy)
    if len(gpus.cupy) > 1:
        remedy = f"pip uninstall -y {' '.join(gpus.cupy)}; then {INSTALL}"
        overwrite = f"{found}: each overwrites the files of the other"
        return Check("cupy", FAIL if gpus.any else WARN, overwrite, remedy)
    if found:
        return Check("cupy", OK, found)
    if not gpus.any:
        return Check("cupy", OK, "not installed; only needed for GPU workers")
    if gpus.torch_cuda:
        return Check(
            "cupy", OK, f"not installed: torch, of CUDA {gpus.torch_cuda}, takes its place"
        )
    return Check("cupy", WARN, "not installed, and torch is a CPU build", INSTALL)


def check_dask_cuda(gpus: Gpus) -> Check:
    """Dask-cuda, if installed, is not the release of 2021 that pip falls back to."""
    from pipeline.cluster import cuda

    found = gpus.installed.get("dask-cuda")
    if found is not None and cuda.is_old(found):
        return Check(
            "dask-cuda", FAIL, f"{found} is too old for this dask",
            f"{INSTALL}, into a fresh environment",
        )  # fmt: skip
    if found is not None:
        return Check("dask-cuda", OK, found)
    if gpus.any:
        return Check("dask-cuda", WARN, "not installed: cluster: cuda needs it", INSTALL)
    return Check("dask-cuda", OK, "not installed; only needed for GPU workers")


def check_cuda(gpus: Gpus) -> Check:
    """Driver, cupy and torch agree on the major version of CUDA."""
    driver = gpus.sight.cuda
    built = {name: WHEELS[name] for name in gpus.cupy if name in WHEELS}
    if gpus.torch_cuda:
        built["torch"] = int(gpus.torch_cuda.partition(".")[0])
    found = ", ".join([f"driver {driver}", *(f"{name} {major}" for name, major in built.items())])
    if late := [name for name, major in built.items() if major > driver]:
        remedy = f"update the driver, or install builds for CUDA {driver} of {', '.join(late)}"
        return Check("cuda versions", FAIL, found, remedy)
    if len({*built.values()}) > 1:
        remedy = f"pip uninstall -y {' '.join(gpus.cupy)}; pip install cupy-cuda{built['torch']}x"
        return Check("cuda versions", WARN, found, remedy)
    return Check("cuda versions", OK, found)


def check_rmm(gpus: Gpus) -> Check:
    """RMM, if installed, is one, and for the CUDA of cupy."""
    found = [name for name in gpus.installed if name.startswith("rmm")]
    shown = ", ".join(f"{name} {gpus.installed[name]}" for name in found)
    majors = {int(name[6:]) for name in found if name.startswith("rmm-cu")}
    wanted = {WHEELS[name] for name in gpus.cupy if name in WHEELS}
    if len(found) > 1 or (majors and wanted and majors != wanted):
        remedy = f"pip uninstall -y {' '.join(found)}; pools of cupy and torch do without it"
        return Check("rmm", WARN, f"{shown}, beside {', '.join(gpus.cupy) or 'no cupy'}", remedy)
    return Check("rmm", OK, shown or "not installed; pools of cupy and torch do without it")


def check_pinned(gpus: Gpus) -> Check:
    """Memory may be locked, as copies to a device that go on beside the computing need it."""
    locked = gpus.locked_nbytes
    if locked is None:
        return Check("pinned memory", OK, "not limited")
    if locked < FEW_LOCKED_NBYTES:
        remedy = "ulimit -l unlimited, if a job says that it cannot allocate pinned memory"
        return Check("pinned memory", WARN, f"processes may lock {size(locked)}", remedy)
    return Check("pinned memory", OK, f"processes may lock {size(locked)}")


def check_links(gpus: Gpus) -> Check:
    """What connects the devices; nothing that a job needs."""
    links = [device.links for device in gpus.sight.devices]
    if not any(links):
        return Check("nvlink", OK, "none; jobs send only partials between workers")
    each = ", ".join(map(str, links))
    return Check("nvlink", OK, f"links that are up, by device: {each}")


def _ask_smi() -> str:
    """Return what the driver's own program shows, or says."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    query = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            query, capture_output=True, text=True, timeout=SMI_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi: {error}"
    shown = "; ".join(done.stdout.split("\n")).strip("; ")
    if done.returncode or not shown:
        return f"nvidia-smi finds no GPU: {(done.stderr or done.stdout).strip().split(chr(10))[0]}"
    return f"nvidia-smi shows {shown}"


def _locked_nbytes() -> int | None:
    try:
        import resource
    except ModuleNotFoundError:  # a system without such limits
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft
