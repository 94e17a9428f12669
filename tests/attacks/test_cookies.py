"""Attacks by cookies and tokens: bombs, malformed, planted, tampered and stolen ones, and headers that are echoed."""

import base64
import hashlib
import string
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from support.commands import OPERATOR, PASSWORD, create_user
from support.fakes import FakeClock
from support.web import Client, Reply, Site, running

from usersctl.models import User
from usersctl.service import Service
from usersd.cookies import MAX_COOKIE_HEADER, cookie_values

WORDS = {"email": "ada@example.com", "password": PASSWORD}


@pytest.fixture
def token(service: Service, add: Callable[..., User]) -> str:
    add()
    return service.sessions.login("ada@example.com", PASSWORD).token


def with_cookie(site: Site, cookie: str, path: str = "/api/users/me") -> Reply:
    return site.client().get(path, headers={"Cookie": cookie})


@contextmanager
def https(make_service: Callable[..., Service]) -> Iterator[Site]:
    service = make_service(base_url="https://users.example")
    create_user(service, "ada@example.com", "Ada", PASSWORD, by=OPERATOR)
    with running(service) as site:
        yield site


# --- neighbours ---


@pytest.mark.parametrize(
    "neighbour",
    [
        '{"j":1}', 'j={"j":1}', 'j={"a":"b;c"}', "Path=/", "Path", "Domain=evil.example", "Max-Age=0", "expires=Thu, 01 Jan 1970 00:00:00 GMT",
        "$Version=1", '$Path="/"', "HttpOnly", "Secure", "SameSite", "=", "==", "=x", "x", "x=", '"', 'x="', 'x="a', 'x="\\"', 'x="\\\\', "x=a=b=c",
        "x=,", "x y=z", "x\ty=z", "[x]=1", "x=(1)", "x=<y>", "x=@/:?", "x=%00", "x=\xe4\xf6", "\xe4=1", "x=\xff\xfe", "x='", "x=`", "x=a b", " ; ;; ",
        "auth_token", "auth_token ", "Auth_Token=x", "AUTH_TOKEN=x", "auth_tokens=x", "xauth_token=x", "auth_token[]=x", "__Host-auth_token=x",
        "auth_token=", 'auth_token=""', "auth_token==", "auth_token=a b", "auth_token=\xe4", "auth_token=" + "x" * 200, "auth_token=x.y",
        "a=1; " * 1_000,
    ],
    ids=repr,
)  # fmt: skip
def test_cookies_of_other_applications_neither_sign_in_nor_out(
    site: Site, token: str, neighbour: str
) -> None:
    ours = f"auth_token={token}"
    for cookie in (
        f"{neighbour}; {ours}",
        f"{ours}; {neighbour}",
        f"{neighbour};{ours}",
        f"{ours};{neighbour}",
    ):
        assert with_cookie(site, cookie).json["user"]["email"] == "ada@example.com"
    assert with_cookie(site, neighbour).status == 401


@pytest.mark.parametrize("before", [0, 1, 2])
def test_up_to_three_cookies_of_the_same_name_are_tried(site: Site, token: str, before: int) -> None:
    planted = [f"auth_token={letter * 43}" for letter in "abcd"]
    mine = f"auth_token={token}"
    assert with_cookie(site, "; ".join([*planted[:before], mine, *planted[before:]])).status == 200


def test_a_fourth_cookie_of_the_same_name_is_not_tried(site: Site, token: str) -> None:
    planted = [f"auth_token={letter * 43}" for letter in "abc"]
    assert with_cookie(site, "; ".join([*planted, f"auth_token={token}"])).status == 401
    same = [f"auth_token={'a' * 43}"] * 50
    assert with_cookie(site, "; ".join([*same, f"auth_token={token}"])).status == 200


def test_malformed_cookies_of_the_same_name_are_not_counted(site: Site, token: str) -> None:
    malformed = [f"auth_token=a b{number}" for number in range(3)]
    assert with_cookie(site, "; ".join([*malformed, f"auth_token={token}"])).status == 200


def test_several_cookie_headers_are_one(site: Site, token: str) -> None:
    answer = site.raw(
        b"GET /api/users/me HTTP/1.1\r\nHost: x\r\nConnection: close\r\nCookie: a=b\r\nCookie: auth_token=%b\r\n\r\n"
        % token.encode()
    )
    assert answer.startswith(
        (b"HTTP/1.1 200 ", b"HTTP/1.1 401 ")
    )  # joined with a comma by some servers: no crash


# --- bombs ---

