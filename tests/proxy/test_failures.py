"""Errors as a client sees them, read by OpenAI's own client where it has a say."""

import json

import httpx2
import openai
import pytest
from aiohttp import web

from proxy.failures import Failure, failure_response
from shared import errors


def steady():
    return 1.0


def said(error):
    return failure_response(error, steady)


def ask(failure, *, retries=0):
    """Let OpenAI's client meet this failure. Returns the exception and how often it asked."""
    requests = []

    def answer(request):
        requests.append(request)
        return httpx2.Response(failure.status, json=failure.body, headers=failure.headers)

    with httpx2.Client(transport=httpx2.MockTransport(answer)) as http:
        client = openai.OpenAI(
            api_key="none", base_url="http://gateway/v1", http_client=http, max_retries=retries
        )
        with pytest.raises(openai.APIStatusError) as caught:
            client.models.list()
    return caught.value, len(requests)


@pytest.mark.parametrize(
    ("error", "status", "kind", "code", "reason"),
    [
        (errors.InvalidRequest("m", param="p"), 400, "invalid_request_error", None, "invalid_request_error"),
        (
            errors.ContextTooLong("m", param="p"),
            400,
            "invalid_request_error",
            "context_length_exceeded",
            "context_length_exceeded",
        ),
        (
            errors.ModelNotFound("m", param="p"),
            404,
            "invalid_request_error",
            "model_not_found",
            "model_not_found",
        ),
    ],
)
def test_a_refusal_for_good_says_what_and_where_and_not_to_try_again(error, status, kind, code, reason):
    failure = said(error)
    assert failure.status == status
    assert failure.body == {"error": {"message": "m", "type": kind, "param": "p", "code": code}}
    assert failure.headers == {"x-should-retry": "false", "x-forebay-dropped-reason": reason}


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.Unavailable, "worker_unavailable"),
        (errors.Overloaded, "server_is_overloaded"),
        (errors.Loading, "loading"),
        (errors.Draining, "draining"),
        (errors.WorkerCrashed, "worker_crashed"),
    ],
)
def test_a_refusal_for_now_says_when_to_come_back(kind, code):
    failure = said(kind("m", retry_after_s=7.25))
    assert failure.status == 503
    assert failure.body["error"] == {"message": "m", "type": "server_error", "param": None, "code": code}
    assert failure.headers == {
        "Retry-After": "8",
        "retry-after-ms": "7250",
        "x-forebay-dropped-reason": code,
    }


def test_every_refusal_there_is_has_a_row_of_its_own_or_its_parents():
    """A new error class can't fall through to the 500 of the unforeseen."""

    def below(kind):
        return [kind, *(each for child in kind.__subclasses__() for each in below(child))]

    for kind in below(errors.Refusal):
        arguments = {"retry_after_s": 1} if issubclass(kind, errors.Unavailable) else {}
        failure = said(kind("m", **arguments))
        assert 400 <= failure.status <= 503
        assert failure.status != 500
        assert failure.headers["x-forebay-dropped-reason"] == kind.code


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.2])
@pytest.mark.parametrize("seconds", [0, 1, 1.1, 30, 60, 1000])
def test_the_time_to_come_back_is_jittered_and_within_a_minute(seconds, factor):
    headers = failure_response(errors.Overloaded("m", retry_after_s=seconds), lambda: factor).headers
    wanted = min(60, max(1, min(60, max(1, seconds)) * factor))
    assert int(headers["retry-after-ms"]) == pytest.approx(1000 * wanted, abs=1)
    assert 1 <= int(headers["Retry-After"]) <= 60
    assert 0 <= int(headers["Retry-After"]) - wanted < 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.InvalidRequest("m"), openai.BadRequestError),
        (errors.ContextTooLong("m"), openai.BadRequestError),
        (errors.ModelNotFound("m"), openai.NotFoundError),
        (errors.Overloaded("m", retry_after_s=1), openai.InternalServerError),
        (web.HTTPNotFound(), openai.NotFoundError),
        (KeyError("secret"), openai.InternalServerError),
    ],
)
def test_openais_client_raises_the_class_it_has_for_the_case(error, kind):
    failure = said(error)
    caught, _ = ask(failure)
    assert type(caught) is kind
    assert caught.code == failure.body["error"]["code"]
    assert caught.type == failure.body["error"]["type"]


def test_the_header_keeps_openais_client_from_trying_again():
    """Shown on a status that the client would otherwise try again."""
    refused = said(errors.InvalidRequest("m"))
    assert ask(Failure(503, refused.body, refused.headers), retries=1)[1] == 1


def test_openais_client_tries_again_what_is_refused_for_now(monkeypatch):
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    assert ask(said(errors.Loading("m", retry_after_s=12.5)), retries=1)[1] == 2
    assert slept == [12.5]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (web.HTTPNotFound(), 404, "route_not_found"),
        (web.HTTPMethodNotAllowed("GET", ["POST"]), 405, "method_not_allowed"),
        (web.HTTPRequestEntityTooLarge(max_size=5, actual_size=6), 413, "request_too_large"),
        (web.HTTPUnsupportedMediaType(), 415, "unsupported_media_type"),
        (web.HTTPBadRequest(), 400, None),
        (web.HTTPExpectationFailed(), 417, "expectation_failed"),
        (web.HTTPConflict(), 409, None),
    ],
)
def test_what_the_http_server_refuses_has_the_same_shape(error, status, code):
    failure = said(error)
    assert failure.status == status
    assert failure.body["error"]["code"] == code
    assert failure.body["error"]["type"] == "invalid_request_error"
    assert failure.body["error"]["message"].endswith(".")
    assert failure.headers["x-should-retry"] == "false"
    assert failure.headers.get("Allow") == ("POST" if status == 405 else None)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("secret"),
        KeyError("secret"),
        errors.ModelError("secret"),
        errors.FrameError("secret"),
        web.HTTPInternalServerError(text="secret"),
        web.HTTPFound("/secret"),
        RecursionError("secret"),
    ],
)
def test_what_nobody_foresaw_is_a_500_that_says_nothing_of_the_inside(error):
    failure = said(error)
    assert failure.status == 500
    assert failure.body["error"]["type"] == "server_error"
    assert failure.body["error"]["code"] is None
    assert "secret" not in json.dumps(failure.body) + json.dumps(failure.headers)


def test_in_a_stream_that_has_begun_the_time_to_come_back_stands_in_the_error():
    late = said(errors.QueueTimeout("too late", retry_after_s=2.5))
    assert late.event["error"] == {**late.body["error"], "retry_after_ms": 2500}
    wrong = said(errors.InvalidRequest("no"))
    assert wrong.event == wrong.body


def test_who_shows_no_key_is_told_of_which_kind_it_should_be():
    assert said(errors.InvalidKey("no")).headers["WWW-Authenticate"] == "Bearer"
