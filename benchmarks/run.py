"""Start-up, memory and output of `train`, as ratios, beside those of sagemaker-training from PyPI.

`make bench`, or `python benchmarks/run.py --help`. What is measured and how: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

TOP = Path(__file__).resolve().parent.parent
CACHE = TOP / ".bench"
PEER = "sagemaker-training==5.1.4"

PEER_TIMEOUT = 90.0
"""Seconds after which a run of the peer is ended and counted as longer than that."""

TIMEOUT = 300.0
"""Seconds that any other run may take: far more than it needs."""

EMPTY = ""

LINES = """\
for step in range({count}):
    print(f"step {{step}}: loss {{1 / (step + 1):.6f}}, 1532 images a second")
"""

# Fails at the end whether it named an exception before or not, so that only the one line differs.
NAMES = "print({first!r})\n" + LINES + "raise SystemExit(1)\n"
NAMED, UNNAMED = "skipped a file: ValueError: bad label", "skipped a file: it has a bad label"

# How the framework toolkits of the peer run a script: its output is read, to find out why it failed.
FRAMEWORK = """\
from sagemaker_training import entry_point, environment

def main():
    env = environment.Environment()
    arguments, variables = env.to_cmd_args(), env.to_env_vars()
    entry_point.run(env.module_dir, env.user_entry_point, arguments, variables, capture_error=True)
"""


class Tool(NamedTuple):
    """A toolkit in an environment of its own. reads_output: variables that make it read the script's."""

    name: str
    folder: Path
    reads_output: dict[str, str]

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def train(self) -> str:
        return str(self.folder / "bin" / "train")


class Row(NamedTuple):
    """One line of the table. ours, peer: samples; a peer's infinite one was ended by the time-out."""

    what: str
    unit: str
    ours: list[float]
    peer: list[float]
    target: float | None


# --- Environments, and the tree that a job finds.


def quietly(*argv: str) -> None:
    """Runs a command of the preparation. Raises SystemExit with its output when it fails."""
    done = subprocess.run(argv, cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(argv)}\n{done.stdout}\nended with exit code {done.returncode}")


def environment(name: str) -> tuple[Path, Path]:
    """A virtual environment in the cache, and the file that says that it is whole."""
    folder = CACHE / name
    complete = folder / ".complete"
    if not complete.exists():
        quietly(sys.executable, "-m", "venv", "--clear", str(folder))
    return folder, complete


