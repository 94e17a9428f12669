"""`serve --dev --app ADDRESS`: an application on this machine behind the daemon, without another proxy."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from support.commands import PASSWORD, Command
from support.daemons import Daemon, free_port, serving, wait_for
from support.documentation import blocks, section
from support.web import hosting

from usersctl.identity_headers import known_names
from usersd.server.connections import Hosted

CONFIGURATION = """
passwordHashing.rounds = 10
[auth]
whitelist = ["/about"]
[auth.roleRules]
"/admin/*" = "admin"
[forward]
basic = true
[forward.headers]
Remote-User = "id"
X-WebAuth-User = "email"
X-Shop-Role = "role"
"""
IDENTITY = ("remote-user", "x-webauth-user", "remote-assertion")


class Application:
    """Answers with what it received. The second part of /slow comes when `go` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.waiting = 0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        raw = environ["wsgi.input"].read()
        seen = {
            "method": environ["REQUEST_METHOD"],
            "target": environ["REQUEST_URI"],
            "size": len(raw),
            "headers": {
                name.removeprefix("HTTP_").replace("_", "-").lower(): value
                for name, value in environ.items()
                if name.startswith(("HTTP_", "CONTENT_"))
            },
        }
        start_response("201 Made", [("Content-Type", "application/json"), ("Set-Cookie", "theirs=1; Path=/")])
        yield json.dumps(seen).encode()
        if environ["PATH_INFO"] == "/slow":
            self.waiting += 1
            self.go.wait(10)
            self.waiting -= 1
            yield b" "
        if environ["PATH_INFO"] == "/large":
            yield from [b" " * 65536] * 320


class Behind:
    def __init__(self, daemon: Daemon, application: Application) -> None:
        self.daemon = daemon
        self.application = application
        self.visitor = daemon.client()
        self.user = daemon.client()
        assert self.user.login("ada@example.com", PASSWORD).status == 200
        self.token = self.user.token


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    usersctl = Command(tmp_path_factory.mktemp("dev"))
    usersctl.configure(CONFIGURATION)
    application = Application()
    with (
        hosting(Hosted(app=application, max_body=100_000_000)) as port,
        serving(usersctl, "--dev", "--app", f"http://127.0.0.1:{port}/") as daemon,
    ):
        trial = usersctl.folder / "users-dev.db"
        assert usersctl.is_unused
        create = ("create", "ada@example.com", "--name", "Zoë", "--password-stdin", "--db", str(trial))
        assert usersctl(*create, stdin=PASSWORD).code == 0
        yield Behind(daemon, application)


def test_a_page_without_a_session_leads_to_the_login_and_anything_else_is_a_401(behind: Behind) -> None:
    page = behind.visitor.get("/a%2Fb?c=1&d=%20", headers={"Accept": "text/html"})
    assert page.status == 302
    assert page.header("Location") == "/login?redirect=/a%252Fb%3Fc%3D1%26d%3D%2520"
    for method, accept in (("GET", "*/*"), ("POST", "text/html"), ("DELETE", "*/*")):
        refused = behind.visitor.send(method, "/things", headers={"Accept": accept})
        assert (refused.status, refused.message) == (401, "Authentication required")
        assert refused.header("Location") == "/login?redirect=/things"


def test_the_application_learns_the_user_and_nothing_that_signs_in(behind: Behind) -> None:
    token = behind.token
    by_cookie = {"Cookie": f"mine=1; auth_token={token}; also=2", "Authorization": "Basic Zm9vOmJhcg=="}
    by_bearer = {"Authorization": f"Bearer {token}"}
    for sent, kept in (
        (by_cookie, {"cookie": "mine=1; also=2", "authorization": "Basic Zm9vOmJhcg=="}),
        (by_bearer, {}),
    ):
        seen = behind.daemon.client().get("/reports/7?x=%20%C3%A4", headers=sent)
        assert (seen.status, seen.json["target"]) == (201, "/reports/7?x=%20%C3%A4")
        headers = seen.json["headers"]
        assert [headers.get(name) for name in IDENTITY] == ["8", "ada@example.com", ""]
        assert {name: headers[name] for name in ("cookie", "authorization") if name in headers} == kept
        assert token not in seen.body.decode()
        assert headers["host"] == headers["x-forwarded-host"] == f"127.0.0.1:{behind.daemon.port}"
        assert (headers["x-forwarded-for"], headers["x-forwarded-proto"]) == ("127.0.0.1", "http")


def test_wrong_basic_credentials_are_a_401_with_a_challenge(behind: Behind) -> None:
    for credentials in ("YWRhOng=", "!", ""):
        reply = behind.visitor.get("/page", headers={"Authorization": f"Basic {credentials}"})
        assert (reply.status, reply.all("WWW-Authenticate")[0][:6]) == (401, "Basic ")


