"""The command with a database on a PostgreSQL server: what it prints, and what never appears."""

import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import quote

import pytest
from support import postgres
from support.commands import PASSWORD, Command
from support.daemons import serving, wait_for
from support.documentation import page
from support.factors import SEED, add_authenticator_apps, opened_secrets
from support.faults import FORGOT, ME
from support.receivers import SECRET
from support.web import Client

from usersctl.config import Settings
from usersctl.service import build
from usersctl.store.conninfo import Conninfo

Make = Callable[..., Conninfo]

WORD = "s3cret-word"


@pytest.fixture
def empty(usersctl: Command, postgres_database: Make) -> str:
    """The conninfo of an empty database, with a password, in a file that the command reads."""
    database = postgres_database(empty=True)
    file = usersctl.folder / "conninfo"
    file.write_text(f"{database.replace('//users@', f'//users:{WORD}@')}\n")
    file.chmod(0o600)
    usersctl.env |= {
        "USERS_DATABASE": "",
        "USERS_DATABASE_FILE": str(file),
        "USERS_SECRET_KEY": "",
    }
    return database.replace("//users@", "//users:***@")


@pytest.fixture
def used(usersctl: Command, postgres_database: Make) -> Conninfo:
    """The conninfo of a database with one account, which the command uses."""
    database = postgres_database()
    usersctl.env["USERS_DATABASE"] = str(database)
    usersctl.ok("create", "ada@example.com", "--name", "Ada", "--generate")
    return database


@pytest.mark.slow
def test_a_database_is_made_and_described_without_its_password(usersctl: Command, empty: str) -> None:
    refused = usersctl("list")
    assert (refused.code, refused.stdout) == (6, "")
    assert refused.stderr.startswith(f"usersctl: {empty} is empty\n  make a new one with: usersctl db init")
    assert usersctl.ok("db", "init").stdout == f"Created {empty}\n"
    assert usersctl.ok("db", "init", "--json").json == {"path": empty, "created": False}
    assert usersctl.ok("db", "init").stdout == f"Exists already: {empty}\n"
    assert usersctl.ok("db", "migrate").stdout.startswith(f"{empty} is of version ")
    status = usersctl.ok("db", "status", "--json").json
    assert (status["path"], status["chosen_by"]) == (empty, "USERS_DATABASE_FILE")
    assert status["bytes"] > 1_000_000
    assert status["server"].split(".")[0].isdigit()
    assert "wal_bytes" not in status


def test_create_makes_the_tables_too(usersctl: Command, empty: str) -> None:
    usersctl.ok("create", "ada@example.com", "--admin", "--generate")
    assert usersctl.ok("list").rows[0][1] == "ada@example.com"
    again = usersctl("create", "ada@example.com", "--generate")
    assert (again.code, again.stdout) == (4, "")
    assert WORD not in again.stderr
    assert usersctl.ok("db", "status", "--json").json["path"] == empty


@pytest.mark.slow
def test_a_restore_into_an_empty_database_says_of_nothing_that_it_is_kept(
    usersctl: Command, empty: str, tmp_path: Path
) -> None:
    there = ("--db", str(tmp_path / "file.db"))
    usersctl.ok("create", "ada@example.com", "--generate", *there)
    usersctl.ok("db", "backup", tmp_path / "backup.db", *there)
    done = usersctl.ok("db", "restore", tmp_path / "backup.db", "--yes")
    assert done.stdout == f"Restored 1 account to {empty}\n"
    assert "kept" not in done.stderr
    assert not list(tmp_path.glob("*.before-*"))
    assert usersctl.ok("audit", "--json").json[-1]["details"]["kept"] is None
    # What was replaced is kept.
    again = usersctl.ok("db", "restore", tmp_path / "backup.db", "--yes", "--json").json
    assert Path(again["kept"]).parent == tmp_path


@pytest.mark.slow
def test_the_password_never_appears(usersctl: Command, empty: str) -> None:
    usersctl.configure("[passwordHashing]\nrounds = 10\n")
    usersctl.ok("create", "ada@example.com", "--admin", "--password-stdin", stdin=PASSWORD)
    commands = (
        "config show", "config show --origin --json", "db verify", "doctor --json", "snippet systemd", "snippet backup",
        "snippet compose", "audit",
    )  # fmt: skip
    done = [usersctl("--debug", *command.split()) for command in commands]
    printed = [one.stdout + one.stderr for one in done]
    assert empty in printed[0]
    with serving(usersctl) as daemon:
        assert daemon.client().login("ada@example.com", PASSWORD).status == 200
        arguments = Path(f"/proc/{daemon.process.pid}/cmdline").read_bytes().decode()
        at_server = postgres.run(
            "SELECT query || application_name FROM pg_stat_activity WHERE usename = 'users'"
        )
        log = daemon.file.read_text()
    assert f'"database": "{empty}"' in log
    assert "no-secret-key" in log
    assert WORD not in "".join(printed) + arguments + str(at_server) + log


