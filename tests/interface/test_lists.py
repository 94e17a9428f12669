"""Lists of users through a real socket: filters, orders and their combinations, and one change of many users."""

from collections.abc import Callable
from datetime import timedelta
from itertools import product
from typing import Any
from urllib.parse import urlencode

import pytest
from support.commands import OPERATOR, PASSWORD
from support.fakes import FakeClock
from support.postbox import send_all
from support.web import Client, Reply, Site

from usersctl.clock import stamp
from usersctl.invitations import guest
from usersctl.models import Newcomer, User, UserState
from usersctl.service import Service

USERS, BULK = "/api/users", "/api/users/bulk"
SORTS = {"name": "name", "email": "email", "created": "created_at", "last-login": "last_login_at"}


@pytest.fixture
def admin(site: Site) -> Client:
    return site.signed_in(site.add("root", role="admin"))


@pytest.fixture
def kinds(site: Site, clock: FakeClock) -> dict[str, set[str]]:
    """Accounts of all kinds: the names of those in each state."""
    service = site.service
    root = site.add("root", role="admin")
    clock.move(minutes=1)
    bob, off, gone = (site.add(name) for name in ("bob", "off", "gone"))
    clock.move(minutes=1)
    service.accounts.set_active([off.id], active=False, by=OPERATOR)
    with service.store.write() as tx:  # as its owner deletes it
        tx.change_user(gone.id, active=False, delete_at=stamp(clock() + timedelta(days=7)))
    service.registration.register("zoe@example.com", "Zoe", PASSWORD, by=OPERATOR)
    ida = site.add("ida", password=None)
    with service.store.write() as tx:
        tx.change_user(ida.id, active=False, invited_at=tx.now_text, invitation_expires_at=tx.now_text)
        for _ in range(service.throttle.of_strangers):
            tx.count_failure(f"user:{bob.id}", bob.id)
    service.groups.create("staff", by=OPERATOR)
    service.groups.create("empty", by=OPERATOR)
    service.groups.add("staff", [root.id, bob.id, ida.id], by=OPERATOR)
    clock.move(minutes=1)
    site.signed_in(root)
    return {
        "active": {"Root", "Bob"},
        "deactivated": {"Off", "Gone"},
        "awaiting": {"Zoe"},
        "invited": {"Ida"},
        "locked": {"Bob"},
        "never-signed-in": {"Bob", "Off", "Gone", "Zoe", "Ida"},
        "staff": {"Root", "Bob", "Ida"},
        "empty": set(),
        "admin": {"Root"},
        "user": {"Bob", "Off", "Gone", "Zoe", "Ida"},
        "true": {"Root", "Bob"},
        "false": {"Off", "Gone", "Zoe", "Ida"},
        "o": {"Root", "Bob", "Off", "Gone", "Zoe", "Ida"},  # every address has one
        "zo": {"Zoe"},
    }


def names(reply: Reply) -> list[str]:
    assert reply.status == 200, reply
    return [user["name"] for user in reply.json["users"]]


@pytest.mark.slow
def test_every_combination_of_filters_and_orders_is_listed(site: Site, kinds: dict[str, set[str]]) -> None:
    admin = site.signed_in(site.service.accounts.find("root@example.com"))
    everyone = {user["name"]: user for user in admin.get(f"{USERS}?limit=100").json["users"]}
    values: dict[str, tuple[str | None, ...]] = {
        "state": (None, *UserState),
        "group": (None, "staff", "empty"),
        "role": (None, "admin", "user"),
        "active": (None, "true", "false"),
        "search": (None, "o", "zo"),
    }
    orders = list(product(SORTS, ("asc", "desc")))
    for number, parts in enumerate(product(*values.values())):
        asked = {name: value for name, value in zip(values, parts, strict=True) if value is not None}
        listed = set(everyone).intersection(*(kinds[value] for value in asked.values()))
        sort, order = orders[number % len(orders)]
        column = SORTS[sort]
        in_order = sorted(
            listed,
            key=lambda name: (str(everyone[name][column] or "").lower(), everyone[name]["id"]),
            reverse=order == "desc",
        )
        reply = admin.get(f"{USERS}?{urlencode({**asked, 'sort': sort, 'order': order, 'limit': 100})}")
        assert names(reply) == in_order, asked
        assert reply.json["pagination"]["total"] == len(listed), asked


