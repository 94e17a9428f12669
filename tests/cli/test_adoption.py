"""import --from: accounts of other applications, from files in the form that those write."""

import shlex
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from support.commands import HASH, PASSWORD, Command
from support.documentation import at_a_terminal, blocks, same, section, steps
from support.foreign_databases import by_email, database, digest

from usersctl.errors import Invalid
from usersctl.transfer.foreign import SourceKind, open_source

# The schema of the specification's service before it had identity providers.
OLDER = """
    CREATE TABLE users (
        id INTEGER PRIMARY KEY AUTOINCREMENT, email TEXT NOT NULL, name TEXT, password TEXT NOT NULL, role TEXT,
        active BOOLEAN, {more} created_at DATETIME DEFAULT CURRENT_TIMESTAMP, updated_at DATETIME, last_login_at DATETIME
    );
    CREATE TABLE personal_access_tokens (id INTEGER PRIMARY KEY, user_id INTEGER, token TEXT)
"""


def person(email: str, **more: Any) -> dict[str, Any]:
    return {
        "email": email,
        "name": email.partition("@")[0].title(),
        "password": HASH,
        "role": "user",
        "active": 1,
    } | more


# --- an older deployment ---


def test_an_older_deployment_is_imported_with_its_passwords(usersctl: Command) -> None:
    cost_10 = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(10)).decode()
    old = database(
        usersctl.folder / "old.db",
        OLDER.format(more="google_id TEXT, picture TEXT,"),
        [
            person("Ada@Example.com", role="admin", password=cost_10, google_id="1001", created_at="2021-03-04 05:06:07"),
            person("grace@example.com", role="editor", active="true", picture="https://example.com/g.png"),
            person("eve@example.com", active=0, picture="eve.png", last_login_at="2022-01-01 00:00:00"),
            person("bob@example.com", password="5f4dcc3b5aa765d61d8327deb882cf99", active=None),
        ],
    )  # fmt: skip
    usersctl.configure("[passwordHashing]\nrounds = 11\n")
    before = digest(old)

    tried = usersctl.ok("import", "--from", f"sqlite:{old}", "--dry-run")
    assert dict(line.split("\t")[:2] for line in tried.stdout.splitlines()[1:-1]) == {
        "email": "email",
        "name": "name",
        "role": "role",
        "active": "active",
        "password_hash": "password",
        "created_at": "created_at",
        "last_login_at": "last_login_at",
        "oauth_id": "google_id",
        "profile_picture": "picture",
    }
    assert tried.stdout.splitlines()[-1] == "Would import: 4 created, 0 updated, 0 skipped"
    assert usersctl.is_unused

    done = usersctl.ok("import", "--from", f"sqlite:{old}", "--json")
    assert done.json["created"] == 4
    assert done.json["mapping"]["oauth_id"] == ["google_id"]
    assert done.json["notes"] == [
        "the role 'editor' of 1 row becomes user; for another role: --map-role editor=admin",
        "the password hashes of 1 row cannot be checked here (of an unknown kind): no password will match them",
        "times without an offset count as UTC: created_at, last_login_at",
        "pictures left out because they are not web addresses: 1",
        "columns left out: updated_at",
    ]
    assert digest(old) == before
    users = by_email(usersctl)
    ada = users["ada@example.com"]
    assert (ada["role"], ada["active"], ada["oauth_id"]) == ("admin", True, "1001")
    assert ada["created_at"] == "2021-03-04T05:06:07.000Z"
    assert ada["password_hash"] == cost_10
    assert (users["grace@example.com"]["role"], users["grace@example.com"]["active"]) == ("user", True)
    assert users["grace@example.com"]["profile_picture"] == "https://example.com/g.png"
    assert (users["eve@example.com"]["active"], users["eve@example.com"]["profile_picture"]) == (False, None)
    assert users["eve@example.com"]["confirmed"] is None  # so no email activates it
    assert users["bob@example.com"]["active"] is False
    assert users["bob@example.com"]["password_hash"] is None
    # The old password signs in, which renews its hash.
    assert usersctl.can_log_in("ada@example.com")
    assert by_email(usersctl)["ada@example.com"]["password_hash"] != cost_10


