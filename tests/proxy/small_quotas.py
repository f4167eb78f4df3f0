"""Keys with bounds, and requests that open and close at once."""

import pytest

from proxy.admission.quota import Quotas
from proxy.authenticate import Caller
from shared.errors import RateLimited

KEY = "abcd1234"


def caller(key_id=KEY, **bounds):
    return Caller(key_id, "ci", **bounds)


def opened(quotas, who, now_s):
    """Open, close at once, and say whether it passed."""
    try:
        quotas.open(who, now_s)
    except RateLimited:
        return False
    quotas.close(who)
    return True


def refused(act, *arguments):
    with pytest.raises(RateLimited) as problem:
        act(*arguments)
    return problem.value


def charging(who, now_s=0.0):
    """Return quotas with one open request."""
    quotas = Quotas()
    quotas.open(who, now_s)
    return quotas
