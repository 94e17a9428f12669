"""import --from: the accounts of PocketBase, Django, Flask-Security, WordPress and others, from what these write."""

import json
import shlex
import shutil
import subprocess
import sys
from base64 import b64decode, b64encode
from hashlib import pbkdf2_hmac
from pathlib import Path
from typing import Any

import pytest
from support.commands import HASH, PASSWORD, Command
from support.documentation import blocks, section
from support.foreign_databases import by_email, database, digest
from support.servers import importable, installed

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


@pytest.mark.slow
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


@pytest.mark.slow
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


# --- Auth0, Authelia, Firebase and Keycloak ---

SALT = bytes(range(240, 256))  # with all characters of base64


def of_argon2(memory: int) -> str:
    importable("argon2", "applications")
    from argon2.low_level import Type, hash_secret

    return hash_secret(PASSWORD.encode(), SALT, 2, memory, 1, 32, Type.ID).decode()


def of_keycloak(name: str, algorithm: str, value: bytes, rounds: int, **more: Any) -> dict[str, Any]:
    secret = {"value": b64encode(value).decode(), "salt": b64encode(SALT).decode()}
    how = {"hashIterations": rounds, "algorithm": algorithm, "additionalParameters": more}
    credentials = [
        {"type": "otp", "secretData": "{}", "credentialData": "{}"},
        {"type": "password", "secretData": json.dumps(secret), "credentialData": json.dumps(how)},
    ]
    user = {
        "username": name,
        "email": f"{name}@example.com",
        "firstName": name.title(),
        "enabled": name != "cy",
    }
    return user | {
        "createdTimestamp": 1700000000123,
        "emailVerified": name == "ada",
        "credentials": credentials,
    }


def keycloak() -> dict[str, Any]:
    def pbkdf2(algorithm: str) -> bytes:  # of 64 bytes with each algorithm
        return pbkdf2_hmac(algorithm, PASSWORD.encode(), SALT, 1000, 64)

    value = of_argon2(7168).rpartition("$")[2]
    how = {"type": ["id"], "version": ["1.3"], "memory": ["7168"], "parallelism": ["1"], "hashLength": ["32"]}
    users = [
        of_keycloak("ada", "argon2", b64decode(value + "="), 2, **how),
        of_keycloak("bob", "pbkdf2-sha512", pbkdf2("sha512"), 1000),
        of_keycloak("cy", "pbkdf2-sha256", pbkdf2("sha256"), 1000),
        of_keycloak("dan", "pbkdf2", pbkdf2("sha1"), 1000),
        {"username": "eve", "email": "eve@example.com", "enabled": True, "createdTimestamp": 1700000000000},
        {"username": "service-account", "enabled": True, "createdTimestamp": 1700000000000},
    ]
    return {"realm": "people", "users": users}


def import_as_the_manual(usersctl: Command, application: str, file: str, content: object) -> dict[str, Any]:
    """Runs the commands that the manual gives for it, and returns the answer of the import."""
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    text = section("docs/import.md", "Auth0, Authelia, Firebase, Keycloak and Supabase")
    (script, *_) = blocks(text.partition(f"**{application}.**")[2], "sh")
    (usersctl.folder / file).write_text(json.dumps(content))
    lines = [line for line in script.splitlines() if not line.startswith("yq ")]
    done = usersctl.shell("\n".join(["set -e", *lines]) + " --json")
    assert done.code == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.slow
def test_the_users_of_keycloak_are_imported_with_their_passwords(usersctl: Command) -> None:
    done = import_as_the_manual(usersctl, "Keycloak", "realm.json", keycloak())
    assert (done["created"], done["foreign_hashes"]) == (5, {"Argon2": 1, "PBKDF2": 3})
    ada, bob, cy, _dan, eve = by_email(usersctl).values()
    assert (ada["name"], ada["confirmed"], ada["created_at"]) == ("Ada", True, "2023-11-14T22:13:20.000Z")
    assert (bob["confirmed"], bob["active"], cy["active"]) == (None, True, False)
    assert (eve["name"], eve["password_hash"]) == ("eve", None)
    assert all(usersctl.can_log_in(f"{name}@example.com") for name in ("ada", "bob", "dan"))
    usersctl.ok("activate", "cy@example.com")
    assert usersctl.can_log_in("cy@example.com")


