"""The key file: who may ask, and within which bounds. It holds hashes, never a key.

`<home>/keys.json` has mode 0600. A writer holds the lock beside it and puts a whole new file in its place, so
that a reader, who needs no lock, meets either the old one or the new one.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import string
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from shared.errors import SettingsError
from shared.limits import CONTEXT_TOKENS_MAX, KEY_CLASSES_MAX, MIB, NAME_CHARS_MAX

KEY_FILE_NAME: Final = "keys.json"
KEYS_MAX: Final = 10_000
FILE_BYTES_MAX: Final = 64 * MIB
_COUNT_MAX: Final = 10**9  # of requests or tokens
_MODELS_MAX: Final = 64
_PROBLEMS_SHOWN: Final = 3
_ID_CHARS: Final = string.ascii_lowercase + string.digits
_ID_LENGTH: Final = 8
_SECRET_BYTES: Final = 32
_SALT_BYTES: Final = 16
_DIGEST_BYTES: Final = 32
_OTHERS_MAY_WRITE: Final = 0o022
# Fields that are about requests, which an admin key makes none of.
_FOR_REQUESTS: Final = frozenset(
    {
        "weight",
        "lane",
        "requests_per_minute",
        "tokens_per_minute",
        "concurrent_max",
        "models",
        "context_tokens",
        "max_tokens",
        "key_class",
        "private_prefixes",
    }
)
_KEY_TEXT: Final = re.compile(r"fb-([a-z0-9]{8})-([A-Za-z0-9_-]{43})")


class KeyRecord(BaseModel):
    """One key as it is stored. `salt` and `digest` are hex; a bound that is None doesn't bind."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    id: str = Field(pattern=r"^[a-z0-9]{8}$", description="public: it stands in the key's text")
    name: str = Field(min_length=1, max_length=64, description="what people call it")
    salt: str = Field(pattern=r"^[0-9a-f]{32}$", repr=False)
    digest: str = Field(pattern=r"^[0-9a-f]{64}$", repr=False)
    created: int = Field(ge=0, description="Unix time, seconds")
    weight: float = Field(1.0, ge=0.01, le=100, allow_inf_nan=False, description="share within a lane")
    lane: str | None = Field(None, pattern=r"^[a-z][a-z0-9_-]{0,31}$", description="the highest it may use")
    requests_per_minute: int | None = Field(None, ge=1, le=_COUNT_MAX)
    tokens_per_minute: int | None = Field(None, ge=1, le=_COUNT_MAX, description="prompt and answer")
    concurrent_max: int | None = Field(None, ge=1, le=_COUNT_MAX, description="requests at a time")
    models: tuple[str, ...] | None = Field(None, min_length=1, max_length=_MODELS_MAX)
    context_tokens: int | None = Field(None, ge=16, le=CONTEXT_TOKENS_MAX, description="prompt and answer")
    max_tokens: int | None = Field(None, ge=1, le=CONTEXT_TOKENS_MAX, description="most that may be asked")
    key_class: str = Field("", pattern=r"^([a-z][a-z0-9_-]{0,31})?$", description="what metrics tell it by")
    private_prefixes: bool = Field(False, description="beginnings of prompts are shared with no other key")
    admin: bool = Field(False, description="gives orders, and nothing else")
    rotated: int | None = Field(None, ge=0, description="when its secret was last changed, Unix seconds")

    @model_validator(mode="after")
    def _admin_alone(self) -> Self:
        """Refuse bounds that would never be looked at, lest somebody trusts in them."""
        given = sorted(self.model_fields_set & _FOR_REQUESTS) if self.admin else ()
        needless = [name for name in given if getattr(self, name) != type(self).model_fields[name].default]
        if needless:
            raise ValueError(
                f"an admin key makes no requests, so nothing is to bound them: {', '.join(needless)}"
            )
        return self

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not name.isprintable() or name != name.strip():
            raise ValueError("must be printable, with no space at either end")
        if split_key(name):
            raise ValueError("must not be a key's text")
        return name

    @field_validator("models")
    @classmethod
    def _plain_models(cls, models: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for model in models or ():
            if not 1 <= len(model) <= NAME_CHARS_MAX or not model.isprintable():
                raise ValueError(f"a model's name has 1 to {NAME_CHARS_MAX} printable characters")
        return models


class _Content(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: Literal[1] = 1
    keys: tuple[KeyRecord, ...] = Field((), max_length=KEYS_MAX)

    @model_validator(mode="after")
    def _tell_apart(self) -> Self:
        """Refuse two keys that one word could mean: `revoke` takes either a name or an id."""
        words: set[str] = set()
        for key in self.keys:
            if key.id == key.name or not words.isdisjoint((key.id, key.name)):
                raise ValueError(f"the id {key.id!r} or the name {key.name!r} is there twice")
            words |= {key.id, key.name}
        return self

    @model_validator(mode="after")
    def _few_classes(self) -> Self:
        """Refuse more classes than metrics are to have labels for."""
        classes = {key.key_class for key in self.keys if key.key_class}
        if len(classes) > KEY_CLASSES_MAX:
            raise ValueError(f"the keys have {len(classes)} classes; at most {KEY_CLASSES_MAX} are possible")
        return self


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made. `text` is what its owner sends; it's stored nowhere."""

    record: KeyRecord
    text: str = field(repr=False)


def split_key(text: str) -> tuple[str, str] | None:
    """Return (id, secret) of a key's text, or None if it doesn't have a key's form."""
    parts = _KEY_TEXT.fullmatch(text)
    return (parts[1], parts[2]) if parts else None


def secret_digest(secret: str, salt: bytes) -> bytes:
    """Return the hash by which a secret is known again: BLAKE2b with the key's own salt as its key.

    A slow hash (argon2, scrypt) makes guessing dear, and that helps where people choose the secret. This one
    is 256 random bits: trying 2^255 of them is out of reach at any speed, so slowness would add nothing but
    its cost at every request. The salt only makes sure that no two files and no two keys can be compared.
    """
    return hashlib.blake2b(secret.encode(), key=salt, digest_size=_DIGEST_BYTES).digest()


def refuse_unknown_lane(lane: str | None, lanes: Collection[str]) -> None:
    """Raise SettingsError unless a key's lane is one of those configured, or none is said."""
    if lane is not None and lane not in lanes:
        raise SettingsError(f"there is no lane {lane!r}; the lanes are: {', '.join(lanes)}")


class KeyFile:
    """The file `path`, which need not be there yet. All methods block, and raise SettingsError in words."""

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        self.path = path
        self._now = now

    def read(self) -> tuple[KeyRecord, ...]:
        """Return the keys in the order in which they were made."""
        try:
            raw = self._bytes()
        except FileNotFoundError:
            return ()
        except OSError as problem:
            raise SettingsError(f"{self.path}: {problem.strerror}") from problem
        try:
            return _Content.model_validate_json(raw).keys
        except ValidationError as problem:
            raise SettingsError(f"{self.path}: {_explain(problem)}") from problem

    def add(self, name: str, **limits: Any) -> NewKey:
        """Make a key; `limits` are the optional fields of KeyRecord."""
        with self._locked():
            records = self.read()
            _refuse_taken(name, records)
            taken = {name, *(word for record in records for word in (record.id, record.name))}
            new = _made(_free_id(taken), name, int(self._now()), limits)
            self._write((*records, new.record))
        return new

    def revoke(self, name_or_id: str) -> KeyRecord:
        """Remove a key by its name, its id, or, if it has leaked, its text; return what it was."""
        with self._locked():
            records = self.read()
            found = _found(name_or_id, records)
            self._write(tuple(record for record in records if record is not found))
        return found

    def rotate(self, name_or_id: str) -> NewKey:
        """Give a key a new secret, all else left as it is; the old one is valid no more."""
        with self._locked():
            records = self.read()
            found = _found(name_or_id, records)
            new = _with_secret(found.model_dump() | {"rotated": int(self._now())})
            self._write(tuple(new.record if record is found else record for record in records))
        return new

    def _bytes(self) -> bytes:
        with self.path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_mode & _OTHERS_MAY_WRITE:
                raise SettingsError(
                    f"{self.path}: others may write to it; `chmod 600` it and look at its keys"
                )
            if status.st_uid not in (0, os.getuid()):
                raise SettingsError(f"{self.path} belongs to another user")
            raw = file.read(FILE_BYTES_MAX + 1)
        if len(raw) > FILE_BYTES_MAX:
            raise SettingsError(f"{self.path}: more than {FILE_BYTES_MAX} bytes")
        return raw

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock beside the file, which stays: removing it would let two processes lock two files."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as problem:
            raise SettingsError(f"{self.path.parent}: {problem.strerror}") from problem
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # Waits: who holds it writes one file.
            yield
        finally:
            os.close(lock)

    def _write(self, records: Sequence[KeyRecord]) -> None:
        try:
            content = _Content(keys=tuple(records))
        except ValidationError as problem:
            raise SettingsError(_explain(problem)) from problem
        raw = content.model_dump_json(indent=1, exclude_none=True).encode() + b"\n"
        if len(raw) > FILE_BYTES_MAX:
            raise SettingsError(
                f"{self.path} would have more than {FILE_BYTES_MAX} bytes; revoke a key first"
            )
        try:
            _replace(self.path, raw)
        except OSError as problem:
            raise SettingsError(f"{self.path}: {problem.strerror}") from problem


def _replace(path: Path, raw: bytes) -> None:
    """Put `raw` in the file's place at once: after a crash there is the old one or the new one, whole."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)  # One that a crash left; the lock is ours.
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _refuse_taken(name: str, records: Sequence[KeyRecord]) -> None:
    if len(records) >= KEYS_MAX:
        raise SettingsError(f"there are {KEYS_MAX} keys, and no more are possible; revoke one first")
    for record in records:
        if name == record.name:
            raise SettingsError(f"there is a key {name!r} already; revoke it first, or take another name")
        if name == record.id:
            raise SettingsError(f"{name!r} is the id of the key {record.name!r}; take another name")


def _found(name_or_id: str, records: Sequence[KeyRecord]) -> KeyRecord:
    """Return the record that a name, an id or a key's text means; SettingsError if none has it."""
    parts = split_key(name_or_id)
    word = parts[0] if parts else name_or_id
    for record in records:
        if word in (record.name, record.id):
            return record
    raise SettingsError(f"no key has the name or id {word!r}")


def _made(key_id: str, name: str, created: int, limits: dict[str, Any]) -> NewKey:
    return _with_secret({**limits, "id": key_id, "name": name, "created": created})


def _with_secret(fields: dict[str, Any]) -> NewKey:
    """Return a key with a secret of its own; `fields` are its record's others."""
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    salt = secrets.token_bytes(_SALT_BYTES)
    hashed = {"salt": salt.hex(), "digest": secret_digest(secret, salt).hex()}
    try:
        record = KeyRecord(**(fields | hashed))
    except ValidationError as problem:
        raise SettingsError(_explain(problem)) from problem
    return NewKey(record, f"fb-{record.id}-{secret}")


def _free_id(taken: Collection[str]) -> str:
    while (made := "".join(secrets.choice(_ID_CHARS) for _ in range(_ID_LENGTH))) in taken:
        pass
    return made


def _explain(problem: ValidationError) -> str:
    """Say what is wrong and where, without the values: a hash belongs in no log."""
    errors = problem.errors(include_input=False)
    shown = [_explain_one(error["type"], error["loc"], error["msg"]) for error in errors[:_PROBLEMS_SHOWN]]
    rest = len(errors) - len(shown)
    return "; ".join([*shown, f"and {rest} more"] if rest else shown)


def _explain_one(kind: str, place: tuple[int | str, ...], message: str) -> str:
    key = ".".join(str(part) for part in place)
    if kind == "extra_forbidden":
        return f"{key} is no known field"
    message = message.removeprefix("Value error, ")
    return f"{key}: {message}" if key else message
