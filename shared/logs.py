"""Structured logs to stderr: one line an event, as text for people or as JSON for machines."""

import contextlib
import logging
import sys
from typing import Any, TextIO, cast

import structlog

from shared.config import LogSettings

Logger = structlog.stdlib.BoundLogger


class _Forgiving:
    """A stream where a full disk, or a reader that left, costs the line and not the process."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def configure(settings: LogSettings) -> None:
    """Set up logging for this process; call it once, at the start."""
    for_people = settings.format == "console"
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        if for_people
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if for_people else "iso", utc=not for_people),
            structlog.processors.StackInfoRenderer(),
            *([] if for_people else [structlog.processors.format_exc_info]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(settings.level.upper())),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _Forgiving(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(name)s: %(message)s")


def get(role: str) -> Logger:
    """Return a logger that names its role: proxy, supervisor, worker or up."""
    return cast("Logger", structlog.get_logger(role=role))
