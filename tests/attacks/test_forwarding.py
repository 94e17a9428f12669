"""Attacks by forged forwarding headers and Host: a client sets neither its own address nor the target of our links."""

import json
from collections.abc import Callable
from ipaddress import ip_network

import pytest
from support.commands import OPERATOR, PASSWORD, create_user
from support.paths import filled
from support.tables import written
from support.web import Site, running

from usersctl.config import Settings
from usersctl.models import User
from usersctl.service import Service
from usersd.request import Request
from usersd.routes import TABLE

FORGED = {
    "X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "evil.example", "X-Forwarded-Port": "443",
    "X-Forwarded-Uri": "/login", "X-Forwarded-Server": "evil.example", "X-Forwarded-Prefix": "/evil.example", "X-Forwarded-Scheme": "https",
    "X-Forwarded-Ssl": "on", "X-Forwarded-By": "evil.example", "Forwarded": "for=203.0.113.9;host=evil.example;proto=https",
    "X-Real-IP": "203.0.113.9", "X-Client-IP": "203.0.113.9", "True-Client-IP": "203.0.113.9", "CF-Connecting-IP": "203.0.113.9",
    "X-Cluster-Client-IP": "203.0.113.9", "Via": "1.1 evil.example", "X-Original-URL": "/login", "X-Rewrite-URL": "/login",
    "X-Original-Host": "evil.example", "X-Host": "evil.example", "X-HTTP-Host-Override": "evil.example", "Front-End-Https": "on",
    "X-Original-Method": "GET", "X-Forwarded-User": "ada@example.com", "Referer": "https://evil.example/", "Script-Name": "/login",
    "X-Script-Name": "/login", "X-Url-Scheme": "https", "X-Request-Id": "evil.example",
}  # fmt: skip


def address(site: Site, **headers: str) -> str:
    """The client address that the service determines from these headers."""
    site.client().get("/login", headers={name.replace("_", "-"): value for name, value in headers.items()})
    return str(site.log[-1]["ip"])


# --- who asks ---


@pytest.mark.parametrize("trusted", [[], ["10.0.0.0/8"], ["203.0.113.0/24", "::/0"]])
def test_forwarding_headers_of_an_untrusted_client_are_ignored(
    make_service: Callable[..., Service], trusted: list[str]
) -> None:
    with running(make_service(trusted_proxies=tuple(map(ip_network, trusted)))) as site:
        assert address(site, **FORGED) == "127.0.0.1"
        for name, value in FORGED.items():
            assert address(site, **{name: value}) == "127.0.0.1", name
        assert address(site, X_Forwarded_For="127.0.0.1, 10.0.0.1") == "127.0.0.1"


