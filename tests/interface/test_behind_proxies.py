"""What passes a real nginx and a real Caddy on the way to an application, and what does not: names of headers, hosts, uploads,
Basic credentials. The snippets are used as they are printed, on loopback without TLS."""

import base64
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.commands import OPERATOR, PASSWORD, Command
from support.daemons import free_port, serving
from support.documentation import blocks, section
from support.proxies import PAUSE, STARTS, House, echoing, house
from support.web import Reply

from usersctl.errors import StoreUnusable
from usersctl.identity_headers import known_names, spellings
from usersctl.store.sqlite_store import SQLiteStore

BROWSER = {"Accept": "text/html,application/xhtml+xml", "Sec-Fetch-Mode": "navigate"}
FORWARD_HEADERS = (
    ("Remote-User", "id"),
    ("Remote-Email", "email"),
    ("Remote-Name", "name"),
    ("Remote-Role", "role"),
    ("X-Own-Name", "email"),
    ("X-Own-Groups", "groups"),
)
MARKS = "!#$%&'*+^`|~"
MB = 1024 * 1024


@pytest.fixture(scope="module", params=["nginx", "caddy"])
def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """The application gets X-WEBAUTH-USER and X-Remote-User by the snippet, the others by the configuration."""
    words = ("--header", "X-WEBAUTH-USER=email", "--header", "x-remote-user=id")
    folder = tmp_path_factory.mktemp(request.param)
    changes: dict[str, Any] = {"forward_headers": FORWARD_HEADERS, "forward_basic": True}
    with house(request.param, folder, plain=True, words=words, **changes) as site:
        yield site


def headers_of(reply: Reply) -> dict[str, str]:
    """The headers that the application got."""
    assert reply.status == 200, (reply.status, reply.body)
    headers: dict[str, str] = reply.json["headers"]
    return headers


# --- the trial that the manual shows ---


@pytest.mark.parametrize("kind", ["caddy", "nginx"])
def test_the_trial_of_the_manual_leads_to_the_application(usersctl: Command, kind: str) -> None:
    shown = section("docs/integrating/forward-auth.md", "Try it")
    (configuration,), (script,) = blocks(shown, "toml"), blocks(shown, "sh")
    (printed,) = re.findall(r"^usersctl (snippet .*) > Caddyfile$", script, re.MULTILINE)
    port, daemon = free_port(), free_port()
    assert configuration.count("localhost:8090") == 1
    usersctl.configure(
        f"passwordHashing.rounds = 10\n{configuration.replace('8090', str(port))}port = {daemon}\n"
    )
    usersctl.add("ada", role="admin")
    with ExitStack() as stack:
        application = stack.enter_context(echoing())
        stack.enter_context(serving(usersctl, port=daemon))
        assert printed.count("127.0.0.1:5000") == 1
        words = printed.replace("caddy", kind).replace("127.0.0.1:5000", f"127.0.0.1:{application}").split()
        snippet = usersctl.ok(*words).stdout
        visitor = stack.enter_context(STARTS[kind](usersctl.folder, snippet, port)).visitor()
        assert visitor.get("/", headers=BROWSER).header("Location") == "/login?redirect=/"
        assert visitor.login("ada@example.com", PASSWORD).status == 200
        assert headers_of(visitor.get("/"))["remote-email"] == "ada@example.com"


def test_the_short_file_of_the_manual_leads_to_the_daemon_and_closes_verify(usersctl: Command) -> None:
    (file,) = blocks(section("docs/operating/proxy.md", "Print a configuration"), "nginx")
    port, daemon = free_port(), free_port()
    usersctl.configure(
        f'baseUrl = "http://localhost:{port}"\nserver = {{port = {daemon}, trustedProxies = ["127.0.0.1"]}}\n'
    )
    for old, new in (
        (r" +ssl_certificate.*\n", ""),
        ("listen 443 ssl", f"listen 127.0.0.1:{port}"),
        ("127.0.0.1:8080", f"127.0.0.1:{daemon}"),
        ("accounts.example.com", "localhost"),
    ):
        file, places = re.subn(old, new, file)
        assert places, old
    with serving(usersctl, port=daemon), STARTS["nginx"](usersctl.folder, file, port) as proxy:
        assert proxy.visitor().get("/login").status == 200
        for target in (
            "/api/users/auth/verify",
            "//api/users/auth/verify?role=user",
            "/api/users/auth%2fverify",
        ):
            assert proxy.visitor().get(target).status == 404, target


# --- headers ---


