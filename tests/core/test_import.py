"""An import writes many rows with one statement, and each row comes to what it would have come to alone."""

import io
import shutil
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.accounts import open_session
from support.commands import HASH, OPERATOR, PASSWORD, create_user
from support.databases import add_database
from support.factors import add_authenticator_apps
from support.fakes import FakeClock
from support.identities import link
from support.tables import audit, everything, query, statements

from usersctl.config import Settings
from usersctl.errors import Invalid, UsersError
from usersctl.invitations import guest
from usersctl.models import Identity, Newcomer
from usersctl.service import Service, build
from usersctl.transfer import rows as rows_of_files
from usersctl.transfer import writing
from usersctl.transfer.checks import checked
from usersctl.transfer.rows import LONGEST_LINE, csv_rows, json_rows, jsonl_rows
from usersctl.transfer.writing import BrokenRows, Ids, Imported, ImportOptions, RowProblem

ISSUER, OTHER_ISSUER = "https://login.example.com", "https://other.example.com"
CONTENT = (
    "SELECT * FROM users",
    "SELECT * FROM user_counts",
    "SELECT * FROM reserved_emails",
    "SELECT * FROM one_time_tokens",
    "SELECT kind, user_id, email, state FROM outbox",
    "SELECT user_id, provider, issuer, subject, email, linked_at FROM identities ORDER BY user_id, provider",
    "SELECT * FROM audit",
    "SELECT * FROM audit_head",
)


def built(database: Path, clock: FakeClock) -> Service:
    oauth = {"oauth_client_id": "id", "oauth_client_secret": "secret", "oauth_issuer": ISSUER}
    return build(Settings(database=database, base_url="http://127.0.0.1", rounds=4, **oauth), now=clock)


