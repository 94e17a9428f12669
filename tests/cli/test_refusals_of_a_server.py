"""The command with a database on a PostgreSQL server that is away or refuses: one cause and one way on for each."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from support import postgres
from support.commands import Command

from usersctl.store.conninfo import Conninfo

Make = Callable[..., Conninfo]

WORD = "s3cret-word"


@pytest.mark.parametrize(
    ("conninfo", "told"),
    [
        ("postgresql://users:{word}@127.0.0.1:9/users", "Connection refused"),
        ("postgresql://users:{word}@nowhere.invalid/users", "nowhere.invalid"),
        ("host=/nowhere password={word}", "/nowhere"),
    ],
)
def test_a_server_that_is_away_is_one_line_with_a_way_on(usersctl: Command, conninfo: str, told: str) -> None:
    done = usersctl("list", env={"USERS_DATABASE": conninfo.format(word=WORD)})
    assert (done.code, done.stdout) == (6, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert WORD not in done.stderr
    assert done.stderr.startswith(f"usersctl: {conninfo.format(word='***')}")


@pytest.mark.parametrize(("words", "code"), [("doctor", 7), ("db status", 6)])
def test_a_server_that_is_away_is_named_without_its_password(
    usersctl: Command, words: str, code: int
) -> None:
    conninfo = "postgresql://users:{word}@127.0.0.1:9/users"
    done = usersctl(*words.split(), env={"USERS_DATABASE": conninfo.format(word=WORD)})
    printed = done.stdout + done.stderr
    assert (done.code, conninfo.format(word="***") in printed, WORD in printed) == (code, True, False)


def test_a_mistake_in_the_conninfo_is_told_apart_from_a_server_that_is_away(
    usersctl: Command, postgres_database: Make
) -> None:
    database = postgres_database()
    name = postgres.name_of(database)
    for wrong, told in (
        (database.replace(f"/{name}", "/nowhere"), 'database "nowhere" does not exist'),
        (database.replace("//users@", f"//nobody:{WORD}@"), 'role "nobody" does not exist'),
        (f"{database}?sslmode=require", "does not support SSL"),
        (f"{database}?nonsense=3", "nonsense"),
        (f"{database}?sslmode=nonsense", "nonsense"),
    ):
        done = usersctl("list", env={"USERS_DATABASE": wrong})
        assert (done.code, done.stdout) == (6, "")
        assert "cannot be used: " in done.stderr
        assert told in done.stderr
        assert "check `database` of the configuration" in done.stderr
        assert WORD not in done.stderr
    # A daemon does not wait for what no waiting mends.
    done = usersctl("serve", env={"USERS_DATABASE": f"{database}?sslmode=require"})
    assert (done.code, "does not support SSL" in done.stderr) == (6, True)


@pytest.mark.parametrize(
    ("sentence", "told", "way_on"),
    [
        (
            'too many connections for role "users"',
            "refuses the connection",
            "see the limits, the roles and the log",
        ),
        # In the language of the server: what it means is not known.
        ("Passwort-Authentifizierung fehlgeschlagen", "refuses the connection", "see the limits, the roles"),
        (
            'role "users" is not permitted to log in',
            "cannot be used",
            "check `database` of the configuration",
        ),
        (
            'unrecognized configuration parameter "x"',
            "cannot be used",
            "check `database` of the configuration",
        ),
    ],
)
@pytest.mark.parametrize("hosts", ["127.0.0.1", "127.0.0.1,127.0.0.1"])
def test_a_server_that_lets_nobody_in_is_told_apart_from_one_that_is_away(
    usersctl: Command, hosts: str, sentence: str, told: str, way_on: str
) -> None:
    with _refusing(sentence) as port:
        ports = ",".join([str(port), "9"][: hosts.count(",") + 1])
        where = f"host={hosts} port={ports} dbname=users user=users sslmode=disable"
        done = usersctl("list", env={"USERS_DATABASE": where})
    assert (done.code, done.stdout) == (6, "")
    assert f" {told}: " in done.stderr
    assert sentence in done.stderr
    assert way_on in done.stderr


def test_a_server_that_takes_no_writes_is_told_apart_from_one_that_is_away(
    usersctl: Command, postgres_database: Make
) -> None:
    database = postgres_database()
    postgres.run(f"ALTER DATABASE {postgres.name_of(database)} SET default_transaction_read_only = on")
    done = usersctl("list", env={"USERS_DATABASE": database})
    assert (done.code, done.stdout) == (6, "")
    assert " is read-only: " in done.stderr
    assert "if this is a standby; else see default_transaction_read_only of the database" in done.stderr
    assert "start the server" not in done.stderr


@pytest.mark.parametrize(
    ("state", "sentence", "told", "way_on"),
    [
        ("25006", "une transaction en lecture seule", "is read-only", "if this is a standby"),
        ("42501", "keine Berechtigung für Schema", "does not let", "name OWNER TO role"),
    ],
)
def test_messages_of_a_server_in_another_language_have_the_same_hints(
    usersctl: Command, postgres_database: Make, state: str, sentence: str, told: str, way_on: str
) -> None:
    """A trigger says what a server with another `lc_messages` would say: that needs a locale which few machines have."""
    database = postgres_database(empty=True)
    with postgres.opened(database) as connection:
        connection.run(
            "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS"
            f" $$BEGIN RAISE EXCEPTION '{sentence}' USING ERRCODE = '{state}'; END$$"
        )
        connection.run("CREATE EVENT TRIGGER refused ON ddl_command_start EXECUTE FUNCTION refuse()")
    done = usersctl("db", "init", env={"USERS_DATABASE": database})
    assert done.code == 6
    assert f" {told}" in done.stderr
    assert sentence in done.stderr
    assert way_on in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "words", "told"),
    [
        ("ACCESS EXCLUSIVE", "show ada@example.com", "takes too long"),
        ("SHARE", "create ada@example.com --generate", "The database is busy, please try again"),
    ],
)
def test_a_lock_of_another_program_is_looked_for_in_the_activity_of_the_server(
    usersctl: Command, postgres_database: Make, mode: str, words: str, told: str
) -> None:
    database = usersctl.env["USERS_DATABASE"] = postgres_database()
    with postgres.opened(database) as connection:
        connection.run(f"BEGIN; LOCK TABLE users IN {mode} MODE")
        done = usersctl(*words.split())
    assert (done.code, done.stdout) == (6, "")
    assert told in done.stderr
    assert (
        "look for a session that holds a lock: SELECT pid, usename, state, query FROM pg_stat_activity"
        in done.stderr
    )


def test_a_schema_of_the_name_that_a_restore_needs_is_named(
    usersctl: Command, postgres_database: Make
) -> None:
    database = usersctl.env["USERS_DATABASE"] = postgres_database()
    usersctl.ok("db", "backup", "saved.db")
    with postgres.opened(database) as connection:
        connection.run("CREATE SCHEMA usersctl_new")
    done = usersctl("db", "restore", "saved.db", "--yes")
    assert done.code == 6
    assert (
        'has a schema of the name that new tables need (schema "usersctl_new" already exists' in done.stderr
    )
    assert "drop that schema, or give it another name" in done.stderr


def test_a_role_that_may_not_make_the_tables_is_told_who_may(
    usersctl: Command, postgres_database: Make
) -> None:
    database = postgres_database(empty=True)
    role = f"maker_of_{postgres.name_of(database)}"
    postgres.run(f"CREATE ROLE {role} LOGIN")
    with postgres.opened(database) as connection:
        connection.run(
            "REVOKE CREATE ON SCHEMA public FROM PUBLIC"
        )  # as a new database has it since version 15
    usersctl.env["USERS_DATABASE"] = database.replace("//users@", f"//{role}@")
    done = usersctl("db", "init")
    assert (done.code, "permission denied for schema public" in done.stderr) == (6, True)
    assert "ALTER DATABASE name OWNER TO role" in done.stderr
    postgres.run(f"ALTER DATABASE {postgres.name_of(database)} OWNER TO {role}")
    with postgres.opened(database) as connection:
        connection.run("ALTER SCHEMA public OWNER TO pg_database_owner")  # likewise
    usersctl.ok("db", "init")
    postgres.run(f"ALTER DATABASE {postgres.name_of(database)} OWNER TO users")
    with postgres.opened(database) as connection:
        connection.run(f"REASSIGN OWNED BY {role} TO users; DROP OWNED BY {role}; DROP ROLE {role}")


@contextmanager
def _refusing(sentence: str) -> Iterator[int]:
    """The port of a server that refuses each connection with this sentence."""
    fields = b"SFATAL\0VFATAL\0C99999\0M%s\0\0" % sentence.encode()

    def refuse(server: socket.socket) -> None:
        with suppress(OSError):  # until the server is closed
            while True:
                client, _ = server.accept()
                with client:
                    client.recv(1000)
                    client.sendall(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=refuse, args=(server,))
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_search_path_without_a_schema_is_told(usersctl: Command, postgres_database: Make) -> None:
    usersctl.env["USERS_DATABASE"] = f"{postgres_database(empty=True)}?options=-csearch_path%3Dnowhere"
    for words in ("db init", "serve"):
        done = usersctl(*words.split())
        assert (done.code, "has no schema for the tables: see search_path" in done.stderr) == (6, True)
