"""`usersctl healthcheck`: one line and an exit code, for containers and monitoring."""

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.commands import Command
from support.daemons import free_port, serving
from support.web import Site

from usersctl.cli.healthcheck import PATH, NotReady, _from_url, ask_within, configured
from usersctl.config import Settings
from usersctl.errors import Invalid


@contextmanager
def answering(answer: bytes, *, drip: float | None = None) -> Iterator[int]:
    """The port of a program that sends these bytes to every client."""
    stop = threading.Event()
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def work() -> None:
            listener.settimeout(0.1)
            while not stop.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                with connection:
                    if drip is None:
                        connection.recv(1000)
                        connection.sendall(answer)
                        continue
                    for byte in answer:
                        try:
                            connection.sendall(bytes([byte]))
                        except OSError:
                            break
                        if stop.wait(drip):
                            break

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            stop.set()
            thread.join()


# --- a daemon ---


@pytest.mark.slow
def test_healthcheck_asks_the_configured_daemon_until_it_stops(usersctl: Command) -> None:
    port = free_port()
    usersctl.configure(f"server.port = {port}\n")
    result = usersctl("healthcheck")
    assert (result.code, result.stdout) == (7, "")
    assert result.stderr == f"usersctl: Not ready: http://127.0.0.1:{port}/ready: Connection refused\n"
    with serving(usersctl, port=port) as daemon:
        assert usersctl.ok("healthcheck", "--quiet").stdout == ""
        assert usersctl.ok("healthcheck", "--json").json["ready"] is True
        daemon.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        result = usersctl("healthcheck", "--timeout", "0.5")
        daemon.process.send_signal(signal.SIGCONT)
        assert result.code == 7
        assert result.stderr.endswith(": no answer within 0.5 s\n")
        assert time.monotonic() - began < 4


def test_healthcheck_asks_a_configured_or_named_unix_socket(usersctl: Command) -> None:
    usersctl.configure('server.socket = "usersd.sock"\n')
    path = usersctl.folder / "usersd.sock"
    with serving(usersctl, port=1):
        assert usersctl.ok("healthcheck").stdout.startswith(f"Ready: unix:{path} (")
        ask_within(5, _from_url(f"unix:{path}"))
    result = usersctl("healthcheck", "--json")
    assert result.code == 7
    assert result.error["code"] == "not_ready"
    assert result.error["url"] == f"unix:{path}"


def test_healthcheck_prints_the_reason_of_the_daemon(site: Site, usersctl: Command) -> None:
    site.service.readiness.parts = lambda: {"worker": False}
    url = f"http://127.0.0.1:{site.port}"
    result = usersctl("healthcheck", url)
    assert result.code == 7
    assert result.stderr == f"usersctl: Not ready: {url}/ready: worker\n"
    ask_within(5, _from_url(f"{url}/health"))


# --- another program ---


def why_not(port: int, *, seconds: float = 20) -> str:
    with pytest.raises(NotReady) as raised:
        ask_within(seconds, _from_url(f"http://127.0.0.1:{port}"))
    return str(raised.value)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\n<ht>", "answers 404"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", "answers 302"),
        (b"HTTP/1.1 503 Not\r\n\r\n[1]", "answers 503"),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>Welcome", "another program answers there"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"status": "alive"}', "another program answers there"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "answers something that is not HTTP"),
        (b"", "Remote end closed connection without response"),
    ],
)
def test_another_program_on_the_port_is_not_ready(answer: bytes, message: str) -> None:
    with answering(answer) as port:
        assert why_not(port) == message


def test_healthcheck_gives_up_on_a_dripping_answer() -> None:
    with answering(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000, drip=0.05) as port:
        assert why_not(port, seconds=0.3) == "no answer within 0.3 s"


def test_control_characters_in_an_answer_are_made_visible(usersctl: Command) -> None:
    with answering(b'HTTP/1.1 503 Not\r\n\r\n{"statusMessage": "\\u001b[2J"}') as port:
        result = usersctl("healthcheck", f"http://127.0.0.1:{port}")
    assert result.code == 7
    assert result.stderr == f"usersctl: Not ready: http://127.0.0.1:{port}/ready: \\x1b[2J\n"


# --- whom to ask ---


@pytest.mark.parametrize(
    ("changes", "url"),
    [
        ({}, "http://127.0.0.1:8080/ready"),
        ({"host": "0.0.0.0", "port": 9000}, "http://127.0.0.1:9000/ready"),  # noqa: S104 - it listens everywhere
        ({"host": "::"}, "http://[::1]:8080/ready"),
        ({"host": "[::1]"}, "http://[::1]:8080/ready"),
        ({"host": "192.0.2.7"}, "http://192.0.2.7:8080/ready"),
        ({"socket": Path("/run/users/usersd.sock")}, "unix:/run/users/usersd.sock"),
    ],
)
def test_the_target_comes_from_the_configuration(changes: dict[str, object], url: str) -> None:
    settings = Settings(database=Path("x"), base_url="https://accounts.example.com")._replace(**changes)
    assert configured(settings).url == url


@pytest.mark.parametrize(
    ("given", "url", "path"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/ready", PATH),
        ("https://accounts.example.com/", "https://accounts.example.com/ready", PATH),
        ("http://[::1]:1/health", "http://[::1]:1/health", "/health"),
        ("http://user:secret@127.0.0.1/", "http://127.0.0.1/ready", PATH),
        ("unix:/run/a b.sock", "unix:/run/a b.sock", PATH),
    ],
)
def test_the_target_comes_from_a_url(given: str, url: str, path: str) -> None:
    target = _from_url(given)
    assert (target.url, target.path) == (url, path)


@pytest.mark.parametrize(
    "given",
    [
        "",
        "127.0.0.1:8080",
        "ftp://x/",
        "http://",
        "http://[",
        "http://x:99999",
        "http://x/a b",
        "http://x/\r\n",
        "unix:a",
    ],
)
def test_an_invalid_url_is_misuse(given: str) -> None:
    with pytest.raises(Invalid, match="is not a URL such as"):
        _from_url(given)


def test_a_timeout_that_is_not_a_number_is_misuse(usersctl: Command) -> None:
    done = usersctl("healthcheck", "http://127.0.0.1:1", "--timeout", "nan")
    assert (done.code, done.stdout, done.stderr) == (
        2,
        "",
        "usersctl: --timeout nan is not a number of seconds\n",
    )


def test_a_url_needs_no_configuration(usersctl: Command, site: Site) -> None:
    usersctl.configure("nonsense = 1\n")
    assert usersctl("healthcheck").code == 6
    assert usersctl("healthcheck", "nonsense").code == 2
    assert usersctl("healthcheck", f"http://127.0.0.1:{site.port}").code == 0
