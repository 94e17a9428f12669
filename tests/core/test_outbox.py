"""The letters that wait: written with their effect, sent by one at a time, tried again, dropped, kept aside."""

import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from support.commands import OPERATOR, PASSWORD, create_user
from support.databases import database_at, held
from support.fakes import FakeClock
from support.postbox import Postbox, Received, folder_emails, last_link, link_in, send_all, sent, smtp_server
from support.tables import written

from usersctl.addresses import change_own
from usersctl.clock import stamp
from usersctl.config import Settings
from usersctl.errors import Busy, Invalid, NotFound
from usersctl.mail import kinds, outbox
from usersctl.mail.kinds import CONFIRM, EMAIL_CHANGED, RESET
from usersctl.mail.outbox import Outbox
from usersctl.mail.sending import Undeliverable
from usersctl.models import Actor, QueuedEmail, User
from usersctl.outgoing import LEASE, LONGEST_DELAY, Attempt, claimed, delay_after
from usersctl.service import Service, build

ADA = "ada@example.com"
WEB = Actor("anonymous", "192.0.2.1")


class Server:
    """Takes letters, or refuses them as it is told: a text is for now, a text that begins with 5 for good."""

    def __init__(self) -> None:
        self.refusal: str | None = None
        self.taken: list[tuple[int, EmailMessage]] = []
        self.then: Callable[[], Any] = lambda: None

    def __call__(self, message: EmailMessage, recipient: str, number: int) -> str:
        assert str(message["To"]) == recipient
        self.then()
        if self.refusal is not None:
            raise Undeliverable(self.refusal, permanent=self.refusal.startswith("5"))
        self.taken.append((number, message))
        return "250 OK"


INVITED = {"invited_at": "2026-11-01T00:00:00.000Z", "invitation_expires_at": "2028-01-01T00:00:00.000Z"}


