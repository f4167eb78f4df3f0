"""Bodies in the manner of the parsing suites for JSON: each is refused as a 400 or read as what it is."""

import json

import pytest

from proxy.json_body import read_object
from shared.errors import InvalidRequest
from tests.proxy.small_gateway import CHAT, gateway

BODY_BYTES = 1 << 20  # a client's library warns of more

REFUSED = {
    "nothing": b"",
    "spaces": b" \t\r\n",
    "a null byte": b"\x00",
    "a byte order mark": b'\xef\xbb\xbf{"a": 1}',
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "utf-32": '{"a": 1}'.encode("utf-32"),
    "half a character": b'{"a": "\xe6\x97"}',
    "an overlong slash": b'{"a": "\xc0\xaf"}',
    "a surrogate in utf-8": b'{"a": "\xed\xa0\x80"}',
    "beyond unicode": b'{"a": "\xf4\x90\x80\x80"}',
    "a lone surrogate": b'{"a": "\\ud800"}',
    "a lone low surrogate": b'{"a": "\\udc00x"}',
    "surrogates in the wrong order": b'{"a": "\\udc00\\ud800"}',
    "a surrogate as a key": b'{"\\ud800": 1}',
    "half an escape": b'{"a": "\\u12"}',
    "an unknown escape": b'{"a": "\\x41"}',
    "an escape at the end": b'{"a": "\\',
    "a control character": b'{"a": "\x01"}',
    "a line break in a text": b'{"a": "b\nc"}',
    "single quotes": b"{'a': 1}",
    "no quotes": b"{a: 1}",
    "a text without an end": b'{"a": "b',
    "a comma at the end": b'{"a": 1,}',
    "a comma at the beginning": b'{,"a": 1}',
    "two commas": b'{"a": 1,,"b": 2}',
    "no comma": b'{"a": 1 "b": 2}',
    "no colon": b'{"a" 1}',
    "two colons": b'{"a":: 1}',
    "a number as a key": b"{1: 1}",
    "a comment": b'{"a": 1} // b',
    "a comment inside": b'{/* a */"a": 1}',
    "two objects": b'{"a": 1}{"b": 2}',
    "two lines": b'{"a": 1}\n{"b": 2}',
    "a bracket too few": b'{"a": [1}',
    "a bracket too many": b'{"a": 1}}',
    "crossed brackets": b'{"a": [1}]',
    "only an opening": b"{",
    "a leading zero": b'{"a": 01}',
    "a plus sign": b'{"a": +1}',
    "a bare point": b'{"a": .5}',
    "a point at the end": b'{"a": 1.}',
    "half an exponent": b'{"a": 1e}',
    "hexadecimal": b'{"a": 0x10}',
    "a lonely minus": b'{"a": -}',
    "NaN": b'{"a": NaN}',
    "infinity": b'{"a": Infinity}',
    "minus infinity": b'{"a": [-Infinity]}',
    "a number beyond all": b'{"a": ' + b"9" * 100_000 + b"}",
    "True as Python has it": b'{"a": True}',
    "nul": b'{"a": nul}',
    "a list": b"[1]",
    "a text": b'"a"',
    "a number": b"1",
    "null": b"null",
    "a key twice": b'{"a": 1, "a": 1}',
    "a key twice deep inside": b'{"a": [{"b": 1, "\\u0062": 2}]}',
    "a hundred thousand lists": b'{"a": ' + b"[" * 100_000,
    "a hundred thousand objects": b'{"a":' * 100_000,
    "ten thousand levels": b'{"a": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "levels hidden by a quote": b'{"a": "\\"", "b": ' + b"[" * 100 + b"]" * 100 + b"}",
    "a million empty lists": b'{"a": [' + b"[]," * 1_000_000 + b"[]]}",
    "a million empty texts": b'{"a": [' + b'"",' * 1_000_000 + b'""]}',
}
READ = {
    "an empty object": (b"{}", {}),
    "spaces around": (b'\t\r\n {"a" : 1} \n', {"a": 1}),
    "an empty key": (b'{"": 0}', {"": 0}),
    "a pair of surrogates": (b'{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
    "an escaped null": (b'{"a": "\\u0000"}', {"a": "\x00"}),
    "no character, but allowed": (b'{"a": "\xef\xbf\xbf"}', {"a": "\uffff"}),
    "a delete character": (b'{"a": "\x7f"}', {"a": "\x7f"}),
    "minus zero": (b'{"a": -0}', {"a": 0}),
    "a small exponent": (b'{"a": 1E-2}', {"a": 0.01}),
    "brackets in a text": (b'{"a": "' + b"[" * 1000 + b'"}', {"a": "[" * 1000}),
    "sixty levels": (b'{"a": ' + b"[" * 60 + b"]" * 60 + b"}", None),
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_sound_object_is_refused(body):
    with pytest.raises(InvalidRequest) as refusal:
        read_object(body)
    assert refusal.value.message
    assert len(refusal.value.message) < 400


@pytest.mark.parametrize(("body", "value"), READ.values(), ids=READ.keys())
def test_what_is_one_is_read_as_python_reads_it(body, value):
    assert read_object(body) == (json.loads(body) if value is None else value)


async def test_all_of_them_are_400s_on_every_url_and_the_server_goes_on(tmp_path):
    async with gateway(tmp_path) as here:
        await here.start_worker()
        paths = (CHAT, "/v1/completions", "/v1/messages", "/v1/responses", "/tokenize", "/detokenize")
        small = {name: body for name, body in REFUSED.items() if len(body) < BODY_BYTES}
        for number, (name, body) in enumerate(small.items()):
            path = paths[number % len(paths)]
            answered = await here.post(path, body, headers={"content-type": "application/json"})
            assert answered.status == 400, name
            assert answered.error["type"] == "invalid_request_error", name
        assert (
            await here.post(CHAT, {"model": "small", "messages": [{"role": "user", "content": "a"}]})
        ).text
        await here.idle()