def test_addresses_that_differ_only_in_case_are_named_by_their_rows(usersctl: Command) -> None:
    old = database(
        usersctl.folder / "old.db",
        OLDER.format(more=""),
        [person("ada@example.com"), person("grace@example.com"), person("ADA@EXAMPLE.COM")],
    )
    done = usersctl("import", "--from", f"sqlite:{old}")
    assert done.code == 4
    assert "row 3 (id 3): ada@example.com is taken by an earlier row" in done.stderr
    assert usersctl.emails() == []
    usersctl.ok("import", "--from", f"sqlite:{old}", "--on-conflict", "skip")
    assert usersctl.emails() == ["ada@example.com", "grace@example.com"]


def test_every_broken_row_is_named_and_nothing_is_written(usersctl: Command) -> None:
    old = database(
        usersctl.folder / "old.db",
        OLDER.format(more=""),
        [
            person("ada@example.com"),
            person("nobody"),
            person("eve@example.com", active="perhaps"),
            person("bob@example.com", created_at="yesterday"),
            person("alan@example.com", name="\x1b[2J"),
        ],
    )
    done = usersctl("import", "--from", f"sqlite:{old}")
    assert done.code == 2
    assert done.stderr.splitlines() == [
        "row 2 (id 2): Invalid email format: 'nobody'",
        "row 3 (id 3): active: 'perhaps' is neither true nor false",
        "row 4 (id 4): created_at: 'yesterday' is not a time",
        r"row 5 (id 5): name is not valid text: it holds control characters, or is not UTF-8: '\x1b[2J'",
        "usersctl: 4 rows cannot be imported; nothing was imported",
    ]
    assert usersctl.emails() == []


def test_the_mapping_can_be_overridden(usersctl: Command) -> None:
    old = database(
        usersctl.folder / "old.db",
        "CREATE TABLE Members (Nr INTEGER, Kontakt TEXT, Vor TEXT, Nach TEXT, Kennwort TEXT, is_admin INT, Rang TEXT)",
        [
            {"Nr": 7, "Kontakt": "ada@example.com", "Vor": "Ada", "Nach": "Lovelace", "Kennwort": PASSWORD, "Rang": "chief"},
            {"Nr": 8, "Kontakt": "eve@example.com", "Vor": "Eve", "Nach": None, "Kennwort": None, "Rang": "admin"},
        ],
        table="Members",
    )  # fmt: skip
    source = ("import", "--from", f"sqlite:{old}")
    usersctl.ok(
        *source, "--map", "email=kontakt", "--map=name=Vor+Nach", "--map", "password=Kennwort", "--map", "role=Rang",
        "--map-role", "chief=admin", "--map-role", "admin=user", "--table", "members",
    )  # fmt: skip
    users = by_email(usersctl)
    assert [(row["name"], row["role"]) for row in users.values()] == [
        ("Ada Lovelace", "admin"),
        ("Eve", "user"),
    ]
    assert usersctl.can_log_in("ada@example.com")


def test_a_view_leaves_rows_out(usersctl: Command) -> None:
    copy = database(
        usersctl.folder / "copy.db",
        "CREATE TABLE users (id INTEGER PRIMARY KEY, mail TEXT, theme TEXT)",
        [
            {"mail": "ada@example.com", "theme": "dark"},
            {"mail": "nobody", "theme": "dark"},
            {"mail": "robot@example.com", "theme": "robot"},
        ],
    )
    text = section("docs/import.md", "Adopt the accounts of another application")
    (lines,) = (block for block in blocks(text, "sh") if "CREATE VIEW" in block)
    made, imported = lines.splitlines()
    _, _, statement = shlex.split(made)
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute(statement)
    _, *arguments = shlex.split(imported)
    assert usersctl.ok(*arguments, "--json").json["created"] == 1


# --- CSV ---


def test_a_csv_file_with_other_column_names_is_imported(usersctl: Command) -> None:
    (usersctl.folder / "people.csv").write_text(
        "\ufeffUser-ID;E-Mail Address;Display Name;Is Disabled;Last Sign-In At;Encrypted Password\r\n"
        f"1;Ada@example.com;Ada;;1700000000;{{CRYPT}}{HASH}\r\n"
        "2;eve@example.com;Eve;yes;1700000000000;\r\n",
        "utf-8",
    )
    done = usersctl.ok("import", "--from", "csv:people.csv")
    assert done.stdout == "Imported: 2 created, 0 updated, 0 skipped\n"
    users = by_email(usersctl)
    assert [row["active"] for row in users.values()] == [True, False]
    assert {row["last_login_at"] for row in users.values()} == {"2023-11-14T22:13:20.000Z"}
    assert usersctl.can_log_in("ada@example.com")


# --- what is refused ---


