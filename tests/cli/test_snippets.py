"""`usersctl snippet`: configuration files for other programs, tried with these programs where they are installed."""

import configparser
import json
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import pytest
import yaml
from support.commands import PASSWORD, USERSCTL, Command
from support.daemons import serving, wait_for
from support.proxies import needed

from usersctl.cli.options import take
from usersctl.cli.proxies import application_at, header_names
from usersctl.cli.snippet import FOLDER, Site, Snippet, owner_of, write
from usersctl.cli.tree import command_tree
from usersctl.config import Settings
from usersctl.config.sources import Loaded, Origin, load
from usersctl.errors import Invalid

ROOT = Path(__file__).parents[2]
DAEMON = ROOT / "daemon"

# The installation that the files in daemon/ describe: the command in a virtual environment, a configuration file with
# baseUrl and database, and a system account for the daemon.
FILE = Path("/etc/users/users.toml")
USUAL = Loaded(
    Settings(database=Path("/var/lib/users/users.db"), base_url="https://accounts.example.com"),
    FILE,
    {"database": Origin(str(FILE), ""), "baseUrl": Origin(str(FILE), "")},
)
COMMAND = ("/opt/usersctl/bin/usersctl",)
IN_THE_CHECKOUT = (Snippet.SYSTEMD, Snippet.SOCKET, Snippet.TIMER, Snippet.CLEANUP, Snippet.CRON)


def for_the_usual(name: Snippet) -> str:
    return write(
        name, Site(USUAL, COMMAND).words() | {"user": "usersd"}
    )  # whoever owns this machine's /var/lib/users


def unit_of(text: str) -> configparser.ConfigParser:
    """Parses a unit; of several lines for a key, the last counts."""
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    return unit


# --- the texts ---


@pytest.mark.parametrize("name", IN_THE_CHECKOUT)
def test_the_files_in_daemon_are_generated_from_the_snippets(name: Snippet) -> None:
    assert (DAEMON / name.file).read_text("utf-8") == for_the_usual(name)


def test_every_file_in_daemon_comes_from_a_snippet() -> None:
    others = {"users.example.toml"}
    files = {path.name for path in DAEMON.iterdir() if path.is_file() and not path.name.startswith(".")}
    assert files - others == {name.file for name in IN_THE_CHECKOUT}


def test_every_snippet_file_has_a_name_and_every_word_is_used() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {snippet.file for snippet in Snippet}
    used = {word for path in FOLDER.iterdir() for word in Template(path.read_text("utf-8")).get_identifiers()}
    assert used == set(Site(USUAL, COMMAND).words())


@pytest.mark.parametrize("name", list(Snippet))
def test_a_snippet_is_complete_and_names_its_place(name: Snippet) -> None:
    text = for_the_usual(name)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert "${" not in text
    assert max(map(len, text.splitlines())) <= 160
    if name.place.startswith("/"):
        assert name.place in text.split("\n\n")[0]
    assert re.findall(r"/(?:root|work|tmp|home/\w+)/\S*", text) == []


def test_what_to_do_next_writes_the_other_half_to_its_place() -> None:
    written = {name: re.findall(r"usersctl snippet (\S+) >(.*?) && ", name.then) for name in Snippet}
    assert {name: pairs for name, pairs in written.items() if pairs} == {
        "timer": [("cleanup", Snippet.CLEANUP.place)],
        "cleanup": [("timer", Snippet.TIMER.place)],
        "fail2ban": [("jail", Snippet.JAIL.place)],
        "jail": [("fail2ban", Snippet.FAIL2BAN.place)],
    }
    assert all(isinstance(text, str) for name in Snippet for text in (name.file, name.place, name.then))


# --- the command ---


@pytest.mark.sqlite  # a database of the environment has no place in a file
def test_the_snippet_is_printed_alone_and_its_place_on_stderr(usersctl: Command) -> None:
    described, text = Snippet.TIMER, for_this(usersctl, Snippet.TIMER)
    assert usersctl.ok("snippet", "timer", cwd=Path("/")) == (
        0,
        text,
        f"Put it into: {described.place}\nThen: {described.then}\n",
    )
    assert usersctl.ok("--quiet", "snippet", "timer") == (0, text, "")
    assert usersctl.ok("--json", "snippet", "timer").json == {
        "place": described.place,
        "then": described.then,
        "text": text,
    }
    assert usersctl.is_unused
    named = re.findall(r"[a-z0-9]+", (command_tree().commands["snippet"].help or "").partition("\n\n")[2])
    assert {str(name) for name in Snippet} <= set(named)
    done = usersctl("snippet", "apache")
    assert done.code == 2
    assert "'nginx'" in done.stderr


