"""Imports run downward only, seen in the syntax trees; nothing is newer than the oldest Python we support."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import trainbox

PACKAGE = Path(trainbox.__file__).parent

# From the bottom to the top; a module may import from its own layer and from those below it.
LAYERS = (
    ("errors", "values", "__init__"),
    ("settings",),
    ("hyperparameters", "plan", "machine"),
    ("job", "masking", "causes"),
    ("environ", "fabric", "output", "rank"),
    ("launchers", "log", "process"),
    ("entry", "unpack", "stores", "codeartifact", "ranks", "supervise"),
    ("cluster", "source", "requirements", "report"),
    ("install",),
    ("train",),
    ("start", "local"),
    ("cli",),
)
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}
FILES = sorted(PACKAGE.rglob("*.py"))


def layer(path):
    return LAYER[path.relative_to(PACKAGE).parts[0].removesuffix(".py")]


def imported(tree):
    """Names of our modules that a file imports when it runs; not those for type checkers alone."""
    unreal = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in unreal:
            continue
        if isinstance(node, ast.ImportFrom) and node.module == "trainbox":
            yield from (alias.name for alias in node.names if alias.name != "__version__")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trainbox."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (
                alias.name.split(".")[1] for alias in node.names if alias.name.startswith("trainbox.")
            )


def test_every_module_has_a_layer():
    assert {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES} == set(LAYER)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_downward(path):
    upward = {name for name in imported(ast.parse(path.read_text())) if LAYER[name] > layer(path)}
    assert not upward


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_known_failure_81_a_module_does_nothing_when_it_is_imported(path):
    for node in ast.parse(path.read_text()).body:
        allowed = (
            ast.Import,
            ast.ImportFrom,
            ast.FunctionDef,
            ast.ClassDef,
            ast.Assign,
            ast.AnnAssign,
            ast.If,
        )
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        assert docstring or isinstance(node, allowed), f"line {node.lineno}"
        if isinstance(node, ast.If):
            assert ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'"), (
                f"line {node.lineno}"
            )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_known_failure_40_the_oldest_python_can_read_it(path):
    ast.parse(path.read_text(), feature_version=(3, 10))


def test_the_shim_of_a_rank_stands_alone():
    names = {
        alias.name
        for node in ast.walk(ast.parse((PACKAGE / "rank.py").read_text()))
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert names <= {"_socket", "ctypes", "os", "resource", "signal", "sys"}
