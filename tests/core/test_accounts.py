"""Accounts: made, found, changed, deleted; each change whole, and never without an admin left."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from support.accounts import signed_in_admin
from support.commands import OPERATOR, PASSWORD, create_user
from support.factors import store_passkey
from support.fakes import FakeClock
from support.tables import LATER, audit, columns, plant_link, query

from usersctl.changes import delete_users
from usersctl.clock import stamp
from usersctl.errors import (
    Forbidden,
    Invalid,
    LastAdmin,
    NotFound,
    Referred,
    Taken,
    Unauthenticated,
    UsersError,
)
from usersctl.models import Newcomer, PendingSignIn, User, UserFilter
from usersctl.passwords import Hasher
from usersctl.service import Service

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))
SAME_SERVICE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def unconfirmed(service: Service, name: str = "eve") -> User:
    """As registration leaves one."""
    with service.store.write() as tx:
        user = tx.add_user(
            Newcomer(
                f"{name}@example.com",
                name,
                "!",
                "user",
                False,
                stamp(service.now()),
                awaiting_confirmation=True,
            )
        )
    assert user is not None
    return user


# --- made ---


def test_a_new_account_is_an_active_user_with_the_stored_forms(service: Service, clock: FakeClock) -> None:
    made = create_user(service, " ADA@Exämple.com ", "  Ada ", PASSWORD, by=OPERATOR)
    now = stamp(clock())
    assert made == User(
        1, "ada@xn--exmple-cua.com", "Ada", "user", True, now, now, None, None, None, None, False
    )
    assert service.accounts.get(1) == made


def test_an_account_may_start_as_an_admin_or_inactive(add: Callable[..., User]) -> None:
    assert add("ada", role="admin").role == "admin"
    assert add("bob", active=False).active is False


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"email": "no address"}, "Invalid email format"),
        ({"name": " "}, "Name must have"),
        ({"role": "root"}, "Role must be one of"),
        ({"password": "short"}, "at least 8 characters"),
        ({"password": "ADA@example.com"}, "your own email"),
        ({"password": "Ada Lovelace"}, "your own email address or name"),
    ],
)
def test_an_account_that_breaks_a_rule_is_not_created(
    service: Service, changes: dict[str, str], message: str
) -> None:
    fields = {
        "email": "ada@example.com",
        "name": "Ada Lovelace",
        "password": PASSWORD,
        "role": "user",
    } | changes
    with pytest.raises(Invalid, match=message):
        create_user(service, **fields, by=OPERATOR)
    assert query(service, "SELECT * FROM users") == []
    assert audit(service) == []


@pytest.mark.parametrize("email", ["ada@example.com", "ADA@EXAMPLE.COM", " ada@Example.com"])
def test_an_account_with_the_same_address_is_refused(
    service: Service, add: Callable[..., User], email: str
) -> None:
    add("ada")
    with pytest.raises(Taken, match=r"^Email is already registered$"):
        create_user(service, email, "Another", PASSWORD, by=OPERATOR)
    assert len(audit(service)) == 1


def test_parallel_creations_of_one_address_make_one_account(service: Service) -> None:
    def attempt(_: int) -> bool:
        try:
            create_user(service, "ada@example.com", "Ada", None, by=OPERATOR)
        except Taken:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(attempt, range(100))) == 1
    assert [row.action for row in audit(service)] == ["create"]


def test_no_password_fits_an_account_that_was_created_without_one(service: Service) -> None:
    create_user(service, "ada@example.com", "Ada", None, by=OPERATOR)
    for password in ("", "!", "None", PASSWORD):
        with pytest.raises(Unauthenticated):
            service.sessions.login("ada@example.com", password)


def test_an_id_is_never_given_twice(service: Service, add: Callable[..., User]) -> None:
    add("ada")
    last = add("bob")
    service.accounts.delete([last.id], by=OPERATOR)
    assert add("bob").id == last.id + 1


@pytest.mark.parametrize(
    ("change", "refused"), [({"role": "user"}, Forbidden), ({"active": False}, Unauthenticated)]
)
def test_an_admin_who_loses_the_role_while_a_password_is_hashed_creates_no_account(
    service: Service,
    add: Callable[..., User],
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    refused: type[UsersError],
) -> None:
    add("root", role="admin")
    me, real = add("me", role="admin"), Hasher.hash
    by = signed_in_admin(service, me)

    def meanwhile(hasher: Hasher, password: str) -> str:
        service.accounts.update(me.id, **change, by=OPERATOR)
        return real(hasher, password)

    monkeypatch.setattr(Hasher, "hash", meanwhile)
    with pytest.raises(refused):
        create_user(service, "new@example.com", "New", "another sentence entirely", role="admin", by=by)
    assert service.accounts.page(UserFilter(), page=1, limit=10).total == 2


# --- found ---


@pytest.mark.parametrize("reference", ["1", "ada@example.com", " ADA@Example.com "])
def test_an_account_is_found_by_id_or_address(
    service: Service, add: Callable[..., User], reference: str
) -> None:
    user = add("ada")
    assert service.accounts.find(reference) == user


@pytest.mark.parametrize(
    "reference", ["2", "01", "ada", "", "bob@example.com", "9" * 30, "\udcff", "ada@example.com\0"]
)
def test_an_unknown_reference_is_not_found(
    service: Service, add: Callable[..., User], reference: str
) -> None:
    add("ada")
    with pytest.raises(NotFound):
        service.accounts.find(reference)


def test_an_unknown_id_is_not_found(service: Service) -> None:
    with pytest.raises(NotFound, match="User not found"):
        service.accounts.get(10**18 - 1)


@pytest.fixture
def people(add: Callable[..., User], clock: FakeClock) -> list[User]:
    made = []
    for name, role, active in [
        ("mia", "user", True),
        ("ada", "admin", True),
        ("zoe", "user", False),
        ("bob", "admin", False),
        ("eve", "user", True),
    ]:
        clock.move(minutes=1)
        made.append(add(name, role=role, active=active))
    return made


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ({}, "Ada Bob Eve Mia Zoe"),
        ({"descending": True}, "Zoe Mia Eve Bob Ada"),
        ({"sort": "email"}, "Ada Bob Eve Mia Zoe"),
        ({"sort": "created"}, "Mia Ada Zoe Bob Eve"),
        ({"sort": "created", "descending": True}, "Eve Bob Zoe Ada Mia"),
        ({"sort": "last-login", "descending": True}, "Eve Bob Zoe Ada Mia"),
        ({"role": "admin"}, "Ada Bob"),
        ({"role": "user"}, "Eve Mia Zoe"),
        ({"active": True}, "Ada Eve Mia"),
        ({"active": False}, "Bob Zoe"),
        ({"role": "admin", "active": False}, "Bob"),
        ({"search": "e"}, "Ada Bob Eve Mia Zoe"),  # every address has one
        ({"search": "EVE"}, "Eve"),
        ({"search": "bob@"}, "Bob"),
        ({"search": "o", "role": "admin", "active": False}, "Bob"),
        ({"search": "%"}, ""),
        ({"search": "_"}, ""),
        ({"search": "\\"}, ""),
        ({"search": ""}, "Ada Bob Eve Mia Zoe"),
    ],
)
@pytest.mark.usefixtures("people")
def test_a_list_holds_the_users_of_its_filter_in_order(
    service: Service, wanted: dict[str, Any], names: str
) -> None:
    page = service.accounts.page(UserFilter(**wanted), limit=100)
    assert " ".join(user.name for user in page.users) == names
    assert page.total == len(names.split())
    with service.accounts.all(UserFilter(**wanted)) as everyone:
        assert list(everyone) == page.users


@pytest.mark.parametrize(
    ("page", "limit", "names", "pages"),
    [
        (1, 2, "Ada Bob", 3),
        (2, 2, "Eve Mia", 3),
        (3, 2, "Zoe", 3),
        (4, 2, "", 3),
        (1, 5, "Ada Bob Eve Mia Zoe", 1),
        (10**18, 100, "", 1),
        (10**30, 100, "", 1),
    ],
)
@pytest.mark.usefixtures("people")
def test_a_list_comes_in_pages(service: Service, page: int, limit: int, names: str, pages: int) -> None:
    listing = service.accounts.page(UserFilter(), page=page, limit=limit)
    assert " ".join(user.name for user in listing.users) == names
    assert (listing.limit, listing.total, listing.total_pages) == (limit, 5, pages)


@pytest.mark.parametrize("wanted", [{}, {"search": "e"}, {"active": True}, {"descending": True}])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6])
@pytest.mark.usefixtures("people")
def test_pages_read_from_either_end_together_are_the_list(
    service: Service, wanted: dict[str, Any], limit: int
) -> None:
    asked = UserFilter(**wanted)
    with service.accounts.all(asked) as users:
        everyone = list(users)
    pages = [service.accounts.page(asked, page=page, limit=limit) for page in range(1, 8)]
    assert [user for page in pages for user in page.users] == everyone
    assert {page.total for page in pages} == {len(everyone)}


@pytest.mark.parametrize("wanted", [{}, {"search": "e"}, {"active": True}, {"role": "user"}])
@pytest.mark.parametrize("sort", ["name", "email", "created", "last-login"])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.usefixtures("people")
def test_a_page_goes_on_behind_the_last_user_of_the_one_before(
    service: Service, wanted: dict[str, Any], sort: str, descending: bool
) -> None:
    asked = UserFilter(**wanted, sort=sort, descending=descending)
    for page in range(1, 4):
        before, by_number = (
            service.accounts.page(asked, page=number, limit=2) for number in (page, page + 1)
        )
        if before.users:
            last = before.users[-1].id
            assert service.accounts.page(asked, page=page + 1, limit=2, after=last) == by_number
    gone = service.accounts.page(asked, page=2, limit=2, after=10**9)
    assert gone == service.accounts.page(asked, page=2, limit=2)


def test_a_list_without_users_has_no_pages(service: Service) -> None:
    listing = service.accounts.page(UserFilter())
    assert (listing.users, listing.total, listing.total_pages) == ([], 0, 0)


def test_equal_names_are_ordered_by_id(service: Service) -> None:
    for letter in "cab":
        create_user(service, f"{letter}@example.com", "Same", None, by=OPERATOR)
    assert [user.id for user in service.accounts.page(UserFilter()).users] == [1, 2, 3]
    assert [user.id for user in service.accounts.page(UserFilter(descending=True)).users] == [3, 2, 1]


def test_the_first_admin_is_needed_until_there_is_an_active_admin(
    service: Service, add: Callable[..., User]
) -> None:
    assert service.first_admin.needed()
    add("bob", role="admin", active=False)
    assert service.first_admin.needed()
    add("ada", role="admin")
    assert not service.first_admin.needed()


# --- changed ---


def test_a_change_is_whole_and_moves_updated_at(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    before = add("ada")
    clock.move(hours=1)
    after = service.accounts.update(
        before.id, name=" Ada L. ", email="LOVELACE@example.com", role="admin", active=False, by=OPERATOR
    )
    assert after == before._replace(
        name="Ada L.", email="lovelace@example.com", role="admin", active=False, updated_at=stamp(clock())
    )
    assert service.accounts.get(before.id) == after


@pytest.mark.parametrize(
    "same",
    [{}, {"name": " Ada "}, {"email": "ADA@example.com"}, {"role": "user"}, {"active": True}],
    ids=str,
)
def test_equal_values_are_no_change(
    service: Service, add: Callable[..., User], clock: FakeClock, same: dict[str, Any]
) -> None:
    before = add("ada")
    opened = service.sessions.login(before.email, PASSWORD)
    plant_link(service, before)
    clock.move(hours=1)
    assert service.accounts.update(before.id, **same, by=OPERATOR).updated_at == before.updated_at
    assert len(audit(service)) == 1
    assert service.sessions.check(opened.token)
    assert query(service, "SELECT count(*) FROM one_time_tokens") == [(1,)]


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"name": "New", "email": "bob@example.com"}, Taken),
        ({"name": "New", "email": "no address"}, Invalid),
        ({"name": "New", "role": "root"}, Invalid),
        ({"name": "", "role": "admin"}, Invalid),
    ],
)
def test_a_refused_change_changes_nothing(
    service: Service, add: Callable[..., User], changes: dict[str, Any], refusal: type[UsersError]
) -> None:
    before = add("ada")
    add("bob")
    with pytest.raises(refusal):
        service.accounts.update(before.id, **changes, by=OPERATOR)
    assert service.accounts.get(before.id) == before
    assert len(audit(service)) == 2


def test_an_unknown_account_cannot_be_changed(service: Service) -> None:
    with pytest.raises(NotFound):
        service.accounts.update(7, name="X", by=OPERATOR)
    with pytest.raises(NotFound):
        service.accounts.delete([7], by=OPERATOR)
    with pytest.raises(NotFound):
        service.accounts.set_password(7, PASSWORD, by=OPERATOR)


def test_a_new_address_is_unproven_and_ends_the_links_sent_to_the_old_one(
    service: Service, add: Callable[..., User]
) -> None:
    user = add("ada")
    with service.store.write() as tx:
        tx.change_user(user.id, email_proven_at=LATER)
    opened = service.sessions.login(user.email, PASSWORD)
    plant_link(service, user)
    changed = service.accounts.update(user.id, email="lovelace@example.com", by=OPERATOR)
    assert changed.email_proven_at is None
    assert query(service, "SELECT count(*) FROM one_time_tokens") == [(0,)]
    assert service.sessions.check(opened.token)


def test_of_two_parallel_changes_to_one_address_one_succeeds(
    service: Service, add: Callable[..., User]
) -> None:
    ids = [add(name).id for name in ("ada", "bob")]
    for number in range(20):
        barrier = threading.Barrier(2)

        def attempt(user_id: int, number: int = number, barrier: threading.Barrier = barrier) -> bool:
            barrier.wait()
            try:
                service.accounts.update(user_id, email=f"wanted{number}@example.com", by=OPERATOR)
            except Taken:
                return False
            return True

        with ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(attempt, ids)) == [False, True]


def test_deactivation_ends_sessions_api_tokens_and_links(service: Service, add: Callable[..., User]) -> None:
    user, other = add("ada"), add("bob")
    tokens = [
        service.sessions.login(user.email, PASSWORD).token,
        service.sessions.create_api_token(user.id, name="ci", lifetime=None, by=OPERATOR).token,
    ]
    bystander = service.sessions.login(other.email, PASSWORD).token
    plant_link(service, user)
    plant_link(service, other)
    service.accounts.set_active([user.id], active=False, by=OPERATOR)
    assert [service.sessions.check(token) for token in tokens] == [None, None]
    service.accounts.set_active([user.id], active=True, by=OPERATOR)
    assert [service.sessions.check(token) for token in tokens] == [None, None]
    assert service.sessions.check(bystander)
    assert query(service, "SELECT user_id FROM one_time_tokens") == [(other.id,)]


def test_a_role_change_lets_sessions_live_with_the_new_role(
    service: Service, add: Callable[..., User]
) -> None:
    user = add("ada")
    token = service.sessions.login(user.email, PASSWORD).token
    service.accounts.update(user.id, role="admin", by=OPERATOR)
    checked = service.sessions.check(token)
    assert checked is not None
    assert checked[1].role == "admin"


@pytest.mark.parametrize("active", [True, False])
def test_a_decision_on_an_unconfirmed_account_replaces_its_confirmation_email(
    service: Service, active: bool
) -> None:
    user = unconfirmed(service)
    plant_link(service, user, "confirm")
    changed = service.accounts.update(user.id, active=active, by=OPERATOR)
    assert (changed.active, changed.awaiting_confirmation) == (active, False)
    assert [(row.action, row.details) for row in audit(service)] == [
        ("activate" if active else "deactivate", {"active": active})
    ]
    if not active:
        assert query(service, "SELECT * FROM one_time_tokens") == []


def test_users_cannot_change_their_own_active_status(service: Service, add: Callable[..., User]) -> None:
    user = add("ada", role="admin")
    add("bob", role="admin")
    me = signed_in_admin(service, user)
    with pytest.raises(Forbidden, match="own active status"):
        service.accounts.update(user.id, name="New", active=False, by=me)
    assert service.accounts.get(user.id).name == user.name
    assert service.accounts.update(user.id, name="New", active=True, by=me).name == "New"


def test_several_users_are_changed_together_or_not_at_all(service: Service, add: Callable[..., User]) -> None:
    ids = [add(name).id for name in ("ada", "bob")]
    with pytest.raises(NotFound):
        service.accounts.set_active([*ids, 99], active=False, by=OPERATOR)
    with pytest.raises(NotFound):
        service.accounts.delete([*ids, 99], by=OPERATOR)
    assert [service.accounts.get(id_).active for id_ in ids] == [True, True]
    assert [row.action for row in audit(service)] == ["create", "create"]
    assert [user.active for _, user in service.accounts.set_active(ids, active=False, by=OPERATOR)] == [
        False,
        False,
    ]


# --- deleted ---


def test_deleting_removes_all_that_hangs_on_the_account_and_nothing_else(
    service: Service, add: Callable[..., User]
) -> None:
    users = [add("ada"), add("bob")]
    for user in users:
        service.sessions.login(user.email, PASSWORD)
        service.sessions.create_api_token(user.id, name="ci", lifetime=None, by=OPERATOR)
        plant_link(service, user)
        with pytest.raises(Unauthenticated):
            service.sessions.login(user.email, "wrong")
        with service.store.write() as tx:
            tx._run(
                "INSERT INTO outbox (user_id, kind, email, message_id, created_at, due_at) VALUES (?, 'x', ?, ?, ?, ?)",
                (user.id, user.email, f"<{user.id}>", LATER, LATER),
            )
            former = (f"former-{user.email}", user.id, LATER)
            tx._run("INSERT INTO reserved_emails (email, user_id, expires_at) VALUES (?, ?, ?)", former)
            tx._run("INSERT INTO group_members (group_id, user_id) VALUES (1, ?)", (user.id,))
            tx._run(
                "INSERT INTO identities (user_id, provider, issuer, subject, linked_at) VALUES (?, 'x', 'x', ?, ?)",
                (user.id, str(user.id), LATER),
            )
            tx.add_totp(user.id, b"x", 0)
            store_passkey(tx, user.id, user.email)
            tx.add_recovery_codes(user.id, [b"x"])
            tx.add_pending(PendingSignIn(user.email.encode(), user.id, "pwd", False), timedelta(1))
            tx.begin_totp(user.id, user.id, b"x", timedelta(1))
    hanging = [name for name, names in columns(service).items() if "user_id" in names and name != "audit"]
    assert {"auth_tokens", "one_time_tokens", "outbox", "login_failures"} <= set(hanging)

    def counted(user: User) -> list[int]:
        return [
            query(service, f"SELECT count(*) FROM {name} WHERE user_id = ?", user.id)[0][0]  # noqa: S608 - ours
            for name in hanging
        ]

    ada, bob = users
    assert all(counted(ada)), "a table that this test leaves empty"
    before = counted(bob)
    assert service.accounts.delete([ada.id], by=OPERATOR) == [
        ada._replace(last_login_at=ada.created_at, factors=2)
    ]
    assert not any(counted(ada))
    assert counted(bob) == before
    assert query(service, "SELECT count(*) FROM users") == [(1,)]
    assert {row.action for row in audit(service) if row.user_id == ada.id} == {
        "create",
        "create-token",
        "delete",
    }


@pytest.mark.parametrize(
    "deferred", ["", " DEFERRABLE INITIALLY DEFERRED"]
)  # the latter as Django has it, to the end
def test_an_account_to_which_a_table_of_others_refers_is_not_deleted_and_that_is_no_bug(
    service: Service, add: Callable[..., User], deferred: str
) -> None:
    ada, bob = add("ada"), add("bob")
    with service.store.write() as tx:
        tx._run(f"CREATE TABLE posts (author INTEGER NOT NULL REFERENCES users (id){deferred})", ())
        tx._run("INSERT INTO posts VALUES (?)", (ada.id,))
    with pytest.raises(Referred):
        service.accounts.delete([bob.id, ada.id], by=OPERATOR)
    assert query(service, "SELECT id FROM users ORDER BY id") == [(ada.id,), (bob.id,)]
    service.accounts.delete([bob.id], by=OPERATOR)


def test_a_dry_run_returns_the_users_and_deletes_none(service: Service, add: Callable[..., User]) -> None:
    user = add("ada")
    assert service.accounts.delete([user.id], dry_run=True, by=OPERATOR) == [user]
    assert service.accounts.get(user.id) == user
    assert len(audit(service)) == 1


# --- the last admin ---


@pytest.mark.parametrize(
    "attempt",
    [
        lambda service, admin: service.accounts.delete([admin], by=OPERATOR),
        lambda service, admin: service.accounts.set_active([admin], active=False, by=OPERATOR),
        lambda service, admin: service.accounts.update(admin, role="user", by=OPERATOR),
        lambda service, admin: service.accounts.update(admin, role="user", active=False, by=OPERATOR),
        lambda service, admin: service.accounts.delete([2, admin], by=OPERATOR),
        lambda service, admin: service.accounts.delete([admin], dry_run=True, by=OPERATOR),
    ],
    ids=["delete", "deactivate", "demote", "both", "with another", "dry run"],
)
def test_the_last_active_admin_stays(
    service: Service, add: Callable[..., User], attempt: Callable[[Service, int], object]
) -> None:
    admin = add("ada", role="admin")
    add("bob", role="user")
    add("eve", role="admin", active=False)
    with pytest.raises(LastAdmin):
        attempt(service, admin.id)
    assert service.accounts.get(admin.id) == admin
    assert service.accounts.get(2)
    assert len(audit(service)) == 3


def test_all_admins_at_once_cannot_be_removed_in_one_call(service: Service, add: Callable[..., User]) -> None:
    ids = [add(name, role="admin").id for name in ("ada", "bob", "eve")]
    with pytest.raises(LastAdmin):
        service.accounts.delete(ids, by=OPERATOR)
    with pytest.raises(LastAdmin):
        service.accounts.set_active(ids, active=False, by=OPERATOR)
    assert len(service.accounts.page(UserFilter(role="admin", active=True)).users) == 3


def test_an_inactive_admin_and_a_plain_user_can_be_deleted(
    service: Service, add: Callable[..., User]
) -> None:
    add("ada", role="admin")
    ids = [add("bob").id, add("eve", role="admin", active=False).id]
    service.accounts.update(ids[1], role="user", by=OPERATOR)
    assert len(service.accounts.delete(ids, by=OPERATOR)) == 2


@pytest.mark.parametrize("way", ["delete", "deactivate", "demote"])
def test_two_admins_who_remove_each_other_leave_one(service: Service, way: str) -> None:
    def remove(victim: int, barrier: threading.Barrier) -> None:
        barrier.wait()
        try:
            if way == "delete":
                service.accounts.delete([victim], by=OPERATOR)
            elif way == "deactivate":
                service.accounts.set_active([victim], active=False, by=OPERATOR)
            else:
                service.accounts.update(victim, role="user", by=OPERATOR)
        except LastAdmin:
            pass

    with ThreadPoolExecutor(2) as pool:
        for number in range(60):
            with service.store.write() as tx:
                tx._run("DELETE FROM users")
            pair = [
                create_user(service, f"{letter}{number}@example.com", "A", None, role="admin", by=OPERATOR).id
                for letter in "ab"
            ]
            list(pool.map(remove, pair, [threading.Barrier(2)] * 2))
            assert query(service, "SELECT count(*) FROM users WHERE role = 'admin' AND active = 1") == [(1,)]


def test_the_counts_of_the_database_follow_every_change(service: Service, add: Callable[..., User]) -> None:
    def agree() -> bool:
        kinds = "role, active, awaiting_confirmation, invited, signed_in"
        counted = f"SELECT {kinds}, count(*) FROM users GROUP BY {kinds} ORDER BY {kinds}"  # noqa: S608 - ours
        kept = query(service, f"SELECT * FROM user_counts WHERE n <> 0 ORDER BY {kinds}")  # noqa: S608 - ours
        return kept == query(service, counted)

    ids = [add(name, role=role).id for name, role in (("ada", "admin"), ("bob", "user"), ("eve", "user"))]
    assert agree()
    service.sessions.login("ada@example.com", PASSWORD)
    assert agree()
    service.registration.register("zoe@example.com", "Zoe", PASSWORD, by=OPERATOR)
    assert agree()
    with service.store.write() as tx:
        tx.change_user(ids[2], active=False, invited_at=LATER, invitation_expires_at=LATER)
    assert agree()
    service.sessions.login("ada@example.com", PASSWORD)
    service.accounts.update(ids[1], role="admin", active=False, by=OPERATOR)
    assert agree()
    service.accounts.set_active(ids[1:], active=True, by=OPERATOR)
    assert agree()
    service.accounts.delete(ids[1:], dry_run=True, by=OPERATOR)
    assert agree()
    with pytest.raises(LastAdmin):
        service.accounts.delete(ids[:2], by=OPERATOR)
    assert agree()
    service.accounts.delete(ids[1:], by=OPERATOR)
    assert agree()


def test_many_accounts_are_deleted_by_one_statement(service: Service, add: Callable[..., User]) -> None:
    """On a server each change of a counter takes longer than the one before, until the commit."""
    users = [add(f"u{number}") for number in range(30)]
    statements: list[str] = []
    with service.store.write() as tx:
        run = tx._run

        def noted(statement: str, *values: Any) -> Any:
            statements.append(statement)
            return run(statement, *values)

        tx._run = noted
        delete_users(tx, users, by=OPERATOR)
        assert tx.count_rows("users") == 0
    assert len([each for each in statements if each.startswith("DELETE FROM users ")]) == 1
