"""People who keep every row busy for ten minutes, and a batch queue beside them."""

from typing import Final

import pytest

from shared.lane_settings import BATCH
from tests.simulation.scenarios import endless

SECONDS: Final = 600.0
STREAMS: Final = 16


@pytest.mark.parametrize("deaths_mean_s", [None, 60.0])
def test_batch_work_goes_on_under_interactive_load_without_end(deaths_mean_s):
    found = endless(1, SECONDS, STREAMS, deaths_mean_s=deaths_mean_s)
    assert found.start_gap_s_max <= BATCH.ages_after_s
    assert found.batch_completed >= 3
    assert found.batch_tokens > 500
    assert bool(found.deaths) == (deaths_mean_s is not None)
