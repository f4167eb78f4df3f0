"""A stand-in for proxy and worker, run as a program: `false_child.py ROLE PORT FOLDER [--lifeline-fd N]`.

It notes its pid in FOLDER, and on SIGTERM notes that it ended in order. The proxy answers /health/ready
with 200, or with 503 and the text of a file `not-ready` as long as that lies in FOLDER; a role named by a
file `ROLE-fails` says why and ends at once.
"""

import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from shared import lifeline


def main(role: str, port: str, folder: Path, lifeline_fd: int) -> int:
    if (folder / f"{role}-fails").exists():
        print("this role can't start, said the child", flush=True)
        return 3
    lifeline.watch(lifeline_fd, lifeline.exit_now)
    terminated = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: terminated.set())
    with (folder / f"{role}.pids").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    if role == "proxy":
        threading.Thread(target=serve, args=(int(port), folder), daemon=True).start()
    while not terminated.wait(0.05):
        pass
    with (folder / "ended").open("a") as ended:
        ended.write(f"{role}\n")
    while (folder / f"{role}-lingers").exists():
        threading.Event().wait(0.05)
    return 0


def serve(port: int, folder: Path) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            not_ready = folder / "not-ready"
            ready = self.path == "/health/ready" and not not_ready.exists()
            self.send_response(200 if ready else 503)
            self.end_headers()
            self.wfile.write(b"" if ready else not_ready.read_bytes())

        def log_message(self, *_: object) -> None:
            pass

    HTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[5])))
