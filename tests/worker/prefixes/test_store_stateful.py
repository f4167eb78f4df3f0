"""Prompts that branch, come, are read and go in any order: the store does what a plain table does."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.worker.prefixes.false_slabs import (
    FalseSnapshot,
    Mover,
    assert_is_of,
    ids_of,
    new_store,
    put,
    read,
    trace,
)
from tests.worker.prefixes.naive_store import NaiveStore, parent_of
from worker.prefixes.blocks import Block, Mark

UNBOUNDED = 1 << 40
# Few tokens, and lengths around a block's, so that prompts begin alike and part in the middle of blocks.
STRETCHES = st.tuples(st.integers(1, 2), st.sampled_from([1, 10, 32, 63, 64, 65]))
PROMPTS = st.lists(STRETCHES, min_size=1, max_size=5).map(
    lambda stretches: tuple(token for token, count in stretches for _ in range(count))
)
SALTS = st.sampled_from(["", "", "b"])


class Prefixes(RuleBasedStateMachine):
    @initialize(spare_bytes=st.integers(0, 5), cuttable=st.sampled_from([True, False, None]))
    def open(self, spare_bytes, cuttable):
        self.spare_bytes = spare_bytes
        self.cuttable = cuttable
        self.store = new_store(UNBOUNDED, Mover(spare_bytes))
        self.naive = NaiveStore()
        self.told = set()
        self.prompts = [("", (1,) * 64)]
        self.leases = []

    # --- what happens -------------------------------------------------------------------------------------

    def draw_prompt(self, data):
        """One that came before, cut or with more behind it, or a new one."""
        salt, before = data.draw(st.sampled_from(self.prompts))
        kind = data.draw(st.sampled_from(["as it was", "cut", "longer", "new"]))
        if kind == "cut":
            before = before[: data.draw(st.integers(1, len(before)))]
        if kind == "longer":
            before = (before + data.draw(PROMPTS))[:400]
        if kind == "new":
            salt, before = data.draw(SALTS), data.draw(PROMPTS)
        self.prompts.append((salt, before))
        return salt, before

    @rule(data=st.data())
    def publish(self, data):
        salt, ids = self.draw_prompt(data)
        held = self.store.held(ids, salt)
        start = data.draw(st.sampled_from(sorted({0, held // 128 * 64, held, held + 64})))
        if start >= len(ids):
            return
        cuttable = data.draw(st.booleans()) if self.cuttable is None else self.cuttable
        places = {(salt_of(block), ids_of(block)): at for at, block in enumerate(self.order())}
        self.naive.insert(
            ids, salt, start, cuttable=cuttable, pinned=self.pinned(), age=lambda held: places.get(held, 1e9)
        )
        put(self.store, ids, salt, start, cuttable=cuttable, spare_bytes=self.spare_bytes)
        assert set(self.naive.table) == set(self.held())

    @rule(data=st.data(), nbytes=st.sampled_from([0, 7, 3000]))
    def keep_state(self, data, nbytes):
        salt, ids = data.draw(st.sampled_from([*self.naive.table] or [("", (1,))]))
        tokens = data.draw(st.sampled_from([len(ids), len(ids), max(1, len(ids) - 1)]))
        snapshot = FalseSnapshot(trace(ids, salt)[tokens - 1], nbytes)
        self.naive.snapshot(ids[:tokens], salt, snapshot)
        self.store.snapshot((*ids, 9, 9), salt, tokens, snapshot)

    @rule(data=st.data())
    def ask(self, data):
        salt, ids = self.draw_prompt(data)
        most = data.draw(st.sampled_from([len(ids), len(ids) - 1, len(ids) // 2, 0]))
        found = self.store.match(ids, salt, most)
        assert (found.tokens, found.snapshot) == self.naive.match(ids, salt, most)
        assert_is_of(self.store, found, ids, salt)
        assert found.tokens <= sum(len(block.ids) for block in found.blocks) < found.tokens + 64
        assert self.store.held(ids, salt) == self.naive.held(ids, salt)

    @rule(data=st.data())
    def lease(self, data):
        salt, ids = self.draw_prompt(data)
        found = self.store.match(ids, salt, len(ids)).blocks
        blocks = data.draw(st.sampled_from([found, self.store.blocks_of(ids, salt, len(ids))]))
        ends = blocks[-1].end if blocks else 0
        all_ids = ids_of(blocks[-1]) if blocks else ()
        assert ends == len(all_ids)
        self.leases.append((self.store.lease(blocks), trace(all_ids, salt)))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data):
        self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))[0].release()

    @rule(share=st.sampled_from([0.0, 0.3, 0.6, 0.9, 1.0]))
    def trim(self, share):
        bytes_max = int(self.store.kept_bytes * share)
        order, before = self.order(marks=True), self.held()
        self.store.trim(bytes_max)
        after = self.order(marks=True)
        assert self.store.kept_bytes <= bytes_max
        self.assert_oldest_went(order, after)
        assert share < 1.0 or self.held() == before
        self.store.trim(UNBOUNDED)
        left = self.held()
        self.naive.table = {held: entry for held, entry in self.naive.table.items() if held in left}
        for held, block in left.items():
            assert block.snapshot in (None, self.naive.table[held].snapshot)
            self.naive.table[held].snapshot = block.snapshot

    def assert_oldest_went(self, order, after):
        """All that went stood in front of all that stayed, but for what had become useless."""
        stayed = set(after)
        first = order.index(after[0]) if after else len(order)
        for kept in order[first:]:
            assert kept in stayed or (isinstance(kept, Block) and not kept.cuttable)

    # --- what must hold -----------------------------------------------------------------------------------

    def order(self, *, marks=False):
        return [kept for kept in self.store._order if marks or isinstance(kept, Block)]

    def all_blocks(self):
        leased = [block for lease, _ in self.leases for block in lease.blocks]
        return set(self.order()) | set(leased)

    def held(self):
        return {(salt_of(block), ids_of(block)): block for block in self.all_blocks()}

    def pinned(self):
        return {(salt_of(block), ids_of(block)): block for lease, _ in self.leases for block in lease.blocks}

    @invariant()
    def leases_read_what_they_were_taken_for(self):
        for lease, traced in self.leases:
            assert read(lease.runs()) == traced
            assert lease.tokens == len(traced)

    @invariant()
    def bytes_add_up(self):
        slabs = {id(block.run.slab): block.run.slab for block in self.all_blocks()}
        assert {id(slab) for slab in self.store.slabs} == set(slabs)
        snapshots = [block.snapshot for block in self.all_blocks() if block.snapshot is not None]
        assert set(map(id, self.store.snapshots)) == set(map(id, snapshots))
        shared = sum(block.run.nbytes for block in set(self.pinned().values()))
        assert self.store.shared_bytes == shared
        held = sum(each.nbytes for each in (*slabs.values(), *snapshots))
        assert self.store.kept_bytes == held - shared
        assert self.store.blocks == len(self.all_blocks())

    @invariant()
    def all_is_held_that_is_in_the_table_and_what_is_in_front_of_it(self):
        held = self.held()
        assert {parent_of(each) for each in held if len(each[1]) > 64} <= set(held)
        assert {each: entry.snapshot for each, entry in self.naive.table.items()} == {
            each: block.snapshot for each, block in held.items()
        }

    @invariant()
    def the_order_ends_with_beginnings(self):
        places = {kept: at for at, kept in enumerate(self.order(marks=True))}
        for kept, at in places.items():
            ahead = kept.block if isinstance(kept, Mark) else kept.parent
            assert ahead is None or ahead.pins or places[ahead] > at

    @invariant()
    def news_lead_to_the_keys(self):
        added, gone = self.store.take_news()
        assert not set(added) & self.told
        assert set(gone) <= self.told
        self.told = (self.told | set(added)) - set(gone)
        keys = self.store.keys()
        assert len(keys) == len(set(keys))
        assert self.told == set(keys) == {block.key for block in self.all_blocks() if block.is_whole}

    def teardown(self):
        for lease, _ in getattr(self, "leases", []):
            lease.release()
        if hasattr(self, "store"):
            self.leases = []
            self.store.trim(0)
            assert (self.store.kept_bytes, self.store.shared_bytes, self.store.blocks) == (0, 0, 0)
            assert self.store.keys() == self.store.slabs == self.store.snapshots == []
            assert not self.store._tree._roots


def salt_of(block):
    place = block
    while isinstance(place, Block):
        place = place.above
    return place.salt


TestPrefixes = Prefixes.TestCase
TestPrefixes.settings = settings(max_examples=60, stateful_step_count=30)
