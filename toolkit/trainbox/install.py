"""Runs pip for what the user's code requires: once a host, and one at a time where hosts share packages."""

from __future__ import annotations

import fcntl
import os
import select
import time
from collections.abc import Mapping

from trainbox import process, requirements
from trainbox.entry import Script
from trainbox.errors import InstallError, PlatformError
from trainbox.job import Job
from trainbox.log import Log
from trainbox.plan import Process
from trainbox.settings import INSTALL_LOCK, Settings
from trainbox.supervise import Display, Supervisor

_ASK_SECONDS = 0.2


def install(
    job: Job,
    code: str,
    script: Script,
    settings: Settings,
    environ: Mapping[str, str],
    python: str,
    signals: process.Signals,
    log: Log,
) -> tuple[Process, ...]:
    """Installs the requirements and returns the runs of pip, none when there was nothing to install.

    Raises InstallError with pip's own words, PlatformError when the turn of this host does not come within
    the setting's time, and process.Stopped when a signal has asked for the end.
    """
    steps = requirements.installs(job, code, script, settings, environ, python, log)
    if not steps:
        return ()
    lock = _turn(environ.get(INSTALL_LOCK, ""), settings.install_timeout_seconds, signals, log)
    try:
        for step in steps:
            supervisor = Supervisor(
                job.me, (step,), environ, signals, Display(prefix=False), log=log,
                grace=settings.grace_seconds, limit=settings.install_timeout_seconds,
            )  # fmt: skip
            outcome = supervisor.run()
            signals.check()
            if outcome.exit_code:
                words = supervisor.overdue or requirements.explain(supervisor.last_output())
                raise InstallError(
                    f"pip could not install the requirements: {words}", f"pip ended with {outcome.exit_code}"
                )
    finally:
        if lock >= 0:
            os.close(lock)
    return steps


def _turn(path: str, seconds: float, signals: process.Signals, log: Log) -> int:
    """Locks a file or folder until the descriptor that it returns is closed; -1 when none is named.

    pip does not expect another pip in the same packages.
    """
    if not path:
        return -1
    lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    deadline = time.monotonic() + seconds
    waiting = False
    while not _taken(lock):
        if not waiting:
            log("waiting for another host's pip, which installs into the same packages")
            waiting = True
        if time.monotonic() >= deadline:
            raise PlatformError(f"another host's pip has held {path} for {seconds:g} s")
        select.select([signals.fd], [], [], _ASK_SECONDS)
        signals.check()
    return lock


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