BOMBS = [
    '\\"' * 32_000, '"' + '\\"' * 32_000, 'x="' + "\\1" * 32_000, ";" * 64_000, "=" * 64_000, "; " * 32_000, "a=b;" * 16_000,
    "auth_token=x;" * 5_000, " " * 64_000, "auth_token" * 6_400, "auth_token=" + "x" * 64_000, '"' * 64_000, "\\" * 64_000, "\t;" * 32_000,
]  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: repr(bomb[:12]))
def test_a_cookie_bomb_costs_nothing(site: Site, bomb: str) -> None:
    for size in (MAX_COOKIE_HEADER - 600, 64_000):
        began = time.perf_counter()
        reply = with_cookie(site, bomb[:size])
        assert reply.status in (401, 431)
        assert reply.message
        assert time.perf_counter() - began < 1
    began = time.process_time()
    for size in (MAX_COOKIE_HEADER, 64_000):
        cookie_values(bomb[:size], "auth_token")
    assert time.process_time() - began < 0.1


def test_no_cookie_is_taken_from_a_header_that_is_too_long() -> None:
    cookie = "; auth_token=x"
    longest = "a" * (MAX_COOKIE_HEADER - len(cookie)) + cookie
    assert cookie_values(longest, "auth_token") == ["x"]
    assert cookie_values("a" + longest, "auth_token") == []


# --- the name ---


def test_over_https_only_the_cookie_with_the_host_prefix_counts(
    make_service: Callable[..., Service],
) -> None:
    with https(make_service) as site:
        reply = site.client().login("ada@example.com", PASSWORD)
        (cookie,) = reply.cookies()
        assert cookie.startswith("__Host-auth_token=")
        assert sorted(cookie.split("; ")[1:]) == ["HttpOnly", "Path=/", "SameSite=Lax", "Secure"]
        token = cookie.partition("=")[2].partition(";")[0]
        assert with_cookie(site, f"__Host-auth_token={token}").status == 200
        for name in (
            "auth_token",
            "__host-auth_token",
            "__Secure-auth_token",
            "__Host-Auth_Token",
            " __Host-auth_tokenx",
        ):
            assert with_cookie(site, f"{name}={token}").status == 401
        assert with_cookie(site, f"auth_token={'a' * 43}; __Host-auth_token={token}").status == 200
        (cleared,) = site.client().delete("/api/users/session").all("Set-Cookie")
        assert cleared.startswith("__Host-auth_token=;")
        assert "Max-Age=0" in cleared
        assert "Secure" in cleared


def test_over_http_the_cookie_has_its_plain_name_and_is_not_secure(site: Site, token: str) -> None:
    (cookie,) = site.client().login("ada@example.com", PASSWORD).cookies()
    assert sorted(cookie.split("; ")[1:]) == ["HttpOnly", "Path=/", "SameSite=Lax"]
    assert with_cookie(site, f"__Host-auth_token={token}").status == 401


# --- fixation ---


def test_a_planted_token_does_not_become_a_session(site: Site, token: str) -> None:
    for planted in ("a" * 43, token[::-1], "x"):
        victim = site.client(cookies={"auth_token": planted})
        reply = victim.login("ada@example.com", PASSWORD)
        assert reply.status == 200
        assert victim.cookies["auth_token"] != planted
        assert with_cookie(site, f"auth_token={planted}").status == 401


def test_an_attackers_session_does_not_become_the_victims(
    site: Site, token: str, add: Callable[..., User]
) -> None:
    add("mallory")
    planted = site.service.sessions.login("mallory@example.com", PASSWORD).token
    victim = site.client(cookies={"auth_token": planted})
    assert victim.login("ada@example.com", PASSWORD).status == 200
    assert victim.cookies["auth_token"] not in (planted, token)
    assert with_cookie(site, f"auth_token={planted}").status == 401  # ended, and not Ada's
    assert with_cookie(site, f"auth_token={token}").status == 200  # another browser of hers


def test_a_login_that_fails_ends_no_session(site: Site, token: str) -> None:
    headers = {"Cookie": f"auth_token={token}"}
    for words in (
        {"email": "ada@example.com", "password": "wrong"},
        {"email": "x"},
        {},
        WORDS | {"rememberMe": "x"},
    ):
        reply = site.client().post("/api/users/session", words, headers=headers)
        assert reply.status in (400, 401)
        assert not reply.all("Set-Cookie")
    assert with_cookie(site, f"auth_token={token}").status == 200


def test_every_login_makes_a_token_of_its_own(site: Site, token: str) -> None:
    clients = [site.client() for _ in range(5)]
    for client in clients:
        client.login("ada@example.com", PASSWORD)
    tokens = {token, *(client.cookies["auth_token"] for client in clients)}
    assert len(tokens) == 6
    assert all(len(token) == 43 for token in tokens)


# --- tokens ---


