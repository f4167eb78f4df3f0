"""Who may come in: keys in either header, what a refusal says and hides, and the open door."""

import socket
from hmac import compare_digest

import pytest
from multidict import CIMultiDict

from proxy import authenticate
from proxy.authenticate import ANONYMOUS, Caller, KeyRing, check_model, refuse_open_door
from proxy.keys import KeyFile, split_key
from shared.errors import InvalidKey, PermissionDenied, SettingsError


@pytest.fixture
def file(tmp_path):
    return KeyFile(tmp_path / "keys.json")


@pytest.fixture
def ci(file):
    return file.add("ci", weight=2.0, requests_per_minute=60)


@pytest.fixture
def laptop(file, ci):  # the second of two
    return file.add("laptop")


@pytest.fixture
def ring(file, ci, laptop):
    return KeyRing(file.read())


def bearer(text):
    return {"Authorization": f"Bearer {text}"}


def asked(ring, headers):
    return ring.authenticate(CIMultiDict(headers))


def refused(ring, headers):
    with pytest.raises(InvalidKey) as problem:
        asked(ring, headers)
    return problem.value.message


def test_a_caller_has_everything_that_its_record_says(file):
    limits = {
        "weight": 2.5,
        "lane": "batch",
        "requests_per_minute": 60,
        "tokens_per_minute": 100_000,
        "concurrent_max": 4,
        "models": ("demo",),
        "context_tokens": 8192,
        "max_tokens": 512,
        "private_prefixes": True,
    }
    new = file.add("ci", **limits)
    caller = asked(KeyRing(file.read()), bearer(new.text))
    assert caller == Caller(key_id=new.record.id, name="ci", **limits)


def test_a_private_key_has_a_salt_of_its_own_and_the_others_share_none(file):
    shy, bold, open_one = file.add("shy", private_prefixes=True), file.add("bold"), file.add("open")
    ring = KeyRing(file.read())
    assert asked(ring, bearer(shy.text)).salt == shy.record.id
    assert {asked(ring, bearer(new.text)).salt for new in (bold, open_one)} == {ANONYMOUS.salt} == {""}


def test_where_all_keys_are_private_each_has_its_own_salt(file, ci, laptop):
    ring = KeyRing(file.read(), private_prefixes=True)
    assert [asked(ring, bearer(new.text)).salt for new in (ci, laptop)] == [ci.record.id, laptop.record.id]


def test_each_key_is_its_own_caller(ring, ci, laptop):
    assert asked(ring, bearer(ci.text)).name == "ci"
    assert asked(ring, bearer(laptop.text)).name == "laptop"


@pytest.mark.parametrize(
    "make",
    [
        lambda text: {"authorization": f"bearer {text}"},
        lambda text: {"AUTHORIZATION": f"BEARER  {text} "},
        lambda text: {"x-api-key": text},
        lambda text: {"X-Api-Key": f" {text} "},
    ],
)
def test_a_key_is_found_in_either_header_in_any_case(ring, ci, make):
    assert asked(ring, make(ci.text)).name == "ci"


def test_without_keys_everyone_is_anonymous_whatever_they_send():
    ring = KeyRing(())
    assert ring.is_open
    for headers in ({}, bearer("nonsense"), {"x-api-key": "x" * 1000}, {"Authorization": "Basic eDp5"}):
        assert asked(ring, headers) is ANONYMOUS
    assert Caller("", "anonymous") == ANONYMOUS


def test_with_keys_a_request_without_one_is_told_how_to_send_it(ring):
    assert not ring.is_open
    message = refused(ring, {"content-type": "application/json"})
    assert message == "No API key was sent; send 'Authorization: Bearer <key>' or 'x-api-key: <key>'."


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer ", "Basic eDp5", "fb-abcd1234-x", "Bearerfb-x"])
def test_an_authorization_without_a_bearer_key_is_told_so(ring, value):
    assert refused(ring, {"Authorization": value}).startswith("Authorization has no Bearer key; send ")


