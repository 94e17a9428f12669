"""The exit codes of the command, and the error that leads to each."""

from enum import IntEnum
from typing import Self

from usersctl import errors


class ExitCode(IntEnum):
    """A code with the sentence that the reference prints for it."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    DONE = 0, "Done. Also when there was nothing to do."
    BUG = 1, "A bug in usersctl. `--debug` shows the trace."
    MISUSE = 2, "Wrong usage or invalid input."
    NOT_FOUND = 3, "No such user, group, token, email or webhook."
    TAKEN = 4, "The address, the group, the provider account or the file exists already."
    REFUSED = (
        5,
        "Refused: `--yes` is missing, the answer was no, a limit applies, the account is not one for this command, other data belongs to it, or no admin remains.",
    )
    UNUSABLE = 6, "The database or the configuration cannot be used, or reading or writing failed."
    PARTLY_FAILED = 7, "Some of the work failed, or a check found a problem."
    PENDING = 8, "`apply --plan`: there are changes to apply."
    INTERRUPTED = 130, "Interrupted with Ctrl-C or at a question."


_OF_ERRORS: dict[type, ExitCode] = {
    errors.Invalid: ExitCode.MISUSE,
    errors.NotFound: ExitCode.NOT_FOUND,
    errors.Taken: ExitCode.TAKEN,
    errors.LastAdmin: ExitCode.REFUSED,
    errors.Referred: ExitCode.REFUSED,
    errors.NothingToInvite: ExitCode.REFUSED,
    errors.Busy: ExitCode.UNUSABLE,  # for a command, only the database can be busy
    errors.ConfigError: ExitCode.UNUSABLE,
    errors.StoreUnusable: ExitCode.UNUSABLE,
    errors.UsersError: ExitCode.REFUSED,
}


def code_of(error: errors.UsersError) -> ExitCode:
    """The code of the nearest class in the table."""
    return next(_OF_ERRORS[kind] for kind in type(error).__mro__ if kind in _OF_ERRORS)
