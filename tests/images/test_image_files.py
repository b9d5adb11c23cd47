"""The list of images, the Dockerfiles, the extras and the files that build them say the same."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from containers.build import (
    Image,
    build_command,
    declared_arguments,
    folder_of_wheels,
    in_build_order,
    read_images,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOP = Path(__file__).resolve().parents[2]
IMAGES = read_images(TOP / "containers" / "images.toml")
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SCRIPTS = sorted((TOP / "entrypoints").glob("*.sh"))

each_image = pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.name)


def text_of(image):
    return (TOP / image.dockerfile).read_text(encoding="utf-8")


def final_stage(image):
    """Instructions of the last stage, continuation lines joined, comments left out."""
    lines = [line for line in text_of(image).splitlines() if not line.startswith("#")]
    instructions = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    start = max(number for number, line in enumerate(instructions) if line.startswith("FROM "))
    return [line for line in instructions[start:] if line]


def labels(image):
    label = next(line for line in final_stage(image) if line.startswith("LABEL "))
    return dict(re.findall(r'([\w.-]+)="([^"]*)"', label))


def made(name, parent="debian:bookworm-slim"):
    return Image(name, parent, "containers/base/Dockerfile.cpu", extra="", args={}, budget_mb=1)


# --- The list.


def test_every_dockerfile_is_in_the_list_once():
    on_disk = sorted(str(path.relative_to(TOP)) for path in TOP.glob("containers/*/Dockerfile.*"))
    assert sorted(image.dockerfile for image in IMAGES) == on_disk
    assert len({image.name for image in IMAGES}) == len(IMAGES)


@each_image
def test_a_name_follows_from_the_dockerfile(image):
    match = re.fullmatch(r"containers/(\w+)/Dockerfile\.(cpu|cuda|neuron)", image.dockerfile)
    folder, device = match.groups()
    assert image.name == f"trainbox/{folder}:{device}"
    assert image.budget_mb > 0


@each_image
def test_arguments_of_the_list_are_the_defaults_of_the_dockerfile(image):
    declared = declared_arguments(image)
    assert image.args.items() <= declared.items()
    assert declared["BASE"] == image.parent, "docker build without arguments must start from the same parent"


@each_image
def test_versions_are_those_that_the_extra_pins(image):
    extra = PROJECT["optional-dependencies"][image.extra] if image.extra else []
    for requirement in map(Requirement, extra):
        version = image.args[requirement.name.upper().replace("-", "_") + "_VERSION"]
        assert requirement.specifier.contains(version), f"{requirement} is not what the image has, {version}"
    assert (f"[{image.extra}]" in text_of(image)) == bool(image.extra)


# --- The Dockerfiles.


@each_image
def test_labels_tell_what_is_in_the_image(image):
    found = labels(image)
    dlc = {name.partition(".dlc.")[2] for name in found if ".sagemaker.dlc." in name}
    assert {"job.training", f"device.{image.name.rpartition(':')[2]}"} <= dlc
    assert any(name.startswith("python.py") for name in dlc)
    assert any(name.startswith("os.") for name in dlc)
    assert len(dlc) <= 10
    assert found["org.opencontainers.image.title"] == image.name
    assert found["org.opencontainers.image.licenses"] == PROJECT["license"]


@pytest.mark.parametrize("image", [image for image in IMAGES if image.extra], ids=lambda image: image.name)
def test_the_framework_label_is_the_installed_version(image):
    found = labels(image)
    version = found["framework_version"]
    assert version in image.args.values()
    dashed = version.replace(".", "-")
    assert f"com.amazonaws.ml.engines.sagemaker.dlc.framework.{found['framework']}.{dashed}" in found


@each_image
def test_the_container_ends_in_exec_form_as_an_unprivileged_user(image):
    instructions = final_stage(image)
    entry = next(line for line in instructions if line.startswith("ENTRYPOINT "))
    script = re.fullmatch(r'ENTRYPOINT \["/usr/local/bin/(\w+\.sh)"\]', entry).group(1)
    assert (TOP / "entrypoints" / script) in SCRIPTS
    assert f"COPY entrypoints/{script} /usr/local/bin/{script}" in instructions
    assert instructions[-1] == 'CMD ["train"]'
    users = [line.split()[1] for line in instructions if line.startswith("USER ")]
    assert users
    assert users[-1] not in ("root", "0")


@each_image
def test_known_failure_88_no_compiler_in_the_final_stage(image):
    installs = " ".join(line for line in final_stage(image) if "apt-get install" in line)
    assert not re.search(r"\b(gcc|g\+\+|clang|cmake|make|build-essential|\S+-dev)\b", installs)


@each_image
def test_a_change_of_the_toolkit_leaves_the_framework_layer(image):
    instructions = final_stage(image)
    environment = instructions.index("COPY --from=venv /opt/venv /opt/venv")
    wheel = next(number for number, line in enumerate(instructions) if "--no-index" in line)
    assert environment < wheel
    assert not [line for line in instructions[wheel + 1 :] if line.startswith(("RUN", "COPY", "ADD"))]
    venv = text_of(image).partition(" AS venv\n")[2].partition("\nFROM ")[0]
    assert "COPY" not in venv


@each_image
def test_builds_where_there_is_no_registry_of_frontends(image):
    assert not text_of(image).startswith("# syntax=")
    assert "<<" not in text_of(image)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_entry_scripts_are_short_and_end_in_exec(script):
    lines = script.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 20
    assert lines[0] == "#!/bin/sh"
    assert lines[-1] == 'exec "$@"'
    assert script.stat().st_mode & 0o111 == 0o111


def test_the_build_context_holds_what_is_copied_and_built():
    rules = (TOP / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in rules
    needed = {"toolkit", "entrypoints", "pyproject.toml", PROJECT["readme"], *PROJECT["license-files"]}
    assert {f"!{name}" for name in needed} <= set(rules)


# --- What builds them.


def test_parents_are_built_first():
    child, parent = made("child", "middle"), made("parent")
    middle, other = made("middle", "parent"), made("other")
    everything = [child, other, middle, parent]
    assert in_build_order(everything, []) == [parent, middle, child, other]
    assert in_build_order(everything, ["child"]) == [parent, middle, child]


def test_a_circle_and_an_unknown_name_end_in_a_line():
    with pytest.raises(SystemExit, match="a -> b -> a is a circle"):
        in_build_order([made("a", "b"), made("b", "a")], [])
    with pytest.raises(SystemExit, match="no image 'c'; it has a"):
        in_build_order([made("a")], ["c"])


def test_the_environment_reaches_only_arguments_that_a_dockerfile_declares():
    environ = {"WHEELHOUSE": "w:1", "PIP_EXTRA_INDEX_URL": "x y", "BASE": "mirror/debian", "DOCKER": "podman"}
    by_name = {image.name: build_command(image, IMAGES, environ, {"a": "b c"}) for image in IMAGES}
    pytorch, base = by_name["trainbox/pytorch:cpu"], by_name["trainbox/base:cpu"]
    assert pytorch[:2] == ["podman", "build"]
    assert {"WHEELHOUSE=w:1", "PIP_EXTRA_INDEX_URL=x y", "BASE=mirror/debian", "a=b c"} <= set(pytorch)
    assert "WHEELHOUSE=w:1" not in base


def test_a_folder_of_wheels_is_found_among_urls_and_empty_folders(tmp_path):
    empty, full = tmp_path / "empty", tmp_path / "full"
    empty.mkdir()
    full.mkdir()
    (full / "a-1-py3-none-any.whl").touch()
    assert folder_of_wheels({"PIP_FIND_LINKS": f"https://example.org/x {empty} file://{full}"}) == full
    assert folder_of_wheels({"PIP_FIND_LINKS": str(empty)}) is None
    assert folder_of_wheels({}) is None


def test_base_replaces_only_parents_from_outside_the_list():
    parent, child = made("parent"), made("child", "parent")
    assert "BASE=parent" in build_command(child, [parent, child], {"BASE": "mirror/debian"}, {})


def test_buildspec_names_no_image_and_only_targets_that_exist():
    text = (TOP / "buildspec.yml").read_text(encoding="utf-8")
    spec = yaml.safe_load(text)
    assert list(spec["phases"]) == ["install", "pre_build", "build", "post_build"]
    assert spec["env"]["variables"]["TRAINBOX_REQUIRE_DOCKER"] == "1"
    for image in IMAGES:
        assert image.name not in text
        assert image.dockerfile not in text
    commands = [command for phase in spec["phases"].values() for command in phase["commands"]]
    targets = {command.split()[1] for command in commands if command.startswith("make ")}
    assert {"images", "container-test", "check", "unit", "cluster-test"} <= targets
    makefile = (TOP / "Makefile").read_text(encoding="utf-8")
    for target in targets:
        assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), f"the Makefile has no {target}"
    assert "containers/build.py --list" in commands[-1]
