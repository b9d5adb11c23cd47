"""`trainbox`, the command for people: run a job on this machine, and show how a job would be launched."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from trainbox import __version__, launchers
from trainbox.errors import TrainboxError, UserError
from trainbox.plan import EnvVar, LaunchPlan

EXAMPLES = """\
examples:
  trainbox run train.py -p epochs=3
  trainbox run train.py --source-dir src --hosts 2 --processes-per-host 2 --launcher torchrun \\
      -p epochs=3 --channel train=data/ --output out/
  trainbox run train.py --source-dir src --hosts 2 --image trainbox/pytorch:cpu --memory 2g
  trainbox plan --base out/my-job/.work/algo-1/opt/ml
"""

RUN_HELP = """\
Starts the hosts of a training job on this machine, each with a tree under /opt/ml as the platform gives it,
and waits for their end. Without --image hosts are processes: nothing but Python is needed. With --image they
are containers on a network of their own.
"""

RUN_EPILOG = """\
examples:
  trainbox run train.py -p epochs=3 -p optimizer=adam
  trainbox run train.py --source-dir src --hosts 2 --processes-per-host 2 --launcher torchrun \\
      -p epochs=3 --channel train=data/ --output out/
  trainbox run train.py --image trainbox/pytorch:cpu --cpus 2 --memory 4g --env WANDB_API_KEY
  trainbox run train.py --distribution '{"torch_distributed": {"enabled": true}}'

what is left:
  OUTPUT/JOB/output/model.tar.gz     what the script wrote to SM_MODEL_DIR, of all hosts
  OUTPUT/JOB/output/output.tar.gz    what it wrote to SM_OUTPUT_DATA_DIR
  OUTPUT/JOB/output/failure          why the job failed
  OUTPUT/JOB/logs/algo-1.log         everything that the host printed

exit code: that of the first host that failed; 128 + n when signal n stopped the job, 124 after --timeout,
unless the script then ended with a code of its own; 2 when what was asked for cannot be run.
The first Ctrl-C gives the script TRAINBOX_GRACE_SECONDS (default 30) to end, the second kills it.
TRAINBOX_* variables are passed on to the hosts; train --help lists them.
"""


class _Parser(argparse.ArgumentParser):
    """One useful line for a wrong command line, instead of the usage of twenty options."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message, f"see: {self.prog} --help")


def _unknown(words: Sequence[str], parser: argparse.ArgumentParser) -> UserError:
    """What to say about arguments that no option takes: the option that is most like it."""
    word = next((text for text in words if text.startswith("-")), words[0]).partition("=")[0]
    like = get_close_matches(word, re.findall(r"--?[a-z][a-z-]*", parser.format_usage()), 1)
    what = "option" if word.startswith("-") else "further argument"
    return UserError(
        f"{parser.prog} has no {what} {word}",
        f"did you mean {like[0]}?" if like else f"see: {parser.prog} --help",
    )


