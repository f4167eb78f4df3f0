"""What fits, and what would: reckoned for a model and for machines of round figures."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.plan import machine
from ops.plan.machine import Target, mac_of
from ops.plan.reckoning import Reckoning, most, plan, table_contexts
from ops.plan.record import Plan
from shared.limits import GIB, KIB, MIB, SLOTS_MAX
from tests.plan.played_model import FACTS, PlayedModel, asked
from worker.memory import DeviceReport, budget

# 80 % of 40 GiB are 32: 8 of weights, 1 for passes, 23 for caches.
DEVICE = Target(DeviceReport("a machine", 40 * GIB, 64 * GIB), is_metal=False)
ROW_32K = FACTS.row_bytes(32 * KIB)


def planned(
    context: int | None = None,
    streams: int | None = None,
    model: PlayedModel | None = None,
    packed: PlayedModel | None = None,
    target: Target = DEVICE,
) -> Plan:
    model = model or PlayedModel()
    return plan("a model", asked(context, streams), target, lambda bits: packed if bits else model)


def test_memory_is_shared_out_as_the_worker_does() -> None:
    found = planned(32 * KIB, 8)
    assert found.machine.limit_bytes == 32 * GIB
    expected = budget(DEVICE.device, 0.8, None, FACTS.weights_bytes, GIB)
    assert found.planned.budget_bytes == expected.kv_bytes == 23 * GIB
    assert found.planned.asked_bytes == 8 * ROW_32K == FACTS.batch_bytes([32 * KIB] * 8)
    assert found.planned.headroom_bytes == 23 * GIB - 8 * ROW_32K


def test_what_fits_comes_with_the_settings_for_it() -> None:
    found = planned(32 * KIB, 8)
    assert (found.verdict, found.ways_out) == ("fits", ())
    assert found.settings == {
        "slots": 8,
        "context_tokens": 32 * KIB,
        "kv_bits": 0,
        "kv_budget_mb": 23 * KIB,
    }


def test_the_table_says_of_each_context_the_most_streams() -> None:
    found = planned(32 * KIB, 8)
    contexts = [4 * KIB, 8 * KIB, 32 * KIB, 64 * KIB, 128 * KIB]
    assert [fit.context_tokens for fit in found.table] == contexts
    for fit in found.table:
        assert fit.streams == 23 * GIB // FACTS.row_bytes(fit.context_tokens)
        assert fit.stream_bytes == FACTS.row_bytes(fit.context_tokens)


def test_one_more_stream_than_the_table_says_does_not_fit() -> None:
    streams = planned().table[2].streams
    assert planned(32 * KIB, streams).verdict == "fits"
    assert planned(32 * KIB, streams + 1).verdict == "does not fit"


def test_slots_that_need_memory_of_their_own_take_it_from_streams() -> None:
    dear = planned(model=PlayedModel(slot_bytes=GIB)).table[2]
    assert dear.streams == 23 * GIB // (ROW_32K + GIB)
    assert dear.reserve_bytes == GIB + dear.streams * GIB


def test_without_streams_as_many_as_fit_are_planned_up_to_the_default_of_slots() -> None:
    assert planned(4 * KIB).planned.streams == 16
    assert planned(64 * KIB).planned.streams == 23 * GIB // FACTS.row_bytes(64 * KIB)


def test_without_a_context_the_longest_that_fits_is_planned() -> None:
    found = planned(streams=8)
    assert found.verdict == "fits"
    assert planned(found.planned.context_tokens + 256, 8).verdict == "does not fit"
    assert planned(streams=1).planned.context_tokens == 128 * KIB


def test_what_does_not_fit_says_what_would() -> None:
    packed = PlayedModel(replace(FACTS, kv_bytes_per_token=34 * KIB, kv_bits=8))
    found = planned(32 * KIB, 16, packed=packed)
    assert (found.verdict, found.settings) == ("does not fit", {})
    bits, fewer, shorter, larger = found.ways_out
    assert (bits.change, bits.kv_bits) == ("kv_bits = 8", 8)
    assert fewer.streams == 23 * GIB // ROW_32K
    assert shorter.context_tokens < 32 * KIB
    assert planned(shorter.context_tokens, 16).verdict == "fits"
    assert planned(shorter.context_tokens + 256, 16).verdict == "does not fit"
    assert larger.memory_bytes == 96 * GIB


@pytest.mark.parametrize("number", range(3))
def test_every_way_out_leads_out(number: int) -> None:
    way = planned(32 * KIB, 16).ways_out[number]
    target = DEVICE if way.memory_bytes == DEVICE.device.memory_bytes else mac_of(way.memory_bytes)
    assert planned(way.context_tokens, way.streams, target=target).verdict == "fits"


def test_a_model_whose_weights_do_not_fit_needs_another_machine() -> None:
    model = PlayedModel(replace(FACTS, weights_bytes=40 * GIB))
    found = planned(32 * KIB, 1, model)
    assert [fit.streams for fit in found.table] == [0] * 5
    assert [way.change for way in found.ways_out] == ["a Mac of 96 GB"]


def test_a_context_beyond_the_models_own_does_not_fit() -> None:
    assert planned(256 * KIB, 1).verdict == "does not fit"


def test_where_one_row_runs_at_a_time_two_streams_do_not_fit() -> None:
    model = PlayedModel(replace(FACTS, batches=False, why_not="its layers use an odd cache"))
    assert planned(4 * KIB, 1, model).verdict == "fits"
    found = planned(4 * KIB, 2, model)
    assert found.verdict == "does not fit"
    assert [way.streams for way in found.ways_out] == [1]
    assert {fit.streams for fit in found.table} == {1}


@pytest.mark.parametrize(
    ("longest", "contexts"),
    [
        (2048, (2048,)),
        (8192, (4096, 8192)),
        (32_768, (4096, 8192, 32_768)),
        (40_960, (4096, 8192, 32_768, 40_960)),
        (262_144, (4096, 8192, 32_768, 65_536, 131_072, 262_144)),
    ],
)
def test_the_table_ends_with_the_models_own_context(longest: int, contexts: tuple[int, ...]) -> None:
    assert table_contexts(longest) == contexts


@pytest.mark.parametrize(
    ("size", "set_bytes"), [(24, 16 * GIB), (36, 24 * GIB), (48, 36 * GIB), (64, 48 * GIB), (512, 384 * GIB)]
)
def test_a_mac_recommends_two_thirds_and_above_36_gigabytes_three_quarters(size: int, set_bytes: int) -> None:
    target = mac_of(size * GIB)
    assert (target.device.usable_bytes, target.is_metal) == (set_bytes, True)
    assert "taken to be" in target.assumed


def test_what_a_mac_reports_of_itself_is_assumed_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = DeviceReport("Apple M3 Max", 48 * GIB + 7, 64 * GIB, resource_limit=499_000, is_gpu=True)
    monkeypatch.setattr(machine, "device_report", lambda: reported)
    assert machine.this_machine() == Target(reported, is_metal=True)
    card = replace(reported, shares_memory=False)
    monkeypatch.setattr(machine, "device_report", lambda: card)
    assert not machine.this_machine().is_metal


@given(limit=st.integers(0, 300), highest=st.integers(0, 300))
def test_most_is_the_largest_that_holds(limit: int, highest: int) -> None:
    assert most(lambda number: number <= limit, highest) == min(limit, highest)


@settings(max_examples=50)
@given(
    context=st.integers(1, 512).map(lambda steps: 256 * steps),
    slot_mb=st.integers(0, 2048),
    usable_mb=st.integers(0, 1 << 20),
)
def test_what_is_said_to_fit_fits_and_nothing_more(context: int, slot_mb: int, usable_mb: int) -> None:
    device = DeviceReport("a machine", usable_mb * MIB, 0)
    reckoning = Reckoning(PlayedModel(slot_bytes=slot_mb * MIB), Target(device, is_metal=False), 0.8)
    streams = reckoning.most_streams(context)
    assert not streams or reckoning.fits(streams, context)
    assert streams == SLOTS_MAX or not reckoning.fits(streams + 1, context)
