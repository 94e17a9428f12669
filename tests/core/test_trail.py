"""The audit trail as admins read it: filters against a model, pages, times with a clock that is set back, steps of the check."""

import ast
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.commands import OPERATOR, by_hand
from support.databases import database_at
from support.fakes import FakeClock
from support.tables import plan, query, statements

import usersctl
from usersctl import events, trail
from usersctl.clock import moment, stamp
from usersctl.errors import Invalid
from usersctl.models import Actor, AuditFilter, AuditRow, User
from usersctl.service import Service
from usersctl.store import audit as stored
from usersctl.trail import Wanted

ACTORS = ("system", "cli:root", "user:1", "user:2")
ACTIONS = ("create", "delete", "update")


def write(service: Service, *rows: tuple[str, str, int | None]) -> None:
    """Rows of these actors, actions and users."""
    with service.store.write() as tx:
        for actor, action, user_id in rows:
            user = User(user_id, f"user{user_id}@example.com", *[""] * 10) if user_id else None  # type: ignore[arg-type]
            tx.audit(Actor(actor), action, user)


def all_pages(service: Service, wanted: AuditFilter, limit: int) -> tuple[list[AuditRow], list[int]]:
    """The rows of all pages, and how many each had."""
    rows: list[AuditRow] = []
    sizes = []
    before = None
    while True:
        with service.store.read() as tx:
            page = tx.audit_page(wanted, limit, before)
        rows += page.rows
        sizes.append(len(page.rows))
        assert page.next is None or before is None or page.next < before
        before = page.next
        if before is None:
            return rows, sizes


def ids(service: Service, **wanted: str) -> list[int]:
    return [row["id"] for row in service.trail.page(Wanted(**wanted), limit=100).rows]


# --- pages against a model ---

MOVES = st.integers(-7200, 7200)
ROWS = st.lists(
    st.tuples(MOVES, st.sampled_from(ACTORS), st.sampled_from(ACTIONS), st.sampled_from([None, 1, 2, 3])),
    max_size=40,
)
TIMES = st.none() | st.integers(-5, 5)
FILTERS = st.tuples(
    st.none() | st.sampled_from([1, 2, 3, 9]),
    st.none() | st.sampled_from([*ACTORS, "cli:ada"]),
    st.none() | st.sampled_from(ACTIONS),
    TIMES,
    TIMES,
)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=ROWS,
    wanted=st.lists(FILTERS, min_size=1, max_size=6),
    limit=st.integers(1, 12),
    looked=st.integers(1, 50),
)
def test_the_rows_of_a_filter_are_those_of_a_model_also_with_a_clock_that_is_set_back(
    make_service: Callable[..., Service],
    clock: FakeClock,
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[int, str, str, int | None]],
    wanted: list[tuple[Any, ...]],
    limit: int,
    looked: int,
) -> None:
    clock.now = datetime.fromisoformat("2026-11-20T08:00:00+00:00")
    service = make_service(database=database_at(tmp_path_factory.mktemp("trail") / "users.db"))
    for seconds, *row in rows:
        clock.move(seconds=seconds)
        write(service, tuple(row))  # type: ignore[arg-type]
    with service.store.read() as tx:
        known = list(tx.audit_rows())[::-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "LOOKED_AT", looked)
        for user_id, actor, action, since, until in wanted:
            from_time, to_time = (
                None if hours is None else stamp(moment("2026-11-20T08:00:00Z") + timedelta(hours=hours))
                for hours in (since, until)
            )
            chosen = AuditFilter(user_id, actor, action, from_time, to_time)
            found, sizes = all_pages(service, chosen, limit)
            assert found == [row for row in known if chosen.includes(row)]
            assert max(sizes) <= limit