@pytest.mark.parametrize(
    ("forwarded", "ip"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("6.6.6.6, 198.51.100.7", "198.51.100.7"),
        ("6.6.6.6, 198.51.100.7, 10.0.0.2", "198.51.100.7"),
        ("6.6.6.6, 198.51.100.7, 10.0.0.2, 127.0.0.1", "198.51.100.7"),
        ("10.9.9.9, 198.51.100.7", "198.51.100.7"),
        ("127.0.0.1, 198.51.100.7", "198.51.100.7"),
        ("6.6.6.6,198.51.100.7,10.0.0.2", "198.51.100.7"),
        (" \t198.51.100.7\t", "198.51.100.7"),
        ("10.0.0.3", "10.0.0.3"),
        ("10.0.0.4, 10.0.0.3", "10.0.0.4"),
        ("6.6.6.6, ::ffff:10.0.0.2", "6.6.6.6"),
        ("6.6.6.6, 2001:db8:1::5", "6.6.6.6"),
        ("6.6.6.6, 2001:db8:2::5", "2001:db8:2::5"),
        ("6.6.6.6, [2001:db8:2::5]", "2001:db8:2::5"),
        ("6.6.6.6, 198.51.100.7:4711", "198.51.100.7"),
        ("6.6.6.6:1, 198.51.100.7:4711, 10.0.0.2:65535", "198.51.100.7"),
        ("6.6.6.6, [2001:db8:2::5]:4711, [2001:db8:1::5]:80", "2001:db8:2::5"),
        ("6.6.6.6, 2001:db8:2::5:4711", "2001:db8:2::5:4711"),
        # A value that is no address ends the walk at the last valid one.
        ("", "127.0.0.1"),
        (",", "127.0.0.1"),
        ("6.6.6.6,", "127.0.0.1"),
        ("unknown", "127.0.0.1"),
        ("6.6.6.6, unknown", "127.0.0.1"),
        ("6.6.6.6, unknown, 10.0.0.2", "10.0.0.2"),
        ("6.6.6.6, 198.51.100.7:", "127.0.0.1"),
        ("6.6.6.6, 198.51.100.7:4711:1", "127.0.0.1"),
        ("6.6.6.6, [2001:db8:2::5]:evil", "127.0.0.1"),
        ("6.6.6.6, 198.51.100.07", "127.0.0.1"),
        ("6.6.6.6, 3325256711", "127.0.0.1"),
        ("6.6.6.6, 0x7f.1", "127.0.0.1"),
        ("6.6.6.6, 10.1", "127.0.0.1"),
        ("6.6.6.6, evil.example", "127.0.0.1"),
        ("6.6.6.6, '198.51.100.7'", "127.0.0.1"),
        # The longest one has 45 characters; whatever is longer is none, and is not kept either.
        ("6.6.6.6, 0000:0000:0000:0000:0000:ffff:198.051.100.007", "127.0.0.1"),
        ("6.6.6.6, 2001:0db8:0002:0000:0000:0000:198.151.100.107", "2001:db8:2::c697:646b"),
        ("6.6.6.6, 2001:0db8:0002:0000:0000:0000:198.151.100.107" + "0" * 5_000, "127.0.0.1"),
        ("198.51.100.7, " * 30 + "10.0.0.2", "198.51.100.7"),
    ],
)
def test_the_chain_of_proxies_is_walked_from_the_right(
    make_service: Callable[..., Service], forwarded: str, ip: str
) -> None:
    trusted = tuple(map(ip_network, ("127.0.0.1", "10.0.0.0/8", "2001:db8:1::/48")))
    with running(make_service(trusted_proxies=trusted)) as site:
        assert address(site, X_Forwarded_For=forwarded) == ip
        # Only this header sets the address.
        assert address(site, **(FORGED | {"X-Forwarded-For": forwarded})) == ip


def test_the_last_of_two_forwarding_headers_is_the_proxys(make_service: Callable[..., Service]) -> None:
    with running(make_service(trusted_proxies=(ip_network("127.0.0.0/8"),))) as site:
        site.raw(
            b"GET /login HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: 198.51.100.7\r\n\r\n"
        )
        assert site.log[-1]["ip"] == "198.51.100.7"
        # An underscore is not a hyphen.
        site.raw(b"GET /login HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX_Forwarded_For: 6.6.6.6\r\n\r\n")
        assert site.log[-1]["ip"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("remote", "forwarded", "ip"),
    [
        ("::ffff:10.0.0.1", "198.51.100.7", "198.51.100.7"),
        ("::ffff:198.51.100.1", "6.6.6.6", "::ffff:198.51.100.1"),
        ("::1", "6.6.6.6", "::1"),
        ("fe80::1%eth0", "6.6.6.6", "fe80::1%eth0"),
        ("2001:db8:1::1", "6.6.6.6", "6.6.6.6"),
        ("", "6.6.6.6", "unix"),  # has no address, and is not trusted for that
        ("unix:", "6.6.6.6", "unix:"),
    ],
)
def test_a_trusted_proxy_matches_in_any_spelling_of_its_address(
    remote: str, forwarded: str, ip: str, make_service: Callable[..., Service]
) -> None:
    settings: Settings = make_service(
        trusted_proxies=(ip_network("10.0.0.0/8"), ip_network("2001:db8:1::/48"))
    ).settings
    environ = {"REQUEST_METHOD": "GET", "REMOTE_ADDR": remote, "HTTP_X_FORWARDED_FOR": forwarded}
    assert Request(environ, settings).ip == ip


