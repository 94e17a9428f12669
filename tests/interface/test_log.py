"""The log: one line for each request and event, with what an operator needs and without secrets."""

import io
import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import OPERATOR, PASSWORD
from support.fakes import FakeClock
from support.postbox import last_link
from support.web import Site

from usersd.log import LONGEST_QUERY, Log, redacted, redacted_path

NOW = "2026-11-20T08:22:19.123Z"
WRONG = "wrong horse battery"
NEW = "another horse battery"
LOGIN = "/api/users/session"


def events(site: Site) -> list[dict[str, Any]]:
    """All events but requests, without the fields that every event has."""
    lines = [line for line in site.log if line["event"] != "request"]
    for line in lines:
        assert line.pop("at") == NOW
        assert re.fullmatch("[0-9a-f]{16}", line.pop("request"))
        assert line.pop("ip") == "127.0.0.1"
    return lines


def requests(site: Site) -> list[dict[str, Any]]:
    return [line for line in site.log if line["event"] == "request"]


# --- requests ---


def test_each_request_is_one_line_with_the_id_of_its_answer(site: Site) -> None:
    client = site.signed_in(ada := site.add())
    before = len(requests(site))
    asked = [
        ("GET", "/api/users/me", 200, ada.id),
        ("HEAD", "/", 200, ada.id),
        ("GET", "/api/users", 403, ada.id),
        ("GET", "/nowhere", 404, ada.id),
        ("PUT", "/api/users/me", 405, ada.id),
        ("DELETE", "/api/users/me/sessions/0", 400, ada.id),
    ]
    replies = [client.send(method, path) for method, path, *_ in asked]
    lines = requests(site)[before:]
    assert [(line["method"], line["path"], line["status"], line["user"]) for line in lines] == asked
    assert [line["request"] for line in lines] == [reply.header("X-Request-Id") for reply in replies]
    for line in lines:
        assert list(line) == ["at", "event", "method", "path", "status", "ms", "ip", "user", "request"]
        assert (line["at"], line["ip"]) == (NOW, "127.0.0.1")
        assert 0 <= line["ms"] < 10_000


def test_a_request_that_cannot_be_parsed_is_logged(site: Site) -> None:
    answer = site.raw(b"POST /api/users/session HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")
    (line,) = requests(site)
    assert (line["status"], f"X-Request-Id: {line['request']}\r\n".encode() in answer) == (413, True)


def test_a_request_refused_for_its_size_is_logged_with_client_and_path(
    make_site: Callable[..., Site],
) -> None:
    site = make_site(trusted_proxies=(ip_network("127.0.0.1"),), allowed_origins=("https://app.example",))
    sent = {"Content-Length": "70000", "X-Forwarded-For": "203.0.113.9", "Origin": "https://app.example"}
    reply = site.client().send("POST", "/api/users/register?token=x", raw=b"x" * 70_000, headers=sent)
    assert (reply.status, reply.message) == (413, "Request body is too large")
    assert reply.header("Access-Control-Allow-Origin") == "https://app.example"
    (line,) = requests(site)
    logged = {"method": "POST", "path": "/api/users/register?token=***", "status": 413, "ip": "203.0.113.9"}
    assert logged.items() <= line.items()
    assert line["request"] == reply.header("X-Request-Id")


@pytest.mark.slow
def test_a_login_refused_for_a_full_queue_is_logged_with_its_client(make_site: Callable[..., Site]) -> None:
    site = make_site(rounds=11, limits_enabled=False, trusted_proxies=(ip_network("127.0.0.1"),))
    ada = site.add()
    with ThreadPoolExecutor(40) as pool:
        headers = {"X-Forwarded-For": "203.0.113.9"}
        login = {"email": ada.email, "password": "wrong one here"}
        replies = list(
            pool.map(lambda _: site.client().send("POST", LOGIN, login, headers=headers), range(40))
        )
    assert {reply.status for reply in replies} == {401, 503}
    for line in requests(site):
        assert (line["method"], line["path"], line["ip"]) == ("POST", LOGIN, "203.0.113.9")


