"""Backups under load: each one verifies, restores, and holds every change that was answered before it.

One in every run, 25 by `USERSCTL_LONG=1 pytest tests/faults`.
"""

import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from support.accounts import open_session
from support.commands import OPERATOR, PASSWORD, Command, create_user
from support.faults import FORGOT, LONG, ME, OPEN
from support.web import Client, Site

BACKUPS = 25 if LONG else 1
WRITERS = 4


def test_every_backup_under_load_verifies_and_restores(
    make_site: Callable[..., Site], usersctl: Command, tmp_path: Path
) -> None:
    site = make_site(database=usersctl.database, **OPEN)
    service, over, answered, gone = site.service, threading.Event(), list[int](), list[int]()
    root = create_user(service, "root@example.com", "Root", PASSWORD, role="admin", by=OPERATOR)
    session = open_session(service, root).token

    def write(share: int) -> None:
        number = 0
        while not over.is_set():
            number += 1
            admin, email = Client(site.port, {"auth_token": session}), f"u{share}-{number}@example.com"
            made = admin.post("/api/users", {"email": email, "name": "U", "password": PASSWORD})
            assert made.status == 200
            answered.append(made.json["user"]["id"])
            user = Client(site.port)
            assert user.login(email, PASSWORD).status == 200
            assert user.patch(ME, {"name": "Renamed"}).status == 200
            assert user.post(FORGOT, {"email": email}).status == 200
            if number % 5 == 0:
                gone.append(made.json["user"]["id"])
                assert admin.delete(f"/api/users/{gone[-1]}").status == 200

    restored, rows = tmp_path / "restored.db", 0
    with ThreadPoolExecutor(WRITERS) as pool:
        writing = [pool.submit(write, share) for share in range(WRITERS)]
        try:
            for number in range(BACKUPS):
                seen = len(answered)
                while len(answered) < seen + 5:
                    assert not [future for future in writing if future.done() and future.exception()]
                    time.sleep(0.01)
                certain = set(answered)
                file = tmp_path / f"backup-{number}.db"
                usersctl.ok("db", "backup", file)
                certain -= set(gone)
                usersctl.ok("db", "verify", file)
                usersctl.ok("--db", restored, "db", "restore", file, "--yes")
                with closing(sqlite3.connect(restored)) as database:
                    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                    there = {id_ for (id_,) in database.execute("SELECT id FROM users")}
                assert certain <= there
                rows = len(there)
                file.unlink()
        finally:
            over.set()
        for future in writing:
            future.result()
    print(f"{BACKUPS} of {BACKUPS} backups verified and restored, the last one with {rows} accounts")
