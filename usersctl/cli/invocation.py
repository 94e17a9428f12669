"""One run of the command: its options, its output, and the service once it is needed."""

import os
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any

from usersctl.cli.options import Options
from usersctl.cli.show.output import Output, clean
from usersctl.config import sources
from usersctl.models import Actor
from usersctl.store.store import Store, open_store
from usersctl.text import counted

if TYPE_CHECKING:
    from usersctl.service import Service


class Invocation:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.out = Output(options)
        self.flags: dict[str, Any] = {}  # settings that a command takes as options
        self.endless = False  # these keys are the way to end it, of which there is nothing to tell
        self._store: Store | None = None

    @cached_property
    def loaded(self) -> sources.Loaded:
        return sources.load(config=self.options.config, flags={"database": self.options.db, **self.flags})

    def service(self, *, create: bool = False, write: bool = True) -> "Service":
        """`create`: a new database may be made; `write` False: an old one is refused and not migrated."""
        from usersctl.service import build  # late: what only lists needs no journeys

        return build(self.loaded.settings, store=self.store(create=create, write=write))

    def store(self, *, create: bool = False, write: bool = True) -> Store:
        path, why = self.loaded.settings.database, self.loaded.origins["database"].source
        self._store = store = open_store(path, create=create, write=write, why=why)
        if store.migrated is not None:
            for note in store.migrated.notes:
                self.out.note(f"Note: {note}")
            accounts = counted(store.migrated.accounts, "account")
            self.out.note(f"Migrated {path} with {accounts}; as it was: {store.migrated.backup}")
        return store

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    @property
    def may_ask(self) -> bool:
        """Questions are asked only of a person at a terminal."""
        return (
            not self.options.no_input and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
        )

    @cached_property
    def actor(self) -> Actor:
        """Who types, also behind sudo, and from which machine where ssh tells."""
        origin = os.environ.get("SSH_CONNECTION", "").partition(" ")[0] or "local"
        return Actor(clean(f"cli:{os.environ.get('SUDO_USER') or _login_name()}"), clean(origin))


def _login_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
