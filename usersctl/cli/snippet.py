"""snippet: prints files for systemd, cron, proxies and others, with the paths and addresses of this installation."""

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from string import Template
from textwrap import indent
from typing import Annotated, Self
from urllib.parse import urlsplit

from typer import Argument, Context, Option

from usersctl.cli.invocation import invocation
from usersctl.cli.proxies import (
    PORTS,
    TRIAL,
    Front,
    Names,
    application_at,
    balanced,
    daemon_at,
    header_names,
    port_of,
)
from usersctl.config import Settings
from usersctl.config.sources import Loaded
from usersctl.config.values import connectable_host, host_and_port, is_loopback
from usersctl.errors import Invalid
from usersctl.named import NamedTuple
from usersctl.store.conninfo import Conninfo

FOLDER = Path(__file__).parent.parent / "snippets"
NIGHTLY = "0 2 * * *"
DAEMON_ACCOUNT = "usersd"  # the system account of the daemon where the database has no other owner
HOMES = ("/home", "/root", "/run/user")  # the folders that ProtectHome hides

EXAMPLE_APP = "http://app:80"  # in compose.yaml
COMPOSE_KEYS = ('server.trustedProxies = ["10.89.231.0/28"]', "[forward.headers]")

# Where the files go. Other names than those of the members: in the class, a member hides a constant of its name.
SERVICE_AT, SOCKET_AT = "/etc/systemd/system/usersd.service", "/etc/systemd/system/usersd.socket"
INSTANCES_AT = "/etc/systemd/system/usersd@.service"
CLEANUP_AT, TIMER_AT = "/etc/systemd/system/users-cleanup.service", "/etc/systemd/system/users-cleanup.timer"
NGINX_AT = "/etc/nginx/sites-enabled/users.conf"
FILTER_AT, JAIL_AT = "/etc/fail2ban/filter.d/usersd.conf", "/etc/fail2ban/jail.d/usersd.conf"

ENABLE = "systemctl enable --now"
RELOAD = f"systemctl daemon-reload && {ENABLE}"
START_TIMER = f"{RELOAD} users-cleanup.timer"
RESTART_WITH_SOCKET = f"systemctl daemon-reload && systemctl stop usersd && {ENABLE} usersd.socket usersd"
RELOAD_FAIL2BAN = "systemctl reload fail2ban"

# The first line of the unit of several daemons on one machine.
INSTANCES = f"systemd unit of several daemons, each named by its port, such as usersd@8081: {INSTANCES_AT}"

# Characters that need no quoting in any of the generated files, and those that need nothing but quotation marks.
_PLAIN, _QUOTABLE = re.compile(r"[\w/.,@+=~\[\]-]*"), re.compile(r"[\w/.,@+=~\[\] -]*")


class Snippet(StrEnum):
    file: str  # in FOLDER
    place: str
    then: str  # the command that puts it in force; empty where the program notices the file by itself

    def __new__(cls, name: str, file: str, place: str, then: str) -> Self:
        member = str.__new__(cls, name)
        member._value_, member.file, member.place, member.then = name, file, place, then
        return member

    # fmt: off
    SYSTEMD    = "systemd",    "usersd.service",        SERVICE_AT, f"{RELOAD} usersd"
    INSTANCES  = "instances",  "usersd.service",        INSTANCES_AT, f"{RELOAD} usersd@8081 usersd@8082"
    SOCKET     = "socket",     "usersd.socket",         SOCKET_AT,  RESTART_WITH_SOCKET
    TIMER      = "timer",      "users-cleanup.timer",   TIMER_AT,   f"usersctl snippet cleanup >{CLEANUP_AT} && {START_TIMER}"
    CLEANUP    = "cleanup",    "users-cleanup.service", CLEANUP_AT, f"usersctl snippet timer >{TIMER_AT} && {START_TIMER}"
    BACKUP     = "backup",     "users-backup.sh",       "users-backup.sh", "sudo sh users-backup.sh"
    CRON       = "cron",       "users.cron",            "/etc/cron.d/users", ""
    NGINX      = "nginx",      "nginx.conf",            NGINX_AT,   "nginx -t && systemctl reload nginx"
    CADDY      = "caddy",      "Caddyfile",             "/etc/caddy/Caddyfile", "systemctl reload caddy"
    TRAEFIK    = "traefik",    "traefik.yml",           "the folder of Traefik's file provider", ""
    POSTGRES   = "postgres",   "postgres.toml",         "/etc/users/users.toml", "usersctl config check && usersctl db init"
    DOCKERFILE = "dockerfile", "Dockerfile",            "Dockerfile, in a checkout", "docker build --tag usersctl ."
    COMPOSE    = "compose",    "compose.yaml",          "compose.yaml, in a checkout", "docker compose up --build --detach"
    FAIL2BAN   = "fail2ban",   "fail2ban-filter.conf",  FILTER_AT,  f"usersctl snippet jail >{JAIL_AT} && {RELOAD_FAIL2BAN}"
    JAIL       = "jail",       "fail2ban-jail.conf",    JAIL_AT,    f"usersctl snippet fail2ban >{FILTER_AT} && {RELOAD_FAIL2BAN}"
    # fmt: on


