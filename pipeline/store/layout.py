"""How rows lie on disk: names of splits, dtypes and their bytes, and the zarr arrays."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec, ZstdCodec

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import ArraySpec
from pipeline.errors import ConfigError, DataError
from pipeline.store.flushed import FlushedStore
from pipeline.store.place import ObjectPlace, Place, each, is_local

PlaceT = TypeVar("PlaceT", bound=Place)
SCHEMA_VERSION = 1
DECLARATION = "featfold"  # attribute of a group that holds what this package knows of it
MANIFEST = "manifest"
UNFINISHED = "unfinished"  # attribute of a split until the last row of its source is there
CHUNK_NBYTES = 16 * 2**20
BLOCK_NBYTES = 500_000_000
LARGEST_CHUNK_NBYTES = 2**31 - 1  # codecs take no larger buffer
BFLOAT16 = "bfloat16"
_WIDTHS = {"uint": (8, 16, 32, 64), "int": (8, 16, 32, 64), "float": (16, 32, 64)}
DTYPES = frozenset(
    {"bool", BFLOAT16, *(f"{kind}{bits}" for kind in _WIDTHS for bits in _WIDTHS[kind])}
)

NAME = r"(?!\.+$|__)[A-Za-z0-9._-]+"
KINDS = (
    "id/train",
    "id/val",
    "id/test",
    "id/csid/NAME",
    "ood/near/NAME",
    "ood/far/NAME",
    "ood/val",
)
_PATTERNS = tuple(re.compile(kind.replace("NAME", NAME)) for kind in KINDS)


def is_split_name(name: Any) -> bool:
    """Tell whether a split may be called ``name``."""
    return isinstance(name, str) and any(p.fullmatch(name) for p in _PATTERNS)


def check_split_name(name: str) -> None:
    """Raise a ConfigError unless a split may be called ``name``."""
    if not is_split_name(name):
        raise ConfigError(
            f"{name!r} is not the name of a split; expected one of {', '.join(KINDS)}, "
            "where NAME is made of letters, digits, dots, dashes and underscores"
        )


def split_names(root: Place) -> Iterator[str]:
    """Yield the splits of a store that have a manifest: in-distribution first, numbers by value.

    A web server lists nothing: of a store that one offers, only splits without NAME are found.
    """
    there = _object_names(root) if isinstance(root, ObjectPlace) else None
    for kind, pattern in zip(KINDS, _PATTERNS, strict=True):
        names = _local_names(root, kind) if there is None else there
        yield from sorted(filter(pattern.fullmatch, names), key=_natural)


def _local_names(root: Place, kind: str) -> Iterator[str]:
    assert is_local(root)
    found = root.glob(f"{kind.replace('NAME', '*')}/{MANIFEST}/zarr.json")
    return (path.parent.parent.relative_to(root).as_posix() for path in found)


def _object_names(root: ObjectPlace) -> list[str]:
    folders = [kind.removesuffix("/NAME") for kind in KINDS if kind.endswith("/NAME")]
    listed = [[]] if root.is_read_only else each(lambda f: (root / f).children(), folders, root)
    named = [f"{f}/{name}" for f, names in zip(folders, listed, strict=False) for name in names]
    asked = [kind for kind in KINDS if not kind.endswith("/NAME")] + named
    there = each(lambda name: (root / name / MANIFEST / "zarr.json").exists(), asked, root)
    return [name for name, found in zip(asked, there, strict=True) if found]


def _natural(name: str) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def is_ood(name: str) -> bool:
    """Tell whether a split of this name holds out-of-distribution rows."""
    return name.startswith("ood/")


def dtype_name(array: Array) -> str:
    """Return the logical dtype of an array of any library, refusing what cannot be stored."""
    dtype = array.dtype
    name = str(getattr(dtype, "name", None) or str(dtype).rpartition(".")[2])
    if name not in DTYPES:
        raise DataError(
            f"arrays of dtype {dtype} are not supported; use {', '.join(sorted(DTYPES))}"
        )
    return name


def stored_dtype(spec: ArraySpec) -> np.dtype[Any]:
    """Return the dtype of the bytes on disk, little-endian."""
    return np.dtype("uint16" if spec.dtype == BFLOAT16 else spec.dtype).newbyteorder("<")


def encode(rows: Array, spec: ArraySpec) -> np.ndarray[Any, Any]:
    """Return rows of any library as they are stored: on the host, contiguous, bfloat16 as uint16.

    bfloat16 rows come as a bfloat16 tensor, as its bits (uint16), or as float32 that bfloat16 holds
    exactly; anything else is a DataError.
    """
    if spec.dtype != BFLOAT16 or dtype_name(rows) == "uint16":
        return np.ascontiguousarray(arrays.to_host(rows), dtype=stored_dtype(spec))
    bits = np.ascontiguousarray(widen(rows), dtype=np.float32).view(np.uint32)
    if np.any(bits & 0xFFFF):
        raise DataError("float32 values are not exact in bfloat16; round them first")
    return (bits >> 16).astype(stored_dtype(spec))


def widen(rows: Array) -> np.ndarray[Any, Any]:
    """Return rows on the host; bfloat16 tensors, which numpy lacks, become float32."""
    return arrays.to_host(rows.float() if str(rows.dtype) == "torch.bfloat16" else rows)


def widen_into(out: np.ndarray[Any, Any], bits: np.ndarray[Any, Any]) -> None:
    """Decode bfloat16 rows, given as their bits, into float32 ``out``."""
    np.left_shift(bits, 16, out=out.view(np.uint32), dtype=np.uint32)


def check_labels(labels: np.ndarray[Any, Any], classes: int, split: str, start: int) -> None:
    """Raise a DataError that names rows and values if a label is not below ``classes``."""
    wrong = np.unique(np.nonzero(labels >= classes)[0])
    if wrong.size:
        shown = ", ".join(f"row {start + row}: {labels[row].max()}" for row in wrong[:5])
        more = f" and {wrong.size - 5} more rows" if wrong.size > 5 else ""
        raise DataError(
            f"split {split}: labels must be below {classes} (the number of classes), got "
            f"{shown}{more}; mend the labels or declare more classes"
        )


def check_mask(specs: Mapping[str, ArraySpec], where: str) -> None:
    """Raise a DataError if a mask is not one flag for each token of an array with tokens."""
    tokens = {spec.shape[:1] for spec in specs.values() if len(spec.shape) == 2}
    if "mask" in specs and tokens and specs["mask"].shape not in tokens:
        lengths = " or ".join(str(length) for (length,) in sorted(tokens))
        raise DataError(
            f"{where}: mask has rows of shape {specs['mask'].shape}; expected one flag for each "
            f"token, ({lengths},)"
        )


def create_array(
    directory: Place, spec: ArraySpec, rows: int, chunk_rows: int, sample: np.ndarray[Any, Any]
) -> None:
    """Create the zarr array of ``spec`` with ``rows`` rows.

    ``sample``, the first rows to be stored, decides on zstd: only if it saves a third of the bytes.
    """
    trial = _create({}, "trial", spec, len(sample), len(sample), compress=True)
    trial[:] = sample
    saves_a_third = trial.nbytes_stored() * 3 <= sample.nbytes * 2
    store: Any = str(directory)
    if isinstance(directory, ObjectPlace):
        from pipeline.store.object_array import zarr_store

        if (directory / "zarr.json").exists():
            directory.remove_tree()  # what is left of a creation that was killed
        store = zarr_store(directory, read_only=False)
    _create(store, directory.name, spec, rows, chunk_rows, compress=saves_a_third)


def _create(
    store: Any, name: str, spec: ArraySpec, rows: int, chunk_rows: int, *, compress: bool
) -> Any:
    dtype = stored_dtype(spec)
    return zarr.create_array(
        store=store,
        shape=(rows, *spec.shape),
        chunks=(chunk_rows, *spec.shape),
        dtype=dtype,
        filters=None,
        serializer=BytesCodec(endian="little"),
        compressors=[*([ZstdCodec(level=1)] if compress else []), Crc32cCodec()],
        fill_value={"f": math.nan, "i": -1}.get(dtype.kind, 0),
        dimension_names=dimension_names(name, spec),
        attributes={"logical_dtype": spec.dtype, "layout": spec.layout},
        zarr_format=3,
        config={"write_empty_chunks": True},
        overwrite=isinstance(store, str),
    )


def dimension_names(name: str, spec: ArraySpec) -> tuple[str, ...]:
    """Return what the axes of a stored array are called."""
    axes = spec.layout or [str(i + 1) for i in range(len(spec.shape))]
    return ("row", *(f"{name}_{axis}" for axis in axes))


def open_array(directory: Place, mode: str) -> Any:
    """Open a zarr array so that chunks of nothing but fill values are written as well.

    The metadata does not hold that wish, and ``zarr.open_array(config=...)`` ignores it.
    """
    store: Any
    if isinstance(directory, ObjectPlace):
        from pipeline.store.object_array import zarr_store

        store = zarr_store(directory, read_only=mode == "r")
    else:
        store = FlushedStore(directory, read_only=mode == "r")
    return zarr.open_array(store, mode=mode).with_config({"write_empty_chunks": True})


def chunk_file(directory: PlaceT, index: int, spec: ArraySpec) -> PlaceT:
    """Return the file, or object, of a chunk of the array in ``directory``."""
    return directory.joinpath("c", str(index), *("0" for _ in spec.shape))
