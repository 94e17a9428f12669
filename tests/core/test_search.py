"""Searched and sorted lists of users."""
# ruff: noqa: RUF001 - letters that look alike

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import postgres
from support.commands import OPERATOR, create_user

from usersctl.folding import folded
from usersctl.models import Newcomer, UserFilter
from usersctl.service import Service
from usersctl.store.backup import check
from usersctl.store.conninfo import Conninfo
from usersctl.store.opening import open_store

SAME_SERVICE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
PEOPLE = {
    "muller@example.com": "Jürgen Müller",
    "a@example.com": "Anna-Lena MÜLLER",
    "ola@xn--degrd-ora3k.no": "Ola Ødegård",
    "lukasz@example.pl": "Łukasz Żółć",
    "isparta@example.com": "İsmail Işık",
    "sisyphos@example.gr": "Σίσυφος",
    "tanaka@example.jp": "田中 太郎",
    "kim@example.kr": "김정은",
    "muhammad@example.com": "مُحَمَّد",
    "emoji@example.com": "👩\u200d💻 Zoë",
    "z@example.com": "Zorn",
    "o@example.com": "O’Brien",
    "percent@example.com": '100% a_b \\ [x]*? \'; -- "q" NEAR(',
    "axb@example.com": "100 axb",
}


@pytest.fixture
def people(service: Service) -> None:
    with service.store.write() as tx:
        for email, name in PEOPLE.items():
            tx.add_user(Newcomer(email, name))


def found(service: Service, search: str) -> list[str]:
    page = service.accounts.page(UserFilter(search=search), limit=100)
    assert page.total == len(page.users)
    return [user.name for user in page.users]


@pytest.mark.parametrize(
    ("search", "name"),
    [
        ("ødegård", "Ola Ødegård"),
        ("ODEGARD", "Ola Ødegård"),
        ("degård", "Ola Ødegård"),
        ("ødegård.no", "Ola Ødegård"),
        ("ola@Ødegård.NO", "Ola Ødegård"),
        ("xn--degrd-ora3k", "Ola Ødegård"),
        ("OLA@XN--DEGRD-ORA3K.NO", "Ola Ødegård"),
        ("lukasz zolc", "Łukasz Żółć"),
        ("ŻÓŁĆ ŁUKASZ", "Łukasz Żółć"),
        ("ismail ISIK", "İsmail Işık"),
        ("ΣΙΣΥΦΟΣ", "Σίσυφος"),
        ("太郎 田中", "田中 太郎"),
        ("김정", "김정은"),
        ("정", "김정은"),
        ("محمد", "مُحَمَّد"),
        ("zoe 💻", "👩\u200d💻 Zoë"),
        ("o'brien", "O’Brien"),
        ("Müller, Jürgen", "Jürgen Müller"),
        ("muller@example.com jur", "Jürgen Müller"),
        ("Ｚｏｒｎ", "Zorn"),
        ("100%", '100% a_b \\ [x]*? \'; -- "q" NEAR('),
        ("a_b", '100% a_b \\ [x]*? \'; -- "q" NEAR('),
        ('"q"', '100% a_b \\ [x]*? \'; -- "q" NEAR('),
        ("NEAR(", '100% a_b \\ [x]*? \'; -- "q" NEAR('),
        ("'; -- \\ [x]*?", '100% a_b \\ [x]*? \'; -- "q" NEAR('),
    ],
)
@pytest.mark.usefixtures("people")
def test_a_search_ignores_case_marks_width_and_the_order_of_words(
    service: Service, search: str, name: str
) -> None:
    assert found(service, search) == [name]


@pytest.mark.usefixtures("people")
def test_every_word_of_a_search_has_to_occur(service: Service) -> None:
    assert found(service, "müller") == ["Anna-Lena MÜLLER", "Jürgen Müller"]
    assert found(service, "müller jürgen") == ["Jürgen Müller"]
    assert found(service, "müller ola") == []
    assert found(service, "example zorn") == ["Zorn"]
    assert found(service, "AND zorn") == []
    assert found(service, "zorn NOT ola") == []
    assert found(service, "zorn\0example") == ["Zorn"]


@pytest.mark.parametrize(
    "search", ["\u0301", "\u200b \ufe0f", "*", "NEAR(a b)", "^zorn", "zor*", "name:zorn", "%%", '""']
)
@pytest.mark.usefixtures("people")
def test_a_search_without_a_word_that_occurs_lists_nobody(service: Service, search: str) -> None:
    listed = found(service, search)
    assert listed == ([PEOPLE["percent@example.com"]] if search == "*" else [])


