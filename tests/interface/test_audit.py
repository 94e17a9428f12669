"""The audit trail over the interface: who may read it, its filters and pages, and its check in steps."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.commands import OPERATOR, PASSWORD, by_hand
from support.fakes import FakeClock
from support.tables import audit
from support.web import Client, Site

from usersctl import trail


@pytest.fixture
def admin(site: Site) -> Client:
    return site.signed_in(site.add("admin", role="admin"))


def rows(client: Client, **query: object) -> list[dict[str, Any]]:
    reply = client.get(f"/api/audit?{urlencode(query)}")
    assert reply.status == 200, reply.body
    listed: list[dict[str, Any]] = reply.json["rows"]
    return listed


def ids(client: Client, **query: object) -> list[int]:
    return [row["id"] for row in rows(client, **query)]


def test_an_admin_reads_the_rows_as_the_command_prints_them(site: Site, admin: Client) -> None:
    created = admin.post(
        "/api/users", {"email": "ada@example.com", "name": "Ada", "password": "correct horse battery"}
    )
    reply = admin.get("/api/audit")
    newest, oldest = reply.json["rows"]
    stored = audit(site.service)
    assert newest == stored[1]._asdict() | {"actor_email": "admin@example.com"}
    assert oldest == stored[0]._asdict() | {"actor_email": None}
    assert (newest["actor"], newest["origin"], newest["action"]) == ("user:1", "127.0.0.1", "create")
    assert (newest["user_id"], newest["email"]) == (created.json["user"]["id"], "ada@example.com")
    assert reply.json["next"] is None


def test_pages_go_on_at_next_until_it_is_null(site: Site, admin: Client) -> None:
    for number in range(6):
        site.add(f"user{number}")
    seen, before = [], None
    while True:
        page = admin.get("/api/audit?limit=3" + (f"&before={before}" if before else "")).json
        seen += [row["id"] for row in page["rows"]]
        before = page["next"]
        if before is None:
            break
    assert seen == [7, 6, 5, 4, 3, 2, 1]
    assert len(rows(admin)) == 7


def test_filters_combine(site: Site, admin: Client, clock: FakeClock) -> None:
    ada = site.add("ada")
    clock.move(days=10)
    admin = site.signed_in(site.service.accounts.get(1))
    admin.patch(f"/api/users/{ada.id}", {"name": "Countess"})
    admin.delete(f"/api/users/{ada.id}")
    assert ids(admin, user=ada.id) == ids(admin, user="Ada@Example.com") == [4, 3, 2]
    assert (
        ids(admin, actor="user:1") == ids(admin, actor="admin@example.com") == ids(admin, actor=1) == [4, 3]
    )
    assert ids(admin, action="create") == [2, 1]
    assert ids(admin, action="create", user=ada.id) == [2]
    assert ids(admin, user=ada.id, actor=OPERATOR.name, since="30d") == [2]
    assert ids(admin, since="7d") == [4, 3]
    assert ids(admin, until="7d") == [2, 1]
    assert ids(admin, since="2026-11-20", until="2026-11-21") == [2, 1]
    assert ids(admin, user=99) == ids(admin, user="nobody@example.com") == []


@pytest.mark.parametrize(
    "query",
    [
        "user=",
        "user=%20",
        "actor=",
        "action=",
        "since=",
        "until=",
        "user=ada",
        "user=-1",
        "actor=root",
        "actor=cli:a%00b",
        "action=creat",
        "action=create%00",
        "since=yesterday",
        "since=7days",
        "until=2026-11-31",
        "until=%F0%9F%95%B0",
        "limit=0",
        "limit=101",
        "limit=x",
        "before=0",
        "before=-1",
        "before=1e3",
        "before=9999999999999999999",
        "user=1&user=2",
        "actor=%ff",
    ],
)
def test_a_wrong_value_is_a_400(admin: Client, query: str) -> None:
    reply = admin.get(f"/api/audit?{query}")
    assert reply.status == 400
    assert reply.message


def test_an_unknown_action_is_refused_with_the_known_ones(admin: Client) -> None:
    message = admin.get("/api/audit?action=creat").message
    assert message.startswith("action must be one of accept-invitation, ")
    assert " lockdown-on," in message


def test_only_admins_read_the_trail(site: Site) -> None:
    user = site.signed_in(site.add())
    for path in ("/api/audit", "/api/audit?user=1", "/api/audit?limit=x", "/api/audit/check"):
        assert (site.client().get(path).status, user.get(path).status) == (401, 403)


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
QUERY = st.dictionaries(
    st.sampled_from(["user", "actor", "action", "since", "until", "limit", "before"]),
    TEXT
    | st.sampled_from(
        ["1", "7d", "system", "user:1", "create", "2026-11-20", "9" * 40, "0001-01-01", "9999-12-31"]
    ),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=QUERY)
def test_no_filter_ends_in_an_error_of_the_server(admin: Client, query: dict[str, str]) -> None:
    reply = admin.get(f"/api/audit?{urlencode(query)}")
    assert reply.status in (200, 400), (query, reply.body)


def test_a_text_of_a_row_is_data(site: Site, admin: Client) -> None:
    name = '</script><img src=x onerror="alert(1)">'
    site.service.accounts.update(1, name=name, by=OPERATOR._replace(name=f"cli:{name}"))
    assert rows(admin, actor=f"cli:{name}")[0]["details"]["name"] == name


# --- the check ---


def steps(client: Client) -> list[dict[str, Any]]:
    done = [client.get("/api/audit/check").json]
    while done[-1]["next"] is not None:
        last = done[-1]
        done.append(client.get(f"/api/audit/check?after={last['next']}&rows={last['rows']}").json)
    return done


def test_the_chain_is_checked_in_steps(site: Site, admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trail, "STEP", 2)
    for number in range(4):
        site.add(f"user{number}")
    first, second, last = steps(admin)
    assert (first["rows"], first["of"], first["next"]) == (2, 5, 2)
    assert (second["rows"], second["next"]) == (4, 4)
    assert last == {
        "intact": True,
        "rows": 5,
        "of": 5,
        "head": rows(admin)[0]["hash"],
        "first_broken": None,
        "problem": None,
        "next": None,
    }
    by_hand(site.service.store.database, "UPDATE audit SET email = 'x' WHERE id = 3")
    first, last = steps(admin)
    assert (last["intact"], last["first_broken"], last["next"]) == (False, 3, None)
    assert last["problem"].startswith("row 3 does not follow")


@pytest.mark.parametrize("query", ["after=0", "after=x", "rows=-1", "after=1&after=2"])
def test_a_step_from_nowhere_is_a_400(admin: Client, query: str) -> None:
    assert admin.get(f"/api/audit/check?{query}").status == 400


def test_a_step_behind_the_end_finds_nothing_and_breaks_nothing(admin: Client) -> None:
    assert admin.get("/api/audit/check?after=999999999999999999&rows=1").json["rows"] == 1


def test_a_row_of_somebody_who_is_not_signed_in_has_their_address(make_site: Callable[..., Site]) -> None:
    site = make_site(whitelist=("/register",))
    words = {"email": "eve@example.com", "name": "Eve", "password": PASSWORD}
    assert site.client().post("/api/users/register", words).status == 200
    admin = site.signed_in(site.add(role="admin"))
    (row,) = admin.get("/api/audit?actor=anonymous").json["rows"]
    assert (row["action"], row["email"], row["origin"]) == ("register", "eve@example.com", "127.0.0.1")
