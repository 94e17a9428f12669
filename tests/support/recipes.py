"""The verifiers that the README tells an application to copy, taken from there as they stand."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

README = Path(__file__).parents[2] / "README.md"

Verifier = Callable[[dict[str, Any]], dict[str, Any] | None]


def verifier(language: str) -> str:
    text = README.read_text("utf-8").partition("\n### Proof that it was the daemon\n")[2]
    found = re.search(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def python_verifier(secret: str) -> Verifier:
    names: dict[str, Any] = {}
    source = verifier("python")
    told = 'os.environ["USERS_ASSERTION_SECRET"]'
    assert source.count(told) == 1
    exec(source.replace(told, repr(secret)), names)  # noqa: S102 - our own page
    found: Verifier = names["remote_user"]
    return found