def test_a_wrong_secret_and_an_unknown_id_are_refused_alike_and_not_repeated(ring, ci):
    key_id, secret = split_key(ci.text)
    other = ("B" if secret[0] == "A" else "A") + secret[1:]
    wrong = refused(ring, bearer(f"fb-{key_id}-{other}"))
    unknown = refused(ring, bearer(f"fb-{'0' * 8}-{secret}"))
    shapeless = refused(ring, bearer("sk-secret"))
    assert wrong == unknown == shapeless == "The API key in Authorization is not known here."
    assert refused(ring, {"x-api-key": "sk-secret"}) == "The API key in x-api-key is not known here."


def test_every_character_of_a_secret_counts(ring, ci):
    for place in range(12, len(ci.text)):
        other = "B" if ci.text[place] == "A" else "A"
        refused(ring, bearer(ci.text[:place] + other + ci.text[place + 1 :]))


def test_one_keys_secret_is_no_use_with_anothers_id(ring, ci, laptop):
    refused(ring, bearer(f"fb-{ci.record.id}-{split_key(laptop.text)[1]}"))


def test_a_revoked_key_is_not_known_any_more(file, ci, laptop):
    file.revoke("ci")
    ring = KeyRing(file.read())
    refused(ring, bearer(ci.text))
    assert asked(ring, bearer(laptop.text)).name == "laptop"


@pytest.mark.parametrize("known", [True, False])
def test_a_hash_is_made_and_compared_whether_or_not_the_id_is_known(ring, ci, monkeypatch, known):
    compared = []

    def watched(one, other):
        compared.append((len(one), len(other)))
        return compare_digest(one, other)

    monkeypatch.setattr(authenticate.hmac, "compare_digest", watched)
    key_id = ci.record.id if known else "0" * 8
    refused(ring, bearer(f"fb-{key_id}-{'A' * 43}"))
    assert compared == [(32, 32)]


def test_authorization_says_who_asks_where_both_headers_are_valid(ring, ci, laptop):
    assert asked(ring, {**bearer(laptop.text), "x-api-key": ci.text}).name == "laptop"
    assert asked(ring, {"x-api-key": laptop.text, **bearer(ci.text)}).name == "ci"


def test_one_bad_header_of_two_is_enough_for_a_refusal(ring, ci):
    assert "x-api-key is not known" in refused(ring, {**bearer(ci.text), "x-api-key": "sk-other"})
    assert "Authorization is not known" in refused(ring, {**bearer("sk-other"), "x-api-key": ci.text})
    assert "no Bearer key" in refused(ring, {"Authorization": "Basic eDp5", "x-api-key": ci.text})
    assert "x-api-key is not known" in refused(ring, {**bearer(ci.text), "x-api-key": ""})


@pytest.mark.parametrize("name", ["Authorization", "x-api-key"])
def test_a_header_that_is_too_long_is_refused_unread(ring, ci, name):
    prefix = "Bearer " if name == "Authorization" else ""
    padded = prefix + ci.text + " " * 512
    assert refused(ring, {name: padded}) == (
        f"The header {name} has {len(padded)} characters; at most 512 are read."
    )
    assert asked(ring, {name: padded[:512]}).name == "ci"


def test_a_key_for_some_models_may_not_use_others():
    caller = Caller("abcd1234", "ci", models=("demo", "org/small"))
    check_model(caller, "demo")
    check_model(caller, "org/small")
    with pytest.raises(PermissionDenied) as problem:
        check_model(caller, "large" + "x" * 200)
    assert problem.value.param == "model"
    assert "'ci'" in problem.value.message
    assert problem.value.message.endswith("it may use: demo, org/small.")
    assert len(problem.value.message) < 250


