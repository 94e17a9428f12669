"""Clients that write through daemons and keep what they were answered, to look for it after a fault."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from support.commands import PASSWORD, Command
from support.daemons import Daemon, wait_for
from support.faults import ME, done
from support.web import Client, Reply

CONFIGURATION = (
    '[auth]\nwhitelist = ["/register"]\n[passwordHashing]\nrounds = 10\n[limits]\nenabled = false\n'
)
NEVER = 999.0  # seconds


@dataclass
class Account:
    id: int
    email: str
    names: set[str]  # one of them is its name
    sessions: dict[str, set[bool]] = field(default_factory=dict)  # by token: whether it may be open


class Writer:
    """A client of one daemon. A 503 says nothing of the change: the database may have it, and the daemon not know."""

    def __init__(self, port: int, admin: str, name: str) -> None:
        self.admin = Client(port, headers={"Authorization": f"Bearer {admin}"})
        self.name = name
        self.accounts: list[Account] = []
        self.perhaps = 0  # accounts that may be there
        self.answered: list[float] = []  # when the requests began
        self.refused = 0
        self.longest = 0.0

    def ask(self, ask: Callable[[], Reply]) -> Reply | None:
        began = time.monotonic()
        reply = ask()
        self.longest = max(self.longest, time.monotonic() - began)
        if done(reply):
            self.answered.append(began)
            return reply
        self.refused += 1
        time.sleep(0.1)
        return None

    def live(self, over: threading.Event) -> None:
        chance, number = random.Random(self.name), 0
        while not over.is_set():
            number += 1
            account = self._add(f"{self.name}-{number}@example.com")
            if account is not None:
                for turn in range(chance.randrange(1, 5)):
                    self._rename(account, f"N{turn}")
                self._visit(account, leaves=chance.random() < 0.5)

    def _add(self, email: str) -> Account | None:
        person = {"email": email, "name": "N", "password": PASSWORD}
        reply = self.ask(lambda: self.admin.post("/api/users", person))
        if reply is None:
            self.perhaps += 1
            return None
        self.accounts.append(Account(reply.json["user"]["id"], email, {"N"}))
        return self.accounts[-1]

    def _rename(self, account: Account, name: str) -> None:
        reply = self.ask(lambda: self.admin.patch(f"/api/users/{account.id}", {"name": name}))
        account.names = {name} | (account.names if reply is None else set())

    def _visit(self, account: Account, *, leaves: bool) -> None:
        client = Client(self.admin.port)
        if self.ask(lambda: client.login(account.email, PASSWORD)) is None:
            return
        token = client.token
        account.sessions[token] = {True}
        if leaves:
            reply = self.ask(lambda: client.delete("/api/users/session"))
            account.sessions[token] = {False} | (set() if reply else {True})

    def back_after(self, fault: float) -> float:
        """The seconds until a request began that was answered."""
        return min((began - fault for began in self.answered if began > fault), default=NEVER)

    def finds_all(self) -> None:
        for account in self.accounts:
            reply = self.admin.get(f"/api/users/{account.id}")
            assert reply.status == 200, account
            user = reply.json["user"]
            assert (user["email"], user["name"] in account.names) == (account.email, True), (user, account)
            for token, may in account.sessions.items():
                is_open = Client(self.admin.port, {"auth_token": token}).get(ME).status == 200
                assert is_open in may, account


@contextmanager
def writing(daemons: Sequence[Daemon], admin: str, each: int, seconds: float) -> Iterator[list[Writer]]:
    """So many writers of each daemon, for so long before and after what happens inside."""
    writers = [
        Writer(daemon.port, admin, f"w{number}-{index}")
        for number, daemon in enumerate(daemons)
        for index in range(each)
    ]
    over = threading.Event()
    with ThreadPoolExecutor(len(writers)) as pool:
        living = [pool.submit(writer.live, over) for writer in writers]
        try:
            wait_for(lambda: all(len(writer.answered) > 10 for writer in writers) or _failed(living), 60)
            time.sleep(seconds)
            yield writers
            time.sleep(seconds)
        finally:
            over.set()
        for future in living:
            future.result()


def _failed(living: Sequence[Future[None]]) -> bool:
    return any(future.done() for future in living)


def all_are_back(writers: Sequence[Writer], fault: float, within: float) -> float:
    """The seconds until each of them was answered again."""
    wait_for(lambda: all(writer.back_after(fault) < NEVER for writer in writers), within)
    return max(writer.back_after(fault) for writer in writers)


def nothing_is_lost(
    usersctl: Command, daemons: Sequence[Daemon], writers: Sequence[Writer], within: float
) -> None:
    """All that was answered is there, nothing else is, and the daemons are those of the beginning."""
    assert [daemon.process.poll() for daemon in daemons] == [None] * len(daemons)
    longest = max(writer.longest for writer in writers)
    assert longest <= within
    for writer in writers:
        writer.finds_all()
    certain = sum(len(writer.accounts) for writer in writers)
    there = len([line for line in usersctl.ok("export", "-").stdout.splitlines() if line.startswith("w")])
    assert certain <= there <= certain + sum(writer.perhaps for writer in writers)
    trail = usersctl.ok("audit", "verify", "--json").json
    assert (trail["intact"], trail["problem"]) == (True, None)
    answered = sum(len(writer.answered) for writer in writers)
    refused = sum(writer.refused for writer in writers)
    print(f"{answered} answered, none lost; {refused} refused; the longest request {longest:.2f} s")


def prepared(usersctl: Command) -> str:
    """Makes the database and an admin, and returns an API token of that."""
    usersctl.configure(CONFIGURATION)
    usersctl.ok("db", "init")
    usersctl.ok("create", "root@example.com", "--admin", "--password-stdin", stdin=PASSWORD)
    return usersctl.ok("token", "create", "root@example.com", "--no-expiry", "--quiet").stdout.strip()
