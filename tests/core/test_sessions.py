"""Sessions and API tokens: opened, checked, moved on, ended."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.accounts import stored_sessions
from support.commands import OPERATOR, PASSWORD, create_user
from support.fakes import FakeClock
from support.tables import hash_of, store_hash

from usersctl.clock import stamp
from usersctl.errors import Busy, Forbidden, NotFound, Unauthenticated
from usersctl.fields import lookup_key
from usersctl.models import Client, Session, User
from usersctl.passwords import Hasher, cost_of
from usersctl.secrets import digest
from usersctl.service import Service
from usersctl.sessions import MAX_USER_AGENT, clean_user_agent
from usersctl.store.opening import open_store

ADA = "ada@example.com"
ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))


@pytest.fixture
def ada(add: Callable[..., User]) -> User:
    return add("ada")


def stored(service: Service, token_id: int) -> Session:
    service.sessions.uses.write()
    (session,) = (session for session in stored_sessions(service) if session.id == token_id)
    return session


# --- login ---


@pytest.mark.parametrize("email", [ADA, " ADA@Example.com\n"])
@pytest.mark.usefixtures("ada")
def test_the_right_password_opens_a_session(service: Service, clock: FakeClock, email: str) -> None:
    clock.move(hours=1)
    opened = service.sessions.login(lookup_key(email), PASSWORD, client=Client("192.0.2.1", "Browser/1.0"))
    now = stamp(clock())
    assert opened.user.last_login_at == now
    assert opened.session == Session(
        1,
        1,
        "session",
        "login",
        now,
        now,
        stamp(clock() + timedelta(minutes=1440)),
        stamp(clock() + timedelta(days=30)),
        "192.0.2.1",
        "Browser/1.0",
        "pwd",
    )
    assert service.sessions.check(opened.token) == (opened.session, opened.user)


@pytest.mark.parametrize(
    ("email", "password"),
    [
        (ADA, "wrong"),
        (ADA, ""),
        (ADA, PASSWORD + " "),
        (ADA, PASSWORD.upper()),
        (ADA, PASSWORD + "\0"),
        (ADA, "x" * 73),
        (ADA, "x" * 100_000),
        (ADA, "\ud800"),
        ("bob@example.com", PASSWORD),
        ("", PASSWORD),
        ("1", PASSWORD),
        ("ada", PASSWORD),
        ("\ud800", PASSWORD),
        ("ada@example.com\0", PASSWORD),
        ("%", PASSWORD),
    ],
)
@pytest.mark.usefixtures("ada")
def test_every_wrong_login_is_refused_with_the_same_message(
    service: Service, email: str, password: str
) -> None:
    with pytest.raises(Unauthenticated, match=r"^Invalid email or password$"):
        service.sessions.login(lookup_key(email), password)
    assert stored_sessions(service) == []


@pytest.mark.parametrize("broken", ["", "!", PASSWORD, "$2b$31$" + "." * 53, "$2b$04$" + "z" * 53])
def test_an_account_with_a_broken_hash_refuses_every_password_alike(
    service: Service, ada: User, broken: str
) -> None:
    store_hash(service, ada, broken)
    for password in (PASSWORD, broken, ""):
        with pytest.raises(Unauthenticated, match=r"^Invalid email or password$"):
            service.sessions.login(ADA, password)


def test_every_refusal_asks_for_one_check_in_one_slot(service: Service, ada: User) -> None:
    checked: list[bool] = []

    class Seen(Hasher):
        def matches(self, password: str, stored: str | None) -> bool:
            checked.append(self.in_use == 1)
            return super().matches(password, stored)

    seen = service.sessions._replace(hasher=Seen(4))
    for email, password in [
        (ADA, "wrong"),
        (ADA, "x" * 73),
        ("bob@example.com", "x"),
        ("", ""),
        ("\ud800", ""),
    ]:
        with pytest.raises(Unauthenticated):
            seen.login(lookup_key(email), password)
    store_hash(service, ada, "broken")
    with pytest.raises(Unauthenticated):
        seen.login(ADA, PASSWORD)
    assert checked == [True] * 6


def test_only_the_right_password_reveals_that_an_account_is_inactive(
    service: Service, add: Callable[..., User]
) -> None:
    add("ada", active=False)
    with pytest.raises(Forbidden, match=r"^Account is inactive$"):
        service.sessions.login(ADA, PASSWORD)
    with pytest.raises(Unauthenticated, match=r"^Invalid email or password$"):
        service.sessions.login(ADA, "wrong")
    assert stored_sessions(service) == []
    assert service.accounts.get(1).last_login_at is None


def test_a_password_does_not_expire(service: Service, ada: User, clock: FakeClock) -> None:
    clock.move(days=20 * 365)
    assert service.sessions.login(ada.email, PASSWORD).user.id == ada.id


def test_a_hash_of_another_cost_is_renewed_by_the_next_login(service: Service, ada: User) -> None:
    store_hash(service, ada, Hasher(5).hash(PASSWORD))
    with pytest.raises(Unauthenticated):
        service.sessions.login(ADA, "wrong")
    assert cost_of(hash_of(service, ada)) == 5
    service.sessions.login(ADA, PASSWORD)
    assert cost_of(hash_of(service, ada)) == 4
    renewed = hash_of(service, ada)
    service.sessions.login(ADA, PASSWORD)
    assert hash_of(service, ada) == renewed
    assert service.accounts.get(ada.id).updated_at == ada.updated_at


def test_a_login_ends_the_sessions_of_the_tokens_sent_along(service: Service, ada: User) -> None:
    first = service.sessions.login(ada.email, PASSWORD)
    second = service.sessions.login(ada.email, PASSWORD, client=Client(tokens=(first.token, "a neighbour's")))
    assert service.sessions.check(first.token) is None
    assert service.sessions.check(second.token)
    with pytest.raises(Unauthenticated):
        service.sessions.login(ada.email, "wrong", client=Client(tokens=(second.token,)))
    assert service.sessions.check(second.token)


def test_a_login_fails_if_the_password_changes_meanwhile(service: Service, ada: User) -> None:
    class Slow(Hasher):
        def matches(self, password: str, stored: str | None) -> bool:
            fits = super().matches(password, stored)
            store_hash(service, ada, "changed meanwhile")
            return fits

    with pytest.raises(Unauthenticated):
        service.sessions._replace(hasher=Slow(4)).login(ADA, PASSWORD)
    assert hash_of(service, ada) == "changed meanwhile"


def test_parallel_logins_that_renew_one_hash_all_succeed(make_service: Callable[..., Service]) -> None:
    create_user(make_service(rounds=4), ADA, "Ada", PASSWORD, by=OPERATOR)
    service = make_service(rounds=5)
    entered = threading.Barrier(2, timeout=10)

    class Together(Hasher):
        def matches(self, password: str, stored: str | None) -> bool:
            fits = super().matches(password, stored)
            if stored is not None and cost_of(stored) == 4:
                entered.wait()
            return fits

    sessions = service.sessions._replace(hasher=Together(5, slots=2))
    with ThreadPoolExecutor(2) as pool:
        logins = [pool.submit(sessions.login, ADA, PASSWORD) for _ in range(2)]
        assert [login.result().user.email for login in logins] == [ADA, ADA]


def test_a_login_fails_if_the_account_is_deleted_meanwhile(service: Service, ada: User) -> None:
    class Slow(Hasher):
        def matches(self, password: str, stored: str | None) -> bool:
            service.accounts.delete([ada.id], by=OPERATOR)
            return super().matches(password, stored)

    with pytest.raises(Unauthenticated):
        service.sessions._replace(hasher=Slow(4)).login(ADA, PASSWORD)


def test_a_full_waiting_room_counts_as_no_failed_login(service: Service, ada: User) -> None:
    hasher = Hasher(4, slots=1, waiting_room=0)
    busy = service.sessions._replace(hasher=hasher)
    with hasher.slot(), pytest.raises(Busy) as refused:
        busy.login(ada.email, PASSWORD)
    assert refused.value.retry_after > 0
    with service.store.read() as tx:
        assert tx.counts()["login_failures"] == 0


def test_only_the_digest_of_a_token_is_kept(service: Service, ada: User) -> None:
    opened = service.sessions.login(ada.email, PASSWORD)
    with service.store.read() as tx:
        assert tx._run("SELECT token_hash FROM auth_tokens").fetchall() == [(digest(opened.token),)]


# --- checked ---


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(token=ANY_TEXT)
def test_no_other_text_is_a_session(service: Service, token: str) -> None:
    assert service.sessions.check(token) is None
    assert service.sessions.end(token) is None


def test_a_token_with_one_changed_character_opens_no_session(service: Service, ada: User) -> None:
    token = service.sessions.login(ada.email, PASSWORD).token
    for other in (token[:-1], token + "=", token.swapcase(), token + "\0", f" {token}"):
        assert service.sessions.check(other) is None


@pytest.mark.parametrize(
    ("remember", "idle"),
    [(False, timedelta(minutes=90)), (True, timedelta(days=3))],
    ids=["session", "persistent"],
)
def test_a_session_that_is_not_used_ends_after_its_idle_time(
    make_service: Callable[..., Service], clock: FakeClock, remember: bool, idle: timedelta
) -> None:
    service = make_service(token_expiration=timedelta(minutes=90), remember_me_expiration=timedelta(days=3))
    create_user(service, ADA, "Ada", PASSWORD, by=OPERATOR)
    opened = service.sessions.login(ADA, PASSWORD, remember=remember)
    assert opened.session.expires_at == stamp(clock() + idle)
    clock.move(seconds=idle.total_seconds() - 0.001)
    assert [session.id for session in service.sessions.listed(opened.user.id)] == [opened.session.id]
    clock.move(milliseconds=1)
    assert service.sessions.check(opened.token) is None


def test_use_moves_the_expiry_on_at_most_once_a_minute(service: Service, ada: User, clock: FakeClock) -> None:
    opened = service.sessions.login(ada.email, PASSWORD)
    clock.move(seconds=59)
    service.sessions.check(opened.token)
    assert stored(service, 1) == opened.session
    clock.move(seconds=1)
    checked = service.sessions.check(opened.token)
    assert checked is not None
    assert checked[0].moved  # so that a persistent cookie is moved on too
    assert stored(service, 1)._replace(moved=True) == checked[0]
    moved_on = {"last_used_at": stamp(clock()), "expires_at": stamp(clock() + timedelta(minutes=1440))}
    assert checked[0] == opened.session._replace(**moved_on, moved=True)


@pytest.mark.parametrize(
    ("remember_days", "limit_days"), [(7, 30), (30, 30), (90, 90)], ids=["shorter", "same", "longer"]
)
@pytest.mark.parametrize("remember", [False, True])
def test_use_never_moves_the_expiry_past_the_absolute_limit(
    make_service: Callable[..., Service],
    clock: FakeClock,
    remember_days: int,
    limit_days: int,
    remember: bool,
) -> None:
    service = make_service(remember_me_expiration=timedelta(days=remember_days))
    create_user(service, ADA, "Ada", PASSWORD, by=OPERATOR)
    began = clock()
    opened = service.sessions.login(ADA, PASSWORD, remember=remember)
    limit = began + timedelta(days=limit_days)
    while service.sessions.check(opened.token):
        assert clock() < limit
        expires_at = stored(service, opened.session.id).expires_at
        assert expires_at is not None
        assert expires_at <= stamp(limit)
        clock.move(hours=12)
    assert clock() == limit


def test_a_session_of_a_minute_lives_as_long_as_it_is_used(
    make_service: Callable[..., Service], clock: FakeClock
) -> None:
    service = make_service(token_expiration=timedelta(minutes=1))
    create_user(service, ADA, "Ada", PASSWORD, by=OPERATOR)
    opened = service.sessions.login(ADA, PASSWORD)
    for _ in range(5):
        clock.move(seconds=40)
        assert service.sessions.check(opened.token) is not None
    clock.move(minutes=1)
    assert service.sessions.check(opened.token) is None


@pytest.mark.parametrize("minutes", [2, 5, 1440])
def test_the_use_of_a_session_is_noted_once_a_minute_at_most(
    make_service: Callable[..., Service], clock: FakeClock, minutes: int
) -> None:
    service = make_service(token_expiration=timedelta(minutes=minutes))
    create_user(service, ADA, "Ada", PASSWORD, by=OPERATOR)
    opened = service.sessions.login(ADA, PASSWORD)
    noted = set()
    for _ in range(40):  # for four minutes
        clock.move(seconds=6)
        checked = service.sessions.check(opened.token)
        assert checked is not None
        noted.add(checked[0].last_used_at)
    assert len(noted) <= 5


def test_a_session_that_is_not_used_ends_at_the_absolute_limit_too(
    make_service: Callable[..., Service], clock: FakeClock
) -> None:
    service = make_service(token_expiration=timedelta(days=60))
    create_user(service, ADA, "Ada", PASSWORD, by=OPERATOR)
    opened, other = (service.sessions.login(ADA, PASSWORD) for _ in range(2))
    clock.move(days=30, milliseconds=-1)
    assert service.sessions.check(other.token)
    clock.move(milliseconds=1)
    assert service.sessions.check(opened.token) is None


@pytest.mark.parametrize("lifetime", [None, timedelta(days=90), timedelta(hours=1)], ids=str)
def test_an_api_token_keeps_the_expiry_that_it_was_given(
    service: Service, ada: User, clock: FakeClock, lifetime: timedelta | None
) -> None:
    began = clock()
    made = service.sessions.create_api_token(ada.id, name="ci", lifetime=lifetime, by=OPERATOR)
    assert made.session == Session(
        1,
        ada.id,
        "api",
        "ci",
        stamp(began),
        None,
        stamp(began + lifetime) if lifetime else None,
        None,
        None,
        None,
    )
    for _ in range(5):
        clock.move(minutes=10)
        assert service.sessions.check(made.token)
        assert stored(service, 1) == made.session._replace(last_used_at=stamp(clock()))
    clock.move(days=89)
    assert (service.sessions.check(made.token) is not None) == (lifetime != timedelta(hours=1))
    clock.move(days=365 * 50)
    assert (service.sessions.check(made.token) is not None) == (lifetime is None)


def test_a_clock_that_is_set_back_ends_nothing(service: Service, ada: User, clock: FakeClock) -> None:
    opened = service.sessions.login(ada.email, PASSWORD)
    clock.move(days=-400)
    assert service.sessions.check(opened.token)
    assert stored(service, 1).last_used_at == stamp(clock())


def test_a_session_check_succeeds_while_others_write(
    service: Service, ada: User, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from usersctl.store import database_file

    opened = service.sessions.login(ada.email, PASSWORD)
    clock.move(minutes=2)
    monkeypatch.setattr(database_file, "BUSY_SECONDS", 0.1)
    with ThreadPoolExecutor(1) as pool, service.store.write():
        checked = pool.submit(service.sessions.check, opened.token).result(5)
    assert checked is not None
    assert stored(service, 1).last_used_at == stamp(clock())


def test_a_session_check_succeeds_where_nothing_can_be_written(
    service: Service, ada: User, clock: FakeClock
) -> None:
    opened = service.sessions.login(ada.email, PASSWORD)
    clock.move(minutes=2)
    store = open_store(service.store.database, write=False, clock=clock)
    try:
        checked = service.sessions._replace(store=store).check(opened.token)
    finally:
        store.close()
    assert checked is not None
    assert checked[1].id == ada.id


def test_role_and_activity_are_those_of_the_database(service: Service, ada: User) -> None:
    token = service.sessions.login(ada.email, PASSWORD).token
    with service.store.write() as tx:
        tx.change_user(ada.id, active=False)
    assert service.sessions.check(token) is None
    with service.store.write() as tx:
        tx.change_user(ada.id, active=True, role="admin")
    checked = service.sessions.check(token)
    assert checked is not None
    assert checked[1].role == "admin"


# --- ended ---


def test_logout_ends_the_token_that_came_and_no_other(service: Service, ada: User) -> None:
    here, there = (service.sessions.login(ada.email, PASSWORD) for _ in range(2))
    ended = service.sessions.end(here.token)
    assert ended is not None
    assert ended.id == here.session.id
    assert service.sessions.end(here.token) is None
    assert service.sessions.check(here.token) is None
    assert service.sessions.check(there.token)


def test_logout_ends_an_expired_token_too(service: Service, ada: User, clock: FakeClock) -> None:
    opened = service.sessions.login(ada.email, PASSWORD)
    clock.move(days=2)
    assert service.sessions.end(opened.token)
    assert stored_sessions(service) == []


def test_the_list_holds_the_live_sessions_of_one_user(
    service: Service, ada: User, add: Callable[..., User], clock: FakeClock
) -> None:
    bob = add("bob")
    old = service.sessions.login(ada.email, PASSWORD)
    clock.move(days=2)
    mine = service.sessions.login(ada.email, PASSWORD)
    theirs = service.sessions.login(bob.email, PASSWORD)
    api = service.sessions.create_api_token(ada.id, name="ci", lifetime=None, by=OPERATOR)
    ids = [client.session.id for client in (old, mine, theirs, api)]
    assert [session.id for session in service.sessions.listed(ada.id)] == [ids[1], ids[3]]
    assert [session.id for session in stored_sessions(service)] == ids
    with service.store.read() as tx:
        assert [(session.id, email) for session, email in tx.live_tokens()] == [
            (mine.session.id, ada.email),
            (theirs.session.id, bob.email),
            (api.session.id, ada.email),
        ]


def test_one_session_is_ended_by_its_owner_only(
    service: Service, ada: User, add: Callable[..., User]
) -> None:
    opened = service.sessions.login(ada.email, PASSWORD)
    bob = add("bob")
    with pytest.raises(NotFound, match="Session not found"):
        service.sessions.revoke(opened.session.id, user_id=bob.id, by=OPERATOR)
    assert service.sessions.check(opened.token)
    service.sessions.revoke(opened.session.id, user_id=ada.id, by=OPERATOR)
    assert service.sessions.check(opened.token) is None
    with pytest.raises(NotFound):
        service.sessions.revoke(opened.session.id, by=OPERATOR)


def test_all_of_a_users_tokens_are_ended_together(
    service: Service, ada: User, add: Callable[..., User]
) -> None:
    bob = add("bob")
    tokens = [service.sessions.login(ada.email, PASSWORD).token for _ in range(2)]
    tokens.append(service.sessions.create_api_token(ada.id, name="ci", lifetime=None, by=OPERATOR).token)
    theirs = service.sessions.login(bob.email, PASSWORD).token
    assert service.sessions.revoke_all([ada.id], by=OPERATOR) == [3]
    assert [service.sessions.check(token) for token in tokens] == [None] * 3
    assert service.sessions.check(theirs)
    assert service.sessions.revoke_all([ada.id], by=OPERATOR) == [0]
    with pytest.raises(NotFound):
        service.sessions.revoke_all([bob.id, 99], by=OPERATOR)
    assert service.sessions.check(theirs)


def test_a_session_revoked_by_another_process_ends_at_once(
    make_service: Callable[..., Service],
) -> None:
    here, there = make_service(), make_service()
    user = create_user(here, ADA, "Ada", PASSWORD, by=OPERATOR)
    token = here.sessions.login(ADA, PASSWORD).token
    assert here.sessions.check(token)
    there.sessions.revoke_all([user.id], by=OPERATOR)
    assert here.sessions.check(token) is None


def test_tokens_are_noted_when_they_are_made_and_revoked(
    service: Service, ada: User, clock: FakeClock
) -> None:
    api = service.sessions.create_api_token(ada.id, name="ci", lifetime=timedelta(days=1), by=OPERATOR)
    service.sessions.revoke(api.session.id, by=OPERATOR)
    service.sessions.revoke_all([ada.id], by=OPERATOR)  # nothing to do, nothing to tell
    service.sessions.login(ada.email, PASSWORD)
    service.sessions.revoke_all([ada.id], by=OPERATOR)
    with service.store.read() as tx:
        rows = list(tx.audit_rows())[1:]
    assert [(row.action, row.details) for row in rows] == [
        ("create-token", {"token": 1, "name": "ci", "expires_at": stamp(clock() + timedelta(days=1))}),
        ("revoke", {"token": 1, "kind": "api", "name": "ci"}),
        ("revoke-all", {"count": 1}),
    ]
    assert {(row.actor, row.origin, row.user_id, row.email) for row in rows} == {(*OPERATOR[:2], ada.id, ADA)}


def test_an_api_token_is_for_an_active_account(service: Service, add: Callable[..., User]) -> None:
    user = add("ada", active=False)
    with pytest.raises(Forbidden):
        service.sessions.create_api_token(user.id, name="ci", lifetime=None, by=OPERATOR)
    with pytest.raises(NotFound):
        service.sessions.create_api_token(99, name="ci", lifetime=None, by=OPERATOR)


# --- a stranger's header ---


@given(st.none() | ANY_TEXT | st.text(min_size=MAX_USER_AGENT))
def test_a_user_agent_is_kept_short_and_printable(text: str | None) -> None:
    kept = clean_user_agent(text)
    if kept is None:
        assert not text
        return
    kept.encode()
    assert kept.isprintable()
    assert len(kept) == min(len(text or ""), MAX_USER_AGENT)
