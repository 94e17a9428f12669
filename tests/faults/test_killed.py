"""SIGKILL of the daemon, and of commands, amid a mix of all that writes: what was answered is there, nothing is half
done, and the next start answers within two seconds.

The short version is part of every run; `USERSCTL_LONG=1 pytest tests/faults` kills 200 times.
"""

import http.client
import itertools
import json
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.commands import HASH, OPERATOR, PASSWORD, Command, create_user
from support.daemons import free_port, wait_for
from support.databases import opened
from support.faults import LONG, cheaply_serving
from support.several import several_daemons
from support.web import Client, Reply
from support.writers import CONFIGURATION

from usersctl.secrets import digest
from usersctl.store.backup import check
from usersctl.store.conninfo import Conninfo, Database
from usersctl.store.opening import open_store

KILLS = 200 if LONG else 3
TIME_LIMIT = 580 if LONG else 60
RESTART = 2.0  # seconds to the first answer; the short version does not judge a machine that others use, too
VISITORS, OPERATORS = (4, 2) if LONG else (2, 1)
LOST: tuple[type[Exception], ...] = (OSError, http.client.HTTPException)

DONE, REFUSED, UNKNOWN = "done", "refused", "unknown"


@dataclass
class Known:
    """The expected state of one account: possible values of each field, and certain and possible changes."""

    email: str
    fields: dict[str, set[Any]] = field(default_factory=dict)
    certain: Counter[str] = field(default_factory=Counter)
    perhaps: Counter[str] = field(default_factory=Counter)
    tokens: dict[bytes, set[bool]] = field(default_factory=dict)  # by digest: whether it may be there

    def did(self, action: str, outcome: str, **fields: Any) -> None:
        if outcome == DONE:
            self.certain[action] += 1
            self.fields |= {name: {value} for name, value in fields.items()}
        elif outcome == UNKNOWN:
            self.perhaps[action] += 1
            for name, value in fields.items():
                self.fields.setdefault(name, set()).add(value)

    def signed_in(self, token: str) -> None:
        self.tokens[digest(token)] = {True}

    def ended(self, outcome: str, *, but: str | None = None) -> None:
        for session, may in self.tokens.items():
            if outcome != REFUSED and (but is None or session != digest(but)):
                self.tokens[session] = {False} if outcome == DONE else may | {False}


class Stopped(Exception):
    """No answer, or an unknown one: the account is not used any more."""


def go_on(outcome: str) -> None:
    if outcome != DONE:
        raise Stopped


