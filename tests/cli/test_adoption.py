"""import --from: accounts of other applications, from files in the form that those write."""

import hashlib
import json
import shlex
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from support.commands import HASH, PASSWORD, Command
from support.documentation import at_a_terminal, blocks, same, section, steps
from support.servers import importable, installed

from usersctl.config import Settings
from usersctl.errors import Invalid
from usersctl.transfer.adoption import Adoption
from usersctl.transfer.columns import map_columns
from usersctl.transfer.foreign import SourceKind, SourceTable, open_source

pytestmark = pytest.mark.slow

# The schema of the specification's service before it had identity providers.
OLDER = """
    CREATE TABLE users (
        id INTEGER PRIMARY KEY AUTOINCREMENT, email TEXT NOT NULL, name TEXT, password TEXT NOT NULL, role TEXT,
        active BOOLEAN, {more} created_at DATETIME DEFAULT CURRENT_TIMESTAMP, updated_at DATETIME, last_login_at DATETIME
    );
    CREATE TABLE personal_access_tokens (id INTEGER PRIMARY KEY, user_id INTEGER, token TEXT)
"""


def database(path: Path, script: str, rows: list[dict[str, Any]], table: str = "users") -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    for row in rows:
        names, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
        connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", row)  # noqa: S608 - our own names
    connection.commit()
    connection.close()
    return path


def digest(path: Path) -> dict[str, str]:
    """All files whose names begin with its name."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.parent.glob(f"{path.name}*")
    }


def person(email: str, **more: Any) -> dict[str, Any]:
    return {
        "email": email,
        "name": email.partition("@")[0].title(),
        "password": HASH,
        "role": "user",
        "active": 1,
    } | more


def by_email(usersctl: Command) -> dict[str, dict[str, Any]]:
    with usersctl.service() as service:
        return {row["email"]: row for row in service.transfer.export_rows(with_hashes=True)}


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


# --- PocketBase ---


def pocketbase(path: Path, *, since_23: bool) -> Path:
    """With the schema of PocketBase's own migrations."""
    end, hash_column = ("Ref", "password") if since_23 else ("Id", "passwordHash")
    username = "" if since_23 else "username TEXT NOT NULL, lastResetSentAt TEXT DEFAULT '' NOT NULL,"
    at = "TEXT DEFAULT (strftime('%Y-%m-%d %H:%M:%fZ')) NOT NULL"
    script = f"""
        CREATE TABLE _collections (id TEXT PRIMARY KEY NOT NULL, type TEXT, name TEXT UNIQUE NOT NULL);
        INSERT INTO _collections VALUES ('_pb_users_auth_', 'auth', 'users'), ('other0000000000', 'auth', 'staff');
        CREATE TABLE _externalAuths (id TEXT PRIMARY KEY NOT NULL, collection{end} TEXT NOT NULL,
            record{end} TEXT NOT NULL, provider TEXT NOT NULL, providerId TEXT NOT NULL, created {at}, updated {at});
        INSERT INTO _externalAuths VALUES
            ('l1', '_pb_users_auth_', 'ada000000000000', 'google', 'g-1', '', ''),
            ('l2', '_pb_users_auth_', 'ada000000000000', 'github', '77', '', ''),
            ('l3', 'other0000000000', 'eve000000000000', 'google', 'g-2', '', '');
        CREATE TABLE users (id TEXT PRIMARY KEY NOT NULL, {username} {hash_column} TEXT NOT NULL,
            tokenKey TEXT NOT NULL, email TEXT DEFAULT '' NOT NULL, emailVisibility BOOLEAN DEFAULT FALSE NOT NULL,
            verified BOOLEAN DEFAULT FALSE NOT NULL, name TEXT DEFAULT '' NOT NULL, avatar TEXT DEFAULT '' NOT NULL,
            created {at}, updated {at});
    """  # noqa: S608 - our own names
    people = [("ada", 1, "2024-02-03 04:05:06.789Z"), ("eve", 0, "2024-02-03 04:05:06.789Z")]
    rows = [
        {"id": f"{name}000000000000", hash_column: HASH.replace("$2b$", "$2a$"), "tokenKey": name * 16,
         "email": f"{name}@example.com", "verified": verified, "avatar": f"{name}.png", "created": created}
        | ({} if since_23 else {"username": name})
        for name, verified, created in people
    ]  # fmt: skip
    return database(path, script, rows)


