"""What the pages show of second factors."""

from typing import Any, NamedTuple

from usersctl.service import Service
from usersd.pages.user_page import device
from usersd.request import Request


class Shown(NamedTuple):
    """The factors of a user."""

    totp: str | None = None  # since when there is an authenticator app
    passkeys: tuple[Any, ...] = ()
    codes: int = 0  # recovery codes that are left

    @property
    def any(self) -> bool:
        return bool(self.totp or self.passkeys)


def content(request: Request, _service: Service) -> dict[str, Any]:
    """The values for the card of the own account."""
    return {
        "factors": Shown(),
        "methods": [],
        "may_enrol": False,
        "must_enrol": False,
        "rp_id": "",
        "user_handle": "",
        "device": device(request.environ.get("HTTP_USER_AGENT", "")),
    }
