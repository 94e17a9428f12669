"""What the checks look at, and what they find."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

from usersctl.clock import Clock
from usersctl.config import Settings
from usersctl.config.sources import Loaded
from usersctl.deadline import within
from usersctl.errors import Invalid, SignInRefused, UsersError
from usersctl.mail.smtp import Probe, SmtpSender
from usersctl.oauth.http import HttpClient
from usersctl.store.store import Store, open_store
from usersctl.store.transaction import Transaction

T = TypeVar("T")

LOOK_AT_MOST = 5.0  # seconds, at all pages of the database, and at all rows
MAIL_AT_MOST = 15.0


class Severity(StrEnum):
    OK = "ok"
    HINT = "hint"  # works, and could be better
    WARNING = "warning"  # will hurt, or hurts some
    PROBLEM = "problem"
    UNCHECKED = "unchecked"  # something else has to be mended first


class Verdict(NamedTuple):
    severity: Severity
    message: str
    mend: str | None = None


class UncheckedError(Exception):
    """Something else stands in the way of this check, and has a finding of its own."""


def ok(message: str) -> Verdict:
    return Verdict(Severity.OK, message)


def hint(message: str, mend: str) -> Verdict:
    return Verdict(Severity.HINT, message, mend)


def warning(message: str, mend: str) -> Verdict:
    return Verdict(Severity.WARNING, message, mend)


def problem(message: str, mend: str) -> Verdict:
    return Verdict(Severity.PROBLEM, message, mend)


@dataclass
class Case:
    """What is looked at. Nothing of it is changed."""

    loaded: Loaded | UsersError
    options: str  # those of this command, for the commands that mend: ` --config FILE`
    now: Clock
    check_files: Callable[[Loaded], object]  # templates, logo and the like; raises UsersError
    ask_daemon: Callable[[Settings], str | None]  # why it is not ready

    def command(self, words: str) -> str:
        return f"usersctl {words}{self.options}"

    @property
    def configuration(self) -> Loaded:
        if isinstance(self.loaded, UsersError):
            raise UncheckedError("the configuration cannot be used")
        return self.loaded

    @property
    def settings(self) -> Settings:
        return self.configuration.settings

    @property
    def file(self) -> Path:
        """The database's, if there is one."""
        try:
            there = self.settings.database.is_file()
        except OSError:
            raise UncheckedError("the database cannot be used") from None
        if not there:
            raise UncheckedError("there is no database")
        return self.settings.database

    @cached_property
    def opened(self) -> Store | UsersError:
        try:
            return open_store(
                self.settings.database,
                write=False,
                no_trace=True,
                why=self.configuration.origins["database"].source,
            )
        except UsersError as error:
            return error

    def ask(self, question: Callable[[Transaction], T]) -> T:
        store = self.opened
        if isinstance(store, UsersError):
            raise UncheckedError("the database cannot be used")
        try:
            with store.within(LOOK_AT_MOST), store.read() as tx:
                return question(tx)
        except TimeoutError:
            raise UncheckedError(f"it would take longer than {LOOK_AT_MOST:g} s") from None

    @cached_property
    def probe(self) -> Probe:
        sender = SmtpSender(self.settings, step=MAIL_AT_MOST / 3, whole=MAIL_AT_MOST)
        try:
            return within(MAIL_AT_MOST, sender.probe)
        except TimeoutError as error:
            return Probe([], str(error))

    def ask_web(self, ask: Callable[[HttpClient], T], *, mend: str) -> T:
        http = HttpClient()
        try:
            return http.within_limits(lambda: ask(http))
        except SignInRefused as error:
            raise Invalid(str(error), hint=mend) from None

    def close(self) -> None:
        opened = self.__dict__.get("opened")
        if isinstance(opened, Store):
            opened.close()