@pytest.mark.parametrize("since_23", [True, False])
def test_pocketbase_is_imported_with_passwords_and_links(usersctl: Command, *, since_23: bool) -> None:
    old = pocketbase(usersctl.folder / "data.db", since_23=since_23)
    usersctl.configure(
        'auth.oauth.issuer = "https://accounts.google.com"\nauth.oauth.clientId = "c"\nauth.oauth.clientSecret = "s"'
    )
    before = digest(old)
    done = usersctl.ok("import", "--from", f"pocketbase:{old}", "--json")
    assert digest(old) == before
    assert done.json["mapping"]["oauth_id"] == ["external.google"]
    users = by_email(usersctl)
    ada, eve = users["ada@example.com"], users["eve@example.com"]
    assert (ada["active"], ada["confirmed"], ada["oauth_id"]) == (True, True, "g-1")
    assert ada["created_at"] == "2024-02-03T04:05:06.789Z"
    # An account that was not confirmed there is confirmed here.
    assert (eve["active"], eve["confirmed"], eve["oauth_id"]) == (False, False, None)
    assert usersctl.can_log_in("ada@example.com")


# --- Django ---

DJANGO = """
import sys
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}},
    PASSWORD_HASHERS=[f"django.contrib.auth.hashers.{name}PasswordHasher" for name in ("PBKDF2", "BCrypt", "BCryptSHA256")],
    USE_TZ=True,
)
django.setup()
from django.contrib.auth.hashers import BCryptPasswordHasher, PBKDF2PasswordHasher
from django.contrib.auth.models import Group, User
from django.core.management import call_command
BCryptPasswordHasher.rounds, PBKDF2PasswordHasher.iterations = 4, 10
call_command("migrate", verbosity=0)
ada = User.objects.create_superuser("ada", "ada@example.com")
ada.first_name, ada.last_name = "Ada", "Lovelace"
grace = User.objects.create_user("grace", "grace@example.com")
eve = User.objects.create_user("eve", "eve@example.com", is_active=False, is_staff=True)
bob = User.objects.create_user("bob", "bob@example.com")
User.objects.create_user("robot")
from django.contrib.auth.hashers import make_password
ada.password = make_password(sys.argv[1], hasher="bcrypt")
grace.password = make_password(sys.argv[1], hasher="pbkdf2_sha256")
eve.password = "bcrypt_sha256" + make_password(sys.argv[1], hasher="bcrypt").removeprefix("bcrypt")
bob.set_unusable_password()
for user in (ada, grace, eve, bob):
    user.save()
ada.groups.add(Group.objects.create(name="all"))
call_command("dumpdata", output="dump.json", verbosity=0)
call_command("dumpdata", output="dump.jsonl", format="jsonl", verbosity=0)
"""


def test_django_is_imported_from_a_dump_and_from_a_database(usersctl: Command) -> None:
    installed("django-admin", "applications")
    subprocess.run(
        [sys.executable, "-c", DJANGO, PASSWORD],
        cwd=usersctl.folder,
        check=True,
        capture_output=True,
        timeout=60,
    )
    models = {entry["model"] for entry in json.loads((usersctl.folder / "dump.json").read_text())}
    assert {"auth.user", "auth.permission", "contenttypes.contenttype"} <= models
    results = []
    for name in ("dump.json", "dump.jsonl", "db.sqlite3"):
        usersctl.database = usersctl.folder / f"{name}.users.db"
        done = usersctl.ok("import", "--from", f"django:{name}", "--db", usersctl.database, "--json")
        assert done.json["created"] == 4
        assert done.json["without_password"] == 1
        assert done.json["foreign_hashes"] == {"PBKDF2": 1, "bcrypt_sha256": 1}
        assert done.json["notes"][0].startswith("1 row without an email address left out: ")
        assert done.json["notes"][0].endswith("(id 5)")
        rows = list(by_email(usersctl).values())
        results.append([{key: value for key, value in row.items() if key != "created_at"} for row in rows])
        ada, grace, eve, bob = rows
        assert (ada["name"], ada["role"], ada["active"]) == ("Ada Lovelace", "admin", True)
        assert ada["password_hash"].startswith("bcrypt$$2b$04$")
        assert (grace["name"], grace["role"]) == ("grace", "user")
        assert grace["password_hash"].startswith("pbkdf2_sha256$10$")
        assert usersctl.can_log_in("ada@example.com")
        assert usersctl.can_log_in("grace@example.com")
        assert (eve["role"], eve["active"]) == ("user", False)
        assert bob["password_hash"] is None
    assert results[0] == results[1] == results[2]


