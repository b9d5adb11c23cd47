"""The trees that the local cluster writes, and the archives it makes of them."""

from __future__ import annotations

import json
import os
import tarfile

import pytest

from trainbox import job
from trainbox.errors import PlatformError, UserError
from trainbox.local import archive, collect
from trainbox.local import tree as trees
from trainbox.local.request import RunRequest, host_names

MORE = {"image": "", "env": {}, "shm": 0, "cpus": 0, "memory": 0, "user": "", "network": "", "timeout": 0}


@pytest.fixture
def request_of(tmp_path):
    source = tmp_path / "src"
    source.mkdir()
    (source / "train.py").write_text("print()")

    def make(**more):
        values = {
            "program": "train.py",
            "source_dir": str(source),
            "hosts": host_names(2),
            "launcher": "",
            "hyperparameters": {"epochs": 3, "name": "two words"},
            "reserved": {"sagemaker_torch_distributed_enabled": True},
            "channels": {},
            "output": str(tmp_path / "out"),
            "instance_type": "local",
            "name": "",
            "keep": False,
            **MORE,
        }
        return RunRequest(**{**values, **more})

    return make


@pytest.fixture
def written(request_of):
    def write(host="algo-1", environ=None, **more):
        request = request_of(**more)
        folder = trees.reserve(request)
        source, _ = trees.pack_source(request, folder)
        paths = trees.write(request, folder, host, source, environ or {}, interface="lo")
        return folder, paths

    return write


def read(paths, name):
    with open(paths.config_file(f"{name}.json"), encoding="utf-8") as file:
        return json.load(file)


def test_hyperparameters_are_encoded_as_the_sdk_does(written):
    folder, paths = written(environ={"AWS_REGION": "eu-west-1"})
    submitted = os.path.join(paths.data, "code", "sourcedir.tar.gz")
    assert read(paths, "hyperparameters") == {
        "epochs": "3",
        "name": '"two words"',
        "sagemaker_torch_distributed_enabled": "true",
        "sagemaker_program": '"train.py"',
        "sagemaker_submit_directory": json.dumps(submitted),
        "sagemaker_container_log_level": "20",
        "sagemaker_job_name": json.dumps(folder.name),
        "sagemaker_region": '"eu-west-1"',
    }
    assert os.path.isfile(submitted)


def test_in_a_container_paths_are_those_of_the_platform(written):
    _, paths = written(image="any")
    values = read(paths, "hyperparameters")
    assert values["sagemaker_submit_directory"] == '"/opt/ml/input/data/code/sourcedir.tar.gz"'


def test_resources_have_the_live_shape(written):
    _, paths = written(host="algo-2", hosts=host_names(10), instance_type="ml.c5.xlarge")
    hosts = sorted(host_names(10))
    assert read(paths, "resourceconfig") == {
        "current_host": "algo-2",
        "current_instance_type": "ml.c5.xlarge",
        "current_group_name": "homogeneousCluster",
        "hosts": hosts,
        "instance_groups": [
            {"instance_group_name": "homogeneousCluster", "instance_type": "ml.c5.xlarge", "hosts": hosts}
        ],
        "network_interface_name": "lo",
        "topology": None,
    }
    assert hosts[1] == "algo-10"  # as the platform sorts them (contract 3.2)


def test_channels_are_there_as_files(written, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.csv").write_text("1")
    _, paths = written(channels={"train": str(data)})
    assert os.listdir(os.path.join(paths.data, "train")) == ["a.csv"]
    entry = {
        "TrainingInputMode": "File",
        "S3DistributionType": "FullyReplicated",
        "RecordWrapperType": "None",
    }
    assert read(paths, "inputdataconfig") == {"code": entry, "train": entry}


def test_the_reader_of_jobs_reads_what_is_written(written):
    folder, paths = written(host="algo-2")
    described = job.read({"SAGEMAKER_BASE_DIR": paths.base})
    assert (described.name, described.me, described.leader) == (folder.name, "algo-2", "algo-1")
    assert described.hyperparameters == {"epochs": 3, "name": "two words"}
    assert described.program == "train.py"
    assert not described.notes


def test_the_source_without_what_is_no_source(written, tmp_path):
    for name in (
        ".git/x",
        "__pycache__/x",
        "pkg/__pycache__/x",
        ".venv/x",
        "env/pyvenv.cfg",
        "env/lib/x",
        "out/x",
    ):
        path = tmp_path / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "src/pkg/mod.py").touch()
    _, paths = written(output=str(tmp_path / "src/out"))
    with tarfile.open(os.path.join(paths.data, "code", "sourcedir.tar.gz")) as tar:
        assert sorted(tar.getnames()) == ["pkg", "pkg/mod.py", "train.py"]


