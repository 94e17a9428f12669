"""The verifiers of Remote-Assertion that the documentation tells applications to copy."""

from collections.abc import Callable
from typing import Any

from support.documentation import blocks, section

Verifier = Callable[[dict[str, Any]], dict[str, Any] | None]


def verifier(language: str) -> str:
    return recipes(language)[0]


def recipes(language: str) -> list[str]:
    return blocks(
        section("docs/integrating/forward-auth.md", "Verify that the daemon sent the headers"), language
    )


def python_verifier(secret: str) -> Verifier:
    names: dict[str, Any] = {}
    source = verifier("python")
    environment = 'os.environ["USERS_ASSERTION_SECRET"]'
    assert source.count(environment) == 1
    exec(source.replace(environment, repr(secret)), names)  # noqa: S102 - our own page
    remote_user: Verifier = names["remote_user"]
    return remote_user