ALLAUTH = """
from django.conf import settings
from django.core.management import execute_from_command_line
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}},
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sites", "allauth",
                    "allauth.account", "allauth.socialaccount"],
    MIDDLEWARE=["allauth.account.middleware.AccountMiddleware"],
    USE_TZ=True,
)
execute_from_command_line()
"""
PEOPLE_OF_ALLAUTH = """
from allauth.account.models import EmailAddress
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.models import Group, User
PBKDF2PasswordHasher.iterations = 10
ada = User.objects.create_superuser("ada", "Ada@Example.com", PASSWORD, first_name="Ada", last_name="Lovelace")
ada.groups.add(Group.objects.create(name="Night Shift"))
bob = User.objects.create_user("bob", "bob@example.com", PASSWORD)
eve = User.objects.create_user("eve", "eve@example.com", PASSWORD, is_active=False)
gus = User.objects.create_user("gus", "gus@example.com")
User.objects.create_user("robot")
for user, verified in ((ada, True), (bob, False), (eve, False)):
    EmailAddress.objects.create(user=user, email=user.email.lower(), verified=verified, primary=True)
EmailAddress.objects.create(user=ada, email="lovelace@example.com", verified=True)
SocialAccount.objects.create(user=gus, provider="google", uid="1001")
"""


def test_django_allauth_is_imported_by_the_script_of_the_manual(usersctl: Command) -> None:
    importable("allauth", "applications")
    text = section("docs/import.md", "Django with groups or django-allauth")
    ((script,), (lines,)) = blocks(text, "python"), blocks(text, "sh")
    for name, content in (
        ("manage.py", ALLAUTH),
        ("people.py", f"PASSWORD = {PASSWORD!r}\n{PEOPLE_OF_ALLAUTH}"),
        ("export_users.py", script),
    ):
        (usersctl.folder / name).write_text(content)
    python = shlex.quote(sys.executable)
    shell = f"{python} manage.py migrate -v 0 && {python} manage.py shell -v 0 < people.py"
    for line in (shell, lines.splitlines()[0].replace("python", python, 1)):
        subprocess.run(line, shell=True, check=True, cwd=usersctl.folder, timeout=60)  # noqa: S602
    _, *arguments = shlex.split(lines.splitlines()[1])
    done = usersctl.ok(*arguments, "--json").json
    assert (done["created"], done["foreign_hashes"], done["without_password"]) == (4, {"PBKDF2": 3}, 1)

    ada, bob, eve, gus = by_email(usersctl).values()
    assert (ada["name"], ada["role"], ada["active"], ada["confirmed"]) == (
        "Ada Lovelace",
        "admin",
        True,
        True,
    )
    assert ada["groups"] == ["night-shift"]
    assert (bob["active"], bob["confirmed"]) == (False, False)
    assert (eve["active"], eve["confirmed"]) == (False, None)
    assert (gus["active"], gus["confirmed"]) == (True, None)
    assert [(each["provider"], each["subject"]) for each in gus["identities"]] == [("google", "1001")]
    assert usersctl.can_log_in("ada@example.com")


# --- Flask-Security ---


def flask_security(path: Path, *confirmed_at: str | None) -> Path:
    script = """
        CREATE TABLE user (id INTEGER PRIMARY KEY, email TEXT, username TEXT, password TEXT, active BOOLEAN,
            fs_uniquifier TEXT UNIQUE NOT NULL, confirmed_at DATETIME);
        CREATE TABLE role (id INTEGER PRIMARY KEY, name TEXT UNIQUE, description TEXT);
        CREATE TABLE roles_users (user_id INTEGER, role_id INTEGER);
        INSERT INTO role VALUES (1, 'editor', ''), (2, 'admin', '');
        INSERT INTO roles_users VALUES (1, 1), (1, 2), (2, 1);
    """
    names = ("ada", "grace", "bob")[: len(confirmed_at)]
    people = [
        {"email": f"{name}@example.com", "password": HASH, "active": 1, "fs_uniquifier": name}
        | {"confirmed_at": confirmed}
        for name, confirmed in zip(names, confirmed_at, strict=True)
    ]
    return database(path, script, people, table="user")