def ip_of(forwarded: str, make_service: Callable[..., Service]) -> str:
    settings: Settings = make_service(trusted_proxies=(ip_network("10.0.0.0/8"),)).settings
    environ = {"REQUEST_METHOD": "GET", "REMOTE_ADDR": "10.0.0.1", "HTTP_X_FORWARDED_FOR": forwarded}
    return Request(environ, settings).ip


@pytest.mark.parametrize("zone", ["eth0", "x", "<script>" * 1000])
def test_the_zone_of_an_address_is_not_taken_from_a_header(
    make_service: Callable[..., Service], zone: str
) -> None:
    assert ip_of(f"fe80::1%{zone}", make_service) == "fe80::1"


def test_the_last_twenty_hops_are_read(make_service: Callable[..., Service]) -> None:
    proxies = ["10.0.0.2"] * 20
    assert ip_of(", ".join(["198.51.100.7", *proxies[1:]]), make_service) == "198.51.100.7"
    assert ip_of(", ".join(["198.51.100.7", *proxies]), make_service) == "10.0.0.2"


# --- limits ---


def fail(site: Site, **headers: str) -> int:
    fail.count += 1  # type: ignore[attr-defined]
    words = {"email": f"nobody{fail.count}@example.com", "password": "wrong"}  # type: ignore[attr-defined]
    return (
        site.client()
        .post("/api/users/session", words, headers={n.replace("_", "-"): v for n, v in headers.items()})
        .status
    )


fail.count = 0  # type: ignore[attr-defined]


def test_a_limit_is_not_evaded_by_a_forged_address(make_service: Callable[..., Service]) -> None:
    with running(make_service(failed_logins_per_minute=5)) as site:
        statuses = [
            fail(
                site,
                **{name: value.replace("203.0.113.9", f"203.0.113.{n}") for name, value in FORGED.items()},
            )
            for n in range(8)
        ]
        assert statuses == [401] * 5 + [429] * 3
        assert fail(site) == 429


@pytest.mark.parametrize("client", ["198.51.100.7", "2001:db8:2::{n:x}", "2001:db8:2:0:{n:x}::1"])
def test_behind_a_proxy_the_limit_is_the_clients_own(
    make_service: Callable[..., Service], client: str
) -> None:
    trusted = (ip_network("127.0.0.0/8"),)
    with running(make_service(failed_logins_per_minute=5, trusted_proxies=trusted)) as site:
        statuses = [fail(site, X_Forwarded_For=f"203.0.113.{n}, {client.format(n=n + 1)}") for n in range(7)]
        assert statuses == [401] * 5 + [429] * 2
        assert fail(site, X_Forwarded_For="198.51.100.8") == 401
        assert fail(site, X_Forwarded_For="2001:db8:2:1::1") == 401
        assert fail(site) == 401


def test_an_address_by_another_spelling_has_the_same_limit(make_service: Callable[..., Service]) -> None:
    with running(
        make_service(failed_logins_per_minute=3, trusted_proxies=(ip_network("127.0.0.0/8"),))
    ) as site:
        spellings = [
            "198.51.100.7",
            "::ffff:198.51.100.7",
            "::ffff:c633:6407",
            "0:0:0:0:0:ffff:198.51.100.7",
            "[::FFFF:198.51.100.7]",
        ]
        assert [fail(site, X_Forwarded_For=spelling) for spelling in spellings] == [401] * 3 + [429] * 2


def test_a_session_records_the_address_that_cannot_be_forged(site: Site, add: Callable[..., User]) -> None:
    add()
    client = site.client(headers=FORGED)
    assert client.login("ada@example.com", PASSWORD).status == 200
    (listed,) = client.get("/api/users/me/sessions").json["sessions"]
    assert listed["ip"] == "127.0.0.1"
    with site.service.store.read() as tx:
        assert all(row.origin != "203.0.113.9" for row in tx.audit_rows())


# --- this machine ---


