"""`forebay install` and `forebay uninstall`: proxy and worker as services that start by themselves."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops.command import Config, Port, load, plain_errors
from shared.errors import ModelError, SettingsError

if TYPE_CHECKING:
    from ops.services.install import Installer
    from ops.services.installed import User
    from ops.services.jobs import Whole
    from ops.services.keeper import ServiceKeeper
    from shared.config import Settings

PANEL = "Orders to what runs"
_PATIENCE_GRACE_S = 30.0
_UP_S = 20.0
_LOOK_S = 0.25

System = Annotated[
    bool,
    typer.Option("--system/--user", help="For the whole machine, as root; or for this user, as by default."),
]
RunAs = Annotated[
    str | None,
    typer.Option("--run-as", metavar="NAME", help="With --system: whom they run as; unsaid, home's owner."),
]
Model = Annotated[
    str | None, typer.Option("--model", help="A folder, a Hugging Face id like org/name, or demo.")
]


def add_to(app: typer.Typer) -> None:
    """Give the commands of this file to the program."""
    app.command(rich_help_panel=PANEL)(install)
    app.command(rich_help_panel=PANEL)(uninstall)


def install(
    *,
    system: System = False,
    run_as: RunAs = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print every file and command, and change nothing.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Write over files that were edited by hand.")
    ] = False,
    config: Config = None,
    model: Model = None,
    port: Port = None,
) -> None:
    """Have launchd (macOS) or systemd (Linux) start proxy and worker by themselves, and keep them up.

    Said again after settings have changed, it writes the services anew and loads them again.
    """
    with plain_errors():
        settings = load(config, {"model": model, "port": port})
        from ops.services.install import plan_lines  # noqa: PLC0415 (--help must not wait for it)
        from ops.services.installed import home_of, keeper_for, require_keeper  # noqa: PLC0415 (likewise)
        from ops.services.jobs import jobs  # noqa: PLC0415 (likewise)

        user = _who(settings, run_as, system=system)
        home = home_of(settings.home, user)
        keeper = keeper_for(settings.port, None if system else user)
        files = [keeper.file(job) for job in jobs(_whole(settings, home, user, config, model, system=system))]
        if dry_run:
            for line in plan_lines(keeper, files, [home, home / "logs"]):
                typer.echo(line)
            return
        require_keeper()
        _refuse_without_root(system=system)
        _refuse_what_would_not_start(
            settings, home, user, fresh=not any(file.path.exists() for file in files)
        )
        _make_folders(home, user)
        typer.echo(_installer(keeper, settings).install(files, force=force))
        _say_how_it_goes(keeper, settings, home)


def uninstall(
    *,
    system: System = False,
    force: Annotated[
        bool, typer.Option("--force", help="Remove files of ours that were edited by hand.")
    ] = False,
    config: Config = None,
    port: Port = None,
) -> None:
    """End the services of a port, after what runs has finished, and remove their files; home stays."""
    with plain_errors():
        settings = load(config, {"port": port})
        from ops.services.installed import keeper_for, require_keeper, this_user  # noqa: PLC0415 (likewise)

        require_keeper()
        _refuse_without_root(system=system)
        keeper = keeper_for(settings.port, None if system else this_user())
        typer.echo(_installer(keeper, settings).uninstall(force=force))


def _installer(keeper: "ServiceKeeper", settings: "Settings") -> "Installer":
    from ops.screen import Screen  # noqa: PLC0415 (--help must not wait for it)
    from ops.services.install import Installer, run_command  # noqa: PLC0415 (likewise)
    from shared.clock import SystemClock  # noqa: PLC0415 (likewise)

    patience_s = settings.proxy.drain_s + _PATIENCE_GRACE_S
    return Installer(
        keeper, run_command, screen=Screen(), clock=SystemClock(), sleep=time.sleep, patience_s=patience_s
    )


def _who(settings: "Settings", run_as: str | None, *, system: bool) -> "User":
    """Return whom the services run as; SettingsError if that isn't clear, or not to be had."""
    from ops.services.installed import owner_of, this_user, user_named  # noqa: PLC0415 (see above)

    if not system:
        if run_as is not None:
            raise SettingsError("--run-as goes with --system; without it services run as who installs them")
        return this_user()
    if run_as is not None:
        return user_named(run_as)
    owner = owner_of(settings.home_folder)
    if owner is None or owner.uid == 0:
        raise SettingsError(f"whom shall they run as? {settings.home_folder} doesn't say it: --run-as NAME")
    return owner


