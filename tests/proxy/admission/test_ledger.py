"""The ledger against the facts' arithmetic, and what is measured beside it: laws for all numbers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.admission.ledger import NO_RESERVE, Ledger, Reserve
from proxy.admission.shares import StepShares
from proxy.admission.speeds import Lengths, Samples, Speeds
from tests.proxy.small_worlds import facts

MODELS = st.builds(
    facts,
    kv_pad_tokens=st.sampled_from([1, 2, 4, 8]),
    fixed_bytes_per_row=st.integers(0, 50),
    window_tokens=st.integers(0, 30),
    window_bytes_per_token=st.integers(0, 3),
    batches=st.booleans(),
)
ROWS = st.lists(st.integers(1, 100), max_size=12)
RESERVES = st.builds(Reserve, st.integers(0, 9), st.integers(0, 1000))


def filled(model, budget, slots, rows, reserve=NO_RESERVE):
    ledger, taken = Ledger(model, budget, slots), []
    for number, tokens in enumerate(rows):
        if ledger.fits(tokens, reserve):
            ledger.reserve(str(number), tokens)
            taken.append(tokens)
    return ledger, taken


@settings(deadline=None)
@given(MODELS, st.integers(0, 2000), st.integers(1, 9), ROWS)
def test_whatever_fits_is_within_budget_and_slots_and_what_does_not_would_be_over(model, budget, slots, rows):
    ledger, taken = Ledger(model, budget, slots), []
    for number, tokens in enumerate(rows):
        needed = model.batch_bytes([*taken, tokens])
        assert ledger.fits(tokens, NO_RESERVE) == (needed <= budget and len(taken) < slots)
        if ledger.fits(tokens, NO_RESERVE):
            ledger.reserve(str(number), tokens)
            taken.append(tokens)
        assert ledger.reserved_bytes == model.batch_bytes(taken) <= budget
    for number in range(len(rows)):
        ledger.release(str(number))
    assert (ledger.reserved_bytes, ledger.rows) == (0, 0)


@settings(deadline=None)
@given(MODELS, st.integers(0, 2000), st.integers(2, 9), ROWS, RESERVES, st.integers(1, 40))
def test_who_starts_beside_others_leaves_free_what_is_reserved(model, budget, slots, rows, reserve, tokens):
    ledger, taken = filled(model, budget, slots, rows)
    fits = ledger.fits(tokens, reserve)
    needed = model.batch_bytes([*taken, tokens])
    if taken:
        assert fits == (
            len(taken) + 1 <= slots - min(reserve.slots, slots - 1) and needed <= budget - reserve.kv_bytes
        )
    else:
        assert fits == (needed <= budget)


@settings(deadline=None)
@given(MODELS, st.integers(0, 2000), st.integers(1, 9), ROWS, RESERVES, st.integers(1, 60))
def test_the_room_is_that_of_the_longest_that_fits(model, budget, slots, rows, reserve, below):
    ledger, _ = filled(model, budget, slots, rows)
    room = ledger.room_tokens(reserve, below)
    for tokens in range(1, below):
        assert ledger.fits(tokens, reserve) == (tokens <= room)


@settings(deadline=None)
@given(MODELS, st.integers(0, 2000), ROWS, st.data())
def test_a_row_grows_where_there_is_room_and_stays_where_there_is_none(model, budget, rows, data):
    ledger, taken = filled(model, budget, 99, rows)
    if not taken:
        return
    name = data.draw(st.sampled_from(list(ledger._rows)))
    tokens = data.draw(st.integers(ledger.tokens_of(name), 120))
    others = [row.tokens for other, row in ledger._rows.items() if other != name]
    before = ledger.reserved_bytes
    grew = ledger.grow(name, tokens)
    assert grew == (model.batch_bytes([*others, tokens]) <= budget)
    assert ledger.reserved_bytes == (model.batch_bytes([*others, tokens]) if grew else before) <= budget


@settings(deadline=None)
@given(MODELS, st.integers(0, 2000), st.integers(1, 9), ROWS, RESERVES, st.integers(1, 40))
def test_a_fit_without_some_rows_is_a_fit_in_a_ledger_that_lost_them(
    model, budget, slots, rows, reserve, tokens
):
    ledger, _ = filled(model, budget, slots, rows)
    gone = list(ledger._rows)[::2]
    lost = ledger.copy()
    for name in gone:
        lost.release(name)
    assert ledger.fits(tokens, reserve, gone) == lost.fits(tokens, reserve)
    assert ledger.that_lost(gone).affords(tokens, reserve) == lost.affords(tokens, reserve)
    assert ledger.rows == lost.rows + len(gone)


@settings(deadline=None)
@given(MODELS, st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 100)), max_size=60))
def test_the_bytes_are_those_of_the_rows_whatever_was_reserved_grew_and_left_before(model, events):
    """A name that isn't there is reserved for, one that is there grows, and 0 tokens give it back."""
    ledger, held = Ledger(model, 400, 4), {}
    for name, tokens in events:
        if not tokens:
            ledger.release(name)
            held.pop(name, None)
        elif name not in held and ledger.fits(tokens, NO_RESERVE):
            ledger.reserve(name, tokens)
            held[name] = tokens
        elif tokens > held.get(name, tokens) and ledger.grow(name, tokens):
            held[name] = tokens
        assert ledger.reserved_bytes == ledger.copy().reserved_bytes == model.batch_bytes(list(held.values()))
        assert ledger.rows == len(held)


def test_a_copy_is_tried_out_on_and_the_ledger_stays_as_it_is():
    ledger = Ledger(facts(), 100, 4)
    ledger.reserve("a", 10)
    trial = ledger.copy()
    trial.release("a")
    trial.reserve("b", 20)
    assert (ledger.reserved_bytes, ledger.rows, ledger.tokens_of("a")) == (11, 1, 10)
    assert (trial.reserved_bytes, trial.rows, trial.tokens_of("b")) == (21, 1, 20)


