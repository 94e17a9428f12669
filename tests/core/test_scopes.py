"""Scopes, ranges and the form of API tokens: what is taken, how it is stored, and what it lets through."""

import re
import zlib
from collections.abc import Callable
from datetime import timedelta
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.accounts import author
from support.commands import OPERATOR, PASSWORD
from support.fakes import FakeClock

from usersctl.clock import stamp
from usersctl.errors import Forbidden, Invalid, NotFound
from usersctl.models import Client, Session, TokenKind, User
from usersctl.networks import MOST_RANGES, is_within, normal_ranges
from usersctl.scopes import Scope, normal_scopes, permits
from usersctl.secrets import digest, is_mistyped, new_api_token, new_token
from usersctl.service import Service
from usersctl.sessions import Opened
from usersctl.trail import Wanted

DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@pytest.fixture
def ada(add: Callable[..., User]) -> User:
    return add("ada")


# --- scopes ---


def test_scopes_are_stored_in_one_order_and_each_once() -> None:
    assert normal_scopes(["tasks", "users:read", "tasks"]) == "users:read tasks"
    for some in combinations(Scope, 3):
        assert normal_scopes(reversed(some)).split() == [scope for scope in Scope if scope in some]


@pytest.mark.parametrize(
    "name", ["users", "users:*", "USERS:READ", "users:read tasks", "", "*", "factors:write"]
)
def test_an_unknown_scope_is_refused_and_the_known_ones_are_named(name: str) -> None:
    with pytest.raises(Invalid, match=r"is no scope: there are users:read, .*, verify"):
        normal_scopes(["me", name])


def test_a_typing_mistake_in_a_scope_gets_a_hint() -> None:
    with pytest.raises(Invalid) as refused:
        normal_scopes(["users:raed"])
    assert refused.value.hint == "did you mean users:read?"


def test_an_empty_list_makes_no_token_that_may_do_all() -> None:
    with pytest.raises(Invalid, match="at least one scope"):
        normal_scopes([])
    with pytest.raises(Invalid, match="at least one range"):
        normal_ranges([])


def test_a_scope_opens_itself_and_writing_opens_reading() -> None:
    opened = {scope: {other for other in Scope if permits(scope, other)} for scope in Scope}
    assert opened.pop(Scope.USERS_WRITE) == {Scope.USERS_WRITE, Scope.USERS_READ}
    assert opened.pop(Scope.SESSIONS_WRITE) == {Scope.SESSIONS_WRITE, Scope.SESSIONS_READ}
    assert opened == {scope: {scope} for scope in opened}


def test_several_scopes_open_what_each_opens() -> None:
    assert all(permits("users:write tasks", scope) for scope in ("users:read", "users:write", "tasks"))
    assert not any(permits("users:write tasks", scope) for scope in ("me", "verify", "sessions:read"))


def test_a_route_without_a_scope_is_closed_to_every_scope_and_open_without_scopes() -> None:
    assert not any(permits(normal_scopes(some), None) for some in combinations(Scope, 3))
    assert not permits(normal_scopes(Scope), None)
    assert not any(permits("", scope) for scope in (None, *Scope))
    assert permits(None, None)
    assert all(permits(None, scope) for scope in Scope)


# --- ranges ---


@pytest.mark.parametrize(
    ("given_ranges", "stored"),
    [
        (["192.0.2.7"], "192.0.2.7/32"),
        (["10.0.0.0/8", " 10.0.0.0/8 "], "10.0.0.0/8"),
        (["2001:DB8::/32"], "2001:db8::/32"),
        (["::1"], "::1/128"),
        (["::ffff:10.1.0.0/112"], "10.1.0.0/16"),
        (["::ffff:192.0.2.7"], "192.0.2.7/32"),
    ],
)
def test_ranges_are_stored_in_one_form(given_ranges: list[str], stored: str) -> None:
    assert normal_ranges(given_ranges) == stored


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.1/8",
        "10.0.0.0/33",
        "unix",
        "example.com",
        "",
        "10.0.0.0/8 192.0.2.7",
        "fe80::1%eth0/64",
        "fe80::1%eth0",
        "fe80::1%a b",
        "fe80::%a/64",
    ],
)
def test_what_is_no_address_and_no_range_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="Not an address or range"):
        normal_ranges([text])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("10.0.0.1/8", "10.0.0.0/8"),
        ("10.0.0.1/255.0.0.0", "10.0.0.0/8"),
        ("192.0.2.7/31", "192.0.2.6/31"),
        ("2001:db8::1/32", "2001:db8::/32"),
        ("1.2.3.4/0", "0.0.0.0/0"),
    ],
)
def test_an_address_with_the_length_of_a_range_is_refused_and_the_range_is_named(
    text: str, named: str
) -> None:
    with pytest.raises(Invalid) as refused:
        normal_ranges([text])
    assert str(refused.value) == f"Not an address or range: {text!r}; the range is {named}"
    assert normal_ranges([named]) == named