def test_the_users_of_authelia_are_imported_with_their_groups(usersctl: Command) -> None:
    ada = {
        "displayname": "Ada",
        "password": of_argon2(65536),
        "email": "ada@example.com",
        "groups": ["admins"],
    }
    users = {
        "ada": ada,
        "bob": ada | {"email": "bob@example.com", "groups": [], "disabled": True},
        "cy": ada | {"email": "cy@example.com", "password": "$6$rounds=50000$salt$digest"},
    }
    done = import_as_the_manual(usersctl, "Authelia", "authelia.json", {"users": users})
    ada, bob, _cy = by_email(usersctl).values()
    assert (ada["name"], ada["groups"], bob["active"]) == ("Ada", ["admins"], False)
    assert usersctl.can_log_in("ada@example.com")
    assert done["without_password"] == 1


def test_the_users_of_firebase_are_linked_or_invited(usersctl: Command) -> None:
    google = {"providerId": "google.com", "rawId": "1001", "email": "ada@example.com"}
    rest = {"createdAt": "1700000000123", "passwordHash": "aGFzaA==", "salt": "c2FsdA=="}
    ada = {
        "localId": "1",
        "email": "ada@example.com",
        "emailVerified": True,
        "providerUserInfo": [google],
    } | rest
    bob = {"localId": "2", "email": "bob@example.com", "displayName": "Bob", "providerUserInfo": []} | rest
    done = import_as_the_manual(
        usersctl, "Firebase", "users.json", {"users": [ada, bob, {"localId": "3"} | rest]}
    )
    assert (done["created"], done["invited"]) == (2, 1)
    ada, bob = by_email(usersctl).values()
    assert [(each["provider"], each["subject"]) for each in ada["identities"]] == [("google", "1001")]
    assert (ada["confirmed"], bob["name"], bob["created_at"]) == (True, "Bob", "2023-11-14T22:13:20.000Z")


def test_the_hashes_of_auth0_follow_its_users(usersctl: Command) -> None:
    (usersctl.folder / "auth0.csv").write_text(
        "Email,Name,Email Verified,Blocked,Created At,Last Login\n"
        "ada@example.com,Ada,true,,2024-01-01T10:00:00.000Z,2024-01-01T10:00:00.000Z\n"
        "bob@example.com,Bob,true,true,2024-01-01T10:00:00.000Z,\n"
    )
    usersctl.ok("import", "--from", "csv:auth0.csv")
    entry = {"_id": {"$oid": "60"}, "email": "ada@example.com", "passwordHash": HASH, "connection": "people"}
    assert import_as_the_manual(usersctl, "Auth0", "passwords.json", entry)["updated"] == 1
    assert usersctl.can_log_in("ada@example.com")
    assert [user["active"] for user in by_email(usersctl).values()] == [True, False]


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


def test_the_users_of_wordpress_are_read_from_what_mysql_writes(usersctl: Command) -> None:
    ada = "1\tada\t$P$9IQRaTwmfeRo7ud9Fh4E2PdI0S3r.L0\tada@example.com\t2020-01-02 03:04:05\t\tAda Lovelace"
    other = f"2\tg\t$wp{HASH[:60]}\tg@example.com\t0000-00-00 00:00:00\tNULL\tG"
    head = "ID\tuser_login\tuser_pass\tuser_email\tuser_registered\tuser_activation_key\tdisplay_name"
    (usersctl.folder / "wp_users.csv").write_text(f"{head}\n{ada}\n{other}\n")
    done = usersctl.ok("import", "--from", "csv:wp_users.csv", "--json").json
    assert (done["created"], done["foreign_hashes"]) == (2, {"phpass": 1, "WordPress": 1})
    assert usersctl.can_log_in("ada@example.com", "test12345")
