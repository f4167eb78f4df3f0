"""What rows have in common is reserved once: against blocks counted one by one, and a worker's own rule."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.admission.ledger import NO_RESERVE, Ledger, Reserve
from shared.model_facts import room_tokens
from tests.proxy.admission.small_prompts import names_of, tokens_of
from tests.proxy.small_worlds import facts

FROM = 3  # blocks
BLOCK = 64  # tokens, and bytes as well
AMPLE = 1 << 20


def sharing(**changes):
    """Return facts of a family that shares beginnings of FROM blocks."""
    plain = {"reuse": "any", "shares_from": FROM * BLOCK, "context_tokens": 1 << 16}
    return facts(**{**plain, **changes})


MODELS = st.builds(
    sharing,
    kv_pad_tokens=st.sampled_from([1, 8, 256]),
    fixed_bytes_per_row=st.integers(0, 50),
    window_tokens=st.integers(0, 30),
    window_bytes_per_token=st.integers(0, 3),
    shares_from=st.sampled_from([FROM * BLOCK, FROM * BLOCK - 1, (FROM - 1) * BLOCK + 1]),
)
# Few letters, and beginnings that many words have: they meet, branch and part again.
WORDS = st.builds(
    str.__add__, st.sampled_from(["", "a", "aa", "aaa", "aaab", "ba", "baaab"]), st.text("ab", max_size=5)
)
# Who comes with which prompt and room, or grows by so much; without a word it goes.
EVENTS = st.lists(st.tuples(st.sampled_from("stuvw"), st.none() | WORDS, st.integers(1, 700)), max_size=30)


@dataclass
class Held:
    """A row as the count one by one sees it: `part` of its blocks are held with others."""

    word: str
    tokens: int
    part: int = 0


def common(one, other):
    """Return how many blocks two rows share when they stand side by side; the last token is in none."""
    count = next(
        (place for place, (mine, its) in enumerate(zip(one, other, strict=False)) if mine != its),
        min(len(one), len(other)),
    )
    return count if count >= FROM else 0


def meet(rows, name, word, tokens):
    """Let a row come: it and those beside it hold what they have in common once from now on."""
    rows[name] = Held(word, tokens)
    for other in set(rows) - {name}:
        both = common(rows[other].word, word)
        rows[other].part = max(rows[other].part, both)
        rows[name].part = max(rows[name].part, both)


def counted_bytes(model, rows):
    """Count blocks one by one, those that less than FROM blocks lead to once for each FROM-th block."""
    blocks = {
        (row.word[:FROM], row.word[:end])
        for row in rows.values()
        for end in range(1, row.part + 1)
        if row.part
    }
    whole = {name: room_tokens(row.tokens, model.kv_pad_tokens) for name, row in rows.items()}
    own = sum(
        model.row_bytes(row.tokens) - whole[name] + room_of(model, row, whole[name])
        for name, row in rows.items()
    )
    return own + BLOCK * len(blocks)


def room_of(model, row, whole):
    """Return for how many tokens of its own a row is reckoned to have room, however it is cut."""
    own = row.tokens - BLOCK * row.part
    rooms = [whole - BLOCK * row.part, room_tokens(own, model.kv_pad_tokens)]
    if row.part and own >= BLOCK // 2:
        rooms.append(BLOCK // 2 + room_tokens(own - BLOCK // 2, model.kv_pad_tokens))
    return max(rooms)


def workers_bytes(model, rows):
    """Return what a worker holds whose blocks have one home each, and whose rows are cut there."""
    blocks = {row.word[:end] for row in rows.values() for end in range(1, row.part + 1)}
    own = sum(
        model.row_bytes(row.tokens)
        - room_tokens(row.tokens, model.kv_pad_tokens)
        + room_tokens(row.tokens - BLOCK * row.part, model.kv_pad_tokens)
        for row in rows.values()
    )
    return own + BLOCK * len(blocks)


def bytes_of_whom_is_there(model, rows):
    """Return what rows would hold that had met nobody but each other, in tokens without room for more."""
    parts = {
        name: max((common(row.word, other.word) for its, other in rows.items() if its != name), default=0)
        for name, row in rows.items()
    }
    blocks = {rows[name].word[:end] for name, part in parts.items() for end in range(1, part + 1)}
    room = sum(room_tokens(row.tokens, model.kv_pad_tokens) - row.tokens for row in rows.values())
    own = sum(model.row_bytes(row.tokens) - BLOCK * parts[name] for name, row in rows.items())
    return own - room + BLOCK * len(blocks)


def tell(ledger, rows, event):
    """Let one event happen in a ledger and in the count."""
    name, word, more = event
    if word is None:
        ledger.release(name)
        rows.pop(name, None)
    elif name in rows:
        if ledger.grow(name, rows[name].tokens + more):
            rows[name].tokens += more
    elif ledger.fits(tokens_of(word, more), NO_RESERVE, (), names_of(word)):
        ledger.reserve(name, tokens_of(word, more), names_of(word))
        meet(rows, name, word, tokens_of(word, more))


@settings(deadline=None)
@given(MODELS, EVENTS)
def test_each_block_is_reserved_once_and_never_less_than_a_worker_may_hold(model, events):
    ledger, rows = Ledger(model, AMPLE, 9), {}
    for event in events:
        tell(ledger, rows, event)
        assert ledger.reserved_bytes == ledger.copy().reserved_bytes == counted_bytes(model, rows)
        assert ledger.reserved_bytes >= workers_bytes(model, rows)
        assert ledger.reserved_bytes >= bytes_of_whom_is_there(model, rows)
        assert ledger.rows == len(rows)
    for name in list(rows):
        ledger.release(name)
    assert ledger.reserved_bytes == 0
    assert ledger._commons._known == ledger._commons._holders == {}


@settings(deadline=None)
@given(MODELS, EVENTS, st.integers(300, 4000), WORDS, st.integers(1, 700))
def test_what_fits_is_what_is_within_the_budget_once_it_is_in(model, events, budget, word, more):
    ledger, rows = Ledger(model, budget, 9), {}
    for event in events:
        tell(ledger, rows, event)
    fits = ledger.fits(tokens_of(word, more), NO_RESERVE, (), names_of(word))
    meet(rows, "new", word, tokens_of(word, more))
    assert fits == (counted_bytes(model, rows) <= budget)
    if fits:
        ledger.reserve("new", tokens_of(word, more), names_of(word))
        assert ledger.reserved_bytes == counted_bytes(model, rows)


@settings(deadline=None)
@given(MODELS, EVENTS, st.integers(300, 4000), st.integers(0, 500), WORDS, st.integers(1, 700))
def test_a_fit_without_some_rows_is_a_fit_in_a_ledger_that_lost_them(model, events, budget, kept, word, more):
    ledger, rows = Ledger(model, budget, 9), {}
    for event in events:
        tell(ledger, rows, event)
    before, gone = ledger.reserved_bytes, [*rows][::2]
    lost = ledger.copy()
    for name in gone:
        lost.release(name)
    asked = (tokens_of(word, more), Reserve(0, kept))
    assert ledger.fits(*asked, gone, names_of(word)) == lost.fits(*asked, (), names_of(word))
    assert (ledger.reserved_bytes, ledger.rows) == (before, len(rows)), "a question changes nothing"


@settings(deadline=None)
@given(
    st.sampled_from([{"shares_from": 0}, {"reuse": "checkpoints"}, {"reuse": "none"}, {"batches": False}]),
    EVENTS,
)
def test_a_family_that_holds_copies_has_each_row_reserved_in_full(changes, events):
    """One that goes on from checkpoints as well: rows may share less than they have in common."""
    model = sharing(**changes)
    ledger, rows = Ledger(model, AMPLE, 9), {}
    for event in events:
        tell(ledger, rows, event)
        assert ledger.reserved_bytes == model.batch_bytes([row.tokens for row in rows.values()])


# --- by hand ------------------------------------------------------------------------------------------------


def ledger_of(*words, budget=AMPLE):
    ledger = Ledger(sharing(kv_pad_tokens=BLOCK), budget, 99)
    for number, word in enumerate(words):
        ledger.reserve(str(number), tokens_of(word), names_of(word))
    return ledger


def bytes_of(blocks, rows):
    """Return the bytes of so many blocks, and of one more behind those of each row, which has begun it."""
    return BLOCK * (blocks + rows)


@pytest.mark.parametrize(
    ("words", "blocks"),
    [
        (["aaaa"], 4),
        (["aaaa", "aaaa", "aaaa"], 4),
        (["aaab", "aaac"], 3 + 2),
        (["aab", "aac"], 6),
        (["aa", "aa"], 4),
        (["aaabb", "aaabbc", "aaac"], 5 + 1 + 1),
        (["aaa", "aaabbb", "aaabbc"], 3 + 2 + 2),
        (["aab", "aab", "aac", "aac"], 6),
    ],
)
def test_blocks_in_common_count_once_from_enough_of_them_on_whoever_came_first(words, blocks):
    for order in (words, words[::-1]):
        assert ledger_of(*order).reserved_bytes == bytes_of(blocks, len(words))


def test_a_row_keeps_the_part_that_it_shared_when_the_other_has_left():
    ledger = ledger_of("aaab", "aaac")
    ledger.release("0")
    assert ledger.reserved_bytes == bytes_of(4, 1)
    ledger.release("1")
    assert ledger.reserved_bytes == 0


def test_what_two_rows_have_in_common_beside_a_third_stays_when_it_leaves():
    """The third has less in common with them than is shared, so its own leading blocks are nobody else's."""
    ledger = ledger_of("aaca", "aabbb", "aabbb")
    assert ledger.reserved_bytes == bytes_of(4 + 5, 3)
    ledger.release("1")
    assert ledger.reserved_bytes == bytes_of(4 + 5, 2)
    ledger.release("0")
    assert ledger.reserved_bytes == bytes_of(5, 1)


