"""snippet: what other programs need to run this installation or to stand in front of it, with its own paths and addresses."""

import os
import re
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from string import Template
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

import typer

from usersctl.cli.questions import invocation
from usersctl.config import Settings
from usersctl.config.sources import Loaded
from usersctl.config.values import connectable_host, host_and_port
from usersctl.errors import Invalid

FOLDER = Path(__file__).parent.parent / "snippets"
NIGHTLY = "0 2 * * *"
WITHOUT_AN_OWNER = "usersd"  # the account that the daemon gets of its own
HOMES = ("/home", "/root", "/run/user")  # what ProtectHome hides
UNITS = "/etc/systemd/system"
RELOAD = "systemctl daemon-reload && systemctl enable --now"

# What has a meaning of its own in none of these files; for the rest, each would need a way of quoting of its own.
_PLAIN = re.compile(r"[\w/.,@+=~\[\]-]*")


class Name(StrEnum):
    SYSTEMD = "systemd"
    SOCKET = "socket"
    TIMER = "timer"
    CLEANUP = "cleanup"
    CRON = "cron"
    NGINX = "nginx"
    CADDY = "caddy"
    TRAEFIK = "traefik"
    DOCKERFILE = "dockerfile"
    FAIL2BAN = "fail2ban"
    JAIL = "jail"


class Snippet(NamedTuple):
    file: str  # in FOLDER
    place: str
    then: str  # what it takes to be in force; nothing where the program looks by itself


SNIPPETS = {
    Name.SYSTEMD: Snippet("usersd.service", f"{UNITS}/usersd.service", f"{RELOAD} usersd"),
    Name.SOCKET: Snippet(
        "usersd.socket",
        f"{UNITS}/usersd.socket",
        "systemctl daemon-reload && systemctl stop usersd && systemctl enable --now usersd.socket usersd",
    ),
    Name.TIMER: Snippet(
        "users-cleanup.timer",
        f"{UNITS}/users-cleanup.timer",
        f"usersctl snippet cleanup >{UNITS}/users-cleanup.service && {RELOAD} users-cleanup.timer",
    ),
    Name.CLEANUP: Snippet(
        "users-cleanup.service",
        f"{UNITS}/users-cleanup.service",
        f"usersctl snippet timer >{UNITS}/users-cleanup.timer && {RELOAD} users-cleanup.timer",
    ),
    Name.CRON: Snippet("users.cron", "/etc/cron.d/users", ""),
    Name.NGINX: Snippet(
        "nginx.conf", "/etc/nginx/sites-enabled/users.conf", "nginx -t && systemctl reload nginx"
    ),
    Name.CADDY: Snippet("Caddyfile", "/etc/caddy/Caddyfile", "systemctl reload caddy"),
    Name.TRAEFIK: Snippet("traefik.yml", "the folder of Traefik's file provider", ""),
    Name.DOCKERFILE: Snippet("Dockerfile", "Dockerfile, in a checkout", "docker build --tag usersctl ."),
    Name.FAIL2BAN: Snippet(
        "fail2ban-filter.conf",
        "/etc/fail2ban/filter.d/usersd.conf",
        "usersctl snippet jail >/etc/fail2ban/jail.d/usersd.conf && systemctl reload fail2ban",
    ),
    Name.JAIL: Snippet(
        "fail2ban-jail.conf",
        "/etc/fail2ban/jail.d/usersd.conf",
        "usersctl snippet fail2ban >/etc/fail2ban/filter.d/usersd.conf && systemctl reload fail2ban",
    ),
}


def register(app: typer.Typer) -> None:
    app.command(
        "snippet",
        rich_help_panel="Operation",
        epilog="Example: usersctl snippet systemd >/etc/systemd/system/usersd.service",
    )(snippet)


def snippet(
    ctx: typer.Context,
    name: Annotated[Name, typer.Argument(metavar="NAME", help="One of these.")],
) -> None:
    """Print what systemd, cron and proxies need to work with it.

    For the daemon: systemd, socket. For the cleanup: cron; or timer and cleanup. For a proxy in front: nginx, caddy,
    traefik. For an image: dockerfile. Against guessed passwords: fail2ban and jail.
    """
    run = invocation(ctx)
    text, told = write(name, words_of(run.loaded, this_command())), SNIPPETS[name]
    if run.out.json:
        run.out.write_json({"place": told.place, "then": told.then, "text": text})
        return
    run.out.data(text.removesuffix("\n"))
    run.out.note(f"Put it into: {told.place}" + (f"\nThen: {told.then}" if told.then else ""))


def write(name: Name, words: dict[str, str]) -> str:
    if name is Name.TRAEFIK and words["upstream"].startswith("unix:"):
        raise Invalid(
            "Traefik reaches no Unix socket", hint="let the daemon listen at server.host and server.port"
        )
    if name is Name.CADDY:
        words = words | {"upstream": words["upstream"].replace("unix:", "unix/")}
    return Template((FOLDER / SNIPPETS[name].file).read_text("utf-8")).substitute(words)


