"""Which network communication libraries are told to use."""

from trainbox import fabric


def test_known_failure_14_all_libraries_get_the_interface_and_its_reason():
    found = fabric.variables("eth1", "it leads to algo-2", {})
    assert [(name, value) for name, value, _ in found] == [
        ("NCCL_SOCKET_IFNAME", "eth1"), ("GLOO_SOCKET_IFNAME", "eth1"), ("TP_SOCKET_IFNAME", "eth1"),
    ]  # fmt: skip
    assert {why for _, _, why in found} == {"it leads to algo-2"}


def test_known_failure_14_what_the_user_has_set_stays():
    names = [variable.name for variable in fabric.variables("eth1", "", {"NCCL_SOCKET_IFNAME": "ib0"})]
    assert names == ["GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"]


def test_an_unknown_interface_sets_nothing():
    assert fabric.variables("", "unknown", {}) == ()
