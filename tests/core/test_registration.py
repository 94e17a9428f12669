"""Registration and confirmation: what a link does, for how long, and what takes it away."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from support.commands import OPERATOR, PASSWORD
from support.fakes import FakeClock
from support.postbox import Link, last_link, link_in, send_all, sent

from usersctl.clock import stamp
from usersctl.errors import Forbidden, Invalid, Taken, Unauthenticated
from usersctl.mail.folder import SavedEmail
from usersctl.mail.kinds import CONFIRM, KINDS, RESET
from usersctl.models import UNUSABLE, Actor, Newcomer, User
from usersctl.secrets import digest, new_token
from usersctl.service import Service

ADA = "ada@example.com"
WEB = Actor("anonymous", "192.0.2.1")
NO_LINK = r"^Invalid or expired confirmation link$"


def register(service: Service, email: str = ADA) -> User:
    return service.registration.register(email, "Ada", PASSWORD, by=WEB)


def confirm(service: Service, link: Link, email: str | None = None) -> User:
    return service.registration.confirm(link.token, email or link.email, by=WEB)


def refused(service: Service, link: Link, email: str | None = None) -> None:
    with pytest.raises(Invalid, match=NO_LINK):
        confirm(service, link, email)


def states(service: Service) -> list[tuple[str, str]]:
    with service.store.read() as tx:
        return [(email.kind, email.state) for email in tx.queued_emails()]


# --- registered ---


def test_a_registered_account_is_inactive_until_its_email_is_used(service: Service, clock: FakeClock) -> None:
    user = register(service)
    assert (user.active, user.awaiting_confirmation, user.role) == (False, True, "user")
    assert user.email_proven_at is None
    with pytest.raises(Forbidden, match=r"^Account is inactive$"):
        service.sessions.login(ADA, PASSWORD)
    link = last_link(service)
    assert (link.path, link.email) == ("/confirm-email", ADA)
    clock.move(minutes=5)
    confirmed = confirm(service, link)
    assert (confirmed.active, confirmed.awaiting_confirmation) == (True, False)
    assert confirmed.email_proven_at == confirmed.updated_at == stamp(clock())
    assert service.sessions.login(ADA, PASSWORD).user.id == user.id


def test_account_email_and_audit_row_are_one_transaction(service: Service) -> None:
    user = register(service)
    with pytest.raises(Taken, match=r"^Email is already registered$"):
        register(service, " ADA@Example.com ")
    assert states(service) == [("confirm", "waiting")]
    with service.store.read() as tx:
        assert tx.counts()["users"] == 1
        assert [(row.action, row.user_id, row.actor, row.origin) for row in tx.audit_rows()] == [
            ("register", user.id, "anonymous", "192.0.2.1")
        ]


@pytest.mark.parametrize(
    ("email", "name", "password"),
    [
        ("no address", "Ada", PASSWORD),
        (ADA, " ", PASSWORD),
        (ADA, "Ada", "short"),
        (ADA, "Ada", "password1"),
        (ADA, "Ada", ADA),
        (ADA, "Ada", "x" * 73),
    ],
)
def test_a_refused_registration_stores_nothing(
    service: Service, email: str, name: str, password: str
) -> None:
    with pytest.raises(Invalid):
        service.registration.register(email, name, password, by=WEB)
    with service.store.read() as tx:
        assert set(tx.counts().values()) == {0}


def test_two_hundred_registrations_at_once_make_one_account_and_one_email(service: Service) -> None:
    def attempt(_number: int) -> bool:
        while True:
            try:
                register(service)
            except Taken:
                return False
            else:
                return True

    # Beyond the waiting room of bcrypt is the server's matter; here each thread finds a slot.
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(200))) == 1
    assert states(service) == [("confirm", "waiting")]
    assert len(sent(service)) == 1


# --- for how long ---


@pytest.mark.parametrize(
    "registered",
    [
        datetime(2026, 11, 20, 8, 22, 19, 123000, tzinfo=UTC),
        datetime(2026, 1, 31, 23, 59, 59, 999000, tzinfo=UTC),
        datetime(2026, 2, 28, 12, tzinfo=UTC),
        datetime(2028, 2, 28, 12, tzinfo=UTC),
        datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC),
        datetime(2026, 3, 28, 12, tzinfo=UTC),  # an hour is missing in the night that follows
        datetime(2026, 3, 29, 0, 59, 59, tzinfo=UTC),
        datetime(2026, 10, 24, 12, tzinfo=UTC),  # and here one comes twice
        datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
    ],
)
def test_a_link_is_good_for_24_hours_to_the_second(
    service: Service, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, registered: datetime
) -> None:
    monkeypatch.setenv("TZ", "Europe/Vienna")
    time.tzset()
    try:
        clock.now = registered
        register(service)
        register(service, "bob@example.com")
        ada, bob = last_link(service, ADA), last_link(service, "bob@example.com")
        clock.move(hours=24, milliseconds=-1)
        assert confirm(service, ada).active
        clock.move(milliseconds=1)
        refused(service, bob)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_links_day_begins_when_its_email_is_sent(service: Service, clock: FakeClock) -> None:
    register(service)
    clock.move(hours=23)
    link = last_link(service)
    clock.move(hours=23, minutes=59)
    assert confirm(service, link).active


def test_an_email_that_could_not_be_sent_for_a_day_is_dropped(service: Service, clock: FakeClock) -> None:
    register(service)
    clock.move(hours=24, milliseconds=1)
    (attempt,) = send_all(service)
    assert (attempt.state, attempt.message) == ("dropped", "too old")
    assert sent(service) == []


# --- used once, by its owner, for its purpose ---


def test_a_link_works_once(service: Service) -> None:
    register(service)
    link = last_link(service)
    confirm(service, link)
    refused(service, link)


def test_a_link_works_once_also_in_parallel(service: Service) -> None:
    register(service)
    link = last_link(service)

    def attempt(_number: int) -> bool:
        try:
            return confirm(service, link).active
        except Invalid:
            return False

    with ThreadPoolExecutor(32) as pool:
        assert sum(pool.map(attempt, range(32))) == 1
    with service.store.read() as tx:
        assert [row.action for row in tx.audit_rows()] == ["register", "confirm-email"]


def test_a_link_with_another_address_is_refused_and_stays_good(service: Service) -> None:
    register(service)
    register(service, "bob@example.com")
    link = last_link(service, ADA)
    for email in ("bob@example.com", "nobody@example.com", "", "ada", "\ud800"):
        refused(service, link, email or " ")
    refused(service, link._replace(token=link.token[:-1]))
    refused(service, link._replace(token=link.token + "x"))
    refused(service, link._replace(token=""))
    refused(service, link._replace(token="\ud800"))
    assert confirm(service, link, " ADA@Example.com ").active


@pytest.mark.parametrize(
    "purpose", sorted({kind.purpose for kind in KINDS.values() if kind.purpose} | {"setup"})
)
@pytest.mark.parametrize("used_for", ["confirm", "reset", "not_me", "setup", "claim"])
def test_one_purpose_never_serves_another(service: Service, purpose: str, used_for: str) -> None:
    user = register(service)
    token, address = new_token(), ADA
    with service.store.write() as tx:
        if used_for == "claim":
            address, until = "new@example.com", "2027-01-01"
            tx.change_user(user.id, active=True, claimed_email=address, claim_expires_at=until)
        tx.add_one_time_token(digest(token), purpose, timedelta(hours=1), user_id=user.id, email=address)
    use: dict[str, Callable[[], object]] = {
        "confirm": lambda: service.registration.confirm(token, ADA, by=WEB),
        "reset": lambda: service.recovery.reset(token, ADA, "another good password", by=WEB),
        "not_me": lambda: service.recovery.not_me(token, ADA, by=WEB),
        "claim": lambda: service.claims.prove(token, address, PASSWORD, by=WEB),
        "setup": lambda: service.first_admin.create(token, "root@example.com", "Root", PASSWORD, by=WEB),
    }
    if purpose == used_for:
        use[used_for]()
    else:
        with pytest.raises(Invalid, match=r"^Invalid or expired"):
            use[used_for]()
        with service.store.read() as tx:
            assert tx.one_time_token(purpose, digest(token)) is not None


# --- what takes it away ---

ENDS: dict[str, Callable[[Service, User], object]] = {
    "deactivated": lambda service, user: service.accounts.set_active([user.id], active=False, by=OPERATOR),
    "deleted": lambda service, user: service.accounts.delete([user.id], by=OPERATOR),
    "moved": lambda service, user: service.accounts.update(user.id, email="new@example.com", by=OPERATOR),
    "new password": lambda service, user: service.accounts.set_password(
        user.id, "another good password", by=OPERATOR
    ),
}


@pytest.mark.parametrize("how", ENDS)
def test_changes_of_an_account_end_its_links_and_waiting_emails(service: Service, how: str) -> None:
    user = register(service)
    service.recovery.forgot(ADA)
    links = {link.path: link for link in map(_link, sent(service))}
    assert set(links) == {"/confirm-email", "/reset-password"}
    service.registration.resend(ADA)
    service.recovery.forgot(ADA)
    ENDS[how](service, user)
    before = len(sent(service, ADA))
    refused(service, links["/confirm-email"])
    with pytest.raises(Invalid):
        service.recovery.reset(links["/reset-password"].token, ADA, "yet another password", by=WEB)
    with service.store.read() as tx:
        assert not list(tx.queued_emails(unfinished=True))
    # The notice of the change itself, and nothing that was asked for before it.
    assert before - 2 == {"deactivated": 0, "deleted": 0, "moved": 1, "new password": 1}[how]


def _link(letter: SavedEmail) -> Link:
    return link_in(" ".join(letter.parts))


@pytest.mark.parametrize("when", ["before", "after", "while it waits"])
@pytest.mark.parametrize("reactivated", [False, True])
def test_no_link_activates_an_account_that_was_deactivated(
    service: Service, when: str, *, reactivated: bool
) -> None:
    user = register(service)
    link = last_link(service) if when == "before" else None
    if reactivated:
        service.accounts.set_active([user.id], active=True, by=OPERATOR)
    service.accounts.set_active([user.id], active=False, by=OPERATOR)
    if link is None:
        service.registration.resend(ADA)
        assert not [attempt for attempt in send_all(service) if attempt.state == "sent"]
        # Not even one that an operator's hand made.
        token = new_token()
        with service.store.write() as tx:
            tx.add_one_time_token(digest(token), "confirm", timedelta(hours=1), user_id=user.id, email=ADA)
        link = Link("", token, ADA)
    refused(service, link)
    service.recovery.forgot(ADA)
    reset = last_link(service)
    service.recovery.reset(reset.token, reset.email, "another good password", by=WEB)
    refused(service, link)
    assert not service.accounts.get(user.id).active


def test_an_activation_by_an_admin_ends_the_confirmation_link(service: Service) -> None:
    user = register(service)
    link = last_link(service)
    service.accounts.set_active([user.id], active=True, by=OPERATOR)
    refused(service, link)
    assert service.accounts.get(user.id).email_proven_at is None


def test_a_registration_after_a_deletion_starts_with_nothing_of_the_deleted_account(
    service: Service, clock: FakeClock
) -> None:
    first = register(service)
    link = last_link(service)
    service.accounts.delete([first.id], by=OPERATOR)
    clock.move(hours=1)
    register(service)
    refused(service, link)
    assert confirm(service, last_link(service)).id != first.id


def test_confirming_ends_the_other_links(service: Service) -> None:
    register(service)
    first = last_link(service)
    service.registration.resend(ADA)
    second = last_link(service)
    assert first.token != second.token
    confirm(service, second)
    refused(service, first)


# --- asked for again ---


def test_resending_sends_an_unconfirmed_user_a_new_link(service: Service, clock: FakeClock) -> None:
    register(service)
    send_all(service)
    clock.move(hours=25)
    service.registration.resend(" ADA@example.com")
    assert confirm(service, last_link(service)).active


def test_resending_sends_nothing_to_any_other_address(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    active = add("active")
    add("inactive", active=False)
    deactivated = register(service, "deactivated@example.com")
    service.accounts.set_active([deactivated.id], active=False, by=OPERATOR)
    confirm(service, _registered(service, "confirmed@example.com"))
    clock.move(hours=1)
    before = len(sent(service))
    for email in (
        active.email,
        "inactive@example.com",
        "deactivated@example.com",
        "confirmed@example.com",
        "nobody@example.com",
        "no address",
        "",
        "\ud800",
        "x" * 60_000,
    ):
        service.registration.resend(email)
    assert {attempt.state for attempt in send_all(service)} == {"dropped"}
    assert len(sent(service)) == before


def _registered(service: Service, email: str) -> Link:
    register(service, email)
    return last_link(service, email)


def test_an_unconfirmed_account_whose_address_was_changed_confirms_the_new_one(service: Service) -> None:
    user = register(service)
    old = last_link(service)
    service.accounts.update(user.id, email="new@example.com", by=OPERATOR)
    refused(service, old)
    service.registration.resend(ADA)
    service.registration.resend("new@example.com")
    link = last_link(service, "new@example.com")
    assert confirm(service, link).email == "new@example.com"


def test_an_operator_who_changes_the_address_of_a_registration_sends_the_link_there(
    make_service: Callable[..., Service],
) -> None:
    service = make_service(whitelist=("/register",))
    user = register(service)
    service.accounts.update(user.id, email="new@example.com", by=OPERATOR)
    assert confirm(service, last_link(service, "new@example.com")).email == "new@example.com"


def test_a_reset_of_an_unconfirmed_account_leaves_it_to_be_confirmed(service: Service) -> None:
    user = register(service)
    old = last_link(service)
    service.recovery.forgot(ADA)
    reset = last_link(service)
    changed = service.recovery.reset(reset.token, ADA, "another good password", by=WEB)
    assert (changed.active, changed.awaiting_confirmation) == (False, True)
    refused(service, old)
    service.registration.resend(ADA)
    assert confirm(service, _newest_of_kind(service, "confirm-email")).id == user.id
    with pytest.raises(Unauthenticated):
        service.sessions.login(ADA, PASSWORD)
    assert service.sessions.login(ADA, "another good password").user.id == user.id


def _newest_of_kind(service: Service, path: str) -> Link:
    return next(link for link in map(_link, reversed(sent(service))) if link.path == f"/{path}")


# --- the operator's link ---


def test_a_link_made_by_an_operator_works_like_the_emailed_one(service: Service, clock: FakeClock) -> None:
    user = register(service)
    link = link_in(service.outbox.link(CONFIRM, user, by=OPERATOR))
    clock.move(hours=24, milliseconds=-1)
    assert confirm(service, link).active
    refused(service, link)
    reset = link_in(service.outbox.link(RESET, user, by=OPERATOR))
    clock.move(hours=1)
    with pytest.raises(Invalid):
        service.recovery.reset(reset.token, ADA, "another good password", by=WEB)
    with service.store.read() as tx:
        assert [row.action for row in tx.audit_rows()] == [
            "register",
            "link-confirm",
            "confirm-email",
            "link-reset",
        ]


def test_links_lead_to_the_configured_page(make_service: Callable[..., Service]) -> None:
    service = make_service(
        base_url="https://accounts.example.com", link_confirm="https://app.example.com/welcome?lang=en"
    )
    user = register(service)
    url = service.outbox.link(CONFIRM, user, by=OPERATOR)
    assert url.startswith("https://app.example.com/welcome?lang=en&token=")
    (letter,) = sent(service)
    assert letter.parts[1].startswith("https://app.example.com/welcome?lang=en&token=")


def test_an_account_without_a_password_is_not_confirmed(service: Service, clock: FakeClock) -> None:
    with service.store.write() as tx:
        made = tx.add_user(Newcomer(ADA, "Ada", UNUSABLE, "user", active=False, created_at=stamp(clock())))
    assert made is not None
    service.registration.resend(ADA)
    assert [(attempt.state, attempt.message) for attempt in send_all(service)] == [
        ("dropped", "nothing to confirm")
    ]