def install_ours() -> Tool:
    """The wheel of this tree, built anew, without anything beside it."""
    say("building the wheel")
    shutil.rmtree(CACHE / "dist", ignore_errors=True)
    quietly(
        sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(CACHE / "dist"), str(TOP)
    )
    folder, complete = environment("trainbox")
    (wheel,) = (CACHE / "dist").glob("*.whl")
    pip = (str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check")
    quietly(*pip, "--no-deps", "--no-index", "--force-reinstall", str(wheel))
    complete.touch()
    return Tool("trainbox", folder, {})


def install_peer() -> Tool:
    """The peer with its dependencies, from the package index that pip is configured for; once a cache."""
    folder, complete = environment("peer")
    if not complete.exists():
        say(f"installing {PEER} (--without-peer does without it)")
        pip = (str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check")
        quietly(*pip, PEER)
        (folder / "framework").mkdir()
        (folder / "framework" / "bench_framework.py").write_text(FRAMEWORK)
        complete.touch()
    variables = {
        "SAGEMAKER_TRAINING_MODULE": "bench_framework:main",
        "PYTHONPATH": str(folder / "framework"),
    }
    return Tool(PEER.replace("==", " "), folder, variables)


def tree(script: str) -> Path:
    """A new tree of one host, whose name resolves without a network, with the script in its code folder."""
    base = CACHE / "opt-ml"
    shutil.rmtree(base, ignore_errors=True)
    for folder in ("input/config", "input/data", "code", "model", "output/data"):
        (base / folder).mkdir(parents=True)
    resources = {
        "current_host": "localhost",
        "hosts": ["localhost"],
        "network_interface_name": "lo",
        "current_instance_type": "local",
    }
    config = {
        "hyperparameters": {"sagemaker_program": '"train.py"'},
        "inputdataconfig": {},
        "resourceconfig": resources,
    }
    for name, content in config.items():
        (base / "input" / "config" / f"{name}.json").write_text(json.dumps(content))
    (base / "code" / "train.py").write_text(script)
    (base / "model" / "model.bin").write_bytes(b"weights")
    return base


# --- One run.


class Run(NamedTuple):
    """A command to measure, `train` or the plain script. A new tree is made for each time that it runs."""

    tool: Tool
    script: str
    plain: bool = False
    variables: dict[str, str] = {}  # noqa: RUF012 - a default that nothing changes
    exit_code: int = 0
    timeout: float = TIMEOUT

    def start(self) -> tuple[subprocess.Popen[bytes], float]:
        """The command in a process group of its own, both streams in one pipe, and when it was started."""
        base = tree(self.script)
        path = f"{self.tool.folder / 'bin'}:{os.environ.get('PATH', os.defpath)}"
        env = {"PATH": path, "LANG": "C.UTF-8", "SAGEMAKER_BASE_DIR": str(base), **self.variables}
        argv = (self.tool.python, "train.py") if self.plain else (self.tool.train,)
        began = time.perf_counter()
        process = subprocess.Popen(
            argv,
            cwd=base / "code",
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return process, began

    def end(self, process: subprocess.Popen[bytes], last: bytes) -> None:
        """Waits for the end. Raises SystemExit with the last output when the exit code is not as expected."""
        code = process.wait(TIMEOUT)
        if code != self.exit_code:
            sys.exit(f"{self.tool.name}: exit code {code}\n{last.decode(errors='replace')}")

    def seconds(self) -> float:
        """Wall time from the start to the end, the output read as it comes; infinite when it timed out."""
        process, began = self.start()
        last = b""
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector, process.stdout as pipe:
            selector.register(pipe, selectors.EVENT_READ)
            while True:
                if not selector.select(max(0.0, began + self.timeout - time.perf_counter())):
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    return float("inf")
                data = os.read(pipe.fileno(), 1 << 16)
                if not data:
                    break
                last = data
        self.end(process, last)
        return time.perf_counter() - began

    def peak_mib(self) -> float:
        """Peak resident memory of the process of `train` alone, in MiB.

        Read as VmHWM while it runs, every millisecond: what the kernel reports afterwards (ru_maxrss) is the
        largest of the process and its children.
        """
        process, _ = self.start()
        pidfd = os.pidfd_open(process.pid)
        peak = 0
        with selectors.DefaultSelector() as selector:
            selector.register(pidfd, selectors.EVENT_READ)
            while not selector.select(0.001):
                status = Path(f"/proc/{process.pid}/status").read_text()
                peak = max([peak, *(int(s.split()[1]) for s in status.splitlines() if s.startswith("VmHWM"))])
        os.close(pidfd)
        output, _ = process.communicate()
        self.end(process, output)
        return peak / 1024


def in_turn(measures: dict[str, Callable[[], float]], times: int) -> dict[str, list[float]]:
    """Samples of each measure, taken in turn, so that a change of the machine's speed meets all alike."""
    samples: dict[str, list[float]] = {name: [] for name in measures}
    for count in range(times + 1):
        for name, measure in measures.items():
            value = measure()
            if count:  # the first round warms the caches
                samples[name].append(value)
    return samples


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Pair by pair."""
    return [one / other for one, other in zip(above, below, strict=True)]


# --- The rows.


def startup(tools: Sequence[Tool], times: int) -> list[Row]:
    say(f"start-up, {times} times")
    measures = {}
    for tool in tools:
        measures[f"{tool.name} plain"] = Run(tool, EMPTY, plain=True).seconds
        measures[tool.name] = Run(tool, EMPTY).seconds
    samples = in_turn(measures, times)
    result = [ratios(samples[tool.name], samples[f"{tool.name} plain"]) for tool in tools]
    return [row("`train` with an empty script, wall time over plain `python train.py`", "x", result, 4.0)]


def memory(tools: Sequence[Tool], times: int) -> list[Row]:
    say(f"memory, {times} times")
    samples = in_turn({tool.name: Run(tool, EMPTY).peak_mib for tool in tools}, times)
    return [row("peak memory of the launcher", "MiB", [samples[tool.name] for tool in tools], 25.0)]


def output(tools: Sequence[Tool], times: int) -> list[Row]:
    say(f"300,000 lines, {times} times")
    script = LINES.format(count=300_000)
    measures: dict[str, Callable[[], float]] = {}
    for tool in tools:
        measures[f"{tool.name} plain"] = Run(tool, script, plain=True).seconds
        measures[tool.name] = Run(tool, script, variables=tool.reads_output).seconds
    prefixed = Run(tools[0], script, variables={"TRAINBOX_PREFIX": "on"})
    samples = in_turn({**measures, "prefixed": prefixed.seconds}, times)
    result = [ratios(samples[tool.name], samples[f"{tool.name} plain"]) for tool in tools]
    extra = ratios(samples["prefixed"], samples[f"{tools[0].name} plain"])
    return [
        row("300,000 log lines, wall time over the plain script", "x", result, 1.2),
        row("the same with host and rank before each line", "x", [extra], None),
    ]


def names_of_exceptions(tools: Sequence[Tool], times: int) -> list[Row]:
    """The peer has one run of each kind: it takes too long for many, or for a warm-up."""
    say(f"80,000 lines, one of which names an exception, {times} times (the peer once)")
    against, doubled = [], []
    for tool in tools:
        ours = tool is tools[0]

        def run(first: str, count: int, tool: Tool = tool, ours: bool = ours) -> Callable[[], float]:
            script = NAMES.format(first=first, count=count)
            timeout = TIMEOUT if ours else PEER_TIMEOUT
            return Run(tool, script, variables=tool.reads_output, exit_code=1, timeout=timeout).seconds

        measures = {"without": run(UNNAMED, 80_000), "half": run(NAMED, 40_000), "with": run(NAMED, 80_000)}
        if ours:
            samples = in_turn(measures, times)
        else:
            samples = {name: [measure()] for name, measure in measures.items()}
        against.append(ratios(samples["with"], samples["without"]))
        doubled.append(ratios(samples["with"], samples["half"]))
        say(f"  {tool.name}: {median(samples['with']):.2f} s, without it {median(samples['without']):.2f} s")
    return [
        row("80,000 lines, one of which names an exception, over the same without", "x", against, 1.1),
        row("80,000 such lines over 40,000 (linear: at most 2)", "x", doubled, 2.1),
    ]


def row(what: str, unit: str, samples: list[list[float]], target: float | None) -> Row:
    """samples: of trainbox, then of the peer where it was measured."""
    return Row(what, unit, samples[0], samples[1] if len(samples) > 1 else [], target)


# --- What is printed.


def say(text: str) -> None:
    """Progress, beside the table."""
    print(text, file=sys.stderr, flush=True)


def shown(samples: Sequence[float], unit: str) -> str:
    """Median, and least and most where there are several samples."""
    if not samples:
        return "-"
    if max(samples) == float("inf"):
        return f"ended after {PEER_TIMEOUT:.0f} s"
    digits = 2 if median(samples) < 10 else 1
    text = f"{median(samples):.{digits}f} {unit}"
    return f"{text} ({min(samples):.{digits}f} to {max(samples):.{digits}f})" if len(samples) > 1 else text


def table(rows: Sequence[Row], peer: str) -> str:
    """A Markdown table, its columns aligned."""
    lines = [("What", "trainbox", "Target", "", peer)]
    for one in rows:
        target, verdict = "", ""
        if one.target is not None:
            target = f"at most {one.target:g} {one.unit}"
            verdict = "pass" if median(one.ours) <= one.target else "fail"
        lines.append((one.what, shown(one.ours, one.unit), target, verdict, shown(one.peer, one.unit)))
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    text = [
        "| " + " | ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    return "\n".join([text[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *text[1:]])


def as_json(one: Row) -> dict[str, object]:
    """A row; null for a sample that the time-out ended, as JSON has no infinity."""
    return {**one._asdict(), "peer": [None if value == float("inf") else value for value in one.peer]}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few repetitions: to try it, not to quote it")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every sample there as well")
    parser.add_argument("--without-peer", action="store_true", help=f"leave out {PEER}")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    CACHE.mkdir(exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n")
    tools = [install_ours()]
    if not arguments.without_peer:
        tools.append(install_peer())
    load = os.getloadavg()[0]
    times = (3, 3, 2, 2) if arguments.quick else (20, 5, 7, 7)
    measures = (startup, memory, output, names_of_exceptions)
    rows = [one for measure, count in zip(measures, times, strict=True) for one in measure(tools, count)]
    machine = {"python": platform.python_version(), "cpus": os.cpu_count(), "load_at_start": round(load, 2)}
    if arguments.json:
        found = {"machine": machine, "rows": [as_json(one) for one in rows]}
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")
    print(table(rows, PEER.replace("==", " ")))
    print(f"\nMedian (least to most). {', '.join(f'{key} {value}' for key, value in machine.items())}.")


if __name__ == "__main__":
    main()