def test_hashes_of_flask_security_are_left_out_with_a_note_unless_they_are_chosen(usersctl: Command) -> None:
    flask_security(usersctl.folder / "app.db", "2024-01-01", "2024-01-02 03:04:05")
    done = usersctl.ok("import", "--from", "sqlite:app.db", "--dry-run", "--json")
    assert (done.json["created"], done.json["without_password"]) == (2, 2)
    (note,) = [note for note in done.json["notes"] if "Flask-Security" in note]
    assert note.startswith("the password hashes of 2 rows are left out: Flask-Security hashes twice")
    assert note.endswith("--map password_hash=password")
    done = usersctl.ok("import", "--from", "sqlite:app.db", "--map", "password_hash=password", "--json")
    assert done.json["without_password"] == 0
    assert "Flask-Security" not in " ".join(done.json["notes"])
    assert usersctl.can_log_in("ada@example.com")


def test_roles_in_a_table_of_their_own_are_read(usersctl: Command) -> None:
    flask_security(usersctl.folder / "app.db", *["2024-01-01"] * 3)
    done = usersctl.ok("import", "--from", "sqlite:app.db", "--json")
    assert done.json["mapping"]["role"] == ["role.name"]
    assert (
        "the role 'editor' of 2 rows becomes user; for another role: --map-role editor=admin"
        in done.json["notes"]
    )
    roles = {email: row["role"] for email, row in by_email(usersctl).items()}
    assert roles == {"ada@example.com": "admin", "grace@example.com": "user", "bob@example.com": "user"}
    usersctl.ok("import", "--from", "sqlite:app.db", "--map-role", "editor=admin", "--on-conflict", "update")
    assert by_email(usersctl)["grace@example.com"]["role"] == "admin"


def test_a_column_of_confirmations_that_is_empty_everywhere_is_a_question(usersctl: Command) -> None:
    flask_security(usersctl.folder / "app.db", None, None, None)
    words = ("import", "--from", "sqlite:app.db")
    for more in ((), ("--dry-run",)):
        done = usersctl(*words, *more)
        assert done.code == 2
        assert (
            "confirmed_at is empty or false in all 3 rows that could be active: no account could sign in"
            in done.stderr
        )
        assert done.stderr.endswith("leave the column out: --map confirmed=\n")
    assert usersctl.is_unused or usersctl.emails() == []
    usersctl.ok(*words, "--map", "confirmed=")
    assert {(row["active"], row["confirmed"]) for row in by_email(usersctl).values()} == {(True, None)}


@pytest.mark.parametrize(("answer", "active"), [("y", False), ("n", True)])
def test_the_question_about_confirmations_is_asked_on_a_terminal(
    usersctl: Command, answer: str, *, active: bool
) -> None:
    flask_security(usersctl.folder / "app.db", None, None)
    screen = usersctl.on_terminal(
        "import", "--from", "sqlite:app.db", typed=[("for confirmations? [y/N]", f"{answer}\n")]
    )
    assert screen.code == 0, screen.text
    assert "in all 2 rows" in screen.text
    assert {row["active"] for row in by_email(usersctl).values()} == {active}


def test_accounts_that_are_not_confirmed_are_counted(usersctl: Command) -> None:
    flask_security(usersctl.folder / "app.db", "2024-01-01", None, None)
    done = usersctl.ok("import", "--from", "sqlite:app.db", "--json")
    (note,) = [note for note in done.json["notes"] if note.startswith("confirmed_at")]
    assert note.startswith("confirmed_at is empty or false in 2 rows: inactive until their owners confirm")
    assert [row["active"] for row in by_email(usersctl).values()] == [True, False, False]


# --- WordPress ---

WORDPRESS = """
    CREATE TABLE wp_users (ID INTEGER PRIMARY KEY, user_login TEXT, user_pass TEXT, user_nicename TEXT, user_email TEXT,
        user_url TEXT, user_registered TEXT DEFAULT '0000-00-00 00:00:00', user_activation_key TEXT,
        user_status INTEGER DEFAULT 0, display_name TEXT)
"""


