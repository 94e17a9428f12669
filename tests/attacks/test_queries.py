"""Attacks by the address of a request: its ids and its query."""

import pytest
from support.bodies import accepted, well_formed
from support.commands import OPERATOR, PASSWORD, create_user
from support.paths import filled
from support.web import Client, Site

from usersd.routes import TABLE

# --- ids ---

ODD_IDS = [
    "0", "-1", "01", "00", "+1", "%2B1", "1%0a", "%0a1", "1%20", "%201", "1%09", "1.0", "1e3", "0x1", "0b1", "1_0", "1,2", "1;2", "1'",
    "%D9%A1", "%EF%BC%91", "%C2%B9", "%E2%91%A0", "1%CC%81", "1%E2%80%8B", "9" * 19, "9" * 400, "9223372036854775808", "18446744073709551617",
    "nan", "inf", "null", "true", "Me", "ME", "me%20", "inactive2", "*", "%25", "1%25", "1%2b1", "%00", "1%00", "1%2e", "~1", "$1", "[1]", "(1)",
    "1=1", "1--", "%F0%9F%92%A5", "1%7C2", "a" * 3_000,
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path"),
    [(route.method, route.path) for route in TABLE if route.path.startswith("/api/users/<id>")],
)
def test_an_invalid_user_id_is_refused(ada: Client, method: str, path: str) -> None:
    body = accepted((method, filled(path, id="2"))) if method in ("PATCH", "POST", "PUT") else None
    for odd in ODD_IDS:
        reply = ada.send(method, filled(path, id=odd), body)
        assert (reply.status, reply.message) == (400, "Invalid user id"), odd
    for far in ("3", "999999999999999999", "9" * 18):
        reply = ada.send(method, filled(path, id=far), body)
        assert (reply.status, reply.message) == (404, "User not found"), far


@pytest.mark.parametrize("path", ["/api/users/me/sessions", "/api/users/2/sessions"])
def test_an_invalid_session_id_is_refused(ada: Client, path: str) -> None:
    for odd in ODD_IDS:
        assert ada.delete(f"{path}/{odd}").status == 400, odd
    assert ada.delete(f"{path}/999999999999999999").status == 404
    assert ada.get("/api/users/me").status == 200


@pytest.mark.parametrize("odd", ["1%ff", "%ff1", "%c0%b1", "%ed%a0%80"])
def test_an_id_that_is_not_utf_8_matches_no_route(ada: Client, odd: str) -> None:
    assert well_formed(ada.get(f"/api/users/{odd}")).status in (400, 404)


# --- queries ---


def emails(client: Client, query: str) -> list[str]:
    return [user["email"] for user in client.get(f"/api/users?{query}").json["users"]]


def test_sql_wildcards_have_no_meaning_in_a_search(open_site: Site, ada: Client) -> None:
    for email in ("a_b@example.com", "axb@example.com", "100%@example.com"):
        create_user(open_site.service, email, "Somebody \\", PASSWORD, by=OPERATOR)
    assert emails(ada, "search=_") == ["a_b@example.com"]
    assert emails(ada, "search=%25") == ["100%@example.com"]
    assert emails(ada, "search=a_b") == ["a_b@example.com"]
    assert len(emails(ada, "search=%5C")) == 3
    for nothing in (
        "%25%25",
        "%5C%25",
        "%5C_",
        "'%20OR%201=1%20--",
        "%22",
        "*",
        "?",
        "[a-z]",
        "a%00",
        "%F0%9F%92%A5",
    ):
        reply = well_formed(ada.get(f"/api/users?search={nothing}"))
        assert reply.status == 400 or reply.json["users"] == [], nothing


@pytest.mark.parametrize("path", ["/api/users", "/api/users/inactive"])
def test_malformed_queries_are_refused(ada: Client, path: str) -> None:
    for query in (
        "page=0", "page=-1", "page=01", "page=1.0", "page=1e3", "page=%2B1", "page=+1", "page=", "page", "page=x", "page=%D9%A1",
        "page=%EF%BC%91", "page=1%0a", "page=1%00", "page=9999999999999999999", "page=" + "9" * 400, "page=NaN", "page=true", "page=[1]",
        "page=1&page=1", "page=1&page=2", "limit=0", "limit=101", "limit=-1", "limit=1&limit=100", "limit=10.0", "limit=",
        "limit=99999999999999999999", "page=1&limit=1&page=1", "%70age=1&page=1", "search=a&search=b", "search=%00", "search=" + "a" * 201,
        "search=%ff", "search=%ed%a0%80", "%ff=1", "&".join(f"x{n}=1" for n in range(51)), "role=Admin", "role=", "role=root", "role=admin%00",
        "role=admin&role=user", "role[]=admin&role[]=user", "sort=password_hash", "sort=name,email", "order=up",
        *(["active=1", "active=True", "active=", "active=null", "active=true&active=false", "state=", "state=Locked", "state=locked%00",
           "state=locked&state=invited", "group=", "group=Staff", "group=staff%00", "group=a,b", "group=" + "a" * 64, "group=nowhere",
           "group='%20OR%201=1--"] if path == "/api/users" else []),
    ):  # fmt: skip
        assert well_formed(ada.get(f"{path}?{query}")).status == 400, query


@pytest.mark.parametrize(
    "query",
    ["", "page=1", "page=999999999999999999", "page=999999999999999999&limit=100", "limit=100", "x=y", "page[]=7", "Page=0", "PAGE=x",
     "search=", "search=%20", "=", "&&&", "orderBy=1", "search=" + "%25" * 200, "active=true", "role=admin",
     "fields=password_hash", "include=password"],
)  # fmt: skip
def test_other_queries_are_answered_without_a_secret(ada: Client, query: str) -> None:
    reply = well_formed(ada.get(f"/api/users?{query}"))
    assert reply.status == 200
    assert set(reply.json) == {"users", "pagination"}
    assert b"password" not in reply.body.replace(b"last", b"")
    assert b"$2" not in reply.body