def in_another_thread(work: Callable[[], object]) -> None:
    """As another worker does it."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result(20)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def box(service: Service, server: Server) -> Outbox:
    return service.outbox._replace(given_send=server)


def queued(service: Service, *users: User, kind: kinds.Kind = RESET) -> None:
    with service.store.write() as tx:
        for user in users:
            service.outbox.queue.add(tx, kind, user, user.email)


def rows(service: Service) -> list[QueuedEmail]:
    with service.store.read() as tx:
        return list(tx.queued_emails())


def the_row(service: Service) -> QueuedEmail:
    (row,) = rows(service)
    return row


def tokens(service: Service) -> int:
    with service.store.read() as tx:
        return tx.counts()["one_time_tokens"]


def worked(box: Outbox) -> list[Attempt]:
    done = []
    while (attempt := box.work()) is not None:
        done.append(attempt)
    return done


# --- written with its effect ---


def test_an_email_is_queued_exactly_when_its_change_is_committed(
    service: Service, add: Callable[..., User]
) -> None:
    user = add("ada")

    class Broken(Exception):
        pass

    def change_and_break() -> None:
        with service.store.write() as tx:
            tx.change_user(user.id, name="Changed")
            service.outbox.queue.add(tx, RESET, user, user.email)
            raise Broken

    with pytest.raises(Broken):
        change_and_break()
    assert rows(service) == []
    assert not service.outbox.queue.committed.is_set()
    assert service.accounts.get(user.id).name == "Ada"
    queued(service, user)
    assert service.outbox.queue.committed.is_set()
    row = the_row(service)
    assert (row.kind, row.email, row.user_id, row.state, row.attempts) == (
        "reset",
        ADA,
        user.id,
        "waiting",
        0,
    )
    assert row.created_at == row.due_at == stamp(service.now())


def test_a_token_is_made_when_its_email_is_sent(
    service: Service, add: Callable[..., User], box: Outbox
) -> None:
    queued(service, add("ada"))
    assert tokens(service) == 0
    worked(box)
    assert tokens(service) == 1


def test_no_token_is_in_any_file_of_the_database(
    service: Service, add: Callable[..., User], box: Outbox, server: Server
) -> None:
    user = add("ada")
    linked = [kind for kind in kinds.KINDS.values() if kind.purpose is not None]
    for kind in linked:
        queued(service, user, kind=kind)
    with service.store.write() as tx:
        claim = {"claimed_email": ADA, "claim_expires_at": stamp(tx.now + timedelta(days=1))}
        claim["delete_at"] = "2027-01-01T00:00:00.000Z"
        tx.change_user(user.id, awaiting_confirmation=True, **INVITED, **claim)
    worked(box)
    tokens = [link_in(message.get_body(("plain",)).get_content()).token for _, message in server.taken]  # type: ignore[union-attr]
    assert len(set(tokens)) == len(linked)
    kept = written(service)
    assert user.email.encode() in kept
    assert not [token for token in tokens if token.encode() in kept]


def test_a_server_that_quotes_the_email_gets_no_token_into_the_list_or_the_log(
    service: Service, add: Callable[..., User]
) -> None:
    def quoting(message: EmailMessage, _recipient: str, _number: int) -> str:
        raise Undeliverable(f"451 not this: {message.as_string()}", permanent=False, perhaps_taken=True)

    queued(service, add("ada"))
    attempt = service.outbox._replace(given_send=quoting).work()
    assert attempt is not None
    assert "token=***" in attempt.message
    assert the_row(service).last_error == attempt.message


# --- tried again ---


def test_an_email_that_is_refused_temporarily_is_retried_with_growing_delays(
    service: Service, add: Callable[..., User], box: Outbox, server: Server, clock: FakeClock
) -> None:
    queued(service, add("ada"))
    server.refusal = "450 greylisted"
    waits = []
    for number in range(1, 15):
        (attempt,) = worked(box)
        assert (attempt.state, attempt.message, attempt.email.attempts) == (
            "waiting",
            "450 greylisted",
            number,
        )
        row = the_row(service)
        assert row.last_error == "450 greylisted"
        wait = datetime.fromisoformat(row.due_at) - clock()
        waits.append(wait)
        clock.now = datetime.fromisoformat(row.due_at) - timedelta(milliseconds=1)
        assert box.work() is None
        clock.move(milliseconds=1)
    assert timedelta(seconds=4) <= waits[0] <= timedelta(seconds=6)
    assert waits[3] > waits[0] * 3
    assert timedelta(minutes=9) < waits[-1] <= LONGEST_DELAY
    server.refusal = None
    assert [attempt.state for attempt in worked(box)] == ["sent"]
    row = the_row(service)
    assert (row.state, row.last_error, row.finished_at) == ("sent", None, stamp(clock()))


def test_a_refused_login_is_tried_once_for_all_emails_that_are_due(
    make_service: Callable[..., Service], clock: FakeClock
) -> None:
    """A mail server that counts wrong logins would lock the account."""
    box = Postbox(login=("ada", "secret"))
    with smtp_server(box):
        service = make_service(
            mailer_host="127.0.0.1", mailer_port=box.port, mailer_user="ada", mailer_password="wrong"
        )
        queued(service, *(create_user(service, f"u{n}@example.com", "U", PASSWORD) for n in range(3)))
        for attempts in range(1, 4):
            assert [attempt.email.attempts for attempt in worked(service.outbox)] == [attempts]
            first, *others = sorted(rows(service))
            assert {(row.due_at, row.last_error) for row in others} == {(first.due_at, first.last_error)}
            assert str(first.last_error).startswith("535 ")
            clock.now = datetime.fromisoformat(first.due_at)
        right = service.outbox._replace(settings=service.settings._replace(mailer_password="secret"))
        assert [attempt.state for attempt in worked(right)] == ["sent"] * 3


def test_delays_have_jitter_and_a_limit() -> None:
    for attempts in range(1, 1000):
        assert timedelta(seconds=4) <= delay_after(attempts) <= LONGEST_DELAY
    assert len({delay_after(5) for _ in range(20)}) > 10
    assert timedelta(minutes=15) == LONGEST_DELAY


def test_an_email_that_was_not_sent_leaves_no_token(
    service: Service, add: Callable[..., User], box: Outbox, server: Server, clock: FakeClock
) -> None:
    queued(service, add("ada"))
    server.refusal = "450 later"
    for _ in range(3):
        worked(box)
        assert tokens(service) == 0
        clock.move(minutes=15)


def test_an_email_that_was_perhaps_accepted_has_a_link_that_works(
    service: Service, add: Callable[..., User], server: Server, clock: FakeClock
) -> None:
    def deaf(message: EmailMessage, recipient: str, number: int) -> str:
        server(message, recipient, number)
        raise Undeliverable("closed", permanent=False, perhaps_taken=True)

    queued(service, add("ada"))
    service.outbox._replace(given_send=deaf).work()
    clock.move(minutes=1)
    service.outbox._replace(given_send=server).work()
    first, second = (message for _, message in server.taken)
    assert first["Message-ID"] == second["Message-ID"]
    link = link_in(first.get_body(("plain",)).get_content())  # type: ignore[union-attr]
    assert service.recovery.reset(link.token, ADA, "another good password", by=WEB).email == ADA


def test_a_server_that_never_answers_an_email_gets_few_copies(
    service: Service, add: Callable[..., User], box: Outbox, server: Server, clock: FakeClock
) -> None:
    def deaf(message: EmailMessage, recipient: str, number: int) -> str:
        server(message, recipient, number)
        raise Undeliverable("closed", permanent=False, perhaps_taken=True)

    queued(service, add("ada"))
    cutting, began = service.outbox._replace(given_send=deaf), clock()
    while (attempts := worked(cutting))[-1].state == "waiting":
        assert timedelta() < datetime.fromisoformat(the_row(service).due_at) - clock() <= LONGEST_DELAY
        clock.now = datetime.fromisoformat(the_row(service).due_at)
    assert [attempt.state for attempt in attempts] == ["failed"]
    assert len(server.taken) == 8
    assert clock() - began > timedelta(hours=1)
    assert the_row(service).last_error == "no answer to the email (8 of 8): closed"
    # It is not lost, and counts anew.
    cutting.retry(None)
    assert [attempt.state for attempt in worked(cutting)] == ["waiting"]
    clock.now = datetime.fromisoformat(the_row(service).due_at)
    assert [attempt.state for attempt in worked(box)] == ["sent"]


@pytest.mark.parametrize("login_refused", [False, True])
def test_other_errors_in_between_do_not_restart_the_count_of_copies(
    service: Service, add: Callable[..., User], clock: FakeClock, *, login_refused: bool
) -> None:
    taken: Counter[str] = Counter()
    errors = dict.fromkeys(("ada@example.com", "bob@example.com"), 0)

    def flapping(_message: EmailMessage, recipient: str, _number: int) -> str:
        errors[recipient] += 1
        if errors[recipient] % 2:
            taken[recipient] += 1
            raise Undeliverable("closed", permanent=False, perhaps_taken=True)
        raise Undeliverable("421 later", permanent=False, login_refused=login_refused)

    queued(service, add("ada"), add("bob"))
    box = service.outbox._replace(given_send=flapping)
    for _ in range(60):
        worked(box)
        clock.move(minutes=15)
    assert taken == {"ada@example.com": 8, "bob@example.com": 8}
    assert {row.state for row in rows(service)} == {"failed"}
    assert {row.last_error for row in rows(service)} == {"no answer to the email (8 of 8): closed"}


def test_an_email_tells_of_lost_answers_beside_its_last_error(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    answers = [
        Undeliverable("closed", permanent=False, perhaps_taken=True),
        Undeliverable("421 later", permanent=False),
    ]

    def flapping(_message: EmailMessage, _recipient: str, _number: int) -> str:
        raise answers.pop(0)

    queued(service, add("ada"))
    for told in (
        "no answer to the email (1 of 8): closed",
        "no answer to the email (1 of 8) before; now: 421 later",
    ):
        (attempt,) = worked(service.outbox._replace(given_send=flapping))
        assert attempt.message == the_row(service).last_error == told
        clock.move(minutes=15)


def test_every_attempt_has_the_same_message_id_and_another_token(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    tried: list[EmailMessage] = []

    def refusing(message: EmailMessage, _recipient: str, _number: int) -> str:
        tried.append(message)
        raise Undeliverable("450 later", permanent=False)

    queued(service, add("ada"), add("bob"))
    for _ in range(3):
        worked(service.outbox._replace(given_send=refusing))
        clock.move(minutes=15)
    assert sorted(Counter(str(message["Message-ID"]) for message in tried).values()) == [3, 3]
    links = {link_in(message.get_body(("plain",)).get_content()).token for message in tried}  # type: ignore[union-attr]
    assert len(links) == 6


def test_a_permanently_refused_email_stays_until_it_is_retried(
    service: Service, add: Callable[..., User], box: Outbox, server: Server, clock: FakeClock
) -> None:
    queued(service, add("ada"))
    server.refusal = "550 no such user"
    assert [attempt.state for attempt in worked(box)] == ["failed"]
    clock.move(hours=1)
    assert box.work() is None
    row = the_row(service)
    assert (row.state, row.last_error) == ("failed", "550 no such user")
    server.refusal = None
    assert [email.id for email in box.retry(None)] == [row.id]
    assert [attempt.state for attempt in worked(box)] == ["sent"]
    assert box.retry(None) == box.retry([row.id]) == box.retry([99]) == []


def test_a_refused_email_blocks_no_other(
    service: Service, add: Callable[..., User], box: Outbox, server: Server
) -> None:
    bad, good = add("bad"), add("good")
    with service.store.write() as tx:
        tx.change_user(bad.id, email="two@example.com, addresses@example.com")
        service.outbox.queue.add(tx, RESET, tx.user(bad.id), "two@example.com, addresses@example.com")
        tx._run(
            "INSERT INTO outbox (kind, user_id, email, message_id, created_at, due_at) VALUES ('odd', 1, 'x', 'y', ?, ?)",
            (stamp(service.now()),) * 2,
        )
    queued(service, good)
    outcomes = {attempt.email.email: (attempt.state, attempt.message) for attempt in worked(box)}
    assert outcomes["good@example.com"][0] == "sent"
    assert outcomes["two@example.com, addresses@example.com"] == (
        "failed",
        "'two@example.com, addresses@example.com' is not an email address",
    )
    assert outcomes["x"] == ("dropped", "no such kind of email")
    assert [str(message["To"]) for _, message in server.taken] == ["good@example.com"]


def test_an_exception_while_sending_blocks_no_other_email(
    service: Service, add: Callable[..., User], server: Server
) -> None:
    def faulty(message: EmailMessage, recipient: str, number: int) -> str:
        if recipient == ADA:
            raise ZeroDivisionError("oops")
        return server(message, recipient, number)

    queued(service, add("ada"), add("bob"))
    done = worked(service.outbox._replace(given_send=faulty))
    assert [(attempt.state, attempt.message) for attempt in done] == [
        ("failed", "ZeroDivisionError: oops"),
        ("sent", "250 OK"),
    ]
    assert tokens(service) == 1


# --- dropped ---


@pytest.mark.parametrize(
    ("kind", "after"),
    [(kind, kind.stale_after) for kind in kinds.KINDS.values()],
    ids=list(kinds.KINDS),
)
def test_an_email_that_is_too_old_is_dropped(
    service: Service, clock: FakeClock, box: Outbox, kind: kinds.Kind, after: timedelta
) -> None:
    user = service.registration.register(ADA, "Ada", PASSWORD, by=WEB)
    worked(box)
    with service.store.write() as tx:
        tx.change_user(
            user.id,
            claimed_email=ADA,
            claim_expires_at=stamp(tx.now + timedelta(days=9)),
            delete_at="2027-01-01T00:00:00.000Z",
            **INVITED,
        )
    queued(service, user, user, kind=kind)
    clock.move(seconds=after.total_seconds())
    first = box.work()
    assert first is not None
    assert first.state == "sent"
    clock.move(milliseconds=1)
    second = box.work()
    assert second is not None
    assert (second.state, second.message) == ("dropped", "too old")


def test_an_email_of_a_deleted_account_is_deleted(
    service: Service, add: Callable[..., User], box: Outbox, server: Server
) -> None:
    user = add("ada")
    queued(service, user)
    server.then = lambda: service.accounts.delete([user.id], by=OPERATOR)
    worked(box)
    assert rows(service) == []
    assert tokens(service) == 0


def test_an_email_to_a_former_address_is_dropped(
    service: Service, add: Callable[..., User], box: Outbox, server: Server
) -> None:
    user = add("ada")
    for kind in (RESET, kinds.PASSWORD_CHANGED, kinds.ACCOUNT_LINKED):
        queued(service, user, kind=kind)
    service.accounts.update(user.id, email="new@example.com", by=OPERATOR)
    assert {attempt.email.kind: attempt.message for attempt in worked(box)} == {
        "password-changed": "the address was changed",
        "account-linked": "the address was changed",
        "email-given": "250 OK",
    }
    assert [str(message["To"]) for _, message in server.taken] == [ADA]


def test_an_operators_link_goes_to_the_address_that_the_account_has_now(
    service: Service, add: Callable[..., User]
) -> None:
    ada, bob = add("ada"), add("bob")
    service.accounts.update(ada.id, email="grace@example.com", by=OPERATOR)
    service.accounts.delete([bob.id], by=OPERATOR)
    assert "grace%40example.com" in service.outbox.link(RESET, ada, by=OPERATOR)
    with pytest.raises(NotFound):
        service.outbox.link(RESET, bob, by=OPERATOR)


def test_a_change_of_address_while_an_email_is_sent_ends_its_link(
    service: Service, add: Callable[..., User], box: Outbox, server: Server
) -> None:
    user = add("ada")
    queued(service, user)
    server.then = lambda: service.accounts.update(user.id, email="new@example.com", by=OPERATOR)
    box.work()
    (_, message) = server.taken[0]
    link = link_in(message.get_body(("plain",)).get_content())  # type: ignore[union-attr]
    for email in (ADA, "new@example.com"):
        with pytest.raises(Invalid):
            service.recovery.reset(link.token, email, "another good password", by=WEB)


# --- not too many ---


def test_more_than_three_emails_of_a_kind_in_fifteen_minutes_are_dropped_silently(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    add("ada")
    for _ in range(5):
        service.recovery.forgot(ADA)
    assert len(sent(service)) == 3
    assert Counter(row.state for row in rows(service)) == {"sent": 3, "dropped": 2}
    service.registration.register("new@example.com", "N", PASSWORD, by=WEB)
    assert len(sent(service, "new@example.com")) == 1
    clock.move(minutes=15, milliseconds=-1)
    service.recovery.forgot(ADA)
    assert len(sent(service, ADA)) == 3
    clock.move(milliseconds=1)
    for _ in range(5):
        service.recovery.forgot(ADA)
    assert len(sent(service, ADA)) == 6


def test_emails_from_a_clock_that_was_ahead_keep_no_others_back(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    add("ada")
    clock.move(days=1)
    for _ in range(3):
        service.recovery.forgot(ADA)
    assert len(sent(service, ADA)) == 3
    clock.move(days=-1)
    for _ in range(5):
        service.recovery.forgot(ADA)
    assert len(sent(service, ADA)) == 6


@pytest.mark.slow
def test_after_twelve_emails_of_a_kind_in_a_day_the_next_comes_when_the_last_link_has_expired(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    add("ada")
    for _ in range(4):
        for _ in range(5):
            service.recovery.forgot(ADA)
        clock.move(minutes=15)
    assert len(sent(service)) == 12
    for _ in range(22 * 3):
        clock.move(minutes=20)
        service.recovery.forgot(ADA)
        send_all(service)
    of_the_day = len(sent(service))
    assert 12 + 20 <= of_the_day <= 12 + 22
    clock.move(hours=1, minutes=20)
    service.recovery.forgot(ADA)
    of_the_day = len(sent(service))
    service.recovery.reset(last_link(service).token, ADA, "another good password", by=WEB)
    clock.move(days=1)
    service.recovery.forgot(ADA)
    assert len(sent(service)) == of_the_day + 2, "the notice of the reset, and a link"


def test_beyond_the_limit_of_a_day_an_address_gets_one_email_for_each_account_without_a_link(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    users = [add(f"user{number}") for number in range(20)]
    with service.store.write() as tx:
        for user in users:
            service.outbox.queue.add(tx, CONFIRM, user, "victim@example.com")
    for _ in range(20):
        clock.move(minutes=20)
        with service.store.write() as tx:
            for user in users:
                service.outbox.queue.add(tx, CONFIRM, user, "victim@example.com")
    assert sum(row.state == "waiting" for row in rows(service)) == 12 + 17, "17 accounts had no link yet"


@pytest.mark.slow
def test_a_user_who_claims_an_address_and_takes_that_back_all_day_floods_no_stranger(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    ada, grace, victim = add("ada", password=None), add("grace"), "victim@example.com"

    def claim(user: User) -> int:
        with service.store.write() as tx:
            change_own(tx, service.outbox.queue, tx.existing_user(user.id), victim, by=WEB)
        send_all(service)
        return sum((row.email, row.state) == (victim, "sent") for row in rows(service))

    for _ in range(24 * 3):
        clock.move(minutes=20)
        of_the_day = claim(ada)
        service.claims.take_back(ada.id, by=WEB)
    assert of_the_day == 12
    assert claim(grace) == 13, "another account gets its link all the same"
    to_ada = Counter(row.kind for row in rows(service) if (row.email, row.state) == (ADA, "sent"))
    assert to_ada["email-kept"] == to_ada["approve-new-email"] == 12, "nor the owner of the account"


def test_the_limit_holds_for_an_account_that_changes_its_address(
    service: Service, add: Callable[..., User]
) -> None:
    user = add("ada")
    for number in range(10):
        service.accounts.update(user.id, email=f"victim{number}@example.com", by=WEB)
    letters_sent = sent(service)
    assert len(letters_sent) == 3
    assert letters_sent[0].to == ADA


def test_the_limit_holds_also_in_parallel(service: Service, add: Callable[..., User]) -> None:
    add("ada")
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: service.recovery.forgot(ADA), range(64)))
    assert len(sent(service)) == 3


# --- by one at a time ---


def test_an_email_that_is_being_sent_is_claimed_by_one_worker(
    service: Service, add: Callable[..., User], box: Outbox, server: Server, clock: FakeClock
) -> None:
    queued(service, add("ada"))
    meanwhile: list[Any] = []

    def others() -> None:
        server.then = lambda: None
        clock.move(seconds=LEASE.total_seconds() - 1)
        meanwhile.extend([box.work(), box.work()])
        clock.move(minutes=5)  # a worker that lives keeps its email, however long it takes
        meanwhile.extend([box.work(), box.retry(None)[0].attempts, box.retry([1])[0].attempts, box.work()])

    server.then = lambda: in_another_thread(others)
    assert [attempt.state for attempt in worked(box)] == ["sent"]
    assert meanwhile == [None, None, None, 1, 1, None]
    assert len(server.taken) == 1


def test_after_a_crash_between_sending_and_marking_the_email_is_sent_again_with_the_same_id(
    service: Service, add: Callable[..., User], server: Server, clock: FakeClock
) -> None:
    class Killed(BaseException):
        pass

    def dies(message: EmailMessage, recipient: str, number: int) -> str:
        server(message, recipient, number)
        raise Killed

    queued(service, add("ada"))
    with pytest.raises(Killed):
        service.outbox._replace(given_send=dies).work()
    alive = service.outbox._replace(given_send=server)
    clock.move(seconds=LEASE.total_seconds() - 1)
    assert worked(alive) == []
    assert timedelta(seconds=5) >= LEASE
    clock.move(seconds=1)
    assert [attempt.state for attempt in worked(alive)] == ["sent"]
    clock.move(days=1)
    assert worked(alive) == []
    (_, first), (_, second) = server.taken
    assert first["Message-ID"] == second["Message-ID"]
    for message in (first, second):
        link = link_in(message.get_body(("plain",)).get_content())  # type: ignore[union-attr]
        clock.now = datetime(2026, 11, 20, 8, 25, tzinfo=UTC)
        with service.store.read() as tx:
            assert tx.one_time_token("reset", outbox.digest(link.token)) is not None


def test_an_email_of_a_worker_that_died_is_retried_at_once(
    service: Service, add: Callable[..., User], server: Server
) -> None:
    class Killed(BaseException):
        pass

    def dies(_message: EmailMessage, _recipient: str, _number: int) -> str:
        raise Killed

    queued(service, add("ada"))
    with pytest.raises(Killed):
        service.outbox._replace(given_send=dies).work()
    alive = service.outbox._replace(given_send=server)
    assert worked(alive) == []
    alive.wait_for_others(1)  # a server notices a moment later that the connection of the dead one has ended
    assert [email.id for email in alive.retry(None)] == [1]
    assert [attempt.state for attempt in worked(alive)] == ["sent"]


def test_an_email_that_is_being_sent_delays_no_other(
    service: Service, add: Callable[..., User], box: Outbox, server: Server, clock: FakeClock
) -> None:
    queued(service, add("ada"), add("bob"))
    meanwhile: list[Any] = []

    def others() -> None:
        server.then = lambda: None
        clock.move(minutes=5)
        meanwhile.extend(worked(box))

    server.then = lambda: in_another_thread(others)
    box.work()
    assert [(attempt.email.email, attempt.state) for attempt in meanwhile] == [("bob@example.com", "sent")]
    assert [row.state for row in rows(service)] == ["sent", "sent"]


@pytest.mark.slow
def test_a_sent_email_is_marked_as_soon_as_another_process_frees_its_lock(
    service: Service, add: Callable[..., User], box: Outbox, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("usersctl.store.database_file.BUSY_SECONDS", 0.2)
    queued(service, add("ada"))
    locked = threading.Event()

    def lock() -> None:
        with held(service.store.database):
            locked.set()
            time.sleep(1)

    thread = threading.Thread(target=lock)

    def hold() -> None:
        thread.start()
        assert locked.wait(5)
        with pytest.raises(Busy):
            queued(service)

    server.then = hold
    assert [attempt.state for attempt in worked(box)] == ["sent"]
    thread.join(5)
    assert the_row(service).state == "sent"
    assert len(server.taken) == 1


def test_threads_on_one_database_send_each_email_once(
    service: Service, make_service: Callable[..., Service], add: Callable[..., User]
) -> None:
    queued(service, *(add(f"u{number}") for number in range(60)))
    taken: list[int] = []
    at_once: Counter[int] = Counter()
    lock = threading.Lock()

    def slow(_message: EmailMessage, _recipient: str, number: int) -> str:
        with lock:
            at_once[number] += 1
            assert at_once[number] == 1
            taken.append(number)
        time.sleep(0.005)
        return "250 OK"

    boxes = [make_service().outbox._replace(given_send=slow) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        done = [attempts for of_one in pool.map(worked, boxes) for attempts in of_one]
    assert sorted(taken) == list(range(1, 61))
    assert {attempt.state for attempt in done} == {"sent"}


@pytest.mark.parametrize("engine", ["file", "server"])
def test_workers_that_claim_at_once_get_each_email_once(
    engine: str, make_service: Callable[..., Service], request: pytest.FixtureRequest
) -> None:
    changes = {"database": request.getfixturevalue("postgres_database")()} if engine == "server" else {}
    services = [make_service(**changes) for _ in range(8)]
    with services[0].store.write() as tx:
        for number in range(600):
            tx.add_email("reset", None, "u@example.com", f"<{number}@example.com>", dropped=False)
    start = threading.Barrier(8)

    def claim_all(service: Service) -> list[int]:
        start.wait(20)
        emails = []
        while True:
            # Beside each other on a server; a file has one writer at a time.
            with service.store.locks() as locks, service.store.write(alone=False) as tx:
                email = claimed(tx, locks, tx.now_text)
            if email is None:
                return emails
            emails.append(email.id)

    with ThreadPoolExecutor(8) as pool:
        of_workers = list(pool.map(claim_all, services))
    assert sorted(number for emails in of_workers for number in emails) == list(range(1, 601))
    assert len([emails for emails in of_workers if emails]) > 1


def work_alone(path: Path, port: int, start: Any) -> None:
    service = build(
        Settings(database=path, base_url="http://localhost", mailer_host="127.0.0.1", mailer_port=port)
    )
    start.wait(20)
    until = time.monotonic() + 20
    while service.outbox.work() is not None:
        assert time.monotonic() < until
    service.close()


@pytest.mark.slow
def test_processes_on_one_database_send_each_email_once(tmp_path: Path) -> None:
    path = database_at(tmp_path / "users.db")
    service = build(Settings(database=path, base_url="http://localhost", rounds=4))
    users = [create_user(service, f"u{number}@example.com", "U", None, by=OPERATOR) for number in range(40)]
    queued(service, *users)
    context = multiprocessing.get_context("spawn")
    with smtp_server(Postbox(delay=0.01, together=2)) as box:
        start = context.Barrier(3)
        processes = [context.Process(target=work_alone, args=(path, box.port, start)) for _ in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(30)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert Counter(box.ids()).most_common(1)[0][1] == 1
    assert sorted(email.recipients[0] for email in box.received) == sorted(user.email for user in users)
    assert box.most_at_once > 1
    assert {row.state for row in rows(service)} == {"sent"}
    service.close()


# --- through a restart, and through a server that goes and comes ---


def test_waiting_emails_survive_a_restart(
    make_service: Callable[..., Service],
) -> None:
    first = make_service()
    first.registration.register(ADA, "Ada", PASSWORD, by=WEB)
    first.close()
    second = make_service()
    link = last_link(second)
    assert second.registration.confirm(link.token, ADA, by=WEB).active
    assert [email.number for email in folder_emails(second)] == [1]


@pytest.mark.slow
def test_an_smtp_server_that_was_down_gets_every_email_once(
    make_service: Callable[..., Service], clock: FakeClock
) -> None:
    with smtp_server() as away:
        port = away.port
    service = make_service(mailer_host="127.0.0.1", mailer_port=port)
    for number in range(5):
        service.registration.register(f"u{number}@example.com", "U", PASSWORD, by=WEB)
    for _ in range(6):
        assert {attempt.state for attempt in send_all(service)} == {"waiting"}
        clock.move(minutes=15)
    with smtp_server(port=port) as box:
        assert {attempt.state for attempt in send_all(service)} == {"sent"}
    assert sorted(arrived.recipients[0] for arrived in box.received) == [
        f"u{n}@example.com" for n in range(5)
    ]
    for arrived in box.received:
        confirmed = service.registration.confirm(*_token_and_email(arrived), by=WEB)
        assert confirmed.active


def _token_and_email(letter: Received) -> tuple[str, str]:
    return letter.link.token, letter.link.email


def test_a_greylisted_recipient_delays_no_other(
    make_service: Callable[..., Service], clock: FakeClock
) -> None:
    box = Postbox(answers={f"RCPT {ADA}": "450 greylisted", "RCPT bad@example.com": "550 nobody"})
    with smtp_server(box):
        service = make_service(mailer_host="127.0.0.1", mailer_port=box.port)
        for name in ("ada", "bad", "cleo"):
            service.registration.register(f"{name}@example.com", "U", PASSWORD, by=WEB)
        assert [attempt.state for attempt in send_all(service)] == ["waiting", "failed", "sent"]
        box.answers.clear()
        clock.move(minutes=1)
        assert [attempt.email.email for attempt in send_all(service)] == [ADA]
    assert [email.recipients for email in box.received] == [["cleo@example.com"], [ADA]]


def test_the_worker_sleeps_until_the_next_email_is_due(
    service: Service, add: Callable[..., User], box: Outbox, clock: FakeClock
) -> None:
    assert box.seconds_until_due(5) == 5
    queued(service, add("ada"))
    assert box.seconds_until_due(5) == 0
    clock.move(seconds=-3)
    assert box.seconds_until_due(5) == 3
    assert box.seconds_until_due(1) == 1


def test_an_email_that_was_put_off_by_a_clock_that_was_ahead_is_sent_once_the_clock_is_set_back(
    service: Service, add: Callable[..., User], box: Outbox, server: Server, clock: FakeClock
) -> None:
    queued(service, add("ada"))
    server.refusal = "Connection refused"
    clock.move(days=1)
    assert [attempt.state for attempt in worked(box)] == ["waiting"]
    server.refusal = None
    clock.move(days=-1)
    assert box.seconds_until_due(60) == 0
    assert [attempt.state for attempt in worked(box)] == ["sent"]
    # No delay of our own is taken for one of such a clock.
    server.refusal = "Connection refused"
    queued(service, add("bob"))
    for _ in range(20):
        assert len(worked(box)) == 1
        assert worked(box) == []
        clock.move(seconds=LONGEST_DELAY.total_seconds())


def test_the_notice_of_a_change_goes_to_the_address_of_that_time(
    service: Service, add: Callable[..., User]
) -> None:
    user = add("ada")
    with service.store.write() as tx:
        tx.reserve(user.id, "old@example.com", stamp(tx.now + timedelta(days=1)))
        service.outbox.queue.add(tx, EMAIL_CHANGED, user, "old@example.com")
        service.outbox.queue.add(tx, EMAIL_CHANGED, user, "unknown@example.com")
        service.outbox.queue.add(tx, CONFIRM, user, ADA)
    assert [(attempt.email.email, attempt.state) for attempt in send_all(service)] == [
        ("old@example.com", "sent"),
        ("unknown@example.com", "dropped"),
        (ADA, "dropped"),
    ]