def test_the_logged_address_is_the_clients_behind_a_trusted_proxy(make_site: Callable[..., Site]) -> None:
    site = make_site(trusted_proxies=(ip_network("127.0.0.1"),))
    site.client().get("/login", headers={"X-Forwarded-For": "192.0.2.7"})
    assert [line["ip"] for line in site.log] == ["192.0.2.7"]


# --- events ---


def test_logins_are_logged_with_user_and_address(site: Site) -> None:
    ada = site.add()
    idle = site.add("idle", active=False)
    for email, password in (
        (ada.email, PASSWORD),
        (" ADA@example.com", WRONG),
        ("nobody@example.com", WRONG),
        (idle.email, PASSWORD),
    ):
        site.client().login(email, password)
    site.client().post("/api/users/session", {})
    assert events(site) == [
        {"event": "login", "user": ada.id, "email": ada.email},
        {"event": "login-refused", "user": None, "email": ada.email, "reason": "unauthenticated"},
        {"event": "login-refused", "user": None, "email": "nobody@example.com", "reason": "unauthenticated"},
        {"event": "login-refused", "user": None, "email": idle.email, "reason": "forbidden"},
        {"event": "login-refused", "user": None, "reason": "invalid"},
    ]


def test_a_password_typed_as_email_is_not_logged(site: Site) -> None:
    site.client().login(PASSWORD, PASSWORD)
    assert events(site) == [{"event": "login-refused", "user": None, "reason": "unauthenticated"}]
    assert PASSWORD not in site.stream.getvalue()


def test_a_limit_that_is_hit_is_logged(make_site: Callable[..., Site]) -> None:
    site = make_site(failures_before_delay=1, failed_logins_per_minute=2)
    site.add()
    for email in ("ada@example.com", "ada@example.com", "bea@example.com", "cy@example.com"):
        site.client().login(email, WRONG)
    assert [(line.get("email"), line["reason"]) for line in events(site)] == [
        ("ada@example.com", "unauthenticated"),
        ("ada@example.com", "too_many"),
        ("bea@example.com", "unauthenticated"),
        (None, "too_many"),
    ]


@pytest.mark.parametrize(
    ("path", "event"),
    [("password/forgot", "forgot-password"), ("register/resend", "resend-confirmation")],
)
def test_a_limit_on_emails_that_is_hit_is_logged(
    make_site: Callable[..., Site], path: str, event: str
) -> None:
    site = make_site(forgots_per_minute=1, whitelist=("/register",))
    for _ in range(2):
        site.client().post(f"/api/users/{path}", {"email": "ada@example.com"})
    assert events(site) == [
        {"event": event, "user": None},
        {"event": f"{event}-refused", "user": None, "reason": "too_many"},
    ]


@pytest.mark.slow
def test_changes_are_logged_with_actor_action_and_user(site: Site) -> None:
    root, ada = site.add("root", role="admin"), site.add()
    admin, user = site.signed_in(root), site.signed_in(ada)
    before = len(events(site))
    made = admin.post("/api/users", {"email": "n@example.com", "name": "N", "password": PASSWORD}).json[
        "user"
    ]
    admin.patch(f"/api/users/{ada.id}", {"role": "admin"})
    admin.patch(f"/api/users/{ada.id}", {"role": "user", "name": "A"})
    user.patch(
        "/api/users/password",
        {"currentPassword": PASSWORD, "newPassword": NEW, "newPasswordConfirmation": NEW},
    )
    user.patch("/api/users/me", {"name": "Countess"})
    session = user.get("/api/users/me/sessions").json["sessions"][0]["id"]
    user.delete("/api/users/session")
    admin.post("/_tasks/users:cleanup-tokens")
    admin.delete(f"/api/users/{ada.id}/sessions")
    admin.delete(f"/api/users/{ada.id}")
    admin.delete(f"/api/users/{root.id}")
    by_root = {"user": root.id}
    assert events(site)[before:] == [
        {"event": "create", **by_root, "created": made["id"], "role": "user"},
        {"event": "update", **by_root, "id": ada.id, "role": "admin"},
        {"event": "update", **by_root, "id": ada.id, "role": "user"},
        {"event": "change-password", "user": ada.id},
        {"event": "update-self", "user": ada.id},
        {"event": "logout", "user": None, "account": ada.id, "session": session},
        {"event": "cleanup-tokens", **by_root, "expired": 0, "no_expiration": 0},
        {"event": "revoke-all", **by_root, "id": ada.id},
        {"event": "delete", **by_root, "id": ada.id},
        {"event": "delete-refused", **by_root, "id": root.id, "reason": "last_admin"},
    ]


