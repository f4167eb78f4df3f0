"""Requests that kill the worker, over a bad wire and among other deaths: who is convicted, and who isn't."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.admitted import RequestFailed
from shared.codec import encode
from shared.errors import Quarantined
from shared.messages import BLAMED_CAUSES, CALM, Exited, ManifestRow, Starting, Submit
from tests.proxy.simulated_wire import LANES, Client, FalseWorker, Simulation, whole_answer
from tests.proxy.small_worlds import measured

TRIES_MAX = 10
KILLERS_FROM, CAP = 1000, 12  # the prompts of killers, and what each of them asks for


@dataclass(frozen=True)
class Killer:
    """`at` is the token whose step kills; None is any prefill. `cause` is what the supervisor makes of it."""

    prompt_ids: tuple[int, ...]
    at: int | None
    cause: str


def killer(number, at, cause):
    """Return a killer whose answer is long enough to kill."""
    tries = ((KILLERS_FROM + 1000 * number + each,) for each in range(1000))
    ids = next(ids for ids in tries if len(whole_answer(ids, 0, CAP)[0]) > (at or 0))
    return Killer(ids, at, cause)


KILLERS = {
    each.prompt_ids: each
    for each in (
        killer(0, None, "memory"),
        killer(1, 0, "crash"),
        killer(2, 3, "hang"),
        killer(3, 7, "loop_exception"),
        killer(4, 2, "killed"),
    )
}


class MortalWorker(FalseWorker):
    """Dies of killers. `died` says how, and which rows were in its last step.

    Sometimes the step before was still under way, and what has been dropped since is in it, too.
    """

    def __init__(self, epoch, random):
        super().__init__(epoch)
        self.random = random
        self.fresh = set()
        self.before = {}
        self.died = None
        self.culprit = None

    def take(self, message):
        super().take(message)
        if isinstance(message, Submit):
            self.fresh.add(message.sequence)

    def manifest(self, names):
        """Return the rows of a step, by name."""
        return {
            name: ManifestRow(name, self.rows[name][0].attempt, self.rows[name][1], name in self.fresh)
            for name in names
        }

    def dies_in(self, names):
        rows = self.manifest(names)
        for name in names:
            submit, index = self.rows[name]
            found = KILLERS.get(submit.prompt_ids)
            if found is not None and (index == found.at or (found.at is None and name in self.fresh)):
                under_way = self.before if self.random.random() < 0.3 and name not in self.fresh else {}
                self.died = found.cause, tuple((under_way | rows).values())
                self.culprit = name, submit.prompt_ids
                return True
        self.before = rows
        self.fresh -= set(names)
        return False


class KillersClient(Client):
    """Also takes a quarantine, if it is a killer's."""

    def take(self, event):
        if isinstance(event, RequestFailed) and isinstance(event.refusal, Quarantined):
            assert self.prompt_ids in KILLERS, "an innocent is quarantined"
            self.leave("quarantined")
        else:
            super().take(event)

    @property
    def prompt_ids(self):
        return self.admitted.sequences[0].prompt_ids


