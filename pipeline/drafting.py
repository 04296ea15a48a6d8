"""A commented job to begin with: empty, over a store that is there, or over folders of images.

What a job can fit is found by rehearsing each detector over the splits: nothing is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline import config, detectors, planning
from pipeline.chunk import ArraySpec
from pipeline.content import hints
from pipeline.errors import FeatfoldError, MissingInputError
from pipeline.store import Store
from pipeline.store.layout import NAME

USUAL = (
    *("msp", "max_logit", "energy", "kl_matching", "mahalanobis", "relative_mahalanobis", "she"),
    *("knn", "vim"),
)
"""Detectors that a new job names where they can be fitted."""
LITE0 = "pipeline.extract.efficientnet_lite0:load"
LITE0_SPEC = ArraySpec((49, 1280), "float32", "TD")
ROLES = {
    **dict.fromkeys(("id/train", "train", "training"), "id/train"),
    **dict.fromkeys(("id/val", "val", "valid", "validation"), "id/val"),
    **dict.fromkeys(("id/test", "test", "testing"), "id/test"),
}
"""Splits by the names of folders; others are out-of-distribution sets."""
_PLAIN = re.compile(r"(?!(?:true|false|null|nan)$)[A-Za-z_][\w./*-]*", re.IGNORECASE)

TEMPLATE = """\
# {title}
#   featfold plan {file}    what it will read and hold; nothing is read
#   featfold run {file}     runs it; the same again goes on where it was
# Any key can be set from the command line: --set resources.workers=2. `featfold schema` prints
# all of them, for editors and for checks.
version: 1
name: {name}    # runs go to runs/{name}/
store: {store}    # a folder, or s3://..., gs://..., az://...
{rows}
# Where logits come from: auto (stored ones, else the saved head of the model, else lda), stored,
# model, lda, {{lda: {{ridge: 1}}}} or {{weights: head.safetensors}}.
head: {head}

# Names, or mappings with options: {{name: knn, k: 50}}. A list of values, k: [5, 50], is a sweep.
detectors:
{detectors}
fit: {{split: {fit}}}
# nonfinite: skip    # leave out rows that are not finite; by default they are an error
{evaluate}
resources:
  cluster: auto    # auto, threads, local, or the tcp:// or tls:// address of a scheduler
  workers: auto    # or a number
  memory: auto     # of each worker: 512MiB, 8GB
report: {{directory: runs}}
"""

BLANK_ROWS = """\
classes: 10    # number of classes k; labels are 0 to k - 1, below 0 is out-of-distribution

# What fills the store. `featfold import FILES --peek` shows which arrays files hold; other splits
# are id/val, id/csid/NAME, ood/near/NAME and ood/val. To extract from images instead:
# model: {import: "package.module:factory"}
# sources:
#   - {split: id/train, data: {folder: data/train}}
sources:
  - {split: id/train, files: "dump/train_*.npz", map: {feat_list: features, label_list: labels}}
  - {split: id/test, files: "dump/test_*.npz", map: {feat_list: features, label_list: labels}}
  - {split: ood/far/other, files: "dump/other_*.npz", map: {feat_list: features}, labels: false}
"""


@dataclass(frozen=True)
class Found:
    """What there is to begin with: splits with their shapes, and what the job says of them."""

    store: str
    splits: Mapping[str, tuple[int, int, Mapping[str, ArraySpec]]]
    """Rows, classes and arrays by split, labels left out; in the order of the job."""
    rows: str = ""
    """The part of the job that fills the store."""
    head: str = "auto"
    is_stored: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why a split, or a folder, is no part of the job."""


def blank() -> Found:
    """Return what a job declares when there is nothing yet: features of 768 numbers."""
    specs = {"features": ArraySpec((768,), "float32", "D")}
    rows = {"id/train": 50_000, "id/test": 10_000, "ood/far/other": 5_000}
    return Found("data/features.zarr", {n: (r, 10, specs) for n, r in rows.items()}, BLANK_ROWS)


