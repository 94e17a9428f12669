"""Attacks on forward authentication: no header speaks for another, and no answer leads elsewhere."""

import re
from collections.abc import Callable, Iterator
from ipaddress import ip_network
from urllib.parse import unquote

import pytest
from support.commands import OPERATOR
from support.spellings import ASKS, HERE, RULES, VERIFY, WHITELIST
from support.web import Site, running

from usersctl.service import Service

SECRET = "shared by two, and unknown to others"


@pytest.fixture
def site(make_service: Callable[..., Service]) -> Iterator[Site]:
    with running(
        make_service(trusted_proxies=HERE, whitelist=WHITELIST, role_rules=RULES, assertion_secret=SECRET)
    ) as running_site:
        yield running_site


# --- whose word counts ---


def test_headers_of_an_untrusted_address_are_ignored(make_service: Callable[..., Service]) -> None:
    for trusted in ((), (ip_network("10.0.0.0/8"),), (ip_network("127.0.0.2"),)):
        with running(
            make_service(trusted_proxies=trusted, whitelist=WHITELIST, assertion_secret=SECRET)
        ) as site:
            for ask in ASKS:
                reply = site.client().get(VERIFY, headers=ask("/about") | {"X-Forwarded-For": "10.0.0.1"})
                assert (reply.status, reply.header("Location")) == (401, "/login")


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Original-URL": "/about", "X-Forwarded-Uri": "/page"},
        {"X-Original-URL": "/page", "X-Forwarded-Uri": "/about"},
        {"X-Original-URL": "/about", "X-Forwarded-Uri": ""},
        {"X-Original-URL": "", "X-Forwarded-Uri": "/about"},
        {"X-Original-URL": "/about", "X-Forwarded-Uri": "/about?x"},
        {"X-Forwarded-Uri": "/about, /page"},
        {"X-Forwarded-Uri": "/docs/x, /admin"},
        {"X-Forwarded-Uri": "/docs/x /admin"},
        {"X-Original-URL": "http://a?/docs/x"},
        {"X-Original-URL": "http://a#/docs/x"},
        {"X-Original-URL": "http://a@b/docs/x"},
        {"X-Original-URL": "http://a:x/docs/x"},
        {"X-Original-URL": "http:///docs/x"},
        {"X-Original-URL": "ftp://a/docs/x"},
        {"X-Original-URL": "//docs/x"},
        {"X-Original-URL": "docs/x"},
        {"X-Original-URL": "/docs/x#/../admin"},
        {"X-Original-URL": "/docs/x#y"},
        {"X-Original-URL": "/docs\\x"},
        {"X-Original-URL": "/docs%2fx"},
        {"X-Original-URL": "/docs/a%2Fb"},
        {"X-Original-URL": "/docs/a%5cb"},
        {"X-Original-URL": "/docs/%ff"},
        {"X-Original-Uri": "/docs/x"},
        {"X-Original-Path": "/docs/x"},
        {"X-Rewrite-URL": "/docs/x"},
        {"X-Forwarded-Prefix": "/docs"},
        {"X-Forwarded-Path": "/docs"},
        {"X_Original_URL": "/docs/x"},
        {"X_Forwarded_Uri": "/docs/x"},
        {"Referer": "/docs/x"},
    ],
)
def test_an_ambiguous_path_is_not_public(site: Site, headers: dict[str, str]) -> None:
    reply = site.client().get(VERIFY, headers=headers)
    assert reply.status == 401
    assert re.fullmatch(r"/login(\?redirect=/[!-~]*)?", str(reply.header("Location")))


def test_two_different_headers_are_both_ignored(site: Site) -> None:
    for name in ("X-Original-URL", "X-Forwarded-Uri"):
        for first, second in (("/about", "/page"), ("/page", "/about"), ("/about", "/about")):
            answer = site.raw(
                f"GET {VERIFY} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{name}: {first}\r\n{name}: {second}\r\n\r\n".encode()
            )
            assert answer.startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(
    "target",
    ["/x%0d%0aSet-Cookie:%20a=b", "/x?a=%0d%0aX:y", "/x\x85y", "/x\xa0y", "/<script>", '/"onload=', "/x'y", "/x%00", "/\xff\xfe", "/?redirect=//evil.example",
     "//evil.example/", "/\\evil.example", "/%5cevil.example", "/%09/evil.example", "https://evil.example/x", "https://site.example//evil.example"],
)  # fmt: skip
def test_the_redirect_to_the_login_stays_on_this_site(site: Site, target: str) -> None:
    for ask in ASKS:
        for more in ({}, {"Accept": "text/html"}):
            reply = site.client().get(VERIFY, headers=ask(target) | more)
            assert reply.status in (302, 401)
            location = str(reply.header("Location"))
            assert re.fullmatch(r"/login(\?redirect=/(?![/\\])[A-Za-z0-9/%._~-]*)?", location), location
            assert not reply.header("Set-Cookie")
            back = unquote(location.partition("redirect=")[2])
            assert back == "" or re.match(r"/(?![/\\])", back)


# --- who asks ---


@pytest.mark.parametrize(
    "name",
    [
        "Remote-User",
        "Remote-Role",
        "Remote-Assertion",
        "X-Forwarded-User",
        "X-Remote-User",
        "Remote_User",
        "X-User",
    ],
)
def test_no_request_header_sets_the_identity(site: Site, name: str) -> None:  # fmt: skip
    ada = site.add()
    for headers in ({name: "1"}, {name: "admin"}):
        assert site.client().get(VERIFY, headers=ASKS[0]("/page") | headers).status == 401
        reply = site.signed_in(ada).get(VERIFY, headers=ASKS[0]("/page") | headers)
        assert (reply.header("Remote-User"), reply.header("Remote-Role")) == ("1", "user")
        assert site.signed_in(ada).get(VERIFY, headers=ASKS[0]("/admin") | headers).status == 403


def test_invalid_sessions_are_anonymous(site: Site) -> None:
    ada = site.add()
    token = site.signed_in(ada).cookies["auth_token"]
    for cookie in (
        "",
        "x",
        "A" * 43,
        token[:-1],
        token + "A",
        token.lower(),
        f"{token} ",
        f'"{token}"',
        f"{token},",
    ):
        client = site.client(headers={"Cookie": f"auth_token={cookie}"})
        good = cookie.strip(" ") == token
        assert client.get(VERIFY, headers=ASKS[0]("/page")).status == (200 if good else 401), cookie
    site.service.sessions.revoke_all([ada.id], by=OPERATOR)
    client = site.client(cookies={"auth_token": token})
    assert client.get(VERIFY, headers=ASKS[0]("/page")).status == 401
    assert client.get(VERIFY, headers=ASKS[0]("/about")).header("Remote-User") == ""


def test_another_site_learns_nothing_from_verify(make_service: Callable[..., Service]) -> None:
    with running(make_service(allowed_origins=("https://app.example",))) as site:
        ada = site.signed_in(site.add())
        for origin in ("https://evil.example", "null", "http://127.0.0.1:8080.evil.example"):
            reply = ada.get(VERIFY, headers={"Origin": origin})
            assert not [name for name, _ in reply.headers if name.lower().startswith("access-control")]
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert ada.send(method, VERIFY).status == 405
