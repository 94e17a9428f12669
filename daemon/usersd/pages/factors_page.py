"""What the pages show of second factors."""

import json
from typing import Any

from usersctl.named import NamedTuple
from usersctl.service import Service
from usersd.access import ENROLMENT, factor_page
from usersd.request import Request


class Shown(NamedTuple):
    """The factors of a user."""

    totp: str | None  # since when there is an authenticator app
    passkeys: list[dict[str, Any]]
    codes: int  # recovery codes that are left

    @property
    def any(self) -> bool:
        return bool(self.totp or self.passkeys)

    @property
    def ends_codes(self) -> bool:
        """Whether the recovery codes end with the next factor that is removed."""
        return self.codes > 0 and bool(self.totp) + len(self.passkeys) == 1

    @property
    def methods(self) -> list[str]:
        has = {"totp": self.totp, "recovery": self.codes, "passkey": self.passkeys}
        return [name for name, is_there in has.items() if is_there]


def factors_of(service: Service, user_id: int) -> Shown:
    found = service.factors.of(user_id)
    return Shown(found["totp"]["created_at"], found["passkeys"], found["recoveryCodes"])


def content(request: Request, service: Service) -> dict[str, Any]:
    """The values for the card of the own account."""
    user, settings = request.signed_in, request.settings
    factors = factors_of(service, user.id)
    return {
        "factors": factors,
        "methods": factors.methods,
        "may_enrol": settings.second_factor != "off",
        "must_enrol": factor_page(request) == ENROLMENT,
        "rp_id": settings.rp_id,
        "accepted": json.dumps(service.passkeys.accepted(user.id)),
    }
