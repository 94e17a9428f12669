"""The errors of the core. Their texts are safe to show; HTTP statuses and exit codes are decided by the visitors."""

LONGEST_VALUE = 60  # characters of a refused text that are shown


class UsersError(Exception):
    """The root of all errors here; `hint` is advice for an operator."""

    code = "error"
    why = ""  # for the log only

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def in_full(self) -> str:
        """The message for an operator."""
        return str(self)


class Invalid(UsersError):
    """`value` is the text that was refused. An operator is shown it, a client of the interface is not; never a secret."""

    code = "invalid"

    def __init__(self, message: str, *, hint: str | None = None, value: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.value = value

    @property
    def in_full(self) -> str:
        if self.value is None:
            return str(self)
        cut = "…" if len(self.value) > LONGEST_VALUE else ""
        return f"{self}: {self.value[:LONGEST_VALUE]!r}{cut}"  # repr() makes control characters visible


class Taken(Invalid):
    """Somebody or something has it already: an address, a provider's account, a name, a file."""

    code = "taken"


class WrongPassword(Invalid):
    """A signed-in user gave a wrong current password."""


class LastAdmin(Invalid):
    code = "last_admin"

    def __init__(self) -> None:
        super().__init__(
            "The last active admin cannot be deleted, deactivated or demoted",
            hint="make another account an active admin first",
        )


class Referred(Invalid):
    """A table that another application keeps in the database refers to an account, and not to be deleted along with it.

    `email`: of the account, where nobody named it.
    """

    code = "referred"

    def __init__(self, email: str | None = None) -> None:
        super().__init__(
            "Other data still belongs to this account",
            hint="delete first the rows of other tables of the database that refer to it, or deactivate it",
            value=email,
        )


class NothingToInvite(Invalid):
    """The arguments are right, and the account has no use for an invitation."""

    code = "not_needed"

    def __init__(self, email: str) -> None:
        super().__init__(
            "This account needs no invitation",
            hint="only accounts that await their owner, and active ones without a password, are invited",
            value=email,
        )


class Unauthenticated(UsersError):
    code = "unauthenticated"

    def __init__(self, message: str = "Authentication required") -> None:
        super().__init__(message)


class SecondFactorRequired(Unauthenticated):
    """The password was right, and the account has a second factor: the sign-in waits for it."""

    code = "second_factor"

    def __init__(self) -> None:
        super().__init__("Second factor required")


class InvalidCode(Unauthenticated):
    """The second factor was wrong."""

    code = "invalid_code"

    def __init__(self) -> None:
        super().__init__("Invalid code")


class PasskeyRefused(Invalid):
    """What came of an authenticator is not to be believed; `why` is for the log."""

    def __init__(self, why: str) -> None:
        super().__init__("Invalid passkey")
        self.why = why


class InvalidPasskey(Unauthenticated):
    """A sign-in with a passkey failed. A client learns only whether the service knows the passkey; `why` is for the log."""

    code = "invalid_passkey"

    def __init__(self, why: str, *, is_known: bool = True) -> None:
        super().__init__("Invalid passkey" if is_known else "Unknown passkey")
        self.why = why


class Forbidden(UsersError):
    code = "forbidden"


class Inactive(Forbidden):
    """The password was right. `state` is the user's own business: one of User.inactive_because."""

    def __init__(self, state: str) -> None:
        super().__init__("Account is inactive")
        self.state = state


class CodesClosed(Forbidden):
    """Waiting does not help, so this is no TooMany."""

    code = "codes_closed"

    def __init__(self) -> None:
        super().__init__(
            "Too many wrong codes: use a recovery code or a passkey, or ask an admin to unlock your account"
        )


class NotFound(UsersError):
    """`named` is the message that an operator is shown, if it says more."""

    code = "not_found"

    def __init__(self, message: str, *, hint: str | None = None, named: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.named = named

    @property
    def in_full(self) -> str:
        return self.named or str(self)


class _Later(UsersError):
    def __init__(self, message: str, *, retry_after: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class TooMany(_Later):
    """A limit was reached; the caller may try again after `retry_after` seconds."""

    code = "too_many"


class Busy(_Later):
    """No fault of the caller: no slot is free, or another process holds the database."""

    code = "busy"


class LockedDown(_Later):
    """A lockdown is in force. The message does not reveal which admin is excepted."""

    code = "locked_down"

    def __init__(self) -> None:
        super().__init__("The service is closed for the time being", retry_after=600)


class SignInRefused(UsersError):
    """A sign-in through the identity provider that failed; `reason` is the `error=` value of the redirect.

    `detail` says more than the few values of `reason` can, for the text on our own sign-in page.
    """

    code = "sign_in_refused"

    def __init__(self, reason: str, message: str, *, detail: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.detail = detail
        self.account: int | None = None  # that it would have opened, for the log


class ConfigError(UsersError):
    code = "config"


class StoreUnusable(UsersError):
    code = "database"


class Damaged(StoreUnusable):
    """A file that is cut off or overwritten, or that lacks a table."""


class ServerAway(StoreUnusable):
    """The database is on a server that does not answer, and may come back."""


class KeyUnusable(StoreUnusable):
    """The key that seals the secrets of authenticator apps is missing, cannot be read, or does not open one of them."""


class OtherVersion(StoreUnusable):
    """A database that a newer or older program wrote."""


class Outdated(OtherVersion):
    """An empty or older database, which is upgraded when it is opened for writing."""
