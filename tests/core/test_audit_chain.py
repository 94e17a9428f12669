"""The audit trail as a chain: whatever is done to a row by hand is found, and named by the first row that shows it."""

import json
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import OPERATOR, Command, by_hand
from support.daemons import wait_for
from support.databases import opened

from usersctl.errors import StoreUnusable
from usersctl.models import User
from usersctl.service import Service
from usersctl.store import chain
from usersctl.store.conninfo import Database

ROWS = 6


@pytest.fixture
def trail(usersctl: Command) -> Command:
    """Six rows of six accounts."""
    usersctl.add(*(f"user{number}" for number in range(1, ROWS + 1)))
    return usersctl


def head(database: Database) -> bytes:
    with opened(database) as db:
        return bytes(db.execute("SELECT hash FROM audit_head").fetchone()[0])


# --- found ---


def test_an_untouched_trail_is_unbroken(trail: Command) -> None:
    end = head(trail.database).hex()
    assert trail.ok("audit", "verify").stdout == f"{ROWS} rows, unbroken up to {end}\n"
    printed = trail.ok("audit", "verify", "--json").json
    assert printed == {
        "intact": True,
        "rows": ROWS,
        "head": end,
        "first_broken": None,
        "problem": None,
    }


@pytest.mark.parametrize(
    ("statements", "first", "message"),
    [
        (["UPDATE audit SET actor = 'user:9' WHERE id = 3"], 3, "was changed"),
        (["UPDATE audit SET details = '{}' WHERE id = 1"], 1, "was changed"),
        (["UPDATE audit SET email = NULL WHERE id = 6"], 6, "was changed"),
        (["UPDATE audit SET email = CAST(x'ff' AS TEXT) WHERE id = 2"], 2, "was changed"),
        (["UPDATE audit SET hash = zeroblob(32) WHERE id = 4"], 4, "was changed"),
        (["UPDATE audit SET id = 99 WHERE id = 6"], 99, "was changed"),
        (["DELETE FROM audit WHERE id = 3"], 4, "removed"),
        (["DELETE FROM audit WHERE id <= 2"], 3, "removed"),
        (["DELETE FROM audit WHERE id = 6"], None, "ends after row number 5 and should after 6"),
        (["DELETE FROM audit WHERE id > 2"], None, "ends after row number 2 and should after 6"),
        (["DELETE FROM audit"], None, "ends after row number 0 and should after 6"),
        (["DELETE FROM audit_head"], None, "note of where the trail ends is missing"),
        (["DELETE FROM audit", "DELETE FROM audit_head"], None, "note of where the trail ends is missing"),
        (["UPDATE audit_head SET hash = zeroblob(32)"], None, "does not end in the row"),
        (["UPDATE audit_head SET n = 5"], None, "should after 5"),
        (["UPDATE audit_head SET set_back = -1"], None, "filters by time miss rows"),
        (
            [
                "UPDATE audit SET id = 100 WHERE id = 2",
                "UPDATE audit SET id = 2 WHERE id = 4",
                "UPDATE audit SET id = 4 WHERE id = 100",
            ],
            2,
            "moved",
        ),
        (
            [
                "INSERT INTO audit (id, at, actor, action, hash) SELECT 7, at, actor, action, hash FROM audit WHERE id = 6"
            ],
            7,
            "was changed",
        ),
    ],
)
def test_changes_by_hand_are_detected(
    trail: Command, statements: list[str], first: int | None, message: str
) -> None:
    by_hand(trail.database, *statements)
    with trail.service() as service, service.store.read() as tx:
        finding = tx.check_audit()
    assert finding.problem is not None
    assert (finding.first_broken, message in finding.problem) == (first, True), finding


def test_a_broken_trail_exits_with_7_and_names_the_row(trail: Command) -> None:
    by_hand(trail.database, "UPDATE audit SET actor = 'user:9' WHERE id = 3")
    printed = trail("audit", "verify", "--json")
    assert (printed.code, printed.stderr) == (7, "")
    assert (printed.json["intact"], printed.json["rows"], printed.json["first_broken"]) == (False, 2, 3)
    lines = trail("audit", "verify")
    assert (lines.code, lines.stdout) == (7, f"Broken: {printed.json['problem']}\n")
    assert lines.stdout.startswith("Broken: row 3 does not follow from the one before it")


def test_a_damaged_trail_is_still_listed(trail: Command) -> None:
    by_hand(
        trail.database,
        "UPDATE audit SET details = '{' WHERE id = 3",
        "UPDATE audit SET details = '[]' WHERE id = 4",
    )
    with trail.service() as service, service.store.read() as tx:
        shown = list(tx.audit_rows())
    assert [row.details for row in shown[2:4]] == [{"illegible": "{"}, {"illegible": "[]"}]
    by_hand(trail.database, "DROP TABLE audit_head")
    missing = pytest.raises(StoreUnusable, match=r"is not whole.*audit_head")
    with trail.service() as service, missing, service.store.read() as tx:
        tx.check_audit()


