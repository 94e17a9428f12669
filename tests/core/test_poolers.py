"""A pooler of connections between this program and a PostgreSQL server is refused by name, in each of its modes."""

import os
import pwd
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support import postgres
from support.commands import Command
from support.daemons import free_port, wait_for
from support.proxies import needed

from usersctl.errors import StoreUnusable
from usersctl.store.conninfo import Conninfo
from usersctl.store.opening import open_store


@contextmanager
def pgbouncer(database: Conninfo, mode: str) -> Iterator[Conninfo]:
    """The same database through PgBouncer."""
    program, port = needed("pgbouncer"), free_port()
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # it refuses to be root
        with _started(program, Path(folder), database, mode, port):
            yield Conninfo(f"postgresql://users:s3cret-word@127.0.0.1:{port}/{postgres.name_of(database)}")


@contextmanager
def _started(program: str, folder: Path, database: Conninfo, mode: str, port: int) -> Iterator[None]:
    host, _, at = database.partition("@")[2].partition("/")[0].partition(":")
    (folder / "users.txt").write_text('"users" ""\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={host} port={at}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
        f"unix_socket_dir =\nauth_type = trust\nauth_file = {folder}/users.txt\npool_mode = {mode}\n"
    )
    other: dict[str, Any] = {}
    if os.geteuid() == 0:
        account = pwd.getpwnam("nobody")
        other = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, folder / "pgbouncer.ini"],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            **other,
        )
    try:
        wait_for(lambda: process.poll() is not None or b"process up" in (folder / "log").read_bytes())
        assert process.poll() is None, (folder / "log").read_text()
        yield
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.parametrize("mode", ["transaction", "session", "statement"])
def test_pgbouncer_is_refused_by_name(postgres_database: Callable[..., Conninfo], mode: str) -> None:
    with (
        pgbouncer(postgres_database(), mode) as database,
        pytest.raises(StoreUnusable, match="is a pooler of connections, such as PgBouncer") as refused,
    ):
        open_store(database, create=True)
    assert "name the server itself" in str(refused.value.hint)
    assert "s3cret-word" not in str(refused.value)


def test_the_command_and_doctor_say_so(usersctl: Command, postgres_database: Callable[..., Conninfo]) -> None:
    with pgbouncer(postgres_database(), "transaction") as database:
        usersctl.env["USERS_DATABASE"] = database[:]
        refused = usersctl("serve")
        assert (refused.code, "is a pooler of connections" in refused.stderr) == (6, True)
        findings = usersctl("doctor", "--json").json["findings"]
    found = {finding["code"]: finding for finding in findings}["database"]
    assert (found["severity"], "is a pooler" in found["message"]) == ("problem", True)
    assert "name the server itself" in found["mend"]
