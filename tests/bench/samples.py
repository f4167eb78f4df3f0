"""Records and passes with times that were written down, for figures that can be worked out by hand."""

from ops.bench.figures import Arm, Pass
from ops.bench.plan import Axes, Plan, Point
from ops.load.records import Ask, Attempt, Record

POINT = Point(2, 64, 16)
ARM = Arm("server", "sweep", "", POINT)
AXES = Axes((1, 4, 16), (64, 256), (8, 16, 32))


def plan(**changes):
    values = {
        "works": ("sweep",),
        "axes": AXES,
        "requests": None,
        "warm_up": 0,
        "repetitions": 1,
        "shared_prefix_tokens": 0,
        "seed": 1,
        "seconds_max": 60.0,
        "timeout_s": 10.0,
    }
    return Plan(**{**values, **changes})


def record(times=(), *, sent_at=0.0, tokens=None, chars=None, ended_at=None, scheduled_at=None, **changes):
    values = {
        "ask": Ask("Hello.", 16, scheduled_at=scheduled_at),
        "attempts": (Attempt("a-1", sent_at, None, 200, None, ""),),
        "text_times": tuple(times),
        "ended_at": ended_at if ended_at is not None else (times[-1] if times else sent_at),
        "tokens": len(times) if tokens is None else tokens,
        "outcome": "completed",
        "code": "",
        "lane_served": "",
        "queue_ms": None,
        "piece_chars": tuple(chars or [4] * len(times)),
        "prompt_tokens": 64,
        "finish_reason": "length",
    }
    return Record(**{**values, **changes})


def refused(sent_at, took_s, retry_after_s=2.0):
    attempt = Attempt("a-1", sent_at, sent_at + took_s, 503, retry_after_s, "server_is_overloaded")
    return record(
        sent_at=sent_at,
        ended_at=sent_at + took_s,
        outcome="refused",
        code="server_is_overloaded",
        attempts=(attempt,),
    )


def one_pass(records, *, began=0.0, ended=10.0, partial=False, peak_bytes=None):
    return Pass(records, began, ended, partial, peak_bytes)


def steady(count=8, first_s=0.5, gap_s=0.1, tokens=11, jitter_s=0.0):
    """Return requests that took the same, but for the time by which each begins later than the one before."""
    return [
        record([first_s + number * jitter_s + gap_s * token for token in range(tokens)])
        for number in range(count)
    ]