@pytest.mark.parametrize(
    ("statement", "first"),
    [
        ("DELETE FROM audit WHERE id = 6", 6),
        ("DELETE FROM audit_head", 7),
        ("DELETE FROM audit", 1),
        ("INSERT INTO audit (id, at, actor, action, hash) VALUES (7, '', '', '', x'00')", 7),
    ],
)
def test_a_broken_trail_takes_new_rows_and_stays_broken(trail: Command, statement: str, first: int) -> None:
    by_hand(trail.database, statement)
    trail.add("later", "latest")
    with trail.service() as service, service.store.read() as tx:
        assert tx.check_audit().first_broken == first
        assert len(list(tx.audit_rows())) >= 2


CONTENT = st.tuples(
    st.integers(1, 9),
    st.text(),
    st.text(),
    st.none() | st.text(),
    st.text(),
    st.none() | st.integers(),
    st.text(),
)
Row = tuple[Any, ...]


def chained(contents: list[Row]) -> tuple[list[Row], chain.Head]:
    rows, before = [], chain.START
    for number, content in enumerate(contents, 1):
        content = (number, *content[1:])  # noqa: PLW2901 - as the database gives ids
        before = chain.link(before, content)
        rows.append((*content, before))
    return rows, chain.Head(len(rows), before)


@given(st.lists(CONTENT, min_size=1, max_size=8), st.data())
def test_any_single_change_is_detected(contents: list[Row], data: st.DataObject) -> None:
    rows, end = chained(contents)
    assert chain.check(rows, end).problem is None
    changed = list(rows)
    at = data.draw(st.integers(0, len(rows) - 1), label="row")
    kind = data.draw(
        st.sampled_from(["edit", "delete", "swap", "cut", "cut first", "add", "double"]), label="change"
    )
    if kind == "edit":
        column = data.draw(st.integers(0, len(rows[at]) - 1), label="column")
        other = data.draw(st.one_of(st.integers(), st.text(), st.binary(), st.none()), label="value")
        row = (*rows[at][:column], other, *rows[at][column + 1 :])
        if column < len(row) - 1 and isinstance(other, bytes):
            return  # no column but the hash holds bytes
        changed[at] = row
    elif kind == "delete":
        del changed[at]
    elif kind == "swap":
        other_at = data.draw(st.integers(0, len(rows) - 1), label="with")
        changed[at], changed[other_at] = changed[other_at], changed[at]
    elif kind == "cut":
        del changed[at:]
    elif kind == "cut first":
        del changed[: at + 1]
    elif kind == "add":
        content = data.draw(CONTENT, label="new")
        changed.insert(at, (*content, chain.link(rows[at - 1][-1] if at else chain.START, content)))
    else:
        changed.insert(at, rows[at])
    finding = chain.check(changed, end)
    assert (finding.problem is None) == (changed == rows)
    if finding.first_broken is not None:
        # Everything before it is as it was; but a row that was put in with a hash that fits shows at the next one.
        assert kind == "add" or changed[: finding.rows] == rows[: finding.rows]


def test_contents_that_look_alike_when_joined_have_different_hashes() -> None:
    alike: list[Row] = [
        (1, "a", "bc"),
        (1, "ab", "c"),
        (1, 'a","b', "c"),
        (1, "a", "b", "c"),
        (11, "a", "c"),
        (1, None),
        (1, "null"),
        (1, ""),
    ]
    assert len({chain.link(chain.START, row) for row in alike}) == len(alike)


# --- what it cannot know, unless it is told ---


def test_a_whole_new_chain_is_detected_by_an_expected_hash(trail: Command) -> None:
    noted = head(trail.database)
    trail.add("later")
    assert trail.ok("audit", "verify", "--expect", noted.hex().upper()).stdout.startswith("7 rows, unbroken")
    # Somebody who knows how it is made writes a trail of their own.
    with opened(trail.database) as db:
        rows = db.execute("SELECT * FROM audit WHERE id <> 3 ORDER BY id").fetchall()
        made, end = chained([tuple(row[:-1]) for row in rows])
        db.execute("DELETE FROM audit")
        for row in made:
            db.execute("INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        db.execute("UPDATE audit_head SET n = ?, hash = ?", end)
    with trail.service() as service, service.store.read() as tx:
        assert tx.check_audit().problem is None
        assert "another trail" in str(tx.check_audit(noted).problem)


def test_expect_refuses_text_that_is_no_hash(trail: Command) -> None:
    done = trail("audit", "verify", "--expect", "g" * 64)
    assert (done.code, "64 hexadecimal digits" in done.stderr) == (2, True)


# --- written ---


def test_rows_of_parallel_writers_make_one_chain(
    make_service: Callable[..., Service], add: Callable[..., User]
) -> None:
    users = [add(f"user{number}") for number in range(4)]
    services = [make_service(), make_service()]  # as in two processes: a lock of its own each

    def change(user: User) -> None:
        for number in range(5):
            services[user.id % 2].accounts.update(user.id, name=f"Name {number}", by=OPERATOR)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(change, users))
    with services[0].store.read() as tx:
        finding = tx.check_audit()
    assert (finding.rows, finding.problem) == (24, None)