def test_no_visitor_names_the_user_in_a_header(behind: Behind) -> None:
    more = (
        "Remote-Assertion",
        "X-WebAuth-User",
        "X-Shop-Role",  # of this configuration only
        "Remote-Anything",
        "X-Remote-Anything",
        "X-Original-URL",
        "Forwarded",
        "X-Real-IP",
    )
    forged = dict.fromkeys((*known_names(), *more), "root")
    forged |= {name.replace("-", mark): "root" for name in forged for mark in "_.~"}
    for client in (behind.visitor, behind.user):
        # In several requests, because the head of one is limited.
        for first in range(0, len(forged), 40):
            some = dict(list(forged.items())[first : first + 40])
            seen = client.get("/about", headers=some)
            assert seen.status == 201
            assert "root" not in seen.json["headers"].values()
    assert [behind.visitor.get("/about").json["headers"].get(name) for name in IDENTITY] == ["", "", ""]


def test_a_visitor_does_not_choose_the_page_that_is_judged(behind: Behind) -> None:
    for headers in ({"X-Original-URL": "/about"}, {"X-Forwarded-Uri": "/about", "X-Forwarded-Method": "GET"}):
        assert behind.visitor.get("/page", headers=headers).status == 401
        assert behind.user.get("/admin/x", headers=headers).status == 403
    assert behind.visitor.get("/about%2F..%2Fadmin").status == 401


def test_a_page_for_admins_is_refused_to_a_user(behind: Behind) -> None:
    assert behind.user.get("/admin/x").message == "Admin access required"
    page = behind.user.get("/admin/x", headers={"Accept": "text/html"})
    assert (page.status, b"This page is for admins" in page.body) == (403, True)


def test_the_paths_of_the_service_do_not_reach_the_application(behind: Behind) -> None:
    for path, status in (("/login", 200), ("/account", 302), ("/dev/mail", 200), ("/api/users/me", 401)):
        assert behind.visitor.get(path).status == status, path
    assert behind.user.get("/api/users/me").json["user"]["name"] == "Zoë"
    assert behind.user.get("/api/users/auth/verify").status == 404
    assert [behind.user.get(path).status for path in ("/", "/health", "/api/things")] == [201, 201, 201]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"])
def test_each_method_and_its_body_pass(behind: Behind, method: str) -> None:
    seen = behind.user.send(method, "/things", raw=b"x" * 300_000, headers={"Content-Type": "text/x"})
    assert (seen.status, seen.all("Set-Cookie")) == (201, ["theirs=1; Path=/"])
    if method != "HEAD":
        assert (seen.json["method"], seen.json["size"]) == (method, 300_000)
        assert seen.json["headers"]["content-type"] == "text/x"


def test_a_body_in_chunks_passes(behind: Behind) -> None:
    with closing(behind.user.connection()) as connection:
        connection.request("PUT", "/things", iter([b"abc", b"de"]), {"Cookie": f"auth_token={behind.token}"})
        assert json.loads(connection.getresponse().read())["size"] == 5


def test_large_bodies_pass_both_ways(behind: Behind) -> None:
    seen = behind.user.send("PUT", "/large", raw=b"x" * 20_000_000)
    assert (seen.json["size"], len(seen.body) > 20_000_000) == (20_000_000, True)
    # The service keeps its own limit.
    assert behind.user.patch("/api/users/me", raw=b" " * 65_537).status == 413


def test_an_answer_is_passed_on_part_by_part(behind: Behind) -> None:
    behind.application.go.clear()
    connection = behind.user.connection()
    connection.request("GET", "/slow", headers={"Cookie": f"auth_token={behind.token}"})
    answer = connection.getresponse()
    assert answer.read1().startswith(b'{"method": "GET"')
    behind.application.go.set()
    assert answer.read() == b" "
    connection.close()


def test_an_application_that_is_slow_leaves_the_pages_of_the_service_as_they_are(behind: Behind) -> None:
    behind.application.go.clear()
    with ExitStack() as stack:
        for _ in range(4):  # as many as there are threads for quick requests
            connection = stack.enter_context(closing(behind.user.connection()))
            connection.request("GET", "/slow", headers={"Cookie": f"auth_token={behind.token}"})
        wait_for(lambda: behind.application.waiting == 4)
        assert behind.visitor.get("/login").status == 200
        assert behind.application.waiting == 4
        behind.application.go.set()


def test_a_websocket_is_refused_clearly(behind: Behind) -> None:
    reply = behind.user.get("/ws", headers={"Connection": "Upgrade", "Upgrade": "WebSocket"})
    assert (reply.status, reply.message) == (501, "The development proxy passes on no WebSockets")


def test_an_application_that_is_away_is_a_502_that_says_so(usersctl: Command) -> None:
    usersctl.configure('auth.whitelist = ["/*"]\n')
    away = f"http://127.0.0.1:{free_port()}"
    with serving(usersctl, "--dev", "--no-samples", "--app", away.removeprefix("http://")) as daemon:
        page = daemon.client().get("/x?y=1", headers={"Accept": "text/html"})
        assert page.status == 502
        for words in ("The application does not answer", away, 'href="/x?y=1"'):
            assert words in page.body.decode()
        reply = daemon.client().post("/x", {})
        assert (reply.status, reply.message) == (502, f"The application at {away} does not answer")


