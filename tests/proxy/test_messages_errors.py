"""Errors as Anthropic's clients read them: each with the type, the status and the class that they know."""

import anthropic
import httpx2
import pytest
from aiohttp import web
from anthropic.types.shared.error_response import ErrorResponse

from proxy.dialects.messages_errors import anthropic_failure, speaks_anthropic
from proxy.failures import failure_response
from shared import errors
from tests.proxy.messages_world import body, strictly

TOO_LARGE = web.HTTPRequestEntityTooLarge(1, 2)


def said(error):
    return anthropic_failure(failure_response(error, lambda: 1.0), "req_1")


def ask(failure, *, retries=0):
    """Let Anthropic's client meet this failure. Returns the exception and how often it asked."""
    requests = []

    def answer(request):
        requests.append(request)
        headers = {**failure.headers, "request-id": "req_1", "retry-after-ms": "1"}
        return httpx2.Response(failure.status, json=failure.body, headers=headers)

    with httpx2.Client(transport=httpx2.MockTransport(answer)) as http:
        client = anthropic.Anthropic(
            api_key="none", base_url="http://gateway", http_client=http, max_retries=retries
        )
        with pytest.raises(anthropic.APIStatusError) as caught:
            client.messages.create(**body())
    return caught.value, len(requests)


LATER = {"retry_after_s": 2.0}


@pytest.mark.parametrize(
    ("error", "status", "kind", "known_as"),
    [
        (errors.InvalidRequest("m", param="p"), 400, "invalid_request_error", anthropic.BadRequestError),
        (errors.ContextTooLong("m"), 400, "invalid_request_error", anthropic.BadRequestError),
        (errors.Quarantined("m"), 422, "invalid_request_error", anthropic.UnprocessableEntityError),
        (errors.InvalidKey("m"), 401, "authentication_error", anthropic.AuthenticationError),
        (errors.PermissionDenied("m"), 403, "permission_error", anthropic.PermissionDeniedError),
        (errors.ModelNotFound("m"), 404, "not_found_error", anthropic.NotFoundError),
        (errors.RateLimited("m", **LATER), 429, "rate_limit_error", anthropic.RateLimitError),
        (errors.Overloaded("m", **LATER), 529, "overloaded_error", anthropic.OverloadedError),
        (errors.QueueTimeout("m", **LATER), 529, "overloaded_error", anthropic.OverloadedError),
        (errors.Loading("m", **LATER), 529, "overloaded_error", anthropic.OverloadedError),
        (errors.Draining("m", **LATER), 529, "overloaded_error", anthropic.OverloadedError),
        (errors.WorkerCrashed("m", **LATER), 529, "overloaded_error", anthropic.OverloadedError),
        (RuntimeError("secret"), 500, "api_error", anthropic.InternalServerError),
        (web.HTTPNotFound(), 404, "not_found_error", anthropic.NotFoundError),
        (web.HTTPMethodNotAllowed("GET", ["POST"]), 405, "invalid_request_error", anthropic.APIStatusError),
        (web.HTTPRequestTimeout(), 408, "timeout_error", anthropic.RequestTimeoutError),
        (TOO_LARGE, 413, "request_too_large", anthropic.RequestTooLargeError),
        (web.HTTPUnsupportedMediaType(), 415, "invalid_request_error", anthropic.APIStatusError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_each_refusal_has_the_type_status_and_class_that_clients_know(error, status, kind, known_as):
    failure = said(error)
    assert (failure.status, failure.body["error"]["type"]) == (status, kind)
    assert failure.body == {"type": "error", "error": failure.body["error"], "request_id": "req_1"}
    assert set(failure.body["error"]) == {"type", "message"}
    # Anthropic documents this one type, and its package has no class for it.
    assert kind == "request_too_large" or strictly(ErrorResponse, failure.body)
    raised, _ = ask(failure)
    assert isinstance(raised, known_as)
    assert (raised.status_code, raised.request_id, raised.body) == (status, "req_1", failure.body)


@pytest.mark.parametrize(
    ("error", "tries"), [(errors.Overloaded("m", **LATER), 3), (errors.InvalidKey("m"), 1)]
)
def test_clients_try_again_only_what_may_go_better(error, tries):
    _, asked = ask(said(error), retries=2)
    assert asked == tries


def test_the_time_to_come_back_and_the_code_stay_in_the_headers():
    failure = said(errors.QueueTimeout("m", **LATER))
    assert (failure.headers["Retry-After"], failure.reason) == ("2", "queue_timeout")


def test_a_prompt_that_is_too_long_is_told_in_the_words_that_clients_look_for():
    assert said(errors.ContextTooLong("At most 5.")).body["error"]["message"] == (
        "prompt is too long: At most 5."
    )
    assert said(errors.InvalidRequest("At most 5.")).body["error"]["message"] == "At most 5."


@pytest.mark.parametrize(
    ("path", "speaks"),
    [
        ("/v1/messages", True),
        ("/v1/messages/count_tokens", True),
        ("/v1/messages/batches", True),
        ("/v1/messagesx", False),
        ("/v1/chat/completions", False),
        ("/", False),
    ],
)
def test_which_urls_are_anthropics(path, speaks):
    assert speaks_anthropic(path) == speaks
