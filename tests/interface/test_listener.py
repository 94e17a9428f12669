"""The listening socket: a Unix socket, an address, and one that systemd opened."""

import errno
import http.client
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support import proxies
from support.commands import PASSWORD, USERSCTL, Command
from support.daemons import Daemon, free_port, serving, wait_for
from support.proxies import Proxy
from support.web import Reply, running

from usersctl.cli.snippet import Site, Snippet, write
from usersctl.config import Settings, load
from usersctl.errors import ConfigError
from usersctl.service import Service
from usersd.server.listener import address_of, from_systemd, listen, listening, url_of


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=20)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(20)
        self.sock.connect(str(self.path))


def ask(path: Path, method: str, target: str, body: str | None = None, **headers: str) -> Reply:
    with closing(UnixConnection(path)) as connection:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            sent["Content-Type"] = "application/json"
        connection.request(method, target, body, sent)
        answer = connection.getresponse()
        return Reply(answer.status, answer.getheaders(), answer.read())


def settings(folder: Path, **changes: Any) -> Settings:
    return Settings(database=folder / "users.db", base_url="http://127.0.0.1:8080", **changes)


def at(path: Path, mode: str = "0660") -> Any:
    return listening(settings(path.parent, socket=path, socket_mode=mode), {})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "usersd.sock"


# --- a Unix socket ---


def test_the_daemon_serves_on_a_unix_socket_instead_of_an_address(usersctl: Command) -> None:
    usersctl.configure('[passwordHashing]\nrounds = 10\n[server]\nsocket = "run.sock"\nsocketMode = "0600"\n')
    usersctl.add("ada")
    path = usersctl.folder / "run.sock"  # relative to the folder of the configuration
    login = f'{{"email": "ada@example.com", "password": "{PASSWORD}"}}'
    with serving(usersctl, port=1) as daemon:
        assert daemon.events("listening")[0]["url"] == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        reply = ask(path, "POST", "/api/users/session", login)
        assert reply.status == 200
        cookie = str(reply.header("Set-Cookie")).partition(";")[0]
        assert ask(path, "GET", "/api/users/me", Cookie=cookie).json["user"]["email"] == "ada@example.com"
        assert [line["ip"] for line in daemon.events("login")] == ["unix"]
        assert daemon.stop() == 0
    assert not path.exists()


def test_an_address_on_the_command_line_overrides_the_socket_of_the_configuration(
    usersctl: Command,
) -> None:
    usersctl.configure('[server]\nsocket = "run.sock"\n')
    with serving(usersctl) as daemon:
        wait_for(lambda: daemon.events("listening"))  # the parent logs it, a child answers
        assert daemon.events("listening")[0]["url"] == f"http://127.0.0.1:{daemon.port}"


@pytest.mark.parametrize("mode", ["0600", "0660", "0666"])
def test_the_socket_has_its_mode_whatever_the_umask_is(path: Path, mode: str) -> None:
    before = os.umask(0o077)
    try:
        with at(path, mode):
            assert stat.S_IMODE(path.stat().st_mode) == int(mode, 8)
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)


