"""/_tasks/ on a fresh installation: open without a session to callers on the same machine only."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from support.commands import OPERATOR
from support.web import Site, running

from usersctl.service import Service
from usersd.app import App
from usersd.log import Log
from usersd.routes import FOR_DEVELOPMENT, TABLE

FORWARDING = [
    "X-Forwarded-For",
    "X-Forwarded-Proto",
    "X-Forwarded-Host",
    "X-Forwarded-Port",
    "X-Forwarded-Uri",
    "X-Forwarded-Server",
    "X-Forwarded-Ssl",
    "X-Forwarded-Anything",
    "Forwarded",
    "X-Real-IP",
    "Via",
]
TASK_REQUESTS = [("GET", "/_tasks/"), ("POST", "/_tasks/users:cleanup-tokens")]


@pytest.mark.parametrize(
    ("base_url", "listening", "is_open"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1", True),
        ("http://localhost:8080", "localhost", True),
        ("http://[::1]:8080", "127.0.0.1", True),
        ("https://localhost", "::1", True),
        ("http://127.0.0.1:8080", "0.0.0.0", False),  # noqa: S104 - must not be open
        ("http://127.0.0.1:8080", "::", False),
        ("http://127.0.0.1:8080", "192.0.2.1", False),
        ("http://127.0.0.1:8080", None, False),
        ("http://users.example.com", "127.0.0.1", False),
        ("http://localhost.example.com", "127.0.0.1", False),
        ("http://192.0.2.1:8080", "127.0.0.1", False),
    ],
)
def test_tasks_are_open_without_a_session_on_the_same_machine_only(
    make_site: Callable[..., Site], base_url: str, listening: str | None, is_open: bool
) -> None:
    site = make_site(base_url=base_url, listening=listening)
    for method, path in TASK_REQUESTS:
        assert site.client().send(method, path).status == (200 if is_open else 401)
        assert site.client().send("PUT", path).status == (405 if is_open else 401)
    assert site.client().get("/api/users").status == 401


@pytest.mark.parametrize("value", ["127.0.0.1", "", "1.1 proxy"])
@pytest.mark.parametrize("name", FORWARDING)
def test_a_proxy_in_between_closes_the_tasks(site: Site, name: str, value: str) -> None:
    for method, path in TASK_REQUESTS:
        assert site.client().send(method, path, headers={name: value}).status == 401


@pytest.mark.parametrize("path", ["/_tasks/", "/_tasks/users:cleanup-tokens"])
def test_a_proxy_without_forwarding_headers_opens_no_tasks(site: Site, path: str) -> None:
    """nginx with nothing but `proxy_pass` speaks HTTP/1.0, to the address that it was given."""
    for version, status in (("1.0", 401), ("1.1", 200 if path == "/_tasks/" else 405)):
        sent = f"GET {path} HTTP/{version}\r\nHost: 127.0.0.1:8080\r\nConnection: close\r\n\r\n"
        assert int(site.raw(sent.encode()).split()[1]) == status
    without_version = site.raw(f"GET {path}\r\n\r\n".encode())
    assert b"scheduledTasks" not in without_version


def test_a_proxy_without_forwarding_headers_shows_no_emails_of_development(service: Service) -> None:
    with running(service, table=TABLE + FOR_DEVELOPMENT) as site:
        for version, status in (("1.0", 404), ("1.1", 200)):
            sent = f"GET /dev/mail HTTP/{version}\r\nHost: 127.0.0.1:8080\r\nConnection: close\r\n\r\n"
            assert int(site.raw(sent.encode()).split()[1]) == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"127.0.0.1:8080", 200),
        (b"localhost", 200),
        (b"[::1]:80", 200),
        (b"evil.example:8080", 401),
        (b"evil.example", 401),
        (b"127.0.0.1.evil.example", 401),
        (b"", 401),
    ],
)
def test_a_foreign_host_name_that_points_to_this_machine_opens_no_tasks(
    site: Site, host: bytes, status: int
) -> None:
    """A browser after DNS rebinding: its Sec-Fetch-Site is same-origin."""
    sent = b"GET /_tasks/ HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n"
    assert site.raw(sent).startswith(b"HTTP/1.1 %d " % status)


def test_a_page_of_another_site_cannot_start_a_task(site: Site) -> None:
    reply = site.client().post("/_tasks/users:cleanup-tokens", headers={"Origin": "https://evil.example"})
    assert reply.status == 403


def test_a_session_decides_about_the_tasks_also_on_the_same_machine(site: Site) -> None:
    user, admin = site.signed_in(site.add()), site.signed_in(site.add("root", role="admin"))
    for method, path in TASK_REQUESTS:
        reply = user.send(method, path)
        assert (reply.status, reply.message) == (403, "Admin access required")
        assert admin.send(method, path).status == 200


def test_no_header_makes_another_machine_an_operator(service: Service) -> None:
    app = App(service, log=Log(as_json=True), listening="127.0.0.1")
    for address, status in (
        ("127.0.0.1", "200"),
        ("127.8.9.1", "200"),
        ("::1", "200"),
        ("192.0.2.1", "401"),
        ("", "401"),
    ):
        status_lines: list[str] = []
        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": "/_tasks/",
            "REMOTE_ADDR": address,
            "SERVER_PROTOCOL": "HTTP/1.1",
            "HTTP_HOST": "127.0.0.1",
        }
        app(environ, lambda line, _headers, lines=status_lines: lines.append(line))
        assert status_lines[0].startswith(status)


def test_an_api_token_of_an_admin_opens_the_tasks(site: Site) -> None:
    root = site.add("root", role="admin")
    opened = site.service.sessions.create_api_token(
        root.id, name="cron", lifetime=timedelta(days=1), by=OPERATOR
    )
    client = site.client(headers={"Authorization": f"Bearer {opened.token}", "Via": "1.1 proxy"})
    assert client.post("/_tasks/users:cleanup-tokens").status == 200
