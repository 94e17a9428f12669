"""Events for webhooks: written with their effect, sent in order, tried again for three days, ended by a 410."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from support.accounts import open_session, signed_in_admin
from support.commands import OPERATOR, PASSWORD, by_hand, create_user
from support.factors import add_factors
from support.fakes import FakeClock
from support.receivers import OTHER_SECRET, SECRET, Receiver, Taken
from support.tables import plan, query, statements, written

from usersctl import events
from usersctl.config.webhooks import Webhook
from usersctl.factors.reset import Chosen
from usersctl.invitations import guest, lifetime_of
from usersctl.mail.kinds import CONFIRM
from usersctl.models import Actor, EmailState, Role, User
from usersctl.service import Service
from usersctl.transfer.writing import ImportOptions
from usersctl.webhooks.delivery import Delivery, wait_of
from usersctl.webhooks.sending import Answer

OPS = Webhook("ops", "https://ops.example.com/hook", (SECRET,))


@pytest.fixture
def told(make_service: Callable[..., Service]) -> Service:
    """A service with a webhook that takes all events."""
    return make_service(webhooks=(OPS,))


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def ops(told: Service, receiver: Receiver) -> Delivery:
    assert told.webhooks is not None
    return told.webhooks.deliveries["ops"]._replace(post=receiver)


def send_all(delivery: Delivery) -> list[str]:
    """The messages of the attempts, until nothing is due."""
    messages = []
    while (attempt := delivery.work()) is not None:
        messages.append(attempt.message)
    return messages


def types(receiver: Receiver) -> list[str]:
    return [event.type for event in receiver.taken]


def rows(service: Service) -> list[tuple[Any, ...]]:
    return query(service, "SELECT kind, state, webhook FROM outbox WHERE webhook <> '' ORDER BY id")


def people(service: Service, *names: str) -> list[User]:
    return [create_user(service, f"{name}@example.com", name.title(), PASSWORD) for name in names]


# --- which changes are told ---


def test_every_event_has_an_action_that_tells_it_but_the_test() -> None:
    told = {event for of_action in events.OF_ACTION.values() for event in of_action}
    assert told | {events.USER_ACTIVATED, events.USER_DEACTIVATED, events.WEBHOOK_TEST} == set(events.EVENTS)
    assert told <= set(events.EVENTS)


@pytest.mark.parametrize(
    ("action", "details", "expected"),
    [
        ("create", {}, ["user.created"]),
        ("update", {"name": "x"}, ["user.updated"]),
        ("update", {"name": "x", "active": False}, ["user.updated", "user.deactivated"]),
        ("import-update", {"active": True, "password": False}, ["user.activated"]),
        ("import-update", {"active": False, "role": "user"}, ["user.updated", "user.deactivated"]),
        ("import-update", {"active": True, "linked": ["oauth"]}, ["user.updated", "user.activated"]),
        ("invite", {"created": True}, ["user.created"]),
        ("invite", {"again": True}, []),
        ("withdraw-invitation", {"removed": True}, ["user.deleted"]),
        ("withdraw-invitation", {"removed": False}, []),
        ("reset-password", {}, ["user.updated", "session.revoked"]),
        ("import-update", {"password": True}, ["user.updated", "session.revoked"]),
        ("import-update", {"password": False}, ["user.updated"]),
        ("link", {"password_replaced": True}, ["user.updated", "session.revoked"]),
        ("link", {"password_replaced": False}, ["user.updated"]),
        ("link", {"password_replaced": False, "ended": 1}, ["user.updated", "session.revoked"]),
        ("accept-invitation", {"through": "link"}, ["user.confirmed"]),
        ("accept-invitation", {"was_active": True}, ["user.confirmed", "session.revoked"]),
        ("not-me", {"active": True}, ["user.updated", "session.revoked", "user.activated"]),
        ("from-the-future", {}, []),
    ],
)
def test_an_action_tells_these_events(action: str, details: dict[str, Any], expected: list[str]) -> None:
    assert list(events.events_of(action, details)) == expected


def test_the_life_of_an_account_is_told_in_order(told: Service, ops: Delivery, receiver: Receiver) -> None:
    (ada,) = people(told, "ada")
    opened = told.sessions.login("ada@example.com", PASSWORD)
    told.accounts.update(ada.id, name="Countess", by=OPERATOR)
    told.sessions.end(opened.token)  # type: ignore[union-attr]
    told.sessions.create_api_token(ada.id, name="ci", lifetime=None, by=OPERATOR)
    told.accounts.set_active([ada.id], active=False, by=OPERATOR)
    told.accounts.set_active([ada.id], active=True, by=OPERATOR)
    told.accounts.delete([ada.id], by=OPERATOR)
    assert send_all(ops) == ["204"] * 8
    assert types(receiver) == [
        "user.created",
        "session.created",
        "user.updated",
        "session.revoked",
        "session.created",
        "user.deactivated",
        "user.activated",
        "user.deleted",
    ]
    assert {event.user for event in receiver.taken} == {ada.id}
    last = receiver.taken[-1].payload["data"]["user"]
    assert (last["name"], last["email"]) == ("Countess", "ada@example.com")
    assert "password" not in str([event.payload for event in receiver.taken])


def test_invitations_registrations_imports_and_lockdowns_are_told(
    told: Service, ops: Delivery, receiver: Receiver
) -> None:
    (invited,) = told.invitations.invite([guest("eve@example.com")], lifetime_of("7d"), by=OPERATOR)
    told.invitations.invite([guest("eve@example.com")], lifetime_of("7d"), by=OPERATOR)
    told.registration.register("bob@example.com", "Bob", PASSWORD, by=Actor("anonymous"))
    told.invitations.withdraw([invited.id], by=OPERATOR)
    options = ImportOptions("fail", False, OPERATOR, report=print, progress=lambda *_: None)
    told.transfer.import_rows([("row 1", {"email": "cy@example.com"})], options)
    told.lockdown.start(None, by=OPERATOR)
    told.lockdown.stop(by=OPERATOR)
    send_all(ops)
    # Those of different users come in any order; here, in that of their changes.
    expected = [*["user.created"] * 3, "user.deleted", "lockdown.on", "lockdown.off"]
    assert sorted(types(receiver)) == sorted(expected)
    assert receiver.taken[-1].payload["data"]["user"] is None


def test_confirmations_and_factors_are_told(told: Service, ops: Delivery, receiver: Receiver) -> None:
    told.registration.register("bob@example.com", "Bob", PASSWORD, by=Actor("anonymous"))
    with told.store.read() as tx:
        bob = tx.existing_user(1)
    link = parse_qs(urlsplit(told.outbox.link(CONFIRM, bob, by=OPERATOR)).query)
    told.registration.confirm(link["token"][0], link["email"][0], by=Actor("anonymous"))
    add_factors(told, bob.id)
    told.factor_reset.run(bob.id, Chosen(), by=OPERATOR)
    send_all(ops)
    assert types(receiver) == ["user.created", "user.confirmed", "factor.changed", "session.revoked"]


def test_what_any_action_tells_has_the_form_of_its_schema(
    told: Service, ops: Delivery, receiver: Receiver
) -> None:
    """The receiver compares each with the OpenAPI document; all but the test, which has a test of its own."""
    (ada,) = people(told, "ada")
    for action in events.OF_ACTION:
        with told.store.write() as tx:
            tx.tell(OPERATOR, action, ada, {"active": True, "created": True, "removed": True})
    send_all(ops)
    assert {*types(receiver), events.WEBHOOK_TEST} == set(events.EVENTS)


def test_a_webhook_gets_the_events_that_it_names(make_service: Callable[..., Service]) -> None:
    few = OPS._replace(name="few", events=("user.deleted", "session.created"))
    service = make_service(webhooks=(OPS, few))
    (ada,) = people(service, "ada")
    service.accounts.delete([ada.id], by=OPERATOR)
    assert rows(service) == [
        ("user.created", "waiting", "ops"),
        ("user.deleted", "waiting", "ops"),
        ("user.deleted", "waiting", "few"),
    ]


def test_an_unproven_address_is_not_told(told: Service, ops: Delivery, receiver: Receiver) -> None:
    ada = create_user(told, "ada@example.com", "Ada", PASSWORD, role=Role.ADMIN)
    told.accounts.update(ada.id, email="ceo@example.com", by=signed_in_admin(told, ada))
    told.accounts.update(ada.id, name="Countess", by=OPERATOR)
    send_all(ops)
    assert types(receiver)[-1] == "user.updated"
    assert "ceo@example.com" not in str([event.payload for event in receiver.taken])


def test_a_change_that_is_rolled_back_is_not_told(told: Service, ops: Delivery) -> None:
    def broken(_user: User) -> None:
        raise KeyboardInterrupt

    newcomer = told.accounts.newcomer("ada@example.com", "Ada")
    with pytest.raises(KeyboardInterrupt):
        told.accounts.create(newcomer, PASSWORD, tell=broken, by=OPERATOR)
    assert rows(told) == []
    assert not ops.committed.is_set()


def test_without_a_webhook_nothing_is_written_and_nothing_hears(service: Service) -> None:
    people(service, "ada")
    assert rows(service) == []
    assert service.webhooks is None
    assert service.store.listener is None


def test_a_long_payload_is_cut_to_its_user(told: Service, ops: Delivery, receiver: Receiver) -> None:
    (ada,) = people(told, "ada")
    with told.store.write() as tx:
        tx.audit(OPERATOR, "update", ada, name="x" * 30_000)
    send_all(ops)
    assert receiver.taken[-1].payload["data"]["details"] == {}
    assert receiver.taken[-1].payload["data"]["user"]["name"] == "Ada"
    by_hand(told.store.database, "UPDATE users SET profile_picture = '" + "00" * 15_000 + "'")
    told.accounts.update(ada.id, name="Countess", by=OPERATOR)
    send_all(ops)
    user = receiver.taken[-1].payload["data"]["user"]
    assert (user["name"], user["profile_picture"]) == ("Countess", None)


def test_each_secret_signs(make_service: Callable[..., Service]) -> None:
    service = make_service(webhooks=(OPS._replace(secrets=(SECRET, OTHER_SECRET)),))
    receiver = Receiver(SECRET, OTHER_SECRET)
    people(service, "ada")
    assert service.webhooks is not None
    send_all(service.webhooks.deliveries["ops"]._replace(post=receiver))
    assert types(receiver) == ["user.created"]


def test_the_overview_counts_the_events_that_wait(told: Service, ops: Delivery) -> None:
    people(told, "ada", "bob")
    assert (told.overview.now().events_waiting, told.overview.now().emails_waiting) == (2, 0)
    send_all(ops)
    assert told.overview.now().events_waiting == 0


def test_without_a_webhook_the_overview_has_no_number_of_events(service: Service) -> None:
    assert service.overview.now().events_waiting is None


# --- receivers that fail ---


def test_a_receiver_that_is_down_for_a_day_gets_all_in_order_and_once(
    told: Service, ops: Delivery, receiver: Receiver, clock: FakeClock
) -> None:
    receiver.answer = lambda _event: "the connection failed: Connection refused"
    users = people(told, "ada", "bob", "cy")
    for hour in range(24):
        for user in users:
            told.accounts.update(user.id, name=f"Name {hour}", by=OPERATOR)
        send_all(ops)
        clock.move(hours=1)
    assert receiver.taken == []
    asked = {event.id for event in receiver.asked}
    receiver.answer = lambda _event: Answer(200)
    send_all(ops)
    for user in users:
        names = [event.payload["data"]["user"]["name"] for event in receiver.taken if event.user == user.id]
        assert names == [user.name, *(f"Name {hour}" for hour in range(24))]
    assert len(receiver.taken) == len({event.id for event in receiver.taken}) == 75
    assert asked <= {event.id for event in receiver.taken}  # the same ids


def test_events_that_were_put_off_by_a_clock_that_was_ahead_are_sent_in_order_once_it_is_set_back(
    told: Service, ops: Delivery, receiver: Receiver, clock: FakeClock
) -> None:
    clock.move(days=1)
    users = people(told, "ada", "bob", "cy")
    told.accounts.update(users[0].id, name="Other", by=OPERATOR)
    receiver.answer = lambda _event: Answer(500)
    send_all(ops)
    with told.store.read() as tx:
        assert tx.webhook_state("ops").paused_until is not None
    receiver.answer = lambda _event: Answer(200)
    clock.move(days=-1)
    send_all(ops)
    assert types(receiver) == ["user.created"] * 3 + ["user.updated"]


@pytest.mark.parametrize("days", [1, 365])
def test_a_pause_of_a_clock_that_was_ahead_ends_once_it_is_set_back_though_another_event_is_due(
    told: Service, ops: Delivery, receiver: Receiver, clock: FakeClock, days: int
) -> None:
    people(told, "ada", "bob", "cy", "dan")
    clock.move(days=days)
    receiver.answer = lambda _event: Answer(500)
    send_all(ops)
    assert len(receiver.asked) == 3
    clock.move(days=-days)
    receiver.answer = lambda _event: Answer(200)
    send_all(ops)
    # A year is more than the three days after which a failed event is given up.
    assert len(receiver.taken) == (4 if days == 1 else 1)


def test_a_receiver_that_is_down_is_asked_ever_less(
    told: Service, ops: Delivery, receiver: Receiver, clock: FakeClock
) -> None:
    receiver.answer = lambda _event: "no answer within 15 s"
    people(told, *(f"u{number}" for number in range(20)))
    for _ in range(6 * 60):
        send_all(ops)
        clock.move(seconds=10)
    assert 3 < len(receiver.asked) <= 16  # three at once, then one for each of the growing pauses


@pytest.mark.parametrize("asked", ["0", "soon", "Thu, 01 Jan 2015 00:00:00 GMT"])
def test_a_receiver_that_is_down_and_asks_for_no_wait_is_asked_ever_less(
    told: Service, ops: Delivery, receiver: Receiver, clock: FakeClock, asked: str
) -> None:
    receiver.answer = lambda _event: Answer(503, asked)
    people(told, *(f"u{number}" for number in range(20)))
    for _ in range(6 * 60):
        send_all(ops)
        clock.move(seconds=10)
    assert 3 < len(receiver.asked) <= 16


def test_one_event_that_is_refused_for_hours_does_not_pause_the_others(
    told: Service, ops: Delivery, receiver: Receiver, clock: FakeClock
) -> None:
    (ada,) = people(told, "ada")
    receiver.answer = lambda event: Answer(400 if event.user == ada.id else 200)
    for _ in range(12 * 60):
        send_all(ops)
        with told.store.read() as tx:
            assert tx.webhook_state("ops").paused_until is None
        clock.move(seconds=15)
    assert len(receiver.asked) > 3
    people(told, "bob")
    assert "200" in send_all(ops)


def test_an_event_that_the_receiver_refuses_holds_up_its_user_only(
    told: Service, ops: Delivery, receiver: Receiver, clock: FakeClock
) -> None:
    ada, bob = people(told, "ada", "bob")
    receiver.answer = lambda event: Answer(500 if event.user == ada.id else 200)
    for number in range(5):
        told.accounts.update(ada.id, name=f"Ada {number}", by=OPERATOR)
        told.accounts.update(bob.id, name=f"Bob {number}", by=OPERATOR)
    for _ in range(30):
        send_all(ops)
        clock.move(seconds=30)
    assert [event.user for event in receiver.taken] == [bob.id] * 6
    receiver.answer = lambda _event: Answer(200)
    clock.move(hours=1)
    send_all(ops)
    assert [event.payload["data"]["user"]["name"] for event in receiver.taken[6:]] == [
        "Ada",
        *(f"Ada {number}" for number in range(5)),
    ]


@pytest.mark.parametrize("status", [300, 302, 307, 400, 404, 429, 500, 503])
def test_every_other_answer_is_tried_again_with_the_same_id(
    told: Service, ops: Delivery, receiver: Receiver, clock: FakeClock, status: int
) -> None:
    receiver.answer = lambda _event: Answer(status)
    people(told, "ada")
    assert send_all(ops) == [f"the receiver answered {status}"]
    receiver.answer = lambda _event: Answer(200)
    clock.move(seconds=7)
    assert send_all(ops) == ["200"]
    first, second = receiver.asked
    assert first.id == second.id
    assert first.payload == second.payload
    assert int(second.headers["webhook-timestamp"]) - int(first.headers["webhook-timestamp"]) == 7


def test_an_event_that_failed_says_why_and_a_success_forgets_it(
    told: Service, ops: Delivery, receiver: Receiver, clock: FakeClock
) -> None:
    assert told.webhooks is not None
    problem = "the connection failed: Connection refused"
    receiver.answer = lambda _event: problem
    people(told, "ada")
    for least, most in ((4, 6), (8, 12)):
        assert send_all(ops) == [problem]
        assert least <= ops.seconds_until_due(60) <= most
        condition = told.webhooks.condition("ops")
        assert (condition.word, condition.state.failures) == ("failing", 1)  # an event counts once
        assert [event.last_error for event in condition.newest] == [problem]
        assert condition.as_json()["oldest_waiting"] == condition.newest[0].created_at
        clock.move(seconds=most)
    assert ops.seconds_until_due(60) == 0
    receiver.answer = lambda _event: Answer(200)
    assert send_all(ops) == ["200"]
    condition = told.webhooks.condition("ops")
    assert (condition.word, condition.state.failures) == ("ok", 0)


def test_retry_after_holds_up_all_events(
    told: Service, ops: Delivery, receiver: Receiver, clock: FakeClock
) -> None:
    receiver.answer = lambda _event: Answer(429, "3600")
    people(told, "ada", "bob")
    assert send_all(ops) == ["the receiver answered 429"]
    people(told, "cy")
    receiver.answer = lambda _event: Answer(200)
    clock.move(seconds=3599)
    assert send_all(ops) == []
    assert ops.seconds_until_due(30) == 30
    clock.move(seconds=2)
    assert send_all(ops) == ["200"] * 3


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120),
        ("0", 0),
        ("99999999999", 86400),
        ("Fri, 20 Nov 2026 08:32:19 GMT", 600),
        ("Fri, 20 Nov 2020 08:32:19 GMT", 0),
        ("Fri, 20 Nov 2099 08:32:19 GMT", 86400),
        ("-5", 0),
        ("soon", 0),
        ("Fri, 20 Nov 99999999999999999999 08:32:19 GMT", 0),
        ("Fri, 20 Nov 2026 08:32:19 +99999999999999999999", 0),
        ("Fri, 31 Dec 9999 23:59:59 -2359", 86400),
        ("²", 0),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str, seconds: int, clock: FakeClock) -> None:
    now = clock().replace(microsecond=0)
    assert wait_of(header, now) == timedelta(seconds=seconds)


def test_an_event_that_was_on_its_way_does_not_shorten_a_pause(
    told: Service, ops: Delivery, receiver: Receiver, clock: FakeClock
) -> None:
    def answer(event: Taken) -> Answer:
        if event.user != ada.id:
            return Answer(503, "3600")
        ops.work()  # of another worker, and answered first
        return Answer(500)

    ada, _ = people(told, "ada", "bob")
    receiver.answer = answer
    assert ops.work() is not None
    assert len(receiver.asked) == 2
    receiver.answer = lambda _event: Answer(200)
    people(told, "cy")
    clock.move(seconds=3599)
    assert send_all(ops) == []
    clock.move(seconds=1)
    assert send_all(ops) == ["200"] * 3


def test_a_410_ends_it_until_an_operator_begins_it_again(
    told: Service, ops: Delivery, receiver: Receiver, clock: FakeClock
) -> None:
    receiver.answer = lambda _event: Answer(410)
    ada, _ = people(told, "ada", "bob")
    assert send_all(ops) == ["the receiver answered 410"]
    receiver.answer = lambda _event: Answer(200)
    for _ in range(10):
        clock.move(hours=2)
        told.accounts.update(ada.id, name=f"Ada {clock.now.hour}", by=OPERATOR)
        assert send_all(ops) == []
    assert told.webhooks is not None
    assert told.webhooks.condition("ops").word == "ended"
    assert told.webhooks.condition("ops").counts == {"waiting": 12, "sent": 0, "failed": 0}
    told.webhooks.deliveries["ops"] = ops
    assert [attempt.message for attempt in told.webhooks.retry("ops")] == ["200"] * 12
    assert [event.type for event in receiver.taken if event.user == ada.id] == ["user.created"] + [
        "user.updated"
    ] * 10
    assert told.webhooks.condition("ops").word == "ok"


def test_an_event_is_given_up_after_three_days_and_the_next_one_goes_on(
    told: Service, ops: Delivery, receiver: Receiver, clock: FakeClock
) -> None:
    receiver.answer = lambda _event: Answer(500)
    (ada,) = people(told, "ada")
    clock.move(days=2, hours=23)
    send_all(ops)
    told.accounts.update(ada.id, name="Countess", by=OPERATOR)
    clock.move(hours=2)
    assert send_all(ops) == ["the receiver answered 500"] * 2
    assert rows(told) == [("user.created", "failed", "ops"), ("user.updated", "waiting", "ops")]
    receiver.answer = lambda _event: Answer(200)
    clock.move(hours=1)
    send_all(ops)
    assert types(receiver) == ["user.updated"]
    # A later one of this user was taken: the earlier one would be out of order now.
    assert told.webhooks is not None
    told.webhooks.deliveries["ops"] = ops
    assert list(told.webhooks.retry("ops")) == []


def test_a_retry_ends_with_the_first_event_that_fails(
    told: Service, ops: Delivery, receiver: Receiver
) -> None:
    receiver.answer = lambda _event: Answer(500)
    people(told, "ada", "bob")
    assert told.webhooks is not None
    told.webhooks.deliveries["ops"] = ops
    assert [attempt.message for attempt in told.webhooks.retry("ops")] == ["the receiver answered 500"]


def test_a_retry_sends_what_was_given_up_where_nothing_later_was_taken(
    told: Service, ops: Delivery, receiver: Receiver, clock: FakeClock
) -> None:
    receiver.answer = lambda _event: Answer(500)
    (ada,) = people(told, "ada")
    told.accounts.update(ada.id, name="Countess", by=OPERATOR)
    clock.move(days=4)
    told.cleaner.run(by=OPERATOR)
    assert [row[1] for row in rows(told)] == ["failed", "failed"]
    receiver.answer = lambda _event: Answer(200)
    assert told.webhooks is not None
    told.webhooks.deliveries["ops"] = ops
    assert [attempt.state for attempt in told.webhooks.retry("ops")] == [EmailState.SENT] * 2
    assert types(receiver) == ["user.created", "user.updated"]


def test_a_retry_leaves_what_was_given_up_while_a_later_event_of_the_user_is_being_sent(
    told: Service, ops: Delivery, receiver: Receiver, clock: FakeClock
) -> None:
    receiver.answer = lambda _event: Answer(500)
    (ada,) = people(told, "ada")
    clock.move(days=4)
    send_all(ops)
    told.accounts.update(ada.id, name="Countess", by=OPERATOR)
    webhooks = told.webhooks
    assert webhooks is not None

    def retried(_event: Taken) -> Answer:
        webhooks.deliveries["ops"] = ops
        with ThreadPoolExecutor(1) as operator:
            assert operator.submit(lambda: list(webhooks.retry("ops"))).result() == []
        return Answer(200)

    receiver.answer = retried
    clock.move(hours=1)
    assert send_all(ops) == ["200"]
    assert types(receiver) == ["user.updated"]
    assert [row[1] for row in rows(told)] == ["failed", "sent"]


def test_the_cleanup_removes_what_is_done_and_what_no_webhook_sends(
    told: Service, make_service: Callable[..., Service], ops: Delivery, clock: FakeClock
) -> None:
    (ada,) = people(told, "ada")
    send_all(ops)
    told.accounts.update(ada.id, name="Countess", by=OPERATOR)
    other = make_service(database=told.store.database)  # the webhook is no more
    for days, state in ((3, "waiting"), (1, "failed")):
        clock.move(days=days)
        other.cleaner.run(by=OPERATOR)
        assert rows(told) == [("user.created", "sent", "ops"), ("user.updated", state, "ops")]
    clock.move(days=8)
    other.cleaner.run(by=OPERATOR)
    assert rows(told) == []


def test_an_event_of_a_worker_that_died_is_sent_again_with_the_same_id(
    told: Service, ops: Delivery, receiver: Receiver, clock: FakeClock
) -> None:
    class Killed(BaseException):
        pass

    def die(_event: Any) -> Answer:
        raise Killed

    receiver.answer = die
    people(told, "ada")
    with pytest.raises(Killed):
        ops.work()
    receiver.answer = lambda _event: Answer(200)
    assert send_all(ops) == []  # its lease
    clock.move(seconds=4)
    assert send_all(ops) == ["200"]
    assert len({event.id for event in receiver.asked}) == 1


def test_emails_and_events_do_not_mix(told: Service, ops: Delivery) -> None:
    told.registration.register("bob@example.com", "Bob", PASSWORD, by=Actor("anonymous"))
    with told.store.read() as tx:
        assert [email.kind for email in tx.queued_emails()] == ["confirm"]
        assert tx.count_emails()["waiting"] == 1
        assert tx.count_unfinished_emails(10) == (1, 0)
        assert tx.oldest_email(EmailState.WAITING) is not None
        assert tx.queued_email(2) is None
    assert told.outbox.retry(None)[0].kind == "confirm"
    assert (attempt := told.outbox.work()) is not None
    assert attempt.email.kind == "confirm"
    assert told.outbox.work() is None
    assert send_all(ops) == ["204"]


def test_the_log_names_the_event_and_no_secret(told: Service, ops: Delivery) -> None:
    (ada,) = people(told, "ada")
    attempt = ops.work()
    assert attempt is not None
    name, fields = attempt.for_log()
    event_id = fields.pop("id")
    assert event_id.startswith("msg_")
    assert (name, fields) == (
        "webhook",
        {
            "state": "sent",
            "webhook": "ops",
            "type": "user.created",
            "user": ada.id,
            "attempt": 1,
            "detail": "204",
        },
    )


def test_no_secret_is_in_the_database(told: Service, ops: Delivery) -> None:
    people(told, "ada")
    send_all(ops)
    assert SECRET.removeprefix("whsec_").encode() not in written(told)


def test_a_row_that_cannot_be_sent_stops_no_other(told: Service, ops: Delivery, receiver: Receiver) -> None:
    people(told, "ada", "bob")
    by_hand(told.store.database, "UPDATE outbox SET payload = NULL WHERE subject = 1")
    ops.work()
    send_all(ops)
    assert [event.user for event in receiver.taken] == [2]


@pytest.mark.sqlite  # the plan of SQLite
def test_events_that_wait_for_others_slow_no_change_down(told: Service, ops: Delivery) -> None:
    """An index finds the events of one user, however many wait for a receiver that is down."""
    with statements(told) as run:
        people(told, "ada")
        send_all(ops)
    plans = [plan(told, statement) for statement in run if "subject =" in statement]
    assert len(plans) == 2
    for steps in plans:
        assert any("outbox_in_order (webhook=? AND subject=? AND state=?" in step for step in steps), steps
        assert not any("outbox_due" in step for step in steps), steps


# --- several daemons ---


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["file", "server"])
def test_sign_ins_at_once_are_told_in_their_order_and_once(
    engine: str, make_service: Callable[..., Service], receiver: Receiver, request: pytest.FixtureRequest
) -> None:
    changes = {"database": request.getfixturevalue("postgres_database")()} if engine == "server" else {}
    services = [make_service(webhooks=(OPS,), **changes) for _ in range(4)]
    users = people(services[0], "ada", "grace")
    start, over = threading.Barrier(5), threading.Event()

    def sign_in(service: Service) -> None:
        start.wait(20)
        for n in range(30):
            open_session(service, users[n % 2])

    def deliver() -> None:
        webhooks = make_service(webhooks=(OPS,), **changes).webhooks
        assert webhooks is not None
        ops = webhooks.deliveries["ops"]._replace(post=receiver)
        start.wait(20)
        while ops.work() is not None or not over.is_set():
            pass

    with ThreadPoolExecutor(5) as pool:
        sender = pool.submit(deliver)
        for done in [pool.submit(sign_in, service) for service in services]:
            done.result(60)
        over.set()
        sender.result(60)
    assert {state for _, state, _ in rows(services[0])} == {"sent"}
    for user in users:
        told = [
            event.payload["data"]["details"].get("token") for event in receiver.taken if event.user == user.id
        ][1:]
        assert len(told) == len(set(told)) == 60
        order = query(services[0], "SELECT payload FROM outbox WHERE subject = ? ORDER BY id", user.id)
        in_rows = [json.loads(payload)["data"]["details"].get("token") for (payload,) in order][1:]
        assert told == in_rows
