"""A port for a test: nobody listens on it, nor is another process of the tests about to."""

import os
import socket


def free_port() -> int:
    """Return a port that the system has to give; each of the processes of one run takes a share of them.

    Between this and the listening anybody may take it, above all the tests that run beside this one.
    """
    mine = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    shares = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        # Some systems give odd ports only, so shares are of pairs.
        if port // 2 % shares == mine:
            return port