@pytest.mark.usefixtures("kinds")
def test_a_list_in_any_order_goes_on_by_page_and_by_user(site: Site) -> None:
    admin = site.signed_in(site.service.accounts.find("root@example.com"))
    for sort, order in product(SORTS, ("asc", "desc")):
        asked = f"{USERS}?sort={sort}&order={order}&state=never-signed-in&limit=2"
        everyone = admin.get(asked.replace("limit=2", "limit=100")).json["users"]
        walked: list[dict[str, Any]] = []
        for page in (1, 2, 3):
            by_number = admin.get(f"{asked}&page={page}").json
            after = f"&after={walked[-1]['id']}" if walked else ""
            assert admin.get(f"{asked}&page={page}{after}").json == by_number
            assert by_number["pagination"]["totalPages"] == 3
            walked += by_number["users"]
        assert walked == everyone


@pytest.mark.parametrize("search", ["", "&search=o"])  # counted, and not
@pytest.mark.parametrize("number", ["&page={page}", ""])
def test_a_list_that_goes_on_behind_a_user_ends_with_its_last_user_whoever_came_or_went(
    site: Site, admin: Client, search: str, number: str
) -> None:
    guests = [site.add(f"guest{letter}") for letter in "abcdefgh"]
    walked: list[int] = []
    for page in range(1, 10):
        after = f"&after={walked[-1]}" if walked else ""
        asked = f"{USERS}?sort=email&limit=2{search}{after}{number.format(page=page)}"
        reply = admin.get(asked).json
        walked += [user["id"] for user in reply["users"]]
        if not reply["pagination"]["hasNext"]:
            break
        if page == 3:  # all but the last of those that were read
            site.service.accounts.delete([guest.id for guest in guests[:5]], by=OPERATOR)
    else:
        pytest.fail("the list has no end")
    assert walked == [*(guest.id for guest in guests), admin.get(f"{USERS}/me").json["user"]["id"]]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("sort=id", "sort must be one of name, email, created, last-login"),
        ("sort=", "sort must be one of name, email, created, last-login"),
        ("sort=NAME", "sort must be one of name, email, created, last-login"),
        ("sort=name;DROP%20TABLE%20users", "sort must be one of name, email, created, last-login"),
        ("order=up", "order must be one of asc, desc"),
        ("order=", "order must be one of asc, desc"),
        (
            "state=inactive",
            "state must be one of active, deactivated, awaiting, invited, locked, never-signed-in",
        ),
        ("state=", "state must be one of active, deactivated, awaiting, invited, locked, never-signed-in"),
        ("group=ghosts", "Unknown group"),
        ("group=", "Unknown group"),
        ("group=%00", "Unknown group"),
        ("group=staff'--&search=a", "Unknown group"),
    ],
)
def test_a_value_of_a_filter_that_does_not_exist_is_refused(admin: Client, query: str, message: str) -> None:
    reply = admin.get(f"{USERS}?{query}")
    assert (reply.status, reply.message) == (400, message)


def test_inactive_users_are_sorted_too(site: Site, admin: Client) -> None:
    for name in ("ada", "zoe"):
        site.add(name, active=False)
    assert names(admin.get("/api/users/inactive?sort=email&order=desc")) == ["Zoe", "Ada"]


# --- many users at once ---


@pytest.fixture
def some(site: Site) -> list[User]:
    site.service.groups.create("staff", by=OPERATOR)
    return [site.add(name) for name in ("ada", "bob", "eve")]


def changed(reply: Reply) -> int:
    assert reply.status == 200, reply
    assert set(reply.json) == {"changed"}
    return int(reply.json["changed"])


def bulk(admin: Client, users: list[User], action: str, **more: Any) -> Reply:
    return admin.post(BULK, {"ids": [user.id for user in users], "action": action, **more})


def now(service: Service, users: list[User]) -> list[User]:
    return [service.accounts.get(user.id) for user in users]


def test_many_users_are_deactivated_and_activated(site: Site, admin: Client, some: list[User]) -> None:
    session = site.signed_in(some[0])
    assert changed(bulk(admin, some[:2], "deactivate")) == 2
    assert [user.active for user in now(site.service, some)] == [False, False, True]
    assert session.get("/api/users/me").status == 401
    assert changed(bulk(admin, some, "deactivate")) == 1, "the others were inactive before"
    assert changed(bulk(admin, some, "activate")) == 3
    assert all(user.active for user in now(site.service, some))
    assert changed(bulk(admin, some, "activate")) == 0


