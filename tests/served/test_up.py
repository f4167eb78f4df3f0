"""`forebay up` from the outside: what a newcomer and an operator do to it."""

import signal

import psutil
import pytest

from tests.served.gateway import wait_until

pytestmark = [pytest.mark.served, pytest.mark.timeout(180)]


def test_killing_up_leaves_no_process_and_no_socket_behind(fresh_gateway):
    assert len(fresh_gateway.processes()) == 4  # up, proxy, supervisor, worker
    socket = fresh_gateway.home / "run" / str(fresh_gateway.port) / "wire"
    assert socket.exists()
    fresh_gateway.process.kill()
    fresh_gateway.process.wait()
    wait_until(lambda: fresh_gateway.processes() == [], "all processes are gone")
    assert not socket.exists()


def test_ctrl_c_ends_all_of_it_with_status_0(fresh_gateway):
    fresh_gateway.process.send_signal(signal.SIGINT)
    assert fresh_gateway.process.wait(60) == 0
    assert fresh_gateway.processes() == []


def test_proxy_and_supervisor_of_a_running_gateway_hold_no_mlx(gateway):
    """The maps of the live processes name every library they have loaded."""
    for word in ("ops.cli proxy", "ops.cli worker"):
        (process,) = gateway.processes(word)
        libraries = {mapped.path for mapped in psutil.Process(process.pid).memory_maps()}
        assert libraries
        assert not [path for path in libraries if "/mlx" in path]


def test_the_proxy_dies_and_the_worker_keeps_its_model(gateway):
    """`forebay up` starts a new proxy; the worker says Hello again without loading anew."""
    (worker,) = gateway.processes("worker.process")
    (proxy,) = gateway.processes("ops.cli proxy")
    proxy.kill()
    wait_until(
        lambda: any(other.pid != proxy.pid for other in gateway.processes("ops.cli proxy")),
        "a new proxy runs",
    )
    gateway.wait_until_ready()
    assert [process.pid for process in gateway.processes("worker.process")] == [worker.pid]
