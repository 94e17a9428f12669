"""What the checks of doctor look at, and the results that they return."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from usersctl.clock import Clock
from usersctl.config import Settings
from usersctl.config.sources import Loaded
from usersctl.deadline import within
from usersctl.errors import Invalid, SignInRefused, UsersError
from usersctl.models import OAUTH
from usersctl.named import NamedTuple
from usersctl.store.conninfo import Conninfo, file_of
from usersctl.store.inspection import Server
from usersctl.store.opening import open_store
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction
from usersctl.text import with_options

if TYPE_CHECKING:  # slow to import, and only checks over the network use them
    from usersctl.config.providers import ProviderSettings
    from usersctl.mail.smtp import Probe
    from usersctl.oauth.http import HttpClient

T = TypeVar("T")

QUERY_AT_MOST = 5.0  # seconds, because some checks read every page or every row
MAIL_AT_MOST = 15.0
UNITS = [Path(folder, "usersd.service") for folder in ("/etc/systemd/system", "/lib/systemd/system")]


class Severity(StrEnum):
    OK = "ok"
    HINT = "hint"  # works, but could be better
    WARNING = "warning"  # will cause harm some day
    PROBLEM = "problem"  # causes harm now
    UNCHECKED = "unchecked"  # something else has to be fixed first


class Result(NamedTuple):
    severity: Severity
    message: str
    mend: str | None = None


class UncheckedError(Exception):
    """This check cannot run because of something that another check reports."""


ok = partial(Result, Severity.OK)
hint = partial(Result, Severity.HINT)
warning = partial(Result, Severity.WARNING)
problem = partial(Result, Severity.PROBLEM)


def for_each_provider(
    look: "Callable[[Installation, ProviderSettings], Result | None]",
) -> "Callable[[Installation], list[Result]]":
    """A check of each provider that people can sign in through; one that fails does not keep the others from theirs."""

    @wraps(look)
    def look_at_each(installation: Installation) -> list[Result]:
        results = []
        for provider in installation.settings.providers:
            try:
                result = look(installation, provider)
            except UsersError as error:
                result = problem(str(error), installation.mend_of(error))
            if result is not None:
                results.append(result._replace(message=named(provider.name, result.message)))
        return results

    return look_at_each


def named(provider: str, message: str) -> str:
    """That of auth.oauth, which is most often the only one, goes without its name."""
    return message if provider == OAUTH else f"{provider}: {message}"


@dataclass
class Installation:
    """Configuration, database and daemon. No check changes any of it."""

    loaded: Loaded | UsersError
    options: str  # global options of this call, such as ` --config FILE`, for the commands that mend
    now: Clock
    check_files: Callable[[Loaded], object]  # raises UsersError for unusable templates, pictures or texts
    ask_daemon: Callable[[Settings], str | None]  # returns why it is not ready

    def command(self, words: str) -> str:
        return f"usersctl {words}{self.options}"

    def mend_of(self, error: UsersError) -> str | None:
        return error.hint and with_options(error.hint, self.options)

    @property
    def has_unit(self) -> bool:
        return any(path.exists() for path in UNITS)

    @property
    def restart(self) -> str:
        if self.has_unit:
            return "systemctl restart usersd"
        return f"stop the daemon, then: {self.command('serve')}"

    @property
    def configuration(self) -> Loaded:
        if isinstance(self.loaded, UsersError):
            raise UncheckedError("the configuration cannot be used")
        return self.loaded

    @property
    def settings(self) -> Settings:
        return self.configuration.settings

    @property
    def is_on_server(self) -> bool:
        return not isinstance(self.loaded, UsersError) and isinstance(self.settings.database, Conninfo)

    @cached_property
    def server(self) -> Server:
        server = self.query(lambda tx: tx.server())
        if server is None:
            raise UncheckedError("the database is not on a server")
        return server

    @property
    def database(self) -> Path:
        """The file of the database; raises UncheckedError where there is none."""
        path = file_of(self.settings.database)
        try:
            if path.is_file():
                return path
        except OSError:
            raise UncheckedError("the database cannot be used") from None
        raise UncheckedError("there is no database")

    @property
    def log(self) -> Path:
        """The file of the write-ahead log, which need not exist."""
        return Path(f"{self.database}-wal")

    @cached_property
    def opened(self) -> Store | UsersError:
        origin = self.configuration.origins["database"]
        try:
            return open_store(self.settings.database, write=False, no_trace=True, why=origin.source)
        except UsersError as error:
            return error

    def query(self, question: Callable[[Transaction], T]) -> T:
        store = self.opened
        if isinstance(store, UsersError):
            raise UncheckedError("the database cannot be used")
        try:
            with store.within(QUERY_AT_MOST), store.read() as tx:
                return question(tx)
        except TimeoutError:
            raise UncheckedError(f"it would take longer than {QUERY_AT_MOST:g} s") from None

    @cached_property
    def mail_probe(self) -> "Probe":
        from usersctl.mail.smtp import Probe, SmtpSender

        sender = SmtpSender(self.settings, step=MAIL_AT_MOST / 3, whole=MAIL_AT_MOST)
        try:
            return within(MAIL_AT_MOST, sender.probe)
        except TimeoutError as error:
            return Probe([], f"{self.settings.mailer_host}: {error}")

    def ask_web(self, ask: "Callable[[HttpClient], T]", *, mend: str) -> T:
        from usersctl.oauth.http import HttpClient

        http = HttpClient()
        try:
            return http.within_limits(lambda: ask(http))
        except SignInRefused as error:
            raise Invalid(str(error), hint=mend) from None

    def close(self) -> None:
        opened = self.__dict__.get("opened")  # without opening it now
        if isinstance(opened, Store):
            opened.close()