def for_this(usersctl: Command, name: Snippet, **more: str) -> str:
    """The output of the command, without starting a process."""
    env = {"USERS_DATABASE": str(usersctl.database), "USERS_CONFIG": str(usersctl.config)} | more
    return write(name, Site(load(env=env), (USERSCTL,)).words())


@pytest.mark.sqlite  # a database of the environment has no place in a file
def test_a_snippet_has_the_paths_and_addresses_of_this_installation(usersctl: Command) -> None:
    usersctl.configure(
        'baseUrl = "https://id.example.com"\ntokenCleanupSchedule = "5 4 * * *"\n'
        '[server]\nhost = "::1"\nport = 81\nsocketMode = "0600"\n'
    )
    unit = unit_of(usersctl.ok("snippet", "systemd").stdout)["Service"]
    options = f"--config {usersctl.config} --db {usersctl.database}"
    assert unit["ExecStart"] == f"{USERSCTL} {options} serve"
    assert unit["User"] == owner_of(usersctl.database)
    assert unit["ReadWritePaths"] == str(usersctl.folder)
    assert unit_of(for_this(usersctl, Snippet.SOCKET))["Socket"]["ListenStream"] == "[::1]:81"
    cron = for_this(usersctl, Snippet.CRON).splitlines()[-1]
    assert cron == f"5 4 * * *  {unit['User']}  {USERSCTL} {options} cleanup-tokens --quiet"
    nginx = for_this(usersctl, Snippet.NGINX)
    assert "server_name id.example.com;" in nginx
    assert "server [::1]:81;" in nginx

    other = for_this(usersctl, Snippet.SYSTEMD, USERS_DATABASE="/srv/o.db", USERS_BASE_URL="http://x.example")
    assert unit_of(other)["Service"]["ExecStart"] == (
        f"{USERSCTL} --config {usersctl.config} --db /srv/o.db serve --base-url http://x.example"
    )
    none = for_this(usersctl, Snippet.CRON, USERS_CONFIG="", USERS_DATABASE="/srv/o.db", HOME="/nowhere")
    assert f"{USERSCTL} --db /srv/o.db cleanup-tokens" in none


def test_a_unix_socket_is_used_in_every_snippet_that_supports_it(usersctl: Command) -> None:
    usersctl.configure('[server]\nsocket = "/run/users/usersd.sock"\nsocketMode = "0666"\n')
    unit = unit_of(for_this(usersctl, Snippet.SYSTEMD))["Service"]
    assert (unit["RuntimeDirectory"], unit["RuntimeDirectoryPreserve"]) == ("users", "yes")
    socket = unit_of(for_this(usersctl, Snippet.SOCKET))["Socket"]
    assert (socket["ListenStream"], socket["SocketMode"]) == ("/run/users/usersd.sock", "0666")
    assert "server unix:/run/users/usersd.sock;" in for_this(usersctl, Snippet.NGINX)
    assert "unix//run/users/usersd.sock" in for_this(usersctl, Snippet.CADDY)
    with pytest.raises(Invalid, match="Traefik cannot use a Unix socket"):
        for_this(usersctl, Snippet.TRAEFIK)


@pytest.mark.parametrize("odd", ["100%", "a:b", "a$b", "x;y", "a#b", 'a"b', "a'b", "a\\b", "a\nb", "{x}"])
def test_a_path_that_needs_quoting_is_refused(odd: str) -> None:
    changed = USUAL._replace(settings=USUAL.settings._replace(database=Path("/srv") / odd / "users.db"))
    with pytest.raises(Invalid, match="has a character that other programs may interpret"):
        Site(changed, COMMAND).words()


def test_a_path_with_a_blank_is_quoted_for_systemd_and_for_shells(tmp_path: Path) -> None:
    database, file = tmp_path / "my users" / "users.db", tmp_path / "my users" / "users.toml"
    changed = Loaded(
        USUAL.settings._replace(database=database), file, {"database": Origin("command line", "")}
    )
    words = Site(changed, ("/opt/my users/bin/usersctl",)).words()
    command = f'"/opt/my users/bin/usersctl" --config "{file}" --db "{database}"'
    for name, ending in (
        (Snippet.SYSTEMD, "serve"),
        (Snippet.INSTANCES, "serve --port %i"),
        (Snippet.CLEANUP, "cleanup-tokens --quiet"),
    ):
        unit = unit_of(write(name, words))["Service"]
        assert unit["ExecStart"].startswith(f"{command} {ending.split()[0]}")
        assert unit["ExecStart"].endswith(ending.split()[-1])
        assert unit["ReadWritePaths"] == f'"{database.parent}"'
    text = write(Snippet.SYSTEMD, words)
    assert f'#   useradd --system --home-dir "{database.parent}" ' in text
    assert f'{words["user"]} "{database.parent}"\n' in text
    assert f"ExecStart={command} --quiet db backup" in write(Snippet.BACKUP, words)
    cron = write(Snippet.CRON, words).splitlines()[-1]
    assert shlex.split(cron)[6:11] == [
        "/opt/my users/bin/usersctl",
        "--config",
        str(file),
        "--db",
        str(database),
    ]

    changed = changed._replace(settings=USUAL.settings._replace(database=Path("/var/lib/my users/users.db")))
    state = unit_of(write(Snippet.CLEANUP, Site(changed, COMMAND).words()))["Service"]["StateDirectory"]
    assert state == '"my users"'