def test_a_reset_and_the_end_of_a_group_are_logged_with_whose_they_are(site: Site) -> None:
    root, ada = site.add("root", role="admin"), site.add()
    admin = site.signed_in(root)
    site.service.groups.create("staff", by=OPERATOR)
    site.client().post("/api/users/password/forgot", {"email": ada.email})
    link = last_link(site.service)
    before = len(events(site))
    words = {"token": link.token, "email": link.email, "password": NEW, "password_confirmation": NEW}
    assert site.client().post("/api/users/password/reset", words).status == 200
    assert admin.delete("/api/groups/staff").status == 200
    assert events(site)[before:] == [
        {"event": "reset-password", "user": None, "reset": ada.id},
        {"event": "group-delete", "user": root.id, "group": "staff"},
    ]


def test_an_event_has_the_id_of_its_request(site: Site) -> None:
    site.add()
    reply = site.client().login("ada@example.com", PASSWORD)
    assert {line["request"] for line in site.log} == {reply.header("X-Request-Id")}
    assert [line["event"] for line in site.log] == ["login", "request"]


# --- never a secret ---


def test_no_secret_is_ever_logged(site: Site, clock: FakeClock) -> None:
    root, ada = site.add("root", role="admin"), site.add()
    admin, user = site.signed_in(root), site.signed_in(ada, rememberMe=True)
    api = site.service.sessions.create_api_token(ada.id, name="ci", lifetime=timedelta(days=1), by=OPERATOR)
    setup = site.service.first_admin.link().partition("token=")[2]
    secrets = {PASSWORD, WRONG, NEW, api.token, setup, *admin.cookies.values(), *user.cookies.values()}
    clock.move(minutes=5)
    site.client().login(ada.email, WRONG)
    site.client(headers={"Authorization": f"Bearer {api.token}"}).get("/api/users/me")
    site.client().get(f"/api/users/me?access_token={api.token}")
    site.client().get(f"/api/users/me?api_key={api.token}")
    site.client().delete(f"/api/users/me/tokens/{api.token}")
    site.client().get(f"/setup?token={setup}")
    site.client().get(f"/setup%3Ftoken={setup}")
    site.client().get(f"/setup%253Ftoken%253D{setup}")
    site.client().get(f"/setup&token={setup}")
    site.client().get(f"/nowhere?x=1&token={setup}")
    site.client().get(f"/login?redirect=/setup%3Ftoken%3D{setup}")
    site.client().post(
        "/api/users/setup", {"token": setup, "email": "x@example.com", "name": "X", "password": NEW}
    )
    user.patch(
        "/api/users/password",
        {"currentPassword": PASSWORD, "newPassword": NEW, "newPasswordConfirmation": NEW},
    )
    secrets |= set(user.cookies.values())
    user.get("/api/users", raw=json.dumps({"password": NEW}).encode())
    user.delete("/api/users/session")
    site.client().login(ada.email, NEW)
    text = site.stream.getvalue()
    assert len(site.log) > 10
    assert [secret for secret in secrets if secret in text] == []
    with site.service.store.read() as tx:
        hashes = [credentials.password_hash for credentials in tx.all_credentials()]
    assert [hash_ for hash_ in hashes if hash_ in text] == []


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", ""),
        ("page=2&search=ada", "?page=2&search=ada"),
        ("token=abc", "?token=***"),
        ("TOKEN=abc", "?TOKEN=***"),
        ("%74oken=abc", "?token=***"),
        ("%74%6f%6B%65%6E=abc", "?token=***"),
        ("a=1&token=abc&b=2&token=def", "?a=1&token=***&b=2&token=***"),
        ("code=c&state=s&iss=i", "?code=***&state=***&iss=i"),
        ("access_token=a&id_token=b&password=c", "?access_token=***&id_token=***&password=***"),
        ("redirect=/x%3Ftoken%3Dabc%26y%3D1", "?redirect=/x?***"),
        ("redirect=/x?token=abc", "?redirect=/x?***"),
        ("redirect=/forgot-password", "?redirect=/forgot-password"),
        ("token=abc%00%ff", "?token=***"),
        ("token", "?token=***"),
        ("token%3Dabc%26email%3Dx", "?token=***"),
        (f"api_key=usr_{'x' * 49}&page=2", "?api_key=usr_***&page=2"),
        ("email%3Dx%26token%3Dabc", "?email=***"),
        ("token%253Dabc", "?token=***"),
        ("&".join(f"a{n}=token" for n in range(60)), "?***"),
        ("%" * 2_001, "?***"),
    ],
)
def test_secrets_are_removed_from_a_logged_query(query: str, message: str) -> None:
    assert redacted(query) == message


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/users/7", "/users/7"),
        ("/docs/a=b%20c", "/docs/a=b%20c"),
        ("/confirm-email?token=abc", "/confirm-email?***"),
        ("/confirm-email%3Ftoken=abc", "/confirm-email?***"),
        ("/confirm-email%3Ftoken%3Dabc%26email%3Dx", "/confirm-email?***"),
        ("/confirm-email%253Ftoken%253Dabc", "/confirm-email?***"),
        ("/confirm-email&token=abc", "/confirm-email?***"),
        ("/confirm-email;email=x;token=abc", "/confirm-email?***"),
        ("/nowhere/token=abc", "/nowhere/token?***"),
        (f"/usr_{'x' * 49}", "/usr_***"),
        ("/" + "x" * 2_001, "/" + "x" * 2_001),
        ("/x" + "%" * 2_001, "/x?***"),
    ],
)
def test_secrets_are_removed_from_a_logged_path(path: str, message: str) -> None:
    assert redacted_path(path) == message