@pytest.mark.parametrize("search", ["%" * 200, "ab " * 66, "\ufdfa" * 200, "x" * 200, "'\"" * 100, "𝔸" * 200])
@pytest.mark.usefixtures("people")
def test_a_long_or_odd_search_is_no_error(service: Service, search: str) -> None:
    assert found(service, search) == []


@SAME_SERVICE
@given(st.data())
@pytest.mark.usefixtures("people")
def test_every_part_of_a_word_of_a_user_in_any_order_case_and_form_finds_the_user(
    service: Service, data: st.DataObject
) -> None:
    email, name = data.draw(st.sampled_from(sorted(PEOPLE.items())))
    words = data.draw(st.permutations([*name.split(), email]))
    parts = []
    for word in words:
        start = data.draw(st.integers(0, len(word) - 1))
        parts.append(word[start : data.draw(st.integers(start + 1, len(word)))])
    write = data.draw(st.sampled_from([str, str.upper, str.lower, str.title, folded]))
    search = write(" ".join(parts))
    assert not folded(search) or name in found(service, search)


@SAME_SERVICE
@given(search=st.text("ab%_\\'x1[*? ", max_size=4) | st.text(st.characters(codec="utf-8"), max_size=6))
@pytest.mark.usefixtures("people")
def test_a_search_finds_exactly_the_users_whose_fields_hold_each_word(service: Service, search: str) -> None:
    words = [word.strip(",;<>") or word for word in folded(search).split()]
    expected = {
        name for email, name in PEOPLE.items() if all(word in folded(name) or word in email for word in words)
    }
    idn = "ola@odegard.no"
    if all(
        word in folded("Ola Ødegård") or word in idn or word in "ola@xn--degrd-ora3k.no" for word in words
    ):
        expected.add("Ola Ødegård")
    if search.strip() and "\0" not in search:
        assert set(found(service, search)) == (expected if words else set())


def test_a_change_of_name_or_address_changes_what_finds_the_user(service: Service) -> None:
    user = create_user(service, "ada@example.com", "Ada Byron", None, by=OPERATOR)
    service.accounts.update(user.id, name="Ada Lovelace", by=OPERATOR)
    assert (found(service, "byron"), found(service, "lovelace")) == ([], ["Ada Lovelace"])
    service.accounts.update(user.id, email="countess@exämple.com", by=OPERATOR)
    assert (found(service, "ada@"), found(service, "exämple.com")) == ([], ["Ada Lovelace"])
    service.accounts.delete([user.id], by=OPERATOR)
    assert found(service, "lovelace") == []


def test_lists_sort_letters_with_marks_beside_those_without(service: Service) -> None:
    names = [
        "Zoe",
        "Ärger",
        "apfel",
        "Ödland",
        "Ofen",
        "Łuk",
        "Lab",
        "Mut",
        "Ørsted",
        "O",
        "ångström",
        "Zoë",
        "zoe",
    ]
    for number, name in enumerate(names):
        create_user(service, f"u{number}@example.com", name, None, by=OPERATOR)
    listed = [user.name for user in service.accounts.page(UserFilter(), limit=100).users]
    assert listed == [
        *(
            "ångström",
            "apfel",
            "Ärger",
            "Lab",
            "Łuk",
            "Mut",
            "O",
            "Ödland",
            "Ofen",
            "Ørsted",
            "Zoe",
            "Zoë",
            "zoe",
        ),
    ]
    backwards = service.accounts.page(UserFilter(descending=True), limit=100).users
    assert [user.name for user in backwards] == listed[::-1]


def test_pages_go_on_behind_a_user_whose_name_others_have_in_another_form(service: Service) -> None:
    for number, name in enumerate(["Zoe", "Zoë", "zoe", "ZOE", "Zoe", "Zoë"] * 3):
        create_user(service, f"u{number}@example.com", name, None, by=OPERATOR)
    everyone = service.accounts.page(UserFilter(), limit=100).users
    walked, after = [], None
    for page in range(1, 10):
        listed = service.accounts.page(UserFilter(), page=page, limit=2, after=after).users
        walked += listed
        after = listed[-1].id
    assert walked == everyone


