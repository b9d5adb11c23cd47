"""How submitted code gets into the code directory."""

from __future__ import annotations

import io
import os
import tarfile

import pytest

from trainbox import job, source, stores
from trainbox.errors import PlatformError, UserError

IS_ROOT = os.getuid() == 0


@pytest.fixture
def base(tmp_path):
    directory = tmp_path / "ml"
    directory.mkdir()
    return directory


@pytest.fixture
def lines():
    return []


@pytest.fixture
def fetch(base, lines):
    def call(submitted="", channels=(), environ=None, **fields):
        asked = job.read({"SAGEMAKER_BASE_DIR": str(base)})._replace(
            submit_directory=str(submitted),
            channels=tuple(
                job.Channel(name, str(base / "input/data" / name), "File", "") for name in channels
            ),
            **fields,
        )
        return source.fetch(asked, lines.append, environ or {})

    return call


def put(path, content="", mode=0o644):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(mode)
    return path


def tar(path, *members, mode="w:gz"):
    """members: (name, content) for files, or TarInfo."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size, info.mode = len(member[1]), 0o755 if member[0].endswith(".sh") else 0o644
                info.uid = info.gid = 54321
                archive.addfile(info, io.BytesIO(member[1].encode()))
    return path


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def tree(directory):
    found = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            with open(path) as file:
                found[os.path.relpath(path, directory)] = file.read()
    return found


FILES = (("train.py", "print()"), ("sub/dir/util.py", "x"), ("run.sh", "echo"))


def test_code_directory_itself_is_left_alone(fetch, base, lines):
    put(base / "code/train.py", "mine")
    before = os.stat(base / "code").st_mtime_ns
    for submitted in (
        base / "code",
        f"file://{base}/code",
        f"file://localhost{base}/code",
        f"{base}/x/../code",
    ):
        (base / "x").mkdir(exist_ok=True)
        assert fetch(submitted) == str(base / "code")
    assert os.stat(base / "code").st_mtime_ns == before
    assert lines == []


def test_nothing_submitted_is_code_of_the_image(fetch, base, lines):
    put(base / "code/train.py", "image")
    assert fetch() == str(base / "code")
    assert lines == []


def test_known_failure_81_nothing_is_made_when_there_is_no_code(fetch, base, lines):
    assert fetch() == os.getcwd()
    assert os.listdir(base) == []
    assert "the working directory" in lines[0]


def test_another_directory_is_copied(fetch, base, tmp_path):
    src = tmp_path / "src"
    put(src / "train.py", "one")
    put(src / "sub/run.sh", "two", 0o755)
    put(tmp_path / "outside/data.txt", "three")
    (src / "inner").symlink_to("sub/run.sh")
    (src / "absolute").symlink_to(src / "train.py")
    (src / "loop").symlink_to(".")
    (src / "outer").symlink_to(tmp_path / "outside")
    (src / "nowhere").symlink_to("/no/such/file")
    os.mkfifo(src / "fifo")
    for _ in range(2):  # as in a container that is started again
        code = fetch(src)
        assert os.access(f"{code}/sub/run.sh", os.X_OK)
        assert os.readlink(f"{code}/inner") == "sub/run.sh"
        assert os.readlink(f"{code}/absolute") == "train.py"
        assert os.readlink(f"{code}/loop") == "."
        assert tree(f"{code}/outer") == {"data.txt": "three"}
        assert not os.path.lexists(f"{code}/fifo")
        assert not os.path.lexists(f"{code}/nowhere")


def test_a_directory_around_the_code_directory_is_refused(fetch, base):
    put(base / "train.py")
    with pytest.raises(UserError, match="contains the code directory"):
        fetch(base)


def test_a_directory_below_the_code_directory(fetch, base, lines):
    put(base / "code/src/train.py", "one")
    code = fetch(base / "code/src")
    assert tree(code) == {"src/train.py": "one", "train.py": "one"}
    assert lines == []


@pytest.mark.parametrize(
    ("name", "mode"),
    [("sourcedir.tar.gz", "w:gz"), ("sourcedir.tar.gz", "w"), ("code.tar", "w"), ("blob", "w:gz"),
     ("blob", "w"), ("code.tar.bz2", "w:bz2"), ("code.tar.xz", "w:xz")],
)  # fmt: skip
@pytest.mark.parametrize("prefix", ["", "file://"])
def test_archives(fetch, tmp_path, name, mode, prefix):
    path = tar(tmp_path / name, special(".", tarfile.DIRTYPE), *FILES, mode=mode)
    code = fetch(f"{prefix}{path}")
    assert tree(code) == dict(FILES)
    assert os.access(f"{code}/run.sh", os.X_OK)
    assert not os.access(f"{code}/train.py", os.X_OK)
    assert {os.stat(f"{code}/{name}").st_uid for name, _ in FILES} == {os.getuid()}


def test_links_within_an_archive(fetch, tmp_path):
    path = tar(
        tmp_path / "a.tar",
        *FILES,
        special("sub/up", tarfile.SYMTYPE, "../train.py"),
        special("here", tarfile.SYMTYPE, "./sub"),
        special("same", tarfile.LNKTYPE, "./train.py"),
    )
    for _ in range(2):
        code = fetch(path)
        assert os.readlink(f"{code}/sub/up") == "../train.py"
        assert tree(f"{code}/here/dir") == {"util.py": "x"}
        assert os.stat(f"{code}/same").st_nlink == 2


BAD = {
    "absolute": [("/etc/evil", "x")],
    "parent": [("../evil", "x")],
    "inner parent": [("a/../../evil", "x")],
    "link to an absolute path": [special("l", tarfile.SYMTYPE, "/etc")],
    "link out": [special("sub/l", tarfile.SYMTYPE, "../..")],
    "link out in the middle": [special("l", tarfile.SYMTYPE, "a/../../b")],
    "file below a link": [special("l", tarfile.SYMTYPE, "."), ("l/evil", "x")],
    "link below a link": [
        special("a/b/l", tarfile.SYMTYPE, "../.."),
        special("a/b/l/e", tarfile.SYMTYPE, "../.."),
    ],
    "link through a link": [
        special("a/b/l", tarfile.SYMTYPE, "../.."),
        special("e", tarfile.SYMTYPE, "a/b/l/../.."),
    ],
    "hard link out": [special("h", tarfile.LNKTYPE, "../evil")],
    "absolute hard link": [special("h", tarfile.LNKTYPE, "/etc/passwd")],
    "hard link to nothing": [special("h", tarfile.LNKTYPE, "evil")],
    "hard link to a link": [special("a/l", tarfile.SYMTYPE, ".."), special("h", tarfile.LNKTYPE, "a/l")],
    "device": [special("evil", tarfile.CHRTYPE)],
    "block device": [special("evil", tarfile.BLKTYPE)],
    "fifo": [special("evil", tarfile.FIFOTYPE)],
}


@pytest.mark.parametrize("members", BAD.values(), ids=BAD)
def test_members_that_would_leave_are_refused_before_anything_is_extracted(fetch, base, tmp_path, members):
    path = tar(tmp_path / "sourcedir.tar.gz", *FILES, *members)
    with pytest.raises(UserError) as caught:
        fetch(path)
    assert "nothing was extracted" in str(caught.value)
    assert "sourcedir.tar.gz: member " in str(caught.value)
    assert not (base / "code").exists()
    assert not (tmp_path / "evil").exists()


def test_a_link_of_the_image_leads_no_member_out(fetch, base, tmp_path):
    (base / "code").mkdir()
    (tmp_path / "outside").mkdir()
    (base / "code/lib").symlink_to(tmp_path / "outside")
    put(tmp_path / "outside/kept.py", "kept")
    (base / "code/file.py").symlink_to(tmp_path / "outside/kept.py")
    with pytest.raises(UserError, match="lies below a link that leaves"):
        fetch(tar(tmp_path / "a.tar", ("lib/evil", "x")))
    fetch(tar(tmp_path / "b.tar", ("file.py", "new")))
    assert tree(tmp_path / "outside") == {"kept.py": "kept"}
    assert (base / "code/file.py").read_text() == "new"


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
@pytest.mark.parametrize("keep", [0.0, 0.02, 0.3, 0.5, 0.51, 0.75])
def test_cut_off_archives_are_never_half_used(fetch, tmp_path, mode, keep):
    files = [(f"file{number}.txt", os.urandom(300).hex()) for number in range(20)]
    path = tar(tmp_path / "sourcedir.tar.gz", *files, mode=mode)
    with open(path, "r+b") as file:
        if mode == "w":  # the end of a plain archive is padded
            file.truncate(20 * 1536)
        file.truncate(int(os.stat(path).st_size * keep))
    with pytest.raises(UserError, match=r"sourcedir\.tar\.gz is not a usable tar archive: \S"):
        fetch(path)


def test_an_archive_cut_off_between_members(fetch, tmp_path):
    path = tar(tmp_path / "a.tar", *FILES, mode="w")
    with open(path, "r+b") as file:
        file.truncate(1024)
    with pytest.raises(UserError, match="cut off or damaged after 1024 bytes"):
        fetch(path)


def test_no_archive_at_all(fetch, tmp_path):
    with pytest.raises(UserError, match=r"sourcedir\.tar\.gz is not a usable tar archive"):
        fetch(put(tmp_path / "sourcedir.tar.gz", "this is text" * 100))


def test_single_file(fetch, tmp_path):
    assert tree(fetch(put(tmp_path / "my train.sh", "echo", 0o755))) == {"my train.sh": "echo"}


def test_known_failure_27_submitted_code_wins_over_the_image_and_the_rest_stays(fetch, base, tmp_path, lines):
    put(base / "code/train.py", "image", 0o444)
    put(base / "code/extra/data.txt", "image")
    put(base / "code/__pycache__/train.pyc", "")
    path = tar(tmp_path / "a.tar", *FILES)
    for _ in range(2):
        assert fetch(path) == str(base / "code")
        assert (base / "code/train.py").read_text() == "print()"
    assert (base / "code/extra/data.txt").read_text() == "image"
    assert lines == [f"{base}/code also holds files that were not submitted, which stay: extra"] * 2


def test_file_and_directory_of_one_name(fetch, base, tmp_path):
    put(base / "code/train.py/x")
    with pytest.raises(UserError, match=r"train\.py is a directory already"):
        fetch(tar(tmp_path / "a.tar", *FILES))
    put(base / "code2", "")
    (base / "code").rename(base / "old")
    put(base / "code/sub", "file")
    with pytest.raises(UserError, match="sub is a file already"):
        fetch(tar(tmp_path / "b.tar", special("sub", tarfile.DIRTYPE)))


@pytest.mark.parametrize(
    "submitted",
    ["/no/such/sourcedir.tar.gz", "file:///no/such/dir", "https://u:secret@host/x.tar.gz", "hdfs://x/y"],
)
def test_what_cannot_be_fetched_is_named(fetch, submitted):
    with pytest.raises(UserError) as caught:
        fetch(submitted)
    assert submitted.removeprefix("file://").replace("u:secret", "******") in str(caught.value)


@pytest.mark.skipif(IS_ROOT, reason="root may write everywhere")
def test_directory_that_may_not_be_written(fetch, base, tmp_path):
    path = tar(tmp_path / "a.tar", *FILES)
    base.chmod(0o555)
    with pytest.raises(UserError, match=rf"cannot put the code into {base}/code as user {os.getuid()}"):
        fetch(path)
    assert fetch() == os.getcwd()


@pytest.mark.skipif(IS_ROOT, reason="root may read everything")
def test_file_that_may_not_be_read(fetch, tmp_path):
    with pytest.raises(UserError, match=rf"cannot read train\.py as user {os.getuid()}"):
        fetch(put(tmp_path / "train.py", mode=0))


@pytest.mark.parametrize(
    "error", [OSError(30, "Read-only file system"), OSError(28, "No space left on device")]
)
def test_known_failure_72_file_systems_that_take_no_files(fetch, tmp_path, monkeypatch, error):
    def fail(*args, **kwargs):
        raise error

    path = tar(tmp_path / "a.tar", *FILES)
    monkeypatch.setattr(os, "makedirs", fail)
    with pytest.raises(UserError, match=error.strerror):
        fetch(path)


class TestChannel:
    def test_archive(self, fetch, base):
        tar(base / "input/data/code/sourcedir.tar.gz", *FILES)
        assert tree(fetch(channels=["code", "train"])) == dict(FILES)

    def test_archive_of_another_name(self, fetch, base):
        tar(base / "input/data/code/my.tgz", *FILES)
        assert tree(fetch(channels=["code"])) == dict(FILES)

    def test_files(self, fetch, base):
        put(base / "input/data/code/train.py", "channel")
        put(base / "input/data/code/lib/a.py", "a")
        assert tree(fetch(channels=["code"], program="train.py")) == {"train.py": "channel", "lib/a.py": "a"}

    @pytest.mark.parametrize("program", ["train.py", "-m pkg.train", "pkg.train", "./pkg/train.py"])
    def test_data_of_that_name(self, fetch, base, lines, program):
        put(base / "code/train.py", "image")
        put(base / "code/pkg/train.py", "image")
        put(base / "input/data/code/corpus.c", "int main;")
        assert fetch(channels=["code"], program=program) == str(base / "code")
        assert not (base / "code/corpus.c").exists()
        assert "taken for data" in lines[0]

    def test_submitted_code_comes_before_the_channel(self, fetch, base, tmp_path):
        put(base / "input/data/code/train.py", "channel")
        assert tree(fetch(tar(tmp_path / "a.tar", *FILES), channels=["code"])) == dict(FILES)

    def test_empty_or_absent(self, fetch, base):
        put(base / "code/train.py", "image")
        assert fetch(channels=["code"]) == str(base / "code")
        (base / "input/data/code").mkdir(parents=True)
        assert fetch(channels=["code"]) == str(base / "code")


class TestStore:
    @pytest.fixture
    def downloads(self, monkeypatch, tmp_path):
        seen = []

        def download(url, destination, environ, check):
            seen.append((url, destination, dict(environ)))
            tar(tmp_path / "served.tar.gz", *FILES).rename(destination)

        monkeypatch.setattr(stores, "download", download)
        return seen

    @pytest.mark.parametrize("url", ["s3://bucket/a b/sourcedir.tar.gz", "gs://b/x.tgz", "az://b/archive"])
    def test_archive(self, fetch, downloads, url, lines):
        assert tree(fetch(url, environ={"A": "1"}, region="eu-west-1")) == dict(FILES)
        ((asked, destination, environ),) = downloads
        assert asked == url
        assert environ == {"A": "1", "AWS_REGION": "eu-west-1"}
        assert not os.path.exists(os.path.dirname(destination))
        assert lines == [f"code: from {url}"]

    def test_the_environments_region_wins(self, fetch, downloads):
        fetch("s3://b/x.tgz", environ={"AWS_REGION": "us-west-2"}, region="eu-west-1")
        assert downloads[0][2] == {"AWS_REGION": "us-west-2"}

    @pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "s3://bucket/prefix/", "s3://bucket/.."])
    def test_folders_are_refused(self, fetch, downloads, url):
        with pytest.raises(UserError, match="is a folder in an object store"):
            fetch(url)

    def test_damaged_archives_are_called_by_their_url(self, fetch, monkeypatch):
        def download(url, destination, environ, check):
            with open(destination, "wb") as file:
                file.write(b"\x1f\x8bgarbage")

        monkeypatch.setattr(stores, "download", download)
        with pytest.raises(UserError, match=r"^s3://bucket/x is not a usable tar archive"):
            fetch("s3://bucket/x")

    def test_no_temporary_directory(self, fetch, downloads, monkeypatch):
        def fail(*args, **kwargs):
            raise OSError(30, "Read-only file system")

        monkeypatch.setattr("tempfile.mkdtemp", fail)
        with pytest.raises(PlatformError, match=r"Read-only file system; mount a writable /tmp"):
            fetch("s3://bucket/x.tgz")
