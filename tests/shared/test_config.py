"""Settings: defaults, then the file, then the environment, then what is passed in; and errors in words."""

import os

import pytest

from shared.config import Settings, child_environment
from shared.errors import SettingsError
from shared.lane_settings import BATCH, INTERACTIVE, AdmissionSettings
from shared.limits import SLOTS_MAX


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in [name for name in os.environ if name.upper().startswith("FOREBAY_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def toml(tmp_path):
    """Return what writes a file of settings and returns its path."""

    def write(content):
        file = tmp_path / "forebay.toml"
        file.write_text(content, "utf-8")
        return file

    return write


def complaint(file=None, **overrides):
    with pytest.raises(SettingsError) as problem:
        Settings.load(file, **overrides)
    return str(problem.value)


def test_without_a_file_the_documented_defaults_hold(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = Settings.load()
    assert (settings.model, settings.host, settings.port) == ("demo", "127.0.0.1", 8000)
    assert (settings.proxy.resumes_max, settings.worker.slots) == (2, 16)
    assert settings.admission == AdmissionSettings()
    assert settings.lanes == (INTERACTIVE, BATCH)
    assert (settings.log.format, settings.log.level) == ("console", "info")
    assert settings.home_folder == tmp_path / ".forebay"


def test_a_file_sets_what_it_names_and_leaves_the_rest(toml):
    settings = Settings.load(toml('port = 9000\n[worker]\nslots = 4\n[log]\nformat = "json"'))
    assert (settings.port, settings.worker.slots, settings.log.format) == (9000, 4, "json")
    assert (settings.host, settings.worker.memory_fraction, settings.log.level) == ("127.0.0.1", 0.8, "info")


def test_the_environment_wins_over_the_file_key_by_key(toml, monkeypatch):
    monkeypatch.setenv("FOREBAY_WORKER__SLOTS", "8")
    monkeypatch.setenv("FOREBAY_PORT", "9001")
    settings = Settings.load(toml("port = 9000\n[worker]\nslots = 4\nload_deadline_s = 10"))
    assert (settings.port, settings.worker.slots, settings.worker.load_deadline_s) == (9001, 8, 10)


def test_what_is_passed_in_wins_over_both_key_by_key(toml, monkeypatch):
    monkeypatch.setenv("FOREBAY_WORKER__SLOTS", "8")
    monkeypatch.setenv("FOREBAY_WORKER__HANG_FLOOR_S", "3")
    file = toml("[worker]\nslots = 4\nload_deadline_s = 10")
    settings = Settings.load(file, worker={"slots": 2}, port=9002)
    assert (settings.worker.slots, settings.port) == (2, 9002)
    assert (settings.worker.hang_floor_s, settings.worker.load_deadline_s) == (3, 10)


def test_none_passed_in_means_unset(toml):
    assert Settings.load(toml("port = 9000"), port=None, model=None).port == 9000


def test_an_empty_variable_is_no_value(toml, monkeypatch):
    monkeypatch.setenv("FOREBAY_PORT", "")
    assert Settings.load(toml("port = 9000")).port == 9000


def test_a_table_can_be_one_variable(monkeypatch):
    monkeypatch.setenv("FOREBAY_WORKER", '{"slots": 3}')
    assert Settings.load().worker.slots == 3


@pytest.mark.parametrize("bits", [0, 4, 8])
def test_caches_are_quantised_to_so_many_bits_by_file_or_variable(toml, monkeypatch, bits):
    assert Settings.load(toml(f"[worker]\nkv_bits = {bits}")).worker.kv_bits == bits
    monkeypatch.setenv("FOREBAY_WORKER__KV_BITS", str(bits))
    assert Settings.load().worker.kv_bits == bits


def test_settings_cannot_be_changed():
    settings = Settings.load()
    with pytest.raises(ValueError, match="frozen"):
        settings.worker.slots = 1


# --- lanes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "key"),
    [("proxy", "queue_places"), ("proxy", "max_tokens_default"), ("worker", "prefill_quantum_ms")],
)
def test_what_a_lane_sets_is_no_setting_of_proxy_or_worker(toml, table, key):
    said = complaint(toml(f"[{table}]\n{key} = 100"))
    assert said.startswith(f"{table}.{key} is no known setting")
    assert getattr(Settings.load(toml(f'[[lanes]]\nname = "a"\n{key} = 100')).lanes[0], key) == 100


def test_lanes_of_a_file_stand_in_its_order_and_replace_the_built_in_ones(toml):
    settings = Settings.load(toml('[[lanes]]\nname = "night"\n[[lanes]]\nname = "interactive"'))
    assert [lane.name for lane in settings.lanes] == ["night", "interactive"]


def test_a_lane_with_a_built_in_name_keeps_its_defaults_where_a_file_is_silent(toml):
    [lane] = Settings.load(toml('[[lanes]]\nname = "interactive"\nqueue_places = 9')).lanes
    assert (lane.queue_places, lane.reserved_slots, lane.deadline_s, lane.parkable) == (9, 1, 30.0, False)


def test_lanes_can_be_one_variable_that_wins_over_the_file(toml, monkeypatch):
    monkeypatch.setenv("FOREBAY_LANES", '[{"name": "batch", "queue_places": 5}, {"name": "other"}]')
    first, second = Settings.load(toml('[[lanes]]\nname = "night"')).lanes
    assert (first.name, first.queue_places, first.prefill_quantum_ms, first.tiers) == (
        "batch",
        5,
        150.0,
        ("flex",),
    )
    assert (second.name, second.prefill_quantum_ms) == ("other", 250.0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('[[lanes]]\nname = "a"\n[[lanes]]\nname = "a"', "two lanes have the name 'a'"),
        (
            '[[lanes]]\nname = "batch"\n[[lanes]]\nname = "b"\ntiers = ["flex"]',
            "two lanes have the service tier 'flex'",
        ),
        ("lanes = []", "1 to 16 lanes are possible, not 0"),
        ('[worker]\nslots = 4\n[[lanes]]\nname = "a"\nreserved_slots = 4', "the lanes reserve 4 slots, of 4"),
    ],
)
def test_lanes_that_cannot_stand_side_by_side_are_refused_in_words(toml, content, words):
    assert complaint(toml(content)).startswith(words)


@pytest.mark.parametrize(("slots", "reserved"), [(1, 1), (4, 3), (16, 15)])
def test_lanes_may_reserve_all_slots_but_one_and_the_only_one_of_a_family_that_does_not_batch(
    slots, reserved
):
    lane = {"name": "a", "reserved_slots": reserved}
    assert Settings.load(worker={"slots": slots}, lanes=[lane]).lanes[0].reserved_slots == reserved
    assert "reserve" in complaint(worker={"slots": slots}, lanes=[{**lane, "reserved_slots": reserved + 1}])


# --- errors in words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "named", "nearest"),
    [
        ("prot = 1", "prot", "port"),
        ("[worker]\nslot = 1", "worker.slot", "worker.slots"),
        ("[proxy]\ndrain = 1", "proxy.drain", "proxy.drain_s"),
        ("[admission]\nkey_share = 0.5", "admission.key_share", "admission.key_queue_share"),
        ('[[lanes]]\nname = "a"\nqueue_place = 1', "lanes.0.queue_place", "lanes.queue_places"),
        ('[[lanes]]\nname = "a"\n[[lanes]]\nname = "b"\npark = 1', "lanes.1.park", "lanes.parkable"),
        ("[worke]\nslots = 1", "worke", "worker"),
    ],
)
def test_an_unknown_key_in_the_file_is_named_with_the_nearest_known(toml, content, named, nearest):
    assert complaint(toml(content)) == f"{named} is no known setting; did you mean {nearest}?"


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("FOREBAY_PROT", "port"),
        ("FOREBAY_WORKER__SLOT", "worker.slots"),
        ("forebay_worker__slot", "worker.slots"),
        ("FOREBAY_WORKER_SLOTS", "worker.slots"),
    ],
)
def test_an_unknown_variable_is_named_with_the_nearest_known(monkeypatch, variable, nearest):
    monkeypatch.setenv(variable, "1")
    assert complaint() == f"{variable} sets no known setting; did you mean {nearest}?"