PROXIES = (Snippet.NGINX, Snippet.CADDY, Snippet.TRAEFIK)


def snippet(
    ctx: Context,
    name: Annotated[Snippet, Argument(metavar="NAME", help="One of the names above.")],
    app: Annotated[
        str | None,
        Option(
            "--app", metavar="ADDRESS", help="For a proxy: the application behind it, HOST:PORT or a URL."
        ),
    ] = None,
    daemon: Annotated[
        list[str] | None,
        Option(metavar="HOST:PORT", help="For nginx and caddy: one of several daemons. Repeatable."),
    ] = None,
    header: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=KIND",
            help="For a proxy: one more header with the id, email, name, role or groups of the user, or with how they "
            "signed in (auth), beside those of forward.headers. Repeatable.",
        ),
    ] = None,
) -> None:
    """Print a configuration file for systemd, cron or a proxy.

    For the daemon: systemd, socket; for several on one machine: instances. For a database on a server: postgres. For the
    cleanup: cron; or timer and cleanup. For backups each night: backup. For a proxy in front: nginx, caddy, traefik. For
    containers: dockerfile, compose. Against guessed passwords: fail2ban and jail.
    """
    if name not in PROXIES and app:
        raise Invalid("--app is for nginx, caddy and traefik only")
    if name not in (*PROXIES, Snippet.COMPOSE) and header:
        raise Invalid("--header is for nginx, caddy, traefik and compose only")
    if name not in (Snippet.NGINX, Snippet.CADDY) and daemon:
        raise Invalid("--daemon is for nginx and caddy only")
    run = invocation(ctx)
    daemons = tuple(map(daemon_at, daemon or ()))
    site = Site(run.loaded, this_command(), app and application_at(app), header_names(header or ()), daemons)
    if name in PROXIES:
        site.front.refuse_address_of_daemon()
    text = write(name, site.words())
    if run.out.json:
        run.out.write_json({"place": name.place, "then": name.then, "text": text})
        return
    run.out.data(text.removesuffix("\n"))
    run.out.note(f"Put it into: {name.place}")
    if name.then:
        run.out.note(f"Then: {name.then}")
    if name in PROXIES and not site.settings.trusted_proxies:
        proxy = "unix" if site.settings.socket else "127.0.0.1"
        run.out.note(
            f'Without server.trustedProxies = ["{proxy}"], or the address of the proxy, the daemon believes nothing that it says: '
            "no page is public, and no cookie reaches the application"
        )
    if site.tells_no_database and "${options}" in (FOLDER / name.file).read_text("utf-8"):
        source = run.loaded.origins["database"].source
        run.out.note(
            f"It names no database, which comes from {source}: set it there, or in the configuration"
        )


def write(snippet: Snippet, words: dict[str, str]) -> str:
    if snippet is Snippet.TRAEFIK and words["upstream"].startswith("unix:"):
        raise Invalid("Traefik cannot use a Unix socket", hint="configure server.host and server.port")
    if snippet is Snippet.INSTANCES:
        words = words | {"unit": INSTANCES, "snippet": snippet, "instance": " --port %i"}
    if snippet is Snippet.CADDY:
        words = words | {"upstream": words["upstream"].replace("unix:", "unix/")}
    return Template((FOLDER / snippet.file).read_text("utf-8")).substitute(words)