def test_the_application_gets_the_headers_of_the_configuration_and_of_the_snippet(here: House) -> None:
    headers = headers_of(here.visitor(here.ada).get("/page"))
    ada = str(here.ada.id)
    expected = {
        "remote-user": ada,
        "remote-email": "ada@example.com",
        "remote-name": "Ada L%C3%B6velace",
        "remote-role": "user",
        "x-own-name": "ada@example.com",
        "x-webauth-user": "ada@example.com",
        "x-remote-user": ada,
    }
    assert {name: headers[name] for name in expected} == expected
    assert headers.get("x-own-groups", "") == ""


@pytest.mark.parametrize(
    "how",
    [
        *("as they are", "in small letters", "with underscores", "with one underscore", "mixed", "with dots"),
        "with other marks",
    ],
)
def test_no_identity_header_of_a_visitor_reaches_the_application(here: House, how: str) -> None:
    change = {
        "as they are": lambda name: name,
        "in small letters": str.lower,
        "with underscores": lambda name: name.replace("-", "_"),
        "with one underscore": lambda name: name.replace("-", "_", 1),
        "mixed": lambda name: spellings(name)[-2 % len(spellings(name))].upper(),
        "with dots": lambda name: name.replace("-", "."),  # PHP reads a dot as an underscore
        "with other marks": lambda name: name.replace(
            "-", MARKS[len(name) % len(MARKS)]
        ),  # and lighttpd these
    }[how]
    names = known_names() + [name for name, _ in FORWARD_HEADERS]
    if here.kind == "caddy":
        names += ["Remote-Anything", "X-Remote-Anything", "X-Auth-Request-Anything", "X-Forwarded-Anything"]
    forged = {change(name): "forged" for name in names}
    assert len(forged) > 100
    for connection in ("close", ", ".join(("close", *list(forged)[:40]))):
        sent = forged | {"Connection": connection}
        for path, visitor in (("/page", here.visitor(here.ada)), ("/about", here.visitor())):
            headers = headers_of(visitor.get(path, headers=sent))
            assert [name for name, value in headers.items() if "forged" in value] == []
        assert (
            headers_of(here.visitor(here.ada).get("/page", headers=sent))["x-webauth-user"]
            == "ada@example.com"
        )
        assert here.visitor().get("/page", headers=sent).status == 401


def test_another_server_of_nginx_that_takes_underscores_lets_no_visitor_name_the_user(tmp_path: Path) -> None:
    def beside_another(snippet: str) -> str:
        (address,) = re.findall(r"listen (\S+);", snippet)
        return f"server {{ listen {address} default_server; underscores_in_headers on; }}\n{snippet}"

    words = ("--header", "X-WEBAUTH-USER=email")
    with house("nginx", tmp_path, plain=True, words=words, edited=beside_another) as here:
        names = (
            "Remote_User",
            "Remote_Email",
            "Remote_Role",
            "Remote_Groups",
            "Remote_Assertion",
            "X-WEBAUTH_USER",
        )
        visitor = here.visitor(here.ada)
        # Up to the Host, nginx reads a request as the other server says.
        forged = dict.fromkeys((*names, "X_WEBAUTH_USER", "Other_Header"), "forged")
        visitor.headers = forged | visitor.headers
        headers = headers_of(visitor.get("/page"))
        assert [name for name, value in headers.items() if "forged" in value] == ["other-header"]


def test_caddy_lets_no_request_pass_if_the_daemon_sends_other_names(tmp_path: Path) -> None:
    """Else the application would get a placeholder of Caddy as the name of the user."""
    with house("caddy", tmp_path, plain=True) as here:
        settings = here.site.service.settings
        assert here.visitor(here.ada).get("/page").status == 200
        other = settings._replace(forward_headers=(("X-Other", "id"),))
        object.__setattr__(here.site.service, "settings", other)
        reply = here.visitor(here.ada).get("/page")
        assert (reply.status, b"print this file again" in reply.body) == (502, True)


# --- host and scheme ---


def test_the_application_gets_scheme_host_and_port_as_the_visitor_sees_them(here: House) -> None:
    headers = headers_of(here.visitor(here.ada).get("/page"))
    host = f"localhost:{here.proxy.port}"
    assert (headers["host"], headers["x-forwarded-host"]) == (host, host)
    assert headers["x-forwarded-proto"] == "http"
    reply = here.visitor(here.ada).get("/page")
    assert reply.json["who"]["email"] == "ada@example.com"  # by the assertion, which covers the host


def test_a_visitor_chooses_neither_scheme_nor_prefix(here: House) -> None:
    names = (
        "X-Forwarded-Scheme",
        "X-Forwarded-Ssl",
        "X-Forwarded-Protocol",
        "X-Forwarded-Prefix",
        "X-Scheme",
    )
    forged = dict.fromkeys((*names, "X-Url-Scheme", "Front-End-Https", "X-Script-Name"), "forged")
    headers = headers_of(here.visitor(here.ada).get("/page", headers=forged))
    assert [name for name, value in headers.items() if value == "forged"] == []


