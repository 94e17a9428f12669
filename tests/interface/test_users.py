"""User management, the caller's own profile and password, and lists of sessions, through a real socket."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from support.commands import OPERATOR, PASSWORD, create_user
from support.databases import add_crowd
from support.fakes import FakeClock
from support.web import Client, Reply, Site

from usersctl.models import User

USERS = "/api/users"
ME = "/api/users/me"
OWN_PASSWORD = "/api/users/password"
NOW = "2026-11-20T08:22:19.123Z"
NEW = "another horse battery"

USER_TYPES: dict[str, type | tuple[type, ...]] = {
    "id": int,
    "email": str,
    "name": str,
    "role": str,
    "active": bool,
    "created_at": str,
    "updated_at": str,
    "last_login_at": (str, type(None)),
    "oauth_id": (str, type(None)),
    "profile_picture": (str, type(None)),
}


def check_user(user: dict[str, Any]) -> dict[str, Any]:
    assert set(user) == set(USER_TYPES)
    assert all(isinstance(user[name], kind) for name, kind in USER_TYPES.items())
    return user


def the_user(reply: Reply) -> dict[str, Any]:
    assert reply.status == 200, reply
    assert set(reply.json) == {"user"}
    return check_user(reply.json["user"])


def refused(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.message


def token_of(client: Client) -> str:
    return client.token


@pytest.fixture
def admin(site: Site) -> Client:
    return site.signed_in(site.add("root", role="admin"))


@pytest.fixture
def ada(site: Site) -> User:
    return site.add()


NEW_USER = {"email": "new@example.com", "name": "New One", "password": PASSWORD}

# --- create ---


def test_an_admin_creates_an_account_that_is_active_and_signs_in(site: Site, admin: Client) -> None:
    made = the_user(admin.post(USERS, NEW_USER))
    assert made == {
        "id": made["id"],
        "email": "new@example.com",
        "name": "New One",
        "role": "user",
        "active": True,
        "created_at": NOW,
        "updated_at": NOW,
        "last_login_at": None,
        "oauth_id": None,
        "profile_picture": None,
    }
    assert site.client().login("new@example.com", PASSWORD).status == 200


@pytest.mark.parametrize("role", ["user", "admin"])
def test_an_admin_chooses_the_role_of_a_new_account(admin: Client, role: str) -> None:
    assert the_user(admin.post(USERS, NEW_USER | {"role": role}))["role"] == role


def test_an_address_and_a_name_are_stored_in_one_form(admin: Client) -> None:
    made = the_user(
        admin.post(
            USERS,
            NEW_USER | {"email": " Zoe@Büro.Example ", "name": "  Zoë  "},
        )
    )
    assert (made["email"], made["name"]) == ("zoe@xn--bro-hoa.example", "Zoë")


LACKING = "Email, name and password are required"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, LACKING),
        *[({k: v for k, v in NEW_USER.items() if k != name}, LACKING) for name in NEW_USER],
        *[(NEW_USER | {name: ""}, LACKING) for name in NEW_USER],
        *[(NEW_USER | {name: None}, LACKING) for name in NEW_USER],
        *[(NEW_USER | {name: 7}, f"{name} must be a string") for name in NEW_USER],
        *[(NEW_USER | {name: ["a"]}, f"{name} must be a string") for name in NEW_USER],
        (NEW_USER | {"role": 1}, "role must be a string"),
        (NEW_USER | {"role": None}, "role must not be null"),
        (NEW_USER | {"role": ""}, "Role must be one of admin, user"),
        (NEW_USER | {"role": "root"}, "Role must be one of admin, user"),
        (NEW_USER | {"role": "Admin"}, "Role must be one of admin, user"),
        (NEW_USER | {"email": "no address"}, "Invalid email format"),
        (NEW_USER | {"email": "a@b"}, "Invalid email format"),
        (NEW_USER | {"email": f"{'a' * 65}@example.com"}, "Invalid email format"),
        (NEW_USER | {"email": "zoë@example.com"}, "Invalid email format"),
        (NEW_USER | {"email": "ROOT@example.com"}, "Email is already registered"),
        (NEW_USER | {"name": "x" * 201}, "Name must have 1 to 200 characters"),
        (NEW_USER | {"name": "   "}, "Name must have 1 to 200 characters"),
        (NEW_USER | {"name": "\u200b\u2060"}, "Name must have 1 to 200 characters"),
        (NEW_USER | {"name": "a\nb"}, "Name must not contain control characters"),
        (NEW_USER | {"password": "1234567"}, "Password must have at least 8 characters"),
        (NEW_USER | {"password": "ä" * 37}, "Password must be at most 72 bytes long"),
        (
            NEW_USER | {"password": "password1"},
            "Password is too common: it is on lists that attackers try first",
        ),
        (NEW_USER | {"password": "new@EXAMPLE.com"}, "Password must not be your own email address or name"),
    ],
)
def test_invalid_values_of_a_new_account_are_a_400(admin: Client, body: dict[str, Any], message: str) -> None:
    assert refused(admin.post(USERS, body)) == (400, message)
    assert admin.get(USERS).json["pagination"]["total"] == 1


def test_fields_that_cannot_be_set_are_ignored(admin: Client) -> None:
    made = the_user(
        admin.post(
            USERS,
            NEW_USER
            | {
                "id": 1,
                "active": False,
                "created_at": "2000-01-01T00:00:00.000Z",
                "oauth_id": "x",
                "email_proven_at": NOW,
                "password_hash": "x",
            },
        )
    )
    assert made["id"] != 1
    assert (made["active"], made["created_at"], made["oauth_id"]) == (True, NOW, None)


# --- order of refusals ---


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/users/{id}"),
        ("PATCH", "/api/users/{id}"),
        ("DELETE", "/api/users/{id}"),
        ("GET", "/api/users/{id}/sessions"),
        ("DELETE", "/api/users/{id}/sessions"),
        ("DELETE", "/api/users/{id}/sessions/1"),
        ("GET", "/api/users/{id}/why"),
        ("POST", "/api/users/{id}/unlock"),
        ("POST", "/api/users/{id}/reset-letter"),
        ("POST", "/api/users/{id}/confirm-letter"),
    ],
)
def test_refusals_come_in_the_order_401_400_403_404(
    site: Site, admin: Client, ada: User, method: str, path: str
) -> None:
    user, nobody = site.signed_in(ada), site.client()
    for client, what, answer in [
        (nobody, "0", (401, "Authentication required")),
        (nobody, "999", (401, "Authentication required")),
        (user, "0", (400, "Invalid user id")),
        (user, "999", None),
        (admin, "0", (400, "Invalid user id")),
        (admin, "999", (404, "User not found")),
    ]:
        reply = client.send(method, path.format(id=what))
        if answer is None:
            assert reply.status == 403
        else:
            assert refused(reply) == answer


@pytest.mark.parametrize(
    "id",
    [
        "0",
        "-1",
        "+1",
        "01",
        "1.0",
        "1e3",
        "0x1",
        "1%0a",
        "%201",
        "1%20",
        "%D9%A1",
        "%EF%BC%91",
        "%C2%B9",
        "1" * 19,
        "9" * 400,
        "null",
        "ME",
        "me%00",
        "1;2",
        "1,2",
        "1%27",
        "*",
        "Inactive",
    ],
)
def test_an_id_is_a_plain_positive_number(admin: Client, id: str) -> None:  # noqa: A002
    for method in ("GET", "PATCH", "DELETE"):
        assert refused(admin.send(method, f"/api/users/{id}")) == (400, "Invalid user id")


@pytest.mark.parametrize("id", ["999", "9" * 18])
def test_an_unknown_id_is_a_404(admin: Client, id: str) -> None:  # noqa: A002
    for method, body in (("GET", None), ("PATCH", {"name": "X"}), ("DELETE", None)):
        assert refused(admin.send(method, f"/api/users/{id}", body)) == (404, "User not found")


# --- read ---


def test_an_admin_reads_every_user_and_a_user_only_themselves(site: Site, admin: Client, ada: User) -> None:
    bea, user = site.add("bea"), site.signed_in(ada)
    assert the_user(admin.get(f"/api/users/{ada.id}"))["email"] == "ada@example.com"
    assert the_user(user.get(f"/api/users/{ada.id}")) == the_user(user.get(ME))
    for other in (the_user(admin.get(ME))["id"], bea.id, 999):
        assert refused(user.get(f"/api/users/{other}")) == (403, "You may only read your own profile")


def test_no_answer_holds_a_password_or_a_hash(site: Site, admin: Client, ada: User) -> None:
    with site.service.store.read() as tx:
        credentials = tx.credentials_of(ada.id)
    assert credentials is not None
    user = site.signed_in(ada)
    replies = [
        admin.get(USERS),
        admin.get(f"/api/users/{ada.id}"),
        admin.patch(f"/api/users/{ada.id}", {"name": "Countess"}),
        user.get(ME),
        user.patch(ME, {"name": "Ada"}),
        admin.get(f"/api/users/{ada.id}/sessions"),
    ]
    for reply in replies:
        assert reply.status == 200
        assert b"$2b$" not in reply.body
        assert b"password" not in reply.body
        assert b"hash" not in reply.body


# --- update ---


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "Countess"},
        {"email": "countess@example.com"},
        {"role": "admin"},
        {"active": False},
        {"name": "Countess", "email": "countess@example.com", "role": "admin", "active": False},
    ],
)
def test_an_admin_changes_any_of_four_fields(
    admin: Client, ada: User, clock: FakeClock, changes: dict[str, Any]
) -> None:
    clock.move(hours=1)
    before = ada.as_json()
    after = the_user(admin.patch(f"/api/users/{ada.id}", changes))
    assert after == before | changes | {"updated_at": "2026-11-20T09:22:19.123Z"}
    assert the_user(admin.get(f"/api/users/{ada.id}")) == after


@pytest.mark.parametrize(
    "body", [None, {}, {"name": "Ada"}, {"active": True, "role": "user"}, {"password": NEW}]
)
def test_a_change_to_equal_values_moves_no_timestamp(
    site: Site, admin: Client, ada: User, clock: FakeClock, body: Any
) -> None:
    clock.move(hours=1)
    assert the_user(admin.patch(f"/api/users/{ada.id}", body)) == ada.as_json()
    assert site.client().login(ada.email, PASSWORD).status == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"name": 1}, "name must be a string"),
        ({"name": None}, "name must not be null"),
        ({"name": ""}, "Name must have 1 to 200 characters"),
        ({"email": []}, "email must be a string"),
        ({"email": "x"}, "Invalid email format"),
        ({"email": "root@example.com"}, "Email is already registered"),
        ({"role": True}, "role must be a string"),
        ({"role": "owner"}, "Role must be one of admin, user"),
        ({"active": 0}, "active must be true or false"),
        ({"active": "false"}, "active must be true or false"),
        ({"active": None}, "active must not be null"),
    ],
)
def test_a_change_is_all_or_nothing(admin: Client, ada: User, body: dict[str, Any], message: str) -> None:
    good = {"name": "Countess", "email": "countess@example.com", "role": "admin", "active": False}
    assert refused(admin.patch(f"/api/users/{ada.id}", good | body)) == (400, message)
    assert the_user(admin.get(f"/api/users/{ada.id}")) == ada.as_json()


def test_an_admin_cannot_change_their_own_active_status(site: Site, admin: Client) -> None:
    site.add("second", role="admin")
    me = the_user(admin.get(ME))
    reply = admin.patch(f"/api/users/{me['id']}", {"active": False, "name": "Gone"})
    assert refused(reply) == (403, "You cannot change your own active status")
    assert the_user(admin.get(ME)) == me
    assert (
        the_user(admin.patch(f"/api/users/{me['id']}", {"active": True, "name": "Root 2"}))["active"] is True
    )


def test_a_user_cannot_change_or_delete_accounts(site: Site, ada: User) -> None:
    user = site.signed_in(ada)
    for path in (f"/api/users/{ada.id}", f"/api/users/{site.add('bea').id}"):
        assert refused(user.patch(path, {"name": "X", "role": "admin"})) == (403, "Admin access required")
        assert refused(user.delete(path)) == (403, "Admin access required")
    assert refused(user.post(USERS, NEW_USER)) == (403, "Admin access required")
    assert refused(user.get(USERS)) == (403, "Admin access required")
    assert refused(user.get("/api/users/inactive")) == (403, "Admin access required")
    assert the_user(user.get(ME))["role"] == "user"


def test_a_new_role_counts_at_the_next_request_of_an_open_session(
    site: Site, admin: Client, ada: User
) -> None:
    user = site.signed_in(ada)
    for role, status in (("admin", 200), ("user", 403), ("admin", 200)):
        admin.patch(f"/api/users/{ada.id}", {"role": role})
        assert user.get(USERS).status == status
        assert the_user(user.get(ME))["role"] == role


def test_deactivation_ends_all_sessions_and_activation_restores_none(
    site: Site, admin: Client, ada: User
) -> None:
    user = site.signed_in(ada, rememberMe=True)
    api = site.client(headers={"Authorization": f"Bearer {_api_token(site, ada)}"})
    for active in (False, True):
        admin.patch(f"/api/users/{ada.id}", {"active": active})
        assert [user.get(ME).status, api.get(ME).status] == [401, 401]
    assert site.client().login(ada.email, PASSWORD).status == 200


# --- delete ---


def test_deleting_an_account_deletes_all_of_its_data(site: Site, admin: Client, ada: User) -> None:
    user = site.signed_in(ada)
    reply = admin.delete(f"/api/users/{ada.id}")
    assert (reply.status, reply.json) == (200, {"success": True})
    assert user.get(ME).status == 401
    assert refused(admin.get(f"/api/users/{ada.id}")) == (404, "User not found")
    assert refused(admin.delete(f"/api/users/{ada.id}")) == (404, "User not found")
    assert refused(site.client().login(ada.email, PASSWORD)) == (401, "Invalid email or password")
    again = the_user(admin.post(USERS, NEW_USER | {"email": ada.email}))
    assert again["id"] > ada.id, "an id is never given twice"


LAST = "The last active admin cannot be deleted, deactivated or demoted"


def test_the_last_active_admin_cannot_be_removed(site: Site, admin: Client) -> None:
    me = the_user(admin.get(ME))["id"]
    sleeping = site.add("sleeping", role="admin", active=False)
    assert refused(admin.delete(f"/api/users/{me}")) == (400, LAST)
    assert refused(admin.patch(f"/api/users/{me}", {"role": "user"})) == (400, LAST)
    assert the_user(admin.get(ME))["role"] == "admin"
    admin.patch(f"/api/users/{sleeping.id}", {"active": True})
    assert admin.patch(f"/api/users/{me}", {"role": "user"}).status == 200
    assert admin.get(USERS).status == 403


@pytest.mark.parametrize(
    ("method", "body"), [("DELETE", None), ("PATCH", {"role": "user"}), ("PATCH", {"active": False})]
)
def test_two_admins_cannot_remove_each_other_at_the_same_time(site: Site, method: str, body: Any) -> None:
    for turn in range(5):
        pair = [site.add(f"admin-{turn}-{n}", role="admin") for n in (1, 2)]
        clients = [site.signed_in(admin) for admin in pair]
        barrier, replies = threading.Barrier(2), []

        def attack(
            client: Client,
            other: User,
            barrier: threading.Barrier = barrier,
            replies: list[Reply] = replies,
        ) -> None:
            barrier.wait(10)
            replies.append(client.send(method, f"/api/users/{other.id}", body))

        threads = [
            threading.Thread(target=attack, args=(client, other))
            for client, other in zip(clients, reversed(pair), strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # The slower one was refused: as the last admin, as deleted, or as no longer an admin.
        first, second = sorted(admin.status for admin in replies)
        assert (first, second in (400, 401, 403)) == (200, True)
        assert not site.service.first_admin.needed()
        with site.service.store.write() as tx:
            for user in pair:
                tx.delete_users([user.id])


# --- lists ---


def names(reply: Reply) -> list[str]:
    assert reply.status == 200, reply
    assert set(reply.json) == {"users", "pagination"}
    assert set(reply.json["pagination"]) == {
        "page",
        "limit",
        "total",
        "totalIsExact",
        "totalPages",
        "hasNext",
        "hasPrev",
    }
    return [check_user(user)["name"] for user in reply.json["users"]]


def test_a_list_is_ordered_by_name_then_id_in_pages(site: Site, admin: Client) -> None:
    for n in reversed(range(12)):
        create_user(site.service, f"u{n}@example.com", f"Name {n // 2:02}", None, by=OPERATOR)
    everyone = admin.get(f"{USERS}?limit=100").json["users"]
    assert everyone == sorted(everyone, key=lambda user: (user["name"], user["id"]))
    assert len(everyone) == 13
    first, second, beyond = (admin.get(f"{USERS}{query}") for query in ("", "?page=2", "?page=3"))
    assert names(first) + names(second) == [user["name"] for user in everyone]
    assert first.json["pagination"] == {
        "page": 1,
        "limit": 10,
        "total": 13,
        "totalIsExact": True,
        "totalPages": 2,
        "hasNext": True,
        "hasPrev": False,
    }
    assert second.json["pagination"] == {
        "page": 2,
        "limit": 10,
        "total": 13,
        "totalIsExact": True,
        "totalPages": 2,
        "hasNext": False,
        "hasPrev": True,
    }
    assert beyond.json == {
        "users": [],
        "pagination": {
            "page": 3,
            "limit": 10,
            "total": 13,
            "totalIsExact": True,
            "totalPages": 2,
            "hasNext": False,
            "hasPrev": True,
        },
    }
    behind = admin.get(f"{USERS}?page=2&after={first.json['users'][-1]['id']}")
    assert behind.json == second.json
    far = admin.get(f"{USERS}?page={'9' * 18}&limit=100")
    assert (far.status, far.json["users"]) == (200, [])


def test_an_empty_list_has_no_pages(admin: Client) -> None:
    nobody = {
        "users": [],
        "pagination": {
            "page": 1,
            "limit": 10,
            "total": 0,
            "totalIsExact": True,
            "totalPages": 0,
            "hasNext": False,
            "hasPrev": False,
        },
    }
    for path in (
        "/api/users/inactive",
        f"{USERS}?search=nobody",
        f"{USERS}?active=false",
        f"{USERS}?role=user",
    ):
        assert admin.get(path).json == nobody
    beyond = admin.get(f"{USERS}?search=nobody&page=2").json
    assert beyond == {"users": [], "pagination": nobody["pagination"] | {"page": 2}}


MANY = 5_100  # more than a search counts


@pytest.fixture
def crowd(site: Site) -> None:
    add_crowd(site.service.store.database, MANY, "Zoë {:04}")


@pytest.mark.slow
@pytest.mark.usefixtures("crowd")
def test_a_search_that_many_share_has_a_lower_bound_as_its_total(admin: Client) -> None:
    first = admin.get(f"{USERS}?search=crowd&limit=100").json
    assert first["pagination"] == {
        "page": 1,
        "limit": 100,
        "total": 1000,
        "totalIsExact": False,
        "totalPages": 10,
        "hasNext": True,
        "hasPrev": False,
    }
    everyone, last, page = list(first["users"]), first, 1
    while last["pagination"]["hasNext"]:
        page += 1
        last = admin.get(f"{USERS}?search=crowd&limit=100&page={page}").json
        after = everyone[-1]["id"]
        assert (
            admin.get(f"{USERS}?search=crowd&limit=100&page={page}&after={after}").json["users"]
            == last["users"]
        )
        assert last["pagination"]["total"] >= len(everyone)
        assert last["pagination"]["totalPages"] >= page
        everyone += last["users"]
    assert [user["email"] for user in everyone] == [f"crowd{n:04}@example.com" for n in range(1, MANY + 1)]
    assert last["pagination"]["total"] == MANY
    assert last["pagination"]["totalIsExact"] is True
    beyond = admin.get(f"{USERS}?search=crowd&page=900").json
    assert beyond["users"] == []
    assert beyond["pagination"]["total"] == 1000
    assert beyond["pagination"]["hasNext"] is False


@pytest.mark.slow
@pytest.mark.usefixtures("crowd")
def test_the_total_of_a_search_is_exact_where_counting_is_quick(admin: Client) -> None:
    for query, total, is_exact in (
        ("search=zoë 1234", 1, True),
        ("search=ZOE crowd12", 100, True),
        ("search=zo", 1000, False),
        ("search=zo root", 0, True),
        ("search=crowd&role=admin", 0, True),
        ("search=crowd zoe&active=true", 1000, False),
        ("search=crowd5", 101, True),
        ("search=root", 1, True),
    ):
        reply = admin.get(f"{USERS}?{quote(query, safe='=&')}").json
        pagination = reply["pagination"]
        assert (pagination["total"], pagination["totalIsExact"]) == (total, is_exact), query
        assert len(reply["users"]) == min(10, total), query


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["Ada", "Bea", "Cy_", "Root"]),
        ("search=ADA", ["Ada"]),
        ("search=example.com", ["Ada", "Bea", "Cy_", "Root"]),
        ("search=_", ["Cy_"]),
        ("search=%25", []),
        ("search=%5C", []),
        ("search=%20bea%20", ["Bea"]),
        ("search=", ["Ada", "Bea", "Cy_", "Root"]),
        ("search=%27%20OR%201=1--", []),
        ("role=admin", ["Cy_", "Root"]),
        ("role=user", ["Ada", "Bea"]),
        ("active=true", ["Ada", "Cy_", "Root"]),
        ("active=false", ["Bea"]),
        ("active=true&role=admin&search=cy", ["Cy_"]),
        ("role=admin&active=false", []),
        ("limit=1&page=2", ["Bea"]),
        ("unknown=1", ["Ada", "Bea", "Cy_", "Root"]),
    ],
)
def test_a_list_is_filtered_by_search_role_and_active(
    site: Site, admin: Client, query: str, expected: list[str]
) -> None:
    site.add()
    site.add("bea", active=False)
    site.add("cy_", role="admin")
    assert names(admin.get(f"{USERS}?{query}")) == expected


def test_inactive_users_have_a_list_of_their_own(site: Site, admin: Client) -> None:
    site.add()
    for name in ("bea", "cy", "dot"):
        site.add(name, active=False)
    site.add("eve", active=False, role="admin")
    assert names(admin.get("/api/users/inactive")) == ["Bea", "Cy", "Dot", "Eve"]
    assert names(admin.get("/api/users/inactive?page=2&limit=3")) == ["Eve"]
    assert names(admin.get("/api/users/inactive?search=dot")) == ["Dot"]
    assert names(admin.get("/api/users/inactive?role=admin")) == ["Eve"]


PAGE = "page must be a whole number from 1 to 999999999999999999"
LIMIT = "limit must be a whole number from 1 to 100"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        *[(f"page={value}", PAGE) for value in ("0", "-1", "x", "", "1.5", "01", "1e1", "%D9%A1", "9" * 19)],
        *[(f"after={value}", PAGE.replace("page", "after")) for value in ("0", "x", "")],
        *[(f"limit={value}", LIMIT) for value in ("0", "101", "-1", "all", "", "1.0", "9" * 30)],
        ("role=owner", "role must be one of admin, user"),
        ("role=", "role must be one of admin, user"),
        ("role=ADMIN", "role must be one of admin, user"),
        ("active=yes", "active must be true or false"),
        ("active=", "active must be true or false"),
        ("active=1", "active must be true or false"),
        ("search=" + "x" * 201, "search must be a string of at most 200 characters"),
        ("search=a%00b", "search must be a string of at most 200 characters"),
        ("page=1&page=2", "A query parameter comes twice"),
        ("search=%FF", "Invalid query"),
    ],
)
def test_an_invalid_filter_value_is_a_400(admin: Client, query: str, message: str) -> None:
    assert refused(admin.get(f"{USERS}?{query}")) == (400, message)
    if "active" not in query:
        assert refused(admin.get(f"/api/users/inactive?{query}")) == (400, message)


# --- me ---


def test_me_answers_with_the_caller(site: Site, ada: User) -> None:
    user = site.signed_in(ada)
    assert the_user(user.get(ME)) == ada.as_json() | {"last_login_at": NOW}
    assert refused(site.client().get(ME)) == (401, "Authentication required")


def test_a_change_of_me_answers_with_the_bare_user(site: Site, ada: User, clock: FakeClock) -> None:
    user = site.signed_in(ada)
    clock.move(minutes=5)
    reply = user.patch(ME, {"name": " Countess ", "email": "Countess@Example.com"})
    assert reply.status == 200
    assert check_user(reply.json) == ada.as_json() | {
        "name": "Countess",
        "email": "countess@example.com",
        "last_login_at": NOW,
        "updated_at": "2026-11-20T08:27:19.123Z",
    }
    assert the_user(user.get(ME)) == reply.json


def test_only_name_and_email_can_be_changed_through_me(site: Site, ada: User) -> None:
    user = site.signed_in(ada)
    before = the_user(user.get(ME))
    body = {"role": "admin", "active": False, "id": 1, "password": NEW, "oauth_id": "x", "created_at": NOW}
    assert user.patch(ME, body).json == before
    assert the_user(user.get(ME)) == before
    assert site.client().login(ada.email, PASSWORD).status == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"email": "bea@example.com"}, "Email is already registered"),
        ({"email": "BEA@EXAMPLE.COM"}, "Email is already registered"),
        ({"email": "no address"}, "Invalid email format"),
        ({"email": ""}, "Invalid email format"),
        ({"email": 1}, "email must be a string"),
        ({"email": None}, "email must not be null"),
        ({"name": ""}, "Name must have 1 to 200 characters"),
        ({"name": "a\x7fb"}, "Name must not contain control characters"),
        ({"name": {}}, "name must be a string"),
        ({"name": None}, "name must not be null"),
    ],
)
def test_an_invalid_change_of_me_is_a_400(site: Site, ada: User, body: dict[str, Any], message: str) -> None:
    site.add("bea")
    user = site.signed_in(ada)
    before = the_user(user.get(ME))
    assert refused(user.patch(ME, {"name": "Other", "email": "other@example.com"} | body)) == (400, message)
    assert the_user(user.get(ME)) == before


# --- own password ---

CHANGE = {"currentPassword": PASSWORD, "newPassword": NEW, "newPasswordConfirmation": NEW}
ALL_THREE = "Current password, new password and its confirmation are required"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (None, ALL_THREE),
        *[({k: v for k, v in CHANGE.items() if k != name}, ALL_THREE) for name in CHANGE],
        *[(CHANGE | {name: ""}, ALL_THREE) for name in CHANGE],
        *[(CHANGE | {name: 12345678}, f"{name} must be a string") for name in CHANGE],
        (CHANGE | {"newPasswordConfirmation": NEW + "!"}, "New password and confirmation do not match"),
        (
            CHANGE | {"newPassword": "1234567", "newPasswordConfirmation": "1234567"},
            "Password must have at least 8 characters",
        ),
        (
            CHANGE | {"newPassword": "x" * 73, "newPasswordConfirmation": "x" * 73},
            "Password must be at most 72 bytes long",
        ),
        (
            CHANGE | {"newPassword": "iloveyou", "newPasswordConfirmation": "iloveyou"},
            "Password is too common: it is on lists that attackers try first",
        ),
        (CHANGE | {"currentPassword": "wrong horse battery"}, "Current password is incorrect"),
        (CHANGE | {"currentPassword": "x" * 100}, "Current password is incorrect"),
    ],
)
def test_an_invalid_password_change_is_a_400(site: Site, ada: User, body: Any, message: str) -> None:
    user, other = site.signed_in(ada), site.signed_in(ada)
    reply = user.patch(OWN_PASSWORD, body)
    assert refused(reply) == (400, message)
    assert reply.all("Set-Cookie") == []
    assert [user.get(ME).status, other.get(ME).status] == [200, 200]
    assert site.client().login(ada.email, PASSWORD).status == 200


@pytest.mark.parametrize("remember", [True, False])
@pytest.mark.parametrize("idle", [0, 90])
def test_a_password_change_ends_the_other_sessions_and_renews_this_cookie(
    site: Site, ada: User, clock: FakeClock, remember: bool, idle: int
) -> None:
    user, other = site.signed_in(ada, rememberMe=remember), site.signed_in(ada, rememberMe=True)
    bystander = site.signed_in(site.add("bea"))
    api = site.client(headers={"Authorization": f"Bearer {_api_token(site, ada)}"})
    before = token_of(user)
    clock.move(seconds=idle)
    reply = user.patch(OWN_PASSWORD, CHANGE)
    assert (reply.status, reply.json) == (200, {"message": "Password changed"})
    (cookie,) = reply.cookies()
    assert cookie.startswith("auth_token=")
    assert ("Max-Age=" in cookie) == remember
    if remember:
        assert cookie.endswith(f"Max-Age={30 * 86400 - idle}"), "as long as the session, whose limit stands"
    assert token_of(user) != before
    assert user.get(ME).status == 200
    assert site.client(cookies={"auth_token": before}).get(ME).status == 401
    assert [other.get(ME).status, api.get(ME).status, bystander.get(ME).status] == [401, 401, 200]
    assert site.client().login(ada.email, PASSWORD).status == 401
    assert site.client().login(ada.email, NEW).status == 200


def test_a_client_without_cookies_keeps_its_token_when_the_password_changes(site: Site, ada: User) -> None:
    client = site.client(headers={"Authorization": f"Bearer {token_of(site.signed_in(ada))}"})
    reply = client.patch(OWN_PASSWORD, CHANGE)
    assert (reply.status, reply.all("Set-Cookie")) == (200, [])
    assert client.get(ME).status == 200
    site.service.accounts.set_password(ada.id, PASSWORD, by=OPERATOR)
    assert client.get(ME).status == 401, "set by an operator it ends them all"


def test_an_api_token_changes_no_password(site: Site, ada: User) -> None:
    client = site.client(headers={"Authorization": f"Bearer {_api_token(site, ada)}"})
    assert refused(client.patch(OWN_PASSWORD, CHANGE)) == (403, "Sign in to change this")
    assert site.client().login(ada.email, PASSWORD).status == 200


def test_a_password_change_needs_a_session(site: Site) -> None:
    assert refused(site.client().patch(OWN_PASSWORD, CHANGE)) == (401, "Authentication required")


# --- sessions ---

SESSION_KEYS = {"id", "name", "created_at", "last_used_at", "expires_at", "ip", "user_agent", "current"}


def _api_token(site: Site, user: User, lifetime: timedelta | None = None) -> str:
    return site.service.sessions.create_api_token(user.id, name="ci", lifetime=lifetime, by=OPERATOR).token


def test_a_user_lists_their_sessions_with_the_current_one_marked(
    site: Site, ada: User, clock: FakeClock
) -> None:
    site.signed_in(site.add("bea"))
    first = site.client(headers={"User-Agent": "Old\tBrowser"})
    first.login(ada.email, PASSWORD)
    clock.move(seconds=30)
    user = site.signed_in(ada)
    _api_token(site, ada)
    reply = user.get("/api/users/me/sessions")
    assert (reply.status, set(reply.json)) == (200, {"sessions"})
    listed = reply.json["sessions"]
    assert all(set(session) == SESSION_KEYS for session in listed)
    assert [session["current"] for session in listed] == [False, True, False]
    assert listed[0] == {
        "id": listed[0]["id"],
        "name": "login",
        "created_at": NOW,
        "last_used_at": NOW,
        "expires_at": "2026-11-21T08:22:19.123Z",
        "ip": "127.0.0.1",
        "user_agent": "Old Browser",
        "current": False,
    }
    assert (listed[2]["name"], listed[2]["expires_at"], listed[2]["last_used_at"]) == ("ci", None, None)


def test_a_user_ends_their_own_sessions_and_no_others(site: Site, ada: User, admin: Client) -> None:
    user, other = site.signed_in(ada), site.signed_in(ada)
    ids = [session["id"] for session in user.get("/api/users/me/sessions").json["sessions"]]
    foreign = admin.get("/api/users/me/sessions").json["sessions"][0]["id"]
    for unknown in (foreign, 999, 10**17):
        assert refused(user.delete(f"/api/users/me/sessions/{unknown}")) == (404, "Session not found")
    for odd in ("0", "x", "01", "1" * 19, "-1"):
        assert refused(user.delete(f"/api/users/me/sessions/{odd}")) == (400, "Invalid session id")
    reply = user.delete(f"/api/users/me/sessions/{ids[1]}")
    assert (reply.status, reply.json) == (200, {"success": True})
    assert [user.get(ME).status, other.get(ME).status, admin.get(ME).status] == [200, 401, 200]
    assert user.delete(f"/api/users/me/sessions/{ids[0]}").status == 200
    assert user.get(ME).status == 401


def test_an_expired_session_is_not_listed(site: Site, ada: User, clock: FakeClock) -> None:
    site.signed_in(ada)
    clock.move(hours=23)
    user = site.signed_in(ada)
    clock.move(hours=2)
    assert [session["current"] for session in user.get("/api/users/me/sessions").json["sessions"]] == [True]


def test_an_admin_lists_and_ends_all_sessions_of_a_user(site: Site, admin: Client, ada: User) -> None:
    user = site.signed_in(ada)
    api = site.client(headers={"Authorization": f"Bearer {_api_token(site, ada)}"})
    listed = admin.get(f"/api/users/{ada.id}/sessions").json["sessions"]
    assert [(session["name"], session["current"]) for session in listed] == [("login", False), ("ci", False)]
    for _ in range(2):
        reply = admin.delete(f"/api/users/{ada.id}/sessions")
        assert (reply.status, reply.json) == (200, {"success": True})
    assert [user.get(ME).status, api.get(ME).status, admin.get(ME).status] == [401, 401, 200]
    assert admin.get(f"/api/users/{ada.id}/sessions").json == {"sessions": []}


def test_each_change_is_one_audit_row_with_actor_and_origin(
    make_site: Callable[..., Site],
) -> None:
    site = make_site()
    root, ada = site.add("root", role="admin"), site.add()
    admin, user = site.signed_in(root), site.signed_in(ada)
    admin.patch(f"/api/users/{ada.id}", {"role": "admin"})
    user.patch(OWN_PASSWORD, CHANGE)
    admin.delete(f"/api/users/{ada.id}/sessions")
    admin.patch(f"/api/users/{ada.id}", {"active": False})
    admin.delete(f"/api/users/{ada.id}")
    with site.service.store.read() as tx:
        rows = [(row.action, row.actor, row.origin) for row in tx.audit_rows()][2:]
    assert rows == [
        ("update", f"user:{root.id}", "127.0.0.1"),
        ("change-password", f"user:{ada.id}", "127.0.0.1"),
        ("revoke-all", f"user:{root.id}", "127.0.0.1"),
        ("deactivate", f"user:{root.id}", "127.0.0.1"),
        ("delete", f"user:{root.id}", "127.0.0.1"),
    ]
