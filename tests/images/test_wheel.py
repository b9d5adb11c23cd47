"""The wheel: pure, without dependencies, for every supported Python, installed where nothing else is."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.container

TOP = Path(__file__).resolve().parents[2]
OLDEST = (3, 10)

# What frameworks pin, or what needs a compiler: not even an extra that goes with the toolkit may bring it.
HEAVY = {"boto3", "gevent", "inotify-simple", "numpy", "paramiko", "protobuf", "psutil", "scipy", "werkzeug"}

# Of the standard library, newer than the oldest supported Python.
NEWER_MODULES = {"tomllib", "compression", "annotationlib", "concurrent.interpreters", "string.templatelib"}
NEWER_NAMES = {
    "asyncio": {"Runner", "TaskGroup", "Timeout", "timeout", "timeout_at"},
    "contextlib": {"chdir"},
    "copy": {"replace"},
    "datetime": {"UTC"},
    "enum": {"EnumCheck", "FlagBoundary", "ReprEnum", "StrEnum", "member", "nonmember", "verify"},
    "functools": {"Placeholder"},
    "hashlib": {"file_digest"},
    "inspect": {"getmembers_static", "markcoroutinefunction"},
    "itertools": {"batched"},
    "logging": {"getHandlerByName", "getLevelNamesMapping"},
    "os": {"login_tty", "pidfd_signal", "process_cpu_count", "setns", "unshare"},
    "sys": {"activate_stack_trampoline", "exception", "monitoring"},
    "types": {"CapsuleType", "get_original_bases"},
    "typing": {
        "LiteralString", "Never", "NoDefault", "NotRequired", "ReadOnly", "Required", "Self", "TypeAliasType",
        "TypeIs", "TypeVarTuple", "Unpack", "assert_never", "assert_type", "dataclass_transform",
        "get_overloads", "override", "reveal_type",
    },
    "warnings": {"deprecated"},
}  # fmt: skip
NEWER_BUILTINS = {"BaseExceptionGroup", "ExceptionGroup", "PythonFinalizationError"}
NEWER_METHODS = {"add_note", "from_uri", "full_match", "is_junction"}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, as it is shipped."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(TOP)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    folder.chmod(0o755)
    return built


@pytest.fixture(scope="session")
def sources(wheel: Path) -> dict[str, str]:
    """Every Python file of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist() if name.endswith(".py")}


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_known_failure_38_nothing_is_required(wheel):
    requirements = [Requirement(line) for line in metadata(wheel).get_all("Requires-Dist", [])]
    always = [each.name for each in requirements if not each.marker or each.marker.evaluate({"extra": ""})]
    assert always == []
    for extra in ("local", "stores"):
        names = {each.name for each in requirements if each.marker and each.marker.evaluate({"extra": extra})}
        assert names, f"the extra {extra} has gone"
        assert not names & HEAVY


def test_known_failure_39_the_wheel_is_pure(wheel):
    assert re.fullmatch(r"trainbox-[\w.]+-py3-none-any\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (tags,) = (name for name in names if name.endswith(".dist-info/WHEEL"))
        assert "Root-Is-Purelib: true" in archive.read(tags).decode()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"trainbox"}
    assert [name for name in names if name.endswith((".so", ".c", ".pyc", ".h"))] == []
    assert "trainbox/py.typed" in names


def test_known_failure_39_installs_without_compiler_and_network(base_image, lab, wheel):
    # An environment of its own, with Debian's Python; the pip of the image puts the wheel into it.
    steps = (
        "/usr/bin/python3 -m venv --without-pip /tmp/fresh\n"
        "export PIP_PYTHON=/tmp/fresh/bin/python\n"
        "pip install --no-index --only-binary :all: /wheel/*.whl\n"
        "pip check\n"
        "cd / && env -i /tmp/fresh/bin/train --version\n"
        "env -i /tmp/fresh/bin/python -c 'import trainbox; print(trainbox.__file__)'\n"
    )
    options = ("--network", "none", "--volume", f"{wheel.parent}:/wheel:ro")
    ended = lab.run(base_image, "bash", "-e", "-c", steps, options=options)
    assert ended.code == 0, ended.log
    *_, version, file = ended.out.splitlines()
    assert version == f"trainbox {metadata(wheel)['Version']}"
    assert file.startswith("/tmp/fresh/")


def test_known_failure_40_the_supported_versions_are_stated(wheel):
    found = metadata(wheel)
    assert found["Requires-Python"] == f">={OLDEST[0]}.{OLDEST[1]}"
    stated = {line.rpartition(" ")[2] for line in found.get_all("Classifier", []) if "Python :: 3." in line}
    assert {"3.10", "3.11", "3.12", "3.13"} <= stated


def test_known_failure_40_every_module_is_of_the_oldest_grammar(sources):
    assert len(sources) > 20
    for name, text in sources.items():
        ast.parse(text, name, feature_version=OLDEST)


def newer_names(tree: ast.AST) -> set[str]:
    """Names of the standard library in a module that the oldest supported Python does not have."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & NEWER_MODULES
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module} & NEWER_MODULES
            names = {alias.name for alias in node.names}
            found |= {f"{node.module}.{name}" for name in names & NEWER_NAMES.get(node.module, set())}
        elif isinstance(node, ast.Attribute):
            module = node.value.id if isinstance(node.value, ast.Name) else ""
            if node.attr in NEWER_METHODS or node.attr in NEWER_NAMES.get(module, set()):
                found.add(f"{module}.{node.attr}")
        elif isinstance(node, ast.Name):
            found |= {node.id} & NEWER_BUILTINS
    return found


def test_known_failure_40_no_module_uses_a_newer_standard_library(sources):
    example = ast.parse("import tomllib, enum\nenum.StrEnum\nfrom typing import Self\nExceptionGroup")
    assert newer_names(example) == {"tomllib", "enum.StrEnum", "typing.Self", "ExceptionGroup"}
    found = {name: newer_names(ast.parse(text)) for name, text in sources.items()}
    assert {name: names for name, names in found.items() if names} == {}