# --- the start ---


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--app", "http://127.0.0.1:5000"], "--app and --no-samples are for development"),
        (["--no-samples"], "--app and --no-samples are for development"),
        (["--dev", "--app", "http://192.0.2.1:5000"], "the development proxy leads to this machine only"),
        (["--dev", "--app", "http://example.com"], "the development proxy leads to this machine only"),
        (["--dev", "--app", "https://127.0.0.1:5000"], "not an address of the form"),
        (["--dev", "--app", "http://127.0.0.1:5000/app"], "not an address of the form"),
        (["--dev", "--app", "http://a@127.0.0.1:5000"], "not an address of the form"),
        (["--dev", "--app", "http://127.0.0.1:5000?a=1"], "not an address of the form"),
        (["--dev", "--app", "http://127.0.0.1:5000/#a"], "not an address of the form"),
        (["--dev", "--app", "127.0.0.1:0"], "not an address of the form"),
        (["--dev", "--app", "http://localhost:0"], "not an address of the form"),
        (["--dev", "--app", "http://127.0.0.1:x"], "not an address"),
        (["--dev", "--app", "5000"], "not an address"),
        (["--dev", "--app", "localhost"], "not an address of the form HOST:PORT or http://HOST:PORT"),
        (["--dev", "--app", "192.0.2.1:5000"], "the development proxy leads to this machine only"),
        (["--dev", "--app", "http://localhost:8080"], "that is the port of this daemon"),
        (["--dev", "--app", "localhost:8080"], "that is the port of this daemon"),
    ],
)
def test_an_application_that_the_proxy_must_not_serve_is_refused_before_anything_is_opened(
    usersctl: Command, words: list[str], problem: str
) -> None:
    refused = usersctl("serve", *words)
    assert (refused.code, problem in refused.stderr) == (2, True), refused
    assert not list(usersctl.folder.glob("*.db"))


def listed(usersctl: Command, database: Path) -> list[str]:
    return [user["email"] for user in usersctl("list", "--json", "--db", database).json]


def test_a_trial_has_a_database_and_emails_of_its_own_with_sample_people(usersctl: Command) -> None:
    usersctl.add("ada")
    usersctl.configure('mailer.host = "127.0.0.1"\nmailer.port = 1\n')  # a trial sends nothing there
    trial = usersctl.folder / "users-dev.db"
    with serving(usersctl, "--dev") as daemon:
        (line,) = daemon.events("trial")
        assert line["message"] == f"For other commands on this database: usersctl list --db {trial}"
        (listening,) = daemon.events("listening")
        assert listening["database"] == str(trial)
        # Browsers make no passkey for an address that is no name.
        assert listening["base_url"] == f"http://localhost:{daemon.port}"
        assert b"Sample ID" in daemon.client().get("/login").body
        (line,) = daemon.events("no-admin")
        assert line["message"].endswith(f" --db {trial}")
        client = daemon.client()
        assert b'href="/dev/mail"' in client.get("/forgot-password").body
        assert client.post("/api/users/password/forgot", {"email": "yukawa@example.com"}).status == 200
        assert client.login("ada@example.com", PASSWORD).status == 401
        (_,) = wait_for(lambda: list((usersctl.folder / "mail-dev").glob("*.eml")))
        assert client.get("/dev/mail").status == 200
        leads_to = client.get("/api/users/auth/oauth/redirect").header("Location") or ""
        assert client.get(leads_to.removeprefix(f"http://localhost:{daemon.port}")).status == 200
    people = listed(usersctl, trial)
    assert len(people) == 7
    assert len(usersctl("list", "--inactive", "--json", "--db", trial).json) == 1
    assert not (usersctl.folder / "mail").exists()
    assert listed(usersctl, usersctl.database) == ["ada@example.com"]
    # Only the first start adds them.
    assert usersctl("delete", *people[1:], "--yes", "--db", str(trial)).code == 0
    with serving(usersctl, "--dev"):
        assert listed(usersctl, trial) == people[:1]


def test_a_trial_takes_the_database_of_the_command_line_and_no_samples(usersctl: Command) -> None:
    other = usersctl.folder / "other.db"
    with serving(usersctl, "--dev", "--no-samples", "--db", str(other)) as daemon:
        assert daemon.events("listening")[0]["database"] == str(other)
    assert listed(usersctl, other) == []
    assert not (usersctl.folder / "users-dev.db").exists()


def test_an_application_is_tested_as_the_page_shows(usersctl: Command) -> None:
    (script,) = blocks(section("docs/integrating/ten-minutes.md", "In your tests"), "sh")
    create, serve, *rest = script.splitlines()
    assert usersctl.shell(create).code == 0
    with hosting(Hosted(app=Application(), max_body=100_000)) as port:
        words = serve.removeprefix("usersctl serve ").removesuffix(" &").replace("5000", str(port))
        with serving(usersctl, *words.split()) as daemon:
            asked = usersctl.shell("\n".join(rest).replace("8080", str(daemon.port)))
    assert json.loads(asked.stdout)["headers"]["remote-role"] == "admin"
