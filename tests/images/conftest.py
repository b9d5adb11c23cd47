"""Fixtures for tests in containers. Images are those of `make images`; no test builds one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.images.dockerkit import Engine, Lab, Tree


@pytest.fixture(scope="session")
def docker() -> Engine:
    """The engine's client. Without an engine tests are skipped, or fail when TRAINBOX_REQUIRE_DOCKER is 1."""
    engine = Engine(os.environ)
    problem = engine.problem()
    if problem and os.environ.get("TRAINBOX_REQUIRE_DOCKER") == "1":
        pytest.fail(f"{problem}, and TRAINBOX_REQUIRE_DOCKER=1", pytrace=False)
    if problem:
        pytest.skip(problem)
    return engine


def _built(docker: Engine, image: str) -> str:
    if not docker.has(image):
        pytest.fail(f"there is no image {image}: run make images", pytrace=False)
    return image


@pytest.fixture(scope="session")
def base_image(docker: Engine) -> str:
    """The toolkit alone, without a framework."""
    return _built(docker, "trainbox/base:cpu")


@pytest.fixture(scope="session")
def pytorch_image(docker: Engine) -> str:
    """PyTorch and the toolkit."""
    return _built(docker, "trainbox/pytorch:cpu")


@pytest.fixture
def lab(docker: Engine) -> Iterator[Lab]:
    """Makes containers and networks for one test, and removes them."""
    made = Lab(docker)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def new_tree(tmp_path: Path) -> Callable[[], Tree]:
    """Makes trees for /opt/ml, one a host."""
    made: list[Tree] = []

    def new() -> Tree:
        made.append(Tree(tmp_path / f"ml-{len(made)}"))
        return made[-1]

    return new


@pytest.fixture
def tree(new_tree: Callable[[], Tree]) -> Tree:
    """The tree of a job of one host."""
    return new_tree()