def test_a_request_for_one_host_with_the_name_of_another_reaches_no_application(here: House) -> None:
    host = f"localhost:{here.proxy.port}"
    for target, named in (
        ("/page", "evil.example"),
        ("/page", f"evil.example:{here.proxy.port}"),
        (f"http://{host}/page", "evil.example"),
        (f"http://{host}/page", f"evil.example:{here.proxy.port}"),
        ("http://evil.example/page", host),
        ("/page", f"evil.example:{here.proxy.port} {host}"),
    ):
        reply = here.visitor(here.ada).get(target, headers={"Host": named})
        # Caddy answers with nothing where no site has that name.
        assert reply.status != 200 or not reply.body or reply.json["headers"]["host"] == host, (target, named)


def test_a_page_is_redirected_to_the_login_by_one_location(here: House) -> None:
    page = here.visitor().get("/page?x=1", headers=BROWSER)
    assert (page.status, page.all("Location")) == (302, ["/login?redirect=/page%3Fx%3D1"])
    other = here.visitor().get("/page?x=1")
    assert (other.status, other.all("Location")) == (401, ["/login?redirect=/page%3Fx%3D1"])
    assert other.all("Cache-Control") == ["no-store"]


def test_a_visitor_signs_in_and_out_over_http(here: House) -> None:
    visitor = here.visitor()
    way = str(visitor.get("/page", headers=BROWSER).header("Location"))
    assert visitor.get(way, headers=BROWSER).status == 200
    assert visitor.login("ada@example.com", PASSWORD).status == 200
    assert headers_of(visitor.get("/page", headers=BROWSER))["remote-user"] == str(here.ada.id)
    assert visitor.delete("/api/users/session").status == 200
    assert visitor.get("/page").status == 401


@pytest.mark.parametrize("kind", ["nginx", "caddy"])
def test_no_request_passes_while_the_database_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def gone(_store: SQLiteStore) -> None:
        raise StoreUnusable("users.db is gone")

    with house(kind, tmp_path, plain=True) as here:
        visitor = here.visitor(here.ada)
        headers_of(visitor.get("/page"))
        with monkeypatch.context() as patch:
            patch.setattr(SQLiteStore, "glance", gone)
            for headers in ({}, BROWSER):
                refused = visitor.get("/page", headers=headers)
                assert (refused.status, refused.all("Retry-After")) == (503, ["5"])
        headers_of(visitor.get("/page"))


# --- uploads ---


