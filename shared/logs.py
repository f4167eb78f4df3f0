"""Structured logs to stderr: one line an event, as text for people or as JSON for machines.

What a client sent can't forge a line: JSON escapes what is no plain character, and text for people is escaped
here. ops/logs.md lists the fields.
"""

import contextlib
import logging
import sys
import traceback
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Final, TextIO, cast

import structlog

from shared.config import LogSettings

Logger = structlog.stdlib.BoundLogger
_Event = MutableMapping[str, Any]

# Fields that every line may have. What else it says is its event's own.
COMMON_FIELDS: Final = ("timestamp", "level", "role", "epoch", "event", "exception")
VALUE_CHARS_MAX: Final = 16_000
_WITH_EPOCH: Final = ("supervisor", "worker")
_BESIDE: Final = "    | "  # before each line of a traceback: none of them looks like an event's


class _Forgiving:
    """A stream where a full disk, a reader that left, or its own end costs the line and not the process."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


class _Epoch:
    """The worker's life that this process's lines are about."""

    def __init__(self) -> None:
        self.number: int | None = None

    def __call__(self, _logger: object, _method: str, event: _Event) -> _Event:
        """Add it to a line of the worker or its supervisor that doesn't say it."""
        if event.get("role") in _WITH_EPOCH and self.number is not None:
            event.setdefault("epoch", self.number)
        return event


class _Relay(logging.Handler):
    """Takes what libraries log, so that their lines have the form of ours. `source` says whose they are."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._log = structlog.get_logger(role=role)

    def emit(self, record: logging.LogRecord) -> None:
        """Never raises: a library's wrong format string is its own."""
        try:
            said = record.getMessage()
        except (TypeError, ValueError, KeyError):
            said = str(record.msg)
        about = {"exc_info": record.exc_info} if record.exc_info else {}
        self._log.log(record.levelno, said, source=record.name, **about)


@dataclass(frozen=True, slots=True)
class _Shown:
    """A value whose text is ready: the renderer takes it as it is."""

    text: str

    def __repr__(self) -> str:
        return self.text


_epoch: Final = _Epoch()


def configure(settings: LogSettings, role: str = "") -> None:
    """Set up logging for this process, whose role it is; call it once, at the start."""
    for_people = settings.format == "console"
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _epoch,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if for_people else "iso", utc=not for_people),
            structlog.processors.StackInfoRenderer(),
            *_rendered(for_people=for_people),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(settings.level.upper())),
        # One write a line: what two threads say doesn't run into each other.
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Forgiving(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, handlers=[_Relay(role)], force=True)


def get(role: str) -> Logger:
    """Return a logger that names its role: proxy, supervisor, worker or up."""
    return cast("Logger", structlog.get_logger(role=role))


def about_epoch(number: int) -> None:
    """From now on lines of the worker and its supervisor are about this life of the worker."""
    _epoch.number = number


def _rendered(*, for_people: bool) -> list[Any]:
    if not for_people:
        return [_told_exception, _in_order, structlog.processors.JSONRenderer()]
    console = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), sort_keys=False, exception_formatter=structlog.dev.plain_traceback
    )
    return [_told_exception, _in_order, _escaped, console]


def _told_exception(_logger: object, _method: str, event: _Event) -> _Event:
    """Turn an exception into its text."""
    info = event.pop("exc_info", None)
    if not info:
        return event
    if isinstance(info, BaseException):
        lines = traceback.format_exception(info)
    else:
        lines = traceback.format_exception(*(info if isinstance(info, tuple) else sys.exc_info()))
    event["exception"] = "".join(lines).rstrip()
    return event


def _in_order(_logger: object, _method: str, event: _Event) -> _Event:
    """Put what every line has first, and cut what is very long."""
    common = [name for name in COMMON_FIELDS if name in event]
    return {name: _cut(event[name]) for name in (*common, *(each for each in event if each not in common))}


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > VALUE_CHARS_MAX:
        return f"{value[:VALUE_CHARS_MAX]}… ({len(value)} characters)"
    return value


def _escaped(_logger: object, _method: str, event: _Event) -> _Event:
    """Escape what would begin another line, or move a terminal's cursor; tracebacks stand apart."""
    for name, value in event.items():
        if name == "exception":
            event[name] = "\n".join(_BESIDE + plain(line) for line in value.split("\n"))
        elif name == "event":
            event[name] = plain(str(value))
        elif not isinstance(value, int | float | None) and not (
            isinstance(value, str) and value.isprintable()
        ):
            event[name] = _Shown(plain(repr(value)))
    return event


def plain(text: str) -> str:
    """Return a text with every character escaped that isn't printed as itself."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text
    )
