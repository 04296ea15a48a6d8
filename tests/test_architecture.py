"""The house rules that a reader relies on: layers, fences, sizes, and a table equal to the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pipeline"
FILES = sorted(PACKAGE.rglob("*.py"))

# From the ground up; a module imports only from lines above its own, never from its siblings.
LAYERS = (
    ("errors",),
    ("files", "locks", "machine", "spawning", "stopping"),
    ("arrays", "calibration", "events", "tasks"),
    ("content",),
    ("chunk",),
    ("partials",),
    ("linalg",),
    ("views",),
    ("statistics", "gather", "batches", "feeding"),
    ("procedure",),
    ("heads", "bank", "quantiles"),
    ("subspace", "shaping", "disagreement"),
    ("detectors", "metrics", "running"),
    ("synthetic", "fold", "sweeps", "choice"),
    ("pooled",),
    ("plan", "store"),
    ("jobs",),
    ("engine",),
    ("cluster", "evaluation", "exporting", "extract", "importing", "inputs"),
    ("workplace",),
    ("streams",),
    ("loaders", "measuring"),
    ("scoring",),
    ("fitted",),
    ("api", "pytorch_ood", "report", "testing"),
    ("config", "facts", "selection", "collection"),
    ("ddp", "provenance"),
    ("detector_table", "fill", "planning", "seeds", "shapes"),
    ("drafting", "status", "unstored"),
    ("comparing", "job", "retention"),
    ("bench",),
    ("cli",),
    ("__main__",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FOLDERS_OF_STRANGERS = ("detectors",)  # files that may not import one another

FENCES = {
    "zarr": ("store",),
    "obstore": ("store",),
    "dask": ("engine", "cluster"),
    "distributed": ("engine", "cluster"),
    "torch": (  # bench/peer.py runs in an interpreter of its own
        "extract",
        "ddp",
        "bench",
        "pytorch_ood",
        "store/importers/torch_file",
        "arrays/torch_device",
    ),
    "cupy": ("arrays",),
    "matplotlib": ("report",),
    "pydantic": ("config",),
    "click": ("cli",),
}
LINES_LIMIT = 400


def module_of(path: Path) -> tuple[str, ...]:
    return path.relative_to(PACKAGE).with_suffix("").parts


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (f"{module}.{alias.name}" for alias in node.names)


def faults(path: Path) -> list[str]:
    """Return what a file does that the house does not allow."""
    own = module_of(path)
    if own == ("__init__",):
        return []
    found = []
    for name in imports(path):
        top, *rest = name.split(".")
        if not top:
            found.append(f"{path.name} imports {name}: write it from pipeline on")
        if top in FENCES and not {own[0], "/".join(own)} & {*FENCES[top]}:
            found.append(f"{path.name} imports {top}, which only {FENCES[top]} may")
        if top != "pipeline" or not rest:
            continue
        if rest[0] == own[0]:
            stranger = own[0] in FOLDERS_OF_STRANGERS and own[1] != "__init__"
            if stranger and rest[1:] and rest[1] != own[1]:
                found.append(f"{path.name} imports its sibling {name}")
        elif rest[0] in LEVEL and LEVEL[rest[0]] >= LEVEL[own[0]]:
            found.append(f"{path.name} of layer {own[0]} imports {name}")
    if len(path.read_text().splitlines()) > LINES_LIMIT:
        found.append(f"{path.name} has more than {LINES_LIMIT} lines")
    if not ast.get_docstring(ast.parse(path.read_text())):
        found.append(f"{path.name} has no docstring")
    if path.stem in ("utils", "util", "helpers", "common", "misc"):
        found.append(f"{path.name} says nothing about what is in it")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(module_of(path)))
def test_every_file_keeps_the_house_rules(path):
    assert faults(path) == []


def test_every_module_has_a_layer():
    names = {module_of(path)[0] for path in FILES} - {"__init__"}
    assert names == set(LEVEL)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("import dask.array", "imports dask"),
        ("from pipeline.detectors.msp import MSP", "imports its sibling"),
        ("from pipeline.engine import run", "of layer detectors imports"),
        ("import torch", "imports torch"),
        ("from ..engine import run", "write it from pipeline on"),
        ("#\n" * 400, "more than 400 lines"),
    ],
)
def test_the_rules_notice_a_breach(tmp_path, monkeypatch, line, complaint):
    broken = tmp_path / "detectors" / "she.py"
    broken.parent.mkdir()
    broken.write_text((PACKAGE / "detectors" / "she.py").read_text() + "\n" + line + "\n")
    monkeypatch.setattr("test_architecture.PACKAGE", tmp_path)
    assert any(complaint in fault for fault in faults(broken))


def table(heading: str) -> set[str]:
    """Return the names in the first column of the README table under a heading."""
    readme = (ROOT / "README.md").read_text()
    section = readme.partition(f"### {heading}\n")[2].partition("\n#")[0]
    return set(re.findall(r"^\| `(\w+)` ", section, flags=re.MULTILINE))


def test_the_readme_lists_the_detectors_that_exist():
    from pipeline import detectors

    assert table("Detectors") == {
        module.stem for module in (PACKAGE / "detectors").glob("[a-z]*.py")
    }
    assert table("Detectors") <= set(detectors.names())


def test_the_readme_lists_the_metrics_that_exist():
    from pipeline import metrics

    public = {name for name in vars(metrics) if hasattr(getattr(metrics, name), "passes")}
    assert table("Metrics") == public
