"""Other lanes than before, in the middle of everything: whoever is in one that stays stays there."""

from collections.abc import Sequence

from proxy.admission.lane import Lane
from proxy.admission.state import State
from shared.lane_settings import AdmissionSettings, LaneSettings


def change_lanes(state: State, lanes: Sequence[LaneSettings], settings: AdmissionSettings) -> None:
    """Go on with these lanes. The answers of one that is gone go on in the lowest."""
    before = {lane.settings.name: lane for lane in state.lanes}
    state.lanes = []
    for rank, each in enumerate(lanes):
        lane = before.pop(each.name, None)
        if lane is None:
            lane = Lane(each, rank, settings)
        else:
            lane.configure(each, rank, settings)
        state.lanes.append(lane)
    for gone in before.values():
        _merge(state, gone, state.lanes[-1])


def _merge(state: State, gone: Lane, lowest: Lane) -> None:
    suspects = [each for each in state.trials.waiting.values() if state.lane_of[each.name] is gone]
    for answer in [*gone.running.values(), *gone.parking.values(), *gone.queued(), *suspects]:
        state.lane_of[answer.name] = lowest
        lowest.counters.entered(answer.key)
        lowest.counters.charge(answer.key, answer.prepaid_ms, answer.newcomer.weight)
    lowest.running.update(gone.running)
    lowest.parking.update(gone.parking)
    for answer in suspects:
        lowest.put_aside(answer)
    for answer in gone.queued():
        if answer.starts:
            lowest.put_front(answer, answer.queued_at)
        else:
            lowest.append(answer, answer.queued_at)