def _parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    parser = _Parser(
        prog="trainbox",
        description="Turns any container image into a training container; this is the command for people.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"trainbox {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    run = commands.add_parser(
        "run",
        help="run a training job on hosts of this machine",
        description=RUN_HELP,
        epilog=RUN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    plan = commands.add_parser(
        "plan",
        help="show how the job of an /opt/ml tree would be launched, and why",
        description="Prints the launch plan of a host: arguments, added environment, and why.",
        allow_abbrev=False,
    )
    _add_run(run)
    _add_plan(plan)
    return parser, {"run": run, "plan": plan}


def _number(least: float, kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = 0
        if not least <= value < 1e9:
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {what} from {least:g} on")
        return value

    return read


def _add_run(run: argparse.ArgumentParser) -> None:
    add = run.add_argument
    add("script", metavar="SCRIPT", help="script to train with: as it lies here, or in the source folder")
    job = run.add_argument_group("job")
    add = job.add_argument
    add("--source-dir", metavar="DIR", default="", help="folder sent along (default: that of the script)")
    add("-p", dest="parameters", metavar="KEY=VALUE", action="append", default=[],
        help="hyperparameter; read as JSON where it is JSON, else as text")  # fmt: skip
    add("--hyperparameters", metavar="FILE.json", default="", help="file with an object of hyperparameters")
    add("--channel", metavar="NAME=DIR", action="append", default=[], help="input channel, and its folder")
    add("--output", metavar="DIR", default="out", help="where jobs leave their results (default: out)")
    add("--job-name", metavar="NAME", default="", help="default: the script's name and the time")
    add("--timeout", metavar="SECONDS", type=_number(0.001, float), default=0, help="stop the job after that")
    add("--keep", action="store_true", help="keep the hosts' trees in OUTPUT/JOB/.work")
    launch = run.add_argument_group("hosts and processes")
    add = launch.add_argument
    add("--hosts", metavar="N", type=_number(1, int), default=1, help="number of hosts (default: 1)")
    add("--processes-per-host", metavar="P", type=_number(1, int), default=0,
        help="processes of the script a host")  # fmt: skip
    add("--launcher", choices=launchers.NAMES, default="", help="how the script is started")
    add("--distribution", metavar="JSON", default="",
        help="in place of --launcher: as for SageMaker's Python SDK")  # fmt: skip
    add("--instance-type", metavar="TYPE", default="local", help="what hosts say they are (default: local)")
    add("--env", metavar="NAME[=VALUE]", action="append", default=[],
        help="variable for the hosts; without a value, the one it has here")  # fmt: skip
    add("--cpus", metavar="N", type=_number(0.01, float), default=0, help="CPUs a host")
    container = run.add_argument_group("hosts in containers")
    add = container.add_argument
    add("--image", default="", help="image of the containers; its command train is run")
    add("--shm-size", metavar="SIZE", default="", help="shared memory, such as 2g (default: 1g)")
    add("--memory", metavar="SIZE", default="", help="memory a host, such as 4g")
    add("--user", metavar="UID:GID", default="", help="default: you, so that what the job writes is yours")
    add("--network", metavar="NET", default="", help="existing network, or host (default: one of its own)")


def _add_plan(plan: argparse.ArgumentParser) -> None:
    plan.add_argument("--base", metavar="DIR", default="", help="the tree (default: /opt/ml)")
    which = plan.add_mutually_exclusive_group()
    which.add_argument("--host", metavar="NAME", default="", help="default: the host that the tree is of")
    which.add_argument("--all", action="store_true", help="all hosts of the job")
    plan.add_argument("--json", action="store_true", help="as JSON")


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Console script `trainbox`: returns the exit code, 2 for a wrong command line."""
    environ = dict(os.environ) if environ is None else environ
    parser, commands = _parsers()
    try:
        options, unknown = parser.parse_known_args(arguments)
        if unknown:
            raise _unknown(unknown, commands.get(options.command, parser))
        if options.command == "run":
            return _run(options, environ)
        if options.command == "plan":
            return _plan(options, environ)
        parser.print_help()
        return 0
    except TrainboxError as error:
        print(f"trainbox: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of a plan or help has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141


def _run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from trainbox.local.runner import run  # not for --help
    from trainbox.local.screen import Announcer

    return run(request_of(options, environ), environ, Announcer())


def request_of(options: argparse.Namespace, environ: Mapping[str, str]) -> Any:
    """The request of parsed options. Raises UserError for what cannot be run."""
    from trainbox.local import request

    program, source_dir = request.program(options.script, options.source_dir)
    if options.user and not _is_user(options.user):
        raise UserError(f"--user {options.user!r} is not UID or UID:GID, in numbers")
    return request.RunRequest(
        program=program,
        source_dir=source_dir,
        hosts=request.host_names(options.hosts),
        launcher=options.launcher,
        hyperparameters=request.hyperparameters(options.hyperparameters, options.parameters),
        reserved=request.reserved(
            options.launcher, options.distribution, options.processes_per_host, options.instance_type, environ
        ),
        channels=request.channels(options.channel),
        output=os.path.abspath(options.output),
        image=options.image,
        env=request.environment(options.env, environ),
        instance_type=options.instance_type,
        shm=request.size("--shm-size", options.shm_size) if options.shm_size else 0,
        cpus=options.cpus,
        memory=request.size("--memory", options.memory) if options.memory else 0,
        user=options.user,
        network=options.network,
        name=request.check_name(options.job_name),
        timeout=options.timeout,
        keep=options.keep,
    )


def _is_user(text: str) -> bool:
    user, sign, group = text.partition(":")
    return user.isdigit() and (group.isdigit() if sign else True)


def _plan(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from trainbox import job, settings
    from trainbox.masking import Mask
    from trainbox.train import dry_run

    base = os.path.abspath(options.base or environ.get("SAGEMAKER_BASE_DIR") or job.DEFAULT_BASE)
    if not os.path.isdir(os.path.join(base, "input", "config")):
        raise UserError(f"{base} is no /opt/ml tree: it has no input/config", "name one with --base DIR")
    environ = {**environ, "SAGEMAKER_BASE_DIR": base}
    described = job.read(environ)
    if options.host and options.host not in described.hosts:
        raise UserError(f"--host {options.host}: the job has {', '.join(described.hosts)}")
    hosts = sorted(described.hosts, key=job.natural) if options.all else [options.host]
    plans = [dry_run(environ, host) for host in hosts]
    mask = Mask(described.hyperparameters, words=settings.read(environ).secrets)
    if options.json:
        shown = [_masked(plan.to_json(), mask) for plan in plans]
        print(json.dumps(shown if options.all else shown[0], indent=2))
    else:
        print("\n\n".join(plan_text(plan, mask) for plan in plans))
    sys.stdout.flush()
    return 0


def _masked(value: Any, mask: Any) -> Any:
    """A plan as JSON, without the secrets in it."""
    if isinstance(value, dict):
        hidden = value.keys() == {"name", "value", "why"} and mask.hides(value["name"])
        if hidden:
            return {**value, "value": mask.value(value["name"], value["value"])}
        return {key: _masked(item, mask) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, mask) for item in value]
    return mask.text(value) if isinstance(value, str) else value


def plan_text(plan: LaunchPlan, mask: Any) -> str:
    """A plan for people, secrets masked."""
    lines = [
        f"host      {plan.host} of {', '.join(plan.hosts)}; leader {plan.leader}",
        f"launcher  {plan.launcher}",
        f"world     {plan.world} process{'es' if plan.world != 1 else ''}, {plan.per_host} a host",
        f"digest    {plan.digest}",
    ]
    lines += [f"note      {mask.text(note)}" for note in plan.notes]
    for process in plan.processes:
        ranks = ", ".join(map(str, process.ranks)) or "none"
        lines += ["", f"process   {process.role}, ranks {ranks}, in {process.cwd}"]
        lines += [f"  {mask.text(shlex.quote(word))}" for word in process.argv]
        lines += _variables(process.env, mask)
    return "\n".join(lines)


def _variables(variables: Sequence[EnvVar], mask: Any) -> list[str]:
    shown = sorted((f"{name}={shlex.quote(mask.value(name, value))}", why) for name, value, why in variables)
    width = min(max((len(text) for text, _ in shown), default=0), 60)
    return [f"  {text:<{width}}  # {why}" for text, why in shown]


if __name__ == "__main__":
    sys.exit(main())