def test_an_altered_token_is_rejected(site: Site, token: str) -> None:
    alphabet = string.ascii_letters + string.digits + "-_"
    others = {
        token[:at] + alphabet[(alphabet.index(token[at]) + 1) % 64] + token[at + 1 :]
        for at in range(len(token))
    }
    stored = hashlib.sha256(token.encode()).digest()
    others |= {
        token[:-1], token + "a", token + "=", "=" + token, token.swapcase(), token.lower(), token[::-1], token * 2, "a", "-" * 43,
        stored.hex(), base64.urlsafe_b64encode(stored).decode().rstrip("="), base64.b64encode(token.encode()).decode().rstrip("="),
        token + "%00", token + "%20", f'"{token}"', f"{token} x", f"{token}.x", "null", "undefined", "%", "_" * 43, "1", "' OR 1=1 --",
    }  # fmt: skip
    others.discard(token)
    for other in others:
        assert with_cookie(site, f"auth_token={other}").status == 401, other
        reply = site.client().get("/api/users/me", headers={"Authorization": f"Bearer {other}"})
        assert reply.status == 401, other


def test_a_token_is_taken_from_nowhere_but_cookie_and_bearer(site: Site, token: str) -> None:
    nobody = site.client()
    for query in (
        "token",
        "auth_token",
        "access_token",
        "authorization",
        "__Host-auth_token",
        "session",
        "bearer_token",
    ):
        assert nobody.get(f"/api/users/me?{query}={token}").status == 401
        assert nobody.send("DELETE", "/api/users/me/sessions/1", {query: token}).status == 401
    for name in ("X-Auth-Token", "X-Access-Token", "Auth-Token", "Token", "Proxy-Authorization", "X-Authorization", "X-Api-Key", "auth_token",
                 "Cookie2", "X-Cookie", "X-Forwarded-User", "Remote-User", "X-Remote-User", "X-User-Id", "X-Forwarded-Email"):  # fmt: skip
        for value in (token, f"Bearer {token}", f"auth_token={token}", "1", "ada@example.com"):
            assert nobody.get("/api/users/me", headers={name: value}).status == 401, name
    for scheme in ("Basic", "Token", "Digest", "", "BearerX", "Bearer:", "Bearer,", "Bearer=", "auth_token"):
        assert (
            nobody.get("/api/users/me", headers={"Authorization": f"{scheme} {token}".strip()}).status == 401
        )
    basic = base64.b64encode(f"ada@example.com:{PASSWORD}".encode()).decode()
    assert nobody.get("/api/users/me", headers={"Authorization": f"Basic {basic}"}).status == 401
    assert nobody.get(f"/api/users/me;auth_token={token}").status in (400, 401)
    assert nobody.get("/api/users/me", headers={"Authorization": f"bearer {token}"}).status == 200


def test_a_token_in_a_query_is_not_written_down(site: Site, token: str) -> None:
    nobody = site.client()
    for path in (
        f"/?token={token}", f"/login?TOKEN={token}", f"/x?%74oken={token}", f"/login?redirect=%2Fconfirm-email%3Ftoken%3D{token}%26email%3Dx",
        f"/login?redirect=/x?access_token={token}", f"/login?redirect=%252Fx%253F%2574oken%253D{token}", f"/x?a=1;token={token}",
        f"/x?{'a=1&' * 60}token={token}", f"/x?password={token}&state={token}&code={token}", f"/x?next=http://h/#id_token={token}",
        f"/confirm-email?email=ada@example.com&token={token}", f"/x?token[]={token}", f"/x?auth_token={token}", f"/x?reset_token={token}",
    ):  # fmt: skip
        lines = len(site.log)
        nobody.get(path)
        assert len(site.log) > lines, path
        assert token not in site.stream.getvalue(), path
    nobody.get(
        "/api/users/me",
        headers={
            "Cookie": f"auth_token={token}",
            "Authorization": f"Bearer {token}",
            "Referer": f"/?token={token}",
        },
    )
    nobody.post("/api/users/session", WORDS | {"token": token})
    assert token not in site.stream.getvalue()
    assert PASSWORD not in site.stream.getvalue()