def test_the_users_of_wordpress_are_recognised(usersctl: Command) -> None:
    people = [
        {
            "user_login": "ada",
            "user_pass": "$P$9IQRaTwmfeRo7ud9Fh4E2PdI0S3r.L0",
            "user_email": "ada@example.com",
        }
        | {"user_registered": "2020-01-02 03:04:05", "display_name": "Ada Lovelace"},
        {
            "user_login": "g",
            "user_pass": f"$wp{HASH[:60]}",
            "user_email": "g@example.com",
            "display_name": "G",
        },
    ]
    database(usersctl.folder / "wp.db", WORDPRESS, people, table="wp_users")
    done = usersctl.ok("import", "--from", "sqlite:wp.db", "--json").json
    assert {name: column for name, (column,) in done["mapping"].items()} == {
        "email": "user_email",
        "name": "display_name",
        "password_hash": "user_pass",
        "created_at": "user_registered",
    }
    assert done["foreign_hashes"] == {"phpass": 1, "WordPress": 1}
    assert usersctl.can_log_in("ada@example.com", "test12345")
    ada, other = by_email(usersctl).values()
    assert (ada["name"], ada["created_at"]) == ("Ada Lovelace", "2020-01-02T03:04:05.000Z")
    assert other["created_at"] > "2026"


def test_a_login_of_wordpress_is_the_name_where_there_is_no_other() -> None:
    columns = ["user_login", "user_pass", "user_email", "user_registered"]
    assert map_columns(columns, {}, SETTINGS)["name"] == ["user_login"]


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


# --- rules ---

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
        ({"role": "administrator"}, {"role": "user"}),  # a similar name does not make an admin
        ({"deleted_at": "2024-01-01"}, {"active": False}),
        ({"deleted_at": None}, {"active": True}),
        ({"active": None}, {"active": False}),
        ({"emailVerified": "2024-01-01"}, {"confirmed": True}),
        ({"emailVerified": None}, {"confirmed": False}),
        ({"emailVerified": "Verified"}, {"confirmed": True}),
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
        ({"google_id": 12, "github_id": 13}, {}),  # the provider is not known
        ({"created": 0}, {}),
        ({"avatar": "https://example.com/a.png"}, {"profile_picture": "https://example.com/a.png"}),
        ({"givenName": "Ada", "surname": " Lovelace "}, {"name": "Ada Lovelace"}),
        ({"username": "ada", "full name": "Ada"}, {"name": "Ada"}),
    ],
)
def test_imported_values_are_converted(row: dict[str, Any], expected: dict[str, Any]) -> None:
    account, _ = adopted({"email": "a@example.com"} | row)
    assert account == {"email": "a@example.com"} | expected


@pytest.mark.parametrize("word", ["pending", "pending2", "step 1 of 2"])
def test_a_word_that_is_not_known_confirms_no_address(word: str) -> None:
    refused, _ = adopted({"email": "a@example.com", "verified": word})
    assert str(refused) == f"verified: {word!r} is neither true nor false"


def test_what_makes_an_account_inactive_can_be_overridden() -> None:
    row = {"email": "a@example.com", "active": 1, "banned": 1, "suspended": 0}
    assert adopted(row, active="active")[0]["active"] is True
    assert adopted(row, active="active+suspended")[0]["active"] is True
    assert adopted(row, active="suspended+banned")[0]["active"] is False


def test_the_hashes_of_unix_are_named() -> None:
    _, notes = adopted({"email": "a@example.com", "password": "$6$salt$hash"})
    assert notes == [
        "the password hashes of 1 row cannot be checked here (SHA-512 crypt): no password will match them"
    ]


def test_a_clear_text_password_is_never_printed() -> None:
    account, notes = adopted({"email": "a@example.com", "password": "secret$word$2b$"})
    assert account == {"email": "a@example.com"}
    assert "secret" not in " ".join(notes)


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


def test_an_id_counts_only_at_the_provider_that_gave_it() -> None:
    github = SETTINGS._replace(oauth_client_id="c", oauth_provider="github")
    google = SETTINGS._replace(oauth_client_id="c", oauth_issuer="https://accounts.google.com")
    columns = ["email", "google_id", "github_id"]
    assert map_columns(columns, {}, github)["oauth_id"] == ["github_id"]
    assert map_columns(columns, {}, google)["oauth_id"] == ["google_id"]
    assert "oauth_id" not in map_columns(columns[:2], {}, github)
    assert "oauth_id" not in map_columns(columns, {"oauth_id": ""}, google)
    for others, there_are in ((["Nr", "Kontakt"], "Nr, Kontakt"), ([], "none")):
        with pytest.raises(Invalid, match="No column looks like") as refused:
            map_columns(others, {}, google)
        assert refused.value.hint == f"say which it is with --map email=COLUMN; there are {there_are}"
    with pytest.raises(Invalid, match="no column 'shoes' there"):
        map_columns(columns, {"name": "shoes"}, google)
    with pytest.raises(Invalid, match="no column 'shoes' here"):
        map_columns(columns, {"shoes": "email"}, google)


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
