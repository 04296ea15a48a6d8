"""Models of Hugging Face transformers, from a folder of this machine or by name.

Nothing is downloaded unless the weights say ``pretrained``, and no code that a model brings is run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.extract.models.making import Taps, check_weights, finished, library, made
from pipeline.extract.models.weights import PRETRAINED, RANDOM, is_file, kept
from pipeline.extract.taps import Tapped

FOLDER = "folder"
"""Weights that lie beside the configuration."""


def load(
    name: str,
    weights: str = FOLDER,
    taps: Mapping[str, str] | None = None,
    layouts: Mapping[str, str] | None = None,
    prefix: Mapping[str, int] | None = None,
    head: str | None = None,
    mask: str | None = None,
    length: int | None = None,
    pooled: bool = False,
    drop: Sequence[str] = (),
    architecture: str | None = None,
    options: Mapping[str, Any] | None = None,
    device: Any = None,
) -> Tapped:
    """Return the model of a folder, or of a name that was downloaded before, with taps.

    ``weights`` are those in the folder, or a file; ``pretrained`` downloads those of a name, and
    ``random`` ones need a configuration alone. ``architecture`` is a class of transformers, that
    of the configuration if not given; ``options`` change entries of the configuration. Text models
    take mappings, as tokenizers give; image models carry their processor as ``transform``. Other
    parameters are as in :func:`pipeline.extract.models.timm.load`, and ``mask`` and ``length`` as
    in :func:`pipeline.extract.taps.tapped`.

    Raises
    ------
    MissingInputError
        Without transformers, the folder, or weights in it.
    ConfigError
        For a class that transformers does not have, and taps that do not fit.
    DataError
        For weights that lack some of the model's, or have others.
    """
    what = f"transformers: {name}"
    transformers = library("transformers", "hf", what)
    chosen = check_weights(weights, f"{FOLDER}, {PRETRAINED}")
    local = {"local_files_only": chosen != PRETRAINED}
    config = _found(what, lambda: transformers.AutoConfig.from_pretrained(name, **local))
    for key, value in (options or {}).items():
        if not hasattr(config, key):
            raise ConfigError(f"options: the configuration of {name} has no {key!r}")
        setattr(config, key, value)
    kind = _class(transformers, architecture or next(iter(config.architectures or ()), None), name)

    if chosen not in (FOLDER, PRETRAINED, RANDOM) and not is_file(chosen):
        raise ConfigError(f"weights: {chosen!r} is no file, {FOLDER}, {PRETRAINED} or {RANDOM}")
    state = kept(chosen, drop) if is_file(chosen) else None

    def create() -> Any:
        if chosen == RANDOM:
            return kind(config)
        # Names of tensors in files are not always those of the module: transformers turns them.
        given = local if state is None else {"state_dict": state}
        place = name if state is None else None
        with _silent(transformers.utils.logging):
            module, told = _found(
                what,
                lambda: kind.from_pretrained(
                    place, config=config, output_loading_info=True, **given
                ),
            )
        _refuse_unlike(what, told)
        return module

    module = made(create, chosen if chosen == RANDOM else PRETRAINED, drop if not state else ())
    attributes = {
        "model": f"transformers {kind.__name__}",
        "transformers_version": transformers.__version__,
    }
    where = Taps(taps, layouts, prefix, head, mask, length, pooled)
    return finished(module, where, device, _processor(transformers, name, local), attributes)


class Processor:
    """An image processor for one image."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def __call__(self, image: Any) -> Any:
        """Return pixel values (c, h, w) of an RGB image of PIL."""
        return self.processor(image, return_tensors="pt")["pixel_values"][0]

    def __repr__(self) -> str:
        said = {key: str(value) for key, value in self.processor.to_dict().items()}
        return json.dumps(said, sort_keys=True)


def _processor(transformers: Any, name: str, local: Mapping[str, Any]) -> Processor | None:
    """Return the image processor that lies beside a configuration, if any."""
    if Path(name).is_dir() and not (Path(name) / "preprocessor_config.json").exists():
        return None
    try:
        return Processor(transformers.AutoImageProcessor.from_pretrained(name, **local))
    except (OSError, ValueError):
        return None  # of a model that takes no images
    except ImportError as error:
        why = " ".join(str(error).split())
        raise MissingInputError(
            f"transformers: {name}: its image processor needs more ({why}): pip install "
            "'featfold[models]'"
        ) from error


def _found(what: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except (OSError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise MissingInputError(
            f"{what}: {why}; name a folder with config.json and weights, or choose weights: "
            f"{PRETRAINED}, which may download them, {RANDOM}, or a file"
        ) from error


def _class(transformers: Any, architecture: str | None, name: str) -> Any:
    if architecture is None:
        raise ConfigError(
            f"architecture: the configuration of {name} names none; choose a class of "
            "transformers, such as ViTModel"
        )
    kind = getattr(transformers, architecture, None)
    if not hasattr(kind, "from_pretrained") or not hasattr(kind, "forward"):
        raise ConfigError(f"architecture: transformers has no model {architecture!r}")
    return kind


@contextmanager
def _silent(logging: Any) -> Iterator[None]:
    """Have no bar, and no table of what is refused a moment later."""
    bar, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    try:
        logging.disable_progress_bar()
        logging.set_verbosity_error()
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()


def _refuse_unlike(what: str, told: Mapping[str, Any]) -> None:
    wrong = []
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if names := sorted(map(str, told.get(key, ()))):
            shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            wrong.append(f"{len(names)} {key.replace('_', ' ')} ({shown})")
    if wrong:
        raise DataError(
            f"{what}: the weights have {', '.join(wrong)}; choose the architecture that they were "
            "saved from"
        )
