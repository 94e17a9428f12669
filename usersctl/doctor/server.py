"""Checks of a database on a PostgreSQL server. Not of a file: their results are None then."""

import os
from collections.abc import Callable
from datetime import timedelta
from functools import wraps

from usersctl.clock import since_1970
from usersctl.doctor.installation import Installation, Result, hint, ok, problem, warning
from usersctl.store.inspection import Server
from usersctl.text import counted

CLOCKS_DIFFER = timedelta(seconds=5)
# Of each process: for changes, emails, the schedule; and for logins.
OTHER_THREADS = 10 + (os.cpu_count() or 1)

Look = Callable[[Installation], Result | None]


def of_server(look: Callable[[Installation, Server], Result]) -> Look:
    @wraps(look)
    def look_at_server(installation: Installation) -> Result | None:
        return look(installation, installation.server) if installation.is_on_server else None

    return look_at_server


def of_file(look: Callable[[Installation], Result]) -> Look:
    """A check that makes no sense on a server."""

    @wraps(look)
    def look_at_file(installation: Installation) -> Result | None:
        return None if installation.is_on_server else look(installation)

    return look_at_file


@of_server
def rights(_: Installation, server: Server) -> Result:
    if server.foreign_tables:
        message = f"{counted(server.foreign_tables, 'table')} of another role: no upgrade can change them"
        return problem(message, f"for each: ALTER TABLE name OWNER TO {server.role}")
    if not server.may_create:
        message = (
            f"{server.role} may not create tables in the schema {server.schema} and schemas, as upgrades do"
        )
        return problem(
            message,
            f"make {server.role} the owner of the database: ALTER DATABASE name OWNER TO {server.role}",
        )
    return ok(f"{server.role} owns all tables of the schema {server.schema}")


@of_server
def search(_: Installation, server: Server) -> Result:
    if server.is_indexed:
        return ok("by the index of pg_trgm")
    mend = "CREATE INDEX users_by_search_text ON users USING gin (search_text gin_trgm_ops)"
    if not server.has_trigrams:
        mend = f"as a superuser: CREATE EXTENSION pg_trgm, of PostgreSQL's contributed modules; then: {mend}"
    return hint("without an index by pg_trgm, a search reads all users", mend)


@of_server
def connections(installation: Installation, server: Server) -> Result:
    settings = installation.settings
    needed = settings.processes * (settings.threads + OTHER_THREADS)
    message = f"{server.used} of {server.most} in use by {server.limit}; a daemon needs up to {needed}"
    if server.most - server.used < needed:
        return warning(message, "raise that limit, or lower server.threads and server.processes")
    return ok(message)


@of_server
def standbys(_: Installation, server: Server) -> Result:
    """What a crash of the server, or the loss of its machine, would take along."""
    if server.is_standby:
        return problem("a standby, which takes no changes", "add target_session_attrs=read-write")
    if not server.is_durable:
        message = "a crash of the server would lose what was answered last"
        return warning(message, "set fsync and synchronous_commit to on")
    if server.synchronous_standbys:
        return ok(f"synchronous, to {server.synchronous_standbys}")
    if server.standbys:
        message = f"{counted(server.standbys, 'standby')}, not synchronous: a failover may lose what was answered last"
        return hint(message, "set synchronous_standby_names")
    return ok("no standby")


@of_server
def clock(installation: Installation, server: Server) -> Result:
    ahead = since_1970(server.milliseconds / 1000) - installation.now()
    if abs(ahead) > CLOCKS_DIFFER:
        message = f"the clock of the server is {ahead.total_seconds():+.0f} s from that of this machine"
        return warning(message, "timedatectl status")
    return ok("as that of this machine")