@pytest.mark.sqlite  # the index of a backup, which is a file
def test_a_damaged_index_of_the_search_is_a_problem_of_a_backup(service: Service, tmp_path: Path) -> None:
    create_user(service, "ada@example.com", "Ada", None, by=OPERATOR)
    backup = tmp_path / "backup.db"
    service.store.copy(backup)
    assert check(backup, read_only=False).problems == []
    with closing(sqlite3.connect(backup)) as database:
        database.execute("INSERT INTO user_search (rowid, search_text) VALUES (7, 'nobody')")
        database.commit()
    (problem,) = check(backup, read_only=False).problems
    assert problem == ("search", "user_search does not hold what the users hold")


@pytest.mark.sqlite  # an older file
def test_an_upgrade_from_a_version_with_the_index_makes_it_again(
    tmp_path: Path, make_service: Callable[..., Service]
) -> None:
    path = tmp_path / "users.db"
    store = open_store(path, create=True)
    with store.write() as tx:
        tx.add_user(Newcomer("ada@example.com", "Ada Löve"))
    store.close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 2")
    service = make_service(database=path)
    assert found(service, "LOVE ada") == ["Ada Löve"]
    assert check(path, read_only=False).problems == []


def test_a_claimed_address_finds_its_user_until_the_claim_ends(service: Service) -> None:
    user = create_user(service, "ada@example.com", "Ada", None, by=OPERATOR)
    with service.store.write() as tx:
        tx.change_user(
            user.id, claimed_email="countess@xn--exmple-cua.com", claim_expires_at="2099-01-01T00:00:00.000Z"
        )
    assert found(service, "countess@exämple.com") == found(service, "ada@example") == ["Ada"]
    with service.store.write() as tx:
        tx.clear_claim(user.id)
    assert (found(service, "countess"), found(service, "ada@example")) == ([], ["Ada"])


def test_a_server_looks_for_the_words_that_few_users_hold(
    postgres_database: Callable[[], Conninfo], monkeypatch: pytest.MonkeyPatch
) -> None:
    from usersctl.store.postgres.driver import Connection

    asked: list[tuple[str, ...]] = []
    execute = Connection.execute

    def noted(self: Connection, statement: str, values: Any = ()) -> Any:
        if statement.startswith("SELECT id FROM users WHERE substr(search_text") and not asked:
            asked.append(values[:-1])
        return execute(self, statement, values)

    monkeypatch.setattr(Connection, "execute", noted)
    with closing(open_store(postgres_database())) as store:
        with store.write() as tx:
            for n in range(300):
                tx.add_user(Newcomer(f"user{n:03}@example.com", f"Number {n:03} {'Zoe' * (n % 3 == 0)}"))
        with store.read() as tx:
            for search, total, words in (
                ("number 041 user", 1, ["041"]),
                ("zoe number 123", 1, ["zoe", "123"]),
                ("number user", 300, ["number", "user"]),
                ("number", 300, ["number"]),
                ("number nosuchname", 0, ["nosuchname"]),
            ):
                assert tx.page(UserFilter(search=search), limit=400).total == total
                assert asked.pop() == tuple(f"%{word}%" for word in words)


@pytest.mark.slow
def test_a_server_finds_a_first_name_that_many_share_without_reading_all_users(
    postgres_database: Callable[[], Conninfo],
) -> None:
    """In the order of names, all others stand before them."""
    database = postgres_database()
    with postgres.opened(database) as connection:
        connection.run(
            "INSERT INTO users (email, name, name_folded, active, password_hash, created_at, updated_at)"
            " SELECT 'u' || n || '@example.com', x || n, x || n, 1, '', '', '' FROM generate_series(1, 60000) AS n,"
            " LATERAL (SELECT CASE WHEN n % 10 = 0 THEN 'zoe ' ELSE 'person ' END) AS names (x)"
        )
        connection.run("VACUUM ANALYZE users")
    read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'users'"
    before = 0
    with closing(open_store(database)) as store, store.read() as tx:
        for search, names in (
            ("zoe", ["zoe 10", "zoe 100", "zoe 1000"]),
            ("zoe 3996", ["zoe 39960"]),
            ("pers", ["person 1", "person 10001", "person 10002"]),
            ("pers 999", ["person 10999", "person 11999", "person 12999"]),
        ):
            assert [user.name for user in tx.page(UserFilter(search=search), limit=3).users] == names
            ((rows,),) = tx._run(read)
            assert rows - before < 15_000
            before = rows