def test_the_sessions_of_many_users_are_ended(site: Site, admin: Client, some: list[User]) -> None:
    sessions = [site.signed_in(user) for user in some]
    assert changed(bulk(admin, some[:2], "end-sessions")) == 2
    assert [session.get("/api/users/me").status for session in sessions] == [401, 401, 200]
    assert changed(bulk(admin, some, "end-sessions")) == 1
    assert all(user.active for user in now(site.service, some))


def test_many_users_are_deleted(admin: Client, some: list[User]) -> None:
    assert changed(bulk(admin, some[1:], "delete")) == 2
    assert names(admin.get(USERS)) == ["Ada", "Root"]


def test_many_users_join_and_leave_a_group(admin: Client, some: list[User]) -> None:
    assert changed(bulk(admin, some[:2], "add-group", group="staff")) == 2
    assert changed(bulk(admin, some, "add-group", group="staff")) == 1
    assert names(admin.get(f"{USERS}?group=staff")) == ["Ada", "Bob", "Eve"]
    assert changed(bulk(admin, some[1:], "remove-group", group="staff")) == 2
    assert names(admin.get(f"{USERS}?group=staff")) == ["Ada"]


def test_a_list_tells_which_of_its_users_have_not_confirmed_or_accepted_yet(
    make_site: Callable[..., Site],
) -> None:
    site = make_site(whitelist=("/register",))
    admin = site.signed_in(site.add(role="admin"))
    site.add("bob", active=False)
    words = {"email": "eve@example.com", "name": "Eve", "password": PASSWORD}
    new = site.client().post("/api/users/register", words).json["user"]["id"]
    (invited,) = site.service.invitations.invite([guest("ida@example.com")], timedelta(days=1), by=OPERATOR)
    listed = admin.get(USERS)
    assert (listed.header("X-Awaiting-Confirmation"), listed.header("X-Invited")) == (
        str(new),
        str(invited.id),
    )
    nobody = admin.get(f"{USERS}?role=admin")
    assert (nobody.header("X-Awaiting-Confirmation"), nobody.header("X-Invited")) == (None, None)


def test_many_users_are_invited_again_and_their_earlier_links_are_dead(
    site: Site, admin: Client, some: list[User]
) -> None:
    guests = site.service.invitations.invite(
        [guest("ida@example.com"), guest("udo@example.com")], timedelta(days=1), by=OPERATOR
    )
    while site.service.outbox.work() is not None:
        pass
    assert changed(bulk(admin, guests, "invite")) == 2
    with site.service.store.read() as tx:
        states = [[email.state for email in tx.queued_emails_of(user.id)] for user in guests]
    assert states == [["waiting", "sent"]] * 2
    reply = admin.get(f"{USERS}?state=invited")
    assert reply.header("X-Invited") == ",".join(str(user["id"]) for user in reply.json["users"])
    refused = bulk(admin, [*guests, some[0]], "invite")
    # It names which of them.
    assert (refused.status, refused.message) == (400, f"This account needs no invitation: {some[0].email}")


def test_too_many_invitations_to_one_of_many_name_the_user(site: Site, admin: Client) -> None:
    ida, udo = site.service.invitations.invite(
        [guest("ida@example.com"), guest("udo@example.com")], timedelta(days=1), by=OPERATOR
    )
    for _ in range(2):
        send_all(site.service)
        assert changed(bulk(admin, [udo], "invite")) == 1
    send_all(site.service)
    refused = bulk(admin, [ida, udo], "invite")
    message = "Too many emails of this kind, please try again later: udo@example.com"
    assert (refused.status, refused.message) == (429, message)


def test_each_of_many_changes_has_a_row_in_the_audit_trail(
    site: Site, admin: Client, some: list[User]
) -> None:
    bulk(admin, some, "deactivate")
    bulk(admin, some[:1], "activate")
    bulk(admin, some[:2], "add-group", group="staff")
    bulk(admin, some, "delete")
    with site.service.store.read() as tx:
        rows = [(row.action, row.user_id, row.actor) for row in tx.audit_rows()]
    by = f"user:{site.service.accounts.find('root@example.com').id}"
    ids = [user.id for user in some]
    actions = [
        *(("deactivate", user_id) for user_id in ids),
        ("activate", ids[0]),
        *(("group-add", user_id) for user_id in ids[:2]),
        *(("delete", user_id) for user_id in ids),
    ]
    assert rows[-len(actions) :] == [(action, user_id, by) for action, user_id in actions]