def test_a_socket_with_a_blank_is_refused() -> None:
    changed = USUAL._replace(settings=USUAL.settings._replace(socket=Path("/run/my users/usersd.sock")))
    with pytest.raises(Invalid, match="'/run/my users/usersd\\.sock' has a character that") as refused:
        Site(changed, COMMAND).words()
    assert "blanks" not in str(refused.value.hint)


def test_systemd_and_cron_find_a_command_and_a_database_whose_paths_have_blanks(
    usersctl: Command, tmp_path: Path
) -> None:
    usersctl.add("ada")
    folder = tmp_path / "my users"
    folder.mkdir()
    command = folder / "usersctl"
    command.symlink_to(USERSCTL)
    usersctl.ok("db", "backup", folder / "users.db")
    loaded = load(env={"USERS_DATABASE": str(folder / "users.db")})
    words = Site(loaded, (str(command),)).words()
    done = as_cron_does(write(Snippet.CRON, words).splitlines()[-1].split(maxsplit=6)[6])
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")

    unit = tmp_path / "users-cleanup.service"
    unit.write_text(write(Snippet.CLEANUP, words))
    analyze = [needed("systemd-analyze"), "verify", "--man=no", unit]
    done = subprocess.run(analyze, capture_output=True, timeout=60, check=False)
    assert (done.returncode, unit.name.encode() in done.stderr) == (0, False)
    command.unlink()
    done = subprocess.run(analyze, capture_output=True, timeout=60, check=False)
    assert f"Command {command} is not executable".encode() in done.stderr


def test_a_zone_of_an_address_is_refused_by_the_name_of_its_key() -> None:
    changed = USUAL._replace(settings=USUAL.settings._replace(host="fe80::1%eth0"))
    with pytest.raises(Invalid, match=r"server\.host 'fe80::1%eth0' has a character") as refused:
        Site(changed, COMMAND).words()
    assert refused.value.hint == "choose an address without it"


def test_the_service_names_folders_that_systemd_does_not_create(tmp_path: Path) -> None:
    def commands(database: Path, socket: Path | None) -> list[str]:
        changed = USUAL.settings._replace(database=database, socket=socket)
        text = write(Snippet.SYSTEMD, Site(USUAL._replace(settings=changed), COMMAND).words())
        return re.findall(r"^#   install -d -m (.*)$", text, re.MULTILINE)

    owner, missing = owner_of(tmp_path), tmp_path / "missing"
    assert commands(missing / "users.db", missing / "run" / "usersd.sock") == [
        f"0700 -o {owner} {missing}",
        f"0755 -o {owner} {missing}/run",
    ]
    assert commands(tmp_path / "users.db", tmp_path / "usersd.sock") == []
    assert commands(Path("/var/lib/no-users/users.db"), Path("/run/no-users/usersd.sock")) == []


def test_an_ipv6_address_in_base_url_keeps_its_brackets() -> None:
    changed = USUAL._replace(settings=USUAL.settings._replace(base_url="https://[2001:db8::1]"))
    nginx = write(Snippet.NGINX, Site(changed, COMMAND).words())
    assert "server_name [2001:db8::1];" in nginx
    assert "return 301 https://[2001:db8::1]$request_uri;" in nginx


PROXIES = (Snippet.NGINX, Snippet.CADDY, Snippet.TRAEFIK)


def before(name: Snippet, url: str, app: str | None = None, *headers: str, **changes: Any) -> str:
    """The file of a proxy, for this baseUrl."""
    changed = USUAL._replace(settings=USUAL.settings._replace(base_url=url, **changes))
    return write(name, Site(changed, COMMAND, app and application_at(app), header_names(headers)).words())


def test_scheme_and_port_of_base_url_are_those_of_the_proxy() -> None:
    for url in ("https://id.example.com:8443", "http://id.example.com:8000", "http://localhost:8090"):
        for name in PROXIES:
            assert set(re.findall('baseUrl = "(.*?)"', before(name, url))) == {url}
    nginx = before(Snippet.NGINX, "https://id.example.com:8443")
    assert re.findall("listen (.*);", nginx) == ["80", "[::]:80", "8443 ssl", "[::]:8443 ssl"]
    assert "return 301 https://id.example.com:8443$request_uri;" in nginx
    assert "server_name id.example.com;" in nginx
    assert "\nid.example.com:8443 {\n" in before(Snippet.CADDY, "https://id.example.com:8443")
    assert "Host(`id.example.com`)" in before(Snippet.TRAEFIK, "https://id.example.com:8443")