@pytest.fixture(scope="module")
def town() -> Iterator[Path]:
    """A database with an address of each kind: known, claimed, given up, of a registration, of one that has lapsed."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "users.db"
        add_database(path)
        clock = FakeClock()
        with closing(built(path, clock)) as service:
            create_user(service, "root@example.com", "Root", PASSWORD, role="admin")
            ids = [create_user(service, f"known{n}@example.com", "Known", PASSWORD).id for n in range(3)]
            with service.store.write() as tx:
                tx.add_identities([Identity(ids[0], "oauth", ISSUER, "bound")])
                tx.add_identities([Identity(ids[1], "oauth", "", "unbound")])
                tx.add_identities([Identity(ids[2], "second", ISSUER, "bound")])
                tx.change_user(ids[2], claimed_email="claimed@example.com", claim_expires_at="2999")
                tx.reserve(ids[2], "reserved@example.com", "2999")
            service.registration.register("lapsed@example.com", "Lapsed", PASSWORD, by=OPERATOR)
            clock.move(days=2)
            service.registration.register("waiting@example.com", "Waiting", PASSWORD, by=OPERATOR)
        yield path


HOLDERS = ("root", "known0", "known1", "known2", "claimed", "reserved", "lapsed", "waiting")
identities = st.fixed_dictionaries(
    {
        "provider": st.sampled_from(["second", "third"]),
        "subject": st.sampled_from(["bound", "7", "8"]),
    },
    optional={
        "issuer": st.sampled_from([ISSUER, OTHER_ISSUER]),
        "email": st.just("ada@elsewhere.example"),
        "linked_at": st.just("2020-01-01"),
    },
)
rows = st.fixed_dictionaries(
    {"email": st.sampled_from([f"{name}@example.com" for name in (*HOLDERS, *"abcdefghijkl")])},
    optional={
        "name": st.sampled_from(["Ada", "Zoë"]),
        "role": st.sampled_from(["admin", "user"]),
        "active": st.booleans(),
        "confirmed": st.booleans(),
        "password_hash": st.just(HASH),
        "created_at": st.just("2020-01-01"),
        "oauth_id": st.sampled_from(["bound", "unbound", "7", "8", "9"]),
        "oauth_issuer": st.sampled_from([ISSUER, OTHER_ISSUER]),
        "identities": st.lists(identities, max_size=2, unique_by=lambda identity: identity["provider"]),
    },
).filter(lambda row: not (row.get("active") and row.get("confirmed") is False))


def outcome(town: Path, people: list[dict[str, Any]], on_conflict: str, batch: int) -> list[object]:
    """The answer of an import, its messages, and every row of the database afterwards."""
    problems: list[RowProblem] = []
    options = ImportOptions(on_conflict, False, OPERATOR, problems.append, progress=lambda *_: None)
    clock = FakeClock()
    clock.move(days=3)
    with TemporaryDirectory() as folder:
        path = Path(shutil.copy(town, folder))
        with closing(built(path, clock)) as service:
            transfer = service.transfer._replace(batch=batch)
            answer: Imported | str
            try:
                answer = transfer.import_rows(((f"row {n}", row) for n, row in enumerate(people)), options)
            except UsersError as error:
                answer = f"{error} {error.hint}"
            with service.store.read() as tx:
                assert tx.check_audit().problem is None
            content = [query(service, statement) for statement in CONTENT]
    return [answer, problems, content]


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.lists(rows, min_size=1, max_size=12),
    st.sampled_from(["fail", "skip", "update"]),
)
def test_rows_that_are_written_together_come_to_the_same_as_one_by_one(
    town: Path, people: list[dict[str, Any]], on_conflict: str
) -> None:
    assert outcome(town, people, on_conflict, batch=5) == outcome(town, people, on_conflict, batch=1)


@pytest.mark.slow
def test_an_import_needs_few_statements_for_many_rows(service: Service) -> None:
    people = (
        (f"row {n}", {"email": f"user{n}@example.com", "password_hash": HASH, "oauth_id": f"id-{n}"})
        for n in range(1_000)
    )
    options = ImportOptions("fail", False, OPERATOR, report=print, progress=lambda *_: None)
    with statements(service) as run:
        assert service.transfer.import_rows(people, options).created == 1_000
    # The trail gets its rows by one statement, which is reported for each of them.
    assert len({text for text in run if not text.startswith("INSERT INTO audit ")}) < 100


def test_the_end_of_the_trail_moves_once_for_many_updates_of_an_import(service: Service) -> None:
    options = ImportOptions("update", False, OPERATOR, report=print, progress=lambda *_: None)
    people = [(f"row {n}", {"email": f"user{n}@example.com"}) for n in range(100)]
    assert service.transfer.import_rows(people, options).created == 100
    admins = [(where, row | {"role": "admin"}) for where, row in people]
    with statements(service) as run:
        assert service.transfer.import_rows(admins, options).updated == 100
    assert sum(text.startswith("INSERT INTO audit_head ") for text in run) == 1


def test_import_and_export_leave_second_factors_alone(service: Service) -> None:
    user = create_user(service, "ada@example.com", "Ada", PASSWORD, by=OPERATOR)
    add_authenticator_apps(service, user.id)
    options = ImportOptions("update", False, OPERATOR, report=print, progress=lambda *_: None)
    row = {"email": user.email, "name": "Ada L.", "password_hash": HASH, "role": "admin"}
    assert service.transfer.import_rows([("row 1", row)], options).updated == 1
    assert query(service, "SELECT name, factors FROM users") == [("Ada L.", 1)]
    assert len(query(service, "SELECT * FROM totp_secrets")) == 1
    (exported,) = service.transfer.export_rows(with_hashes=True)
    assert not {name for name in exported if "factor" in name or "totp" in name}


def test_an_import_changes_the_members_of_a_group_by_one_statement(service: Service) -> None:
    """On a server each change of a group takes longer than the one before, until the commit."""
    for group in ("board", "staff"):
        service.groups.create(group, by=OPERATOR)
    options = ImportOptions("update", False, OPERATOR, report=print, progress=lambda *_: None)

    def move(group: str) -> Imported:
        people = ({"email": f"user{n}@example.com", "groups": [group]} for n in range(100))
        return service.transfer.import_rows(((f"row {n}", row) for n, row in enumerate(people)), options)

    assert move("staff").created == 100
    with statements(service) as run:
        assert move("board").updated == 100
    # Each is reported once more for each of its triggers.
    changes = {
        text for text in run if text.startswith(("INSERT INTO group_members", "DELETE FROM group_members"))
    }
    assert len(changes) == 2
    assert [(group.name, group.members) for group in service.groups.all()] == [("board", 100), ("staff", 0)]
    assert move("board").unchanged == 100


def test_the_last_row_of_an_account_decides_about_its_groups(service: Service) -> None:
    for group in ("board", "staff"):
        service.groups.create(group, by=OPERATOR)
    user = create_user(service, "ada@example.com", "Ada", PASSWORD)
    options = ImportOptions("update", False, OPERATOR, report=print, progress=lambda *_: None)
    rows = [("row", {"email": user.email, "groups": [group]}) for group in ("staff", "board")]
    for _ in range(2):  # the second time the last row says what was so before the first
        assert service.transfer.import_rows(rows, options).updated == 2
        assert service.groups.of(user.id) == ("board",)


@pytest.mark.parametrize("batch", [1, 400])
def test_each_change_of_an_import_is_recorded_once_in_the_order_of_the_rows(
    service: Service, batch: int
) -> None:
    service.groups.create("staff", by=OPERATOR)
    for name in ("ada", "bob"):
        create_user(service, f"{name}@example.com", name, PASSWORD)
    before = len(audit(service))
    changes = ({"role": "admin"}, {"groups": ["staff"]}, {})
    rows = [
        (name, {"email": f"{name}@example.com"} | row)
        for name, row in zip(("ada", "bob", "cy"), changes, strict=True)
    ]
    options = ImportOptions("update", False, OPERATOR, report=print, progress=lambda *_: None)
    service.transfer._replace(batch=batch).import_rows(rows, options)
    made = [(row.action, row.email) for row in audit(service)[before:]]
    assert made == [
        ("import-update", "ada@example.com"),
        ("group-add", "bob@example.com"),
        ("import", "cy@example.com"),
    ]


def test_an_identity_keeps_what_a_later_row_does_not_say(service: Service) -> None:
    options = ImportOptions("update", False, OPERATOR, report=print, progress=lambda *_: None)

    def stored_after(**identity: str) -> list[tuple[Any, ...]]:
        row = {"email": "ada@example.com", "identities": [{"provider": "google", **identity}]}
        service.transfer.import_rows([("row", row)], options)
        return query(service, "SELECT issuer, subject, email, linked_at FROM identities")

    linked = {"email": "ada@gmail.example", "linked_at": "2026-11-20T08:22:19.123Z"}
    first = [(ISSUER, "7", *linked.values())]
    assert stored_after(issuer=ISSUER, subject="7", **linked) == first
    assert stored_after(subject="7") == first
    assert stored_after(issuer=OTHER_ISSUER, subject="7") == [(OTHER_ISSUER, "7", None, None)]
    assert stored_after(issuer=OTHER_ISSUER, subject="7", **linked) == [(OTHER_ISSUER, "7", *linked.values())]
    assert stored_after(subject="8") == [("", "8", None, None)]
    changes = [row.details for row in audit(service) if row.action == "import-update"]
    assert changes == [{"linked": ["google"], "password": False}] * 3


def test_an_export_has_an_identity_in_two_columns_if_they_hold_all_of_it(service: Service) -> None:
    known = {"provider": "oauth", "issuer": ISSUER, "email": None, "linked_at": None}
    given = [
        known | {"subject": "1"},
        known | {"subject": "2", "email": "ada@id.example"},
        known | {"subject": "3", "linked_at": "2026-01-02T03:04:05.000Z"},
        known | {"subject": "4", "provider": "google", "issuer": ""},
    ]
    for identity in given:
        user = create_user(service, f"u{identity['subject']}@example.com", "U", None)
        with service.store.write() as tx:
            tx.add_identities([Identity(user_id=user.id, **identity)])
    exported = list(service.transfer.export_rows(with_hashes=False))
    columns = [(row["oauth_id"], row["oauth_issuer"]) for row in exported]
    assert columns == [*((subject, ISSUER) for subject in "123"), (None, None)]
    assert [row["identities"] for row in exported] == [
        None,
        [given[1]],
        [given[2]],
        [given[3] | {"issuer": None}],
    ]


def test_an_id_that_no_provider_is_named_for_yet_is_taken(service: Service) -> None:
    """A daemon binds it to the provider of the configuration, which may be that of the row."""
    user = create_user(service, "ada@example.com", "Ada", PASSWORD)
    link(service, user.id, "7", "", provider="google")
    problems: list[RowProblem] = []
    options = ImportOptions("update", False, OPERATOR, problems.append, progress=lambda *_: None)
    identity = {"provider": "google", "subject": "7", "issuer": ISSUER}
    row = {"email": "eve@example.com", "identities": [identity]}
    with pytest.raises(BrokenRows):
        service.transfer.import_rows([("row", row)], options)
    assert problems == [RowProblem("row", "7 of google is taken by ada@example.com")]


def test_an_address_that_its_user_gave_up_is_taken(service: Service) -> None:
    user = create_user(service, "ada@example.com", "Ada", PASSWORD)
    with service.store.write() as tx:
        tx.reserve(user.id, "former@example.com", "2999-01-01T00:00:00.000Z")
    problems: list[RowProblem] = []
    options = ImportOptions("update", False, OPERATOR, problems.append, progress=lambda *_: None)
    with pytest.raises(BrokenRows) as refused:
        service.transfer.import_rows([("row", {"email": "former@example.com"})], options)
    assert problems == [RowProblem("row", "former@example.com is reserved for another account")]
    assert refused.value.hint == "wait: an address that its user gave up stays reserved for seven days"


def test_an_update_that_activates_or_deactivates_ends_what_the_account_waits_for(service: Service) -> None:
    leaving = create_user(service, "ada@example.com", "Ada", PASSWORD)
    bob = create_user(service, "bob@example.com", "Bob", None)
    open_session(service, bob)
    list(service.invitations.invite_without_password(timedelta(days=7), by=OPERATOR))
    with service.store.write() as tx:
        tx.change_user(leaving.id, active=False, delete_at="2999-01-01T00:00:00.000Z")
    waits_for = "SELECT active, delete_at IS NULL, invited_at IS NULL FROM users ORDER BY id"
    assert query(service, waits_for) == [(0, 0, 1), (1, 1, 0)]
    options = ImportOptions("update", False, OPERATOR, report=print, progress=lambda *_: None)
    states = (("ada", True), ("bob", False))
    rows = [(name, {"email": f"{name}@example.com", "active": active}) for name, active in states]
    assert service.transfer.import_rows(rows, options).updated == 2
    assert query(service, waits_for) == [(1, 1, 1), (0, 1, 1)]
    assert query(service, "SELECT count(*) FROM auth_tokens") == [(0,)]
    assert query(service, "SELECT kind, state FROM outbox") == [("invitation", "dropped")]


def test_a_confirmation_in_the_file_activates_no_account_that_was_deactivated(
    service: Service, clock: FakeClock
) -> None:
    create_user(service, "ada@example.com", "Ada", PASSWORD, active=False)
    options = ImportOptions("update", False, OPERATOR, report=print, progress=lambda *_: None)

    def confirmed() -> Imported:
        return service.transfer.import_rows(
            [("row", {"email": "ada@example.com", "confirmed": True})], options
        )

    assert confirmed().updated == 1
    known = query(service, "SELECT active, email_proven_at, updated_at FROM users")
    assert (known[0][0], known[0][1]) == (0, known[0][2])
    clock.move(days=1)
    assert confirmed().unchanged == 1  # it was proven once
    assert query(service, "SELECT active, email_proven_at, updated_at FROM users") == known


@pytest.mark.parametrize("is_new", [True, False])
def test_a_password_in_the_file_leaves_nothing_to_accept(service: Service, is_new: bool) -> None:
    if is_new:
        service.invitations.invite([guest("bob@example.com")], timedelta(days=7), by=OPERATOR)
    else:
        create_user(service, "bob@example.com", "Bob", None)
        list(service.invitations.invite_without_password(timedelta(days=7), by=OPERATOR))
    options = ImportOptions("update", False, OPERATOR, report=print, progress=lambda *_: None)
    row = {"email": "bob@example.com", "password_hash": HASH}
    assert service.transfer.import_rows([("row", row)], options).updated == 1
    assert service.invitations.waiting() == []
    assert query(service, "SELECT active FROM users") == [(1,)]
    assert query(service, "SELECT state FROM outbox") == [("dropped",)]


def test_a_registration_that_an_import_puts_into_a_group_loses_its_password(service: Service) -> None:
    """Whoever made it may not be the person of the row."""
    service.registration.register("eve@example.com", "Eve", PASSWORD, by=OPERATOR)
    service.groups.create("staff", by=OPERATOR)
    options = ImportOptions("update", False, OPERATOR, report=print, progress=lambda *_: None)
    for groups, has_password in (([], True), (["staff"], False)):
        row = {"email": "eve@example.com", "groups": groups}
        service.transfer.import_rows([("row", row)], options)
        assert query(service, "SELECT password_hash <> '!' FROM users") == [(has_password,)]


def test_an_import_invites_no_account_that_its_file_makes_inactive_or_opens(service: Service) -> None:
    states: dict[str, dict[str, Any]] = {
        "ada": {},
        "bob": {"active": False},
        "cy": {
            "confirmed": False,
            "created_at": "2020-01-01",
            "name": "Cy",
        },  # the next cleanup would remove it
        "dan": {"password_hash": HASH},
        "eve": {"oauth_id": "7"},
    }
    rows = [(name, {"email": f"{name}@example.com"} | state) for name, state in states.items()]
    options = ImportOptions(
        "fail", False, OPERATOR, report=print, progress=lambda *_: None, invite=timedelta(days=7)
    )
    done = service.transfer.import_rows(rows, options)
    assert (done.invited, done.overdue) == (2, 0)
    invited = "SELECT email, invited_nameless FROM users WHERE invited_at IS NOT NULL ORDER BY id"
    assert query(service, invited) == [("ada@example.com", 1), ("cy@example.com", 0)]


@pytest.mark.parametrize("batch", [1, 400])
def test_a_repeated_address_is_taken_by_an_earlier_row_however_many_stand_between(
    service: Service, batch: int
) -> None:
    problems: list[RowProblem] = []
    options = ImportOptions("fail", False, OPERATOR, problems.append, progress=lambda *_: None)
    rows = [(f"row {n}", {"email": f"{name}@example.com"}) for n, name in enumerate(("ada", "bob", "ada"))]
    with pytest.raises(BrokenRows, match="1 row with an address or provider id that is taken"):
        service.transfer._replace(batch=batch).import_rows(rows, options)
    assert problems == [RowProblem("row 2", "ada@example.com is taken by an earlier row")]


@pytest.mark.parametrize("batch", [1, 400])
def test_an_account_that_is_skipped_needs_no_free_id_at_a_provider(service: Service, batch: int) -> None:
    options = ImportOptions("skip", False, OPERATOR, report=print, progress=lambda *_: None)
    rows = [
        ("row", {"email": f"{name}@example.com", "oauth_id": oauth_id})
        for name, oauth_id in ("a1", "b2", "a2", "c3")
    ]
    done = service.transfer._replace(batch=batch).import_rows(rows, options)
    assert (done.created, done.skipped) == (3, 1)
    assert query(service, "SELECT subject FROM identities ORDER BY user_id") == [("1",), ("2",), ("3",)]


@pytest.mark.parametrize("count", [1, 2])
def test_a_dry_run_counts_each_password_as_a_change(service: Service, count: int) -> None:
    """Also of an account without one, and the same one again."""
    with service.store.write() as tx:
        tx.add_users([Newcomer("ada@example.com", "Ada")])
    rows = [("row", {"email": "ada@example.com", "password": PASSWORD})] * count
    before, outcomes = everything(service), list[Imported]()
    for dry_run in (True, False):
        assert everything(service) == before
        options = ImportOptions("update", dry_run, OPERATOR, report=print, progress=lambda *_: None)
        outcomes.append(service.transfer.import_rows(rows, options))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0].updated == count


def test_an_update_counts_the_hashes_of_other_systems_that_it_stores(service: Service) -> None:
    create_user(service, "ada@example.com", "Ada", PASSWORD)
    options = ImportOptions("update", False, OPERATOR, report=print, progress=lambda *_: None)
    row = {"email": "ada@example.com", "password_hash": f"pbkdf2_sha256$1000$salt${'A' * 43}="}
    for stored in ({"PBKDF2": 1}, {}):  # the second time nothing changes
        assert service.transfer.import_rows([("row", row)], options).foreign_hashes == stored


def test_ids_of_many_accounts_take_little_memory() -> None:
    tracemalloc.start()
    ids = Ids()
    for number in (*range(0, 200_000, 2), 10**17):
        ids.add(number)
    taken = tracemalloc.take_snapshot()
    tracemalloc.stop()
    # Not what threads of earlier tests take meanwhile.
    taken = taken.filter_traces([tracemalloc.Filter(True, writing.__file__)])
    assert 10_000 < sum(trace.size for trace in taken.traces) < 100_000
    assert all(number in ids for number in (0, 2, 199_998, 10**17))
    assert not any(number in ids for number in (1, 199_999, 200_000, 10**17 + 1))


# --- one row ---


def test_a_document_and_a_first_line_that_are_too_long_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ((where, problem),) = jsonl_rows(io.StringIO("x" * (LONGEST_LINE + 1)))
    assert (where, str(problem)) == ("line 1", "longer than 1048576 characters")
    monkeypatch.setattr(rows_of_files, "LONGEST_DOCUMENT", LONGEST_LINE)
    assert list(json_rows(io.StringIO("[]".ljust(LONGEST_LINE)))) == []
    with pytest.raises(Invalid, match="more than 1 MiB, which is too much for one JSON document"):
        list(json_rows(io.StringIO("[]".ljust(LONGEST_LINE + 1))))


def test_a_header_may_have_blanks_and_names_each_column_once_in_any_case() -> None:
    columns, rows = csv_rows(io.StringIO("email, Name \na@example.com,Ada\n"))
    assert columns == ["email", "Name"]
    assert list(rows) == [("line 2", {"email": "a@example.com", "Name": "Ada"})]
    with pytest.raises(Invalid, match="line 1: the column name stands twice"):
        csv_rows(io.StringIO("name,NAME\n"))


SETTINGS = Settings(database=Path("users.db"), base_url="http://127.0.0.1")


def test_a_row_says_yes_and_no_in_three_ways() -> None:
    for truth, words in ((True, ("true", "Yes ", "1", 1, True)), (False, ("FALSE", "no", "0", 0, False))):
        for word in words:
            assert checked(SETTINGS, {"email": "a@example.com", "active": word})["active"] is truth, word


def test_blank_text_counts_as_left_out_but_for_a_password() -> None:
    row = {"email": "a@example.com", "name": " ", "role": "", "groups": None}
    assert checked(SETTINGS, row) == {"email": "a@example.com"}
    with pytest.raises(Invalid):
        checked(SETTINGS, row | {"password": " "})


def test_what_a_list_prints_beside_the_columns_is_left_out() -> None:
    row = {"email": "a@example.com", "id": 7, "updated_at": "2026-01-01"}
    assert checked(SETTINGS, row) == {"email": "a@example.com"}


@pytest.mark.parametrize("name", ["password", "password_hash"])
@pytest.mark.parametrize("secret", [1234567890123, "1234567890123\x00", "1234567890123\ud800"])
def test_the_problem_of_a_password_does_not_repeat_it(name: str, secret: object) -> None:
    with pytest.raises(Invalid) as refused:
        checked(SETTINGS, {"email": "a@example.com", name: secret})
    assert name in refused.value.in_full.casefold()
    assert "123" not in refused.value.in_full


def test_an_id_at_a_provider_has_at_most_255_characters() -> None:
    assert checked(SETTINGS, {"email": "a@example.com", "oauth_id": "7" * 255})["identities"]
    with pytest.raises(Invalid, match="oauth_id has more than 255 characters"):
        checked(SETTINGS, {"email": "a@example.com", "oauth_id": "7" * 256})