def test_a_page_is_the_newest_rows_and_says_where_the_next_one_begins(service: Service) -> None:
    write(service, *[("system", "create", 1)] * 5)
    first = service.trail.page(Wanted(), limit=2)
    assert ([row["id"] for row in first.rows], first.next) == ([5, 4], 4)
    second = service.trail.page(Wanted(), limit=2, before=4)
    assert ([row["id"] for row in second.rows], second.next) == ([3, 2], 2)
    last = service.trail.page(Wanted(), limit=2, before=2)
    assert ([row["id"] for row in last.rows], last.next) == ([1], None)
    assert service.trail.page(Wanted(), limit=5).next is None


def test_a_filter_that_admits_few_rows_looks_at_a_bounded_number_of_them(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "LOOKED_AT", 10)
    write(service, ("cli:root", "delete", 1), *[("cli:root", "create", 2), ("system", "delete", 3)] * 20)
    page = service.trail.page(Wanted(actor="cli:root", action="delete"), limit=5)
    assert (page.rows, page.next) == ([], 22)
    found, sizes = all_pages(service, AuditFilter(actor="cli:root", action="delete"), 5)
    assert [row.id for row in found] == [1]
    assert sizes == [0, 0, 1]


def test_two_filters_use_the_index_of_the_rarer_one(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "LOOKED_AT", 10)
    write(service, ("cli:root", "lockdown-on", None), *[("cli:root", "create", 2)] * 40)
    page = service.trail.page(Wanted(actor="cli:root", action="lockdown-on"), limit=5)
    assert ([row["id"] for row in page.rows], page.next) == ([1], None)


@pytest.mark.sqlite  # the plan of SQLite
@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (AuditFilter(user_id=1), "audit_by_user"),
        (AuditFilter(actor="system"), "audit_by_actor"),
        (AuditFilter(action="create"), "audit_by_action"),
    ],
)
def test_each_filter_has_its_index(service: Service, wanted: AuditFilter, index: str) -> None:
    with service.store.read() as tx, statements(service) as run:
        tx.audit_page(wanted, 10)
    asked = next(statement for statement in run if "ORDER BY id DESC" in statement)
    steps = " ".join(plan(service, asked))
    assert index in steps
    assert "TEMP B-TREE" not in steps


def test_a_time_is_looked_up_by_halves(service: Service, clock: FakeClock) -> None:
    for _ in range(64):
        clock.move(hours=1)
        write(service, ("system", "create", 1))
    with service.store.read() as tx, statements(service) as run:
        page = tx.audit_page(AuditFilter(since=stamp(clock() - timedelta(hours=1))), 10)
    assert [row.id for row in page.rows] == [64, 63]
    assert len(run) < 12


# --- what a filter may be ---


def test_a_user_is_an_id_or_an_address_also_of_a_deleted_account(
    service: Service, add: Callable[..., User]
) -> None:
    ada, bob = add("ada"), add("bob")
    service.accounts.delete([bob.id], by=OPERATOR)
    assert ids(service, user="1") == [1]
    assert ids(service, user=f" {ada.email.upper()} ") == [1]
    assert ids(service, user=bob.email) == ids(service, user=str(bob.id)) == [3, 2]
    assert ids(service, user="nobody@example.com") == ids(service, user="99") == []


def test_an_actor_is_named_as_in_the_row_or_by_id_or_address(
    service: Service, add: Callable[..., User]
) -> None:
    ada = add("ada")
    write(
        service, ("user:1", "update", 1), ("system", "cleanup-tokens", None), ("anonymous", "register", None)
    )
    assert ids(service, actor="user:1") == ids(service, actor="1") == ids(service, actor=ada.email) == [2]
    assert ids(service, actor="system") == [3]
    assert ids(service, actor="anonymous") == [4]
    assert ids(service, actor=OPERATOR.name) == [1]
    assert ids(service, actor="cli:nobody") == []