IDS_AND_ACTION = "ids and action are required"
ACTIONS = "activate, deactivate, end-sessions, delete, invite, add-group, remove-group"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, IDS_AND_ACTION),
        ({"ids": [1]}, IDS_AND_ACTION),
        ({"action": "delete"}, IDS_AND_ACTION),
        ({"ids": [], "action": "delete"}, "ids must hold 1 to 1,000 ids"),
        ({"ids": None, "action": "delete"}, IDS_AND_ACTION),
        ({"ids": "1", "action": "delete"}, "ids must be a list"),
        ({"ids": 1, "action": "delete"}, "ids must be a list"),
        ({"ids": {"1": 1}, "action": "delete"}, "ids must be a list"),
        ({"ids": [1], "action": "drop"}, f"action must be one of {ACTIONS}"),
        ({"ids": [1], "action": 7}, "action must be a string"),
        ({"ids": [1], "action": "add-group"}, "group is required"),
        ({"ids": [1], "action": "remove-group", "group": ""}, "group is required"),
        ({"ids": [1], "action": "add-group", "group": 7}, "group must be a string"),
        *[
            ({"ids": [odd], "action": "delete"}, "Invalid user id")
            for odd in (0, -1, 1.0, 1.5, True, None, "1", [1], {}, 10**18, 10**400)
        ],
        ({"ids": list(range(1, 1_002)), "action": "delete"}, "ids must hold 1 to 1,000 ids"),
        ({"ids": [1] * 1_001, "action": "delete"}, "ids must hold 1 to 1,000 ids"),
    ],
)
def test_a_change_of_many_users_with_wrong_values_is_refused(
    site: Site, admin: Client, body: dict[str, Any], message: str
) -> None:
    site.add()
    reply = admin.post(BULK, body)
    assert (reply.status, reply.message) == (400, message)
    assert admin.get(USERS).json["pagination"]["total"] == 2


def test_a_user_who_is_named_twice_is_changed_once(admin: Client, some: list[User]) -> None:
    assert changed(bulk(admin, some * 300, "deactivate")) == 3
    assert changed(bulk(admin, some * 2, "delete")) == 3


@pytest.mark.parametrize(
    "action", ["activate", "deactivate", "end-sessions", "delete", "add-group", "remove-group"]
)
def test_an_unknown_user_among_many_leaves_all_as_they_were(
    site: Site, admin: Client, some: list[User], action: str
) -> None:
    site.service.groups.add("staff", [some[0].id], by=OPERATOR)
    site.service.accounts.set_active([some[1].id], active=False, by=OPERATOR)
    session = site.signed_in(some[0])
    before = now(site.service, some)
    for ids in ([some[0].id, some[1].id, 999, some[2].id], [999]):
        reply = admin.post(BULK, {"ids": ids, "action": action, "group": "staff"})
        assert (reply.status, reply.message) == (404, "User not found")
    assert now(site.service, some) == before
    assert session.get("/api/users/me").status == 200
    assert names(admin.get(f"{USERS}?group=staff")) == ["Ada"]


def test_an_unknown_group_is_not_found(admin: Client, some: list[User]) -> None:
    for action in ("add-group", "remove-group"):
        reply = bulk(admin, some, action, group="ghosts")
        assert (reply.status, reply.message) == (404, "Group not found")


@pytest.mark.slow
def test_a_thousand_users_are_changed_at_once(site: Site, admin: Client) -> None:
    with site.service.store.write() as tx:
        ids = tx.add_users([Newcomer(f"u{number}@example.com", f"U{number}") for number in range(1_000)])
        users = [tx.existing_user(user_id) for user_id in ids]
    site.service.groups.create("staff", by=OPERATOR)
    for action in ("add-group", "deactivate", "activate", "delete"):
        assert changed(bulk(admin, users, action, group="staff")) == 1_000
    assert admin.get(USERS).json["pagination"]["total"] == 1
