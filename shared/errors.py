"""One error tree with stable codes.

ForebayError
├── Refusal                      a client is told no, with a code and perhaps a time to come back
│   ├── InvalidRequest           the request can't be served as it is, and never will be
│   │   ├── ContextTooLong       more tokens than the model or the lane allows
│   │   ├── IdempotencyKeyReused another body under the same Idempotency-Key
│   │   └── PreviousNotFound     the response to go on from isn't kept here
│   ├── ModelNotFound            no such model here
│   ├── ResponseNotFound         no such response is kept here
│   ├── Quarantined              it killed the worker when it ran alone
│   ├── InvalidKey               no API key, or none that is known here
│   ├── PermissionDenied         the key may not do this
│   └── Unavailable              not now; comes with retry_after_s
│       ├── RateLimited          the key's own bounds
│       ├── Overloaded           the queue or the memory is full, or the wait would be too long
│       ├── QueueTimeout         it waited as long as its lane allows
│       ├── Loading              the model isn't loaded yet
│       ├── Draining             the gateway is going down
│       └── WorkerCrashed        the worker died and the request's resumes are used up
├── FrameError                   a frame that can't be read; counted and dropped
├── SettingsError                the configuration can't be used
└── ModelError                   the model folder can't be served
"""

from typing import ClassVar


class ForebayError(Exception):
    """The root: everything that Forebay raises on purpose."""


class Refusal(ForebayError):
    """A client is told no. `code` is stable and stands in the error body."""

    code: ClassVar[str] = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequest(Refusal):
    """Malformed, out of range, or unsupported; `param` names the field."""


class ContextTooLong(InvalidRequest):
    """Prompt and answer together exceed what is allowed; the message says both numbers."""

    code = "context_length_exceeded"


class IdempotencyKeyReused(InvalidRequest):
    """An Idempotency-Key came with another body than before."""

    code = "idempotency_key_reused"


class PreviousNotFound(InvalidRequest):
    """A request goes on from a response that isn't kept here, or not any more."""

    code = "previous_response_not_found"


class Quarantined(Refusal):
    """The request killed the worker when it ran alone; it isn't run again for a while."""

    code = "request_quarantined"


class ModelNotFound(Refusal):
    """The request names a model that isn't served here."""

    code = "model_not_found"


class ResponseNotFound(Refusal):
    """A URL names a response that isn't kept here, or not any more, or is another key's."""

    code = "response_not_found"


class InvalidKey(Refusal):
    """No API key where one is needed, or one that isn't known here."""

    code = "invalid_api_key"


class PermissionDenied(Refusal):
    """The key is known, and may not do this."""

    code = "permission_denied"


class Unavailable(Refusal):
    """Not now. `retry_after_s` is an honest time to come back, in seconds within [1, 60]."""

    code = "worker_unavailable"

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = min(60.0, max(1.0, retry_after_s))


class RateLimited(Unavailable):
    """A key is over its own bounds: requests or tokens a minute, requests at a time, or its queue share."""

    code = "rate_limit_exceeded"


class QueueTimeout(Unavailable):
    """The request waited as long as its lane allows, and nothing of it has run."""

    code = "queue_timeout"


class Overloaded(Unavailable):
    """The queue is full, or memory is, or the wait would exceed the deadline."""

    code = "server_is_overloaded"


class Loading(Unavailable):
    """No worker has loaded the model yet."""

    code = "loading"


class Draining(Unavailable):
    """The gateway finishes what it has and takes nothing new."""

    code = "draining"


class WorkerCrashed(Unavailable):
    """The worker died under this request more often than it may be resumed."""

    code = "worker_crashed"


class FrameError(ForebayError):
    """A frame of the wire that can't be read: wrong version, wrong shape, or out of bounds."""


class SettingsError(ForebayError):
    """The configuration can't be used; the message says which key and why."""


class ModelError(ForebayError):
    """The model folder is missing, incomplete, or of a kind that can't be served."""