def test_a_token_has_some_ranges_and_not_thousands() -> None:
    many = [f"10.0.{number}.0/24" for number in range(MOST_RANGES + 1)]
    assert len(normal_ranges(many[1:]).split()) == MOST_RANGES
    with pytest.raises(Invalid, match="50 at most"):
        normal_ranges(many)


@pytest.mark.parametrize(
    ("address", "is_inside"),
    [
        ("10.200.0.1", True),
        ("::ffff:10.200.0.1", True),
        ("11.0.0.1", False),
        ("2001:db8:1::1", True),
        ("2001:db9::1", False),
        ("::ffff:11.0.0.1", False),
        ("::10.200.0.1", False),
        ("fe80::1%eth0", False),
        ("unix", False),
        ("", False),
        ("10.200.0.1, 10.200.0.1", False),
        (None, False),
    ],
)
def test_an_address_is_inside_of_a_range_or_not(address: str | None, is_inside: bool) -> None:
    assert is_within(address, "10.0.0.0/8 2001:db8::/32") is is_inside


# --- the form of a token ---


def checksum(text: str) -> str:
    """As the documentation tells it, written a second time."""
    number = zlib.crc32(text.encode())
    return "".join(DIGITS[number // 62**place % 62] for place in range(5, -1, -1))


def test_a_token_begins_with_its_prefix_and_ends_with_its_checksum() -> None:
    tokens = {new_api_token() for _ in range(200)}
    assert len(tokens) == 200
    for token in tokens:
        assert re.fullmatch(r"usr_[A-Za-z0-9_-]{43}[0-9A-Za-z]{6}", token)
        assert token[-6:] == checksum(token[:-6])
        assert not is_mistyped(token)


@given(st.integers(0, 52), st.characters(codec="utf-8"))
def test_every_wrong_character_is_noticed_without_a_look_at_the_database(place: int, wrong: str) -> None:
    token = new_api_token()
    typed = token[:place] + wrong + token[place + 1 :]
    # What no longer begins like one may be of another kind.
    assert is_mistyped(typed) == (typed != token and typed.startswith("usr_"))


@pytest.mark.parametrize("change", [lambda t: t[:-1], lambda t: t + "A", lambda t: t[:20], lambda _: "usr_"])
def test_a_part_of_a_token_is_mistyped(change: Callable[[str], str]) -> None:
    assert is_mistyped(change(new_api_token()))


def test_sessions_and_older_tokens_are_none_of_these() -> None:
    assert not is_mistyped(new_token())
    assert not is_mistyped("usr_" + "A" * 39), "an older token may begin like that by chance"


def test_a_typing_mistake_costs_no_look_up(
    service: Service, ada: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = made(service, ada).token
    wrong = token[:-1] + DIGITS[DIGITS.index(token[-1]) - 1]

    def no_look_up(*_: object) -> None:
        raise AssertionError("the database was asked")

    monkeypatch.setattr("usersctl.store.auth_tokens.AuthTokens.session", no_look_up)
    assert service.sessions.check(wrong) is None
    with pytest.raises(AssertionError, match="the database was asked"):
        service.sessions.check(token)


@pytest.mark.parametrize("older", ["A" * 43, "usr_" + "A" * 39])
def test_a_token_of_before_goes_on(service: Service, ada: User, older: str) -> None:
    with service.store.write() as tx:
        tx.add_token(ada.id, digest(older), kind=TokenKind.API, name="before")
    session, user = checked(service, older)
    assert (session.scopes, session.ranges, user.id) == (None, None, ada.id)


# --- made, used and ended ---


def made(service: Service, user: User, scopes: str | None = None, ranges: str | None = None) -> Opened:
    return service.sessions.create_api_token(
        user.id, name="ci", lifetime=None, scopes=scopes, ranges=ranges, by=OPERATOR
    )


def checked(
    service: Service, token: str, ip: str | None = None, agent: str | None = None
) -> tuple[Session, User]:
    known = service.sessions.check(token, caller=Client(ip, agent))
    assert known is not None
    return known


def test_a_token_keeps_its_scopes_and_ranges(service: Service, ada: User) -> None:
    token = made(service, ada, "me verify", "10.0.0.0/8").token
    session, _ = checked(service, token, "10.0.0.1")
    assert (session.scopes, session.ranges) == ("me verify", "10.0.0.0/8")
    assert (session.scope_names, session.range_texts) == (["me", "verify"], ["10.0.0.0/8"])
    (row,) = service.trail.page(Wanted(action="create-token"), limit=2).rows
    assert row["details"] | {"scopes": "me verify", "ranges": "10.0.0.0/8"} == row["details"]
    assert token not in str(row)


def test_a_token_with_ranges_opens_nothing_from_elsewhere_and_notes_no_use_there(
    service: Service, ada: User
) -> None:
    token = made(service, ada, ranges="10.0.0.0/8 2001:db8::/32").token
    for address in ("192.0.2.7", "2001:db9::1", "unix", None):
        assert service.sessions.check(token, caller=Client(address)) is None
    service.sessions.uses.write()
    (stored,) = service.sessions.listed(ada.id)
    assert (stored.last_used_at, stored.ip) == (None, None)
    checked(service, token, "::ffff:10.0.0.1")


def test_the_last_use_of_a_token_shows_address_and_program(
    service: Service, ada: User, clock: FakeClock
) -> None:
    token = made(service, ada).token
    session = service.sessions.login(ada.email, PASSWORD).token
    for address, agent in (("192.0.2.7", "curl/8"), ("192.0.2.8", "backup\n" + "x" * 500)):
        clock.move(minutes=2)
        checked(service, token, address, agent)
        checked(service, session, address, agent)
    service.sessions.uses.write()
    of_token, of_session = service.sessions.listed(ada.id)
    assert (of_token.last_used_at, of_token.ip) == (stamp(clock()), "192.0.2.8")
    assert of_token.user_agent == "backup " + "x" * 293
    assert (of_session.last_used_at, of_session.ip, of_session.user_agent) == (stamp(clock()), None, None)


def test_a_session_must_be_fresh_to_make_a_token_and_a_command_need_not(
    service: Service, ada: User, clock: FakeClock
) -> None:
    opened = service.sessions.login(ada.email, PASSWORD)
    by = author(opened)
    service.sessions.create_api_token(ada.id, name="ci", lifetime=None, by=by)
    clock.move(minutes=11)
    with pytest.raises(Forbidden, match="Confirm that it is you"):
        service.sessions.create_api_token(ada.id, name="ci", lifetime=None, by=by)
    made(service, ada)
    assert len(service.sessions.listed(ada.id)) == 3


def test_a_token_is_ended_as_a_token_and_a_session_is_not(service: Service, ada: User) -> None:
    token, session = made(service, ada).session, service.sessions.login(ada.email, PASSWORD).session
    with pytest.raises(NotFound, match="Token not found"):
        service.sessions.revoke(session.id, by=OPERATOR, user_id=ada.id, kind=TokenKind.API)
    assert service.sessions.revoke(token.id, by=OPERATOR, user_id=ada.id, kind=TokenKind.API) == token
    assert service.sessions.listed(ada.id) == [session]


def test_tokens_without_an_expiry_that_no_client_uses_are_named(
    service: Service, ada: User, clock: FakeClock
) -> None:
    unused, used = made(service, ada), made(service, ada)
    service.sessions.create_api_token(ada.id, name="ends", lifetime=timedelta(days=400), by=OPERATOR)
    service.sessions.login(ada.email, PASSWORD)
    clock.move(days=91)
    checked(service, used.token, "192.0.2.7")
    service.sessions.uses.write()
    with service.store.read() as tx:
        idle = tx.idle_endless_tokens(stamp(clock() - timedelta(days=90)), 10)
    assert [tuple(row) for row in idle] == [(unused.session.id, "ci", ada.email)]
