"""Jobs of several hosts on loopback, with real torchrun; and how hosts meet, or do not."""

from __future__ import annotations

import json
import socket
import time

import pytest

from trainbox import __version__

pytestmark = pytest.mark.cluster

PER_HOST = "sagemaker_mpi_num_of_processes_per_host"
TORCHRUN = {"sagemaker_torch_distributed_enabled": True, PER_HOST: 2}

ALL_REDUCE = """\
import json, os, pathlib, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
total = torch.tensor([float(rank)])
dist.all_reduce(total)
keys = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SM_CURRENT_HOST", "OMP_NUM_THREADS",
        "GLOO_SOCKET_IFNAME", "TORCHELASTIC_RESTART_COUNT")
seen = {"sum": total.item(), **{key: os.environ.get(key) for key in keys}}
pathlib.Path(os.environ["SM_MODEL_DIR"], f"{rank}.json").write_text(json.dumps(seen))
print("sum", total.item())
dist.destroy_process_group()
"""


def results(trees):
    found = {}
    for tree in trees:
        for path in (tree.base / "model").glob("*.json"):
            found[int(path.stem)] = json.loads(path.read_text())
    return found


def run_all(trees, environ, **more):
    running = [tree.start(**environ, **more) for tree in trees]
    return [each.end() for each in running]


def test_two_hosts_of_two_processes_are_one_job_in_whatever_order_they_start(hosts):
    trees, environ = hosts(2)
    for tree in trees:
        tree.program(ALL_REDUCE, **TORCHRUN)
    member = trees[1].start(**environ)
    # The second host is there first, and says what it waits for.
    while "waiting" not in (line := member.process.stderr.readline().decode()):
        assert line
    assert "leader algo-1 (127.0.0.1:" in line
    leader = trees[0].start(**environ)
    ended = [leader.end(), member.end()]
    for host, one in zip(("algo-1", "algo-2"), ended, strict=True):
        assert one.code == 0, one.err
        assert f"[{host} ".encode() in one.out
    found = results(trees)
    assert sorted(found) == [0, 1, 2, 3]
    for rank, seen in found.items():
        assert seen["sum"] == 6.0
        assert (seen["WORLD_SIZE"], seen["LOCAL_WORLD_SIZE"]) == ("4", "2")
        assert (seen["RANK"], seen["LOCAL_RANK"]) == (str(rank), str(rank % 2))
        assert seen["SM_CURRENT_HOST"] == f"algo-{1 + rank // 2}"
        assert seen["GLOO_SOCKET_IFNAME"] == "lo"


def test_known_failure_14_an_interface_that_the_user_has_set_stays(hosts):
    trees, environ = hosts(2)
    for tree in trees:
        tree.program(ALL_REDUCE, sagemaker_torch_distributed_enabled=True)
    ended = run_all(trees, environ, GLOO_SOCKET_IFNAME="eth9")
    # Gloo refuses a name that is none: what the user has set has reached it.
    assert all(one.code != 0 for one in ended)
    assert any("eth9" in one.err for one in ended)


def test_a_failure_on_one_host_ends_both(hosts):
    trees, environ = hosts(2)
    for tree in trees:
        tree.program(
            "import os, torch.distributed as dist\ndist.init_process_group('gloo')\n"
            "if os.environ['RANK'] == '3': raise ValueError('bad label')\ndist.barrier()\n",
            **TORCHRUN,
        )
    first, second = run_all(trees, environ)
    assert second.code == 1, second.err
    assert second.failure.startswith("algo-2 rank 3: ValueError: bad label\nexit code 1")
    assert first.code != 0
    assert first.failure.startswith("algo-1 rank ")


def test_ranks_are_started_again(tree):
    tree.program(
        "import os, pathlib, sys\ncount = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "pathlib.Path(os.environ['SM_MODEL_DIR'], count).write_text('x')\nsys.exit(count != '2')\n",
        sagemaker_torch_distributed_enabled=True,
    )
    ended = tree.run(TRAINBOX_MAX_RESTARTS="3")
    assert ended.code == 0, ended.err
    assert sorted(path.name for path in (tree.base / "model").iterdir()) == ["0", "1", "2"]
    assert not ended.failure


def test_an_elastic_job_starts_with_the_hosts_that_are_there(hosts):
    trees, environ = hosts(2)
    for tree in trees:
        tree.program(ALL_REDUCE, sagemaker_torch_distributed_enabled=True, sagemaker_job_name="elastic")
    ended = run_all(trees, environ, TRAINBOX_NODES="1:2")
    assert [one.code for one in ended] == [0, 0], ended[0].err
    assert {seen["WORLD_SIZE"] for seen in results(trees).values()} == {"2"}


# -- hosts that do not come, and those that may not ----------------------------------------------------------


