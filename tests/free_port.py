"""A port for a test: nobody listens on it, nor is another process of the tests about to."""

import os
import socket


def free_port() -> int:
    """Return a port that the system has to give; each process of the tests takes a share of them.

    Between this and the listening anybody may take it, above all the tests that run beside this one.
    """
    mine = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 2
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        # Some systems give odd ports only, so every other pair is a share.
        if port // 2 % 2 == mine:
            return port
