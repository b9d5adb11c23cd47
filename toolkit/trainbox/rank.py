"""Runs one rank of the script for a launcher that starts ranks itself (torchrun, mpirun).

Started as `python -I -S rank.py COMMAND [ARGUMENT ...]`, it gives the rank output pipes of its own, hands
their other ends to `train` over a socket that the environment names, forwards signals, says how the rank
ended, and ends the same way. So all launchers have one form of output and one kind of failure, whatever they
print about it themselves. It must start fast and stand alone: only built-in modules, none of trainbox.
"""

import _socket
import os
import signal
import sys

PROGRAM = os.path.abspath(__file__)
SOCKET = "TRAINBOX_RANK_SOCKET"
RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
GENERATION = ("TORCHELASTIC_RESTART_COUNT",)
FORWARDED = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip


def _number(names: tuple[str, ...]) -> int:
    for name in names:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0


def _connect(name: str) -> "_socket.socket":
    channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC, 0)
    channel.connect("\0" + name)
    return channel


def _say(channel: "_socket.socket", *words: object, fds: tuple[int, ...] = ()) -> None:
    message = (" ".join(str(word) for word in words) + "\n").encode()
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds))]
    try:
        channel.sendmsg([message], rights if fds else [])
    except OSError:
        pass  # train is gone: the rank still ends as it does


def _die_with_parent() -> None:
    """Lets the kernel end the rank when this process is killed: it could no longer forward anything."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


def _become(command: list[str], outputs: tuple[int, int]) -> None:
    os.setpgid(0, 0)
    for number in FORWARDED:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for target, fd in enumerate(outputs, start=1):
        os.dup2(fd, target)
    try:
        _die_with_parent()
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"trainbox: cannot run {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def main() -> None:
    command = sys.argv[1:]
    channel = _connect(os.environ.pop(SOCKET))
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    pid = os.fork()
    if pid == 0:
        _become(command, (out_write, err_write))
    _say(
        channel, "start", _number(RANK), _number(LOCAL_RANK), _number(GENERATION), pid, os.getpid(),
        fds=(out_read, err_read),
    )  # fmt: skip
    for fd in (out_read, out_write, err_read, err_write):
        os.close(fd)

    def forward(number: int, frame: object) -> None:
        # A group of its own: a launcher that signals this process's whole group reaches the rank just once.
        try:
            os.killpg(pid, number)
        except OSError:
            pass

    for number in FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    _say(channel, "end", max(code, 0), max(-code, 0))
    channel.close()
    if code < 0:
        # The launcher should see the same end; without a core file of this process.
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(max(code, 0) if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
