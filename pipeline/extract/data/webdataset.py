"""Tar files of samples, as webdataset has them: ``000017.jpg`` beside ``000017.cls`` is one row."""

from __future__ import annotations

import glob
import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import ConfigError, CorruptError, DataError, MissingInputError
from pipeline.extract.data.images import Preparation, preparation, stacked
from pipeline.extract.sources import Batch
from pipeline.store.importers.shards import natural

IMAGE = "jpg;jpeg;png;webp;ppm"
KEY, URL = "__key__", "__url__"


@dataclass(frozen=True)
class TarSamples:
    """Samples of tar files, one file after the other; each must have an image."""

    name: str
    urls: tuple[str, ...]
    prepared: Preparation
    image: tuple[str, ...]
    label: str | None
    ids_are_keys: bool
    unit: str = "images"

    @property
    def attributes(self) -> Mapping[str, Any]:
        """What a split records."""
        return {"images": str(self.prepared)}

    def batches(self, rows: int) -> Iterator[Batch]:
        """Yield the samples in the order of the files, ``rows`` at a time.

        Raises :class:`DataError` or :class:`CorruptError` that names shard and key.
        """
        taken: list[tuple[Any, int, int]] = []
        names: list[str] = []
        for count, sample in enumerate(self._samples()):
            what = f"sample {sample[KEY]} of {sample[URL]}"
            row = self.prepared(io.BytesIO(self._field(sample, what)), what)
            taken.append((row, self._label(sample, what), self._id(sample, count, what)))
            names.append(what)
            if len(taken) == rows:
                yield _batch(taken, names)
                taken, names = [], []
        if taken:
            yield _batch(taken, names)

    def _samples(self) -> Iterator[Mapping[str, Any]]:
        """Yield the samples of all shards; each is open only while it is read."""
        from webdataset import gopen, tariterators

        for url in self.urls:
            try:
                with gopen(url) as stream:
                    files = tariterators.tar_file_expander([{"url": url, "stream": stream}])
                    yield from tariterators.group_by_keys(files)
            except FileNotFoundError as error:
                raise MissingInputError(f"webdataset: {url} is not there") from error
            except (OSError, ValueError, EOFError, tarfile.TarError) as error:
                why = error.args[0] if error.args else error  # behind it, the stream
                raise CorruptError(
                    f"webdataset: {url} cannot be read ({why}); mend or remove it"
                ) from error

    def _field(self, sample: Mapping[str, Any], what: str) -> bytes:
        for suffix in self.image:
            if suffix in sample:
                return bytes(sample[suffix])
        found = ", ".join(key for key in sample if not key.startswith("__"))
        raise DataError(
            f"{what} has no image: expected one of {', '.join(self.image)}, found {found}"
        )

    def _label(self, sample: Mapping[str, Any], what: str) -> int:
        if self.label is None:
            return -1
        field, _, key = self.label.partition(":")
        try:
            given = sample[field]
            return int(json.loads(given)[key]) if key else int(given)
        except (KeyError, ValueError, TypeError) as error:
            raise DataError(
                f"{what} has no label in {self.label} ({type(error).__name__}: {error}); name "
                "where it is by label, such as cls or json:label, or say labelled: false"
            ) from error

    def _id(self, sample: Mapping[str, Any], count: int, what: str) -> int:
        if not self.ids_are_keys:
            return count
        if not (key := str(sample[KEY]).rpartition("/")[2]).isdecimal():
            raise DataError(f"{what} cannot be its own id: expected a number; choose ids: index")
        return int(key)


def _batch(taken: list[tuple[Any, int, int]], names: list[str]) -> Batch:
    rows, labels, ids = zip(*taken, strict=True)
    return Batch(stacked(rows, names), np.asarray(labels, np.int64), np.asarray(ids, np.int64))


def webdataset(
    urls: Any,
    transform: Any = None,
    size: Any = None,
    crop: Any = None,
    image: str = IMAGE,
    label: str = "cls",
    labelled: bool = True,
    ids: str = "index",
) -> TarSamples:
    """Return the samples of tar files as a stream of images, labels and ids.

    ``urls`` are files, globs (in natural order), names with braces such as
    ``train-{000..146}.tar``, or what else webdataset opens. ``image`` lists endings, the first one
    of a sample counts; ``label`` is an ending, or ``json:KEY``; ``ids`` are ``index``, places in
    the stream, or ``key``, the name of the sample where it is a number. For ``transform``, ``size``
    and ``crop`` see :func:`pipeline.extract.data.folder.folder`.

    Raises
    ------
    MissingInputError
        When webdataset is not installed, or a glob finds no file.
    ConfigError
        When an option has another form.
    """
    try:
        import webdataset as _  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingInputError(
            "webdataset is not installed: pip install 'featfold[webdataset]'"
        ) from error
    if ids not in ("index", "key"):
        raise ConfigError(f"ids: expected index or key, got {ids!r}")
    given = [urls] if isinstance(urls, str) else list(urls)
    name = ", ".join(map(str, given))
    return TarSamples(
        name, tuple(_expanded(given)), preparation(transform, size, crop),
        tuple(image.split(";")), label if labelled else None, ids == "key",
    )  # fmt: skip


def _expanded(urls: Iterable[Any]) -> Iterator[str]:
    from webdataset.shardlists import expand_urls

    for url in (each for given in urls for each in expand_urls(str(given))):
        if "://" in url or url.startswith("pipe:") or not glob.has_magic(url):
            yield url
            continue
        found = sorted(glob.glob(url), key=natural)
        if not found:
            raise MissingInputError(f"webdataset: {url} finds no file")
        yield from found