def words_of(loaded: Loaded, usersctl: Sequence[str]) -> dict[str, str]:
    """What the texts have a ${name} for."""
    settings, config = loaded.settings, loaded.file
    database, socket = settings.database, settings.socket
    for each in (*usersctl, config, database, socket, settings.host.replace(":", "")):
        if not _PLAIN.fullmatch(str(each or "")):
            raise Invalid(
                f"{str(each)!r} has a character that other programs may take for one of their own",
                hint="move it to a path of letters, digits and / . _ - + = @ ,",
            )
    told_by = loaded.origins["database"].source
    options = (f" --config {config}" if config else "") + (
        f" --db {database}" if told_by != str(config) else ""
    )
    by_hand = loaded.origins.get("baseUrl")
    told_elsewhere = by_hand is not None and by_hand.source != str(config)
    host, owner = settings.host.strip("[]"), owner_of(database)
    site = urlsplit(settings.base_url)
    name = f"[{site.hostname}]" if ":" in (site.hostname or "") else site.hostname or ""
    # That of http is the daemon's own: in front of it stands https.
    site_port = site.port if settings.https else None
    return {
        "usersctl": " ".join(usersctl),
        "options": options,
        "serve": "serve" + (f" --base-url {settings.base_url}" if told_elsewhere else ""),
        "state_dir": str(database.parent),
        "base_url": settings.base_url,
        "server_name": name,
        "site": f"{name}:{site_port}" if site_port else name,
        "site_port": str(site_port or 443),
        "port": str(settings.port),
        "listen": str(socket)
        if socket
        else host_and_port("127.0.0.1" if host == "localhost" else host, settings.port),
        "socket_access": f"SocketUser={owner}\nSocketMode={settings.socket_mode}\n" if socket else "",
        "upstream": f"unix:{socket}" if socket else host_and_port(connectable_host(host), settings.port),
        "user": owner,
        "schedule": settings.cleanup_schedule or NIGHTLY,
        "folders": _folders(settings, Path(usersctl[0]), config),
        "socket_folder": _socket_folder(settings),
        "missing_folders": _missing_folders(settings, owner),
    }


def this_command() -> tuple[str, ...]:
    """As it was called, where that tells; else the one beside this Python."""
    called = Path(sys.argv[0]).absolute()
    beside = Path(sys.executable).with_name("usersctl")
    found = next((each for each in (called, beside) if each.name == "usersctl" and each.is_file()), None)
    return (str(found),) if found else (sys.executable, "-m", "usersctl")


def owner_of(database: Path) -> str:
    """Whose the database is, or the folder that it will be in; where that is root's, the daemon's own account."""
    for path in (database, *database.parents):
        try:
            owner = path.owner()
        except (OSError, KeyError):
            continue
        return WITHOUT_AN_OWNER if owner == "root" else owner
    return WITHOUT_AN_OWNER


def _folders(settings: Settings, *read: Path | None) -> str:
    """The lines of a unit that say which folders it sees, and where it writes."""
    state = settings.database.parent
    if state.is_relative_to("/var/lib") and state != Path("/var/lib"):
        lines = [f"StateDirectory={state.relative_to('/var/lib')}", "StateDirectoryMode=0700"]
    else:
        lines = [f"ReadWritePaths={state}"]
    seen = (state, *read, settings.mailer_templates, settings.logo, settings.stylesheet)
    at_home = any(each and each.is_relative_to(home) for each in seen for home in HOMES)
    return "\n".join([*lines, f"ProtectHome={'read-only' if at_home else 'yes'}"])


def _socket_folder(settings: Settings) -> str:
    folder = settings.socket.parent if settings.socket else None
    if folder is None or folder == settings.database.parent:
        return ""
    if folder.is_relative_to("/run") and folder != Path("/run"):
        # It stays when the daemon ends, for a socket of systemd's may be in it.
        return f"RuntimeDirectory={folder.relative_to('/run')}\nRuntimeDirectoryPreserve=yes\n"
    return f"ReadWritePaths={folder}\n"


def _missing_folders(settings: Settings, owner: str) -> str:
    """What systemd does not make, and fails without."""
    lines = []
    if "StateDirectory=" not in _folders(settings):
        lines.append((settings.database.parent, "0700"))
    if settings.socket is not None and _socket_folder(settings).startswith("ReadWritePaths="):
        lines.append((settings.socket.parent, "0755"))
    made = "".join(
        f"#   install -d -m {mode} -o {owner} {folder}\n"
        for folder, mode in lines
        if not os.access(folder, os.F_OK)
    )
    return f"# What it writes into, and is not there yet:\n{made}" if made else ""