@pytest.mark.parametrize(
    ("url", "listens", "site"),
    [
        ("http://id.example.com", ["80", "[::]:80"], "http://id.example.com {\n\t#"),
        ("http://id.example.com:81", ["81", "[::]:81"], "http://id.example.com:81 {\n\t#"),
        ("http://localhost:8090", ["127.0.0.1:8090"], "http://localhost:8090 {\n\tbind 127.0.0.1\n"),
        ("http://127.0.0.1", ["127.0.0.1:80"], "http://127.0.0.1 {\n\tbind 127.0.0.1\n"),
        ("http://[::1]:81", ["[::1]:81"], "http://[::1]:81 {\n\tbind ::1\n"),
    ],
)
def test_a_proxy_for_http_uses_no_tls_and_one_for_loopback_listens_there_only(
    url: str, listens: list[str], site: str
) -> None:
    nginx = before(Snippet.NGINX, url)
    assert re.findall("listen (.*);", nginx) == listens
    assert "ssl" not in nginx
    assert "return 301" not in nginx
    assert f"\n{site}" in before(Snippet.CADDY, url)
    routers = yaml.safe_load(before(Snippet.TRAEFIK, url))["http"]["routers"]
    assert {(*router["entryPoints"], "tls" in router) for router in routers.values()} == {("web", False)}


def test_a_proxy_without_a_configured_base_url_is_for_a_trial(usersctl: Command) -> None:
    for name in ("nginx", "caddy", "traefik"):
        assert 'baseUrl = "http://localhost:8090"' in usersctl.ok("snippet", name).stdout
    usersctl.configure('baseUrl = "http://localhost:8080"\n')
    for name in ("nginx", "caddy", "traefik"):
        refused = usersctl("snippet", name)
        assert (refused.code, refused.stdout) == (2, "")
        assert "baseUrl http://localhost:8080 is where the daemon itself listens" in refused.stderr
        assert "http://localhost:8090 to try it" in refused.stderr
    usersctl.configure('baseUrl = "http://localhost:8080"\nserver.socket = "/run/users/usersd.sock"\n')
    usersctl.ok("snippet", "nginx")


def test_a_snippet_for_a_proxy_that_is_not_trusted_says_so(usersctl: Command) -> None:
    for socket, proxy in (("", "127.0.0.1"), ('socket = "/run/users/usersd.sock"\n', "unix")):
        usersctl.configure(f"[server]\n{socket}")
        assert f'Without server.trustedProxies = ["{proxy}"]' in usersctl.ok("snippet", "nginx").stderr
        usersctl.configure(f'[server]\n{socket}trustedProxies = ["{proxy}"]\n')
        assert "trustedProxies" not in usersctl.ok("snippet", "nginx").stderr


@pytest.mark.parametrize(
    ("app", "origin"),
    [
        ("127.0.0.1:5232", "http://127.0.0.1:5232"),
        ("http://127.0.0.1:5232/", "http://127.0.0.1:5232"),
        ("wiki.internal:80", "http://wiki.internal"),
        ("https://wiki.internal", "https://wiki.internal"),
        ("[::1]:3000", "http://[::1]:3000"),
    ],
)
def test_the_application_is_named_by_its_address(app: str, origin: str) -> None:
    url = "https://id.example.com"
    nginx, caddy = before(Snippet.NGINX, url, app), before(Snippet.CADDY, url, app)
    assert f"proxy_pass {origin};\n" in nginx
    assert ("proxy_ssl_verify on;" in nginx) == origin.startswith("https:")
    assert f"reverse_proxy {origin}\n" in caddy
    services = yaml.safe_load(before(Snippet.TRAEFIK, url, app))["http"]["services"]
    assert services["application"]["loadBalancer"]["servers"] == [{"url": origin}]
    assert f"{origin}; # <--" not in nginx
    assert "127.0.0.1:8000; # <--" in before(Snippet.NGINX, url)
    assert "reverse_proxy http://127.0.0.1:8000 # <--" in before(Snippet.CADDY, url)


@pytest.mark.parametrize(
    "app",
    ["", "8000", "a", "[::1]", "http://", "http://a/b", "a b", "a:x", "ftp://a", "a;b", "a\nb", "a?b"],
)
def test_an_address_that_is_none_is_refused(app: str) -> None:
    with pytest.raises(Invalid, match=r"--app .* is no address of an application"):
        application_at(app)


