"""`train`: one job on one host, from the tree under /opt/ml to an exit code."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping

from trainbox import entry, hyperparameters, launchers, machine, process, report, requirements, source
from trainbox import environ as environment
from trainbox import job as jobs
from trainbox import settings as all_settings
from trainbox.errors import ToolkitError, TrainboxError, UserError
from trainbox.install import install
from trainbox.job import Job
from trainbox.launchers import Launch, Network
from trainbox.log import Log
from trainbox.machine import Machine
from trainbox.masking import Mask
from trainbox.plan import EnvVar, LaunchPlan, Outcome
from trainbox.settings import Settings
from trainbox.supervise import Display, Supervisor

# Shared memory that Docker gives a container unless told otherwise; data loaders need more.
_SMALL_SHM = 64 << 20

USAGE = """\
usage: train [SCRIPT [ARGUMENT ...] | OPTION ...]

Runs the training job that the tree under /opt/ml (or SAGEMAKER_BASE_DIR) describes.
The script is named by hyperparameter sagemaker_program, by SAGEMAKER_PROGRAM, or here. Hyperparameters become
its arguments; they take the place of the word {hyperparameters} when a command given here holds it.
Options given without a script are added to the script's own. Settings are TRAINBOX_* variables:

"""


def main() -> None:
    """Console script `train`. Exits with the script's exit code, 128 + n after signal n (contract 2.3)."""
    arguments = tuple(sys.argv[1:])
    if arguments in (("--help",), ("-h",)):
        rows = [(f"{setting.name}={setting.default}", setting.help) for setting in all_settings.TABLE]
        print(USAGE + "\n".join(f"  {name}\n      {text}" for name, text in rows))
        return
    if arguments == ("--version",):
        from trainbox import __version__

        print(f"trainbox {__version__}")
        return
    # Nothing is buffered, and the teardown of the interpreter takes as long as its start.
    os._exit(run(arguments, dict(os.environ)))


def run(arguments: tuple[str, ...], environ: dict[str, str]) -> int:
    """Runs the job of this host and returns the exit code; every failure leaves a reason behind."""
    log = Log()
    paths = jobs.Paths(os.path.abspath(environ.get("SAGEMAKER_BASE_DIR") or jobs.DEFAULT_BASE))
    with process.Signals() as signals:
        try:
            report.clear_leftovers(paths, log)
            return _run(arguments, environ, signals, log)
        except process.Stopped:
            error: TrainboxError = UserError("stopped before the script was started")
            code = 128 + signals.stopped_by
        except TrainboxError as caught:
            error, code = caught, caught.exit_code
        except Exception as bug:
            from traceback import format_exc

            log.error(format_exc())
            error = ToolkitError(
                f"{type(bug).__name__}: {bug}", "this is a fault of trainbox: please report it"
            )
            code = error.exit_code
    log.error(str(error))
    report.write_failure(paths, report.of_error(error, log.host, log.mask), log)
    report.hand_over(paths, _owner(environ), log)
    return code


def _owner(environ: Mapping[str, str]) -> str:
    try:
        return all_settings.read(environ).owner
    except UserError:
        return ""  # a wrong setting was what stopped the job