@given(
    before=st.text(max_size=10),
    after=st.text(max_size=10),
    cased=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_no_spelling_of_the_name_lets_a_token_into_the_log(
    before: str, after: str, cased: list[bool]
) -> None:
    from urllib.parse import quote

    name = "".join(f"%{ord(c):02X}" if hexed else c for c, hexed in zip("token", cased, strict=True))
    query = f"a={quote(before)}&{name}=SECRETSECRET&b={quote(after)}"
    assert "SECRETSECRET" not in redacted(query)


@pytest.mark.parametrize(
    "word", ["token", "state", "code", "password", "?", "%3f", "=", "&a=token", "/", "%"]
)
def test_no_query_keeps_the_daemon_from_other_requests(site: Site, word: str) -> None:
    """Its line in the log is written by the thread that answers it, and Python lets one thread work at a time."""
    client, path = site.client(), "/api/users/me?redirect=" + word * (15_000 // len(word))
    client.get(path)

    began = time.process_time()
    client.get(path)

    assert time.process_time() - began < 0.15


@pytest.mark.parametrize("word", ["token", "%74oken", "code", "?", "&a=token"])
def test_the_longest_query_that_is_logged_takes_a_millisecond(word: str) -> None:
    query = "redirect=" + word * (LONGEST_QUERY // len(word) - 9)
    redacted(query)

    began = time.process_time()
    for _ in range(100):
        redacted(query)

    assert time.process_time() - began < 0.1


# --- harmless ---

HOSTILE = [
    "/%0aevent=forged",
    "/%0d%0a%7B%22event%22:%22login%22%7D",
    "/%1b%5B31mred",
    "/%00",
    "/%C2%9B31m",
    "/%E2%80%AEgpj",
    "/%E2%80%A8line",
    "/%FF%FE",
    "/x?search=%0aevent=forged",
    "/x?%0a=%1b",
    "/x%20status=200%20user=1",
]


@pytest.mark.parametrize("path", HOSTILE)
def test_a_requested_path_cannot_break_a_log_line(site: Site, path: str) -> None:
    site.client().get(path)
    text = site.stream.getvalue()
    assert text.count("\n") == 1
    assert text.isascii()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)
    assert site.log[0]["event"] == "request"


@pytest.mark.parametrize(
    "value",
    ["a\nb", "a\r\nevent=login", "\x1b[31mred\x1b[0m", "\x9b31m", "\u202egpj", "\u2028x", "\x00", "\ud800"],
)
def test_on_a_terminal_no_value_can_break_or_colour_a_line(value: str) -> None:
    stream = io.StringIO()
    Log(stream, as_json=False, now=FakeClock()).event("request", path=value, user=None)
    text = stream.getvalue()
    assert text.startswith(f"{NOW} request path=")
    assert text.removesuffix("\n").isprintable()


def test_a_value_with_spaces_cannot_pass_for_other_fields() -> None:
    stream = io.StringIO()
    Log(stream, as_json=False, now=FakeClock()).event("request", path='/é status=200 "', ip="", status=404)
    assert stream.getvalue() == f'{NOW} request path="/é status=200 \\"" ip="" status=404\n'


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """One that takes colours."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


@pytest.mark.parametrize(("status", "style"), [(200, "32"), (302, "36"), (404, "33"), (503, "1;31")])
def test_a_request_on_a_terminal_has_the_colour_of_its_status(
    monkeypatch: pytest.MonkeyPatch, terminal: Terminal, status: int, style: str
) -> None:
    Log(terminal, now=FakeClock()).event("request", path="/\x1b[0m", status=status)
    line = terminal.getvalue()
    assert f"\x1b[{style}mrequest\x1b[0m " in line
    assert f"\x1b[{style}mstatus={status}\x1b[0m" in line
    assert re.sub(r"\x1b\[[0-9;]*m", "", line) == f"{NOW} request path=/\\x1b[0m status={status}\n"
    pipe = io.StringIO()
    Log(pipe, as_json=False, now=FakeClock()).event("request", status=status)
    for name, value in (("TERM", "dumb"), ("NO_COLOR", "1")):
        plain = Terminal()
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            Log(plain, now=FakeClock()).event("request", status=status)
        assert plain.getvalue() == pipe.getvalue() == f"{NOW} request status={status}\n"


@pytest.mark.parametrize(
    ("event", "style"), [("error", "1;31"), ("no-admin", "33"), ("listening", "32"), ("login", "1")]
)
def test_an_event_on_a_terminal_has_the_colour_of_its_kind(
    terminal: Terminal, event: str, style: str
) -> None:
    Log(terminal, now=FakeClock()).event(event, user=1)
    assert terminal.getvalue() == f"\x1b[2m{NOW}\x1b[0m \x1b[{style}m{event}\x1b[0m user=1\n"


def test_a_quiet_log_has_events_and_no_requests() -> None:
    stream = io.StringIO()
    log = Log(stream, as_json=False, quiet=True, now=FakeClock())
    log.event("request", status=200)
    log.event("login", user=1)
    assert stream.getvalue() == f"{NOW} login user=1\n"


def test_text_on_a_terminal_and_json_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        Log(stream, now=FakeClock()).event("login", user=1, email="ada@example.com", ip=None)
    assert terminal.getvalue() == f"{NOW} login user=1 email=ada@example.com\n"
    assert json.loads(pipe.getvalue()) == {
        "at": NOW,
        "event": "login",
        "user": 1,
        "email": "ada@example.com",
        "ip": None,
    }


def test_a_log_that_cannot_be_written_does_not_stop_requests(site: Site) -> None:
    client = site.signed_in(site.add())
    site.stream.close()
    assert client.get("/api/users/me").status == 200


def test_a_full_disk_below_the_log_ends_nothing() -> None:
    disk = Path("/dev/full").open("w")  # noqa: SIM115 - to close it is an error, too
    Log(disk, as_json=True).event("login", user=1)
    with pytest.raises(OSError, match="No space left"):
        disk.close()
