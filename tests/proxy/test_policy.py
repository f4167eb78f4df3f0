"""Lanes and keys read again while the gateway runs: all of it, or nothing."""

import threading

import pytest
from structlog.testing import capture_logs

from proxy.authenticate import ANONYMOUS
from proxy.keys import KeyFile
from proxy.policy import PolicyInForce
from shared.config import Settings
from shared.errors import InvalidKey, SettingsError
from shared.logs import get
from tests.proxy.test_lane_choice import parsed

OPEN = "0.0.0.0"


class Operator:
    """Whoever edits the settings and the key file. `adopted` is what the dispatcher was told."""

    def __init__(self, folder, **settings):
        self.given = {"home": folder, **settings}
        self.key_file = KeyFile(folder / "keys.json")
        self.adopted = []
        self.readers = []

    def read(self):
        self.readers.append(threading.get_ident())
        return Settings.load(**self.given)

    def begin(self):
        self.policy = PolicyInForce(self.read(), self.key_file, 500, self.read, get("test"))
        return self.policy

    async def reload(self, **changes):
        self.given |= changes
        return await self.policy.reload(lambda lanes, admission: self.adopted.append((lanes, admission)))

    def bearing(self, text):
        return self.policy.now.keys.authenticate({"Authorization": f"Bearer {text}"})


@pytest.fixture
def operator(tmp_path):
    operator = Operator(tmp_path)
    operator.begin()
    return operator


async def check_nothing_changes(operator, *words, **changes):
    """Reload with changes that can't be used; return the reason."""
    before = operator.policy.now
    with capture_logs() as logs, pytest.raises(SettingsError) as problem:
        await operator.reload(**changes)
    assert operator.policy.now is before
    assert operator.adopted == []
    reason = str(problem.value)
    assert all(word in reason for word in words)
    (line,) = [each for each in logs if each["log_level"] == "error"]
    assert line["problem"] == reason
    assert "\n" not in reason


# --- what applies -------------------------------------------------------------------------------------------


async def test_new_lanes_apply_and_are_told_to_the_dispatcher(operator):
    lanes = [{"name": "fast", "max_tokens": 9}, {"name": "slow", "tiers": ["flex"]}]
    told = await operator.reload(lanes=lanes, admission={"key_queue_share": 0.5})
    assert (told.lanes, told.keys, told.needs_restart) == (("fast", "slow"), 0, ())
    settings = operator.policy.now.settings
    assert operator.adopted == [(settings.lanes, settings.admission)]
    ticket = operator.policy.now.lanes.ticket(ANONYMOUS, parsed(), {})
    assert (ticket.lane.name, ticket.max_tokens.tokens, ticket.context.tokens) == ("fast", 9, 500)


async def test_new_keys_apply_and_revoked_ones_do_not_any_more(operator):
    first = operator.key_file.add("first")
    assert operator.policy.now.keys.is_open
    assert (await operator.reload()).keys == 1
    assert operator.bearing(first.text).name == "first"
    second = operator.key_file.add("second", lane="batch", max_tokens=7)
    operator.key_file.revoke("first")
    assert operator.bearing(first.text).name == "first"
    await operator.reload()
    assert operator.bearing(second.text).max_tokens == 7
    with pytest.raises(InvalidKey):
        operator.bearing(first.text)


async def test_settings_that_need_a_restart_are_named_and_compared_with_the_beginning(operator):
    told = await operator.reload(
        port=9001, worker={"slots": 8}, log={"level": "debug"}, lanes=[{"name": "a"}]
    )
    assert told.needs_restart == ("log", "port", "worker")
    assert (await operator.reload()).needs_restart == ("log", "port", "worker")
    told = await operator.reload(port=8000, worker={"slots": 16}, log={"level": "info"})
    assert told.needs_restart == ()


@pytest.mark.parametrize(("begins", "says"), [(True, False), (False, True)])
async def test_whether_all_prefixes_are_private_stays_as_it_began_and_a_change_needs_a_restart(
    tmp_path, begins, says
):
    operator = Operator(tmp_path, proxy={"private_prefixes": begins})
    text = operator.key_file.add("ci").text
    operator.begin()
    told = await operator.reload(proxy={"private_prefixes": says})
    assert told.needs_restart == ("proxy",)
    assert bool(operator.bearing(text).salt) is begins


async def test_a_reload_reads_in_a_thread_and_not_in_the_loop(operator):
    await operator.reload()
    assert operator.readers[-1] != threading.get_ident()


async def test_a_home_that_moved_needs_a_restart_and_its_keys_are_not_read(operator, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    KeyFile(elsewhere / "keys.json").add("stranger")
    told = await operator.reload(home=elsewhere)
    assert (told.needs_restart, told.keys) == (("home",), 0)


# --- what doesn't -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"lanes": []}, "lanes"),
        ({"lanes": [{"name": "a"}, {"name": "a"}]}, "'a'"),
        ({"lanes": [{"name": "a", "queue_places": 0}]}, "queue_places"),
        ({"lanes": [{"name": "a", "nosuch": 1}]}, "nosuch"),
        ({"admission": {"key_queue_share": 2}}, "key_queue_share"),
        ({"port": 0}, "port"),
    ],
)
async def test_settings_that_are_wrong_change_nothing_and_the_reason_is_logged(operator, changes, word):
    await check_nothing_changes(operator, word, **changes)


async def test_a_file_that_cannot_be_read_changes_nothing(operator, tmp_path):
    operator.policy._load = lambda: Settings.load(tmp_path / "nosuch.toml")
    await check_nothing_changes(operator, "nosuch.toml")


async def test_a_key_file_that_is_no_json_changes_nothing_even_if_the_lanes_are_good(operator):
    operator.key_file.add("first")
    operator.key_file.path.write_text("{")
    await check_nothing_changes(operator, "keys.json", lanes=[{"name": "fast"}])


async def test_a_key_of_a_lane_that_is_taken_away_keeps_the_lanes_as_they_are(operator):
    operator.key_file.add("nightly", lane="batch")
    await check_nothing_changes(operator, "nightly", "batch", "fast", lanes=[{"name": "fast"}])


def test_a_key_of_a_lane_that_is_not_there_lets_nothing_begin(tmp_path):
    operator = Operator(tmp_path, lanes=[{"name": "fast"}])
    operator.key_file.add("nightly", lane="batch")
    with pytest.raises(SettingsError, match=r"'nightly'.*'batch'"):
        operator.begin()


# --- the open door ------------------------------------------------------------------------------------------


def test_an_open_door_without_keys_lets_nothing_begin(tmp_path):
    with pytest.raises(SettingsError, match="no API keys"):
        Operator(tmp_path, host=OPEN).begin()


@pytest.mark.parametrize("says", [OPEN, "127.0.0.1"])
async def test_the_last_key_can_not_be_revoked_while_the_door_is_open_whatever_the_file_says_now(
    tmp_path, says
):
    operator = Operator(tmp_path, host=OPEN)
    text = operator.key_file.add("only").text
    operator.begin()
    operator.key_file.revoke("only")
    await check_nothing_changes(operator, "0.0.0.0", host=says)
    assert operator.bearing(text).name == "only"


async def test_settings_that_could_not_begin_again_are_refused_at_once(operator):
    """The door stays shut until a restart, which this file would not survive."""
    await check_nothing_changes(operator, "0.0.0.0", host=OPEN)