def test_a_rolled_back_change_is_not_in_the_chain(service: Service, add: Callable[..., User]) -> None:
    ada = add("ada")
    before = head(service.store.database)
    service.accounts.delete([ada.id], dry_run=True, by=OPERATOR)
    assert head(service.store.database) == before
    with service.store.read() as tx:
        assert tx.check_audit().problem is None


def test_text_in_any_script_is_chained(service: Service, add: Callable[..., User]) -> None:
    ada = add("ada")
    for name in ("密码 🦜", "\u202eevil", 'a"b\\c', "é"):
        with service.store.write() as tx:
            tx.audit(OPERATOR, "update", ada, name=name)
    with service.store.read() as tx:
        assert tx.check_audit().problem is None


def test_cleaning_up_removes_no_row(service: Service, add: Callable[..., User]) -> None:
    ada, _ = add("ada"), add("bob")
    service.accounts.delete([ada.id], by=OPERATOR)
    service.cleaner.run(include_no_expiration=True, by=OPERATOR)
    with service.store.read() as tx:
        assert [row.action for row in tx.audit_rows()] == ["create", "create", "delete", "cleanup-tokens"]
        assert tx.check_audit().problem is None


# --- followed ---


def test_follow_prints_new_rows_of_any_process(trail: Command) -> None:
    file = trail.folder / "followed"
    with file.open("wb") as out, trail.service() as service:
        follower = trail.start(
            "audit",
            "--follow",
            "--jsonl",
            "--since",
            "1h",
            stdout=out,
            stderr=subprocess.PIPE,
            measured=False,
        )
        assert follower.stderr is not None

        def printed() -> list[dict[str, Any]]:
            return [json.loads(line) for line in file.read_text().splitlines()]

        def last() -> str:
            return str(printed()[-1]["action"])

        try:
            wait_for(lambda: len(printed()) == ROWS)
            trail.ok("deactivate", "1")
            wait_for(lambda: last() == "deactivate")
            service.store.copy(trail.folder / "saved.db")
            service.accounts.set_active([1], active=True, by=OPERATOR)
            wait_for(lambda: last() == "activate")
            assert printed()[-1]["hash"] == head(trail.database).hex()
            # A backup that is restored is another trail, which may be as long as the one before.
            trail.ok("db", "restore", trail.folder / "saved.db", "--yes")
            wait_for(lambda: last() == "restore")
            assert len(printed()) == ROWS + 3
            follower.send_signal(signal.SIGINT)
            assert (follower.wait(10), follower.stderr.read().strip()) == (130, b"")
        finally:
            follower.kill()
            follower.wait()
            follower.stderr.close()


def test_follow_starts_at_since_and_keeps_to_one_user(trail: Command) -> None:
    follower = trail.start("audit", "--follow", "--since", "1h", "--user", "2", stdout=subprocess.PIPE)
    assert follower.stdout is not None
    try:
        assert follower.stdout.readline().startswith(b"id\tat\t")
        assert b"user2@example.com" in follower.stdout.readline()
        with trail.service() as service:
            service.accounts.set_active([1, 2], active=False, by=OPERATOR)
        line = follower.stdout.readline()
        assert (b"deactivate" in line, b"user2@example.com" in line) == (True, True)
    finally:
        follower.kill()
        follower.stdout.close()
        follower.wait()


def test_json_lines_have_the_hash_of_each_row(trail: Command) -> None:
    rows = [json.loads(line) for line in trail.ok("audit", "--jsonl").stdout.splitlines()]
    assert rows == trail.ok("audit", "--json").json
    assert rows[-1]["hash"] == head(trail.database).hex()


@pytest.mark.parametrize("option", [("--user", "ada"), ("--since", "7d"), ("--follow",), ("--jsonl",)])
def test_verify_refuses_options_of_the_list(usersctl: Command, option: tuple[str, ...]) -> None:
    usersctl.add("ada")
    done = usersctl("audit", *option, "verify")
    assert (done.code, "audit verify does not take the options of audit" in done.stderr) == (2, True)


def test_the_command_shows_rows_of_an_actor_and_before_a_time(trail: Command) -> None:
    actor = trail.ok("audit", "--json").json[0]["actor"]
    assert len(trail.ok("audit", "--actor", actor, "--json").json) == ROWS
    assert trail.ok("audit", "--actor", "cli:nobody", "--json").json == []
    assert trail.ok("audit", "--until", "1d", "--json").json == []
    assert len(trail.ok("audit", "--since", "1d", "--until", "2999-01-01", "--json").json) == ROWS


def test_an_actor_is_named_as_any_user_is_or_as_in_the_rows(trail: Command) -> None:
    by_hand(trail.database, "UPDATE audit SET actor = 'user:2' WHERE id = 3")
    for name in ("2", "user2@example.com", "user:2"):
        assert [row["id"] for row in trail.ok("audit", "--actor", name, "--json").json] == [3], name
    assert trail.ok("audit", "--actor", "anonymous", "--json").json == []
    for name in ("nobody@example.com", "sistem"):
        refused = trail("audit", "--actor", name)
        assert (refused.code, f"No user '{name}', now or earlier" in refused.stderr) == (3, True)