def test_known_failure_52_a_single_host_needs_no_name_and_no_peer(tree):
    tree.hosts("a-name-that-does-not-resolve").program("print('trained')")
    ended = tree.run()
    assert (ended.code, ended.out) == (0, b"trained\n")
    assert "join" not in ended.err


def test_known_failure_52_a_leader_that_does_not_resolve_is_named(hosts):
    trees, environ = hosts(2)
    trees[1].program("print('never')", **TORCHRUN)
    del environ["TRAINBOX_ADDRESSES"]
    ended = trees[1].run(**environ, TRAINBOX_START_TIMEOUT_SECONDS="1")
    assert ended.code == 69
    assert ended.out == b""
    assert "gave up after 1 s: name algo-1 does not resolve" in ended.failure


def test_a_leader_that_does_not_answer_is_named_with_its_address(hosts):
    trees, environ = hosts(2)
    trees[1].program("print('never')", **TORCHRUN)
    ended = trees[1].run(**environ, TRAINBOX_START_TIMEOUT_SECONDS="1")
    assert ended.code == 69
    where = f"algo-1 (127.0.0.1:{environ['TRAINBOX_CHANNEL_PORT']})"
    assert f"leader {where} does not answer: Connection refused" in ended.failure


def test_members_that_do_not_come_are_named(hosts):
    trees, environ = hosts(3)
    trees[0].program("print('never')", **TORCHRUN)
    ended = trees[0].run(**environ, TRAINBOX_START_TIMEOUT_SECONDS="1")
    assert ended.code == 69
    assert "algo-2, algo-3" in ended.failure


def test_a_port_that_is_taken_is_named(hosts):
    trees, environ = hosts(2)
    trees[0].program("print('never')", **TORCHRUN)
    with socket.create_server(("", int(environ["TRAINBOX_CHANNEL_PORT"]))):
        ended = trees[0].run(**environ)
    assert ended.code == 69
    assert "TRAINBOX_CHANNEL_PORT" in ended.failure


def test_a_host_with_another_token_is_refused_and_both_say_so(hosts):
    trees, environ = hosts(2)
    for tree in trees:
        tree.program("print('never')", **TORCHRUN)
    leader = trees[0].start(**environ, TRAINBOX_JOB_TOKEN="right", TRAINBOX_START_TIMEOUT_SECONDS="3")
    member = trees[1].run(**environ, TRAINBOX_JOB_TOKEN="wrong", TRAINBOX_START_TIMEOUT_SECONDS="60")
    assert member.code == 2
    assert "does not know the job's token" in member.failure
    ended = leader.end()
    assert ended.code == 69
    assert "algo-2 does not know the job's token" in ended.err
    assert "right" not in ended.err + member.err


def hello(connection, **changes):
    """Says hello to a leader by hand, and returns its answer."""
    file = connection.makefile("rwb")
    assert json.loads(file.readline())["nonce"]
    message = {"host": "algo-2", "job": "", "version": __version__, "machine": {"cpus": 1}, **changes}
    file.write(json.dumps(message).encode() + b"\n")
    file.flush()
    return json.loads(file.readline())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"host": "stranger"}, "stranger is not a host of this job"),
        ({"host": "algo-1"}, "algo-1 is not a host of this job"),
        ({"version": "9.9"}, "algo-2 has trainbox 9.9"),
        ({"job": "another"}, "algo-2 runs job 'another'"),
        ({"machine": 1}, "did not say hello"),
    ],
)
def test_hosts_that_do_not_fit_are_refused_with_the_reason(hosts, changes, reason):
    trees, environ = hosts(2)
    trees[0].program("print('never')", **TORCHRUN)
    leader = trees[0].start(**environ)
    connection = connect(int(environ["TRAINBOX_CHANNEL_PORT"]))
    with connection:
        assert reason in hello(connection, **changes)["refused"]
    leader.signal()
    ended = leader.end()
    assert ended.code == 143
    assert reason in ended.err


def test_an_address_that_is_no_hosts_is_refused(hosts):
    trees, environ = hosts(2)
    trees[0].program("print('never')", **TORCHRUN)
    environ["TRAINBOX_ADDRESSES"] = "algo-1=127.0.0.1,algo-2=127.0.0.2"
    leader = trees[0].start(**environ)
    with connect(int(environ["TRAINBOX_CHANNEL_PORT"])) as connection:
        assert "127.0.0.1 is not an address of algo-2" in hello(connection)["refused"]
    leader.signal()
    assert leader.end().code == 143


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b""])
def test_noise_on_the_port_is_no_obstacle(hosts, noise):
    trees, environ = hosts(2)
    for tree in trees:
        tree.program("print('trained')")
    leader = trees[0].start(**environ)
    with connect(int(environ["TRAINBOX_CHANNEL_PORT"])) as connection:
        connection.sendall(noise)
    member = trees[1].run(**environ)
    assert (leader.end().code, member.code) == (0, 0)


def connect(port):
    """A connection to a leader that is about to listen."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=60)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