def _whole(
    settings: "Settings", home: Path, user: "User", config: Path | None, model: str | None, *, system: bool
) -> "Whole":
    from ops.services.jobs import Whole, digest_of  # noqa: PLC0415 (see above)
    from shared.config import child_environment  # noqa: PLC0415 (likewise)

    options = [f"--config={config.absolute()}"] if config is not None else []
    if model is not None:
        folder = Path(model).expanduser()
        options.append(f"--model={folder.absolute() if folder.is_dir() else model}")
    return Whole(
        python=sys.executable,
        home=home,
        port=settings.port,
        drain_s=settings.proxy.drain_s,
        options=tuple(options),
        variables=child_environment(),
        settings=digest_of(settings.model_dump_json()),
        user=user.name if system else None,
        user_home=user.home if system else None,
    )


def _refuse_without_root(*, system: bool) -> None:
    if system and os.geteuid() != 0:
        raise SettingsError("--system needs root: say it with sudo; --dry-run doesn't")


def _refuse_what_would_not_start(settings: "Settings", home: Path, user: "User", *, fresh: bool) -> None:
    """Raise SettingsError or ModelError for what would have the services end as soon as they begin."""
    from ops import foreground_lock  # noqa: PLC0415 (see above)
    from ops.doctor.model_reading import locate  # noqa: PLC0415 (likewise)
    from proxy.authenticate import refuse_open_door  # noqa: PLC0415 (likewise)
    from proxy.keys import KEY_FILE_NAME, KeyFile  # noqa: PLC0415 (likewise)
    from shared.run_folder import RunFolder  # noqa: PLC0415 (likewise)

    key_file = home / KEY_FILE_NAME
    if user.uid == os.getuid():  # A key file of somebody else's is refused by whoever reads it.
        refuse_open_door(settings.host, KeyFile(key_file).read())
    elif not key_file.exists():
        refuse_open_door(settings.host, ())
    if locate(settings.model, home).folder is None:
        as_user = "" if user.uid == os.getuid() else f" as {user.name}"
        raise ModelError(
            f"{settings.model} isn't on this machine; `forebay fetch`{as_user} brings what it can"
        )
    run_folder = RunFolder(home, settings.port)
    locks = (run_folder.proxy_lock, run_folder.supervisor_lock)
    if foreground_lock.holder(run_folder) is not None or (fresh and any(map(foreground_lock.is_held, locks))):
        raise SettingsError(
            f"Forebay runs already for home {home} and port {settings.port}: `forebay stop` first"
        )


def _make_folders(home: Path, user: "User") -> None:
    """Make home and its logs, owned by whom the services run as."""
    for folder in (home, home / "logs"):
        if not folder.is_dir():
            try:
                folder.mkdir(mode=0o700, parents=True)
                if user.uid != os.getuid():
                    os.chown(folder, user.uid, user.gid)
            except OSError as problem:
                raise SettingsError(f"{folder}: {problem.strerror}") from problem


def _say_how_it_goes(keeper: "ServiceKeeper", settings: "Settings", home: Path) -> None:
    """Wait a little for the gateway to answer, and say what else there is to know, on stderr."""
    from ops.gateway import Gateway, GatewayAbsent  # noqa: PLC0415 (see above)
    from ops.screen import Screen  # noqa: PLC0415 (likewise)
    from shared.clock import SystemClock  # noqa: PLC0415 (likewise)

    screen, clock = Screen(), SystemClock()
    gateway = Gateway(settings.model_copy(update={"home": home}))
    until_s = clock.now() + _UP_S
    told = f"no gateway answers after {_UP_S:g} s: look at its log, and at `forebay doctor`"
    with screen.step("Waiting for the gateway to answer") as step:
        while clock.now() < until_s:
            try:
                told = f"the gateway answers; its worker is {gateway.status().worker.status}"
                break
            except GatewayAbsent:
                step.tick()
                time.sleep(_LOOK_S)
    screen.say(told)
    for line in keeper.advice():
        screen.say(line)
