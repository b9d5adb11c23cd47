"""Tables of the documentation against the code, links between its pages, and coverage of known failures.

After a change that is meant: `python -m tests.unit.test_docs` writes the tables anew.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.unit.conftest import Tree
from trainbox import environ, fabric, job, launchers, settings
from trainbox.launchers import torchrun
from trainbox.machine import Machine
from trainbox.plan import EnvVar

TOP = Path(__file__).parent.parent.parent
PAGES = [
    TOP / "README.md",
    TOP / "CONTRIBUTING.md",
    TOP / "CHANGELOG.md",
    *sorted((TOP / "docs").glob("*.md")),
]
PAGES += [TOP / "examples" / "README.md", TOP / "benchmarks" / "README.md"]

SETTINGS_HEAD = """\
# Settings

Variables of the container (on SageMaker: `environment=` of the estimator; with `trainbox run`: your
environment). A name that looks like one of ours and is not in this table gets a warning with the name that
was probably meant; a value that does not fit ends the job before it starts. `train --help` prints the same.

| Variable | Default | Expects | Meaning |
|---|---|---|---|
"""

VARIABLES_HEAD = """\
# Variables that the script gets

Beside everything that the container was started with. `<NAME>` stands for a channel or hyperparameter, in
capitals; where that is no name for a shell (`SM_CHANNEL_MY-DATA`), there is a second one that is
(`SM_CHANNEL_MY_DATA`). Lists and objects are JSON. `trainbox plan` shows a job's values, and why each is set.

| Variable | Why it is set |
|---|---|
"""


def settings_page():
    def cell(text):
        return text.replace("|", "\\|")

    rows = [
        f"| `{row.name}` | {cell(row.default)} | {cell(row.expects)} | {cell(row.help)} |"
        for row in settings.TABLE
    ]
    return SETTINGS_HEAD + "\n".join(rows) + "\n"


def variables_page(tree):
    """All variables of a job that has one of everything."""
    tree.hosts("algo-1", "algo-2", topology={"network": "x"})
    tree.config("inputdataconfig", {"name": {"TrainingInputMode": "File"}})
    tree.config("hyperparameters", {"name": "1"})
    rows = environ.sm_variables(job.read(tree.environ), Machine(cpus=2), (), tree.environ)
    found = [row._replace(name=re.sub(r"^SM_(CHANNEL|HP)_NAME$", r"SM_\1_<NAME>", row.name)) for row in rows]
    found += [
        EnvVar("PYTHONPATH", "", "the script's code can be imported; yours comes after"),
        EnvVar("MASTER_ADDR", "", "where processes that the script starts may meet, unless it is set"),
        EnvVar("MASTER_PORT", "", "where processes that the script starts may meet, unless it is set"),
        EnvVar("OMP_NUM_THREADS", "", "cores of the container over processes, unless it is set"),
    ]
    found += [
        EnvVar(name, "", "the interface that leads to the peers of several hosts, unless it is set")
        for name in fabric.INTERFACE_VARIABLES
    ]
    found.append(
        EnvVar(torchrun.GRACE, "", "torchrun waits as long as TRAINBOX_GRACE_SECONDS, unless it is set")
    )
    return VARIABLES_HEAD + "".join(f"| `{row.name}` | {row.why} |\n" for row in found)


def test_the_page_of_settings(tree):
    assert (TOP / "docs/settings.md").read_text() == settings_page()


def test_the_page_of_variables(tree):
    assert (TOP / "docs/variables.md").read_text() == variables_page(tree)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_links_and_settings_of_a_page_exist(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), target
    known = {row.name for row in settings.TABLE} | settings.INTERNAL
    assert set(re.findall(r"TRAINBOX_[A-Z_]*[A-Z]", text)) <= known


def test_every_launcher_is_described():
    text = (TOP / "docs/launchers.md").read_text()
    assert all(f"| `{name}` |" in text for name in launchers.NAMES)


# Of the list of failures that users of such toolkits have reported in public, those that this version covers.
COVERED = {
    1, 2, 4, 5, 6, 14, 17, 20, 22, 25, 27, 28, 29, 30, 31, 32, 33, 34, 35, 37, 38, 39, 40, 41, 44, 45, 50, 52,
    65, 66, 67, 70, 71, 72, 73, 74, 75, 78, 81, 86, 90,
}  # fmt: skip


def test_every_covered_failure_has_a_test():
    names = {
        int(number)
        for path in (TOP / "tests").rglob("test_*.py")
        for number in re.findall(r"def test_known_failure_(\d+)_", path.read_text())
    }
    assert not sorted(COVERED - names)


def _write() -> None:
    import tempfile

    (TOP / "docs/settings.md").write_text(settings_page())
    with tempfile.TemporaryDirectory() as folder:
        (TOP / "docs/variables.md").write_text(variables_page(Tree(Path(folder) / "ml")))
    sys.stdout.write("docs/settings.md and docs/variables.md are written\n")


if __name__ == "__main__":
    _write()