def test_a_socket_without_a_listener_is_replaced(path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(str(path))
    with at(path) as listener:
        with closing(socket.socket(socket.AF_UNIX)) as client:
            client.connect(str(path))
        assert url_of(listener) == f"unix:{path}"
    assert not path.exists()


def test_a_socket_with_a_listener_is_refused_and_stays(path: Path) -> None:
    with at(path):
        with pytest.raises(ConfigError, match="already in use"), at(path):
            pass
        with closing(socket.socket(socket.AF_UNIX)) as client:
            client.connect(str(path))


def test_a_socket_whose_listener_has_a_full_queue_is_refused_and_stays(path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as busy, closing(socket.socket(socket.AF_UNIX)) as waiting:
        busy.bind(str(path))
        busy.listen(0)
        waiting.connect(str(path))
        with pytest.raises(ConfigError, match="already in use"), at(path):
            pass
        assert path.exists()


def test_of_many_daemons_that_replace_a_dead_socket_at_once_one_wins(path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(str(path))
    everybody = threading.Barrier(8)

    def start(_: int) -> bool:
        everybody.wait(20)
        try:
            with at(path), closing(socket.socket(socket.AF_UNIX)) as client:
                everybody.wait(20)
                client.connect(str(path))
                return True
        except ConfigError:
            everybody.wait(20)
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(start, range(8))) == [False] * 7 + [True]


def test_a_file_that_is_not_a_socket_is_never_removed(path: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("x")
    for make in (lambda: path.write_text("x"), path.mkdir, lambda: path.symlink_to(precious)):
        make()
        with pytest.raises(ConfigError, match="is there, and is no socket"), at(path):
            pass
        assert os.path.lexists(path)
        path.rmdir() if path.is_dir() else path.unlink()
    assert precious.read_text() == "x"


def test_a_link_in_the_place_of_the_sockets_lock_is_not_followed(path: Path, tmp_path: Path) -> None:
    Path(f"{path}.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="cannot listen there"), at(path):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_daemon_that_stops_leaves_the_socket_of_its_successor(path: Path) -> None:
    with at(path) as ours:
        ours.close()  # as it is done as soon as no new request is taken
        with at(path):
            pass
        with closing(socket.socket(socket.AF_UNIX)) as theirs:
            theirs.bind(str(path))
    assert path.exists()


def test_the_error_for_an_unusable_socket_path_is_one_line(tmp_path: Path, usersctl: Command) -> None:
    for path, why in ((tmp_path / "no" / "x.sock", "No such file"), (tmp_path / ("x" * 120), "too long")):
        with pytest.raises(ConfigError, match=why), at(path):
            pass
    done = usersctl("serve", "--socket", tmp_path / "no" / "x.sock")
    assert (done.code, done.stdout) == (6, "")
    assert "cannot listen there: No such file or directory\n  make the folder" in done.stderr


def test_a_path_that_is_too_long_for_a_socket_is_told_with_the_way_on(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="too long for a Unix socket") as refused,
        at(tmp_path / ("x" * 120)),
    ):
        pass
    assert refused.value.hint == "choose a shorter path"


@pytest.mark.parametrize(
    ("number", "way_on"),
    [(errno.EACCES, "let the daemon's user write"), (errno.EROFS, "usersctl snippet systemd")],
)
def test_a_folder_that_takes_no_socket_is_told_with_the_way_on(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int, way_on: str
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("usersd.server.listener.os.open", refuse)
    with pytest.raises(ConfigError, match="cannot listen there") as refused, at(path):
        pass
    assert way_on in (refused.value.hint or "")


def test_a_relative_socket_path_is_relative_to_the_file_or_for_a_flag_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users.toml").write_text('server.socket = "a.sock"\n')
    monkeypatch.chdir("/")
    env = {"STATE_DIRECTORY": str(tmp_path)}
    loaded = load(config=tmp_path / "users.toml", env=env)
    assert loaded.settings.socket == tmp_path / "a.sock"
    loaded = load(config=tmp_path / "users.toml", env=env, flags={"server.socket": "b.sock"})
    assert loaded.settings.socket == Path("/b.sock")


# --- clients of a Unix socket ---


def test_a_client_of_a_unix_socket_does_not_count_as_local(service: Service, path: Path) -> None:
    # The client may be a proxy that forwards requests from anywhere.
    with at(path) as listener, running_at(service, listener):
        assert ask(path, "GET", "/_tasks/", Host="127.0.0.1:8080").status == 401
        assert ask(path, "POST", "/_tasks/users:cleanup-tokens", Host="localhost").status == 401


@contextmanager
def running_at(service: Service, listener: socket.socket) -> Iterator[Any]:
    with running(service, listener=listener, listening=address_of(listener)) as site:
        yield site


@pytest.mark.parametrize(
    ("trusted", "address"),
    [((), "unix"), (("10.0.0.0/8", "::/0", "0.0.0.0/0"), "unix"), (("unix",), "203.0.113.7")],
)
def test_a_forwarded_address_counts_on_a_unix_socket_only_if_the_socket_is_trusted(
    tmp_path: Path, path: Path, trusted: tuple[str, ...], address: str
) -> None:
    from usersctl.service import build

    written = "\n".join(("[server]", f"trustedProxies = {list(trusted)}"))
    (tmp_path / "users.toml").write_text(written)
    env = {"STATE_DIRECTORY": str(tmp_path)}
    service = build(load(config=tmp_path / "users.toml", env=env).settings)
    try:
        with at(path) as listener, running_at(service, listener) as site:
            ask(path, "GET", "/api/users/me", X_Forwarded_For="203.0.113.7")
            assert [line["ip"] for line in site.log] == [address]
    finally:
        service.close()


def test_trusting_the_socket_trusts_no_address(tmp_path: Path) -> None:
    from usersd.request import Request

    trusting = settings(tmp_path, trusted_proxies=("unix",))
    for address, expected in (("127.0.0.1", "127.0.0.1"), ("", "203.0.113.7"), ("unix", "203.0.113.7")):
        environ = {"REQUEST_METHOD": "GET", "REMOTE_ADDR": address, "HTTP_X_FORWARDED_FOR": "203.0.113.7"}
        assert Request(environ, trusting).ip == expected


def test_a_forwarded_address_named_unix_does_not_pass_for_the_socket(tmp_path: Path) -> None:
    import ipaddress

    from usersd.request import Request

    trusting = settings(tmp_path, trusted_proxies=("unix", ipaddress.ip_network("127.0.0.1")))
    environ = {"REQUEST_METHOD": "GET", "REMOTE_ADDR": "127.0.0.1", "HTTP_X_FORWARDED_FOR": "9.9.9.9, unix"}
    assert Request(environ, trusting).ip == "127.0.0.1"


def test_dev_refuses_a_unix_socket(usersctl: Command) -> None:
    done = usersctl("serve", "--dev", "--socket", "run.sock")
    assert (done.code, done.stderr) == (
        2,
        "usersctl: --dev is for a browser, which cannot open a Unix socket\n  leave --dev out, or add --port 8080\n",
    )


# --- an address ---


def test_a_daemon_starts_again_at_its_port_although_connections_of_before_have_just_ended() -> None:
    with closing(listen("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        with closing(socket.create_connection(address)) as client:
            listener.accept()[0].close()
            assert client.recv(1) == b""
    with closing(listen(*address)) as listener:
        assert listener.getsockname() == address


# --- a socket of systemd's ---

# Acts as systemd: the socket becomes descriptor 3, and the command replaces this process.
ACTIVATE = """
import os, sys
handle = int(sys.argv[1])
if handle != 3:
    os.dup2(handle, 3)
os.set_inheritable(3, True)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "usersd.socket"}
os.execv(sys.argv[2], sys.argv[2:])
"""


@contextmanager
def activated(usersctl: Command, listener: socket.socket, *words: str) -> Iterator[Daemon]:
    file = usersctl.folder / "activated.log"
    with file.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", ACTIVATE, str(listener.fileno()), USERSCTL, "serve", *words],
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=usersctl.env,
            cwd="/",
        )
    daemon = Daemon(process, listener.getsockname()[1], file)
    try:
        yield daemon
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(10)


@pytest.mark.slow
def test_a_socket_of_systemd_is_served_from_the_first_request_on(usersctl: Command) -> None:
    usersctl.configure("[server]\nport = 1\nprocesses = 2\n")  # the port of the configuration is not opened
    with closing(listen("127.0.0.1", 0)) as listener, activated(usersctl, listener) as daemon:
        # The request waits in the queue until the daemon runs: the purpose of socket activation.
        assert daemon.client().get("/api/users/me").status == 401
        # A process may answer before the parent has written its line.
        wait_for(lambda: daemon.events("listening"))
        assert daemon.events("listening")[0]["url"] == f"http://127.0.0.1:{daemon.port}"
        assert daemon.stop() == 0
        # The next daemon answers clients that connected in between.
        with closing(socket.create_connection(listener.getsockname())) as early:
            early.sendall(b"GET /api/users/me HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            with activated(usersctl, listener):
                assert early.recv(100).startswith(b"HTTP/1.1 401 ")


def test_a_unix_socket_of_systemd_is_served_and_not_removed(usersctl: Command) -> None:
    path = usersctl.folder / "systemd.sock"
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(path))
        listener.listen()
        with activated(usersctl, listener) as daemon:
            assert ask(path, "GET", "/api/users/me").status == 401
            assert daemon.stop() == 0
        assert path.exists()


@pytest.mark.slow
def test_a_public_address_of_systemd_grants_no_local_access(usersctl: Command) -> None:
    # server.host is loopback, but the address of the socket decides.
    with closing(listen("0.0.0.0", 0)) as listener, activated(usersctl, listener) as daemon:  # noqa: S104
        assert daemon.client().get("/_tasks/").status == 401
    with closing(listen("0.0.0.0", 0)) as listener, activated(usersctl, listener, "--dev") as daemon:  # noqa: S104
        assert daemon.process.wait(20) == 2
        assert "--dev serves this machine only" in daemon.file.read_text()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LISTEN_FDS": "1"},
        {"LISTEN_FDS": "1", "LISTEN_PID": ""},
        {"LISTEN_FDS": "1", "LISTEN_PID": "1"},
    ],
)
def test_a_socket_of_systemd_for_another_process_is_ignored(environ: dict[str, str]) -> None:
    assert from_systemd(environ) is None
    assert environ == {}  # so that child processes do not see it


def test_a_socket_of_systemd_comes_before_that_of_the_configuration(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(listen("127.0.0.1", 0)) as given:
        handed_over = os.dup(given.fileno())
        os.set_inheritable(handed_over, True)
        monkeypatch.setattr("usersd.server.listener.FIRST_OF_SYSTEMD", handed_over)
        environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "usersd.socket"}
        with listening(settings(path.parent, socket=path), environ) as listener:
            assert url_of(listener) == url_of(given)
            assert not listener.get_inheritable()
    assert environ == {}
    assert not path.exists()


@pytest.mark.parametrize("count", ["0", "2", "", "x"])
def test_several_sockets_are_refused(count: str) -> None:
    with pytest.raises(ConfigError, match="hands over"):
        from_systemd({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": count})


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_socket_that_does_not_listen_is_refused(monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    with closing(socket.socket(socket.AF_UNIX, kind)) as made:
        monkeypatch.setattr("usersd.server.listener.FIRST_OF_SYSTEMD", os.dup(made.fileno()))
        with pytest.raises(ConfigError, match="does not listen"):
            from_systemd({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"})


def test_a_socket_of_packets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as made:
        made.bind("")  # a free name, without a file
        made.listen()
        monkeypatch.setattr("usersd.server.listener.FIRST_OF_SYSTEMD", os.dup(made.fileno()))
        with pytest.raises(ConfigError, match="of another kind"):
            from_systemd({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"})


def test_a_descriptor_of_systemd_that_is_not_a_socket_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(write)
    monkeypatch.setattr("usersd.server.listener.FIRST_OF_SYSTEMD", read)
    for _ in range(2):  # a pipe, and then nothing
        with pytest.raises(ConfigError, match="hands over no socket"):
            from_systemd({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"})
        with suppress(OSError):
            os.close(read)


# --- behind a real proxy ---


@pytest.mark.parametrize("proxy", [proxies.nginx, proxies.caddy])
def test_a_proxy_reaches_it_there_and_tells_who_comes(
    usersctl: Command, proxy: Callable[[Path, str, int], AbstractContextManager[Proxy]]
) -> None:
    # nginx's workers run as another user when root runs the tests.
    with TemporaryDirectory(prefix="usersd-") as folder:
        Path(folder).chmod(0o711)
        usersctl.configure(
            f'baseUrl = "https://{proxies.NAME}"\n[server]\nsocket = "{folder}/usersd.sock"\nsocketMode = "0666"\n'
            'trustedProxies = ["unix"]\n'
        )
        env = {"USERS_CONFIG": str(usersctl.config), "USERS_DATABASE": str(usersctl.database)}
        snippet = write(Snippet(proxy.__name__), Site(load(env=env), (USERSCTL,)).words())
        with serving(usersctl, port=1) as daemon, proxy(usersctl.folder, snippet, free_port()) as running:
            visitor = running.visitor()
            assert visitor.get("/login", headers={"X-Forwarded-For": "203.0.113.7"}).status == 200
            assert visitor.get("/api/users/me").status == 401
            assert {line["ip"] for line in daemon.events("request")} == {"127.0.0.1"}