def _run(arguments: tuple[str, ...], environ: dict[str, str], signals: process.Signals, log: Log) -> int:
    settings = all_settings.read(environ)
    log.mask = Mask(environ, words=settings.secrets)
    job = jobs.read(environ, arguments, launcher_set=bool(settings.launcher))
    log.mask = Mask(environ, job.hyperparameters, job.reserved, words=settings.secrets)
    log.level, log.host = job.log_level, job.me if len(job.hosts) > 1 else ""
    _announce(job, settings, log)
    environ.pop("TRAINBOX_JOB_TOKEN", None)  # the script has no use for it

    name = launchers.select(job, settings)
    launcher = launchers.load(name)
    here = machine.detect(environ, _probes(launcher, settings))
    network = _join(job, here, settings, signals, log)
    signals.check()
    code = source.fetch(job, log, environ, signals.check)
    signals.check()
    python = settings.python or sys.executable
    script = entry.resolve(job, code, python, environ.get("PATH", os.defpath))
    steps = install(job, code, script, settings, environ, python, signals, log)
    import_path = tuple(filter(None, (code, requirements.import_path(steps))))
    if steps:  # what was installed may be the very framework that the launcher needs
        here = machine.detect(environ, _probes(launcher, settings), import_path)
        network = network._replace(machines={**network.machines, job.me: here})
    plan = launcher.plan(_launch(job, network, settings, environ, script, import_path))
    for note in plan.notes:
        (log.warning if "independent" in note else log)(note)
    _warn_of_small_shm(here, log)
    log("launch " + json.dumps({key: value for key, value in plan.to_json().items() if key in _SAID}))
    signals.check()
    kills = machine.oom_kills()
    outcome = Supervisor(
        job.me,
        plan.processes,
        environ,
        signals,
        _display(plan, settings),
        grace=settings.grace_seconds,
        log=log,
    ).run()
    return _settle(job, here, settings, outcome, machine.oom_kills() > kills, log)


_SAID = ("launcher", "hosts", "leader", "per_host", "world", "digest")


def _probes(launcher: launchers.Launcher, settings: Settings) -> tuple[str, ...]:
    return launcher.PROBES if settings.python in ("", sys.executable) else ()


def _announce(job: Job, settings: Settings, log: Log) -> None:
    """Says what was read: one line each for warnings, hyperparameters and every channel."""
    for name in settings.unknown:
        like = all_settings.suggest(name)
        log.warning(f"{name} is no setting" + (f": did you mean {like}?" if like else ""))
    for note in job.notes:
        log.warning(note)
    if job.hyperparameters:
        shown = {
            key: log.mask.value(key, environment.text(value)) if log.mask.hides(key) else value
            for key, value in job.hyperparameters.items()
        }
        log("hyperparameters " + json.dumps(shown, sort_keys=True))
    for channel in job.channels:
        if channel.mode == "Pipe":
            log(f"channel {channel.name}: {channel.path}_0 and following (Pipe)")
        elif os.path.isdir(channel.path):
            entries = len(os.listdir(channel.path))
            log(f"channel {channel.name}: {channel.path} ({channel.mode}), entries: {entries}")
        else:
            log.warning(f"channel {channel.name}: {channel.path} does not exist on {job.me}")


def _join(job: Job, here: Machine, settings: Settings, signals: process.Signals, log: Log) -> Network:
    if job.distributed and len(job.ranked) > 1:
        from trainbox.cluster.join import join  # sockets, only for more than one host

        return join(job, here, settings, signals, log)
    return alone(job, here, settings)


def alone(job: Job, here: Machine, settings: Settings) -> Network:
    """The network of a host that needs none: loopback, unless user or platform name one that is there."""
    named = settings.interface or job.interface
    interface, why = (named, "as the platform says") if named in here.interfaces else ("lo", "a single host")
    return Network({job.me: here}, interface, why, "127.0.0.1")


def _launch(
    job: Job,
    network: Network,
    settings: Settings,
    environ: Mapping[str, str],
    script: entry.Script,
    import_path: tuple[str, ...],
) -> Launch:
    """What the launcher makes its plan from. import_path: the code directory, then where pip installed."""
    arguments = hyperparameters.encode(job.hyperparameters, settings.argument_style) + job.arguments
    env = list(
        environment.sm_variables(
            job,
            network.machines[job.me],
            arguments,
            environ,
            leader_address=network.leader_address,
            port=settings.port,
        )
    )
    paths = [*import_path, *filter(None, (environ.get("PYTHONPATH", ""),))]
    env.append(EnvVar("PYTHONPATH", ":".join(paths), "the script's code can be imported"))
    why = "where processes that the script starts may meet"
    for variable, value in (("MASTER_ADDR", network.leader_address), ("MASTER_PORT", str(settings.port))):
        if variable not in environ:
            env.append(EnvVar(variable, value, why))
    command = entry.with_arguments(script, arguments)
    python = settings.python or sys.executable
    return Launch(job, network, settings, command, import_path[0], tuple(env), environ, python)


