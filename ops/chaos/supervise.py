"""The supervisor as `forebay worker` runs it, over another worker: `python -m ops.chaos.supervise`."""

import argparse
import json
import sys
from collections.abc import Sequence

from ops.models import resolve
from shared import logs
from shared.config import Settings
from worker.__main__ import run


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ops.chaos.supervise", description=__doc__)
    parser.add_argument("--worker", required=True, help="the worker's command, as a JSON list")
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--lifeline-fd", type=int)
    arguments = parser.parse_args(words)
    settings = Settings.load(port=arguments.port, model=arguments.model)
    logs.configure(settings.log)
    folder = resolve(settings.model, settings.home_folder)
    return run(settings, folder, arguments.lifeline_fd, command=json.loads(arguments.worker))


if __name__ == "__main__":
    sys.exit(main())
