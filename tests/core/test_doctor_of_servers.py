"""doctor on a database of a PostgreSQL server: what it checks there, and what it leaves out."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import postgres
from support.commands import OPERATOR, create_user
from support.documentation import page, rows
from support.factors import add_authenticator_apps

from usersctl.clock import utc_now
from usersctl.config import Settings
from usersctl.config.sources import Loaded, Origin
from usersctl.config.webhooks import Webhook
from usersctl.doctor import CHECKS, Finding, Installation, Severity, examine
from usersctl.doctor import server as checks
from usersctl.oauth.http import SIGN_INS_AT_ONCE
from usersctl.service import build
from usersctl.store.conninfo import Conninfo
from usersctl.store.inspection import Server
from usersctl.store.opening import open_store

Make = Callable[..., Conninfo]

OF_FILES = {"database-modes", "database-owners", "database-integrity", "database-log", "disk"}
OF_SERVERS = {check.code for check in CHECKS if check.code.startswith("server-")}
NEEDED = 4 + checks.OTHERS
KEY = "a secret of at least 32 characters"


@pytest.fixture
def database(postgres_database: Make) -> Conninfo:
    return postgres_database()


def examined(database: Conninfo, tmp_path: Path, **changes: Any) -> dict[str, Finding]:
    settings = Settings(
        database=database, base_url="http://127.0.0.1:8080", secret_keys=(KEY,), state_folder=tmp_path
    )
    settings = settings._replace(**changes)
    loaded = Loaded(settings, None, {"database": Origin("USERS_DATABASE", str(database))})
    installation = Installation(loaded, "", utc_now, id, lambda _settings: None)
    with closing(installation):
        return {finding.code: finding for finding in examine(installation, with_network=False)}


def test_the_checks_of_a_server_take_the_place_of_those_of_files(database: Conninfo, tmp_path: Path) -> None:
    findings = examined(database, tmp_path)
    assert findings.keys() >= OF_SERVERS
    assert not findings.keys() & OF_FILES
    assert len(OF_SERVERS) == 5
    found = {
        code: findings[code] for code in ("database", "database-schema", "server-rights", "server-search")
    }
    assert {finding.severity for finding in found.values()} == {Severity.OK}
    assert found["database"].message.startswith(f"{database}: PostgreSQL ")
    assert found["database"].message.endswith(", UTF8")
    assert found["server-rights"].message == "users owns all tables of the schema public"
    # The server of the tests is not durable, because it is quicker so.
    assert findings["server-standbys"].mend == "set fsync and synchronous_commit to on"


@contextmanager
def without_rights(database: Conninfo) -> Iterator[Conninfo]:
    """The same database for another role."""
    name = f"plain_{postgres.name_of(database)}"
    with postgres.opened(database) as connection:
        connection.run(f"CREATE ROLE {name} LOGIN CONNECTION LIMIT 10; GRANT pg_read_all_data TO {name}")
        try:
            yield Conninfo(database.replace("//users@", f"//{name}@"))
        finally:
            connection.run(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_missing_rights_and_connections_are_found(database: Conninfo, tmp_path: Path) -> None:
    with without_rights(database) as plain:
        findings = examined(plain, tmp_path)
        severity, message = findings["server-rights"].severity, findings["server-rights"].message
        assert (severity, "of another role: no upgrade can change them" in message) == (
            Severity.PROBLEM,
            True,
        )
        assert findings["server-connections"].severity == Severity.WARNING
        assert (
            f"of 10 in use by the role; a daemon needs up to {NEEDED}"
            in findings["server-connections"].message
        )
    assert examined(database, tmp_path)["server-connections"].severity == Severity.OK
    webhook = Webhook("crm", "https://crm.example.com", ())
    for changes, needed in (
        ({"processes": 64}, 64 * NEEDED),
        ({"processes": 2, "webhooks": (webhook, webhook._replace(name="log"))}, 2 * NEEDED + 2),
        ({"processes": 2, "metrics_port": 9100}, 2 * NEEDED + 16),
        (
            {"processes": 2, "oauth_client_id": "users", "oauth_client_secret": "secret"},
            2 * (NEEDED + SIGN_INS_AT_ONCE),
        ),
    ):
        found = examined(database, tmp_path, **changes)["server-connections"]
        assert found.message.endswith(f"by the server; a daemon needs up to {needed}")


def test_a_role_without_rights_becomes_a_member_of_the_owner(database: Conninfo, tmp_path: Path) -> None:
    with without_rights(database) as plain, postgres.opened(database) as connection:
        role = f"plain_{postgres.name_of(database)}"
        connection.run(f"REVOKE pg_read_all_data FROM {role}")
        found = examined(plain, tmp_path)["database"]
        assert (found.severity, "permission denied for table" in found.message) == (Severity.PROBLEM, True)
        assert str(found.mend).endswith("make this one its member: GRANT owner TO role")
        connection.run(f"GRANT users TO {role}")
        findings = examined(plain, tmp_path)
        assert (findings["database"].severity, findings["server-rights"].severity) == (
            Severity.OK,
            Severity.OK,
        )


def test_a_table_that_another_application_has_beside_ours_is_not_asked_for(
    database: Conninfo, tmp_path: Path
) -> None:
    name = postgres.name_of(database)
    with without_rights(database) as member, postgres.opened(database) as connection:
        connection.run(f"GRANT users TO plain_{name}; CREATE ROLE shop_{name}")
        connection.run(f"CREATE TABLE orders (number BIGINT); ALTER TABLE orders OWNER TO shop_{name}")
        found = examined(member, tmp_path)["server-rights"]
        connection.run(f"DROP TABLE orders; DROP ROLE shop_{name}")
    assert (found.severity, found.message) == (
        Severity.OK,
        f"plain_{name} owns all tables of the schema public",
    )


def test_a_role_that_may_not_create_is_a_problem(database: Conninfo, tmp_path: Path) -> None:
    name = postgres.name_of(database)
    with without_rights(database) as plain, postgres.opened(database) as connection:
        given = f"plain_{name}"
        tables = connection.run(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = to_regnamespace('public')"
        )
        connection.run(";".join(f"ALTER TABLE {table} OWNER TO {given}" for (table,) in tables.fetchall()))
        found = examined(plain, tmp_path)["server-rights"]
        assert (found.severity, "may not create" in found.message) == (Severity.PROBLEM, True)
        connection.run(
            f"GRANT CREATE ON DATABASE {name} TO {given}; GRANT CREATE ON SCHEMA public TO {given}"
        )
        assert examined(plain, tmp_path)["server-rights"].severity == Severity.OK


def test_a_server_without_pg_trgm_is_a_hint(database: Conninfo, tmp_path: Path) -> None:
    with postgres.opened(database) as connection:
        connection.run("DROP INDEX users_by_words")
        index = examined(database, tmp_path)["server-search"].mend
        assert index is not None
        assert index.startswith("CREATE INDEX users_by_words")
        connection.run("DROP EXTENSION pg_trgm")
        assert examined(database, tmp_path)["server-search"].severity == Severity.HINT
        connection.run(f"CREATE EXTENSION pg_trgm; {index}")
    assert examined(database, tmp_path)["server-search"].severity == Severity.OK


def test_pg_trgm_may_be_in_a_schema_of_its_own(postgres_database: Make, tmp_path: Path) -> None:
    """As where a provider of servers makes it."""
    database = postgres_database(empty=True)
    with postgres.opened(database) as connection:
        connection.run("CREATE SCHEMA extensions; CREATE EXTENSION pg_trgm SCHEMA extensions")
        open_store(database, create=True).close()
        assert examined(database, tmp_path)["server-search"].severity == Severity.OK
        connection.run("DROP INDEX users_by_words")
        connection.run(examined(database, tmp_path)["server-search"].mend or "")
    assert examined(database, tmp_path)["server-search"].severity == Severity.OK


def test_a_missing_table_is_a_problem(database: Conninfo, tmp_path: Path) -> None:
    with postgres.opened(database) as connection:
        connection.run("DROP INDEX users_by_name")
    found = examined(database, tmp_path)["database-schema"]
    assert found.message == "users_by_name missing"
    assert found.mend == "createdb NAME; usersctl db restore FILE --db CONNINFO"


SOUND = Server(
    role="users",
    schema="public",
    version="15.8",
    encoding="UTF8",
    milliseconds=0,
    may_create=True,
    foreign_tables=0,
    schema_of_trigrams="public",
    is_indexed=True,
    is_standby=False,
    is_durable=True,
    synchronous_standbys="",
    standbys=0,
    bytes=1,
    limit="the server",
    most=100,
    used=1,
)


@pytest.mark.parametrize(
    ("facts", "severity", "message"),
    [
        ({}, Severity.OK, "no standby"),
        ({"synchronous_standbys": "ANY 1 (*)", "standbys": 2}, Severity.OK, "synchronous, to ANY 1"),
        (
            {"synchronous_standbys": "ANY 1 (*)"},
            Severity.PROBLEM,
            "changes wait for ANY 1 (*), and no standby",
        ),
        ({"standbys": 2}, Severity.HINT, "2 standbys, not synchronous"),
        ({"is_durable": False}, Severity.WARNING, "a crash of the server would lose"),
        ({"is_standby": True}, Severity.PROBLEM, "a standby, which takes no changes"),
    ],
)
def test_what_a_failover_would_lose_is_told(facts: dict[str, Any], severity: str, message: str) -> None:
    found = checks.standbys(
        at_a_server(SOUND._replace(**facts)),
    )
    assert found is not None
    assert (found.severity, found.message[: len(message)]) == (severity, message)


def at_a_server(server: Server) -> Installation:
    settings = Settings(
        database=Conninfo("postgresql://db.example.com/users"), base_url="http://127.0.0.1:8080"
    )
    installation = Installation(Loaded(settings, None, {}), "", utc_now, id, lambda _settings: None)
    installation.__dict__["server"] = server
    return installation


@pytest.mark.parametrize(("seconds", "severity"), [(0, "ok"), (-4, "ok"), (6, "warning"), (-60, "warning")])
def test_a_clock_that_differs_is_a_warning(seconds: int, severity: str) -> None:
    milliseconds = round((time.time() + seconds) * 1000)
    found = checks.clock(at_a_server(SOUND._replace(milliseconds=milliseconds)))
    assert found is not None
    assert found.severity == severity
    if severity == "warning":
        assert f"the clock of the server is {seconds:+} s from that of this machine" in found.message


def test_a_server_that_is_away_leaves_the_other_checks_unchecked(tmp_path: Path) -> None:
    away = Conninfo("postgresql://users:secret-word@127.0.0.1:9/users")
    findings = examined(away, tmp_path)
    assert findings["database"].severity == Severity.PROBLEM
    assert findings["server-clock"].severity == Severity.UNCHECKED
    assert "secret-word" not in str(findings)
    empty = findings["database"].mend
    assert empty


def test_an_empty_database_is_made_by_db_init(postgres_database: Make, tmp_path: Path) -> None:
    found = examined(postgres_database(empty=True), tmp_path)["database"]
    assert (found.severity, "usersctl db init" in str(found.mend)) == (Severity.PROBLEM, True)


def test_the_key_has_to_be_configured(database: Conninfo, tmp_path: Path) -> None:
    found = examined(database, tmp_path, secret_keys=())["secret-key"]
    assert found.severity == Severity.WARNING
    assert "auth.secretKey is not set" in found.message
    assert "`openssl rand -base64 32`" in str(found.mend)
    settings = Settings(database=database, base_url="http://localhost:8080", secret_keys=(KEY,), rounds=4)
    with closing(build(settings)) as service:
        create_user(service, "ada@example.com", "Ada", None, by=OPERATOR)
        add_authenticator_apps(service, 1)
    assert examined(database, tmp_path)["secret-key"].severity == Severity.OK
    lost = examined(database, tmp_path, secret_keys=())["secret-key"]
    assert (lost.severity, "put the key back into auth.secretKey" in str(lost.mend)) == (
        Severity.PROBLEM,
        True,
    )


def test_the_page_tells_which_checks_are_of_servers() -> None:
    told = {cells[0].strip("`"): cells[1] for cells in rows(page("docs/operating/doctor.md"))}
    assert {code for code, text in told.items() if text.startswith("on a server: ")} == OF_SERVERS