def over_store(path: str) -> Found:
    """Return what a store holds; splits that are incomplete are left out.

    Raises :class:`MissingInputError` where there is no store, or none to fit on.
    """
    store, splits, left_out = Store.open(path), {}, {}
    for name in store.splits():
        try:
            schema = store.split(name).schema
        except FeatfoldError as error:
            left_out[name] = str(error)
            continue
        splits[name] = (schema.rows, schema.classes, schema.arrays)
    found = Found(path, splits, is_stored=True, left_out=left_out)
    if not _fit_split(found):
        raise MissingInputError(
            f"{path}: no split to fit on; it has {', '.join(splits) or 'no complete split'}, and "
            "fits take id/train or id/val: `featfold import` or `featfold extract` writes them"
        )
    return found


def over_images(path: str, name: str) -> Found:
    """Return the splits that folders of images become, through a network that pip brings.

    Folders called train, val and test are in-distribution, with a sub-folder for each class; others
    are out-of-distribution: those below near/ near, all else far. Without one called train, the
    folder itself has the classes, and there is nothing to evaluate on.

    Raises :class:`MissingInputError` or DataError where there are no such folders or images.
    """
    from pipeline.extract.data.folder import folder

    root = Path(path)
    if not root.is_dir():
        raise MissingInputError(f"--images: {path} is not there, or is no folder")
    places, left_out = _places(root)
    train = str(places.get("id/train", root))
    if not _folders(Path(train)):
        raise MissingInputError(f"--images: {train} has no sub-folder for each class of images")
    classes = folder(train, labelled=True, classes=train).class_names
    arrays, splits, sources = {"features": LITE0_SPEC}, {}, []
    for split, place in ({"id/train": root} if "id/train" not in places else places).items():
        known: dict[str, Any] = {"labelled": False}
        if split.startswith("id/"):
            known = {"classes": train}
        splits[split] = (len(folder(str(place), **known)), len(classes), arrays)
        said = {"folder": str(place), **({} if split.startswith("ood/") else known)}
        sources.append(f"  - {{split: {split}, data: {_flow(said)}}}\n")
    rows = (
        f"classes: {len(classes)}    # {', '.join(classes[:5])}{', ...' * (len(classes) > 5)}\n\n"
        "# A network pretrained on ImageNet (needs featfold[demo]): 49 tokens. Or another:\n"
        "# model: {timm: NAME, weights: FILE.safetensors, taps: {features: blocks.11}, ...}\n"
        f"model: {{import: {json.dumps(LITE0)}}}\nsources:\n{''.join(sources)}"
    )
    return Found(f"data/{name}.zarr", splits, rows, "{lda: {ridge: 1}}", left_out=left_out)


def job_text(found: Found, name: str, file: str) -> str:
    """Return the YAML of a job, whose detectors are those of the usual ones that can be fitted."""
    entries = {detector: _entry(detector, found) for detector in USUAL}
    whole = _filled(found, name, file, entries.values())
    if _why_not(whole, file) is None:
        return whole
    alone = {n: _filled(found, name, file, [entry]) for n, entry in entries.items()}
    refused = {n: why for n, text in alone.items() if (why := _why_not(text, file))}
    chosen = [entry for n, entry in entries.items() if n not in refused]
    if not chosen:
        raise next(iter(refused.values()))
    return _filled(found, name, file, chosen, refused)


def _why_not(text: str, file: str) -> FeatfoldError | None:
    """Return why a job cannot be planned, or would be refused; None where it is well."""
    try:
        planning.plan(config.parse(text, file)).check()
    except FeatfoldError as error:
        return error
    return None


def _filled(
    found: Found,
    name: str,
    file: str,
    entries: Iterable[str],
    refused: Mapping[str, FeatfoldError] | None = None,
) -> str:
    left = [f"  # - {n}: {_one_line(e)}" for n, e in (refused or {}).items()]
    rows = found.rows if found.is_stored else found.rows + _declared(found)
    rows += "".join(f"# left out: {n}: {_one_line(why)}\n" for n, why in found.left_out.items())
    what = found.store if found.is_stored else name
    return TEMPLATE.format(
        title=f"A job over {what}, written by `featfold init`.",
        file=file, name=name, store=_flow(found.store), rows=rows, head=found.head,
        detectors="\n".join([*(f"  - {entry}" for entry in entries), *left]),
        fit=_fit_split(found), evaluate=_evaluate(found),
    )  # fmt: skip