def test_a_long_row_beside_short_ones_takes_no_more_than_its_own():
    ledger = Ledger(facts(), 100, 4)
    ledger.reserve("long", 61)
    assert ledger.fits(37, NO_RESERVE)
    assert not ledger.fits(38, NO_RESERVE)
    ledger.reserve("short", 5)
    assert ledger.reserved_bytes == 62 + 6


def test_nothing_is_reserved_in_a_worker_whose_rows_will_all_have_gone():
    ledger = Ledger(facts(), 40, 4)
    ledger.reserve("a", 10)
    assert not ledger.affords(29, Reserve(0, 1))
    assert ledger.that_lost(["a"]).affords(39, Reserve(0, 1))
    assert not ledger.that_lost(["a"]).affords(40, Reserve(0, 1))


@pytest.mark.parametrize("without", [["a", "a"], ["a", "nobody"]])
def test_a_row_named_twice_or_unknown_is_not_counted_off_again(without):
    ledger = Ledger(facts(), 40, 4)
    ledger.reserve("a", 10)
    ledger.reserve("b", 19)
    assert ledger.fits(19, NO_RESERVE, without)
    assert not ledger.fits(20, NO_RESERVE, without)


# --- what is measured ---------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=700), st.floats(0, 1), st.integers(-1, 100))
def test_a_quantile_is_that_of_the_last_512_values_above_a_bound(values, share, above):
    samples = Samples()
    for value in values:
        samples.add(value)
    latest = sorted(value for value in values[-512:] if value > above)
    expected = latest[int(share * (len(latest) - 1))] if latest else None
    assert samples.quantile(share, above=above) == expected


def test_what_is_left_of_an_answer_is_guessed_from_those_that_got_as_far():
    lengths = Lengths()
    assert lengths.remaining(0, 4096) == 128
    assert lengths.remaining(200, 4096) == 200
    assert lengths.remaining(0, 40) == 40
    for tokens in (10, 20, 30, 40, 50, 60, 70, 80, 90, 100):
        lengths.answered(tokens)
    assert lengths.remaining(0, 4096) == 80
    assert lengths.remaining(25, 4096) == 80 - 25
    assert lengths.remaining(25, 30) == 5
    assert lengths.remaining(30, 4096) == 128


def test_a_step_of_rows_never_seen_takes_as_long_as_of_the_nearest():
    speeds = Speeds()
    speeds.worker_came(2.0, 30.0)
    assert (speeds.step_ms(4), speeds.prefill_ms(10)) == (30.0, 20.0)
    speeds.stepped(1, 10.0)
    speeds.stepped(8, 24.0)
    assert [speeds.step_ms(rows) for rows in (1, 3, 6, 64)] == [10.0, 10.0, 24.0, 24.0]
    speeds.stepped(8, 34.0)
    assert speeds.step_ms(8) == 25.0
    speeds.worker_came(9.0, 99.0)
    assert speeds.step_ms(8) == 25.0


def test_a_piece_of_prefill_that_is_too_short_teaches_nothing():
    speeds = Speeds()
    speeds.prefilled(15, 1500.0)
    assert speeds.prefill_ms_per_token == 1.0
    speeds.prefilled(16, 160.0)
    assert speeds.prefill_ms_per_token == 1.0 + 0.1 * 9.0


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 9), st.integers(0, 30)), max_size=60))
def test_a_share_is_that_of_the_last_minutes_time(events):
    shares, now, past = StepShares(), 0, []
    for name, gpu_ms, pause_s in events:
        now += pause_s
        shares.add(name, gpu_ms, now + 0.5)
        past.append((name, gpu_ms, now))
        recent = [(each, ms) for each, ms, at in past if at > now - 60]
        whole = sum(ms for _, ms in recent)
        for each in "ab":
            own = sum(ms for other, ms in recent if other == each)
            assert abs(shares.of(each, now + 0.9) - own / whole) < 1e-9
    assert shares.of("a", now + 61) == 0.0


@settings(deadline=None)
@given(MODELS, st.integers(0, 2000), st.integers(1, 9), ROWS, st.integers(0, 3000), st.integers(1, 9))
def test_a_limit_leaves_what_runs_and_admits_within_what_there_is_now(
    model, budget, slots, rows, less, fewer
):
    ledger, taken = filled(model, budget, slots, rows)
    ledger.limit(less, fewer)
    assert ledger.reserved_bytes == model.batch_bytes(taken)
    assert (ledger.budget_bytes, ledger.full_bytes, ledger.slots) == (min(less, budget), budget, fewer)
    for tokens in (1, 20, 40):
        alone = model.batch_bytes([tokens])
        assert ledger.could_ever_fit(tokens) == (alone <= budget)
        assert ledger.fits_alone(tokens) == (alone <= min(less, budget))
        beside = model.batch_bytes([tokens, *taken]) <= min(less, budget) and len(taken) < fewer
        assert ledger.fits(tokens, NO_RESERVE) == beside
    copy = ledger.copy()
    assert (copy.budget_bytes, copy.full_bytes, copy.slots) == (min(less, budget), budget, fewer)
    ledger.limit(budget, slots)
    assert (ledger.budget_bytes, ledger.slots) == (budget, slots)


def test_a_row_does_not_grow_beyond_what_there_is_now():
    ledger = Ledger(facts(), 100, 4)
    ledger.reserve("a", 10)
    ledger.limit(15, 4)
    assert not ledger.grow("a", 20)
    assert (ledger.tokens_of("a"), ledger.grow("a", 14)) == (10, True)