def test_a_key_for_no_certain_models_may_use_any():
    check_model(Caller("abcd1234", "ci"), "anything")
    check_model(ANONYMOUS, "anything")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.9.10", "::1", "localhost", "LocalHost", "::ffff:127.0.0.1"]
)
def test_a_host_of_this_machine_alone_needs_no_keys(host):
    refuse_open_door(host, ())


def test_an_admin_key_does_not_close_the_door(file):
    file.add("ops", admin=True)
    assert KeyRing(file.read()).is_open
    with pytest.raises(SettingsError):
        refuse_open_door("192.0.2.1", file.read())
    file.add("ci")
    assert not KeyRing(file.read()).is_open
    refuse_open_door("192.0.2.1", file.read())


@pytest.mark.parametrize("others", [(), ("ci",)], ids=["an open door", "keys"])
@pytest.mark.parametrize("header", ["Authorization", "x-api-key"])
def test_an_admin_key_makes_no_requests(file, others, header):
    text = file.add("ops", admin=True).text
    for other in others:
        file.add(other)
    shown = {header: f"Bearer {text}" if header == "Authorization" else text}
    with pytest.raises(PermissionDenied, match="'ops' is an admin key: it gives orders under /admin"):
        asked(KeyRing(file.read()), shown)


def test_an_admin_key_beside_an_ordinary_one_makes_no_requests_either(file, ci):
    text = file.add("ops", admin=True).text
    with pytest.raises(PermissionDenied):
        asked(KeyRing(file.read()), bearer(ci.text) | {"x-api-key": text})


def test_through_an_open_door_comes_whoever_shows_something_else_than_an_admin_key(file):
    text = file.add("ops", admin=True).text
    ring = KeyRing(file.read())
    for headers in ({}, bearer("sk-123"), {"x-api-key": "x" * 1000}, bearer(text[:-1] + "!")):
        assert asked(ring, headers) is ANONYMOUS


def ordering(ring, headers, kind):
    with pytest.raises(kind) as problem:
        ring.order_giver(CIMultiDict(headers))
    return problem.value.message


def test_orders_are_given_by_an_admin_key_in_authorization_and_by_nothing_else(file, ci):
    assert "--admin" in ordering(KeyRing(file.read()), {}, PermissionDenied)
    assert "--admin" in ordering(KeyRing(file.read()), bearer(ci.text), PermissionDenied)
    text = file.add("ops", admin=True).text
    ring = KeyRing(file.read())
    assert ring.order_giver(CIMultiDict(bearer(text))).name == "ops"
    assert "'ci' makes requests, and gives no orders" in ordering(ring, bearer(ci.text), PermissionDenied)
    for headers in ({}, {"x-api-key": text}, {"Authorization": text}, bearer(text[:-1] + "!"), bearer("")):
        ordering(ring, headers, InvalidKey)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", ""])
def test_a_host_that_others_reach_needs_keys(host, file, ci):
    with pytest.raises(SettingsError) as problem:
        refuse_open_door(host, ())
    assert repr(host) in str(problem.value)
    assert "`forebay keys add" in str(problem.value)
    refuse_open_door(host, file.read())


@pytest.mark.parametrize(
    ("found", "is_loopback"),
    [
        (["127.0.0.1"], True),
        (["127.0.0.1", "::1"], True),
        (["127.0.0.1", "192.0.2.1"], False),
        (["192.0.2.1", "127.0.0.1"], False),
        ([], False),
    ],
)
def test_a_name_is_of_this_machine_if_all_its_addresses_are(monkeypatch, found, is_loopback):
    def resolve(_host, _port, **_options):
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in found]

    monkeypatch.setattr(authenticate.socket, "getaddrinfo", resolve)
    if is_loopback:
        refuse_open_door("gateway.test", ())
    else:
        with pytest.raises(SettingsError):
            refuse_open_door("gateway.test", ())


def test_a_name_that_is_no_host_name_is_not_of_this_machine():
    with pytest.raises(SettingsError):
        refuse_open_door("a" * 70 + ".test", ())
