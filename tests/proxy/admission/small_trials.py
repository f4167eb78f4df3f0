"""Words for deaths and trials at a desk."""

from tests.proxy.admission.small_core import HIGH, Desk, lane

PARKABLE = lane("low", parkable=True)


def at_work(*names, slots=4, **changes):
    """Return a desk at which these run."""
    desk = Desk(HIGH, PARKABLE)
    desk.worker(slots=slots)
    desk.arrive(*names, max_tokens=100, **changes)
    assert desk.starts() == list(names)
    return desk


def kill(desk, alone=True, left=None, **places):
    """Let the worker die in a step of these rows, at these tokens; return the fingerprint of the guilty."""
    desk.death()
    return desk.core.died(places, desk.now, left=left, alone=alone)


def die(desk, alone=True, left=None, **places):
    """Let it die, and the next one come."""
    guilty = kill(desk, alone, left, **places)
    desk.worker()
    return guilty


def suspects(desk):
    return list(desk.state.trials.waiting)
