"""Builds the images of images.toml, parents first, and holds each to its size budget.

PIP_EXTRA_INDEX_URL and WHEELHOUSE of the environment become build arguments where a Dockerfile has them.
Builds do not see folders of this machine, so a folder of wheels in PIP_FIND_LINKS goes in as an image, which
is the WHEELHOUSE when none is given. BASE replaces parents that are not in the list; DOCKER names the client.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOP = Path(__file__).resolve().parent.parent
PASSED_ON = ("PIP_EXTRA_INDEX_URL", "WHEELHOUSE")
OWN_WHEELHOUSE = "trainbox/wheelhouse:local"


class Image(NamedTuple):
    """One table of images.toml, which says what the fields mean."""

    name: str
    parent: str
    dockerfile: str
    extra: str
    args: Mapping[str, str]
    budget_mb: int


def read_images(path: Path = TOP / "containers" / "images.toml") -> list[Image]:
    """The list, in its own order. An unknown or missing key is a TypeError that names it."""
    with path.open("rb") as file:
        return [Image(**table) for table in tomllib.load(file)["image"]]


def in_build_order(images: list[Image], only: list[str]) -> list[Image]:
    """Parents before children; `only` keeps the images of these names and the parents they need."""
    by_name = {image.name: image for image in images}
    ordered: dict[str, Image] = {}

    def add(name: str, children: tuple[str, ...] = ()) -> None:
        if name in children:
            raise SystemExit(f"images.toml: {' -> '.join((*children, name))} is a circle of parents")
        if name in by_name and name not in ordered:
            add(by_name[name].parent, (*children, name))
            ordered[name] = by_name[name]

    for name in only or by_name:
        if name not in by_name:
            raise SystemExit(f"images.toml has no image {name!r}; it has {', '.join(by_name)}")
        add(name)
    return list(ordered.values())


def declared_arguments(image: Image) -> dict[str, str]:
    """Names and defaults of the ARG lines of the image's Dockerfile."""
    text = (TOP / image.dockerfile).read_text(encoding="utf-8")
    return dict(re.findall(r'^ARG (\w+)=?"?([^"\n]*)"?$', text, re.MULTILINE))


def docker(environ: Mapping[str, str]) -> str:
    """The client's name or path."""
    return environ.get("DOCKER") or "docker"


def build_command(
    image: Image, images: list[Image], environ: Mapping[str, str], labels: Mapping[str, str]
) -> list[str]:
    """The argument list that builds one image."""
    outside = image.parent not in {other.name for other in images}
    base = environ.get("BASE") if outside else None
    arguments = {"BASE": base or image.parent, **image.args}
    declared = declared_arguments(image)
    arguments |= {name: environ[name] for name in PASSED_ON if environ.get(name) and name in declared}
    command = [docker(environ), "build", "--file", image.dockerfile, "--tag", image.name]
    for name, value in arguments.items():
        command += ["--build-arg", f"{name}={value}"]
    for name, value in labels.items():
        command += ["--label", f"{name}={value}"]
    return [*command, "."]


def folder_of_wheels(environ: Mapping[str, str]) -> Path | None:
    """The first folder in PIP_FIND_LINKS that has wheels (it may hold URLs, too)."""
    words = environ.get("PIP_FIND_LINKS", "").split()
    folders = [Path(word.removeprefix("file://")) for word in words]
    return next((folder for folder in folders if any(folder.glob("*.whl"))), None)


def make_wheelhouse(folder: Path, environ: Mapping[str, str]) -> None:
    """An image that holds the wheels of a folder and nothing else."""
    command = [docker(environ), "build", "--quiet", "--file", "-", "--tag", OWN_WHEELHOUSE, str(folder)]
    recipe = b"FROM scratch\nCOPY *.whl /\n"
    subprocess.run(command, input=recipe, env=environ, stdout=subprocess.DEVNULL, check=True)


def labels_of_this_tree() -> dict[str, str]:
    """The toolkit's version, and the commit where there is one. Given as options, they spoil no layer."""
    text = (TOP / "toolkit" / "trainbox" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    labels = {"org.opencontainers.image.version": found.group(1)} if found else {}
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=TOP, capture_output=True, text=True, timeout=30, check=True
        )
        labels["org.opencontainers.image.revision"] = commit.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        pass
    return labels


def size_mb(name: str, environ: Mapping[str, str]) -> int:
    """Size of a built image, unpacked, in MB of 10^6 bytes."""
    command = [docker(environ), "image", "inspect", "--format", "{{.Size}}", name]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return int(found.stdout) // 10**6


def build(image: Image, command: list[str], environ: Mapping[str, str], verbose: bool) -> bool:
    """Builds one image and prints its size and the time; false when it is larger than its budget.

    Raises CalledProcessError when the build fails, after Docker has printed why.
    """
    start = time.monotonic()
    if verbose:
        subprocess.run(command, cwd=TOP, env=environ, check=True)
    else:
        quiet = [*command[:2], "--quiet", *command[2:]]
        subprocess.run(quiet, cwd=TOP, env=environ, stdout=subprocess.DEVNULL, check=True)
    size = size_mb(image.name, environ)
    seconds = time.monotonic() - start
    print(f"{image.name}: {size} MB of {image.budget_mb}, built in {seconds:.0f} s", flush=True)
    return size <= image.budget_mb


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the images of containers/images.toml.")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this and its parents")
    parser.add_argument("--list", action="store_true", help="print the names in build order, and end")
    parser.add_argument("--verbose", action="store_true", help="show the output of builds that succeed, too")
    options = parser.parse_args()

    images = read_images()
    chosen = in_build_order(images, options.only)
    if options.list:
        print(*(image.name for image in chosen), sep="\n")
        return 0

    environ = {"DOCKER_BUILDKIT": "1", **os.environ}
    labels = labels_of_this_tree()
    too_large = []
    try:
        folder = folder_of_wheels(environ)
        if folder and not environ.get("WHEELHOUSE"):
            make_wheelhouse(folder, environ)
            environ["WHEELHOUSE"] = OWN_WHEELHOUSE
        for image in chosen:
            if not build(image, build_command(image, images, environ, labels), environ, options.verbose):
                too_large.append(image.name)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"containers/build.py: {error}", file=sys.stderr)
        return 1
    if too_large:
        print(
            f"larger than the budget in containers/images.toml: {', '.join(too_large)}. If torch brought"
            " CUDA, pass PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS or WHEELHOUSE (see the head of the Makefile)",
            file=sys.stderr,
        )
    return bool(too_large)


if __name__ == "__main__":
    sys.exit(main())