def test_the_application_is_not_the_proxy_itself(usersctl: Command) -> None:
    assert "proxy_pass http://127.0.0.1:5000; # <--" in before(Snippet.NGINX, "http://localhost:8000")
    with pytest.raises(Invalid, match="is the address of the proxy itself"):
        before(Snippet.NGINX, "http://localhost:8000", "127.0.0.1:8000")
    before(Snippet.NGINX, "https://id.example.com:8000", "127.0.0.1:8000")
    for name, option, value in (
        ("systemd", "--app", "a:1"),
        ("compose", "--app", "a:1"),
        ("cron", "--header", "X-User=id"),
    ):
        refused = usersctl("snippet", name, option, value)
        assert (refused.code, f"{option} is for nginx, caddy" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    "text", ["X-User", "X-User=", "=id", "X-User=password", "Host=id", "X User=id", "X_User=id"]
)
def test_a_header_that_cannot_be_sent_is_refused(usersctl: Command, text: str) -> None:
    assert usersctl("snippet", "nginx", "--header", text).code == 2


def test_a_header_holds_what_the_daemon_sends() -> None:
    with pytest.raises(Invalid, match=r"forward\.headers has no email"):
        before(Snippet.NGINX, "https://id.example.com", None, "X-U=email", forward_headers=(("X-I", "id"),))


def test_the_service_may_read_home_folders_only_if_it_needs_one(tmp_path: Path) -> None:
    def protected(command: str, database: str, **others: Any) -> str:
        changed = USUAL._replace(settings=USUAL.settings._replace(database=Path(database), **others))
        text = write(Snippet.SYSTEMD, Site(changed, (command,)).words())
        return unit_of(text)["Service"]["ProtectHome"]

    assert protected("/opt/usersctl", "/srv/users.db") == "yes"
    assert protected("/home/ada/bin/usersctl", "/srv/users.db") == "read-only"
    assert protected("/opt/usersctl", "/home/ada/users.db") == "read-only"
    assert protected("/opt/usersctl", "/srv/users.db", locale="/home/ada/users/pt.json") == "read-only"
    assert protected("/opt/usersctl", "/srv/users.db", socket=Path("/home/ada/usersd.sock")) == "read-only"
    assert owner_of(tmp_path / "no" / "such" / "users.db") == owner_of(tmp_path)


@pytest.mark.parametrize("at_home", ["environment", "python"])
def test_the_service_may_read_the_home_folder_that_a_link_leads_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_home: str
) -> None:
    monkeypatch.setattr("usersctl.cli.snippet.HOMES", [str(tmp_path / "home")])
    folders = {
        name: tmp_path / ("home" if name == at_home else "opt") / name for name in ("environment", "python")
    }
    for folder in folders.values():
        folder.mkdir(parents=True)
    (folders["python"] / "python3").touch()
    (folders["environment"] / "python").symlink_to(folders["python"] / "python3")
    (folders["environment"] / "usersctl").touch()
    (tmp_path / "usersctl").symlink_to(folders["environment"] / "usersctl")
    assert Site(USUAL, (str(tmp_path / "usersctl"),)).protect_home == "read-only"


# --- systemd ---


