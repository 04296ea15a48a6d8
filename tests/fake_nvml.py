"""NVML of a machine with devices, as the module ``pynvml`` shows it: what these tests ask of it.

A device is (name, memory, parts): parts are the memories of its MIG instances, None where it is not
cut. Also a module that workers can import in place of the real one: see ``DEVICES`` below.
"""

import json
import os
from types import SimpleNamespace

NVML_NVLINK_MAX_LINKS = 18
NVML_DEVICE_MIG_DISABLE, NVML_DEVICE_MIG_ENABLE = 0, 1
DEVICES = json.loads(os.environ.get("FAKE_DEVICES", "[]"))


class NVMLError(Exception):
    pass


class NVMLError_LibraryNotFound(NVMLError):  # noqa: N801, N818 - names of NVML
    pass


class NVMLError_DriverNotLoaded(NVMLError):  # noqa: N801, N818
    pass


class NVMLError_Unknown(NVMLError):  # noqa: N801, N818
    pass


class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818
    pass


def nvmlInit():  # noqa: N802
    pass


def nvmlShutdown():  # noqa: N802
    pass


def nvmlSystemGetDriverVersion():  # noqa: N802
    return "570.86"


def nvmlSystemGetCudaDriverVersion():  # noqa: N802
    return 12080


def nvmlDeviceGetCount():  # noqa: N802
    return len(DEVICES)


def nvmlDeviceGetHandleByIndex(index):  # noqa: N802
    if not 0 <= index < len(DEVICES):
        raise NVMLError("Invalid Argument")
    return f"GPU-{index}"


def nvmlDeviceGetHandleByUUID(uuid):  # noqa: N802
    named = uuid.decode()
    parts = [f"MIG-{i}-{p}" for i, (*_, cut) in enumerate(DEVICES) for p in range(len(cut or ()))]
    if named not in [*parts, *(f"GPU-{i}" for i in range(len(DEVICES)))]:
        raise NVMLError("Not Found")
    return named


def nvmlDeviceGetUUID(handle):  # noqa: N802
    return handle


def _of(handle):
    return DEVICES[int(handle.split("-")[1])]


def nvmlDeviceGetName(handle):  # noqa: N802
    return _of(handle)[0]


def nvmlDeviceGetMigMode(handle):  # noqa: N802
    if handle.startswith("MIG"):
        raise NVMLError("Invalid Argument")
    if _of(handle)[2] is None:
        raise NVMLError_NotSupported("Not Supported")
    return [1, 1]


def nvmlDeviceGetMaxMigDeviceCount(handle):  # noqa: N802
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(handle, index):  # noqa: N802
    if index >= len(_of(handle)[2]):
        raise NVMLError("Not Found")
    return f"MIG-{handle.split('-')[1]}-{index}"


def nvmlDeviceIsMigDeviceHandle(handle):  # noqa: N802
    return handle.startswith("MIG")


def nvmlDeviceGetMemoryInfo(handle):  # noqa: N802
    _, total, parts = _of(handle)
    if handle.startswith("MIG"):
        total = parts[int(handle.split("-")[2])]
    if total is None:
        raise NVMLError_NotSupported("Not Supported")
    return SimpleNamespace(total=total, used=1)


def nvmlDeviceGetNvLinkState(handle, link):  # noqa: N802
    if link >= 2:
        raise NVMLError_NotSupported("Not Supported")
    return 1
