"""Output of the script: live, whole, unaltered, in bounded memory, without secrets in our own lines."""

from __future__ import annotations

import json
import os
import re
import select

import pytest

pytestmark = pytest.mark.cluster

TORCHRUN = {"sagemaker_torch_distributed_enabled": True, "sagemaker_mpi_num_of_processes_per_host": 2}
MEGABYTE = 1 << 20


def test_known_failure_04_floods_without_line_ends_pass_in_bounded_memory(tree):
    tree.program(
        "import os, sys\n"
        "for number in range(300):\n"
        "    data = (b'%3d%%\\r' % (number % 100)) * 200_000\n"
        "    while data:\n"
        "        data = data[os.write(2, data) :]\n"
        "    os.write(1, b'line\\n')\n"
        "sys.stdout.write('x' * 5_000_000 + '\\n')\n"
        "print('flood is over', flush=True)\n"
        "open(sys.argv[2]).read()\n",
        gate=str(tree.base / "gate"),
    )
    os.mkfifo(tree.base / "gate")
    running = tree.start()
    out, err, peak = drain_until(running, b"flood is over\n")
    assert peak < 200 * 1024
    (tree.base / "gate").write_text("")
    ended = running.end()
    assert ended.code == 0
    out, err = out + ended.out, err + ended.err.encode()
    assert out == b"line\n" * 300 + b"x" * 5_000_000 + b"\nflood is over\n"
    # Our line after the flood begins on a line of its own.
    script = re.sub(rb"(?m)^trainbox: .*\n", b"", err).removesuffix(b"\n")
    assert len(script) == 300 * 200_000 * len(b"  0%\r")


def drain_until(running, words):
    """Reads both streams until the words have come on the first; with the launcher's peak memory in kB."""
    process = running.process
    got = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    out = got[process.stdout.fileno()]
    while not out.endswith(words):
        ready, _, _ = select.select(list(got), [], [], 120)
        assert ready, "nothing came"
        for fd in ready:
            got[fd] += os.read(fd, MEGABYTE)
    return bytes(out), bytes(got[process.stderr.fileno()]), running.status("VmHWM")


def test_known_failure_04_31_a_byte_arrives_before_the_script_goes_on(tree):
    tree.program(
        "import os, sys\nos.write(1, b'no newline')\n"
        "open(sys.argv[2]).read()\nos.write(2, b'and an error')\n",
        gate=str(tree.base / "gate"),
    )
    os.mkfifo(tree.base / "gate")
    running = tree.start()
    running.wait_for(b"no newline")
    (tree.base / "gate").write_text("")
    ended = running.end()
    assert ended.code == 0
    assert "and an error" in ended.err


def test_known_failure_31_both_streams_in_their_order_and_the_tail_in_the_reason(tree):
    tree.program(
        "import os, sys\n"
        "for number in range(500):\n"
        "    os.write(1 + number % 2, b'%d\\n' % number)\n"
        "os.write(2, b'the reason\\n')\nsys.exit(4)\n"
    )
    ended = tree.run()
    assert ended.code == 4
    assert ended.out.split() == [b"%d" % number for number in range(0, 500, 2)]
    lines = [line for line in ended.err.splitlines() if line.isdigit()]
    assert lines == [str(number) for number in range(1, 500, 2)]
    assert ended.failure == "algo-1 rank 0: ended with exit code 4; its last words: the reason\n"


WRITER = """\
import os, time
os.write(1, bytes(range(0x80, 0x100)) + b"\\n")
euro = "\\u20ac".encode()
os.write(1, euro[:1])
time.sleep(0.2)
os.write(1, euro[1:] + b"\\n")
data = b"y" * (65536 - 1) + euro + b"\\n"
while data:
    data = data[os.write(1, data):]
"""
WRITTEN = [bytes(range(0x80, 0x100)), "\u20ac".encode(), b"y" * 65535 + "\u20ac".encode()]


@pytest.mark.parametrize("prefix", ["off", "on"])
def test_known_failure_37_bytes_pass_whatever_they_are(tree, prefix):
    tree.program(WRITER)
    ended = tree.run(TRAINBOX_PREFIX=prefix)
    assert ended.code == 0
    lead = b"[algo-1 0] " if prefix == "on" else b""
    assert ended.out.split(b"\n") == [lead + line for line in WRITTEN] + [b""]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {b"[algo-1 0] out of 0", b"[algo-1 1] out of 1"}),
        ({"TRAINBOX_PREFIX": "off"}, {b"out of 0", b"out of 1"}),
        ({"TRAINBOX_RANKS": "1"}, {b"[algo-1 1] out of 1"}),
    ],
)
def test_a_job_of_ranks_says_whose_line_it_is(tree, environ, expected):
    tree.program("import os; print('out of', os.environ['RANK'])", **TORCHRUN)
    ended = tree.run(**environ)
    assert ended.code == 0, ended.err
    assert set(ended.out.splitlines()) == expected


def test_known_failure_74_secrets_stay_out_of_our_lines_and_the_reason(tree):
    secrets = {"hf_token": "hf_abcdefgh", "db_password": "pass word 1", "pin_code": "99887766"}
    tree.program(
        "import os, sys; raise ValueError('cannot log in with ' + os.environ['SM_HP_HF_TOKEN'])",
        **secrets, url="https://user:pass@host/x", lr=0.5,
    )  # fmt: skip
    ended = tree.run(TRAINBOX_SECRETS="pin", SERVICE_KEY="servicekey1", TRAINBOX_LAUNCHER="script")
    assert ended.code == 1
    ours = "\n".join(line for line in ended.err.splitlines() if line.startswith("trainbox"))
    assert '"lr": 0.5' in ours
    assert "ValueError: cannot log in with ******" in ours
    for secret in (*secrets.values(), "user:pass", "servicekey1"):
        assert secret not in ours
        assert secret not in ended.failure
    assert ended.failure.startswith("algo-1 rank 0: ValueError: cannot log in with ******")


def test_known_failure_22_what_was_launched_is_one_line_of_json(tree):
    tree.program("print('trained')")
    ended = tree.run()
    assert ended.launch() == {
        "launcher": "script", "hosts": ["algo-1"], "leader": "algo-1", "world": 1, "per_host": 1,
        "digest": ended.launch()["digest"],
    }  # fmt: skip
    assert json.dumps(ended.launch()) in ended.err


def test_a_typing_error_in_a_settings_name_is_said(tree):
    tree.program("")
    ended = tree.run(TRAINBOX_ARGUMNT_STYLE="flag")
    assert ended.code == 0
    assert "TRAINBOX_ARGUMNT_STYLE is no setting: did you mean TRAINBOX_ARGUMENT_STYLE?" in ended.err


def test_a_reader_that_goes_away_does_not_end_the_job(tree):
    tree.program(
        "import os, pathlib\nfor _ in range(2000): print('x' * 1000)\n"
        "pathlib.Path(os.environ['SM_MODEL_DIR'], 'm').write_text('x')"
    )
    running = tree.start()
    running.process.stdout.close()
    running.process.stdout = None
    ended = running.end()
    assert ended.code == 0
    assert (tree.base / "model/m").exists()
