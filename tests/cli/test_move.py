"""db move, and the commands on a database that is on a server."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from support import postgres
from support.commands import OPERATOR, PASSWORD, Command, create_user
from support.daemons import serving
from support.factors import add_authenticator_apps

from usersctl.config import Settings
from usersctl.service import Service
from usersctl.store.conninfo import Conninfo
from usersctl.store.database_file import VERSION
from usersctl.store.opening import open_store

pytestmark = pytest.mark.sqlite  # each test names its databases

Make = Callable[..., Conninfo]


@pytest.fixture
def server(postgres_database: Make) -> Conninfo:
    return postgres_database(empty=True)


@pytest.mark.slow
def test_a_move_says_what_it_did_and_how_to_go_on(usersctl: Command, server: Conninfo) -> None:
    (ada,) = usersctl.add("ada", role="admin")
    done = usersctl.ok("db", "move", server)
    assert done.stdout.startswith(f"Moved 1 account to {server}: ")
    assert done.stderr == (
        f'Now set database = "{server}", and start the daemon again. {usersctl.database} is marked as moved\n'
        "USERS_DATABASE names the old one, and wins over the configuration: change it instead\n"
    )
    there = {"USERS_DATABASE": str(server)}
    assert [row[1] for row in usersctl.ok("list", env=there).rows] == [ada.email]
    back = usersctl.folder / "back.db"
    printed = usersctl.ok("db", "move", "back.db", "--json", env=there).json
    seconds = printed.pop("seconds")
    assert seconds >= 0
    assert printed == {"from": str(server), "to": str(back), "accounts": 1, "rows": printed["rows"]}
    assert [row[1] for row in usersctl.ok("list", "--db", "back.db").rows] == [ada.email]


def test_a_move_tells_of_a_variable_only_where_it_names_the_database(usersctl: Command) -> None:
    usersctl.add("ada", role="admin")
    assert "USERS_DATABASE" in usersctl.ok("db", "move", "there.db").stderr
    assert "USERS_DATABASE" not in usersctl.ok("db", "move", "further.db", "--db", "there.db").stderr


def test_a_move_to_a_name_that_is_not_utf_8_says_where_everything_went(usersctl: Command) -> None:
    (ada,) = usersctl.add("ada", role="admin")
    there = Path(usersctl.folder, os.fsdecode(b"there-\xff.db"))
    usersctl.ok("db", "move", there)
    assert [row[1] for row in usersctl.ok("list", "--db", there).rows] == [ada.email]
    refused = usersctl("list")
    assert (refused.code, f"was moved to {usersctl.folder}/there-\\udcff.db\n" in refused.stderr) == (6, True)


def test_the_way_on_is_a_line_of_the_configuration_whatever_the_name_is(usersctl: Command) -> None:
    usersctl.add("ada", role="admin")
    there = usersctl.folder / 'my "users".db'
    said = usersctl.ok("db", "move", there).stderr
    line = f"database = {json.dumps(str(there))}"
    assert tomllib.loads(line) == {"database": str(there)}
    assert (line in said, line in usersctl("list").stderr) == (True, True)


def test_a_move_that_is_interrupted_during_its_commit_prints_that_it_is_done(usersctl: Command) -> None:
    usersctl.add("ada")
    script = (
        "import signal, sys; from usersctl import __main__ as command;"
        "from usersctl.store.sqlite_store import SQLiteStore as store; mark = store.mark_as_moved;"
        "stop = lambda: signal.raise_signal(signal.SIGINT);"
        "store.mark_as_moved = lambda self, tx, to: (mark(self, tx, to), tx.after_commit(stop));"
        "sys.argv = ['usersctl', 'db', 'move', 'new.db']; command.main()"
    )
    start = [sys.executable, "-c", script]
    done = subprocess.run(
        start, env=usersctl.env, cwd=usersctl.folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.startswith("usersctl: interrupted; but all is done: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_database_that_was_moved_is_refused_with_the_way_on(usersctl: Command, server: Conninfo) -> None:
    usersctl.add("ada", role="admin")
    usersctl.ok("db", "move", server)
    for words in (["list"], ["update", "1", "--name", "x"], ["db", "migrate"], ["db", "backup", "x.db"]):
        refused = usersctl(*words)
        assert refused.code == 6
        assert f"{usersctl.database} was moved to {server}\n" in refused.stderr
        assert f'set database = "{server}"' in refused.stderr
    assert f"was moved to {server}" in usersctl("doctor").stdout
    usersctl.ok("db", "restore", usersctl.database, "--yes", "--db", "old.db")
    assert usersctl.ok("list", "--db", "old.db").rows
    usersctl.ok("db", "move", "back.db", env={"USERS_DATABASE": str(server)})
    refused = usersctl("list", env={"USERS_DATABASE": str(server)})
    assert refused.code == 6
    assert f"{server} was moved to {usersctl.folder / 'back.db'}\n" in refused.stderr


@pytest.mark.slow
def test_a_daemon_on_the_old_database_refuses_from_its_next_request_on(
    usersctl: Command, server: Conninfo
) -> None:
    (ada,) = usersctl.add("ada", role="admin")
    with serving(usersctl) as daemon:
        client = daemon.client()
        assert client.login(ada.email, PASSWORD).status == 200
        usersctl.ok("db", "move", server)
        assert client.get("/api/users/me").status == 503
        assert client.get("/ready").status == 503
        assert daemon.stop() == 0
        assert f"was moved to {server}" in daemon.events("database")[0]["message"]
    with serving(usersctl, env={"USERS_DATABASE": str(server)}) as daemon:
        client.port = daemon.port
        assert client.get("/api/users/me").json["user"]["email"] == ada.email  # its session goes on


def test_a_move_is_refused_before_it_begins(usersctl: Command, server: Conninfo) -> None:
    usersctl.add("ada")
    (usersctl.folder / "taken.db").write_text("precious")
    assert usersctl("db", "move", "taken.db").code == 4
    assert usersctl("db", "move", "no/such/folder.db").code == 2
    with closing(open_store(server, create=True)) as store, store.write() as tx:
        tx.audit(OPERATOR, "noted")
    refused = usersctl("db", "move", server, "--json")
    assert (refused.code, refused.error["code"]) == (4, "taken")
    assert refused.error["message"] == f"{server} is not empty"
    secret = usersctl("db", "move", "postgresql://users:s3cret@db.example.com/users")
    assert secret.code == 2
    assert "s3cret" not in secret.stdout + secret.stderr
    assert "PGPASSFILE" in secret.stderr
    assert usersctl("db", "move", "postgresql://127.0.0.1:1/users").code == 6
    assert usersctl.ok("list").rows


def test_authenticator_apps_need_their_key_on_a_server(usersctl: Command, server: Conninfo) -> None:
    (ada,) = usersctl.add("ada", role="admin")
    with usersctl.service() as service:
        add_authenticator_apps(service, ada.id)
    done = usersctl.ok("db", "move", server)
    assert (
        "The key of 1 authenticator app is in the file users.key: set auth.secretKey to what it holds"
        in done.stderr
    )
    key = (usersctl.folder / "users.key").read_text()
    there = {"USERS_DATABASE": str(server), "USERS_SECRET_KEY": key}
    assert "no key opens" not in usersctl("doctor", env=there).stdout
    there["USERS_SECRET_KEY"] = f"{'n' * 40}\n{key}"
    assert usersctl.ok("key", "rotate", env=there).stdout == "Sealed 1 secret anew\n"


def test_authenticator_apps_keep_their_key_in_the_same_folder(usersctl: Command) -> None:
    (ada,) = usersctl.add("ada")
    with usersctl.service() as service:
        add_authenticator_apps(service, ada.id)
    assert "The key of" not in usersctl.ok("db", "move", "moved.db").stderr
    assert "no key opens" not in usersctl("doctor", "--db", "moved.db").stdout
    (usersctl.folder / "elsewhere").mkdir()
    moved = usersctl.ok("db", "move", "elsewhere/moved.db", "--db", usersctl.folder / "moved.db")
    assert "The key of 1 authenticator app is in the file users.key" in moved.stderr


# --- the commands on a server ---


@pytest.fixture
def remote(usersctl: Command, postgres_database: Make) -> Command:
    """The command with a database on a server."""
    usersctl.env["USERS_DATABASE"] = str(postgres_database())
    return usersctl


def add(remote: Command, *names: str) -> None:
    with closing(open_store(Conninfo(remote.env["USERS_DATABASE"]))) as store:
        service = Service(
            Settings(database=store.database, base_url="http://127.0.0.1:8080", rounds=4), store
        )
        for name in names:
            create_user(service, f"{name}@example.com", name.title(), PASSWORD, role="admin")


@pytest.mark.slow
def test_a_server_is_backed_up_verified_and_restored(remote: Command) -> None:
    add(remote, "ada", "bob")
    name = remote.env["USERS_DATABASE"]
    printed = remote.ok("db", "backup", "saved.db", "--json").json
    assert (printed["accounts"], printed["key"]) == (2, None)
    assert remote.ok("audit", "--action", "backup", "--json").json[0]["details"]["accounts"] == 2
    assert remote.ok("db", "verify", "saved.db").stdout.startswith(
        "saved.db is sound: 2 accounts, 2 audit rows"
    )
    assert remote.ok("db", "verify").stdout.startswith(f"{name} is sound: 2 accounts, 3 audit rows")
    remote.ok("delete", "bob@example.com", "--yes")
    refused = remote("db", "restore", "saved.db")
    assert refused.code == 5
    assert f"Replace {name} by 2 accounts of saved.db" in refused.stderr
    printed = remote.ok("db", "restore", "saved.db", "--yes", "--json").json
    assert printed["database"] == name
    kept = Path(printed["kept"])
    assert kept.parent == remote.folder
    assert remote.ok("list").rows[1][1] == "bob@example.com"
    assert len(remote.ok("list", "--db", kept).rows) == 1
    remote.ok("audit", "verify")
    for _ in range(3):
        remote.ok("db", "backup", "--keep", "2", "nightly")
    assert len(list((remote.folder / "nightly").glob("users-*.db"))) == 2
    remote.ok("db", "restore", "saved.db", "--yes", "--db", "file.db")
    assert len(remote.ok("list", "--db", "file.db").rows) == 2


def test_a_server_is_imported_to_and_exported_from(remote: Command) -> None:
    rows = "email,name\nada@example.com,Ada\nbob@example.com,Bob\n"
    remote.ok("import", "-", "--dry-run", stdin=rows)
    assert remote.ok("list").rows == []
    assert remote.ok("import", "-", stdin=rows).stdout.startswith("Imported: 2 created")
    remote.ok("export", "people.csv")
    assert "ada@example.com" in (remote.folder / "people.csv").read_text()
    assert remote.ok("import", "people.csv", "--on-conflict", "update").stdout.startswith(
        "Imported: 0 created"
    )


def test_a_problem_of_a_database_on_a_server_is_named(remote: Command) -> None:
    add(remote, "ada")
    with postgres.opened(Conninfo(remote.env["USERS_DATABASE"])) as connection:
        connection.run("UPDATE audit SET actor = 'cli:me'")
    done = remote("db", "verify")
    assert (done.code, done.stdout.split(":")[0]) == (7, "audit")
    assert remote("audit", "verify").code == 7


def test_an_older_database_on_a_server_is_upgraded_by_the_command(remote: Command) -> None:
    add(remote, "ada")
    name = remote.env["USERS_DATABASE"]
    with postgres.opened(Conninfo(name)) as connection:
        connection.execute("UPDATE installation SET version = ?", (VERSION - 1,))
    assert remote("list").code == 6
    done = remote.ok("db", "migrate")
    assert done.stdout == f"{name} is of version {VERSION}\n"
    assert done.stderr == f"Migrated {name} with 1 account\n"
    assert remote.ok("db", "migrate", "--json").json["migrated"] is False
