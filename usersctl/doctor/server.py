"""Checks of a database on a PostgreSQL server."""

import os

from usersctl.clock import CLOCKS_DIFFER, since_1970
from usersctl.doctor.installation import Installation, Result, hint, ok, problem, warning
from usersctl.text import counted

# Connections of each process beside those of server.threads: four for changes, one of its main thread, one that notes the
# uses of sessions, one of the leader, one that sends emails, one for the schedule; and for logins.
OTHERS = 9 + (os.cpu_count() or 1)
OF_METRICS = 16  # scrapes at a time


def rights(installation: Installation) -> Result:
    server = installation.server
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


def search(installation: Installation) -> Result:
    server = installation.server
    if server.is_indexed:
        return ok("by the index of pg_trgm")
    from usersctl.store.postgres.dialect import INDEX_OF_WORDS  # late: a database in a file does without

    schema = server.schema_of_trigrams
    mend = INDEX_OF_WORDS.format(f"{schema}." if schema else "")
    if not schema:
        mend = f"as a superuser: CREATE EXTENSION pg_trgm, of PostgreSQL's contributed modules; then: {mend}"
    return hint("without an index by pg_trgm, a search reads all users", mend)


def connections(installation: Installation) -> Result:
    settings, server = installation.settings, installation.server
    of_process = settings.threads + OTHERS
    if settings.providers:
        from usersctl.oauth.http import SIGN_INS_AT_ONCE

        of_process += SIGN_INS_AT_ONCE
    needed = settings.processes * of_process + len(settings.webhooks)
    if settings.metrics_port is not None:
        needed += OF_METRICS
    message = f"{server.used} of {server.most} in use by {server.limit}; a daemon needs up to {needed}"
    if server.most - server.used < needed:
        return warning(message, "raise that limit, or lower server.threads and server.processes")
    return ok(message)


def standbys(installation: Installation) -> Result:
    """What a crash of the server, or the loss of its machine, would take along."""
    server = installation.server
    if server.is_standby:
        return problem("a standby, which takes no changes", "add target_session_attrs=read-write")
    if not server.is_durable:
        message = "a crash of the server would lose what was answered last"
        return warning(message, "set fsync and synchronous_commit to on")
    if server.synchronous_standbys and not server.standbys:
        message = f"changes wait for {server.synchronous_standbys}, and no standby is connected"
        return problem(message, "start the standby, or change synchronous_standby_names")
    if server.synchronous_standbys:
        return ok(f"synchronous, to {server.synchronous_standbys}")
    if server.standbys:
        message = f"{counted(server.standbys, 'standby')}, not synchronous: a failover may lose what was answered last"
        return hint(message, "set synchronous_standby_names")
    return ok("no standby")


def clock(installation: Installation) -> Result:
    ahead = since_1970(installation.server.milliseconds / 1000) - installation.now()
    if abs(ahead) > CLOCKS_DIFFER / 2:
        message = f"the clock of the server is {ahead.total_seconds():+.0f} s from that of this machine"
        return warning(message, "timedatectl status")
    return ok("as that of this machine")