@pytest.mark.slow
@pytest.mark.usefixtures("empty")
def test_the_key_is_configured_and_rotated_and_there_is_no_file(usersctl: Command) -> None:
    usersctl.ok("create", "ada@example.com", "--password-stdin", stdin=PASSWORD)
    refused = usersctl("key", "rotate")
    assert (refused.code, "auth.secretKey is not set" in refused.stderr) == (6, True)
    assert "openssl rand -base64 32" in refused.stderr
    # A user who adds an app meanwhile is refused, and nothing of it stays.
    with serving(usersctl) as daemon:
        client = daemon.client()
        assert client.login("ada@example.com", PASSWORD).status == 200
        refused = client.post("/api/users/me/totp", {})
        assert (refused.status, refused.message) == (
            503,
            "The service is not available right now, please try again",
        )
        assert client.get("/api/users/me/factors").json["totp"]["enabled"] is False
        for event in ("no-secret-key", "database"):  # at the start, and at the refusal
            (line,) = daemon.events(event)
            assert "auth.secretKey is not set" in line["message"]
            assert "`openssl rand -base64 32`" in line["hint"]
    assert usersctl.ok("db", "status", "--json").json["totp_secrets"] == 0

    old, new = "o" * 44, "n" * 44
    database = Conninfo(Path(usersctl.env["USERS_DATABASE_FILE"]).read_text().strip())
    settings = Settings(database=database, base_url="http://localhost", secret_keys=(old,))
    with closing(build(settings)) as service:
        add_authenticator_apps(service, 1)
    usersctl.env["USERS_SECRET_KEY"] = f"{new}\n{old}"
    assert usersctl.ok("key", "rotate", "--json").json == {"sealed": 1, "unreadable": 0, "file": None}
    with closing(build(settings._replace(secret_keys=(new,)))) as service:
        assert opened_secrets(service) == [SEED]
    backed_up = usersctl.ok("db", "backup", usersctl.folder / "backup.db", "--json").json
    assert backed_up["key"] == "auth.secretKey"
    assert not (usersctl.folder / "users.key").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("empty")
def test_emails_without_a_mail_server_are_in_the_folder_of_the_machine(usersctl: Command) -> None:
    usersctl.ok("create", "ada@example.com", "--generate")
    with serving(usersctl) as daemon:
        assert daemon.client().post(FORGOT, {"email": "ada@example.com"}).status == 200
        wait_for(lambda: list((usersctl.folder / "mail").glob("*.eml")))


def test_a_password_among_the_arguments_is_refused(usersctl: Command, empty: str) -> None:
    for option in ("--db", "--config"):
        refused = usersctl(option, f"postgresql://users:{WORD}@127.0.0.1/users", "list")
        assert refused.code == {"--db": 2, "--config": 6}[option]
    assert "--db must not have a password" in usersctl("--db", f"host=a password={WORD}", "list").stderr
    plain = empty.replace(":***", "")
    usersctl.ok("--db", plain, "db", "init")
    assert usersctl.ok("--db", plain, "db", "status", "--json").json["chosen_by"] == "command line"


@pytest.mark.usefixtures("empty")
def test_a_missing_extra_is_named(usersctl: Command) -> None:
    script = "import sys; sys.modules['psycopg'] = None; from usersctl.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "list"],
        env=usersctl.env,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (6, "")
    assert "needs psycopg" in done.stderr
    assert "pip install 'psycopg[binary]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Our Users", "o'dd", "users-app"])
def test_a_schema_of_any_name_holds_the_tables(usersctl: Command, postgres_database: Make, name: str) -> None:
    database = postgres_database(empty=True)
    with postgres.opened(database) as connection:
        connection.run(f'CREATE SCHEMA "{name}"')
    search_path = quote(f'-csearch_path="{name}"'.replace(" ", "\\ "))
    there = {"USERS_DATABASE": f"{database}?options={search_path}"}
    usersctl.ok("db", "init", env=there)
    (ada,) = usersctl.add("ada", role="admin")
    usersctl.ok("db", "backup", "all.db")
    usersctl.ok("db", "restore", "all.db", "--yes", env=there)
    assert usersctl.ok("db", "verify", env=there).stdout.startswith(there["USERS_DATABASE"])
    # What is there is no empty database to move to.
    refused = usersctl("db", "move", there["USERS_DATABASE"])
    assert (refused.code, "is not empty" in refused.stderr) == (4, True)
    with postgres.opened(database) as connection:
        connection.run(f'SET search_path = "{name}"')
        connection.run("UPDATE installation SET version = version - 1")
    usersctl.ok("db", "migrate", env=there)
    assert [row[1] for row in usersctl.ok("list", env=there).rows] == [ada.email]


