"""The rules by which the values of another application become those of an account."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.commands import HASH

from usersctl.config import Settings
from usersctl.errors import Invalid
from usersctl.transfer.adoption import Adoption
from usersctl.transfer.columns import map_columns
from usersctl.transfer.foreign import SourceKind, SourceTable, open_source

SETTINGS = Settings(database=Path("users.db"), base_url="http://127.0.0.1:8080")


def adopted(
    row: dict[str, Any], roles: dict[str, str] | None = None, **columns: str
) -> tuple[Any, list[str]]:
    table = SourceTable("rows", list(row), [("row 1", row)])
    adoption = Adoption(table, map_columns(table.columns, columns, SETTINGS), roles or {})
    ((_, account),) = adoption.rows()
    return account, list(adoption.notes())


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"isAdmin": "t"}, {"role": "admin"}),
        ({"Role": "Admin"}, {"role": "admin"}),
        ({"is_superuser": 1}, {"role": "admin"}),
        ({"admin": "yes"}, {"role": "admin"}),
        ({"role": " "}, {}),
        ({"role": "administrator"}, {"role": "user"}),  # a similar name does not make an admin
        ({"deleted_at": "2024-01-01"}, {"active": False}),
        ({"deleted_at": None}, {"active": True}),
        ({"banned_until": "2999-01-01 00:00:00+00", "deleted_at": ""}, {"active": False}),  # Supabase
        ({"banned_until": "", "deleted_at": ""}, {"active": True}),
        ({"active": 1, "suspended_at": "2024-01-01"}, {"active": False}),
        ({"is_deleted": 0, "disabled_at": "2024-01-01"}, {"active": False}),
        ({"active": None}, {"active": False}),
        ({"emailVerified": "2024-01-01"}, {"confirmed": True}),
        ({"emailVerified": None}, {"confirmed": False}),
        ({"emailVerified": "Verified "}, {"confirmed": True}),
        ({"emailVerified": "on Jan 5, 2024"}, {"confirmed": True}),
        (
            {"emailVerified": "\\N", "name": "\\N", "password": "\\N"},
            {"confirmed": False},
        ),  # COPY of PostgreSQL
        ({"emailVerified": "NULL", "last_login": "NULL"}, {"confirmed": False}),  # phpMyAdmin
        ({"emailVerified": "0000-00-00 00:00:00", "deleted_at": None}, {"confirmed": False}),
        ({"deleted_at": "0000-00-00 00:00:00"}, {"active": True}),
        ({"deleted_at": "\\N"}, {"active": True}),
        ({"active": 1, "banned": 1}, {"active": False}),
        ({"active": 1, "banned": 0, "deleted_at": "2024-01-01"}, {"active": False}),
        ({"active": 0, "banned": 0}, {"active": False}),
        ({"active": 1, "banned": 0, "deleted_at": None}, {"active": True}),
        ({"active": 0, "verified": 0}, {"active": False}),
        ({"active": 1, "verified": 0}, {"confirmed": False}),
        ({"password": HASH.encode()}, {"password_hash": HASH}),
        ({"password": f"bcrypt${HASH}"}, {"password_hash": f"bcrypt${HASH}"}),
        ({"password": "5f4dcc3b5aa765d61d8327deb882cf99"}, {}),
        ({"password": "*"}, {}),
        ({"password": "$2b$31$" + "a" * 53}, {}),
        ({"google_id": 12}, {"oauth_id": "12"}),
        ({"google_id": "12  "}, {"oauth_id": "12"}),  # CHAR of a fixed length
        ({"google_id": 12, "github_id": 13}, {}),  # the provider is not known
        ({"created": 0}, {}),
        ({"created": " "}, {}),
        (
            {"last_sign_in_at": "2024-01-01", "current_sign_in_at": "2024-01-02"},
            {"last_login_at": "2024-01-02T00:00:00.000Z"},
        ),  # Devise
        ({"created": "2024-01-02 10:00:00 UTC"}, {"created_at": "2024-01-02T10:00:00.000Z"}),  # Ruby
        ({"created": "2024-01-02 10:00:00 +0200"}, {"created_at": "2024-01-02T08:00:00.000Z"}),
        ({"created": "20240102100000"}, {"created_at": "2024-01-02T10:00:00.000Z"}),  # MediaWiki
        ({"avatar": "https://example.com/a.png"}, {"profile_picture": "https://example.com/a.png"}),
        ({"givenName": "Ada", "surname": " Lovelace "}, {"name": "Ada Lovelace"}),
        ({"username": "ada", "full name": "Ada"}, {"name": "Ada"}),
        ({"name": {"first": "Ada"}, "role": ["admin"]}, {}),  # JSON
    ],
)
def test_imported_values_are_converted(row: dict[str, Any], expected: dict[str, Any]) -> None:
    account, _ = adopted({"email": "a@example.com"} | row)
    assert account == {"email": "a@example.com"} | expected


def test_yes_and_no_are_written_in_many_ways() -> None:
    written = {
        True: ("1", "1.0", "True", " t ", "yes", "Y", "ON", "active", "enabled", True, 1.0),
        False: ("", "0", "0.0", "False", "f", "no", "n", "off", "inactive", "disabled", "none", "null", 0),
    }
    for truth, words in written.items():
        for word in words:
            account, _ = adopted({"email": "a@example.com", "active": word, "is_admin": word})
            assert (account["active"], account["role"] == "admin") == (truth, truth), word


def test_a_row_that_cannot_be_read_is_named_and_one_without_an_address_is_left_out() -> None:
    broken = Invalid("1 field instead of 2")
    rows = [("row 1", broken), *((f"row {n}", {"email": " "}) for n in range(2, 8))]
    adoption = Adoption(SourceTable("rows", ["email"], rows), {"email": ["email"]}, {})
    assert list(adoption.rows()) == [("row 1", broken)]
    assert list(adoption.notes()) == [
        "6 rows without an email address left out: row 2, row 3, row 4, row 5, row 6, …"
    ]


@pytest.mark.parametrize(
    ("columns", "becomes"),
    [
        (["Active"], {"active": "true or false"}),
        (["banned_at"], {"active": "false where it has a value"}),
        (["active", "banned_at"], {"active": "false where any of them says so"}),
        (["is_admin"], {"role": "admin where it is true"}),
        (["role"], {"role": "admin and user as they are, others by --map-role, else user"}),
    ],
)
def test_the_operator_reads_what_becomes_of_each_column(columns: list[str], becomes: dict[str, str]) -> None:
    columns = ["ID", "email", *columns]
    adoption = Adoption(SourceTable("rows", columns, []), map_columns(columns, {}, SETTINGS), {})
    assert {name: text for name, _, text in adoption.explained()} == {"email": "lower case"} | becomes
    assert list(adoption.notes()) == []  # nothing is left out but the id


def test_at_most_five_unknown_roles_are_named_with_an_option_that_a_shell_takes() -> None:
    roles = ("a", "b", "c", "site editor", "x; rm y", "f")
    rows = [("row", {"email": "a@example.com", "role": role}) for role in roles for _ in range(2)]
    adoption = Adoption(
        SourceTable("rows", ["email", "role"], rows), {"email": ["email"], "role": ["role"]}, {}
    )
    assert all(account["role"] == "user" for _, account in adoption.rows())
    notes = list(adoption.notes())
    assert len(notes) == 6
    assert [note.partition("another role: ")[2] for note in notes[3:]] == [
        "--map-role 'site editor=admin'",
        "--map-role 'x; rm y=admin'",
        "",
    ]
    assert notes[5] == "1 more unknown role becomes user"


def test_a_password_in_clear_is_taken_as_it_is() -> None:
    row = {"email": "a@example.com", "password": " secret  word "}
    assert adopted(row, password="password") == (row, [])  # and it is no hash that cannot be checked


@pytest.mark.parametrize("word", ["pending", "pending2", "step 1 of 2"])
def test_a_word_that_is_not_known_confirms_no_address(word: str) -> None:
    refused, _ = adopted({"email": "a@example.com", "verified": word})
    assert str(refused) == f"verified: {word!r} is neither true nor false"


def test_what_makes_an_account_inactive_can_be_overridden() -> None:
    row = {"email": "a@example.com", "active": 1, "banned": 1, "suspended": 0}
    assert adopted(row, active="active")[0]["active"] is True
    assert adopted(row, active="active+suspended")[0]["active"] is True
    assert adopted(row, active="suspended+banned")[0]["active"] is False


@pytest.mark.parametrize(
    ("stored", "kind"),
    [("$6$salt$hash", "SHA-512 crypt"), ("sha1$salt$hash", "sha1"), ("$y$j9T$salt$hash", "yescrypt")],
)
def test_hashes_that_cannot_be_checked_are_named(stored: str, kind: str) -> None:
    account, notes = adopted({"email": "a@example.com", "password": stored})
    assert account == {"email": "a@example.com"}
    assert notes == [
        f"the password hashes of 1 row cannot be checked here ({kind}): no password will match them"
    ]


@pytest.mark.parametrize("stored", [None, " ", "!", "*LK*", "!$6$salt$hash"])
def test_an_account_without_a_password_needs_no_note(stored: str | None) -> None:
    assert adopted({"email": "a@example.com", "password": stored}) == ({"email": "a@example.com"}, [])


def test_a_hash_that_costs_too_much_is_refused() -> None:
    stored = f"pbkdf2_sha256$5000001$salt${'A' * 43}="
    refused, _ = adopted({"email": "a@example.com", "password": stored})
    assert str(refused).startswith("password_hash would take too long to check: ")


def test_only_a_time_without_an_offset_is_assumed_to_be_utc() -> None:
    notes = ["times without an offset count as UTC: created"]
    for time, expected in (
        ("2024-01-02 10:00:00", notes),
        ("2024-01-02 10:00:00 UTC", []),
        ("1704189600", []),
    ):
        assert adopted({"email": "a@example.com", "created": time})[1] == expected


def test_a_clear_text_password_is_never_printed() -> None:
    account, notes = adopted({"email": "a@example.com", "password": "secret$word$2b$"})
    assert account == {"email": "a@example.com"}
    assert "secret" not in " ".join(notes)


def test_an_id_counts_only_at_the_provider_that_gave_it() -> None:
    github = SETTINGS._replace(oauth_client_id="c", oauth_provider="github")
    google = SETTINGS._replace(oauth_client_id="c", oauth_issuer="https://accounts.google.com")
    columns = ["email", "google_id", "github_id"]
    assert map_columns(columns, {}, github)["oauth_id"] == ["github_id"]
    assert map_columns(columns, {}, google)["oauth_id"] == ["google_id"]
    assert "oauth_id" not in map_columns(columns[:2], {}, github)
    assert map_columns(["email", "sub", "github_id"], {}, google)["oauth_id"] == ["sub"]
    assert "oauth_id" not in map_columns(columns, {"oauth_id": ""}, google)
    for others, there_are in ((["Nr", "Kontakt"], "Nr, Kontakt"), ([], "none")):
        with pytest.raises(Invalid, match="No column looks like") as refused:
            map_columns(others, {}, google)
        assert refused.value.hint == f"say which it is with --map email=COLUMN; there are {there_are}"
    with pytest.raises(Invalid, match="no column 'shoes' there"):
        map_columns(columns, {"name": "shoes"}, google)
    with pytest.raises(Invalid, match="no column 'shoes' here"):
        map_columns(columns, {"shoes": "email"}, google)


def test_columns_are_named_in_any_case() -> None:
    mapping = map_columns(["Kontakt", "Vor", "Nach"], {"email": "kontakt", "name": "vor + NACH"}, SETTINGS)
    assert mapping == {"email": ["Kontakt"], "name": ["Vor", "Nach"]}
    assert map_columns(["E+Mail"], {"email": "e+mail"}, SETTINGS) == {"email": ["E+Mail"]}


def test_passwords_in_clear_and_hashes_may_stand_in_two_columns() -> None:
    mapping = map_columns(["email", "pw", "hash"], {"password": "pw", "password_hash": "hash"}, SETTINGS)
    assert (mapping["password"], mapping["password_hash"]) == (["pw"], ["hash"])


def test_a_login_of_wordpress_is_the_name_where_there_is_no_other() -> None:
    columns = ["user_login", "user_pass", "user_email", "user_registered"]
    assert map_columns(columns, {}, SETTINGS)["name"] == ["user_login"]


@pytest.mark.parametrize(
    "tables",
    [
        ("users (id, email)", "roles_users (user_id, role_id)"),
        ("users (id, email)", "role (id, name)"),
        ("users (id, email)", "role (id, title)", "roles_users (user_id, role_id)"),
        ("users (id, email)", "country (id, name)", "roles_users (user_id, role_id)"),
        ("users (nr, email)", "role (id, name)", "roles_users (user_id, role_id)"),
    ],
)
def test_roles_of_other_tables_are_read_only_where_all_of_them_are_there(
    tmp_path: Path, tables: tuple[str, ...]
) -> None:
    file = tmp_path / "old.db"
    with closing(sqlite3.connect(file)) as old, old:
        for table in tables:
            old.execute(f"CREATE TABLE {table}")
        old.execute("INSERT INTO users VALUES (1, 'a@example.com')")
    with open_source(SourceKind.SQLITE, file) as source:
        assert source.columns[1:] == ["email"]
        assert [row["email"] for _, row in source.rows] == ["a@example.com"]