def test_times_are_durations_or_moments(service: Service, clock: FakeClock) -> None:
    write(service, ("system", "create", 1))
    clock.move(days=10)
    write(service, ("system", "create", 2))
    assert ids(service, since="7d") == ids(service, since="2026-11-25") == [2]
    assert ids(service, until="7d") == ids(service, until="2026-11-25T00:00:00+02:00") == [1]
    assert ids(service, since="20d", until="2026-11-20T08:22:19.124Z") == [1]
    assert ids(service, until="2026-11-20T08:22:19.123Z") == []
    assert ids(service, since="0001-01-01", until="9999-12-31T23:59:59.999999Z") == [2, 1]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Wanted(user="x"), "user must be the id or the email address of a user"),
        (Wanted(user="0"), "user must be"),
        (Wanted(user="01"), "user must be"),
        (Wanted(user="1\0"), "user must be"),
        (Wanted(user="9" * 30), "user must be"),
        (Wanted(actor="root"), "actor must be system, anonymous, cli:NAME, user:ID, or"),
        (Wanted(actor="cli:a\0b"), "actor must be"),
        (Wanted(actor="user:\ud800"), "actor must be"),
        (Wanted(actor="cli:" + "x" * 201), "actor must be"),
        (Wanted(action="' OR 1=1 --"), "action must be one of accept-invitation, "),
        (Wanted(since="yesterday"), "since must be a duration such as 7d, or an ISO 8601 time"),
        (Wanted(until="7 days"), "until must be"),
        (Wanted(until="2026-13-01"), "until must be"),
        (Wanted(since="0001-01-01T00:00:00+23:00"), "since must be"),
    ],
)
def test_a_wrong_filter_is_refused(service: Service, wanted: Wanted, message: str) -> None:
    with pytest.raises(Invalid, match="^" + message.replace("(", r"\(")):
        service.trail.page(wanted, limit=1)


def test_actions_of_another_version_can_be_chosen_once_the_trail_has_them(service: Service) -> None:
    with pytest.raises(Invalid):
        service.trail.page(Wanted(action="from-the-future"), limit=1)
    write(service, ("system", "from-the-future", 1))
    assert ids(service, action="from-the-future") == [1]
    assert "from-the-future" in service.trail.actions()
    assert ids(service, action="lockdown-on") == []


