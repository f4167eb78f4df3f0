"""How memory is shared out, decided from what devices of several kinds have said of themselves."""

from typing import Final

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.limits import MIB
from worker import memory
from worker.memory import DeviceReport, budget, report_of

GIB: Final = 1024 * MIB

# mx.device_info() of a MacBook with 64 GiB, and of a CUDA card; the CPU build has nothing to say.
M3_MAX: Final[dict[str, str | int]] = {
    "resource_limit": 499_000,
    "max_buffer_length": 38_654_705_664,
    "architecture": "applegpu_g15s",
    "memory_size": 68_719_476_736,
    "max_recommended_working_set_size": 51_539_607_552,
    "device_name": "Apple M3 Max",
}
CUDA: Final[dict[str, str | int]] = {
    "device_name": "NVIDIA L4",
    "architecture": "sm_89",
    "total_memory": 24 * GIB,
    "free_memory": 23 * GIB,
}


def test_a_mac_says_what_it_can_hold_without_swapping() -> None:
    report = report_of(M3_MAX, system_bytes=64 * GIB)
    assert report == DeviceReport("Apple M3 Max", 48 * GIB, 64 * GIB, 499_000, is_gpu=True)
    assert report.usable_bytes == 48 * GIB


def test_a_card_that_names_no_working_set_is_used_up_to_its_memory() -> None:
    silent = {key: value for key, value in CUDA.items() if key != "free_memory"}
    report = report_of(silent, system_bytes=512 * GIB)
    assert report == DeviceReport("NVIDIA L4", 0, 24 * GIB, shares_memory=False, is_gpu=True)
    assert report.usable_bytes == 24 * GIB


def test_of_a_card_only_what_other_processes_leave_is_used() -> None:
    assert report_of(CUDA, system_bytes=512 * GIB).usable_bytes == 23 * GIB
    shared = report_of({**CUDA, "free_memory": 3 * GIB}, system_bytes=512 * GIB)
    assert budget(shared, 0.5, None, weights_bytes=1 * GIB, reserve_bytes=0).kv_bytes == GIB // 2


def test_what_is_free_of_the_systems_own_memory_is_no_bound() -> None:
    """After a load, the model's files fill much of it, and the next life would be refused."""
    chip = report_of({**CUDA, "free_memory": 3 * GIB}, system_bytes=24 * GIB + 100 * MIB)
    assert chip.usable_bytes == 24 * GIB


def test_a_device_that_claims_more_free_memory_than_it_has_is_not_believed() -> None:
    assert report_of({**CUDA, "free_memory": 100 * GIB}, system_bytes=0).usable_bytes == 24 * GIB


def test_a_cpu_has_the_machines_memory() -> None:
    assert report_of({}, system_bytes=16 * GIB) == DeviceReport("cpu", 0, 16 * GIB, 0, shares_memory=True)


def test_this_machines_own_report_names_a_usable_amount() -> None:
    assert memory.device_report().usable_bytes > 0


def test_caches_get_what_weights_and_the_reserve_leave_of_the_share() -> None:
    shared_out = budget(report_of(M3_MAX, 0), 0.5, None, weights_bytes=8 * GIB, reserve_bytes=1 * GIB)
    assert shared_out.kv_bytes == 15 * GIB
    assert shared_out.headroom_share == pytest.approx(15 / 24)
    assert shared_out.warning == ""


def test_a_configured_cap_only_lowers_the_budget() -> None:
    report = report_of(M3_MAX, 0)
    assert budget(report, 0.5, 512, 8 * GIB, 0).kv_bytes == 512 * MIB
    assert budget(report, 0.5, 1 << 30, 8 * GIB, 0).kv_bytes == 16 * GIB


def test_a_cap_is_the_operators_wish_and_no_reason_to_warn() -> None:
    assert budget(report_of(M3_MAX, 0), 0.5, 1, 8 * GIB, 0).warning == ""


@pytest.mark.parametrize(("weights_gib", "warns"), [(19, False), (20, True)])
def test_less_than_a_fifth_of_headroom_is_warned_of_with_the_numbers(weights_gib: int, warns: bool) -> None:
    shared_out = budget(report_of(M3_MAX, 0), 0.5, None, weights_gib * GIB, 0)
    assert bool(shared_out.warning) is warns
    if warns:
        assert f"{4 * 1024} MiB of {24 * 1024} MiB" in shared_out.warning
        assert f"{20 * 1024} MiB of weights" in shared_out.warning


def test_a_model_that_is_too_big_leaves_nothing_and_says_so() -> None:
    shared_out = budget(report_of(CUDA, 0), 0.8, None, weights_bytes=40 * GIB, reserve_bytes=1 * GIB)
    assert (shared_out.kv_bytes, shared_out.headroom_share) == (0, 0.0)
    assert "only 0 MiB" in shared_out.warning


@settings(deadline=None)
@given(
    usable=st.integers(0, 1 << 45),
    fraction=st.floats(0.01, 0.95),
    configured_mb=st.none() | st.integers(1, 1 << 20),
    weights=st.integers(0, 1 << 45),
    reserve=st.integers(0, 1 << 40),
)
def test_a_budget_is_never_negative_and_never_more_than_its_share(
    usable: int, fraction: float, configured_mb: int | None, weights: int, reserve: int
) -> None:
    shared_out = budget(DeviceReport("x", usable, usable), fraction, configured_mb, weights, reserve)
    assert 0 <= shared_out.kv_bytes <= max(0, int(fraction * usable) - weights - reserve)
    assert configured_mb is None or shared_out.kv_bytes <= configured_mb * MIB
    assert 0 <= shared_out.headroom_share <= 1


def test_the_buffers_kept_for_reuse_are_bounded_by_a_share_of_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: list[int] = []
    monkeypatch.setattr(mx, "set_cache_limit", limits.append)
    memory.bound_buffer_cache(report_of(M3_MAX, 0))
    assert limits == [int(0.05 * 48 * GIB)]


def test_a_reading_sees_an_array_that_is_held() -> None:
    before = memory.reading()
    held = mx.zeros((4 * MIB,), dtype=mx.uint8)
    mx.eval(held)
    after = memory.reading()
    assert after.active_bytes - before.active_bytes >= held.nbytes
    assert after.peak_bytes >= after.active_bytes
    assert after.footprint_bytes > 0
