"""No array of a chunk is copied to the host on the quiet, where views and statistics compute.

To ask for one number (``int(x)``, ``bool(x)``) waits for the device, which a decision may be worth.
What is copied as a whole goes through ``arrays.to_host``, and is seen in the code.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "pipeline"
COMPUTING = ("views", "statistics", "detectors", "metrics")
FILES = sorted(path for name in COMPUTING for path in (PACKAGE / name).rglob("*.py"))
TO_HOST = ("to_host", "int", "float", "bool", "len", "str", "itemsize", "nbytes")
"""Calls whose result is on the host, and is meant to be."""
OF_HOST = ("shape", "ndim", "dtype", "start", "stop", "rows", "schema", "split", "is_ood")
"""What arrays and chunks know without their device."""


def on_device(node: ast.AST, names: set[str]) -> bool:
    """Tell whether an expression may be an array on a device, as those of ``names`` are."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Attribute) and node.attr in OF_HOST:
        return False
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in TO_HOST:
        return False
    return any(on_device(part, names) for part in ast.iter_child_nodes(node))


def arrays_in(function: ast.FunctionDef) -> set[str]:
    """Return the names that arrays of chunks have in a function."""
    names = {
        argument.arg
        for argument in (*function.args.args, *function.args.kwonlyargs)
        if argument.annotation and ast.unparse(argument.annotation) in ("Array", "Chunk")
    }
    names |= {"state"} if function.name == "absorb" else set()
    while True:
        before = len(names)
        for node in ast.walk(function):
            targets: list[ast.AST] = []
            if isinstance(node, ast.Assign) and on_device(node.value, names):
                targets = list(node.targets)
            elif isinstance(node, ast.comprehension | ast.For) and on_device(node.iter, names):
                targets = [node.target]
            for target in targets:
                names |= {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
        if len(names) == before:
            return names


def copies(source: str) -> Iterator[str]:
    """Yield the calls that bring an array of a chunk to the host without a word."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        names = arrays_in(function)
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            of_numpy = called.startswith("np.") and any(on_device(a, names) for a in node.args)
            if of_numpy or called.endswith(("from_dlpack", ".numpy", ".cpu")):
                yield f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_nothing_is_copied_to_the_host_unseen(path: Path) -> None:
    assert list(copies(path.read_text())) == []


@pytest.mark.parametrize(
    "line",
    [
        "np.asarray(x)",
        "np.sum(chunk['features'])",
        "y = self.of(chunk); z = y + 1; np.flatnonzero(z)",
        "[np.max(part) for part in (x, x)]",
        "xp.from_dlpack(x)",
        "x.numpy()",
        "np.add.at(state.total, 0, 1)",
    ],
)
def test_a_copy_is_noticed(line: str) -> None:
    source = f"def absorb(self, state: Any, x: Array, chunk: Chunk):\n    {line}\n"
    assert len(list(copies(source))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "np.flatnonzero(arrays.to_host(x))",
        "np.zeros(x.shape[1:])",
        "bool(xp.any(x))",
        "np.arange(len(chunk), chunk.rows)",
    ],
)
def test_what_is_on_the_host_may_be_computed_with(line: str) -> None:
    assert not list(copies(f"def absorb(self, state: Any, x: Array, chunk: Chunk):\n    {line}\n"))