def test_a_key_that_resembles_nothing_gets_no_hint(toml):
    assert complaint(toml("zzzzzzzzzz = 1")) == "zzzzzzzzzz is no known setting"


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ('port = "many"', "port"),
        ("port = 0", "port"),
        ("port = 65536", "port"),
        ("port = 80.5", "port"),
        ('model = ""', "model"),
        ("worker = 5", "worker"),
        ("[worker]\nslots = 0", "worker.slots"),
        (f"[worker]\nslots = {SLOTS_MAX + 1}", "worker.slots"),
        ("[worker]\nmemory_fraction = 1.0", "worker.memory_fraction"),
        ("[worker]\nmemory_fraction = nan", "worker.memory_fraction"),
        ("[worker]\ncontext_tokens = 15", "worker.context_tokens"),
        ("[worker]\nkv_bits = 3", "worker.kv_bits"),
        ("[worker]\nkv_bits = 'eight'", "worker.kv_bits"),
        ("[proxy]\nresumes_max = 9", "proxy.resumes_max"),
        ("[admission]\nkey_queue_share = 0", "admission.key_queue_share"),
        ('[[lanes]]\nname = ""', "lanes.0.name"),
        ('[[lanes]]\nname = "a"\nqueue_places = 0', "lanes.0.queue_places"),
        ('[[lanes]]\nname = "a"\nprefill_quantum_ms = 9', "lanes.0.prefill_quantum_ms"),
        ('[[lanes]]\nname = "a"\nstep_share_min = 0.6', "lanes.0.step_share_min"),
        ("[proxy]\ndrain_s = -1", "proxy.drain_s"),
        ('[log]\nlevel = "loud"', "log.level"),
    ],
)
def test_a_wrong_type_or_range_is_said_by_key(toml, content, key):
    said = complaint(toml(content))
    assert said.startswith((f"{key}: Input should be ", f"{key}: String should "))


