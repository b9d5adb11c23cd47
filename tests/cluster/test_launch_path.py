"""What the launcher of a job imports: every job pays for it, and it must not meet the script's packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.cluster

# Dear to import (figures in the design), or none of a launcher's business.
NEVER = {
    "asyncio", "dataclasses", "logging", "importlib.metadata", "subprocess", "tempfile", "pathlib",
    "argparse", "inspect", "urllib", "urllib.request", "http", "ssl", "concurrent.futures",
    "multiprocessing", "threading", "torch", "numpy", "tensorflow", "obstore", "boto3", "docker", "rich",
    "google.protobuf",
}  # fmt: skip
ONE_HOST_NEVER = {"socket", "trainbox.cluster", "trainbox.cluster.join", "tarfile", "ctypes.util"}

PROGRAM = """
import json, os, sys
from trainbox import train
code = train.run(tuple(sys.argv[1:]), dict(os.environ))
assert code == 0, code
print("MODULES " + json.dumps(sorted(sys.modules)))
"""


def modules(tmp_path, *folders):
    """Names of the modules that a whole job of one host has loaded. folders: first on the import path."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("")
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path[:] = {[*folders, *sys.path]!r}\n{PROGRAM}",
            "train.py",
        ],
        env={"PATH": os.environ["PATH"], "SAGEMAKER_BASE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.partition("MODULES ")[2]))


def test_known_failure_38_a_job_of_one_host_imports_only_what_it_needs(tmp_path):
    found = modules(tmp_path)
    assert not found & (NEVER | ONE_HOST_NEVER)
    ours = {name.partition(".")[0] for name in found if not name.startswith("_")} - set(
        sys.stdlib_module_names
    )
    assert ours <= {"trainbox"}


def test_known_failure_73_packages_that_raise_or_sleep_are_never_imported(tmp_path):
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ("smdebug", "tensorflow", "torch", "numpy"):
        (packages / f"{name}.py").write_text("raise RuntimeError('imported by the launcher')")
    assert not modules(tmp_path, str(packages)) & {"smdebug", "tensorflow", "torch", "numpy"}