@pytest.mark.sqlite  # a file
def test_the_database_itself_is_no_import_source(usersctl: Command) -> None:
    usersctl.add("ada")
    done = usersctl("import", "--from", f"sqlite:{usersctl.database}")
    assert (done.code, "is the database itself" in done.stderr) == (2, True), done


def test_an_invalid_import_source_is_refused(usersctl: Command) -> None:
    (usersctl.folder / "text.csv").write_text("email\n")
    for words, printed in (
        (("--from", "oracle:text.csv"), "kinds are sqlite, pocketbase, django, csv"),
        (("text.csv", "--from", "csv:text.csv"), "Give a FILE, or --from"),
        (("--from", "csv:text.csv", "--map", "mail"), "expected A=B"),
        (
            ("--from", "csv:text.csv", "--map", "email=a", "--map", "email=b"),
            "--map email is given twice: 'a' and 'b'",
        ),
    ):
        done = usersctl("import", *words)
        assert (done.code, printed in done.stderr) == (2, True), done


@pytest.mark.parametrize(
    ("kind", "content", "table", "printed"),
    [
        (SourceKind.SQLITE, b"email\nada@example.com\n", None, "not a SQLite database"),
        (SourceKind.SQLITE, b"SQLite format 3\0" + b"x" * 2000, None, "cannot be read"),
        (SourceKind.POCKETBASE, None, None, "not a database of PocketBase"),
        (
            SourceKind.SQLITE,
            "CREATE TABLE orders (id); CREATE TABLE goods (id)",
            None,
            "there are goods, orders",
        ),
        (SourceKind.SQLITE, None, "members", "no table 'members'"),
        (SourceKind.DJANGO, b"{}", None, "line 1 is not an object"),
        (SourceKind.DJANGO, b"[", None, "not JSON"),
        (SourceKind.DJANGO, b"[1]", None, "entry 1 is not an object"),
        (SourceKind.DJANGO, b'[{"model": "shop.order", "pk": 1, "fields": {}}]', None, "--table"),
        (SourceKind.DJANGO, b'[{"model": "shop.order", "pk": 1, "fields": {}}]', "auth.user", "no entries"),
        (SourceKind.CSV, b"a,A\n", None, "stands twice"),
        (SourceKind.CSV, b'"', None, "not CSV"),
    ],
)
def test_a_file_of_another_kind_is_refused_without_a_bug(
    tmp_path: Path, kind: SourceKind, content: bytes | str | None, table: str | None, printed: str
) -> None:
    file = tmp_path / "file"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        database(file, content or OLDER.format(more=""), [])
    with pytest.raises(Invalid) as refused, open_source(kind, file, table) as source:
        list(source.rows)
    assert printed.lower() in f"{refused.value} {refused.value.hint}".lower()


def test_an_import_source_is_read_in_one_snapshot(tmp_path: Path) -> None:
    path = database(tmp_path / "old.db", OLDER.format(more=""), [person("ada@example.com")])
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA cache_size = 1")
    writer.execute("UPDATE users SET email = 'eve@example.com'")
    writer.execute("CREATE TABLE pad AS SELECT randomblob(99999)")  # more than SQLite keeps in memory
    torn = tmp_path / "torn.db"  # the state after a kill at this moment
    for end in ("", "-journal"):
        shutil.copy(f"{path}{end}", f"{torn}{end}")
    writer.close()
    with pytest.raises(Invalid, match="half-way through a change"), open_source(SourceKind.SQLITE, torn):
        pass
    with open_source(SourceKind.SQLITE, path) as table:
        assert [row["email"] for _, row in table.rows if not isinstance(row, Invalid)] == ["ada@example.com"]


# --- the documentation ---


def test_the_import_page_shows_what_the_commands_print(usersctl: Command) -> None:
    database(
        usersctl.folder / "old.db",
        "CREATE TABLE users (id INTEGER PRIMARY KEY, mail TEXT, full_name TEXT, password TEXT, role TEXT,"
        " active BOOLEAN, google_id TEXT, created_at DATETIME DEFAULT CURRENT_TIMESTAMP, theme TEXT)",
        [
            {"mail": f"{name}@example.com", "password": HASH, "role": role, "active": 1}
            for name, role in (("ada", "admin"), ("grace", "editor"), ("alan", "user"))
        ],
    )
    examples = list(steps(section("docs/import.md", "Adopt the accounts of another application")))
    assert len(examples) == 2
    for line, shown in examples:
        assert same(at_a_terminal(usersctl.folder, line)) == same(shown), line