@pytest.mark.sqlite  # a database of the environment has no place in a file
def test_the_units_are_valid_and_the_service_is_hardened(usersctl: Command, tmp_path: Path) -> None:
    analyze = needed("systemd-analyze")
    folder = tmp_path / "units"
    folder.mkdir()
    for name in (Snippet.SYSTEMD, Snippet.SOCKET, Snippet.TIMER, Snippet.CLEANUP):
        (folder / name.file).write_text(for_this(usersctl, name))
    units = sorted(folder.iterdir())
    done = subprocess.run(
        [analyze, "verify", "--man=no", *units], capture_output=True, text=True, timeout=60, check=False
    )
    # Other messages are about units of this machine.
    messages = [line for line in done.stderr.splitlines() if any(unit.name in line for unit in units)]
    assert (done.returncode, messages) == (0, [])
    for unit, most in (("usersd.service", 1.5), ("users-cleanup.service", 1.0)):
        done = subprocess.run(
            [analyze, "security", "--offline=true", "--no-pager", folder / unit],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        exposure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
        assert exposure is not None, done.stdout
        assert float(exposure[1]) <= most, done.stdout


def test_the_service_uses_notify_and_the_watchdog() -> None:
    service = unit_of(for_the_usual(Snippet.SYSTEMD))["Service"]
    assert service["Type"] == "notify"
    assert int(service["WatchdogSec"]) > 0
    assert service["Restart"] == "on-failure"
    assert int(service["TimeoutStopSec"]) > 6
    assert service["StateDirectory"] == "users"
    assert service["EnvironmentFile"] == "-/etc/users/usersd.env"


@pytest.mark.parametrize(
    ("name", "target"),
    [
        (Snippet.SYSTEMD, "multi-user.target"),
        (Snippet.SOCKET, "sockets.target"),
        (Snippet.TIMER, "timers.target"),
    ],
)
def test_an_enabled_unit_starts_at_boot(name: Snippet, target: str) -> None:
    assert unit_of(for_the_usual(name))["Install"]["WantedBy"] == target


# Applies the hardening of the unit to its own process, and then becomes the daemon.
HARDENED = """
import ctypes, os, sys

libc, seccomp = ctypes.CDLL(None, use_errno=True), ctypes.CDLL("libseccomp.so.2")
seccomp.seccomp_init.restype = ctypes.c_void_p
ERRNO = 0x00050001  # SCMP_ACT_ERRNO(EPERM), as in SystemCallErrorNumber=
filter = ctypes.c_void_p(seccomp.seccomp_init(ERRNO))
for name in os.environ.pop("ALLOWED").split():
    number = seccomp.seccomp_syscall_resolve_name(name.encode())
    if number >= 0:
        assert seccomp.seccomp_rule_add(filter, 0x7FFF0000, number, 0) == 0, name
assert libc.prctl(38, 1, 0, 0, 0) == 0  # NoNewPrivileges
assert seccomp.seccomp_load(filter) == 0
# MemoryDenyWriteExecute, if the kernel supports it (6.3).
print("mdwe", libc.prctl(65, 1, 0, 0, 0), file=sys.stderr, flush=True)
os.execv(sys.argv[1], sys.argv[1:])
"""


def calls_of(analyze: str, filters: list[str]) -> set[str]:
    """The system calls that the lines of SystemCallFilter= allow."""
    messages = subprocess.run(
        [analyze, "syscall-filter", "--no-pager"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    sets: dict[str, list[str]] = {}
    for line in messages.splitlines():
        if line.startswith("@"):
            sets[line] = members = []
        elif line.startswith("    ") and not line.strip().startswith("#"):
            members.append(line.strip())

    def calls_of(name: str) -> Iterator[str]:
        if name.startswith("@"):
            for member in sets[name]:
                yield from calls_of(member)
        else:
            yield name

    allowed: set[str] = set(calls_of("@default"))  # systemd always adds them
    for line in filters:
        names = {call for name in line.lstrip("~").split() for call in calls_of(name)}
        allowed = allowed - names if line.startswith("~") else allowed | names
    return allowed


@pytest.mark.slow
def test_the_daemon_works_under_the_hardening_of_the_unit(usersctl: Command) -> None:
    analyze = needed("systemd-analyze")
    text = for_this(usersctl, Snippet.SYSTEMD)
    allowed = calls_of(analyze, re.findall(r"^SystemCallFilter=(.*)$", text, re.MULTILINE))
    assert {"setpriority", "read"} <= allowed
    assert not {"mount", "ptrace", "setuid", "reboot", "setrlimit"} & allowed
    usersctl.configure(
        '[passwordHashing]\nrounds = 10\n[auth]\nwhitelist = ["/register"]\n[server]\nprocesses = 2\n'
        # A sign-in through a provider loads its libraries, although no provider answers.
        '[auth.oauth]\nclientId = "users"\nclientSecret = "x"\nissuer = "http://127.0.0.1:1"\n'
    )
    usersctl.add("ada")
    (usersctl.folder / "hardened.py").write_text(HARDENED)
    module = ("hardened", USERSCTL, "serve")
    env = {"PYTHONPATH": str(usersctl.folder), "ALLOWED": " ".join(sorted(allowed))}
    with serving(usersctl, module=module, env=env) as daemon:
        client = daemon.client()
        assert client.login("ada@example.com", PASSWORD).status == 200
        assert client.get("/").status == 200
        new = {"email": "grace@example.com", "name": "Grace", "password": PASSWORD}
        assert daemon.client().post("/api/users/register", new).status == 200
        wait_for(lambda: list((usersctl.folder / "mail").glob("*.eml")))
        assert "oauth_failed" in str(client.get("/api/users/auth/oauth/redirect").header("Location"))
        limits = Path(f"/proc/{daemon.process.pid}/status").read_text()
        assert "Seccomp:\t2" in limits
        assert daemon.stop() == 0
    messages = [line for line in daemon.file.read_text().splitlines() if not line.startswith("mdwe")]
    assert [line for line in map(json.loads, messages) if "trace" in line] == []


# --- backups ---


@pytest.mark.sqlite  # a database of the environment has no place in a file
def test_the_backup_script_writes_valid_units_and_is_run_by_a_timer(
    usersctl: Command, tmp_path: Path
) -> None:
    analyze, folder = needed("systemd-analyze"), tmp_path / "units"
    folder.mkdir()
    script = for_this(usersctl, Snippet.BACKUP).replace("/etc/systemd/system", str(folder))
    # Nothing that needs root or systemd.
    script = script.replace("\nsystemctl ", "\n# ").replace("\ninstall ", "\n# ")
    done = subprocess.run(["/bin/sh"], input=script, capture_output=True, text=True, timeout=30, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    units = sorted(folder.iterdir())
    assert [unit.name for unit in units] == ["users-backup.service", "users-backup.timer"]
    done = subprocess.run(
        [analyze, "verify", "--man=no", *units], capture_output=True, text=True, timeout=60, check=False
    )
    messages = [line for line in done.stderr.splitlines() if any(unit.name in line for unit in units)]
    assert (done.returncode, messages) == (0, [])
    service, timer = (unit_of(unit.read_text()) for unit in units)
    assert timer["Install"]["WantedBy"] == "timers.target"
    assert timer["Timer"]["OnCalendar"] == "*-*-* 01:00:00"
    cleanup = unit_of(for_this(usersctl, Snippet.CLEANUP))["Service"]
    own = {"ExecStart", "ReadWritePaths"}
    assert {key: value for key, value in service["Service"].items() if key not in own} == {
        key: value for key, value in cleanup.items() if key not in own
    }
    usersctl.add("ada")
    backups = tmp_path / "backups"
    command = service["Service"]["ExecStart"].replace("/var/backups/users", str(backups))
    for _ in range(2):
        done = as_cron_does(command)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert len(list(backups.iterdir())) == 2


# --- cron and timer ---


def as_cron_does(command: str) -> subprocess.CompletedProcess[bytes]:
    """Runs in / without a terminal and without PATH."""
    return subprocess.run(
        ["/bin/sh", "-c", command],
        env={"PATH": "/usr/bin:/bin", "HOME": "/", "PYTHONWARNINGS": "error"},
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
        check=False,
    )


@pytest.mark.sqlite  # a database of the environment has no place in a file
def test_cron_and_timer_run_the_cleanup_by_its_full_path(usersctl: Command) -> None:
    usersctl.add("ada")
    line = for_this(usersctl, Snippet.CRON).splitlines()[-1]
    *when, user, command = line.split(maxsplit=6)
    assert (when, user) == (["0", "2", "*", "*", "*"], owner_of(usersctl.database))
    start = unit_of(for_this(usersctl, Snippet.CLEANUP))["Service"]["ExecStart"]
    assert start == command
    assert shlex.split(command)[0].startswith("/")
    done = as_cron_does(command)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    with usersctl.service() as service, service.store.read() as tx:
        assert [row.action for row in tx.audit_rows()].count("cleanup-tokens") == 1
    # An error is printed, and cron sends it by mail.
    usersctl.database.unlink()
    done = as_cron_does(command)
    assert (done.returncode, done.stdout) == (6, b"")
    assert str(usersctl.database).encode() in done.stderr


# --- fail2ban ---


@pytest.mark.slow
def test_fail2ban_finds_failed_logins_in_the_log_and_nothing_else(usersctl: Command) -> None:
    usersctl.configure('[server]\ntrustedProxies = ["127.0.0.1"]\n[passwordHashing]\nrounds = 10\n')
    usersctl.add("ada")
    # Text that a client chooses stands after its address.
    forged = 'x", "event": "login-refused", "ip": "198.51.100.9", "reason": "unauthenticated'
    with serving(usersctl) as daemon:

        def tries(address: str, email: str, password: Any, **headers: str) -> int:
            body = {"email": email, "password": password}
            sent = {"X-Forwarded-For": address} | headers
            return daemon.client().post("/api/users/session", body, headers=sent).status

        assert tries("203.0.113.1", "ada@example.com", "wrong password") == 401
        assert tries("2001:db8::7", "nobody@example.com", "wrong password") == 401
        assert tries("203.0.113.2", "ada@example.com", PASSWORD) == 200
        assert tries("203.0.113.3", "", "") == 400
        assert tries("203.0.113.4", forged, PASSWORD, **{"User-Agent": forged}) == 401
        assert daemon.client().get(f"/x?{forged.replace(' ', '%20')}").status == 302
        log = daemon.file.read_text()
    expected = ["203.0.113.1", "2001:db8::7", "203.0.113.4"]
    # The plain line, and the line as journald and syslog write it.
    in_the_journal = "".join(f"host usersctl[12]: {line}\n" for line in log.splitlines())
    assert banned_by(usersctl, log + in_the_journal) == expected * 2
    jail = unit_of(for_this(usersctl, Snippet.JAIL))
    assert jail["usersd"]["filter"] == Path(Snippet.FAIL2BAN.place).stem
    assert unit_of(for_this(usersctl, Snippet.FAIL2BAN))["Definition"]["journalmatch"] == (
        f"_SYSTEMD_UNIT={Snippet.SYSTEMD.file}"
    )


@pytest.mark.parametrize(
    ("url", "ports"),
    [
        ("https://accounts.example.com", "http,https"),
        ("http://accounts.example.com", "http,https"),
        ("https://accounts.example.com:8443", "http,https,8443"),
    ],
)
def test_the_jail_closes_the_port_where_visitors_come(usersctl: Command, url: str, ports: str) -> None:
    usersctl.configure(f'baseUrl = "{url}"\n')
    assert unit_of(for_this(usersctl, Snippet.JAIL))["usersd"]["port"] == ports


def banned_by(usersctl: Command, log: str) -> list[str]:
    """The addresses that fail2ban finds in these lines."""
    filter_, lines = usersctl.folder / "usersd.conf", usersctl.folder / "usersd.log"
    filter_.write_text(for_this(usersctl, Snippet.FAIL2BAN))
    lines.write_text(log)
    done = subprocess.run(
        [needed("fail2ban-regex"), "--out", "ip", lines, filter_],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": os.environ["PATH"]},
    )
    return done.stdout.split()


# --- the image ---


@pytest.mark.parametrize(
    "url", ["https://accounts.example.com", "http://localhost:8090", "https://a.example:8443"]
)
def test_the_containers_of_compose_are_the_daemon_caddy_and_an_application(url: str, tmp_path: Path) -> None:
    file = yaml.safe_load(before(Snippet.COMPOSE, url, None, "X-Remote-User=email"))
    services, configs = file["services"], file["configs"]
    assert set(services) == {"usersd", "caddy", "app"}
    for name in file["services"]:
        service = services[name]
        assert set(service["networks"]) <= set(file["networks"])
        assert {config["source"] for config in service.get("configs", ())} <= set(configs)
        assert {volume.partition(":")[0] for volume in service.get("volumes", ())} <= set(file["volumes"])
    # The application is reached by Caddy only, and reaches no daemon.
    assert not set(services["app"]["networks"]) & set(services["usersd"]["networks"])
    assert not {"ports"} & (set(services["app"]) | set(services["usersd"]))
    ports = {
        "https://accounts.example.com": ["80:80", "443:443"],
        "http://localhost:8090": ["127.0.0.1:8090:8090"],
        "https://a.example:8443": ["8443:8443"],
    }
    assert services["caddy"]["ports"] == ports[url]

    # Compose reads $$ as $.
    image = services["usersd"]["build"]["dockerfile_inline"].replace("$$", "$")
    assert image.strip() in for_the_usual(Snippet.DOCKERFILE)
    (tmp_path / "users.toml").write_text(configs["users.toml"]["content"].replace("$$", "$"))
    settings = load(
        config=tmp_path / "users.toml", env={"USERS_DATABASE": "/var/lib/users/users.db"}
    ).settings
    assert settings.base_url == url
    assert dict(settings.forward_headers)["X-Remote-User"] == "email"
    assert [str(network) for network in settings.trusted_proxies] == [
        entry["subnet"] for entry in file["networks"]["accounts"]["ipam"]["config"]
    ]
    (tmp_path / "Caddyfile").write_text(configs["Caddyfile"]["content"].replace("$$", "$"))
    done = subprocess.run(
        [
            needed("caddy"),
            "adapt",
            "--validate",
            "--config",
            tmp_path / "Caddyfile",
            "--adapter",
            "caddyfile",
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
    )
    assert done.returncode == 0, done.stderr
    assert "usersd:8080" in done.stdout
    assert "app:80" in done.stdout
    assert "127.0.0.1" not in done.stdout


def test_the_image_builds_from_the_checkout_and_runs_without_root() -> None:
    text = for_the_usual(Snippet.DOCKERFILE)
    copied = {
        word for line in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE) for word in line.split()
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wheel, about = project["tool"]["hatch"]["build"]["targets"]["wheel"], project["project"]
    needed_there = [
        *(
            "pyproject.toml",
            about["readme"],
            *about["license-files"],
            project["tool"]["hatch"]["version"]["path"],
        ),
        *(*wheel["packages"], *wheel["force-include"], wheel["hooks"]["custom"]["path"]),
    ]
    assert {path.partition("/")[0] for path in needed_there} == copied
    steps = [
        line.split(maxsplit=1) for line in text.replace("\\\n", "").splitlines() if re.match("[A-Z]+ ", line)
    ]
    last = dict(steps)
    assert last["USER"] == "10001:10001"
    assert last["VOLUME"] in last["ENV"]
    for command in (last["CMD"], last["HEALTHCHECK"].partition("CMD ")[2]):
        program, *words = json.loads(command)
        assert program == "usersctl"
        _, (name, *rest) = take(words)
        known = {option for parameter in command_tree().commands[name].params for option in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= known