def test_every_wrong_key_is_said_at_once(toml):
    said = complaint(toml("port = 0\n[worker]\nslots = 0\nslot = 1"))
    assert all(key in said for key in ("port:", "worker.slots:", "worker.slot is no known"))


@pytest.mark.parametrize(
    ("variable", "key"), [("FOREBAY_WORKER__SLOTS", "worker.slots"), ("FOREBAY_PORT", "port")]
)
def test_a_wrong_variable_is_said_by_key(monkeypatch, variable, key):
    monkeypatch.setenv(variable, "many")
    assert complaint().startswith(f"{key}: Input should be a valid integer")


def test_a_table_in_a_variable_that_is_no_json_is_said(monkeypatch):
    monkeypatch.setenv("FOREBAY_WORKER", "many")
    assert '"worker"' in complaint()


def test_an_override_is_checked_like_the_rest():
    assert complaint(port=0).startswith("port: ")


@pytest.mark.parametrize("raw", [b"port = ", b"[worker", b"\xff", b"port = 1\nport = 2"])
def test_a_file_that_is_no_toml_is_named(tmp_path, raw):
    file = tmp_path / "forebay.toml"
    file.write_bytes(raw)
    assert complaint(file).startswith(f"{file}: ")


def test_a_file_that_is_missing_or_a_folder_is_named(tmp_path):
    assert complaint(tmp_path / "nowhere.toml") == f"{tmp_path / 'nowhere.toml'}: No such file or directory"
    assert complaint(tmp_path) == f"{tmp_path}: Is a directory"


def test_a_child_gets_this_environment_and_more(monkeypatch):
    monkeypatch.setenv("FOREBAY_PORT", "9000")
    environment = child_environment(FOREBAY_EXTRA="x")
    assert (environment["FOREBAY_PORT"], environment["FOREBAY_EXTRA"]) == ("9000", "x")
    assert "FOREBAY_EXTRA" not in os.environ