@pytest.mark.parametrize(
    "header", [name for name in FORGED if name.startswith("X-Forwarded-")] + ["Forwarded", "X-Real-IP", "Via"]
)
def test_a_forwarded_request_does_not_count_as_this_machine(site: Site, header: str) -> None:
    assert site.client().get("/_tasks/").status == 200
    for value in ("127.0.0.1", "", "localhost"):
        assert site.client().get("/_tasks/", headers={header: value}).status == 401
        assert site.client().post("/_tasks/users:cleanup-tokens", {}, headers={header: value}).status == 401


@pytest.mark.parametrize(
    ("base_url", "listening"),
    [("http://users.example", "127.0.0.1"), ("https://users.example", "127.0.0.1"), ("http://127.0.0.1:8080", "0.0.0.0"),  # noqa: S104
     ("http://127.0.0.1:8080", "::"), ("http://127.0.0.1:8080", "192.0.2.1"), ("http://127.0.0.1:8080", None),
     ("http://127.0.0.1.example", "127.0.0.1"), ("http://localhost.example", "127.0.0.1")],
)  # fmt: skip
def test_tasks_need_a_session_if_the_service_is_public(
    make_service: Callable[..., Service], base_url: str, listening: str | None
) -> None:
    with running(make_service(base_url=base_url), listening=listening) as site:
        for headers in ({}, {"X-Forwarded-For": "127.0.0.1"}, {"X-Forwarded-Host": "localhost"}):
            assert site.client().get("/_tasks/", headers=headers).status == 401


# --- where links lead ---


@pytest.mark.parametrize("host", ["evil.example", "evil.example:443", "127.0.0.1:8080@evil.example", "127.0.0.1/../evil.example", "evil.example#",
                                  "evil.example\\", "evil.example?x", "<script>", "a" * 5_000, "%0d%0aX: y", ""])  # fmt: skip
@pytest.mark.parametrize("signed_in", [False, True])
def test_no_response_repeats_a_host_header(
    make_service: Callable[..., Service], host: str, signed_in: bool
) -> None:
    service = make_service(whitelist=("/register",), limits_enabled=False)
    create_user(service, "ada@example.com", "Ada", PASSWORD, role="admin", by=OPERATOR)
    token = service.sessions.login("ada@example.com", PASSWORD).token
    with running(service) as site:
        for route in TABLE:
            path = filled(route.path, id="7", session_id="7")
            if (route.method, path) == ("DELETE", "/api/users/session"):
                continue
            lines = [f"{route.method} {path} HTTP/1.1", f"Host: {host}", "Connection: close",
                     *(f"{name}: {value}" for name, value in FORGED.items()), "", ""]  # fmt: skip
            if signed_in:
                lines.insert(2, f"Cookie: auth_token={token}")
            answer = site.raw("\r\n".join(lines).encode())
            assert b"evil.example" not in answer
            assert b"<script>" not in answer.partition(b"\r\n\r\n")[0]
            assert b"\r\nX: y" not in answer
            assert not answer.startswith(b"HTTP/1.1 5"), (route, answer)
            if b"\r\nLocation: " in answer:
                assert b"\r\nLocation: /login" in answer


def test_links_in_emails_come_from_the_configuration(make_service: Callable[..., Service]) -> None:
    service = make_service(whitelist=("/register",), limits_enabled=False)
    assert any(route.path == "/api/users/password/forgot" for route in TABLE)
    create_user(service, "ada@example.com", "Ada", PASSWORD, by=OPERATOR)
    forged = "".join(f"{name}: {value}\r\n" for name, value in FORGED.items())
    with running(service) as site:
        for path, words in (
            ("/api/users/password/forgot", {"email": "ada@example.com"}),
            ("/api/users/register", {"email": "eve@example.com", "name": "Eve", "password": PASSWORD}),
        ):
            body = json.dumps(words)
            answer = site.raw(
                f"POST {path} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n{forged}"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
            )
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"evil.example" not in answer
    # The queued emails, and all other files.
    with service.store.read() as tx:
        assert tx.counts()["outbox"] == 2
    kept = written(service)
    assert b"eve@example.com" in kept
    assert b"evil.example" not in kept
    assert b"203.0.113.9" not in kept
