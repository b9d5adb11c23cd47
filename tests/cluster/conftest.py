"""Fixtures for jobs made of processes of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runkit import Project
from tests.trainkit import Tree, cluster
from trainbox.local.processes import free_ports


def processes_with(mark: str) -> list[int]:
    """Ids of the living processes that have these words in their environment."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            content = Path(f"/proc/{entry}/environ").read_bytes() if entry.isdigit() else b""
        except OSError:  # gone, or another user's
            continue
        if mark.encode() in content:
            found.append(int(entry))
    return found


@pytest.fixture
def left_behind(project: Project) -> Callable[[], list[int]]:
    """Processes of the project's jobs that are still there."""
    return lambda: processes_with(f"SAGEMAKER_BASE_DIR={project.folder}")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """The tree of a job of one host."""
    return Tree(tmp_path / "ml")


@pytest.fixture
def hosts(tmp_path: Path) -> Callable[[int], tuple[list[Tree], dict[str, str]]]:
    """Makes the trees of several hosts on loopback, with ports that are free, and their variables."""
    return lambda count: cluster(tmp_path, count, *free_ports(2))
