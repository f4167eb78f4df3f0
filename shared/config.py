"""Settings: a TOML file and FOREBAY_… variables, read once, checked, frozen.

This is the only place that reads the environment. `FOREBAY_PORT` sets `port`; `FOREBAY_WORKER__SLOTS` sets
`slots` of the table `[worker]`. The environment wins over the file, and what is passed in wins over both.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings import SettingsError as UnreadableSource

from shared.errors import SettingsError
from shared.lane_settings import (
    BATCH,
    INTERACTIVE,
    AdmissionSettings,
    LaneProblem,
    LaneSettings,
    check_lanes,
)
from shared.limits import CONTEXT_TOKENS_MAX, RESUMES_MAX, SLOTS_MAX

_PREFIX: Final = "FOREBAY_"


def _as_number(given: object) -> object:
    """Read digits, as a variable has them; a choice of numbers is compared as it is."""
    return int(given) if isinstance(given, str) and given.isdecimal() else given


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LogSettings(_Table):
    """How logs look; they go to stderr, one line an event."""

    format: Literal["console", "json"] = "console"
    level: Literal["debug", "info", "warning", "error"] = "info"
    prompts: bool = Field(False, description="the beginning of each prompt stands in its request's line")


class TraceSettings(_Table):
    """Where traces of requests go, by OpenTelemetry's protocol over HTTP."""

    endpoint: str = Field("", max_length=2048, description="a collector's address; empty: none are made")
    share: float = Field(1.0, ge=0, le=1, description="of requests whose client doesn't say by traceparent")

    @field_validator("endpoint")
    @classmethod
    def _is_http(cls, endpoint: str) -> str:
        if endpoint and not re.fullmatch(r"https?://[^\s/]+\S*", endpoint):
            raise ValueError("must begin with http:// or https://, and name a host")
        return endpoint


class ProxySettings(_Table):
    """The front door."""

    resumes_max: int = Field(
        2, ge=0, le=RESUMES_MAX, description="how often a worker's death may interrupt one answer"
    )
    tokenizer_threads: int = Field(1, ge=1, le=16)
    request_timeout_s: float = Field(60.0, gt=0, le=3600, description="what a client gets to send a request")
    drain_s: float = Field(25.0, ge=0, le=600, description="what running answers get on SIGTERM")
    slow_reader_s: float = Field(60.0, ge=1, le=3600, description="a client that reads nothing for so long")
    undelivered_mb: int = Field(64, ge=1, description="of answers that slow clients haven't read, all told")
    connections_max: int | None = Field(None, ge=4, description="default: what the file descriptors allow")
    idempotency_hours: float = Field(24.0, gt=0, le=168, description="how long an Idempotency-Key counts")
    idempotency_mb: int = Field(64, ge=1, description="of stored answers")
    detached_s: float = Field(
        60.0, ge=0, le=3600, description="an answer with an Idempotency-Key runs on without a client"
    )
    quarantine_s: float = Field(3600.0, ge=1, le=7 * 86400, description="how long a request stays refused")
    quarantine_places: int = Field(1000, ge=1, le=100_000)
    responses_hours: float = Field(24.0, gt=0, le=8760, description="how long a response is kept")
    responses_mb: int = Field(64, ge=0, description="of kept responses; 0: none is kept")
    answer_format: str = Field(
        "", max_length=64, description="how thoughts and calls are written; empty: as the template has it"
    )
    private_prefixes: bool = Field(False, description="no key shares beginnings of prompts with another one")
    host_names: tuple[Annotated[str, Field(min_length=1, max_length=253)], ...] = Field(
        (), max_length=64, description="by which a gateway without keys may be asked"
    )