def test_two_jobs_of_one_second_have_folders_of_their_own(request_of):
    request = request_of()
    names = {trees.reserve(request).name for _ in range(50)}
    assert len(names) == 50


def test_the_name_comes_from_the_program(request_of):
    name = trees.reserve(request_of(program="my pkg/très long_" + "x" * 100 + ".py")).name
    assert name.startswith("tr-s-long-xxx")
    assert len(name) <= 63
    assert job.natural(name)


def test_a_job_of_that_name_is_not_overwritten(request_of):
    trees.reserve(request_of(name="mine"))
    with pytest.raises(UserError, match="mine exists already"):
        trees.reserve(request_of(name="mine"))


def test_an_output_that_is_a_file(request_of, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file"):
        trees.reserve(request_of(output=str(tmp_path / "file")))
    with pytest.raises(UserError, match="file"):
        trees.reserve(request_of(output=str(tmp_path / "file" / "below")))


def test_what_others_may_see(written):
    folder, _ = written()
    assert os.stat(folder.work).st_mode & 0o777 == 0o700


def test_read_only_folders_can_be_removed(tmp_path):
    deep = tmp_path / "work/a/b"
    deep.mkdir(parents=True)
    (deep / "f").touch()
    deep.chmod(0o500)
    deep.parent.chmod(0o500)
    assert trees.remove(str(tmp_path / "work")) == ""
    assert not (tmp_path / "work").exists()


def members(path):
    with tarfile.open(path) as tar:
        return {info.name: info for info in tar}


def test_an_archive_is_the_same_each_time(tmp_path):
    for name in ("b/2", "a", "b/1"):
        path = tmp_path / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    files = archive.listing(str(tmp_path / "model")).files
    first, second = tmp_path / "1.tar.gz", tmp_path / "2.tar.gz"
    assert archive.pack(files, str(first)) == first.stat().st_size
    archive.pack(dict(reversed(files.items())), str(second))
    assert first.read_bytes() == second.read_bytes()
    assert list(members(first)) == ["a", "b", "b/1", "b/2"]
    assert {info.uid for info in members(first).values()} == {0}
    assert sorted(os.listdir(tmp_path)) == ["1.tar.gz", "2.tar.gz", "model"]


def test_links_and_what_is_no_file(tmp_path):
    root = tmp_path / "model"
    (root / "step-3").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/weights").write_text("w")
    (root / "latest").symlink_to("step-3")
    (root / "weights").symlink_to("../outside/weights")
    (root / "away").symlink_to("../outside")
    (root / "broken").symlink_to("/nowhere")
    os.mkfifo(root / "pipe")
    found = archive.listing(str(root))
    assert {name for name, _ in found.left_out} == {"away", "broken", "pipe"}
    archive.pack(found.files, str(tmp_path / "m.tar.gz"))
    packed = members(tmp_path / "m.tar.gz")
    assert packed["latest"].linkname == "step-3"
    assert packed["weights"].isreg()
    assert packed["weights"].size == 1


def test_a_disk_that_is_full_leaves_no_half_archive(tmp_path, monkeypatch):
    (tmp_path / "m").mkdir()
    (tmp_path / "m/f").write_text("x")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(PlatformError, match=r"model\.tar\.gz: No space left"):
        archive.pack(archive.listing(str(tmp_path / "m")).files, str(tmp_path / "model.tar.gz"))
    assert os.listdir(tmp_path) == ["m"]


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (12_345_678, "12.3 MB")]
)
def test_sizes_for_people(size, text):
    assert archive.human(size) == text


def fill(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder)


def test_hosts_are_merged_in_rank_order(tmp_path):
    one = fill(tmp_path / "1", model="leader", shards__a="1", only__x="1")
    two = fill(tmp_path / "2", model="other", shards__b="2", only="a file here")
    merged, twice = collect.merge([("algo-1", one), ("algo-2", two), ("algo-3", str(tmp_path / "none"))])
    assert set(merged.files) == {"model", "shards", "shards/a", "shards/b", "only", "only/x"}
    assert merged.files["model"] == os.path.join(one, "model")
    assert twice == ["algo-2:model", "algo-2:only"]


def test_a_folder_below_another_hosts_file(tmp_path):
    one = fill(tmp_path / "1", only="a file here")
    two = fill(tmp_path / "2", only__deep__x="1")
    merged, twice = collect.merge([("algo-1", one), ("algo-2", two)])
    assert set(merged.files) == {"only"}
    assert "algo-2:only" in twice


def test_nothing_but_folders_is_nothing(tmp_path):
    (tmp_path / "m/empty").mkdir(parents=True)
    assert archive.listing(str(tmp_path / "m")).empty