def test_tables_stay_in_their_schema_when_another_one_comes_before_it(
    usersctl: Command, used: Conninfo
) -> None:
    """As one with the name of the role does."""
    with postgres.opened(used) as connection:
        connection.run("CREATE SCHEMA users; UPDATE installation SET version = version - 1")
    usersctl.ok("db", "migrate")
    usersctl.ok("db", "verify")
    assert [row[1] for row in usersctl.ok("list").rows] == ["ada@example.com"]
    with postgres.opened(used) as connection:
        (home,) = connection.run("SELECT schemaname FROM pg_tables WHERE tablename = 'users'").fetchall()
    assert home == ("public",)


def test_tables_of_others_that_come_before_ours_are_left_alone(usersctl: Command, used: Conninfo) -> None:
    with postgres.opened(used) as connection:
        connection.run(
            "CREATE SCHEMA users; CREATE TABLE users.users (n INT); CREATE TABLE users.audit (n INT)"
        )
    usersctl.ok("create", "bob@example.com", "--name", "Bob", "--generate")
    usersctl.ok("db", "backup", "all.db")
    usersctl.ok("db", "restore", "all.db", "--yes")
    usersctl.ok("db", "verify")
    assert [row[1] for row in usersctl.ok("list").rows] == ["ada@example.com", "bob@example.com"]
    with postgres.opened(used) as connection:
        assert connection.run("SELECT count(*) FROM users.users").fetchall() == [(0,)]


def test_a_second_service_in_another_schema_of_a_database_is_refused(
    usersctl: Command, postgres_database: Make
) -> None:
    """It would send no emails: the locks of a database are of one service."""
    database = postgres_database()
    with postgres.opened(database) as connection:
        connection.run("CREATE SCHEMA other")
    refused = usersctl("--db", f"{database}?options=-csearch_path%3Dother", "db", "init")
    assert refused.code == 6
    assert "has a service already, in the schema public" in refused.stderr
    assert "createdb NAME" in refused.stderr


@pytest.mark.slow
def test_probes_tell_a_server_that_is_away(usersctl: Command, postgres_database: Make) -> None:
    """Its database takes no connection for a moment, as if it were away."""
    database = postgres_database()
    usersctl.env["USERS_DATABASE"] = database
    name = postgres.name_of(database)
    usersctl.configure("[passwordHashing]\nrounds = 10\n")
    with serving(usersctl) as daemon:
        client = daemon.client()
        wait_for(lambda: client.get("/ready").status == 200)
        postgres.run(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
        postgres.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")  # noqa: S608
        try:
            wait_for(lambda: client.get("/ready").status == 503)
            not_ready = client.get("/ready")
            assert "database" in not_ready.message
            assert not_ready.header("Retry-After") == "5"
            asked = client.login("ada@example.com", PASSWORD)
            assert (asked.status, asked.header("Retry-After")) == (503, "5")
            assert client.get("/health").status == 200
        finally:
            postgres.run(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")
        wait_for(lambda: client.get("/ready").status == 200)
        assert client.login("ada@example.com", PASSWORD).status == 401
    assert "/ready" in page("docs/operating/postgresql.md")


@pytest.mark.slow
def test_a_daemon_keeps_no_more_connections_than_the_doctor_says(
    usersctl: Command, postgres_database: Make
) -> None:
    database = postgres_database()
    usersctl.env["USERS_DATABASE"] = database
    webhook = (
        '{{name = "{}", url = "http://127.0.0.1:{}", secrets = ["{}"], events = ["*"], allowPrivate = true}}'
    )
    with ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = silent.getsockname()[1]
        plain = "server.threads = 1\npasswordHashing.rounds = 10\n"
        usersctl.configure(plain)
        without = _needed(usersctl)
        webhooks = ", ".join(webhook.format(name, port, SECRET) for name in "abcdef")
        usersctl.configure(f"{plain}webhooks = [{webhooks}]\n")
        usersctl.ok("create", "ada@example.com", "--admin", "--password-stdin", stdin=PASSWORD)
        daemon = stack.enter_context(serving(usersctl))
        ada = daemon.client()
        assert ada.login("ada@example.com", PASSWORD).status == 200

        def ask(n: int) -> None:
            client = Client(daemon.port, {"auth_token": ada.token})
            assert client.get(ME).status == 200
            assert client.patch(ME, {"name": f"Ada {n}"}).status == 200
            client.login("ada@example.com", "wrong horse battery")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(ask, range(8)))
        # More than without webhooks, although not all threads have been busy.
        kept = wait_for(lambda: (n := postgres.count_connections(database)) > without and n)
        assert kept <= _needed(usersctl) == without + 6


def _needed(usersctl: Command) -> int:
    findings = usersctl("doctor", "--json").json["findings"]
    (message,) = (one["message"] for one in findings if one["code"] == "server-connections")
    return int(message.rpartition(" needs up to ")[2])