class Visit:
    """One account over HTTP, from its creation on: by its owner, by an admin and without a session."""

    def __init__(self, crowd: "Crowd", name: str, chance: random.Random) -> None:
        self.account = Known(f"{name}@example.com")
        self.turn = 0
        self.anybody = Client(crowd.port)
        self.admin = Client(crowd.port, headers=crowd.admin)
        self.me = Client(crowd.port)
        crowd.known.append(self.account)
        self.account.fields["there"] = {False}
        person = {"email": self.account.email, "name": "N0", "password": PASSWORD}
        kept = {"there": True, "name": "N0", "role": "user"}
        if chance.random() < 0.4:
            made = self.ask("register", self.anybody, "POST", "/api/users/register", person, active=0, **kept)
        else:
            made = self.ask("create", self.admin, "POST", "/api/users", person, active=1, **kept)
        self.path = f"/api/users/{made.json['user']['id']}"
        if self.account.fields["active"] == {0}:
            self.activate()
        self.login()

    def ask(
        self, action: str, client: Client, method: str, path: str, body: Any = None, **fields: Any
    ) -> Reply:
        outcome, reply = send(lambda: client.send(method, path, body))
        self.account.did(action, outcome, **fields)
        go_on(outcome)
        assert reply is not None
        return reply

    def end(self, action: str, method: str, path: str, body: Any = None, **fields: Any) -> None:
        """An admin changes it, which ends all sessions."""
        outcome, _ = send(lambda: self.admin.send(method, path, body))
        self.account.did(action, outcome, **fields)
        self.account.ended(outcome)
        go_on(outcome)

    def activate(self) -> None:
        self.ask("activate", self.admin, "PATCH", self.path, {"active": True}, active=1)

    def login(self) -> None:
        self.me = Client(self.anybody.port)
        go_on(send(lambda: self.me.login(self.account.email, PASSWORD))[0])
        self.account.signed_in(self.me.cookies["auth_token"])

    def rename(self) -> None:
        name = f"N{self.turn}"
        self.ask("update", self.admin, "PATCH", self.path, {"name": name}, name=name)

    def rename_myself(self) -> None:
        name = f"N{self.turn}"
        self.ask("update", self.me, "PATCH", "/api/users/me", {"name": name}, name=name)

    def promote_and_demote(self) -> None:
        for role in ("admin", "user"):
            name = f"N{self.turn} {role}"
            self.ask(
                "update", self.admin, "PATCH", self.path, {"role": role, "name": name}, role=role, name=name
            )

    def deactivate(self) -> None:
        self.end("deactivate", "PATCH", self.path, {"active": False}, active=0)
        self.activate()
        self.login()

    def logout(self) -> None:
        token = digest(self.me.cookies["auth_token"])
        outcome, _ = send(lambda: self.me.delete("/api/users/session"))
        self.account.tokens[token] = {False} if outcome == DONE else {True, outcome != UNKNOWN}
        self.account.did("sign-out", outcome)
        go_on(outcome)
        self.login()

    def forget(self) -> None:
        self.ask("forgot", self.anybody, "POST", "/api/users/password/forgot", {"email": self.account.email})

    def resend(self) -> None:
        self.ask("resend", self.anybody, "POST", "/api/users/register/resend", {"email": self.account.email})

    def change_password(self) -> None:
        body = {"currentPassword": PASSWORD, "newPassword": PASSWORD, "newPasswordConfirmation": PASSWORD}
        outcome, _ = send(lambda: self.me.patch("/api/users/password", body))
        self.account.did("change-password", outcome)
        self.account.ended(outcome)
        go_on(outcome)
        self.account.signed_in(self.me.cookies["auth_token"])  # the one that took the place of the old one

    def end_sessions(self) -> None:
        self.end("revoke-all", "DELETE", f"{self.path}/sessions")
        self.login()

    def delete(self) -> None:
        self.end("delete", "DELETE", self.path, there=False)
        raise Stopped

    JOURNEYS = (login, rename, rename_myself, promote_and_demote, deactivate, logout, forget, resend, change_password, end_sessions, delete)  # fmt: skip


