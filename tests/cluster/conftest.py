"""Fixtures for jobs made of processes of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runkit import Project


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
