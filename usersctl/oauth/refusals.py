"""Why a sign-in through the provider failed: the code for the browser, the reason for the log."""

from typing import Any

from usersctl.errors import SignInRefused

FAILED, NOT_CONFIGURED = "oauth_failed", "oauth_not_configured"

# What a provider calls a client id or secret that it does not take.
WRONG_CLIENT = ("invalid_client", "unauthorized_client", "incorrect_client_credentials")


def refused(why: str) -> SignInRefused:
    """`why` is for the log; the browser learns the code only."""
    return SignInRefused(FAILED, why)


def refused_by_provider(why: str, error: Any) -> SignInRefused:
    return SignInRefused(NOT_CONFIGURED, why) if error in WRONG_CLIENT else refused(why)