def test_every_action_that_the_code_writes_can_be_chosen() -> None:
    written = set()
    for file in Path(usersctl.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if is_call and node.func.attr in ("audit", "audit_each") and len(node.args) > 1:  # type: ignore[attr-defined]
                written |= {part.value for part in node.args[1:2] if isinstance(part, ast.Constant)}  # type: ignore[attr-defined]
    assert {"create", "delete", "backup"} <= written
    assert written - events.ACTIONS == set()


# --- damaged rows ---


def test_a_row_that_was_changed_by_hand_is_shown_all_the_same(service: Service) -> None:
    write(service, *[("system", "create", 1)] * 3)
    by_hand(
        service.store.database,
        "UPDATE audit SET details = '{' WHERE id = 1",
        "UPDATE audit SET details = '[1]' WHERE id = 3",
    )
    rows = service.trail.page(Wanted(), limit=9).rows
    assert [row["details"] for row in rows] == [{"illegible": "[1]"}, {}, {"illegible": "{"}]


@pytest.mark.parametrize("details", ['{"name": "\\ud800"}', "[" * 5_000])
def test_details_that_no_answer_can_hold_are_shown_as_they_are(service: Service, details: str) -> None:
    write(service, ("system", "create", 1))
    by_hand(service.store.database, f"UPDATE audit SET details = '{details}'")  # noqa: S608
    (row,) = service.trail.page(Wanted(), limit=9).rows
    assert row["details"] == {"illegible": details}


@pytest.mark.parametrize("set_back", [-(10**18), -(10**10), 0, 10**18])
def test_a_note_of_the_end_that_was_changed_by_hand_hides_no_row_and_stops_no_change(
    service: Service, clock: FakeClock, set_back: int
) -> None:
    write(service, ("system", "create", 1))
    clock.move(days=1)
    changes = f"latest = 'never', set_back = {set_back}"
    by_hand(service.store.database, f"UPDATE audit_head SET {changes}")  # noqa: S608
    write(service, ("system", "create", 2))
    clock.move(days=1)
    assert ids(service, since="36h") == [2]
    assert ids(service, until="36h") == [1]


def test_a_note_that_hides_rows_of_a_clock_that_was_set_back_is_found(
    service: Service, clock: FakeClock
) -> None:
    for hours in (0, -2, 1):
        clock.move(hours=hours)
        write(service, ("system", "create", 1))
    with service.store.read() as tx:
        assert tx.check_audit().problem is None
    by_hand(service.store.database, "UPDATE audit_head SET set_back = set_back - 1")
    with service.store.read() as tx:
        assert "filters by time miss rows" in str(tx.check_audit().problem)


@pytest.mark.sqlite  # a server takes UTF-8 only
def test_a_row_with_text_that_is_no_utf_8_is_shown_all_the_same(service: Service) -> None:
    write(service, ("system", "create", 1))
    by_hand(service.store.database, "UPDATE audit SET email = CAST(x'61ff' AS TEXT) WHERE id = 1")
    (row,) = service.trail.page(Wanted(), limit=9).rows
    assert row["email"] == "a\ufffd"


# --- the check in steps ---


def steps(service: Service) -> tuple[list[int], str | None, int | None]:
    """The rows after each step, the problem, and the first broken row."""
    after, counted = 0, []
    while True:
        step = service.trail.check(after, counted[-1] if counted else 0)
        counted.append(step.so_far.rows)
        if step.next is None:
            return counted, step.so_far.problem, step.so_far.first_broken
        after = step.next


def test_steps_check_the_whole_trail(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trail, "STEP", 4)
    assert steps(service) == ([0], None, None)
    write(service, *[("system", "create", 1)] * 8)
    assert steps(service) == ([4, 8, 8], None, None)
    write(service, ("system", "create", 1))
    assert steps(service) == ([4, 8, 9], None, None)
    assert service.trail.check_end() == (
        (9, bytes.fromhex(service.trail.page(Wanted(), limit=1).rows[0]["hash"]), None, None),
        9,
        None,
    )


@pytest.mark.parametrize(
    ("statement", "first", "message", "at_the_end"),
    [
        ("UPDATE audit SET actor = 'cli:other' WHERE id = 2", 2, "row 2 does not follow", False),
        ("UPDATE audit SET actor = 'cli:other' WHERE id = 9", 9, "row 9 does not follow", True),
        ("DELETE FROM audit WHERE id = 5", 6, "row 6 does not follow", False),
        ("DELETE FROM audit WHERE id <= 4", 5, "row 5 does not follow", False),
        ("DELETE FROM audit WHERE id = 9", None, "ends after row number 8 and should after 9", True),
        ("DELETE FROM audit", None, "ends after row number 0 and should after 9", True),
        ("UPDATE audit_head SET hash = zeroblob(32)", None, "does not end in the row", True),
        ("DELETE FROM audit_head", None, "note of where the trail ends is missing", True),
    ],
)
def test_steps_find_what_the_whole_check_finds(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    statement: str,
    first: int | None,
    message: str,
    at_the_end: bool,
) -> None:
    monkeypatch.setattr(trail, "STEP", 4)
    monkeypatch.setattr(trail, "END", 3)
    write(service, *[("system", "create", 1)] * 9)
    by_hand(service.store.database, statement)
    _, problem, broken = steps(service)
    assert broken == first
    assert message in str(problem)
    with service.store.read() as tx:
        whole = tx.check_audit()
    assert (whole.first_broken, whole.problem) == (broken, problem)
    end = service.trail.check_end().so_far.problem
    assert (end is not None) == at_the_end


def test_the_check_of_the_end_looks_at_few_rows(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trail, "END", 3)
    write(service, *[("system", "create", 1)] * 9)
    by_hand(service.store.database, "UPDATE audit SET actor = 'cli:other' WHERE id = 5")
    assert service.trail.check_end().so_far.problem is None
    assert query(service, "SELECT n FROM audit_head") == [(9,)]
