"""Fixtures of all tests that start something."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runkit import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty folder in which `trainbox` can be called."""
    return Project(tmp_path)
