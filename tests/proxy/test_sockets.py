"""What is asked of the system: descriptors and socket options."""

import contextlib
import resource
import socket
import sys

import pytest
import structlog
from structlog.testing import capture_logs

from proxy.sockets import (
    DESCRIPTORS_WANTED,
    _open_now,
    connection_options,
    connections_allowed,
    listening_sockets,
    raised_descriptor_limit,
)

LOG = structlog.get_logger()


@pytest.mark.parametrize(
    ("soft", "hard", "then"),
    [
        (256, 1024, 1024),
        (256, resource.RLIM_INFINITY, DESCRIPTORS_WANTED),
        (256, 1 << 20, DESCRIPTORS_WANTED),
        (1024, 1024, 1024),
        (1 << 19, 1 << 20, DESCRIPTORS_WANTED),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, DESCRIPTORS_WANTED),
    ],
)
def test_the_soft_limit_is_raised_towards_the_hard_one_and_never_lowered(monkeypatch, soft, hard, then):
    limits = {"now": (soft, hard)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, values: limits.update(now=values))
    assert raised_descriptor_limit() == then
    assert limits["now"][1] == hard
    assert limits["now"][0] in (soft, then)
    assert limits["now"][0] == resource.RLIM_INFINITY or limits["now"][0] >= soft or soft < 0


def test_a_system_that_refuses_is_left_as_it_was(monkeypatch):
    def refuse(*_):
        raise ValueError

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raised_descriptor_limit() == 256


@pytest.mark.parametrize(
    ("configured", "descriptors", "opened", "allowed"),
    [
        (None, 1024, 20, 896),
        (None, 1024, 500, 896),
        (None, 64, 10, 32),
        (None, 64, 20, 28),
        (None, 40, 30, 4),
        (None, 4, 0, 4),
        (100, 1024, 20, 100),
        (896, 1024, 20, 896),
    ],
)
def test_connections_are_what_descriptors_allow_or_less_if_so_configured(
    monkeypatch, configured, descriptors, opened, allowed
):
    monkeypatch.setattr("proxy.sockets._open_now", lambda: opened)
    with capture_logs() as logs:
        assert connections_allowed(configured, descriptors, LOG) == allowed
    assert logs == []


def test_more_connections_than_descriptors_are_not_allowed_and_it_is_said():
    with capture_logs() as logs:
        assert connections_allowed(5000, 1024, LOG) == 896
    assert [(each["configured"], each["possible"]) for each in logs] == [(5000, 896)]


def test_open_descriptors_are_counted():
    before = _open_now()
    with socket.socket(), socket.socket():
        assert _open_now() == before + 2


def test_the_options_of_this_system_are_taken_and_read_back():
    with socket.socket() as probe:
        for level, name, value in connection_options(6.0):
            probe.setsockopt(level, name, value)
            told = probe.getsockopt(level, name)
            assert bool(told) if name == socket.SO_KEEPALIVE else told == value


@pytest.mark.skipif(sys.platform != "linux", reason="other systems name them otherwise")
def test_on_linux_a_vanished_peer_is_found_in_about_the_time_given():
    options = {name: value for _, name, value in connection_options(60.0)}
    probed_s = options[socket.TCP_KEEPIDLE] + options[socket.TCP_KEEPINTVL] * options[socket.TCP_KEEPCNT]
    assert probed_s == 60
    assert options[socket.TCP_USER_TIMEOUT] == 66_000


def test_on_macos_the_times_are_seconds():
    values = {name: value for _, name, value in connection_options(60.0, "darwin")}
    assert (values[0x10], values[0x101], values[0x102], values[0x80]) == (30, 10, 3, 66)


def test_elsewhere_the_systems_own_times_hold():
    assert connection_options(60.0, "plan9") == ((socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),)


async def test_all_addresses_of_a_host_are_listened_at():
    with contextlib.ExitStack() as exits:
        listening = await listening_sockets("localhost", 0, 8)
        for each in listening:
            exits.callback(each.close)
            with socket.create_connection(each.getsockname()[:2]):
                pass
        assert listening


async def test_where_another_listens_nothing_is_left_open():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        before = _open_now()
        with pytest.raises(OSError, match=r"[Aa]ddress"):
            await listening_sockets("127.0.0.1", other.getsockname()[1], 8)
        assert _open_now() == before