class Poisoned(Simulation):
    """`kills` counts the deaths that a killer caused and that were told so that it could be known.

    `untold` are the others: nobody heard why the worker died, or something ran beside a trial because a
    Cancel was lost or had only just been heard.
    """

    client_type = KillersClient
    quiet_turns = 300

    def __init__(self, seed):
        super().__init__(seed)
        self.kills = Counter()
        self.untold = Counter()
        self.tries = Counter()
        self.culprits = {}
        self.judge = self.dispatcher.worker_died
        self.dispatcher.worker_died = self.count
        self.causes = Counter()

    def new_worker(self, epoch):
        return MortalWorker(epoch, self.random)

    @property
    def happens(self):
        return {**super().happens, self.arrive_killer: 2, self.kill: 1, self.replace: 1, self.die: 0}

    # --- clients ------------------------------------------------------------------------------------------

    def arrive_killer(self):
        """Let a killer be sent, once or many times at once; whoever is told no sends it again."""
        ids = self.random.choice(sorted(KILLERS))
        lane = LANES[self.random.randrange(2)]
        for _ in range(self.random.choice((1, 1, 1, 10))):
            if self.tries[ids] < TRIES_MAX:
                self.tries[ids] += 1
                try:
                    self.send(measured((ids,), CAP, seed=self.random.randrange(100), lane=lane))
                except Quarantined:
                    assert ids in {self.prompt_of(each) for each in self.dispatcher.quarantine.added}

    def prompt_of(self, fingerprint):
        return next(
            ids for ids in KILLERS if measured((ids,), CAP, lane=LANES[0]).fingerprints == (fingerprint,)
        )

    def leave(self):
        """Let somebody leave; killers are the most impatient."""
        here = [each for each in self.clients if each.outcome is None]
        worst = [each for each in here if each.prompt_ids in KILLERS]
        if here:
            self.random.choice(worst or here).leave("left")

    # --- deaths -------------------------------------------------------------------------------------------

    def kill(self):
        self.end_worker("killed", self.rows_now(), trouble=True)

    def replace(self):
        self.end_worker("planned", self.rows_now(), trouble=True)

    def rows_now(self):
        return tuple(self.worker.manifest(list(self.worker.rows)[:3]).values())

    def look_at_worker(self, *, trouble):
        if self.worker.died is not None:
            self.culprits[self.worker.epoch] = self.worker.culprit
            if trouble and self.random.random() < 0.1:
                self.leave()
            self.end_worker(*self.worker.died, trouble=trouble)

    def end_worker(self, cause, rows, *, trouble):
        """End a life; what it said may be heard before. The next begins once its supervisor has spoken."""
        worker, epoch = self.worker, self.worker.epoch
        if self.random.random() < 0.5:
            self.deliver(worker, trouble=trouble)
        if self.link.epoch == epoch and self.random.random() < 0.3:
            self.link._lose("unreachable", retire=False)
        if trouble and self.random.random() < 0.1:
            self.untold[self.culprits.get(epoch, (None, None))[1]] += 1
        else:
            self.link.take(b"s-0", encode(Exited(epoch, cause, "", rows)))
        self.dead.append(worker)
        self.worker = self.new_worker(epoch + 1)
        if self.random.random() < 0.8:
            self.link.take(b"s-0", encode(Starting(epoch + 1, CALM)))

    def count(self, exited):
        """Count a death that is told, before it is judged."""
        self.causes[exited.cause] += 1
        name, ids = self.culprits.get(exited.epoch, (None, None))
        if ids is not None and exited.cause in BLAMED_CAUSES:
            known = self.dispatcher._live.asked(name, exited.epoch) is not None
            tried = name in self.dispatcher.admission.state.trials.tried
            if known and not (tried and len(exited.rows) > 1):
                self.kills[ids] += 1
                assert self.kills[ids] <= 2, "a killer kills again"
            else:
                self.untold[ids] += 1
        self.judge(exited)
        for fingerprint in self.dispatcher.quarantine.added:
            assert self.kills[self.prompt_of(fingerprint)] > 0, "convicted without having killed"

    def check_the_end(self):
        super().check_the_end()
        trials = self.dispatcher.admission.state.trials
        assert (trials.waiting, trials.on_trial) == ({}, None)
        assert not self.dispatcher.admission.held
        for lane in self.dispatcher.admission.state.lanes:
            assert (lane.running, lane.parking, lane.queued(), lane.fresh) == ({}, {}, [], 0)


def simulate(seed):
    simulation = Poisoned(seed)
    simulation.live_through(80)
    return simulation


@given(st.integers(0, 1 << 32))
@settings(max_examples=12, deadline=None)
def test_killers_kill_twice_at_most_and_innocents_are_answered_whatever_else_happens(seed):
    simulate(seed)


def test_the_simulation_meets_what_it_is_for():
    """Else the test above could pass because nothing ever happens."""
    worlds = [simulate(seed) for seed in range(25)]
    outcomes = Counter(
        (client.prompt_ids in KILLERS, client.outcome) for world in worlds for client in world.clients
    )
    assert outcomes[True, "quarantined"] > 20
    assert outcomes[True, "complete"] == 0
    assert outcomes[False, "complete"] > 100
    assert sum(count == 2 for world in worlds for count in world.kills.values()) > 20
    causes = sum((world.causes for world in worlds), Counter())
    assert min(causes[each] for each in ("killed", "planned", "memory", "crash", "hang")) > 5
    assert sum(world.untold.total() for world in worlds) > 5
