"""GPUs as NVML, the library of their driver, shows them: no CUDA context is made for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

INSTALL = "pip install 'featfold[cuda12]', or [cuda13] where the driver has CUDA 13"


class Device(NamedTuple):
    """A GPU, or a part of one (MIG)."""

    place: str
    """As CUDA_VISIBLE_DEVICES names it: NVML's number, or a UUID."""
    name: str
    uuid: str
    nbytes: int | None
    """None where it has no memory of its own."""
    used_nbytes: int = 0
    """What all processes hold of it."""
    links: int = 0
    """NVLinks that are up."""


class Sight(NamedTuple):
    """What this process may use."""

    devices: tuple[Device, ...]
    missing: str = ""
    """Why there is none, with a remedy."""
    driver: str = ""
    cuda: int = 0
    """The latest major version of CUDA that the driver knows."""


def look() -> Sight:
    """Return the devices that CUDA_VISIBLE_DEVICES leaves to this process."""
    try:
        import pynvml as nvml
    except ModuleNotFoundError:
        return Sight((), f"pynvml is not installed: {INSTALL}")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if type(error).__name__ == "NVMLError_LibraryNotFound":
            return Sight((), f"no NVIDIA driver is installed here ({error}): install one")
        return Sight((), f"the NVIDIA driver does not answer ({error}): see what nvidia-smi says")
    try:
        devices = tuple(_device(nvml, place, handle) for place, handle in _handles(nvml))
        driver = nvml.nvmlSystemGetDriverVersion()
        cuda = nvml.nvmlSystemGetCudaDriverVersion() // 1000
    except nvml.NVMLError as error:
        named = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
        why = f"the NVIDIA driver does not know a device ({error}); CUDA_VISIBLE_DEVICES is {named}"
        return Sight((), f"{why}: name devices as nvidia-smi -L does")
    finally:
        nvml.nvmlShutdown()
    hidden = "CUDA_VISIBLE_DEVICES" in os.environ
    why = "CUDA_VISIBLE_DEVICES hides every device: unset it" if hidden else "no device is there"
    return Sight(devices, "" if devices else why, driver, cuda)


def own() -> Device | None:
    """Return the device of this process, where dask-cuda started it for one."""
    if "dask_cuda" not in sys.modules:
        return None
    return next(iter(look().devices), None)  # it has put the own one first


def _handles(nvml: Any) -> Iterator[tuple[str, Any]]:
    """Yield what may be used; of a device that is cut into parts, the parts."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = nvml.nvmlDeviceGetCount()
    for place in map(str, range(count)) if named is None else named.split(","):
        place = place.strip()
        if not place or place.startswith("-"):
            return  # as CUDA does: what follows is hidden
        number = place.isdecimal()
        by = nvml.nvmlDeviceGetHandleByIndex if number else nvml.nvmlDeviceGetHandleByUUID
        handle = by(int(place) if number else place.encode())
        if _is_cut(nvml, handle):
            parts = _parts(nvml, handle)
            yield from ((nvml.nvmlDeviceGetUUID(part), part) for part in parts)
        else:
            yield place, handle


def _is_cut(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:  # not a kind that can be, or a part
        return False


def _parts(nvml: Any, handle: Any) -> Iterator[Any]:
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with suppress(nvml.NVMLError):  # fewer were made than there may be
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)


def _device(nvml: Any, place: str, handle: Any) -> Device:
    total: int | None = None
    used = links = 0
    with suppress(nvml.NVMLError):
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        total, used = int(memory.total), int(memory.used)
    with suppress(nvml.NVMLError):  # the first link that is not there
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            links += int(nvml.nvmlDeviceGetNvLinkState(handle, link))
    uuid = nvml.nvmlDeviceGetUUID(handle)
    return Device(place, nvml.nvmlDeviceGetName(handle), uuid, total, used, links)