class WorkerSettings(_Table):
    """The MLX process and its supervisor."""

    slots: int = Field(16, ge=1, le=SLOTS_MAX, description="rows in the batch")
    context_tokens: int | None = Field(
        None, ge=16, le=CONTEXT_TOKENS_MAX, description="cap below the model's"
    )
    kv_budget_mb: int | None = Field(None, ge=1, description="bytes for KV caches; default from the device")
    kv_bits: Annotated[Literal[0, 4, 8], BeforeValidator(_as_number)] = Field(
        0, description="what keys and values are quantised to; 0: not at all"
    )
    cache_memory_mb: int | None = Field(
        None, ge=0, description="for beginnings of prompts; default a fifth of what weights leave"
    )
    prefix_share_tokens: int = Field(
        256, ge=64, le=CONTEXT_TOKENS_MAX, description="common beginnings from here on are held once"
    )
    prefix_disk_gb: float = Field(0.0, ge=0, le=4096, description="for beginnings of prompts; 0: no disk")
    prefix_disk_writes_gb: float = Field(64.0, gt=0, le=65_536, description="written to disk in a day")
    memory_fraction: float = Field(0.8, gt=0, le=0.95, description="of the device's working set, all told")
    load_deadline_s: float = Field(300.0, ge=1, description="without any progress while loading")
    hang_floor_s: float = Field(5.0, ge=0.5, description="silence of a busy loop that is still no hang")
    stderr_lives_kept: int = Field(20, ge=1, le=1000, description="stderr files of past lives")
    stderr_mb: int = Field(8, ge=1, le=1024, description="of stderr, in one life; then its end is kept")
    journal_mb: int = Field(4, ge=1, le=1024, description="of the journal, all its files together")
    restarts_max: int = Field(5, ge=1, le=100, description="in restarts_window_s; one more opens the breaker")
    restarts_window_s: float = Field(600.0, ge=1, le=86400)
    breaker_open_s: float = Field(60.0, ge=1, le=3600, description="no worker is started meanwhile")
    climb_s: float = Field(600.0, ge=1, le=86400, description="healthy time before a step up again")
    recycle_after_s: float = Field(10.0, ge=1, le=3600, description="idle over its memory cap for so long")


class BenchSettings(_Table):
    """What `forebay bench` needs beside its options."""

    api_key: SecretStr = Field(SecretStr(""), description="of the server that is measured")


class Settings(BaseSettings):
    """All of Forebay's settings. Unknown keys are refused with the nearest known name."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, env_ignore_empty=True
    )

    home: Path = Field(Path("~/.forebay"), description="models, logs and the run folder")
    model: str = Field("demo", min_length=1, description="a folder, a Hugging Face id, or demo")
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    log: LogSettings = LogSettings()
    trace: TraceSettings = TraceSettings()
    proxy: ProxySettings = ProxySettings()
    worker: WorkerSettings = WorkerSettings()
    admission: AdmissionSettings = AdmissionSettings()
    bench: BenchSettings = BenchSettings()
    lanes: tuple[LaneSettings, ...] = Field((INTERACTIVE, BATCH), description="the highest first")

    @model_validator(mode="after")
    def _lanes_agree(self) -> Self:
        check_lanes(self.lanes)
        reserved = sum(lane.reserved_slots for lane in self.lanes)
        if reserved >= max(2, self.worker.slots):
            raise LaneProblem(f"the lanes reserve {reserved} slots, of {self.worker.slots} in all")
        return self

    @property
    def home_folder(self) -> Path:
        return self.home.expanduser().absolute()

    @classmethod
    def load(cls, file: Path | None = None, **overrides: Any) -> "Settings":
        """Read file and environment, with overrides (None means unset) on top. Raises SettingsError."""
        _refuse_unknown_variables(os.environ)
        given = {key: value for key, value in overrides.items() if value is not None}
        try:
            return _reading(_read_toml(file))(**given)
        except ValidationError as problem:
            raise SettingsError(_explain(problem)) from problem
        except UnreadableSource as problem:
            raise SettingsError(f"a variable {_PREFIX}… isn't readable: {problem}") from problem


def _reading(file_values: dict[str, Any]) -> type[Settings]:
    """Return Settings whose sources are: what is passed in, then the environment, then the file."""

    class FromFile(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (the hook's signature)
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (likewise)
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, file_values)

    return FromFile


def _read_toml(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as problem:
        raise SettingsError(f"{file}: {problem.strerror}") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise SettingsError(f"{file}: {problem}") from problem


def _known_keys(table: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in table.model_fields.items():
        yield prefix + name
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _known_keys(kind, f"{prefix}{name}.")


def _nearest(key: str) -> str:
    nearest = difflib.get_close_matches(key, list(_known_keys(Settings)), n=1, cutoff=0.5)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def _refuse_unknown_variables(environment: Mapping[str, str]) -> None:
    known = set(_known_keys(Settings))
    for name in environment:
        if name.upper().startswith(_PREFIX):
            key = name[len(_PREFIX) :].lower().replace("__", ".")
            if key not in known:
                raise SettingsError(f"{name} sets no known setting{_nearest(key)}")


def _explain(problem: ValidationError) -> str:
    return "; ".join(_explain_one(error["type"], error["loc"], error["msg"]) for error in problem.errors())


def _explain_one(kind: str, place: tuple[int | str, ...], message: str) -> str:
    key = ".".join(str(part) for part in place)
    if kind == "extra_forbidden":
        plain = ".".join(part for part in place if isinstance(part, str))
        return f"{key} is no known setting{_nearest(plain)}"
    message = message.removeprefix("Value error, ")
    return f"{key}: {message}" if key else message


def child_environment(**extra: str) -> dict[str, str]:
    """Return this process's environment with `extra` on top, for a child process."""
    return {**os.environ, **extra}