class Site(NamedTuple):
    """This installation, as the snippets describe it."""

    loaded: Loaded
    command: Sequence[str]  # usersctl as other programs call it
    app: str | None = None  # the origin of the application behind a proxy
    more_names: Names = ()  # of headers for it
    daemons: tuple[str, ...] = ()  # behind a proxy, if this is one of several

    @property
    def settings(self) -> Settings:
        return self.loaded.settings

    @property
    def database_file(self) -> Path:
        """Where it would be, if it is on a server."""
        database = self.settings.database
        return database if isinstance(database, Path) else self.settings.folder / "users.db"

    @property
    def front(self) -> Front:
        """The proxy, at baseUrl if that is configured: its default is the address of the daemon itself."""
        url = TRIAL if self.loaded.has_default_address else self.settings.base_url
        return Front(self.settings, url, self.app, self.more_names)

    def words(self) -> dict[str, str]:
        """The value of every ${name} in the snippets."""
        self._refuse_unquotable()
        settings = self.settings
        owner, on_server = owner_of(self.database_file), isinstance(settings.database, Conninfo)
        access = f"SocketUser={owner}\nSocketMode={settings.socket_mode}\n"
        words = {
            "unit": f"systemd unit of the daemon: {SERVICE_AT}",
            "snippet": Snippet.SYSTEMD,
            "instance": "",
            "usersctl": " ".join(map(quoted, self.command)),
            "options": self.options,
            "serve": f"serve --base-url {settings.base_url}" if self._is_elsewhere("baseUrl") else "serve",
            "state_dir": quoted(settings.folder),
            "base_url": settings.base_url,
            "port": str(settings.port),
            "listen": self.listen,
            "socket_access": access if settings.socket else "",
            "upstream": " ".join(self.daemons) or self.upstream,
            "source": "'.[postgres]'" if on_server else ".",
            "private_network": "no" if on_server else "yes",
            "address_families": "AF_INET AF_INET6 " * on_server + "AF_UNIX",
            "user": owner,
            "schedule": settings.cleanup_schedule or NIGHTLY,
            "folders": "\n".join([self.state_folder_line, f"ProtectHome={self.protect_home}"]),
            "socket_folder": self.socket_folder_lines,
            "missing_folders": self.missing_folders(owner),
            "jail_ports": self.jail_ports,
        } | self.front.words()
        words |= balanced(self.daemons or (self.upstream,))
        return words | self._in_containers(words)

    @property
    def jail_ports(self) -> str:
        """What fail2ban closes: the ports of the web, and the one where visitors come."""
        port = port_of(urlsplit(self.settings.base_url))
        return "http,https" if port in PORTS.values() else f"http,https,{port}"

    def _in_containers(self, words: dict[str, str]) -> dict[str, str]:
        """The files inside compose.yaml."""
        front = Front(self.settings, self.front.url, EXAMPLE_APP, self.more_names, in_container=True)
        caddy = write(Snippet.CADDY, words | front.words() | {"upstream": f"usersd:{self.settings.port}"})
        here = "127.0.0.1:" * is_loopback(front.address.hostname or "")
        ports = [80, 443] if front.https and front.port == 443 else [front.port]
        headers = [f'"{name}" = "{kind}"' for name, kind in front.names]
        inline = {
            "compose_users": "\n".join([f'baseUrl = "{front.url}"', *COMPOSE_KEYS, *headers]),
            # Without the comment at the top, which is for a file of its own.
            "compose_caddy": caddy.partition("\n\n")[2],
            "compose_dockerfile": write(Snippet.DOCKERFILE, words).partition("\n\n")[2],
        }
        # Compose reads $ as the beginning of a variable.
        texts = {name: indent(text.strip("\n").replace("$", "$$"), " " * 8) for name, text in inline.items()}
        return texts | {"compose_ports": ", ".join(f'"{here}{port}:{port}"' for port in ports)}

    def _refuse_unquotable(self) -> None:
        settings = self.settings
        problem = "has a character that other programs may interpret"
        for value in (*self.command, self.loaded.file, self.database_file, settings.socket):
            allowed, blanks = (_PLAIN, "") if value is settings.socket else (_QUOTABLE, " and blanks")
            if not allowed.fullmatch(str(value or "")):
                hint = f"move it to a path of letters, digits and / . _ - + = @ ,{blanks}"
                raise Invalid(f"{str(value)!r} {problem}", hint=hint)
        if not _PLAIN.fullmatch(settings.host.replace(":", "")):
            raise Invalid(f"server.host {settings.host!r} {problem}", hint="choose an address without it")

    def _is_elsewhere(self, key: str) -> bool:
        """The value of the key comes from the command line, the environment or a default for this user, and not from the file."""
        origin = self.loaded.origins.get(key)
        return origin is not None and origin.source != str(self.loaded.file)

    @property
    def options(self) -> str:
        options = ""
        if self.loaded.file:
            options += f" --config {quoted(self.loaded.file)}"
        if self._is_elsewhere("database") and not self.tells_no_database:
            options += f" --db {quoted(self.settings.database)}"
        return options

    @property
    def tells_no_database(self) -> bool:
        """A conninfo of the environment, which may have a password, is not for a command line."""
        return self._is_elsewhere("database") and isinstance(self.settings.database, Conninfo)

    @property
    def listen(self) -> str:
        if self.settings.socket:
            return str(self.settings.socket)
        host = self.settings.host.strip("[]")
        if host == "localhost":
            host = "127.0.0.1"
        return host_and_port(host, self.settings.port)

    @property
    def upstream(self) -> str:
        """The daemon's address for the proxy."""
        if self.settings.socket:
            return f"unix:{self.settings.socket}"
        return host_and_port(connectable_host(self.settings.host), self.settings.port)

    @property
    def state_folder_line(self) -> str:
        folder = self.settings.folder
        if folder.is_relative_to("/var/lib") and folder != Path("/var/lib"):
            return f"StateDirectory={quoted(folder.relative_to('/var/lib'))}\nStateDirectoryMode=0700"
        return f"ReadWritePaths={quoted(folder)}"

    @property
    def protect_home(self) -> str:
        settings = self.settings
        paths = [settings.mailer_templates, settings.logo, settings.stylesheet]
        paths += [Path(settings.locale), settings.socket]
        command = Path(self.command[0])
        program = command.resolve()
        # The command may be a link, and the Python of its environment stand elsewhere, as those of pyenv and uv do.
        paths += [command, program, program.with_name("python").resolve()]
        paths += [settings.folder, self.loaded.file]
        at_home = any(path and path.is_relative_to(home) for path in paths for home in HOMES)
        return "read-only" if at_home else "yes"

    @property
    def socket_folder(self) -> Path | None:
        """The folder of the socket, unless it is that of the database."""
        socket = self.settings.socket
        return socket.parent if socket and socket.parent != self.settings.folder else None

    @property
    def socket_folder_lines(self) -> str:
        folder = self.socket_folder
        if folder is None:
            return ""
        if folder.is_relative_to("/run") and folder != Path("/run"):
            # Preserved, because a socket of systemd may be in it.
            return f"RuntimeDirectory={folder.relative_to('/run')}\nRuntimeDirectoryPreserve=yes\n"
        return f"ReadWritePaths={folder}\n"

    def missing_folders(self, owner: str) -> str:
        """A comment with the commands that create the folders that systemd does not create, but needs."""
        needed = [
            ("0700", self.settings.folder, self.state_folder_line),
            ("0755", self.socket_folder, self.socket_folder_lines),
        ]
        commands = "".join(
            f"#   install -d -m {mode} -o {owner} {quoted(folder)}\n"
            for mode, folder, line in needed
            if folder is not None and line.startswith("ReadWritePaths=") and not os.access(folder, os.F_OK)
        )
        return commands and f"# Create these folders first:\n{commands}"


def quoted(path: object) -> str:
    """As systemd and a shell read it: both know these marks, and no path here has a character that acts within them."""
    return f'"{path}"' if " " in str(path) else str(path)


def this_command() -> tuple[str, ...]:
    """The path of usersctl: as it was called, or beside this Python; else `python -m usersctl`."""
    for path in (Path(sys.argv[0]).absolute(), Path(sys.executable).with_name("usersctl")):
        if path.name == "usersctl" and path.is_file():
            return (str(path),)
    return (sys.executable, "-m", "usersctl")


def owner_of(database: Path) -> str:
    """The owner of the database or of its nearest folder; in place of root, the daemon's own account."""
    for path in (database, *database.parents):
        with suppress(OSError, KeyError):
            owner = path.owner()
            return DAEMON_ACCOUNT if owner == "root" else owner
    return DAEMON_ACCOUNT