def _declared(found: Found) -> str:
    lines = ["\n# For plans, until these splits are there: their rows and shapes.\ndeclare:\n"]
    for split, (rows, classes, arrays) in found.splits.items():
        each = {
            array: {"shape": list(spec.shape), "dtype": spec.dtype, "layout": spec.layout}
            for array, spec in arrays.items()
        }
        lines.append(f"  {split}: {_flow({'rows': rows, 'classes': classes, 'arrays': each})}\n")
    return "".join(lines)


def _fit_split(found: Found) -> str:
    return next((name for name in detectors.FIT_SPLITS if name in found.splits), "")


def _evaluate(found: Found) -> str:
    """Return the section that scores every other split, or a comment that says what is missing."""
    fit = _fit_split(found)
    tested = next((n for n in ("id/test", "id/val") if n in found.splits and n != fit), "")
    groups = {
        group: [name for name in found.splits if name.startswith(prefix)]
        for group, prefix in (("near", "ood/near/"), ("far", "ood/far/"), ("csid", "id/csid/"))
    }
    if not (tested and (groups["near"] or groups["far"])):
        return (
            "# To score and compare, add in-distribution rows and others:\n"
            "# evaluate: {id: id/test, near: [ood/near/NAME], far: [ood/far/NAME]}\n"
        )
    lines = [f"  {group}: {_flow(names)}\n" for group, names in groups.items() if names]
    return f"evaluate:\n  id: {tested}\n{''.join(lines)}"


def _entry(detector: str, found: Found) -> str:
    """Return the entry of a detector, with the name of the features where that is another one."""
    arrays = found.splits[_fit_split(found)][2]
    if "features" in arrays or "field" not in hints(detectors.load(detector)):
        return detector
    rest = ("logits", "labels", "pooled", "ids", "mask")
    floats = [n for n, s in arrays.items() if s.shape and "float" in s.dtype and n not in rest]
    return f"{{name: {detector}, field: {floats[0]}}}" if floats else detector


def _places(root: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """Return the folders that become splits, and why others do not."""
    places: dict[str, Path] = {}
    left_out: dict[str, str] = {}
    wanted = [(place, ROLES.get(_below(place, root).lower())) for place in _folders(root)]
    for place in [each for each, role in wanted if role is None]:
        group = "near" if place.parent.name == "near" else "far"
        own = place.name if re.fullmatch(NAME, place.name) else re.sub(r"[^\w.-]+", "_", place.name)
        wanted.append((place, f"ood/{group}/{own}"))
    for place, role in wanted:
        if role is None:
            continue
        if role in places:
            left_out[str(place)] = f"{places[role]} is {role} already"
        else:
            places[role] = place
    near = [role for role in places if role.startswith("ood/near/")]
    order = [*ROLES.values(), *near, *places]
    return {role: places[role] for role in dict.fromkeys(order) if role in places}, left_out


def _folders(root: Path) -> list[Path]:
    """Return the folders that may be splits: those within id/, ood/, near/ and far/ instead."""
    found = []
    for each in sorted(root.iterdir()):
        if each.is_dir() and not each.name.startswith("."):
            grouping = each.name in ("id", "ood", "near", "far")
            found += _folders(each) if grouping else [each]
    return found


def _below(place: Path, root: Path) -> str:
    return place.relative_to(root).as_posix()


def _flow(value: Any) -> str:
    """Return plain data as YAML on one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_flow(key)}: {_flow(each)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    plain = isinstance(value, str) and _PLAIN.fullmatch(value)
    return value if plain else json.dumps(value, ensure_ascii=False)


def _one_line(what: object) -> str:
    return " ".join(str(what).split())
