"""Why a sign-in through the provider failed: the code for the browser, the reason for the log."""

from typing import Any

from usersctl.errors import SignInRefused

FAILED, NOT_CONFIGURED = "oauth_failed", "oauth_not_configured"

# Details of FAILED.
CANCELLED, NO_ADDRESS, UNVERIFIED, UNPROVEN = "cancelled", "no-address", "unverified", "unproven"
NOT_SAID = "not-said"  # whether the address is verified: no person can mend that at the provider
LIMITED = "limited"
OF_ANOTHER_USER, ANOTHER_LINK = "of-another-user", "another-link"  # of a link by hand
LINKED_OTHERWISE = "linked-otherwise"

# The error codes of providers for a client id or secret that they do not accept.
WRONG_CLIENT = ("invalid_client", "unauthorized_client", "incorrect_client_credentials")


def refused(reason: str, *, detail: str | None = None) -> SignInRefused:
    """`reason` goes into the log; the browser gets only the code, and our own sign-in page the detail."""
    return SignInRefused(FAILED, reason, detail=detail)


def refused_by_provider(
    reason: str, error: Any, description: Any, *, detail: str | None = None
) -> SignInRefused:
    if error is not None:
        reason = f"{reason} {in_its_words(error, description)}"
    if error in WRONG_CLIENT:
        return SignInRefused(NOT_CONFIGURED, reason)
    return refused(reason, detail=detail)


def shown(value: Any) -> str:
    """What a provider sent, for the log."""
    return repr(str(value)[:200])


def in_its_words(error: Any, description: Any) -> str:
    """The code and the text of a provider's error, for the log."""
    words = shown(error)
    if isinstance(description, str) and description:
        words += f": {description[:300]!r}"
    return words
