"""Ten times as many clients as can be served, who come back when they were told to."""

from typing import Final

import pytest

from tests.simulation.scenarios import overload, peak_tokens_a_second

SEED: Final = 1
SECONDS: Final = 120.0
# The device serves about 2.8 of these requests a second.
CLIENTS_A_SECOND: Final = 28.0


def test_a_tenfold_overload_costs_no_throughput_and_few_attempts():
    peak = peak_tokens_a_second(SEED, SECONDS)
    found = overload(SEED, SECONDS, CLIENTS_A_SECOND)
    assert found.clients > 3000
    assert found.tokens_a_second >= 0.95 * peak
    assert found.attempts_per_success <= 2.5
    # Who was let in has a start within its deadline, but for a minority; nobody starts after it (checkers).
    assert found.waited_in_vain <= 0.3 * (found.started + found.waited_in_vain)


@pytest.mark.parametrize("seed", [2])
def test_a_tenfold_overload_over_deaths_of_the_worker_loses_nothing(seed):
    found = overload(seed, SECONDS, CLIENTS_A_SECOND, deaths_mean_s=20.0)
    assert found.deaths >= 2
    assert found.served > 50
