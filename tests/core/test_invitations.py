"""Invitations: what the link does, for how long, what ends it, and how they meet the other ways into an account."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from support import identities
from support.accounts import open_session
from support.commands import OPERATOR, PASSWORD, create_user
from support.fakes import FakeClock
from support.postbox import Link, folder_emails, last_link, link_in, send_all, sent

from usersctl.errors import (
    Forbidden,
    Invalid,
    LockedDown,
    NotFound,
    SignInRefused,
    Taken,
    TooMany,
    Unauthenticated,
)
from usersctl.invitations import guest, lifetime_of
from usersctl.models import OAUTH, SYSTEM, UNKNOWN_CLIENT, Actor, Identity, Newcomer, Purpose, User
from usersctl.oauth.providers import Profile
from usersctl.secrets import digest
from usersctl.service import Service

ADA = "ada@example.com"
WEB = Actor("anonymous", "192.0.2.1")
WEEK = timedelta(days=7)
OWN = "a sentence of my own"


def invite(
    service: Service, email: str = ADA, name: str | None = "Ada", role: str | None = None, **more: Any
) -> User:
    (user,) = service.invitations.invite([guest(email, name, role)], more.get("lifetime", WEEK), by=OPERATOR)
    return user


def accept(service: Service, link: Link, name: str | None = None, password: str = OWN) -> Any:
    then = partial(service.sessions.open_in, remember=False, client=UNKNOWN_CLIENT)
    return service.invitations.accept(link.token, link.email, name, password, then=then, by=WEB)


def refusal(service: Service, link: Link) -> str:
    with pytest.raises(Invalid) as refused:
        accept(service, link)
    assert service.invitations.look(link.token, link.email).problem == str(refused.value)
    return str(refused.value)


def stored(service: Service, email: str = ADA) -> User | None:
    with service.store.read() as tx:
        return tx.user_by_email(email)


def states(service: Service) -> list[tuple[str, str, str | None]]:
    with service.store.read() as tx:
        return [(email.kind, email.state, email.last_error) for email in tx.queued_emails()]


def actions(service: Service) -> list[str]:
    with service.store.read() as tx:
        return [row.action for row in tx.audit_rows()]


# --- invited, and accepted ---


def test_an_invited_account_is_inactive_until_its_owner_accepts(service: Service, clock: FakeClock) -> None:
    user = invite(service, role="admin")
    assert (user.active, user.awaits_owner, user.role, user.inactive_because) == (
        False,
        True,
        "admin",
        "invited",
    )
    link = last_link(service, ADA)
    assert link.path == "/accept-invite"
    clock.move(days=6)
    opened = accept(service, link)
    assert service.sessions.check(opened.token)
    assert (opened.user.active, opened.user.invited_at, opened.user.name) == (True, None, "Ada")
    assert opened.user.email_proven_at is not None
    assert service.sessions.login(ADA, OWN).user.id == user.id
    assert actions(service) == ["invite", "accept-invitation"]


def test_the_owner_may_choose_another_name(service: Service) -> None:
    invite(service)
    assert accept(service, last_link(service), "Ada Lovelace").user.name == "Ada Lovelace"


def test_a_name_is_required_where_the_invitation_has_none(service: Service) -> None:
    user = invite(service, name=None)
    assert user.name == "ada"
    link = last_link(service)
    assert service.invitations.look(link.token, link.email).needs_name
    with pytest.raises(Invalid, match="Name is required"):
        accept(service, link)
    assert accept(service, link, "Ada").user.name == "Ada"


def test_a_name_is_also_required_after_an_admin_has_corrected_the_address(service: Service) -> None:
    user = invite(service, "adda@example.com", name=None)
    service.accounts.update(user.id, email=ADA, by=OPERATOR)
    link = last_link(service, ADA)
    assert service.invitations.look(link.token, link.email).needs_name
    assert accept(service, link, "Ada Lovelace").user.name == "Ada Lovelace"


def test_a_name_like_the_address_is_a_name(service: Service) -> None:
    invite(service, name="ada")
    invite(service, name=None)  # what the newer one leaves open stays
    assert accept(service, last_link(service)).user.name == "ada"


def test_a_weak_password_does_not_use_up_the_link(service: Service) -> None:
    invite(service)
    link = last_link(service)
    for weak in ("short", "password", ADA, "Ada"):
        with pytest.raises(Invalid, match="Password"):
            accept(service, link, password=weak)
    assert accept(service, link).user.active


def test_no_password_opens_an_invited_account(service: Service) -> None:
    user = invite(service)
    with pytest.raises(Unauthenticated):
        service.sessions.login(ADA, PASSWORD)
    with pytest.raises(Forbidden, match="sets its password with the link"):
        service.accounts.set_password(user.id, PASSWORD, by=OPERATOR)


# --- dead links say why ---


def test_a_link_that_was_used_says_so(service: Service) -> None:
    invite(service)
    link = last_link(service)
    accept(service, link)
    assert refusal(service, link) == "This invitation was accepted already"


def test_an_expired_link_says_so_also_after_the_cleanup(service: Service, clock: FakeClock) -> None:
    invite(service)
    link = last_link(service)
    clock.move(days=7)
    assert refusal(service, link) == "This invitation has expired"
    service.cleaner.run(by=SYSTEM)
    assert refusal(service, link) == "This invitation has expired"
    clock.move(days=30)
    service.cleaner.run(by=SYSTEM)
    assert refusal(service, link) == "Invalid or expired link"


def test_an_expired_invitation_stays_and_can_be_sent_again(service: Service, clock: FakeClock) -> None:
    user = invite(service)
    clock.move(days=60)
    service.cleaner.run(by=SYSTEM)
    (waiting,) = service.invitations.waiting()
    assert (waiting.user.id, waiting.has_expired) == (user.id, True)
    service.invitations.again([user.id], WEEK, by=OPERATOR)
    assert accept(service, last_link(service)).user.id == user.id


def test_a_withdrawn_link_says_so_and_the_account_is_gone(service: Service) -> None:
    user = invite(service)
    link = last_link(service)
    service.invitations.withdraw([user.id], by=OPERATOR)
    assert stored(service) is None
    assert refusal(service, link) == "This invitation was withdrawn"


def test_a_deleted_account_makes_its_link_say_so(service: Service) -> None:
    invite(service)
    link = last_link(service)
    opened = accept(service, link)
    service.accounts.delete([opened.user.id], by=OPERATOR)
    assert refusal(service, link) == "The account of this invitation was deleted"
    unused = invite(service, "bob@example.com")
    link = last_link(service, "bob@example.com")
    service.accounts.delete([unused.id], by=OPERATOR)
    assert refusal(service, link) == "This invitation was withdrawn"


def test_a_newer_invitation_ends_the_link_before(service: Service) -> None:
    user = invite(service)
    first = last_link(service)
    again = invite(service, name="Ada Lovelace", role="admin")
    assert (again.id, again.name, again.role) == (user.id, "Ada Lovelace", "admin")
    with service.store.read() as tx:
        changes = [row.details for row in tx.audit_rows() if row.action == "update"]
    assert changes == [{"name": "Ada Lovelace", "role": "admin"}]
    assert refusal(service, first) == "This invitation was replaced by a newer one"
    assert accept(service, last_link(service)).user.id == user.id


def test_an_email_that_waits_is_replaced_by_that_of_the_newer_invitation(service: Service) -> None:
    user = invite(service)
    service.invitations.again([user.id], WEEK, by=OPERATOR)
    assert len(sent(service)) == 1
    assert [state for _, state, _ in states(service)] == ["dropped", "sent"]


@pytest.mark.parametrize("email", ["bob@example.com", "ada@example.com.evil", ""])
def test_a_link_works_for_its_address_only(service: Service, email: str) -> None:
    invite(service)
    invite(service, "bob@example.com")
    link = last_link(service, ADA)
    assert refusal(service, link._replace(email=email)) == "Invalid or expired link"
    assert accept(service, link).user.email == ADA


def test_tokens_of_other_purposes_are_refused(service: Service) -> None:
    create_user(service, "bob@example.com", "Bob", PASSWORD)
    service.recovery.forgot("bob@example.com")
    reset = last_link(service, "bob@example.com")
    assert refusal(service, reset) == "Invalid or expired link"
    invite(service)
    link = last_link(service, ADA)
    with pytest.raises(Invalid):
        service.recovery.reset(link.token, link.email, OWN, by=WEB)
    with pytest.raises(Invalid):
        service.registration.confirm(link.token, link.email, by=WEB)
    assert accept(service, link).user.active


# --- emails ---


def test_pointless_emails_are_dropped(service: Service, clock: FakeClock) -> None:
    invite(service)
    invite(service, "bob@example.com", lifetime=timedelta(hours=1))
    user = stored(service)
    assert user is not None
    service.invitations.withdraw([user.id], by=OPERATOR)
    clock.move(hours=2)
    assert sent(service) == []
    assert states(service) == [("invitation", "dropped", "the invitation has expired")]
    (waiting,) = service.invitations.waiting()
    assert waiting.last_email == "dropped"


def test_the_email_tells_when_the_invitation_expires(service: Service, clock: FakeClock) -> None:
    invite(service, lifetime=timedelta(days=30))
    clock.move(days=20)  # the mail server was away
    (email,) = sent(service)
    assert "until 2026-12-20 08:22 UTC" in " ".join(email.parts)
    assert "Ada" not in " ".join(email.parts)
    clock.move(days=9)
    assert accept(service, link_in(" ".join(email.parts))).user.active


def test_an_admin_who_sends_too_many_is_told(service: Service) -> None:
    user = invite(service)
    send_all(service)
    for _ in range(2):
        service.invitations.again([user.id], WEEK, by=OPERATOR)
        send_all(service)
    other = invite(service, "bob@example.com")
    with pytest.raises(TooMany, match="Too many emails") as refused:
        service.invitations.again([other.id, user.id], WEEK, by=OPERATOR)
    assert ADA in str(refused.value.hint)
    assert accept(service, link_in(" ".join(folder_emails(service)[-1].parts))).user.active


@pytest.mark.parametrize("expires", ["59m", "91d", "1y", "soon", "7", "-7d", "0d", ""])
def test_an_invitation_lives_from_an_hour_to_ninety_days(expires: str) -> None:
    with pytest.raises(Invalid):
        lifetime_of(expires)
    assert lifetime_of(None) == lifetime_of("7d") == WEEK
    assert (lifetime_of("1h"), lifetime_of("90d")) == (timedelta(hours=1), timedelta(days=90))


def test_of_several_that_are_invited_one_that_is_wrong_stops_all(service: Service) -> None:
    create_user(service, "bob@example.com", "Bob", PASSWORD)
    guests = [guest(ADA), guest("bob@example.com")]
    with pytest.raises(Taken, match="Email is already registered"):
        service.invitations.invite(guests, WEEK, by=OPERATOR)
    assert stored(service) is None
    user = invite(service)
    with pytest.raises(NotFound):
        service.invitations.withdraw([user.id, 999], by=OPERATOR)
    assert stored(service) is not None


# --- how it meets the other ways into an account ---


def test_an_invited_address_cannot_be_registered_and_an_unconfirmed_registration_yields(
    service: Service,
) -> None:
    invite(service)
    with pytest.raises(Taken):
        service.registration.register(ADA, "Eve", PASSWORD, by=WEB)
    squatter = service.registration.register("bob@example.com", "Eve", PASSWORD, by=WEB)
    squatters_link = last_link(service, "bob@example.com")
    user = invite(service, "bob@example.com", "Bob")
    assert user.id != squatter.id
    assert actions(service)[-2:] == ["delete", "invite"]
    with pytest.raises(Invalid):
        service.registration.confirm(squatters_link.token, squatters_link.email, by=WEB)
    with pytest.raises(Unauthenticated):
        service.sessions.login("bob@example.com", PASSWORD)
    assert accept(service, last_link(service, "bob@example.com")).user.name == "Bob"


def test_a_claim_to_the_address_yields_and_an_invited_address_cannot_be_claimed(service: Service) -> None:
    eve = create_user(service, "eve@example.com", "Eve", PASSWORD)
    by = Actor(f"user:{eve.id}", None, eve.id, None)
    by = by._replace(token_hash=_session(service, eve))
    assert service.accounts.update(eve.id, email=ADA, by=by).claimed_email == ADA
    invite(service)
    assert service.accounts.get(eve.id).claimed_email is None
    with pytest.raises(Taken):
        service.accounts.update(eve.id, email=ADA, by=by)


def _session(service: Service, user: User) -> bytes:
    return digest(open_session(service, user).token)


def test_forgot_sends_the_invitation_again_while_it_lasts(service: Service, clock: FakeClock) -> None:
    invite(service)
    first = last_link(service)
    service.recovery.forgot(ADA)
    second = last_link(service)
    assert (second.path, second.token != first.token) == ("/accept-invite", True)
    assert accept(service, first).user.active  # asked for by anyone, it ends no link
    invite(service, "bob@example.com")
    send_all(service)
    clock.move(days=7)
    service.recovery.forgot("bob@example.com")
    send_all(service)
    assert states(service)[-1] == ("reset", "dropped", "the invitation has expired")


def test_a_stranger_who_asks_all_day_floods_no_guest(service: Service, clock: FakeClock) -> None:
    invite(service)
    for _ in range(40):
        service.recovery.forgot(ADA)
        send_all(service)
        clock.move(minutes=16)
    assert len(sent(service)) == 1 + 12


def test_a_deactivated_account_is_opened_by_no_invitation(service: Service) -> None:
    user = invite(service)
    link = last_link(service)
    ((_, changed),) = service.accounts.set_active([user.id], active=False, by=OPERATOR)
    assert (changed.invited_at, changed.inactive_because) == (None, "deactivated")
    assert refusal(service, link) == "This invitation was withdrawn"
    with pytest.raises(Invalid):
        service.invitations.again([user.id], WEEK, by=OPERATOR)
    assert actions(service)[-1] == "deactivate"


def test_an_activated_account_keeps_its_invitation(service: Service) -> None:
    user = invite(service)
    link = last_link(service)
    service.accounts.set_active([user.id], active=True, by=OPERATOR)
    assert accept(service, link).user.active
    assert service.invitations.waiting() == []


def test_a_password_by_an_operator_or_a_reset_ends_the_invitation_of_an_active_account(
    service: Service,
) -> None:
    user = create_user(service, ADA, "Ada", None)
    for way in ("operator", "reset"):
        service.invitations.again([user.id], WEEK, by=OPERATOR)
        link = last_link(service)
        if way == "operator":
            service.accounts.set_password(user.id, PASSWORD, by=OPERATOR)
            with service.store.write() as tx:
                tx.change_user(user.id, password_hash="!")
        else:
            service.recovery.forgot(ADA)
            reset = last_link(service)
            assert reset.path == "/reset-password"
            service.recovery.reset(reset.token, reset.email, PASSWORD, by=WEB)
        assert service.invitations.waiting() == []
        assert refusal(service, link) == "This invitation was accepted already"


def test_another_address_gets_another_invitation(service: Service) -> None:
    user = invite(service)
    first = last_link(service)
    service.accounts.update(user.id, email="ada@example.org", by=OPERATOR)
    emails = sent(service)
    assert [email.to for email in emails] == [ADA, "ada@example.org"]  # and no notice to a mistaken address
    assert refusal(service, first) != ""
    assert accept(service, link_in(" ".join(emails[-1].parts))).user.email == "ada@example.org"


def test_a_lockdown_ends_all_invitations(service: Service) -> None:
    invite(service)
    link = last_link(service)
    invite(service, "bob@example.com")
    service.lockdown.start(None, by=OPERATOR)
    assert sent(service, "bob@example.com") == []
    service.lockdown.stop(by=OPERATOR)
    assert refusal(service, link) == "This invitation was withdrawn"


def test_after_a_lockdown_neither_a_forgotten_password_nor_a_provider_revives_an_invitation(
    make_service: Callable[..., Service],
) -> None:
    service = make_service()
    user = invite(service, role="admin")
    service.lockdown.start(None, by=OPERATOR)
    service.lockdown.stop(by=OPERATOR)
    service.recovery.forgot(ADA)
    assert sent(service) == []
    assert states(service)[-1] == ("reset", "dropped", "the invitation has expired")
    with pytest.raises(SignInRefused):
        by_provider(service)
    service.invitations.again([user.id], WEEK, by=OPERATOR)
    assert accept(service, last_link(service)).user.active


def test_nothing_is_accepted_in_a_lockdown(service: Service) -> None:
    service.lockdown.start(None, by=OPERATOR)
    invite(service)
    link = last_link(service)
    with pytest.raises(LockedDown):
        accept(service, link)
    service.lockdown.stop(by=OPERATOR)
    assert accept(service, link).user.active


# --- by the provider ---


def by_provider(service: Service, email: str = ADA, name: str = "Ada Lovelace") -> User:
    profile = Profile("1001", email, email_verified=True, name=name, picture=None)
    return service.sign_ins[OAUTH].user_for(profile, then=lambda _tx, user: user, by=SYSTEM)


def test_a_sign_in_by_the_provider_accepts_the_invitation(make_service: Callable[..., Service]) -> None:
    service = make_service()
    invited = invite(service, role="admin")
    link = last_link(service)
    user = by_provider(service)
    assert (user.id, user.active, user.role, user.name) == (invited.id, True, "admin", "Ada")
    assert stored(service) == user
    assert refusal(service, link) == "This invitation was accepted already"
    assert actions(service) == ["invite", "accept-invitation", "link"]


def test_the_provider_gives_a_nameless_invitation_its_name(make_service: Callable[..., Service]) -> None:
    service = make_service()
    invite(service, name=None)
    assert by_provider(service, name=" Ada\tLovelace ").name == "Ada Lovelace"


def test_the_provider_leaves_a_name_that_an_admin_has_given_since(
    make_service: Callable[..., Service],
) -> None:
    service = make_service()
    user = invite(service, name=None)
    service.accounts.update(user.id, name="Dr Lovelace", by=OPERATOR)
    assert by_provider(service).name == "Dr Lovelace"


def test_an_expired_invitation_is_accepted_by_no_provider(
    make_service: Callable[..., Service], clock: FakeClock
) -> None:
    service = make_service()
    invite(service)
    clock.move(days=7)
    with pytest.raises(SignInRefused) as refused:
        by_provider(service)
    assert (refused.value.reason, refused.value.detail) == ("account_inactive", "invited")


def test_a_refused_sign_in_by_the_provider_accepts_nothing(make_service: Callable[..., Service]) -> None:
    service = make_service()
    user = invite(service)
    identities.link(service, user.id, "2002")  # as an import does
    with pytest.raises(SignInRefused):
        by_provider(service)
    assert stored(service) == service.accounts.get(user.id)
    assert service.accounts.get(user.id).awaits_owner
    assert accept(service, last_link(service)).user.active


# --- to all who have no password ---


def test_active_accounts_without_a_password_are_invited_once(
    make_service: Callable[..., Service], clock: FakeClock
) -> None:
    service = make_service(
        oauth_client_id="users", oauth_client_secret="secret", oauth_issuer="https://id.example.com"
    )
    ada = create_user(service, ADA, "Ada", None)
    create_user(service, "bob@example.com", "Bob", PASSWORD)
    create_user(service, "eve@example.com", "Eve", None, active=False)
    with service.store.write() as tx:
        linked, elsewhere = (tx.add_user(Newcomer(f"{name}@example.com", name)) for name in ("cy", "dan"))
        here, there = "https://id.example.com", "https://former.example.com"
        for user, issuer in ((linked, here), (elsewhere, there)):
            tx.add_identities([Identity(user.id, "oauth", issuer, f"id of {user.name}", None, tx.now_text)])
    those = [ada.id, elsewhere.id]
    assert [user.id for user in service.invitations.without_password()] == those
    assert [user.id for user in service.invitations.invite_without_password(WEEK, by=OPERATOR)] == those
    assert list(service.invitations.invite_without_password(WEEK, by=OPERATOR)) == []
    opened = accept(service, last_link(service, ADA))
    assert (opened.user.id, opened.user.name) == (ada.id, "Ada")
    assert service.sessions.login(ADA, OWN)
    clock.move(days=8)
    assert [user.id for user in service.invitations.without_password()] == [elsewhere.id]


def test_who_accepts_the_invitation_of_an_active_account_gets_it_alone(service: Service) -> None:
    user = create_user(service, ADA, "Ada", None)
    before = open_session(service, user)
    with service.store.write() as tx:
        tx.add_identities([Identity(user.id, OAUTH, "", "7", email="mallory@example.com")])
    service.invitations.again([user.id], WEEK, by=OPERATOR)
    link = last_link(service)
    for _ in range(10):
        with pytest.raises(Unauthenticated):
            service.sessions.login(ADA, PASSWORD)
    with pytest.raises(TooMany):
        service.sessions.login(ADA, PASSWORD)
    opened = accept(service, link)
    assert service.sessions.check(before.token) is None
    assert service.sessions.check(opened.token)
    assert identities.link_of(service, user.id) is None
    assert service.sessions.login(ADA, OWN).user.id == user.id


def test_the_invitation_of_an_active_account_is_withdrawn_without_removing_it(service: Service) -> None:
    user = create_user(service, ADA, "Ada", None)
    service.invitations.again([user.id], WEEK, by=OPERATOR)
    link = last_link(service)
    service.invitations.withdraw([user.id], by=OPERATOR)
    assert stored(service) is not None
    assert refusal(service, link) == "This invitation was withdrawn"
    with pytest.raises(Forbidden, match="There is no invitation to withdraw"):
        service.invitations.withdraw([user.id], by=OPERATOR)


def test_an_account_in_use_is_neither_invited_nor_withdrawn(service: Service) -> None:
    user = create_user(service, ADA, "Ada", PASSWORD)
    with pytest.raises(Taken):
        invite(service)
    with pytest.raises(Invalid):
        service.invitations.again([user.id], WEEK, by=OPERATOR)
    with pytest.raises(Forbidden):
        service.invitations.withdraw([user.id], by=OPERATOR)
    assert stored(service) == user


def test_an_account_that_its_owner_deletes_awaits_no_invitation(service: Service) -> None:
    user = create_user(service, ADA, "Ada", None)
    opened = open_session(service, user)
    service.invitations.again([user.id], WEEK, by=OPERATOR)
    link = last_link(service)
    by = Actor(f"user:{user.id}", None, user.id, digest(opened.token))
    service.deletion.request(user.id, None, session_id=opened.session.id, by=by)
    confirm = last_link(service)
    service.deletion.confirm(confirm.token, confirm.email, by=WEB)
    assert service.accounts.get(user.id).inactive_because == "deletion"
    assert refusal(service, link) == "This invitation was accepted already"
    with pytest.raises(Forbidden):
        service.invitations.withdraw([user.id], by=OPERATOR)
    undo = last_link(service)
    service.deletion.undo(undo.token, undo.email, by=WEB)
    assert service.accounts.get(user.id).active


@pytest.mark.parametrize("purpose", [each for each in Purpose if not each.startswith(Purpose.INVITE)])
def test_no_other_link_opens_an_invitation(service: Service, purpose: Purpose) -> None:
    user = invite(service)
    with service.store.write() as tx:
        tx.add_one_time_token(digest("another"), purpose, timedelta(days=1), user_id=user.id, email=ADA)
    assert refusal(service, Link("/accept-invite", "another", ADA)) == "Invalid or expired link"


def test_the_newer_invitation_says_what_counts_and_leaves_the_rest(
    service: Service, clock: FakeClock
) -> None:
    for group in ("board", "staff"):
        service.groups.create(group, by=OPERATOR)
    for name, groups, expected in (
        (None, ["staff"], ("", ("staff",))),
        (None, None, ("", ("staff",))),
        ("ada", ["board"], ("ada", ("board",))),
        (None, [], ("ada", ())),
    ):
        (user,) = service.invitations.invite([guest(ADA, name, None, groups)], WEEK, by=OPERATOR)
        for _ in range(2):
            link = last_link(service, ADA)
            offer = service.invitations.look(link.token, link.email)
            assert offer.user is not None
            known = "" if offer.needs_name else offer.user.name
            assert (known, service.groups.of(user.id)) == expected, (name, groups)
            clock.move(hours=2)  # past the limit on emails to one address
            service.invitations.again([user.id], WEEK, by=OPERATOR)