def _warn_of_small_shm(here: Machine, log: Log) -> None:
    if 0 < here.shm <= _SMALL_SHM and machine.detect({}, ("torch",)).modules:
        log(
            f"/dev/shm holds {here.shm >> 20} MiB: data loader processes may end with a bus error; "
            "a larger one comes with --shm-size"
        )


def _display(plan: LaunchPlan, settings: Settings) -> Display:
    several = plan.world > 1 or len(plan.hosts) > 1
    prefix = settings.prefix == "on" or (settings.prefix == "auto" and several)
    return Display(prefix, lines=several, ranks=settings.ranks)


def _settle(
    job: Job, here: Machine, settings: Settings, outcome: Outcome, out_of_memory: bool, log: Log
) -> int:
    """Says how it ended, leaves the failure file, and returns the exit code."""
    has_model = report.artifacts(job.paths, log)
    code = outcome.exit_code
    if code:
        text = report.of_outcome(outcome, here, log.mask, out_of_memory=out_of_memory)
        log.error(text)
        report.write_failure(job.paths, text, log)
    elif not has_model and job.me == job.leader:
        elsewhere = job.hyperparameters.get("model_dir")
        hint = f" (the script was given model_dir={elsewhere})" if elsewhere else ""
        missing = f"{job.paths.model} is empty: the job leaves no model{hint}"
        if settings.require_model:
            report.write_failure(job.paths, f"{job.me}: {missing}\n", log)
            code = UserError.exit_code
        (log.error if code else log.warning)(missing)
    report.hand_over(job.paths, settings.owner, log)
    return code


def dry_run(environ: Mapping[str, str], host: str = "") -> LaunchPlan:
    """The plan that a host of the job would run, without a network, other hosts or a start.

    environ: as for `train`; SAGEMAKER_BASE_DIR says where the tree is. host: whose plan; empty: the tree's.
    Other hosts are taken to be like this one, and to have what the launcher needs.
    Raises TrainboxError as `train` would.
    """
    settings = all_settings.read(environ)
    job = jobs.read(environ, launcher_set=bool(settings.launcher), host=host)
    launcher = launchers.load(launchers.select(job, settings))
    here = machine.detect(environ)._replace(modules=launcher.PROBES)
    if job.distributed and len(job.ranked) > 1:
        address = dict(settings.addresses).get(job.leader, job.leader)
        interface = settings.interface or job.interface
        network = Network(dict.fromkeys(job.ranked, here), interface, "as the platform says", address)
    else:
        network = alone(job, here, settings)
    return launcher.plan(_previewed(job, network, settings, environ))


def _previewed(job: Job, network: Network, settings: Settings, environ: Mapping[str, str]) -> Launch:
    """The launch as it will be in the code directory, found out on a copy of the submitted code elsewhere."""
    from tempfile import TemporaryDirectory

    final = job.paths.code

    def launch(code: str) -> Launch:
        script = entry.resolve(job, code, settings.python or sys.executable, environ.get("PATH", os.defpath))
        return _launch(job, network, settings, environ, script, (code,))

    submitted = job.submit_directory or any(channel.name == source.CHANNEL for channel in job.channels)
    if not submitted:
        return launch(final)
    with TemporaryDirectory(prefix="trainbox-plan-") as base:
        code = source.fetch(job._replace(paths=jobs.Paths(base)), lambda line: None, environ)
        seen = launch(code)
    return seen._replace(
        command=tuple(word.replace(code, final) for word in seen.command),
        cwd=final,
        env=tuple(variable._replace(value=variable.value.replace(code, final)) for variable in seen.env),
    )


if __name__ == "__main__":
    main()
