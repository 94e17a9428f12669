"""The doors between the rooms: who may import whom, and where each technology lives."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent

# What each room of the core may import of ours. A new room has to be given its place here. A folder is one room.
BOTTOM = "errors models clock secrets config fields schedule colours text deadline"
JOURNEY = f"{BOTTOM} passwords store throttle lockdown mail"  # and never another journey
ROOMS = {
    "__init__": "",
    "errors": "",
    "models": "",
    "clock": "",
    "secrets": "",
    "schedule": "clock",
    "colours": "",
    "text": "",
    "deadline": "",
    "fields": "errors models",
    "config": "errors fields schedule",
    "passwords": "config errors models",
    "store": "errors models clock fields text",
    "throttle": "errors models clock secrets store",
    "readiness": "errors store",
    "lockdown": "errors models clock store",
    "mail": f"{BOTTOM} store",
    "accounts": JOURNEY,
    "sessions": JOURNEY,
    "registration": JOURNEY,
    "recovery": JOURNEY,
    "oauth": JOURNEY,
    "first_admin": JOURNEY,
    "transfer": JOURNEY,
    "why": JOURNEY,
    "doctor": f"{JOURNEY} oauth",
    "service": f"{JOURNEY} readiness accounts sessions registration recovery oauth first_admin transfer",
}
VISITORS = ("cli", "__main__")  # they may see every room, but not the technology in it

# Technologies, and the only files that import them.
HOMES = {
    "sqlite3": {"store", "transfer"},
    "sqlite_utils": {"store"},
    "bcrypt": {"passwords"},
    "zxcvbn": {"passwords"},
    "secrets": {"secrets"},
    "random": {"mail"},  # when to try again; what must not be guessed is made in secrets
    "email_validator": {"fields"},
    "crontab": {"schedule"},
    "smtplib": {"mail"},
    "requests": {"oauth"},
    "oauthlib": {"oauth"},
    "typer": {"cli", "__main__"},
    "rich": {"cli", "__main__"},
    "click": set(),
    "bottle": {"usersd"},
    "waitress": {"usersd"},
    "prometheus_client": {"usersd"},
    "usersd": {
        "usersd",
        "cli",
    },  # in `cli` inside functions only: a command that needs no daemon does not load it
}
HEAVY = [
    "sqlite_utils",
    "bcrypt",
    "email_validator",
    "zxcvbn",
    "crontab",
    "rich",
    "requests",
    "oauthlib",
    "typer",
]
# What is not at home in the core at all, or only in a room that is entered late.
NOT_AT_THE_START = [
    *HEAVY,
    "bottle",
    "waitress",
    "usersd",
    "email",
    "smtplib",
    "urllib.request",
    "usersctl.mail.writer",
    "usersctl.mail.smtp",
]


class Imported(NamedTuple):
    name: str
    at_the_top: bool  # it is paid for at every start


class Module(NamedTuple):
    path: str
    room: str
    tree: ast.Module

    def imports(self) -> Iterator[Imported]:
        inside = {
            id(node)
            for function in ast.walk(self.tree)
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for node in ast.walk(function)
        }
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.path}: a relative import hides who imports whom"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                yield Imported(name, id(node) not in inside)

    def rooms(self) -> set[str]:
        """The rooms of the core that this one imports."""
        return {name.split(".")[1] for name, _ in self.imports() if name.startswith("usersctl.")} - {
            "__version__"
        }


def modules(folder: Path, root: Path) -> Iterator[Module]:
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        room = parts[1] if parts[0] == "usersctl" else parts[0]
        yield Module(str(path.relative_to(ROOT)), room, ast.parse(path.read_text("utf-8")))


CORE = list(modules(ROOT / "usersctl", ROOT))
DAEMON = list(modules(ROOT / "daemon" / "usersd", ROOT / "daemon"))
every_module = pytest.mark.parametrize("module", CORE + DAEMON, ids=lambda module: module.path)
every_room = pytest.mark.parametrize(
    "module", [module for module in CORE if module.room not in VISITORS], ids=lambda module: module.path
)


def test_there_is_something_to_look_at() -> None:
    assert {"errors", "store", "accounts", "service", *VISITORS} <= {module.room for module in CORE}
    assert sum(len(list(module.imports())) for module in CORE) > 100


@every_room
def test_every_room_has_its_place_and_keeps_to_its_doors(module: Module) -> None:
    assert module.room in ROOMS, f"{module.path}: give it a place in ROOMS"
    # A room may have several files, which are at home with each other.
    assert module.rooms() - {module.room} <= set(ROOMS[module.room].split())


def test_the_table_of_doors_is_sound() -> None:
    journeys = [room for room, doors in ROOMS.items() if doors == JOURNEY and room != "oauth"]
    for room, doors in ROOMS.items():
        assert set(doors.split()) <= set(ROOMS)
        assert room == "service" or not set(doors.split()) & {*journeys, "service", *VISITORS}

    def below(room: str, seen: tuple[str, ...] = ()) -> None:
        assert room not in seen, f"a circle: {seen}"
        for door in ROOMS[room].split():
            below(door, (*seen, room))

    for room in ROOMS:
        below(room)


@every_module
def test_every_technology_has_one_home(module: Module) -> None:
    for name, _ in module.imports():
        technology = name.split(".")[0]
        assert module.room in HOMES.get(technology, {module.room}), f"{module.path} imports {name}"


@every_module
def test_the_command_imports_the_daemon_inside_functions_only(module: Module) -> None:
    for name, at_the_top in module.imports():
        assert name != "importlib.import_module", f"{module.path} hides what it imports"
        assert not (module.room == "cli" and name.split(".")[0] == "usersd" and at_the_top), module.path


@every_module
def test_the_clock_is_read_in_one_place(module: Module) -> None:
    read = {
        "datetime.now",
        "datetime.utcnow",
        "datetime.today",
        "date.today",
        "time.time",
        "time.time_ns",
        "time.localtime",
        "time.gmtime",
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute):
            said = ".".join(ast.unparse(node).split(".")[-2:])
            assert said not in read or module.room == "clock", f"{module.path}:{node.lineno}: {said}"
    for name, _ in module.imports():
        assert name not in read, f"{module.path} imports {name}"


@every_room
def test_heavy_libraries_are_imported_by_the_function_that_needs_them(module: Module) -> None:
    for name, at_the_top in module.imports():
        assert not (at_the_top and name.split(".")[0] in HEAVY), (
            f"{module.path} imports {name} at every start"
        )


def test_the_core_starts_without_a_heavy_library() -> None:
    code = (
        f"import sys, usersctl.service; print([name for name in {NOT_AT_THE_START} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


@every_module
def test_a_visitor_knows_nothing_of_sql(module: Module) -> None:
    if module.room in HOMES["sqlite3"]:
        return
    statement = re.compile(
        r"\b(SELECT .+ FROM|INSERT INTO|DELETE FROM|UPDATE \w+ SET|PRAGMA \w+|CREATE TABLE)\b"
    )
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not statement.search(node.value), f"{module.path}:{node.lineno}"


@every_module
def test_every_module_says_what_it_is_for(module: Module) -> None:
    said = ast.get_docstring(module.tree)
    assert said, f"{module.path}: one sentence of docstring"
    assert [other.path for other in CORE + DAEMON if ast.get_docstring(other.tree) == said] == [module.path]


@every_module
def test_nothing_has_a_name_that_says_nothing(module: Module) -> None:
    empty = re.compile(
        r"(^|_|[a-z])(Manager|Helper|Base|Impl|Util|Common)s?$|^(manager|helper|base|impl|util|common)s?$"
    )
    names = [
        Path(module.path).stem,
        *(node.name for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)),
    ]
    for name in names:
        assert not empty.search(name), f"{module.path}: {name}"


def test_an_error_of_the_core_has_its_code_and_no_status() -> None:
    from usersctl import errors

    classes = [
        each for each in vars(errors).values() if isinstance(each, type) and not each.__name__.startswith("_")
    ]
    codes = [vars(each)["code"] for each in classes if "code" in vars(each)]
    assert len(codes) >= 10
    assert len(set(codes)) == len(codes)
    text = (ROOT / "usersctl" / "errors.py").read_text("utf-8")
    assert not re.search(r"\b[45]\d\d\b", text)


def test_a_user_has_no_password_to_leak() -> None:
    from usersctl.models import Session, User

    assert not [
        name
        for name in (*User._fields, *Session._fields)
        if "password" in name or "hash" in name or name == "token"
    ]
