"""Turns what was typed into an order: which server, model and key, and what may be done to it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ops.bench.death import killing
from ops.bench.peer import model_folder
from ops.bench.plan import Plan
from ops.bench.session import SERVER, Order
from ops.bench.target import Address, Target, first_model
from ops.load.plan import run
from shared.config import Settings
from shared.errors import SettingsError
from shared.model_folder import ModelFolder

_KEY_CHARS_MAX: Final = 4096
_ANYWHERE: Final = ("0.0.0.0", "::", "")  # noqa: S104 (nothing is bound here: it is what others bound)


@dataclass(frozen=True, slots=True)
class Typed:
    """The options that say what is measured. An empty `url` is the local gateway."""

    url: str
    model: str | None
    key: str | None
    key_file: Path | None
    ignore_eos: bool
    peer: bool
    kill_pid: int | None


def order(plan: Plan, typed: Typed, settings: Settings) -> Order:
    """Return the order; SettingsError or OrderFailed says what of it can't be."""
    address = Address.read(typed.url or local_url(settings))
    if typed.kill_pid is not None and "death" not in plan.works:
        raise SettingsError("--kill-worker-pid goes with --scenario death, which has to be asked for")
    key = read_key(typed, settings)
    folder = model_folder(typed.model, settings.home_folder) if typed.peer else None
    kill = killing(address, typed.kill_pid, settings_of(address, settings)) if "death" in plan.works else None
    target = Target(
        SERVER,
        address,
        served_name(typed.model, folder) or run(first_model(address, key)),
        key,
        {"ignore_eos": True} if typed.ignore_eos else {},
    )
    log = settings.home_folder / "logs" / "bench-mlx_lm-server.log"
    if folder is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
    return Order(plan, target, peer_folder=folder, peer_log=log, kill=kill)


def local_url(settings: Settings) -> str:
    """Return where the gateway of these settings listens, for somebody on the same machine."""
    host = "127.0.0.1" if settings.host in _ANYWHERE else settings.host
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def settings_of(address: Address, settings: Settings) -> Settings:
    """Return the settings of the gateway at this address: the same home, its own port."""
    port = urlsplit(address.api).port
    return settings if port is None else settings.model_copy(update={"port": port})


def served_name(model: str | None, folder: ModelFolder | None) -> str | None:
    """Return by which name a server knows the model: a folder's is in its files."""
    if folder is not None:
        return folder.name
    if model is not None and Path(model).expanduser().is_dir():
        return ModelFolder.read(Path(model).expanduser()).name
    return model


def read_key(typed: Typed, settings: Settings) -> str | None:
    """Return the key from the option, the file or the setting, in this order. SettingsError if it is none."""
    if typed.key and typed.key_file:
        raise SettingsError("--api-key and --api-key-file: one of them")
    key = typed.key or settings.bench.api_key.get_secret_value()
    if typed.key_file is not None:
        try:
            with typed.key_file.open(encoding="utf-8") as file:
                key = file.read(_KEY_CHARS_MAX + 1).strip()
        except (OSError, UnicodeDecodeError) as problem:
            raise SettingsError(f"{typed.key_file}: no key can be read from it") from problem
        if not key:
            raise SettingsError(f"{typed.key_file} is empty")
    if len(key) > _KEY_CHARS_MAX or not key.isascii() or not key.isprintable() or " " in key:
        raise SettingsError("the API key has characters that no key has")
    return key or None