def test_nothing_of_rows_that_have_left_lowers_the_price_of_those_that_come_after():
    """The first shares 3 blocks with the second, and 5 of them with the third."""
    ledger = ledger_of("aaabb", "aaac", "aaabb")
    for name in "012":
        ledger.release(name)
    assert ledger.reserved_bytes == 0
    for name in "34":
        ledger.reserve(name, tokens_of("aaabb"), names_of("aaabb"))
    assert ledger.reserved_bytes == bytes_of(5, 2)


def test_ten_rows_of_one_prompt_fit_where_two_copies_would_not():
    prompt, budget = "a" * 16, bytes_of(16, 10)
    ledger = ledger_of(*[prompt] * 9, budget=budget)
    assert ledger.fits(tokens_of(prompt), NO_RESERVE, (), names_of(prompt))
    assert not ledger.fits(tokens_of(prompt), NO_RESERVE, (), names_of("b" * 16))
    ledger.reserve("tenth", tokens_of(prompt), names_of(prompt))
    assert ledger.reserved_bytes == budget
    assert not ledger.grow("tenth", tokens_of(prompt, BLOCK))


def test_rows_that_hold_a_prompt_together_free_it_only_all_at_once():
    prompt = "a" * 16
    ledger = ledger_of(prompt, prompt, budget=bytes_of(16 + 15, 2))
    other = (tokens_of("b" * 16), NO_RESERVE)
    assert not ledger.fits(*other, ["0"], names_of("b" * 16))
    assert ledger.fits(*other, ["0", "1"], names_of("b" * 16))
