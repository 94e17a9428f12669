"""One run of the command: its options, its output, and the service when the command needs it."""

import os
import sys
from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING, Any

from usersctl.cli.options import take
from usersctl.cli.show.cells import clean
from usersctl.cli.show.output import Output
from usersctl.errors import UsersError
from usersctl.text import counted

if TYPE_CHECKING:
    from typer import Context

    from usersctl.config.sources import Loaded
    from usersctl.models import Actor
    from usersctl.service import Service
    from usersctl.store.store import Store

MOST_OF_ACTOR = 200  # characters, also of where they are; no name of an account of the machine is so long


class Invocation:
    def __init__(self, argv: list[str]) -> None:
        self.argv = argv
        self.flags: dict[str, Any] = {}  # settings that a command takes as options
        self.endless = False  # Ctrl-C is the normal end, and needs no message
        self._store: Store | None = None
        self.parse()

    def parse(self, value_options: Collection[str] = ()) -> None:
        self.options, self.words = take(self.argv, value_options)
        self.out = Output(self.options)

    @cached_property
    def loaded(self) -> "Loaded":
        from usersctl.config import sources  # late, as the store: help and errors in the words need neither

        return sources.load(config=self.options.config, flags={"database": self.options.db, **self.flags})

    def service(self, *, create: bool = False, write: bool = True) -> "Service":
        """On the store, which is opened as `create` and `write` say."""
        from usersctl.service import Service  # late: a list needs no journeys

        return Service(self.loaded.settings, self.store(create=create, write=write))

    def store(self, *, create: bool = False, write: bool = True) -> "Store":
        """Opened at the first call: `create` makes a database if there is none; without `write` an old one is refused, not
        migrated."""
        if self._store is None:
            self._store = self._opened(create=create, write=write)
        return self._store

    def _opened(self, *, create: bool, write: bool) -> "Store":
        from usersctl.store.opening import open_store

        database, why = self.loaded.settings.database, self.loaded.origins["database"].source
        store = open_store(database, create=create, write=write, why=why)
        if store.migrated is not None:
            for note in store.migrated.notes:
                self.out.note(f"Note: {note}")
            accounts = counted(store.migrated.accounts, "account")
            kept = store.migrated.backup and f"; the old file is kept as {store.migrated.backup}"
            self.out.note(f"Migrated {store.name} with {accounts}{kept or ''}")
        return store

    def explained(self, error: Exception) -> Exception:
        """The damage of the database, if an error that nobody expected may have come of it."""
        if self._store is None or isinstance(error, UsersError | OSError):
            return error
        return self._store.damage() or error

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def note_where_invitations_go(self) -> None:
        """If there is no mail server."""
        if self.loaded.settings.mailer_host is None:
            from usersctl.mail.folder import mail_folder

            folder = mail_folder(self.loaded.settings)
            link = self.options.repeated_in("a link for each: usersctl link invite USER")
            self.out.note(f"Note: no mail server: emails go into {folder}; {link}")

    @property
    def may_ask(self) -> bool:
        """Questions need a terminal, and no --no-input."""
        return not self.options.no_input and sys.stdin.isatty() and sys.stderr.isatty()

    @cached_property
    def actor(self) -> "Actor":
        """The person at the keyboard, also behind sudo, and the machine that ssh came from."""
        from usersctl.models import Actor

        origin = os.environ.get("SSH_CONNECTION", "").partition(" ")[0] or "local"
        name = os.environ.get("SUDO_USER") or _login_name()
        return Actor(clean(f"cli:{name}")[:MOST_OF_ACTOR], clean(origin)[:MOST_OF_ACTOR])


def invocation(ctx: "Context") -> Invocation:
    """That of the command to which Typer gives this context."""
    run: Invocation = ctx.obj
    return run


def _login_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