def test_an_upload_of_20_mb_reaches_the_application(here: House) -> None:
    body = b"0123456789abcdef" * (20 * MB // 16)
    sent = {"Content-Type": "application/octet-stream"}
    reply = here.visitor(here.ada).send("PUT", "/files/large", raw=body, headers=sent)
    assert reply.status == 200
    assert reply.json["body"].encode() == body
    assert here.visitor().send("PUT", "/files/large", raw=body[:MB], headers=sent).status == 401


def test_the_limit_on_uploads_stands_in_the_file_for_nginx(tmp_path: Path) -> None:
    snippet = tmp_path / "snippet"
    with house("nginx", tmp_path, plain=True) as here:
        (limit,) = re.findall(r"client_max_body_size (\d+)m; # <--", snippet.read_text())
        size = int(limit) * MB
        for length, status in ((size + 1, 413),):
            asks = {"Content-Length": str(length), "Expect": "100-continue", "Content-Type": "text/plain"}
            assert here.visitor(here.ada).send("PUT", "/files/x", headers=asks).status == status
        # The pages and the interface of the daemon take no more than before.
        asks["Content-Length"] = str(2 * MB)
        assert here.visitor(here.ada).send("POST", "/api/users/session", headers=asks).status == 413


# --- behind a CDN ---


@pytest.mark.parametrize(("kind", "language"), [("nginx", "nginx"), ("caddy", "caddyfile")])
def test_the_address_of_a_visitor_comes_through_a_cdn(tmp_path: Path, kind: str, language: str) -> None:
    text = section("docs/operating/proxy.md", "Behind a CDN or a load balancer")
    (lines,) = blocks(text, language)

    def behind_a_cdn(snippet: str) -> str:
        if kind == "nginx":
            lines_here = lines.replace("192.0.2.0/24", "127.0.0.1")
            return snippet.replace("    server_name", f"{lines_here}    server_name", 1)
        snippet = re.sub(r"(reverse_proxy 127\S+)\n", r"\1 {\n}\n", snippet)
        return re.sub(r"(reverse_proxy 127\S+ \{\n)", rf"\1{lines}", snippet)

    with house(kind, tmp_path, plain=True, edited=behind_a_cdn) as here:
        visitor = here.visitor()
        visitor.headers["CF-Connecting-IP"] = "192.0.2.77"
        assert visitor.login("ada@example.com", PASSWORD).status == 200
        (session,) = visitor.get("/api/users/me/sessions").json["sessions"]
        assert session["ip"] == "192.0.2.77"
        token = here.site.service.sessions.create_api_token(
            here.ada.id, name="x", lifetime=None, by=OPERATOR, ranges="192.0.2.77"
        ).token
        for address, status in (("192.0.2.77", 200), ("192.0.2.78", 401)):
            headers = {"Authorization": f"Bearer {token}", "CF-Connecting-IP": address}
            assert here.visitor().get("/page", headers=headers).status == status


# --- answers that come part by part ---


def seconds_to_the_first_event(here: House, target: str) -> float:
    connection = here.visitor(here.ada).connection()
    cookies = "; ".join(f"{name}={value}" for name, value in here.cookies(here.ada).items())
    began = time.monotonic()
    connection.request("GET", target, headers={"Host": here.visitor().headers["Host"], "Cookie": cookies})
    reply = connection.getresponse()
    assert reply.readline() == b"data: first\n"
    seconds = time.monotonic() - began
    assert reply.read().endswith(b"data: second\n\n")
    connection.close()
    return seconds


@pytest.mark.slow
def test_an_event_of_the_application_reaches_the_browser_at_once(here: House) -> None:
    assert seconds_to_the_first_event(here, "/events?told") < PAUSE / 2


@pytest.mark.slow
def test_nginx_passes_events_on_at_once_with_the_line_that_its_file_names(tmp_path: Path) -> None:
    def streaming(snippet: str) -> str:
        (line,) = re.findall(r"write here: (proxy_buffering off;)\n", snippet)
        return snippet.replace(
            "        error_page 401 = @sign_in;\n", f"        {line}\n        error_page 401 = @sign_in;\n"
        )

    with house("nginx", tmp_path, plain=True, edited=streaming) as here:
        assert seconds_to_the_first_event(here, "/events") < PAUSE / 2


# --- Basic credentials ---


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_a_client_that_knows_only_basic_reaches_the_application(here: House) -> None:
    token = here.api_token(here.ada)
    headers = headers_of(here.visitor().get("/page", headers=basic("ada@example.com", token)))
    assert headers["remote-user"] == str(here.ada.id)
    assert token not in str(headers)
    assert "authorization" not in headers
    for user, password in (("root@example.com", token), ("ada@example.com", "x"), ("ada@example.com", "")):
        assert here.visitor().get("/page", headers=basic(user, password)).status == 401
    theirs = basic("ada", "of the application")
    assert (
        headers_of(here.visitor(here.ada).get("/page", headers=theirs))["authorization"]
        == theirs["Authorization"]
    )


@pytest.mark.parametrize("kind", ["nginx", "caddy"])
def test_too_many_wrong_basic_credentials_of_a_client_are_a_429(tmp_path: Path, kind: str) -> None:
    changes: dict[str, Any] = {"forward_basic": True, "failed_logins_per_minute": 3}
    with house(kind, tmp_path, plain=True, **changes) as here:
        wrong, right = basic("ada@example.com", "x"), basic("ada@example.com", here.api_token(here.ada))
        assert [here.visitor().get("/page", headers=wrong).status for _ in range(3)] == [401] * 3
        limited = here.visitor().send("PROPFIND", "/page", headers=wrong)
        assert (limited.status, limited.json["statusCode"], limited.all("Location")) == (429, 429, [])
        assert 1 <= int(str(limited.header("Retry-After"))) <= 60
        # Only wrong ones are stopped.
        headers_of(here.visitor().get("/page", headers=right))
        headers_of(here.visitor(here.ada).get("/page", headers=wrong))
        assert here.visitor().get("/page").status == 401
        assert here.visitor().get("/page", headers=BROWSER).status == 302


def test_only_clients_that_are_no_browsers_are_asked_for_basic_credentials(here: House) -> None:
    asked = here.visitor().send("PROPFIND", "/calendar/")
    challenge = f'Basic realm="http://localhost:{here.proxy.port}", charset="UTF-8"'
    assert (asked.status, asked.all("WWW-Authenticate")) == (401, [challenge])
    for headers in (
        {"Sec-Fetch-Mode": "cors"},
        {"X-Requested-With": "XMLHttpRequest"},
        {"Accept": "text/html", "Sec-Fetch-Mode": "no-cors"},
    ):
        reply = here.visitor().get("/page", headers=headers)
        assert (reply.status, reply.all("WWW-Authenticate")) == (401, ["Bearer"]), headers
    for headers in (BROWSER, {"Accept": "text/html"}):
        reply = here.visitor().get("/page", headers=headers)
        # nginx adds that of the daemon to any answer.
        assert (reply.status, reply.header("WWW-Authenticate")) in ((302, None), (302, "Bearer")), headers
