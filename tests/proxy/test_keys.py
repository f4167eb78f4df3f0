"""The key file: what it takes, what it refuses in words, and that no crash or second writer spoils it."""

import json
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from proxy import keys
from proxy.keys import KeyFile, refuse_unknown_lane, secret_digest, split_key
from shared.errors import SettingsError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "home" / "keys.json"


@pytest.fixture
def file(path):
    return KeyFile(path, now=lambda: 1_700_000_000.9)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def refused(act, *arguments, **options):
    with pytest.raises(SettingsError) as problem:
        act(*arguments, **options)
    return str(problem.value)


def rewrite(path, change):
    """Change the file's JSON by hand."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_file_that_is_not_there_has_no_keys_and_is_not_made(file, path):
    assert file.read() == ()
    assert not path.parent.exists()


def test_a_new_key_is_read_again_with_its_limits(file):
    limits = {
        "weight": 2.5,
        "lane": "batch",
        "requests_per_minute": 60,
        "tokens_per_minute": 100_000,
        "concurrent_max": 4,
        "models": ("demo", "org/other"),
        "context_tokens": 8192,
        "max_tokens": 512,
        "private_prefixes": True,
    }
    new = file.add("ci", **limits)
    assert file.read() == (new.record,)
    assert {name: getattr(new.record, name) for name in limits} == limits
    assert (new.record.name, new.record.created) == ("ci", 1_700_000_000)


def test_a_key_without_limits_has_weight_one_shared_prefixes_and_no_bounds(file):
    record = file.add("ci").record
    assert (record.weight, record.private_prefixes) == (1.0, False)
    public = {"id", "name", "salt", "digest", "created"}
    bounds = record.model_dump(exclude={*public, "weight", "private_prefixes", "key_class", "admin"})
    assert set(bounds.values()) == {None}


def test_a_file_from_before_there_were_private_prefixes_is_read_and_its_keys_share(file, path):
    old, new = file.add("old").record, file.add("new", private_prefixes=True).record
    rewrite(path, lambda content: content["keys"][0].pop("private_prefixes"))
    assert file.read() == (old, new)


def test_keys_stay_in_the_order_in_which_they_were_made(file):
    for name in ("b", "c", "a"):
        file.add(name)
    assert [record.name for record in file.read()] == ["b", "c", "a"]


def test_a_keys_text_has_its_id_and_a_secret_that_its_digest_knows(file):
    new = file.add("ci")
    assert re.fullmatch(r"fb-[a-z0-9]{8}-[A-Za-z0-9_-]{43}", new.text)
    key_id, secret = split_key(new.text)
    assert key_id == new.record.id
    assert secret_digest(secret, bytes.fromhex(new.record.salt)).hex() == new.record.digest


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fb-abcd1234",
        "fb-abcd1234-" + "a" * 42,
        "fb-abcd1234-" + "a" * 44,
        "fb-ABCD1234-" + "a" * 43,
        "sk-abcd1234-" + "a" * 43,
        "fb-abcd1234-" + "é" * 43,
        "fb-abcd1234-" + "a" * 43 + "\n",
    ],
)
def test_what_has_no_keys_form_is_not_split(text):
    assert split_key(text) is None


def test_equal_secrets_of_two_keys_have_different_digests():
    assert secret_digest("s", b"1" * 16) != secret_digest("s", b"2" * 16)


def test_the_secret_stands_neither_in_the_file_nor_in_what_is_printed(file, path):
    new = file.add("ci")
    secret = split_key(new.text)[1]
    assert secret not in path.read_text()
    assert secret not in repr(new)
    assert new.record.digest not in repr(new)


def test_two_keys_share_nothing(file):
    one, other = file.add("one"), file.add("other")
    assert one.text[12:] != other.text[12:]
    assert one.record.id != other.record.id
    assert one.record.salt != other.record.salt


@pytest.mark.parametrize("name", ["", " ci", "ci ", "a\nb", "a\x1b[31m", "x" * 65, "fb-abcd1234-" + "a" * 43])
def test_a_name_that_can_not_be_shown_is_refused(file, path, name):
    assert refused(file.add, name).startswith("name: ")
    assert not path.exists()


@pytest.mark.parametrize("name", ["x" * 64, "Anna Müller", "漢字", "ci/nightly"])
def test_a_printable_name_is_taken(file, name):
    assert file.add(name).record.name == name


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weight", 0.009),
        ("weight", 100.1),
        ("weight", float("nan")),
        ("weight", float("inf")),
        ("weight", "2"),
        ("lane", "Batch"),
        ("lane", ""),
        ("requests_per_minute", 0),
        ("tokens_per_minute", 0),
        ("concurrent_max", 0),
        ("requests_per_minute", 1.0),
        ("requests_per_minute", True),
        ("context_tokens", 15),
        ("max_tokens", 0),
        ("max_tokens", (1 << 20) + 1),
        ("models", ()),
        ("models", ("",)),
        ("models", ("a\nb",)),
        ("models", ("x" * 129,)),
        ("models", ("x",) * 65),
        ("private_prefixes", 1),
        ("private_prefixes", "yes"),
        ("colour", "red"),
    ],
)
def test_a_limit_out_of_range_is_refused_by_its_name(file, path, field, value):
    assert refused(file.add, "ci", **{field: value}).startswith(field)
    assert not path.exists()


def test_a_name_is_taken_once(file):
    file.add("ci")
    assert "a key 'ci' already" in refused(file.add, "ci")
    assert len(file.read()) == 1


def test_a_name_is_no_keys_id(file):
    key_id = file.add("ci").record.id
    assert f"{key_id!r} is the id of the key 'ci'" in refused(file.add, key_id)


def test_an_id_that_is_taken_is_not_given_again(file, monkeypatch):
    letters = iter("aaaaaaaa" + "aaaaaaaa" + "bbbbbbbb")
    monkeypatch.setattr(keys.secrets, "choice", lambda _chars: next(letters))
    assert [file.add(name).record.id for name in ("one", "other")] == ["aaaaaaaa", "bbbbbbbb"]


def test_there_are_no_more_keys_than_possible(file, monkeypatch):
    monkeypatch.setattr(keys, "KEYS_MAX", 2)
    file.add("one")
    file.add("two")
    assert refused(file.add, "three").startswith("there are 2 keys")
    file.revoke("one")
    file.add("three")


@pytest.mark.parametrize("of", [lambda new: new.record.name, lambda new: new.record.id, lambda new: new.text])
def test_a_key_is_revoked_by_its_name_its_id_or_its_text(file, of):
    one, other = file.add("one"), file.add("other")
    assert file.revoke(of(one)) == one.record
    assert file.read() == (other.record,)


def test_revoking_an_unknown_key_says_so_and_changes_nothing(file, path):
    file.add("ci")
    before = path.read_bytes()
    assert refused(file.revoke, "nobody") == "no key has the name or id 'nobody'"
    assert path.read_bytes() == before


def test_an_unknown_keys_text_is_not_repeated(file):
    message = refused(file.revoke, "fb-abcd1234-" + "s" * 43)
    assert message == "no key has the name or id 'abcd1234'"


def test_the_file_and_its_folder_are_their_owners_alone(file, path):
    old = os.umask(0)
    try:
        file.add("ci")
    finally:
        os.umask(old)
    assert mode(path) == 0o600
    assert mode(path.with_suffix(".lock")) == 0o600
    assert mode(path.parent) == 0o700


def test_a_file_that_others_may_read_is_read_and_closed_to_them_when_it_is_written(file, path):
    file.add("one")
    path.chmod(0o644)
    assert len(file.read()) == 1
    file.add("other")
    assert mode(path) == 0o600


@pytest.mark.parametrize("bits", [0o620, 0o602])
def test_a_file_that_others_may_write_to_is_refused(file, path, bits):
    file.add("one")
    path.chmod(bits)
    message = refused(file.read)
    assert message.startswith(f"{path}: others may write to it")
    assert refused(file.add, "other") == message


def test_a_file_of_another_user_is_refused(file, path, monkeypatch):
    file.add("one")
    monkeypatch.setattr(keys.os, "getuid", lambda: path.stat().st_uid + 1)
    if path.stat().st_uid == 0:
        assert len(file.read()) == 1  # root's own files are trusted
        os.chown(path, 1, 1)
    assert refused(file.read) == f"{path} belongs to another user"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content["keys"][1].update(weight=0), "keys.1.weight: "),
        (lambda content: content["keys"][0].update(colour="red"), "keys.0.colour is no known field"),
        (lambda content: content["keys"][0].pop("digest"), "keys.0.digest: "),
        (lambda content: content["keys"][0].update(digest="DIGEST"), "keys.0.digest: "),
        (lambda content: content["keys"][0].update(requests_per_minute="60"), "keys.0.requests_per_minute: "),
        (lambda content: content.update(version=2), "version: "),
        (lambda content: content.update(notes=""), "notes is no known field"),
        (lambda content: content["keys"][1].update(name="one"), "or the name 'one' is there twice"),
        (lambda content: content["keys"][1].update(id=content["keys"][0]["id"]), "' is there twice"),
        (lambda content: content["keys"][1].update(name=content["keys"][0]["id"]), "' is there twice"),
        (lambda content: content["keys"][0].update(name=content["keys"][0]["id"]), "' is there twice"),
    ],
)
def test_a_file_changed_by_hand_is_refused_with_its_name_and_the_place(file, path, change, said):
    file.add("one")
    file.add("two")
    rewrite(path, change)
    message = refused(file.read)
    assert message.startswith(f"{path}: ")
    assert said in message
    assert "DIGEST" not in message


def test_many_problems_are_cut_short(file, path):
    for name in ("a", "b", "c", "d", "e"):
        file.add(name)
    rewrite(path, lambda content: [key.pop("salt") for key in content["keys"]])
    message = refused(file.read)
    assert message.count("salt") == 3
    assert message.endswith("; and 2 more")


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff\xfe", b'{"keys": 7}'])
def test_what_is_no_key_file_is_refused_with_its_name(file, path, raw):
    path.parent.mkdir()
    path.write_bytes(raw)
    assert refused(file.read).startswith(f"{path}: ")


def test_a_folder_in_the_files_place_is_refused(file, path):
    path.mkdir(parents=True)
    assert refused(file.read) == f"{path}: Is a directory"


def test_a_home_that_can_not_be_made_is_refused(tmp_path):
    (tmp_path / "home").write_text("a file")
    assert str(tmp_path / "home") in refused(KeyFile(tmp_path / "home" / "keys.json").add, "ci")


def test_a_file_too_large_is_neither_read_nor_written(file, path, monkeypatch):
    file.add("one")
    size = path.stat().st_size
    monkeypatch.setattr(keys, "FILE_BYTES_MAX", size)
    assert len(file.read()) == 1
    assert f"would have more than {size} bytes" in refused(file.add, "two")
    monkeypatch.setattr(keys, "FILE_BYTES_MAX", size - 1)
    assert refused(file.read) == f"{path}: more than {size - 1} bytes"


def test_writers_at_the_same_time_lose_no_key(path):
    names = [f"key {number}" for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: KeyFile(path).add(name), names))
    assert sorted(record.name for record in KeyFile(path).read()) == sorted(names)


def test_a_crash_while_writing_leaves_the_old_file_and_the_next_writer_goes_on(file, path, monkeypatch):
    file.add("one")
    before = path.read_bytes()
    with monkeypatch.context() as crash:
        crash.setattr(keys.os, "fsync", lambda _fd: (_ for _ in ()).throw(OSError(28, "No space left")))
        assert refused(file.add, "two") == f"{path}: No space left"
    assert path.read_bytes() == before
    assert sorted(each.name for each in path.parent.iterdir()) == ["keys.json", "keys.lock"]
    path.with_suffix(".new").write_text("left by a process that was killed")
    file.add("two")
    assert [record.name for record in file.read()] == ["one", "two"]


def test_the_new_file_is_on_the_disk_before_it_takes_the_olds_place(file, path, monkeypatch):
    file.add("one")
    old, seen = path.stat().st_ino, []
    real = os.fsync

    def watched(fd):
        seen.append((stat.S_ISREG(os.fstat(fd).st_mode), path.stat().st_ino == old))
        real(fd)

    monkeypatch.setattr(keys.os, "fsync", watched)
    file.add("two")
    # First the file, while the old one stands; then the folder, with the new one in it.
    assert seen == [(True, True), (False, False)]


def test_a_lane_must_be_one_of_those_there_are():
    refuse_unknown_lane(None, ["interactive"])
    refuse_unknown_lane("batch", ["interactive", "batch"])
    message = refused(refuse_unknown_lane, "slow", ["interactive", "batch"])
    assert message == "there is no lane 'slow'; the lanes are: interactive, batch"
