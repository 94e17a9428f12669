"""The bodies that bring a second factor."""

from typing import Any

from usersctl.errors import Invalid
from usersctl.models import Proof
from usersd.inputs import Body, optional, optional_object
from usersd.openapi.schemas import string

CODE = string("123456")
REMEMBERS_DEVICE = (
    "This browser is not asked for a second factor again, for the days of `auth.rememberFactor`."
)
_RECOVERY_CODE = string("abcd-efgh-ijkl-mnop-qrst-uvwx")
_CREDENTIAL = {"type": "object", "description": "What the browser's `toJSON()` makes of a passkey's answer."}


class SecondFactor(Body):
    code = optional(CODE, "Of the authenticator app.")
    recovery_code = optional(
        _RECOVERY_CODE, "Works once; case, blanks and dashes do not matter.", name="recoveryCode"
    )
    credential = optional_object(_CREDENTIAL, "Of a passkey.")

    @property
    def is_given(self) -> bool:
        return any(value is not None for value in self._values)

    @property
    def proof(self) -> Proof:
        if sum(value is not None for value in self._values) != 1:
            raise Invalid("One of code, recoveryCode and credential is required")
        return Proof(*self._values)

    @property
    def _values(self) -> tuple[str | None, str | None, dict[str, Any] | None]:
        return self.code, self.recovery_code, self.credential
