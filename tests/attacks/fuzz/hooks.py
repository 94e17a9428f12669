"""Hooks of schemathesis: every request has a valid session, also after a request that ended the last one."""

import os
import re
import secrets
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import strategies as st

from usersctl.config import Settings
from usersctl.models import Actor, User
from usersctl.service import Service, build

OPERATOR = Actor("cli:tester", "local")
PASSWORD = "correct horse battery"


@cache
def service() -> Service:
    return build(
        Settings(database=Path(os.environ["USERS_DATABASE"]), base_url="http://127.0.0.1:8080", rounds=4)
    )


class Caller:
    """A user with this role, replaced by a new one when a request changed it."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.user: User | None = None
        self.token = ""

    def good_token(self) -> str:
        checked = service().sessions.check(self.token) if self.token else None
        if checked is None or checked[1].role != self.role:
            self.token = self._new_token()
        return self.token

    def _new_token(self) -> str:
        accounts = service().accounts
        newcomer = accounts.newcomer(f"{secrets.token_hex(6)}@example.com", "Caller", self.role)
        user = accounts.create(newcomer, PASSWORD, by=OPERATOR)
        opened = service().sessions.create_api_token(
            user.id, name="fuzz", lifetime=timedelta(days=1), by=OPERATOR
        )
        return opened.token


# Well-formed values that the service would rarely accept by chance: addresses and passwords.
_LIKELY: dict[str, tuple[re.Pattern[str], st.SearchStrategy[str]]] = {
    "email": (
        re.compile(r"(?=.{6,254}$)[^@\s]+@[^@\s]+\.[^@\s]+"),
        st.one_of(st.just("ada@example.com"), st.integers(1, 10**6).map(lambda n: f"u{n}@example.com")),
    ),
    "name": (
        re.compile(r".{1,200}", re.DOTALL),
        st.sampled_from(["Ada", "\u00c9milie", "\u5b50", "<b>Tim</b>"]),
    ),
}
for _field in (
    "password",
    "password_confirmation",
    "currentPassword",
    "newPassword",
    "newPasswordConfirmation",
):
    _LIKELY[_field] = re.compile(r".{8,72}", re.DOTALL), st.sampled_from([PASSWORD, "another horse battery"])


@schemathesis.hook
def flatmap_body(_context: Any, body: Any) -> st.SearchStrategy[Any]:
    """The body as generated, or with acceptable values in place of the generated ones."""
    if not isinstance(body, dict):
        return st.just(body)
    likely = {
        name: strategy
        for name, (form, strategy) in _LIKELY.items()
        if isinstance(body.get(name), str) and form.fullmatch(body[name])
    }
    return st.one_of(st.just(body), st.fixed_dictionaries(likely).map(lambda fields: body | fields))


_caller = Caller(os.environ["FUZZ_AS"])

if _caller.role != "nobody":

    @schemathesis.auth(refresh_interval=None)
    class Signed:
        def get(self, _case: Any, _context: Any) -> str:
            return _caller.good_token()

        def set(self, case: Any, token: str, _context: Any) -> None:
            case.headers = {**(case.headers or {}), "Authorization": f"Bearer {token}"}