class Operation:
    """One account, or two of an import, by commands; some of the commands are killed, too."""

    def __init__(self, crowd: "Crowd", name: str, chance: random.Random) -> None:
        self.crowd = crowd
        self.chance = chance
        self.turn = 0
        self.account = Known(f"{name}@example.com", fields={"there": {False}})
        self.email = self.account.email
        crowd.known.append(self.account)
        kept = {"there": True, "name": "N0", "active": 1, "role": "user"}
        if chance.random() < 0.5:
            twin = Known(f"with-{self.email}", fields={"there": {False}})
            crowd.known.append(twin)
            rows = [
                {"email": email, "name": "N0", "password_hash": HASH} for email in (self.email, twin.email)
            ]
            stdin = "".join(json.dumps(row) + "\n" for row in rows)
            outcome, _ = self.run("import", "-", "--format", "jsonl", stdin=stdin)
            twin.did("import", outcome, **kept)
            self.account.did("import", outcome, **kept)
        else:
            outcome, _ = self.run("create", self.email, "--name", "N0", "--password-stdin", stdin=PASSWORD)
            self.account.did("create", outcome, **kept)
        go_on(outcome)

    def run(self, *words: str, stdin: str = "") -> tuple[str, str]:
        process = self.crowd.usersctl.start(
            *words, measured=False, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        if self.chance.random() < 0.3:
            threading.Timer(self.chance.uniform(0.15, 0.6), process.kill).start()
        output, errors = process.communicate(stdin.encode(), timeout=60)
        if process.returncode == -signal.SIGKILL:
            return UNKNOWN, ""
        assert process.returncode in (0, 5), (words, process.returncode, errors)  # 5: busy
        return (DONE if process.returncode == 0 else REFUSED), output.decode()

    def do(self, action: str, *words: str, stdin: str = "", ends: bool = False, **fields: Any) -> str:
        outcome, output = self.run(*words, stdin=stdin)
        self.account.did(action, outcome, **fields)
        if ends:
            self.account.ended(outcome)
        go_on(outcome)
        return output.strip()

    def rename(self) -> None:
        name = f"N{self.turn}"
        self.do("update", "update", self.email, "--name", name, name=name)

    def deactivate(self) -> None:
        self.do("deactivate", "deactivate", self.email, ends=True, active=0)
        self.do("activate", "activate", self.email, active=1)

    def make_token(self) -> None:
        self.account.signed_in(
            self.do("create-token", "token", "create", self.email, "--no-expiry", "--quiet")
        )
        self.do("revoke-all", "token", "revoke", self.email, ends=True)

    def set_password(self) -> None:
        self.do("set-password", "set-password", self.email, "--password-stdin", stdin=PASSWORD, ends=True)

    def reset(self) -> None:
        url = self.do("link-reset", "link", "reset", self.email)
        token = url.partition("token=")[2].partition("&")[0]
        body = {"token": token, "email": self.email, "password": PASSWORD, "password_confirmation": PASSWORD}
        outcome, _ = send(lambda: Client(self.crowd.port).post("/api/users/password/reset", body))
        self.account.did("reset-password", outcome)
        self.account.ended(outcome)
        go_on(outcome)

    def delete(self) -> None:
        self.do("delete", "delete", "--yes", self.email, ends=True, there=False)
        raise Stopped

    JOURNEYS = (rename, deactivate, make_token, set_password, reset, delete)


def send(ask: Callable[[], Reply]) -> tuple[str, Reply | None]:
    try:
        reply = ask()
    except ConnectionRefusedError:
        return REFUSED, None
    except LOST:
        return UNKNOWN, None
    assert reply.status in (200, 503), (reply.status, reply.body)
    return (DONE if reply.status == 200 else REFUSED), reply


class Crowd:
    """Clients of the daemon and operators with commands, each using one account after the other."""

    def __init__(self, usersctl: Command, port: int, admin: str) -> None:
        self.usersctl = usersctl
        self.port = port
        self.admin = {"Authorization": f"Bearer {admin}"}
        self.known: list[Known] = []
        self.wrong: list[str] = []
        self.up = threading.Event()
        self.over = threading.Event()
        kinds = [Visit] * VISITORS + [Operation] * OPERATORS
        self.threads = [threading.Thread(target=self._live, args=kind) for kind in enumerate(kinds)]

    def _live(self, number: int, kind: type[Visit] | type[Operation]) -> None:
        chance, name = random.Random(number), ""
        for life in itertools.count():
            name = f"{kind.__name__.lower()}{number}-{life}"
            try:
                one: Any = kind(self, name, chance)
                for one.turn in range(1, chance.randrange(3, 9)):
                    if not self.over.is_set():
                        chance.choice(kind.JOURNEYS)(one)
            except Stopped:
                self.up.wait(1)
            except Exception as error:  # noqa: BLE001 - the test tells at its end
                self.wrong.append(f"{name}: {error!r}")
                return
            if self.over.is_set():
                return


# --- what must be true ---


def is_whole(database: Database) -> None:
    """Nothing is half-done: the file, its references and counts, the audit trail and its chain."""
    if isinstance(database, Path):
        assert check(database).problems == []
    with closing(open_store(database, write=False)) as store, store.read() as tx:
        assert tx.check_audit().problem is None
    with opened(database) as connection:
        is_all_or_nothing(connection)


def is_all_or_nothing(database: Any) -> None:

    def none(query: str) -> None:
        assert database.execute(query).fetchall() == [], query

    database.execute(
        "CREATE TEMP VIEW made AS SELECT user_id FROM audit WHERE action IN ('create', 'register', 'import')"
    )
    none("SELECT email FROM users WHERE id NOT IN (SELECT user_id FROM made)")
    none("SELECT user_id FROM made GROUP BY user_id HAVING count(*) > 1")
    none(
        "SELECT user_id FROM made WHERE user_id NOT IN (SELECT id FROM users)"
        " AND user_id NOT IN (SELECT user_id FROM audit WHERE action = 'delete')"
    )
    none("SELECT id FROM users WHERE id IN (SELECT user_id FROM audit WHERE action = 'delete')")
    database.execute(
        "CREATE TEMP VIEW told AS SELECT user_id, column2 FROM audit JOIN (VALUES ('register', 'confirm'),"
        " ('reset-password', 'password-changed'), ('set-password', 'password-changed'),"
        " ('change-password', 'password-changed')) AS events ON column1 = action WHERE user_id IN (SELECT id FROM users)"
    )
    none("SELECT * FROM told EXCEPT SELECT user_id, kind FROM outbox")
    # An import added both accounts or none.
    none(
        "SELECT email FROM users WHERE email LIKE 'with-%' AND substr(email, 6) NOT IN (SELECT email FROM users)"
        " AND substr(email, 6) NOT IN (SELECT email FROM audit WHERE action = 'delete')"
    )
    none(
        "SELECT email FROM audit WHERE action = 'import' AND email NOT LIKE 'with-%'"
        " AND 'with-' || email NOT IN (SELECT email FROM users)"
    )


def is_as_answered(database: Any, account: Known) -> None:
    columns = ("id", "name", "role", "active")
    of_user = f"SELECT {', '.join(columns)} FROM users WHERE email = ?"  # noqa: S608 - our own columns
    row = database.execute(of_user, (account.email,)).fetchone()
    assert (row is not None) in account.fields["there"], account
    done = Counter(
        action for (action,) in database.execute("SELECT action FROM audit WHERE email = ?", (account.email,))
    )
    for action in {*account.certain, *account.perhaps, *done} - {"forgot", "resend"}:
        at_least = account.certain[action]
        assert at_least <= done[action] <= at_least + account.perhaps[action], (action, done, account)
    if row is None:
        return
    for name, value in list(zip(columns, row, strict=True))[1:]:
        assert value in account.fields[name], (name, value, account)
    letters = database.execute(
        "SELECT count(*) FROM outbox WHERE email = ? AND kind = 'reset'", (account.email,)
    ).fetchone()[0]
    assert letters >= account.certain["forgot"], account
    hashes = database.execute("SELECT token_hash FROM auth_tokens WHERE user_id = ?", (row[0],))
    there = {bytes(token_hash) for (token_hash,) in hashes}
    for token, may in account.tokens.items():
        assert (token in there) in may, account


@contextmanager
def living(usersctl: Command, port: int) -> Iterator[Crowd]:
    with usersctl.service() as service:
        root = create_user(service, "root@example.com", "Root", PASSWORD, role="admin", by=OPERATOR)
        admin = service.sessions.create_api_token(root.id, name="x", lifetime=None, by=OPERATOR).token
    crowd = Crowd(usersctl, port, admin)
    with ExitStack() as stack:
        for thread in crowd.threads:
            thread.start()
            stack.callback(thread.join, 60)
        stack.callback(crowd.over.set)
        yield crowd


def has_what_was_answered(crowd: Crowd) -> None:
    assert not crowd.wrong
    is_whole(crowd.usersctl.database)
    with opened(crowd.usersctl.database) as database:
        for account in list(crowd.known):
            is_as_answered(database, account)
    certain = sum((account.certain for account in crowd.known), Counter[str]())
    perhaps = sum((account.perhaps for account in crowd.known), Counter[str]())
    print(f"answered {sum(certain.values())}: {dict(certain)}, cut off: {dict(perhaps)},")


@pytest.mark.slow
def test_answered_changes_survive_any_kill_and_no_change_is_half_done(usersctl: Command) -> None:
    until = time.monotonic() + TIME_LIMIT
    port = free_port()
    usersctl.configure(f"{CONFIGURATION}[server]\nport = {port}\n")
    restarts, kills = [], 0
    with living(usersctl, port) as crowd:
        while kills < KILLS:
            assert time.monotonic() < until, f"only {kills} kills"
            began = time.monotonic()
            with cheaply_serving(usersctl, port=port) as daemon:
                assert Client(port).get("/login").status == 200
                restarts.append(time.monotonic() - began)
                crowd.up.set()
                time.sleep(random.uniform(0.1, 1.2))
                crowd.up.clear()
                daemon.process.send_signal(signal.SIGKILL)
                assert daemon.process.wait(10) == -signal.SIGKILL
                kills += 1
            if kills % 10 == 0:
                is_whole(usersctl.database)
            assert not crowd.wrong
    has_what_was_answered(crowd)
    print(f"restarts: median {sorted(restarts)[len(restarts) // 2]:.2f} s, most {max(restarts):.2f} s")
    assert len(crowd.known) > kills
    if LONG:
        assert max(restarts) <= RESTART


@pytest.mark.slow
def test_answered_changes_survive_kills_of_three_daemons_on_one_server(
    tmp_path: Path, postgres_database: Callable[[], Conninfo]
) -> None:
    kills = KILLS // 2 if LONG else KILLS
    with several_daemons(tmp_path, postgres_database()) as three:
        with living(three.command(0), three.proxy) as crowd:
            crowd.up.set()
            with three.killed_meanwhile(kills):
                wait_for(lambda: three.kills == kills, TIME_LIMIT)
        has_what_was_answered(crowd)
        assert three.kills == kills
    assert len(crowd.known) > kills