def test_a_token_of_one_user_opens_no_other_account(site: Site, token: str, add: Callable[..., User]) -> None:
    add("bob")
    mine = site.client(cookies={"auth_token": token})
    bob = site.client()
    bob.login("bob@example.com", PASSWORD)
    (ada_session,) = mine.get("/api/users/me/sessions").json["sessions"]
    (bob_session,) = bob.get("/api/users/me/sessions").json["sessions"]
    assert bob.delete(f"/api/users/me/sessions/{ada_session['id']}").status == 404
    assert bob.get("/api/users/1").status == 403
    assert bob.get("/api/users/1/sessions").status == 403
    assert bob.delete("/api/users/1/sessions").status == 403
    assert mine.get("/api/users/me").json["user"]["id"] == 1
    both = {"Cookie": f"auth_token={token}", "Authorization": f"Bearer {bob.cookies['auth_token']}"}
    assert site.client().get("/api/users/me", headers=both).json["user"]["id"] == 2
    assert mine.delete(f"/api/users/me/sessions/{ada_session['id']}").status == 200
    assert mine.get("/api/users/me").status == 401
    assert bob.delete(f"/api/users/me/sessions/{bob_session['id']}").status == 200
    assert bob.get("/api/users/me").status == 401


def test_a_token_ends_on_every_surface_at_once(
    site: Site, add: Callable[..., User], clock: FakeClock
) -> None:
    admin = site.client()
    add("root", role="admin")
    admin.login("root@example.com", PASSWORD)
    for number, end in enumerate(("logout", "deactivate", "delete", "revoke", "password", "expire")):
        user = add(f"user{number}")
        client, other = site.client(), site.client()
        client.login(user.email, PASSWORD)
        other.login(user.email, PASSWORD)
        old = dict(client.cookies)
        if end == "logout":
            client.delete("/api/users/session")
        elif end == "deactivate":
            assert admin.patch(f"/api/users/{user.id}", {"active": False}).status == 200
        elif end == "delete":
            assert admin.delete(f"/api/users/{user.id}").status == 200
        elif end == "revoke":
            assert admin.delete(f"/api/users/{user.id}/sessions").status == 200
        elif end == "password":
            words = {
                "currentPassword": PASSWORD,
                "newPassword": "another sentence",
                "newPasswordConfirmation": "another sentence",
            }
            assert client.patch("/api/users/password", words).status == 200
            assert client.get("/api/users/me").status == 200
            assert other.get("/api/users/me").status == 401
        else:
            clock.move(minutes=1441)
        ended = Client(site.port, cookies=old)
        assert ended.get("/api/users/me").status == 401, end
        assert ended.get("/").status == 302, end
        assert ended.patch("/api/users/me", {"name": "Mallory"}).status == 401, end
        bearer = {"Authorization": f"Bearer {old['auth_token']}"}
        assert site.client().get("/api/users/me", headers=bearer).status == 401, end
        assert other.get("/api/users/me").status == (200 if end == "logout" else 401), end


# --- what is echoed ---


def test_no_input_becomes_a_response_header(site: Site, token: str) -> None:
    evil = "%0d%0aSet-Cookie:%20evil=1%0d%0a%0d%0a<script>"
    ada = site.client(cookies={"auth_token": token})
    for client in (site.client(), ada):
        for path in (
            f"/{evil}",
            f"/?{evil}",
            f"/login?redirect={evil}",
            f"/x?a={evil}",
            f"/api/users/{evil}",
            f"/assets/{evil}",
            f"/{evil}/x?y={evil}",
        ):
            for method in ("GET", "HEAD", "OPTIONS", "X-EVIL"):
                reply = client.send(
                    method,
                    path,
                    headers={"X-Request-Id": "evil", "Origin": "http://evil.example", "User-Agent": "evil"},
                )
                for name, value in reply.headers:
                    assert "evil" not in name.lower()
                    assert "\n" not in value
                    assert name in ("Location", "Allow") or "evil" not in value.lower(), (name, value)
                assert not reply.all("Set-Cookie")
                assert "evil=1" not in str(reply.header("Location") or "").replace("evil%253D1", "")


def test_no_name_or_address_becomes_a_header_or_a_log_line(site: Site, token: str) -> None:
    ada = site.client(cookies={"auth_token": token})
    assert ada.patch("/api/users/me", {"name": "Ada\r\nSet-Cookie: evil=1"}).status == 400
    assert ada.patch("/api/users/me", {"email": "ada@example.com\r\nBcc: x@example.com"}).status == 400
    before = len(site.log)
    site.client().login('x\r\n{"event": "login"}\x1b[2J', "wrong")
    site.client().get("/x%0a%7b%22event%22:%22login%22%7d%1b%5b2J?a=%0a%0d", headers={"User-Agent": "x\ty"})
    lines = site.log[before:]
    assert [line["event"] for line in lines] == ["login-refused", "request", "request"]
    assert site.stream.getvalue().isascii()
    assert "\x1b" not in site.stream.getvalue()


def test_a_long_address_does_not_fill_the_log(site: Site) -> None:
    for email in ("x" * 60_000, "\U0001f4a5" * 10_000):
        before = len(site.stream.getvalue())
        site.client().login(email, "wrong")
        assert len(site.stream.getvalue()) - before < 6_000
