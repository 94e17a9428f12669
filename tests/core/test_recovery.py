"""Forgotten passwords and "this wasn't me": what a reset does, and what its link is good for."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from support.accounts import author, open_session
from support.commands import OPERATOR, PASSWORD
from support.fakes import FakeClock
from support.identities import link
from support.postbox import Link, last_link, link_in, send_all, sent
from support.tables import audit

from usersctl.clock import stamp
from usersctl.errors import Busy, Invalid, TooMany, Unauthenticated, UsersError
from usersctl.mail.kinds import ACCOUNT_LINKED, RESET
from usersctl.models import Actor, Identity, User
from usersctl.passwords import Hasher
from usersctl.service import Service

ADA = "ada@example.com"
NEW = "another good password"
WEB = Actor("anonymous", "192.0.2.1")
NO_LINK = r"^Invalid or expired link$"


@pytest.fixture
def ada(add: Callable[..., User]) -> User:
    return add("ada")


def forgotten(service: Service, email: str = ADA, to: str | None = None) -> Link:
    service.recovery.forgot(email)
    return last_link(service, to or email)


def reset(service: Service, link: Link, password: str = NEW, email: str | None = None) -> User:
    return service.recovery.reset(link.token, email or link.email, password, by=WEB)


def refused(service: Service, link: Link, email: str | None = None) -> None:
    with pytest.raises(Invalid, match=NO_LINK):
        reset(service, link, email=email)


def not_me(service: Service, link: Link, email: str | None = None) -> None:
    service.recovery.not_me(link.token, email or link.email, by=WEB)


def moved(service: Service, user: User, email: str) -> None:
    """A change of address by who knows the password: claimed and proven."""
    opened = open_session(service, user)
    service.accounts.update(user.id, email=email, by=author(opened))
    link = last_link(service, to=email)
    service.claims.prove(link.token, link.email, PASSWORD, by=WEB)
    service.sessions.end(opened.token)


def notice_of_change(service: Service) -> Link:
    """To the first address."""
    (text,) = [" ".join(email.parts) for email in sent(service, ADA) if "is being changed" in email.subject]
    return link_in(text)


def can_log_in(service: Service, password: str, email: str = ADA) -> bool:
    try:
        service.sessions.login(email, password)
    except UsersError:
        return False
    return True


# --- forgot and reset ---


@pytest.mark.usefixtures("ada")
def test_a_forgotten_password_is_replaced_through_an_email(service: Service) -> None:
    link = forgotten(service, " ADA@Example.com\n", to=ADA)
    assert (link.path, link.email) == ("/reset-password", ADA)
    assert reset(service, link, email=" Ada@EXAMPLE.com ").email == ADA
    assert not can_log_in(service, PASSWORD)
    assert can_log_in(service, NEW)


@pytest.mark.usefixtures("ada")
def test_requesting_a_reset_changes_nothing(service: Service) -> None:
    forgotten(service)
    assert can_log_in(service, PASSWORD)


@pytest.mark.usefixtures("ada")
def test_a_reset_link_is_good_for_an_hour_to_the_second(service: Service, clock: FakeClock) -> None:
    link = forgotten(service)
    clock.move(hours=1)
    refused(service, link)
    clock.move(milliseconds=-1)
    reset(service, link)


@pytest.mark.usefixtures("ada")
def test_a_reset_link_works_once(service: Service) -> None:
    link = forgotten(service)
    reset(service, link)
    refused(service, link)


@pytest.mark.usefixtures("ada")
def test_a_reset_link_works_once_also_in_parallel(service: Service) -> None:
    link = forgotten(service)

    def attempt(number: int) -> str | None:
        try:
            reset(service, link, f"{NEW} {number}")
        except Invalid:
            return None
        return f"{NEW} {number}"

    with ThreadPoolExecutor(8) as pool:
        (won,) = filter(None, pool.map(attempt, range(32)))
    assert can_log_in(service, won)
    with service.store.read() as tx:
        assert [row.action for row in tx.audit_rows()].count("reset-password") == 1


@pytest.mark.usefixtures("ada")
@pytest.mark.parametrize("password", ["short", "password1", ADA, "ada", "x" * 73, "\ud800" * 10, "\0" * 10])
def test_a_weak_password_does_not_use_up_the_link(service: Service, password: str) -> None:
    link = forgotten(service)
    with pytest.raises(Invalid, match=r"^Password must|^Password is too common"):
        reset(service, link, password)
    reset(service, link)


@pytest.mark.usefixtures("ada")
def test_no_free_slot_does_not_use_up_the_link(
    make_service: Callable[..., Service], service: Service
) -> None:
    link = forgotten(service)
    full = service.recovery._replace(hasher=Hasher(4, slots=1, waiting_room=0))
    with full.hasher.slot(), pytest.raises(Busy):
        full.reset(link.token, ADA, NEW, by=WEB)
    reset(make_service(), link)


def test_a_link_with_another_address_or_token_is_refused_and_stays_good(
    service: Service, add: Callable[..., User]
) -> None:
    add("ada")
    add("bob")
    link = forgotten(service)
    for email in ("bob@example.com", "nobody@example.com", "ada", " ", "\ud800"):
        refused(service, link, email)
    for token in ("", link.token[:-1], link.token + "x", link.token.upper(), "\ud800", "x" * 60_000):
        refused(service, link._replace(token=token))
    reset(service, link)


def test_a_reset_ends_sessions_and_api_tokens_and_the_other_links(
    service: Service, add: Callable[..., User]
) -> None:
    ada, bob = add("ada"), add("bob")
    first, second = forgotten(service), forgotten(service)
    theirs = service.sessions.login(bob.email, PASSWORD).token
    tokens = [
        service.sessions.login(ADA, PASSWORD).token,
        service.sessions.login(ADA, PASSWORD, remember=True).token,
        service.sessions.create_api_token(ada.id, name="ci", lifetime=None, by=OPERATOR).token,
    ]
    reset(service, first)
    assert [service.sessions.check(token) for token in tokens] == [None] * 3
    assert service.sessions.check(theirs) is not None
    refused(service, second)


@pytest.mark.usefixtures("ada")
def test_a_reset_drops_waiting_emails(service: Service) -> None:
    link = forgotten(service)
    service.recovery.forgot(ADA)
    reset(service, link)
    assert [attempt.email.kind for attempt in send_all(service)] == ["password-changed"]


def test_a_reset_proves_the_address(service: Service, ada: User, clock: FakeClock) -> None:
    assert ada.email_proven_at is None
    clock.move(minutes=1)
    assert reset(service, forgotten(service)).email_proven_at == stamp(clock())


def test_a_reset_ends_the_links_to_accounts_with_another_address_and_says_so(
    service: Service, ada: User
) -> None:
    """One of an intruder, who was in a session; and not that of the owner."""
    with service.store.write() as tx:
        for provider, email in (("oauth", "mallory@example.com"), ("corp", ADA), ("old", None)):
            tx.add_identities([Identity(ada.id, provider, "https://id.example", "7", email)])
    reset(service, forgotten(service))
    assert [linked.name for linked in service.identities.of(ada.id)] == ["corp", "old"]
    assert [email.subject for email in sent(service, ADA) if "disconnected" in email.subject.lower()]
    assert [row.details["provider"] for row in audit(service) if row.action == "unlink"] == ["oauth"]


def test_an_inactive_account_stays_inactive(service: Service, add: Callable[..., User]) -> None:
    add("ada", active=False)
    changed = reset(service, forgotten(service))
    assert (changed.active, changed.awaiting_confirmation) == (False, False)
    assert not can_log_in(service, NEW)


@pytest.mark.usefixtures("ada")
def test_a_reset_unlocks_an_account_after_failed_logins(make_service: Callable[..., Service]) -> None:
    service = make_service(failures_before_delay=2, failures_before_lock=3)
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            service.sessions.login(ADA, "wrong")
    with pytest.raises(TooMany):
        service.sessions.login(ADA, PASSWORD)
    reset(service, forgotten(service))
    assert can_log_in(service, NEW)


@pytest.mark.parametrize(
    "end",
    [
        lambda service, user: service.accounts.set_active([user.id], active=False, by=OPERATOR),
        lambda service, user: service.accounts.delete([user.id], by=OPERATOR),
        lambda service, user: service.accounts.update(user.id, email="new@example.com", by=OPERATOR),
        lambda service, user: service.accounts.set_password(user.id, "yet another one", by=OPERATOR),
        lambda service, user: service.accounts.change_password(
            user.id, PASSWORD, "yet another one", session_id=0, by=WEB, renew=None
        ),
    ],
    ids=["deactivated", "deleted", "moved", "set by an operator", "changed by the owner"],
)
def test_changes_of_an_account_end_its_links_and_its_waiting_emails(
    service: Service, ada: User, end: Callable[[Service, User], object]
) -> None:
    link = forgotten(service)
    service.recovery.forgot(ADA)
    end(service, ada)
    assert "reset" not in [attempt.email.kind for attempt in send_all(service)]
    refused(service, link)


def test_an_address_that_is_changed_while_the_password_is_hashed_ends_the_reset(
    service: Service, ada: User
) -> None:
    link = forgotten(service)

    class Slow(Hasher):
        def hash(self, password: str) -> str:
            service.accounts.update(ada.id, email="new@example.com", by=OPERATOR)
            return super().hash(password)

    with pytest.raises(Invalid, match=NO_LINK):
        service.recovery._replace(hasher=Slow(4)).reset(link.token, ADA, NEW, by=WEB)
    assert can_log_in(service, PASSWORD, "new@example.com")


@pytest.mark.parametrize("email", ["nobody@example.com", "no address", "", "\ud800", "a\r\nb", "x" * 60_000])
def test_an_address_without_an_account_gets_no_email_and_is_not_stored(service: Service, email: str) -> None:
    service.recovery.forgot(email)
    (attempt,) = send_all(service)
    assert (attempt.state, attempt.message) == ("dropped", "no account")
    assert sent(service) == []
    assert len(attempt.email.email) == 64
    assert "@" not in attempt.email.email


# --- notices, and "this wasn't me" ---


def notice(service: Service, to: str = ADA) -> Link:
    link = last_link(service, to)
    assert link.path == "/not-me"
    return link


def test_the_owner_gets_an_email_about_every_change_of_credentials(service: Service, ada: User) -> None:
    def subjects(to: str = ADA) -> list[str]:
        return [email.subject for email in sent(service, to)]

    service.accounts.change_password(ada.id, PASSWORD, NEW, session_id=0, by=WEB, renew=None)
    changed = "Your password for Users was changed"
    assert subjects() == [changed]
    service.accounts.set_password(ada.id, PASSWORD, by=OPERATOR)
    assert subjects() == [changed, changed]
    reset(service, forgotten(service))
    assert subjects() == [changed, changed, "Set a new password for Users", changed]
    service.accounts.update(ada.id, email="new@example.com", by=WEB)
    assert subjects()[4:] == ["Your email address for Users was changed"]
    assert subjects("new@example.com") == []
    with service.store.write() as tx:
        service.outbox.queue.add(tx, ACCOUNT_LINKED, service.accounts.get(ada.id), "new@example.com")
    assert subjects("new@example.com") == ["A new way to sign in to Users"]


def test_changes_of_name_and_role_send_no_email(service: Service, ada: User) -> None:
    service.accounts.update(ada.id, name="Ada L.", role="admin", by=OPERATOR)
    assert send_all(service) == []


def test_not_me_ends_every_session_until_a_new_password_is_set_by_email(service: Service, ada: User) -> None:
    service.accounts.set_password(ada.id, NEW, by=OPERATOR)
    tokens = [
        service.sessions.login(ADA, NEW).token,
        service.sessions.create_api_token(ada.id, name="ci", lifetime=None, by=OPERATOR).token,
    ]
    not_me(service, notice(service))
    assert [service.sessions.check(token) for token in tokens] == [None, None]
    assert not can_log_in(service, NEW)
    assert not can_log_in(service, PASSWORD)
    link = last_link(service)
    assert link.path == "/reset-password"
    reset(service, link, "yet another one")
    assert can_log_in(service, "yet another one")


def test_an_intruder_who_asks_for_many_reset_emails_keeps_the_one_after_not_me_from_nobody(
    service: Service, ada: User
) -> None:
    service.accounts.set_password(ada.id, NEW, by=OPERATOR)
    link = notice(service)
    for _ in range(3):
        forgotten(service)
    not_me(service, link)
    reset(service, last_link(service), "yet another one")


def test_not_me_works_once_and_for_seven_days(service: Service, ada: User, clock: FakeClock) -> None:
    service.accounts.set_password(ada.id, NEW, by=OPERATOR)
    link = notice(service)
    clock.move(days=7)
    with pytest.raises(Invalid, match=NO_LINK):
        not_me(service, link)
    clock.move(milliseconds=-1)
    not_me(service, link)
    with pytest.raises(Invalid, match=NO_LINK):
        not_me(service, link)


def test_not_me_with_another_address_is_refused_and_stays_good(
    service: Service, add: Callable[..., User]
) -> None:
    ada, bob = add("ada"), add("bob")
    service.accounts.set_password(ada.id, NEW, by=OPERATOR)
    link = notice(service)
    for email in (bob.email, "nobody@example.com", "\ud800"):
        with pytest.raises(Invalid, match=NO_LINK):
            not_me(service, link, email)
    assert can_log_in(service, NEW)
    not_me(service, link, " ADA@example.com")


def test_not_me_from_the_old_address_sends_no_email_to_the_new_one(service: Service, ada: User) -> None:
    moved(service, ada, "eve@example.com")
    session = service.sessions.login("eve@example.com", PASSWORD).token
    link = notice_of_change(service)
    before = sent(service, "eve@example.com")
    not_me(service, link)
    assert service.sessions.check(session) is None
    assert not can_log_in(service, PASSWORD, "eve@example.com")
    assert sent(service, "eve@example.com") == before
    assert service.accounts.get(ada.id).email == ADA


@pytest.mark.parametrize("then", ["password", "address", "reset there"])
def test_an_intruder_cannot_take_the_link_of_the_notice_away(service: Service, ada: User, then: str) -> None:
    moved(service, ada, "eve@example.com")
    session = service.sessions.login("eve@example.com", PASSWORD)
    link = notice_of_change(service)
    email = "eve@example.com"
    if then == "password":
        service.accounts.change_password(
            ada.id, PASSWORD, NEW, session_id=session.session.id, by=WEB, renew=None
        )
    elif then == "address":
        email = "mallory@example.com"
        moved(service, service.accounts.get(ada.id), email)
    else:
        reset(service, forgotten(service, email))
    current = service.sessions.login(email, PASSWORD if then == "address" else NEW).token
    not_me(service, link)
    assert service.sessions.check(current) is None
    assert not can_log_in(service, NEW, email)
    assert not can_log_in(service, PASSWORD, email)


def test_many_changes_leave_the_links_of_the_first_notices_alive(service: Service, ada: User) -> None:
    for number in range(6):
        service.accounts.set_password(ada.id, f"{NEW} {number}", by=OPERATOR)
    first, *_ = [link_in(" ".join(email.parts)) for email in sent(service, ADA)]
    not_me(service, first)
    assert not can_log_in(service, f"{NEW} 5")


def test_the_links_of_notices_end_with_a_reset_by_who_reads_them_and_with_a_deactivation(
    service: Service, ada: User
) -> None:
    service.accounts.set_password(ada.id, NEW, by=OPERATOR)
    before_reset = notice(service)
    reset(service, forgotten(service))
    after_reset = notice(service)
    with pytest.raises(Invalid, match=NO_LINK):
        not_me(service, before_reset)
    service.accounts.set_active([ada.id], active=False, by=OPERATOR)
    with pytest.raises(Invalid, match=NO_LINK):
        not_me(service, after_reset)


def test_not_me_ends_the_sign_in_through_the_provider(service: Service, ada: User) -> None:
    link(service, ada.id, "them")
    link(service, ada.id, "them", provider="other")
    with service.store.write() as tx:
        linked = service.accounts.get(ada.id)
        service.outbox.queue.add(tx, ACCOUNT_LINKED, linked, ADA)
    not_me(service, notice(service))
    assert service.accounts.get(ada.id).oauth_id is None
    assert service.identities.of(ada.id) == []


def test_not_me_ends_the_other_links(service: Service, ada: User) -> None:
    service.accounts.set_password(ada.id, NEW, by=OPERATOR)
    link = notice(service)
    service.accounts.set_password(ada.id, PASSWORD, by=OPERATOR)
    other, waiting = notice(service), forgotten(service)
    not_me(service, link)
    refused(service, waiting)
    with pytest.raises(Invalid, match=NO_LINK):
        not_me(service, other)


def test_not_me_leaves_an_inactive_account_inactive(service: Service, add: Callable[..., User]) -> None:
    user = add("ada", active=False)
    service.accounts.set_password(user.id, NEW, by=OPERATOR)
    not_me(service, notice(service))
    assert not service.accounts.get(user.id).active


def test_recovery_is_in_the_audit_without_secrets(service: Service, ada: User) -> None:
    link = forgotten(service)
    reset(service, link)
    second = notice(service)
    not_me(service, second)
    with service.store.read() as tx:
        rows = list(tx.audit_rows(user_id=ada.id))
    assert [row.action for row in rows] == ["create", "reset-password", "not-me"]
    assert not [row for row in rows if {link.token, second.token, NEW} & set(map(str, row))]


def test_the_trail_says_what_this_wasnt_me_took_back(service: Service, ada: User) -> None:
    moved(service, ada, "thief@example.com")
    link(service, ada.id, "1001", provider="google")
    not_me(service, notice_of_change(service))
    row = audit(service)[-1]
    assert (row.action, row.email) == ("not-me", ADA)
    assert row.details == {"unlinked": ["google"], "email": ADA, "old_email": "thief@example.com"}


def test_a_link_that_an_operator_printed_resets(service: Service, ada: User) -> None:
    link = link_in(service.outbox.link(RESET, ada, by=OPERATOR))
    assert reset(service, link).id == ada.id
    assert timedelta(hours=1) == RESET.lifetime
