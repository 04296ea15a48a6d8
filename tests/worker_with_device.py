"""Preloaded by a dask worker: a GPU that dask-cuda gave it, whose memory is that of the host."""

import os
import sys

import fake_nvml

from pipeline import arrays
from pipeline.arrays import libraries


def gpu_place():
    return arrays.Place(os.environ.get("GPU_LIBRARY", "torch"), "cpu")


sys.modules |= {"pynvml": fake_nvml, "dask_cuda": fake_nvml}
arrays.gpu_place = libraries.gpu_place = gpu_place
