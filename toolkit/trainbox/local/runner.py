"""One local job: the story."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping

from trainbox import causes, settings
from trainbox.errors import PlatformError, TrainboxError
from trainbox.job import Paths
from trainbox.local import collect, tree
from trainbox.local.archive import human
from trainbox.local.backend import Backend, Host
from trainbox.local.containers import Containers
from trainbox.local.processes import Processes
from trainbox.local.request import DEFAULT_GRACE_SECONDS, DEFAULT_SHM, RunRequest
from trainbox.local.screen import Announcer, Screen
from trainbox.local.tree import Folder
from trainbox.local.watch import Result, Watch
from trainbox.process import Signals
from trainbox.report import REASON_CHARACTERS


def run(request: RunRequest, environ: Mapping[str, str], tell: Announcer) -> int:
    """Runs the job and returns its exit code.

    Raises TrainboxError when it cannot be started, or its files cannot be kept.
    """
    backend: Backend = Containers(request) if request.image else Processes(request)
    backend.check()
    common = {**host_environment(request, backend, environ), "TRAINBOX_JOB_TOKEN": secrets.token_hex(32)}
    grace = settings.read(common).grace_seconds
    folder = tree.reserve(request)
    keep = True
    try:
        prepare(request, folder, backend, environ, tell)
        began = time.monotonic()
        result = train(request, folder, backend, common, grace, tell)
        seconds = time.monotonic() - began
        tell.say(f"{folder.name} ended after {seconds:.1f} s with exit code {result.exit_code}")
        keep = request.keep or not finish(request, folder, backend, result, tell)
        return result.exit_code
    except TrainboxError:
        keep = request.keep or holds_outputs(request, folder)
        raise
    except KeyboardInterrupt:
        keep = request.keep or holds_outputs(request, folder)
        tell.fail("interrupted" + (f"; the hosts' files are in {folder.work}" if keep else ""))
        return 130
    finally:
        clean_up(folder, keep, tell)


def host_environment(request: RunRequest, backend: Backend, environ: Mapping[str, str]) -> dict[str, str]:
    """What is the same for all hosts: the caller's, as far as the backend passes it on, and `--env`."""
    result = backend.environment(environ)
    result.setdefault("TRAINBOX_GRACE_SECONDS", str(DEFAULT_GRACE_SECONDS))
    if request.launcher:  # the command line decides, by hyperparameter or by leaving it out
        result.pop("TRAINBOX_LAUNCHER", None)
    result.update(request.env)
    return result


def prepare(
    request: RunRequest, folder: Folder, backend: Backend, environ: Mapping[str, str], tell: Announcer
) -> None:
    """Writes the trees of all hosts."""
    tell.phase(f"packing {request.source_dir}")
    source, warnings = tree.pack_source(request, folder)
    for line in warnings:
        tell.warn(line)
    for host in request.hosts:
        tree.write(request, folder, host, source, environ, interface=backend.interface)
    os.unlink(source)


def train(
    request: RunRequest,
    folder: Folder,
    backend: Backend,
    common: Mapping[str, str],
    grace: float,
    tell: Announcer,
) -> Result:
    """Starts the hosts and sees them to their end; nothing of them is left, whatever happens."""
    environ = {**common, "TRAINING_JOB_NAME": folder.name}
    count = len(request.hosts)
    tell.phase(f"starting {count} host{'s' if count > 1 else ''} ({backend.kind})")
    started: list[Host] = []
    screen = Screen({host: folder.log(host) for host in request.hosts})
    with Signals() as signals:
        try:
            backend.open(folder)
            for host in request.hosts:
                started.append(backend.start(folder, host, environ))
            tell.say(f"started {folder.name} on {count} host{'s' if count > 1 else ''} ({backend.kind})")
            watch = Watch(started, screen, signals, tell.say, grace=grace, timeout=request.timeout)
            return watch.run()
        finally:
            for running in started:
                running.close()
            screen.close(discard=not started)
            backend.close()
            if screen.gone:
                tell.warn(f"nobody reads the output any more: all of it is in {folder.logs}")
            if screen.unlogged:
                tell.warn(f"the logs in {folder.logs} are not whole: they could not be written")


def finish(request: RunRequest, folder: Folder, backend: Backend, result: Result, tell: Announcer) -> bool:
    """Keeps what the job leaves and says where; False when files had to stay in the work folder."""
    tell.phase("collecting model and output")
    try:
        backend.settle(folder)
    except PlatformError as error:
        tell.warn(str(error))
    explain(request, folder, result, tell)
    try:
        for kind in ("model", "output"):
            target = os.path.join(folder.output, f"{kind}.tar.gz")
            artifact = collect.gather(folder, request.hosts, kind, target, tell.warn)
            if artifact:
                tell.say(f"{kind} in {artifact.path} ({human(artifact.size)})")
            elif kind == "model" and not result.exit_code:
                tell.warn("the job left no model: nothing was written to SM_MODEL_DIR (/opt/ml/model)")
    except PlatformError as error:
        if not result.exit_code:
            raise
        tell.warn(f"{error}; the hosts' files are in {folder.work}")
        return False
    return True


def explain(request: RunRequest, folder: Folder, result: Result, tell: Announcer) -> None:
    """Why the job failed: host, exit code in words, the host's failure file, and where the logs are."""
    text = collect.failure_text(folder, result.first[0]) if result.first else ""
    if text:
        with open(os.path.join(folder.output, "failure"), "w", encoding="utf-8") as file:
            file.write(text + "\n")
    if result.was_stopped:
        by = causes.signal_name(result.stopped_by) if result.stopped_by else "--timeout"
        tell.say(f"stopped by {by}; logs in {folder.logs}")
        return
    if not result.first:
        return
    host, end = result.first
    words = ""
    if end.exit_code > 128:
        number = end.exit_code - 128
        shm = (request.shm or DEFAULT_SHM) if request.image else 0
        words = causes.of_signal(number, out_of_memory=end.out_of_memory, memory=request.memory, shm=shm)
    tell.fail(f"{host} failed with exit code {end.exit_code}" + (f" ({words})" if words else ""))
    text = text or collect.last_words(folder, host)
    for line in text[:REASON_CHARACTERS].splitlines():
        tell.fail(f"  {line}")
    tell.fail(f"logs in {folder.logs}")


def holds_outputs(request: RunRequest, folder: Folder) -> bool:
    """Whether the hosts have written something that would be lost with the work folder."""
    trees = [(host, Paths(folder.base(host))) for host in request.hosts]
    places = [(host, place) for host, paths in trees for place in (paths.model, paths.output_data)]
    try:
        return any(not collect.merge([place])[0].empty for place in places)
    except TrainboxError:
        return True


def clean_up(folder: Folder, keep: bool, tell: Announcer) -> None:
    """Removes the work folder; the whole folder of a job that was never started."""
    if keep:
        tell.say(f"the hosts' files stay in {folder.work}")
        return
    left = tree.remove(folder.work if os.listdir(folder.logs) else folder.path)
    if left:
        tell.warn(f"cannot remove {left}")
