"""Every way to be refused. The text of an error is safe to show; what it means to HTTP or a shell is said there."""


class UsersError(Exception):
    """The root of all refusals; `hint` tells the way on, where there is one."""

    code = "error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class Invalid(UsersError):
    code = "invalid"


class Taken(Invalid):
    """An e-mail address or provider account that another account has; the name of a file that is there."""

    code = "taken"


class WrongPassword(Invalid):
    """The password that a signed-in user gave for the one that they have."""


class LastAdmin(Invalid):
    code = "last_admin"

    def __init__(self) -> None:
        super().__init__(
            "The last active admin cannot be deleted, deactivated or demoted",
            hint="make another account an active admin first",
        )


class Unauthenticated(UsersError):
    code = "unauthenticated"


class Forbidden(UsersError):
    code = "forbidden"


class NotFound(UsersError):
    code = "not_found"


class _Later(UsersError):
    def __init__(self, message: str, *, retry_after: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class TooMany(_Later):
    """A limit was hit; asking again makes sense after `retry_after` seconds."""

    code = "too_many"


class Busy(_Later):
    """No fault of the caller: no slot, or a database that another process holds."""

    code = "busy"


class LockedDown(_Later):
    """An operator has closed the house; who may still come in is told to nobody."""

    code = "locked_down"

    def __init__(self) -> None:
        super().__init__("The service is closed for the time being", retry_after=600)


class SignInRefused(UsersError):
    """A sign-in through the identity provider that failed; `reason` is the `error=` value of the redirect."""

    code = "sign_in_refused"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ConfigError(UsersError):
    code = "config"


class StoreUnusable(UsersError):
    code = "database"


class OtherVersion(StoreUnusable):
    """A database that a newer program wrote, or an older one."""


class Outdated(OtherVersion):
    """Empty, or of an older version: whatever opens it for writing brings it up to date."""
