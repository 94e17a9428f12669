"""Reads the file of `usersctl apply`: TOML or JSON, checked as a whole, each problem with its place."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from usersctl.errors import Invalid, UsersError
from usersctl.fields import (
    TwinKeys,
    is_text,
    normal_email,
    normal_group,
    normal_name,
    normal_role,
    problem_of_toml,
    unique_keys,
)
from usersctl.models import Role
from usersctl.named import NamedTuple
from usersctl.state.lines import WHOLE, Place, Places, twin_of_json
from usersctl.text import counted, visible

LARGEST = 64 * 1024 * 1024  # bytes
MOST_GROUPS = 1_000  # of one account


class Problem(NamedTuple):
    where: str  # the place in the file, such as "line 7", or WHOLE
    message: str


class Broken(Invalid):
    """A file that cannot be applied; nothing was changed."""

    def __init__(self, problems: list[Problem]) -> None:
        count = counted(len(problems), "problem")
        hint = "what may stand in it: usersctl apply --help"
        super().__init__(f"{count} in the file; nothing was done", hint=hint)
        self.problems = problems


class WantedUser(NamedTuple):
    """In the stored form of the fields. None: the file leaves it open, and it stays as it is."""

    number: int  # of the entry, from 0 on
    email: str
    name: str | None = None
    role: str | None = None
    active: bool | None = None
    groups: tuple[str, ...] | None = None
    invite: bool = False

    def place(self, key: str = "email") -> Place:
        return ("users", self.number, key)


class WantedGroup(NamedTuple):
    number: int
    name: str

    def place(self) -> Place:
        return ("groups", self.number, "name")


class State(NamedTuple):
    name: str
    users: tuple[WantedUser, ...]
    groups: tuple[WantedGroup, ...]
    places: Places


_KEYS = ("name", "users", "groups")
_KEYS_OF_A_USER = ("email", "name", "role", "active", "groups", "invite")
_KEYS_OF_A_GROUP = ("name",)
_SECRETS = ("password", "password_hash", "passwordHash")


def read_state(content: bytes) -> State:
    """Raises Broken with all problems of the file."""
    return _parsed(content).state()


def _parsed(content: bytes) -> "_Reading":
    if len(content) > LARGEST:
        raise Broken([Problem(WHOLE, f"it is larger than {LARGEST // 1024 // 1024} MiB")])
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Broken([Problem(f"line {line}", "it is not UTF-8")]) from None
    text = text.replace("\r\n", "\n")
    if text.lstrip().startswith(("{", "[{", "[\n")):
        return _Reading(_json(text), Places(text, is_json=True))
    import tomllib

    try:
        return _Reading(tomllib.loads(text), Places(text, is_json=False))
    except (ValueError, RecursionError) as error:
        # Also of a number with thousands of digits, without a place.
        message, has_place, place = problem_of_toml(error).rpartition(" (at ")
        if not has_place:
            message, place = place, WHOLE
        raise Broken([Problem(place.removesuffix(")"), f"it is not TOML: {message}")]) from None


def _json(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text, object_pairs_hook=unique_keys)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise Broken([Problem(place, f"it is not JSON: {error.msg}")]) from None
    except TwinKeys:
        line, key = twin_of_json(text)
        message = f"{visible(key[:60])} stands twice in one object"
        raise Broken([Problem(f"line {line}", message)]) from None
    except (ValueError, RecursionError) as error:
        raise Broken([Problem(WHOLE, f"it is not JSON: {error}")]) from None
    if not isinstance(document, dict):
        raise Broken([Problem(WHOLE, "it must be a JSON object with name, users and groups")])
    return document


class _Reading:
    def __init__(self, document: dict[str, Any], places: Places) -> None:
        self.document = document
        self.places = places
        self.problems: list[tuple[Place, str]] = []

    def state(self) -> State:
        self._refuse_unknown(self.document, _KEYS, "", None)
        name = self._field(self.document, "name", _name_of_file, "", None)
        if "name" not in self.document:
            example = '"name": "people"' if self.places.is_json else 'name = "people"'
            self._refuse(("name", None, None), f"it has no name; begin it with one, such as {example}")
        groups = tuple(self._groups())
        users = tuple(self._users())
        self._refuse_twins("users", ((user.place(), user.email) for user in users))
        self._refuse_twins("groups", ((group.place(), group.name) for group in groups))
        if self.problems:
            self.problems.sort(key=lambda problem: self.places.line(problem[0]))
            raise Broken([Problem(self.places.named(place), message) for place, message in self.problems])
        return State(name, users, groups, self.places)

    def _groups(self) -> Iterator[WantedGroup]:
        for number, entry in self._entries("groups", _KEYS_OF_A_GROUP):
            name = self._required(entry, "name", _group, "groups", number)
            if name is not None:
                yield WantedGroup(number, name)

    def _users(self) -> Iterator[WantedUser]:
        for number, entry in self._entries("users", _KEYS_OF_A_USER):
            email = self._required(entry, "email", _email, "users", number)
            rest = {key: self._field(entry, key, check, "users", number) for key, check in _CHECKS.items()}
            invite = rest.pop("invite") or False
            if invite and rest["active"] is False:
                message = "invite is for accounts that are to be used: leave it out, or active = false"
                self._refuse(("users", number, "invite"), message)
            if email is not None:
                yield WantedUser(number, email, **rest, invite=invite)

    def _entries(self, kind: str, known: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
        entries = self.document.get(kind, [])
        if not isinstance(entries, list):
            self._refuse((kind, None, None), f"{kind} must be a list: write each entry below [[{kind}]]")
            return
        for number, entry in enumerate(entries):
            entries[number] = None  # so that memory holds each entry once
            if not isinstance(entry, dict):
                message = f"an entry of {kind} must be a table of {', '.join(known)}"
                self._refuse((kind, number, None), message)
                continue
            self._refuse_unknown(entry, known, kind, number)
            yield number, entry

    def _required(
        self, entry: dict[str, Any], key: str, check: Callable[[Any], Any], kind: str, number: int
    ) -> Any:
        if key not in entry:
            self._refuse((kind, number, None), f"{key} is missing")
        return self._field(entry, key, check, kind, number)

    def _field(
        self, entry: dict[str, Any], key: str, check: Callable[[Any], Any], kind: str, number: int | None
    ) -> Any:
        """None if the entry has no such key, or a wrong value."""
        if key not in entry:
            return None
        try:
            return check(entry[key])
        except UsersError as error:
            self._refuse(_place(kind, number, key), f"{key}: {error.in_full}")
            return None

    def _refuse_unknown(
        self, entry: dict[str, Any], known: tuple[str, ...], kind: str, number: int | None
    ) -> None:
        for key in entry:
            if key in _SECRETS:
                message = (
                    f"{key}: passwords never stand in this file; invite = true lets the owner choose one"
                )
                self._refuse(_place(kind, number, key), message)
            elif key not in known:
                shown = visible(key[:60])
                self._refuse(_place(kind, number, key), f"unknown key {shown}{_guess(key, known)}")

    def _refuse_twins(self, kind: str, entries: Iterable[tuple[Place, str]]) -> None:
        first: dict[str, Place] = {}
        for place, key in entries:
            if key in first:
                self._refuse(place, f"{key} stands in {kind} twice: see {self.places.named(first[key])}")
            first.setdefault(key, place)

    def _refuse(self, place: Place, message: str) -> None:
        self.problems.append((place, message))


def _place(kind: str, number: int | None, key: str) -> Place:
    return (kind, number, key) if kind else (key, None, None)


def _guess(key: str, known: tuple[str, ...]) -> str:
    import difflib

    nearest = difflib.get_close_matches(key.lower(), known, n=1)
    perhaps = "".join(f"; perhaps {name}" for name in nearest)
    return f"{perhaps}; known are {', '.join(known)}"


# --- values ---


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Invalid("must be text in quotes")
    if not is_text(value):
        raise Invalid("holds a character that no text may hold")
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Invalid("must be true or false")
    return value


def _name_of_file(value: Any) -> str:
    return normal_name(_text(value))


def _email(value: Any) -> str:
    return normal_email(_text(value))


def _group(value: Any) -> str:
    return normal_group(_text(value))


def _role(value: Any) -> str:
    if not isinstance(value, str):
        raise Invalid(f"must be one of {', '.join(Role)}")
    return normal_role(value)


def _groups(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MOST_GROUPS:
        raise Invalid(f'must be a list of at most {MOST_GROUPS:,} names, such as ["staff", "board"]')
    return tuple(sorted({_group(name) for name in value}))


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "name": _name_of_file,
    "role": _role,
    "active": _boolean,
    "groups": _groups,
    "invite": _boolean,
}
