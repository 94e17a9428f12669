"""The rules of the structure: who may import whom, where each technology lives, which folder holds what."""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from support.modules import Module, Modules, circles, imported_modules, nearest, read_modules

ROOT = Path(__file__).parent.parent

# --- doors: what each room may import of ours. A room is a module or a folder; a new one gets its place here. ---

BOTTOM = "errors events models clock durations secrets config fields schedule colours text store.conninfo"
JOURNEY = (  # and never another journey
    f"{BOTTOM} foreign_hashes passwords store permissions throttle devices lockdown mail invited addresses credentials"
    " changes groups ways_in factors.sealing factors.changes"
)
CORE = {
    "errors": "",
    "models": "",
    "clock": "",
    "durations": "clock errors",
    "secrets": "",
    "colours": "",
    "text": "",
    "folding": "",
    "deadline": "",
    "lazy": "",
    "named": "",
    "ownership": "",
    "schedule": "clock",
    "identity_headers": "",
    "fields": "clock errors models",
    "events": "",
    "config": "errors events fields identity_headers models schedule store.conninfo",
    "scopes": "errors text",
    "networks": "config errors",
    "foreign_hashes": "",
    "passwords": "config errors folding foreign_hashes models",
    "store": "clock deadline errors fields folding models ownership secrets store.conninfo text",
    "store.conninfo": "errors",
    "permissions": "clock errors models store",
    "throttle": "errors models clock secrets store passwords permissions",
    "devices": "clock errors models secrets store",
    "readiness": "errors store",
    "session_uses": "errors models store",
    "lockdown": "errors models store permissions",
    "outgoing": "clock errors models store",
    "mail": f"{BOTTOM} store ownership permissions outgoing",
    "invited": f"{BOTTOM} store mail",
    "addresses": f"{BOTTOM} passwords store mail invited",
    "credentials": f"{BOTTOM} store mail invited",
    "changes": "credentials errors invited models permissions store",
    "groups": "errors fields models store permissions",
    "ways_in": "config passwords store",
    "accounts": JOURNEY,
    "claims": JOURNEY,
    "sessions": f"{JOURNEY} networks session_uses",
    "cleanup": JOURNEY,
    "registration": JOURNEY,
    "recovery": JOURNEY,
    "deletion": JOURNEY,
    "invitations": JOURNEY,
    "freshness": JOURNEY,
    "oauth": JOURNEY,
    "first_admin": JOURNEY,
    "transfer": JOURNEY,
    "state": JOURNEY,
    "why": JOURNEY,
    "trail": JOURNEY,
    "overview": JOURNEY,
    "webhooks": f"{BOTTOM} deadline outgoing store",
    "factors": f"{JOURNEY} factors.recovery_codes",
    "factors.recovery_codes": "secrets",
    "factors.changes": f"{BOTTOM} store mail factors.recovery_codes",
    "factors.sealing": "clock config errors ownership secrets store",
    "doctor": f"{JOURNEY} deadline oauth",
    "service": (
        f"{JOURNEY} readiness accounts claims session_uses sessions cleanup registration recovery deletion invitations freshness"
        " oauth first_admin transfer state why trail overview factors webhooks"
    ),
}
DAEMON = {
    "cookies": "",
    "response": "",
    "log": "",
    "assurance": "",
    "page_access": "assurance",
    "server.lanes": "",
    "server.systemd": "",
    "threads": "",
    "openapi.schemas": "",
    "request": "cookies server.lanes",
    "routing": "request response server.lanes",
    "router": "routing server.lanes",
    "inputs": "openapi.schemas request",
    "access": "assurance request response",
    "openapi": "access inputs openapi.schemas request response routing",
    "pages": "access assurance inputs openapi openapi.schemas page_access request response",
    "handlers": "access cookies inputs openapi openapi.schemas pages page_access request response",
    "routes": "handlers openapi pages routing server.lanes",
    "rate_limits": "routing",
    "counters": "routing",
    "metrics": "counters routing server",
    "app": "access counters handlers log pages page_access rate_limits request response router routes routing server.lanes",
    "check": "handlers pages routes",
    "announce": "log",
    "embedded": "announce app background check log threads",
    "gate": "access app embedded pages page_access request response threads",
    "dev_provider": "pages request response routing",
    "dev_proxy": "access app handlers pages request response server server.lanes",
    "development": "dev_provider dev_proxy page_access routes routing",
    "server": "request response server.lanes server.systemd",
    "background": "log",
}
DAEMON["start"] = " ".join(DAEMON)
DAEMON["wsgi"] = "announce check embedded log request response server start"
ROOMS = {
    **{f"usersctl.{room}": {f"usersctl.{door}" for door in doors.split()} for room, doors in CORE.items()},
    **{f"usersd.{room}": {f"usersd.{door}" for door in doors.split()} for room, doors in DAEMON.items()},
}
CORE_ROOMS = {f"usersctl.{room}" for room in CORE}
# Open to every room: what the standard library has, quicker.
QUICKER = ("usersctl.lazy", "usersctl.named")
# They may enter every room of the core. The packages themselves hold a version and a docstring.
VISITORS = ("usersctl.cli", "usersctl.__main__", "usersd.__main__", "tests")
PACKAGES = ("usersctl", "usersd")

# --- homes: technologies, and the only files that import them ---

COMMAND = ("usersctl/cli/", "usersctl/__main__.py")
HOMES = {
    "sqlite3": ("usersctl/store/", "usersctl/transfer/foreign.py"),
    "sqlite_utils": ("usersctl/store/upgrade.py",),
    "psycopg": ("usersctl/store/postgres/",),
    "bcrypt": ("usersctl/passwords.py",),
    "argon2": ("usersctl/foreign_hashes.py",),
    "zxcvbn": ("usersctl/passwords.py",),
    "secrets": ("usersctl/secrets.py",),
    "random": ("usersctl/outgoing.py",),  # spreads retries; what must not be guessed comes from secrets
    "email_validator": ("usersctl/fields.py",),
    "crontab": ("usersctl/schedule.py",),
    "smtplib": ("usersctl/mail/smtp.py",),
    "requests": ("usersctl/oauth/http.py",),
    "urllib3": ("usersctl/oauth/http.py",),
    "oauthlib": ("usersctl/oauth/providers.py",),
    "jwt": ("usersctl/oauth/id_token.py", "daemon/usersd/dev_provider.py"),
    "cryptography": ("usersctl/factors/", "daemon/usersd/dev_provider.py"),
    "typer": COMMAND,
    "rich": COMMAND,
    "click": (),
    "bottle": (
        "daemon/usersd/router.py",
        "daemon/usersd/openapi/",
        "daemon/usersd/pages/",
    ),
    "waitress": ("daemon/usersd/server/",),
    "prometheus_client": ("daemon/usersd/metrics.py",),
}
SQL_HOMES = HOMES["sqlite3"]
CLOCK_HOME = "usersctl/clock.py"
# It names the functions of usersctl/cli/ as text, so that a command imports its own module only. Other tests load them all.
TABLE_OF_COMMANDS = "usersctl/cli/tree.py"
CONSTRUCTORS = "usersctl/named.py"  # it compiles those of named tuples
HEAVY = {
    "sqlite_utils",
    "argon2",
    "bcrypt",
    "email_validator",
    "zxcvbn",
    "crontab",
    "rich",
    "requests",
    "oauthlib",
    "jwt",
    "cryptography",
    "typer",
}
# Libraries that the core does not import, or only where they are used.
NOT_AT_THE_START = [
    *sorted(HEAVY),
    "psycopg",
    "bottle",
    "waitress",
    "usersd",
    "email",
    "smtplib",
    "urllib.request",
    "usersctl.mail.writer",
    "usersctl.mail.smtp",
    "usersctl.foreign_hashes",
    "usersctl.webhooks",
]

# --- the rules: each yields one line for every place that breaks it ---

Rule = Callable[[Modules], Iterator[str]]
RULES: dict[str, Rule] = {}


def rule(function: Rule) -> Rule:
    RULES[function.__name__] = function
    return function


def product(modules: Modules) -> list[Module]:
    return [module for module in modules.values() if not module.name.startswith("tests.")]


def dotted(node: ast.AST) -> str:
    """The last two names of an attribute, as in datetime.now."""
    if not isinstance(node, ast.Attribute):
        return node.id if isinstance(node, ast.Name) else ""
    owner = node.value.attr if isinstance(node.value, ast.Attribute) else dotted(node.value)
    return f"{owner}.{node.attr}"


def is_below(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def is_at_home(module: Module, homes: tuple[str, ...]) -> bool:
    return any(module.path == home or (home.endswith("/") and module.path.startswith(home)) for home in homes)


@rule
def no_modules_import_one_another(modules: Modules) -> Iterator[str]:
    for circle in circles({module.name: module for module in product(modules)}):
        yield " <-> ".join(circle)


@rule
def every_module_has_a_room(modules: Modules) -> Iterator[str]:
    for module in product(modules):
        if module.name not in PACKAGES and not is_below(module.name, *ROOMS, *VISITORS):
            yield f"{module.path}: give it a place in ROOMS, or move it into the room where it belongs"


@rule
def every_room_keeps_to_its_doors(modules: Modules) -> Iterator[str]:
    for module in product(modules):
        room = nearest(module.name, ROOMS)
        if not room:
            continue
        for target in sorted(imported_modules(module, modules)):
            # Only the entry point of the daemon may enter the command; any other room of the core is open to it.
            is_open = room.startswith("usersd.") and is_below(target, *CORE_ROOMS)
            if (
                target not in (*PACKAGES, *QUICKER)
                and not is_open
                and nearest(target, ROOMS) not in {room, *ROOMS[room]}
            ):
                yield f"{module.path} imports {target}"


@rule
def the_core_never_imports_the_daemon(modules: Modules) -> Iterator[str]:
    """The command may, in the function that needs it, so that other commands start without the daemon."""
    for module in product(modules):
        for name, at_the_top in module.imports:
            allowed = is_below(module.name, "usersctl.cli") and not at_the_top
            if is_below(name, "usersd") and not is_below(module.name, "usersd") and not allowed:
                yield f"{module.path} imports {name}"


@rule
def no_import_hides_behind_a_string(modules: Modules) -> Iterator[str]:
    tricks = {"import_module", "__import__", "exec", "eval", "spec_from_file_location"}
    for module in product(modules):
        if module.path in (TABLE_OF_COMMANDS, CONSTRUCTORS):
            continue
        for name, _ in module.imports:
            if is_below(name, "importlib") and not is_below(name, "importlib.metadata"):
                yield f"{module.path} imports {name}"
        for node in module.nodes:
            if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in tricks:
                yield f"{module.path}:{node.lineno}: {dotted(node.func)}"


@rule
def every_technology_has_one_home(modules: Modules) -> Iterator[str]:
    for module in product(modules):
        for name, _ in module.imports:
            technology = name.partition(".")[0]
            if technology in HOMES and not is_at_home(module, HOMES[technology]):
                yield f"{module.path} imports {name}"


@rule
def every_named_tuple_is_quick_to_define(modules: Modules) -> Iterator[str]:
    for module in product(modules):
        if "typing.NamedTuple" in (name for name, _ in module.imports) and module.name not in QUICKER:
            yield f"{module.path}: take NamedTuple from usersctl.named"


@rule
def only_the_store_knows_sql(modules: Modules) -> Iterator[str]:
    statement = re.compile(
        r"\b(SELECT .+ FROM|INSERT INTO|DELETE FROM|UPDATE \w+ SET|PRAGMA \w+|CREATE TABLE)\b"
    )
    for module in product(modules):
        for node in module.nodes:
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and statement.search(text) and not is_at_home(module, SQL_HOMES):
                yield f"{module.path}:{ast.unparse(node)[:60]}"


@rule
def the_clock_is_read_in_one_place(modules: Modules) -> Iterator[str]:
    readings = {
        "datetime.now",
        "datetime.utcnow",
        "datetime.today",
        "date.today",
        "time.time",
        "time.time_ns",
        "time.localtime",
        "time.gmtime",
    }
    for module in product(modules):
        if module.path == CLOCK_HOME:
            continue
        names = [name for name, _ in module.imports]
        names += [dotted(node) for node in module.nodes if isinstance(node, ast.Attribute)]
        for name in names:
            if ".".join(name.split(".")[-2:]) in readings:
                yield f"{module.path}: {name}"


@rule
def a_heavy_library_is_imported_by_the_function_that_needs_it(modules: Modules) -> Iterator[str]:
    for module in product(modules):
        for name, at_the_top in module.imports:
            if at_the_top and name.partition(".")[0] in HEAVY and is_below(module.name, *CORE_ROOMS):
                yield f"{module.path} imports {name} at every start"


@rule
def showing_calls_no_journey(modules: Modules) -> Iterator[str]:
    for module in product(modules):
        for target in imported_modules(module, modules):
            journeys = is_below(target, *CORE_ROOMS) and CORE[target.split(".")[1]].startswith(JOURNEY)
            if is_below(module.name, "usersctl.cli.show") and journeys:
                yield f"{module.path} imports {target}"


@rule
def a_handler_is_in_its_folder_and_in_the_table(modules: Modules) -> Iterator[str]:
    """A handler is a public function of the request and the service."""
    table = {dotted(node) for node in modules["usersd.routes"].nodes}
    for module in product(modules):
        name = module.name.rpartition(".")[2]
        functions = [node for node in module.tree.body if isinstance(node, ast.FunctionDef)]
        handlers = [function.name for function in functions if _is_handler(function)]
        in_folder = is_below(module.name, "usersd.handlers")
        if in_folder and module.name != "usersd.handlers" and not handlers:
            yield f"{module.path}: no handler in it"
        for handler in handlers:
            if in_folder and f"{name}.{handler}" not in table:
                yield f"{module.path}: {handler} has no route"


def _is_handler(function: ast.FunctionDef) -> bool:
    parameters = [argument.arg.lstrip("_") for argument in function.args.args]
    return not function.name.startswith("_") and parameters == ["request", "service"]


# Writes that change nothing for a caller: the record of what was done with rights.
WITHOUT_RIGHTS = {"usersctl/cleanup.py: _record"}


@rule
def a_change_for_a_caller_checks_rights_in_its_transaction(modules: Modules) -> Iterator[str]:
    """By `admit`; a journey that is open to anyone refuses in a lockdown. Its caller is the parameter `by`."""
    for module in product(modules):
        for function in module.functions:
            place = f"{module.path}: {function.name}"
            parameters = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}
            if "by" in parameters and is_below(module.name, *CORE_ROOMS) and place not in WITHOUT_RIGHTS:
                for transaction in _writes(function):
                    if not {"admit", "refuse_in_lockdown"} & _calls(transaction.body):
                        yield f"{place}, line {transaction.lineno}"


def _writes(function: ast.AST) -> Iterator[ast.With]:
    for node in ast.walk(function):
        if isinstance(node, ast.With) and "store.write" in _calls(node.items):
            yield node


def _calls(nodes: Sequence[ast.AST]) -> set[str]:
    return {dotted(call.func) for node in nodes for call in ast.walk(node) if isinstance(call, ast.Call)}


@rule
def every_module_says_what_it_is_for(modules: Modules) -> Iterator[str]:
    seen: dict[str, str] = {}
    for module in product(modules):
        purpose = ast.get_docstring(module.tree)
        if not purpose:
            yield f"{module.path}: one sentence of docstring"
        elif purpose in seen:
            yield f"{module.path} says the same as {seen[purpose]}"
        else:
            seen[purpose] = module.path


@rule
def no_name_is_empty(modules: Modules) -> Iterator[str]:
    empty = re.compile(
        r"(^|_|[a-z])(Manager|Helper|Base|Impl|Util|Common)s?$|^(manager|helper|base|impl|util|common)s?$"
    )
    for module in product(modules):
        for name in (module.name.rpartition(".")[2], *(node.name for node in module.classes)):
            if empty.search(name):
                yield f"{module.path}: {name}"


@rule
def no_function_is_longer_than_a_screen(modules: Modules) -> Iterator[str]:
    for module in product(modules):
        for function in module.functions:
            lines = (function.end_lineno or 0) - function.lineno + 1
            if lines > 60:
                yield f"{module.path}: {function.name} has {lines} lines"


@rule
def no_conditional_expression_holds_another(modules: Modules) -> Iterator[str]:
    for module in product(modules):
        for node in module.nodes:
            if isinstance(node, ast.IfExp):
                for inner in ast.walk(node):
                    if isinstance(inner, ast.IfExp) and inner is not node:
                        yield f"{module.path}:{node.lineno}"


@rule
def no_test_imports_a_test(modules: Modules) -> Iterator[str]:
    for module in modules.values():
        for name, _ in module.imports:
            if module.name.startswith("tests.") and re.search(r"(^|\.)(test_\w+|conftest)(\.|$)", name):
                yield f"{module.path} imports {name}: move the helper to tests/support"


# What tests of a folder are about, by what they import or take, and what they leave to other folders.
OF_A_FOLDER: dict[str, tuple[str, str]] = {
    "core": (r"^(usersctl|support)\.", r"^(usersd|usersctl\.cli|typer)\b"),
    "interface": (r"^(usersd\b|support\.(web|daemons|proxies|oauth_site|visitors)\.)", r"^typer\b"),
    "cli": (r"^(usersctl\.cli\b|support\.commands\.)", r"^$"),
    "attacks": (r"^support\.(web|oauth_site)\.", r"^$"),
    "faults": (r"^support\.(faults|daemons|killed)\.", r"^$"),
    "browser": (r"^support\.visitors\.|^support\.proxies\.", r"^$"),
    "": (r"", r"^(usersctl\.(accounts|sessions|recovery|registration)|usersd\.(app|server))\b"),
}


@rule
def a_test_is_in_the_folder_of_what_it_tests(modules: Modules) -> Iterator[str]:
    for module in modules.values():
        folder, _, stem = module.path.removeprefix("tests/").rpartition("/")
        if not stem.startswith("test_"):
            continue
        if folder not in OF_A_FOLDER:
            yield f"{module.path}: there is no such folder of tests"
            continue
        wanted, foreign = OF_A_FOLDER[folder]
        names = [name for name, _ in module.imports]
        if not any(re.search(wanted, name) for name in names):
            yield f"{module.path}: uses nothing of what tests/{folder} is about"
        for name in names:
            if re.search(foreign, name):
                yield f"{module.path} imports {name}"


# --- the tests ---


@cache
def checkout() -> Modules:
    """Read by the first test that needs it, because every worker imports this file."""
    return read_modules(ROOT)


@pytest.mark.slow
def test_the_rules_see_the_modules() -> None:
    assert {
        "usersctl.errors",
        "usersctl.accounts",
        "usersctl.cli.tree",
        "usersd.routes",
        "tests.conftest",
    } <= set(checkout())
    assert sum(len(module.imports) for module in product(checkout())) > 500
    assert {nearest(module.name, ROOMS) for module in product(checkout())} - {""} == set(ROOMS)


@pytest.mark.parametrize("name", RULES)
def test_the_code_keeps_every_rule(name: str) -> None:
    assert list(RULES[name](checkout())) == []


HANDLER = '"""One."""\ndef handle(request: object, service: object) -> None: ...\n'
# For each rule, files that break it.
BREAKING: dict[str, list[dict[str, str]]] = {
    "no_modules_import_one_another": [
        {
            "usersctl/first.py": "from usersctl.second import A",
            "usersctl/second.py": "def f():\n    import usersctl.third",
            "usersctl/third.py": "if TYPE_CHECKING:\n    from usersctl import first",
        },
        {"daemon/usersd/cookies.py": "from usersd.access import A"},
    ],
    "every_module_has_a_room": [{"usersctl/planted.py": ""}, {"daemon/usersd/planted/__init__.py": ""}],
    "every_room_keeps_to_its_doors": [
        {"usersctl/recovery.py": "from usersctl.sessions import Sessions"},
        {"usersctl/store/planted.py": "from usersctl import accounts"},
        {"daemon/usersd/handlers/planted.py": "from usersd.app import App"},
        {"daemon/usersd/server/planted.py": "from usersd.handlers import users"},
        {"daemon/usersd/background/planted.py": "def f():\n    from usersd.request import Request"},
        {"daemon/usersd/app.py": "from usersctl.cli.tree import command_tree"},
    ],
    "the_core_never_imports_the_daemon": [
        {"usersctl/planted.py": "def f():\n    from usersd.app import App"},
        {"usersctl/cli/planted.py": "from usersd.app import App"},
    ],
    "no_import_hides_behind_a_string": [
        {"usersctl/cli/planted.py": "from importlib import import_module"},
        {"usersctl/cli/planted.py": "import importlib"},
        {"usersctl/planted.py": "app = __import__('usersd.app')"},
        {"usersctl/planted.py": "exec('import usersd')"},
        {"daemon/usersd/tree.py": "from importlib import import_module"},
    ],
    "every_technology_has_one_home": [
        {"usersctl/accounts.py": "import sqlite3"},
        {"usersctl/mail/planted.py": "def f():\n    from requests.adapters import HTTPAdapter"},
        {"usersctl/oauth/sign_in.py": "import oauthlib.oauth2"},
        {"usersctl/why.py": "import rich"},
        {"daemon/usersd/handlers/planted.py": "import bottle"},
        {"usersctl/cli/planted.py": "import click"},
    ],
    "every_named_tuple_is_quick_to_define": [{"usersctl/accounts.py": "from typing import Any, NamedTuple"}],
    "only_the_store_knows_sql": [
        {"usersctl/accounts.py": "query = 'SELECT id FROM users'"},
        {"daemon/usersd/planted.py": "f'DELETE FROM {table}'"},
    ],
    "the_clock_is_read_in_one_place": [
        {"usersctl/accounts.py": "datetime.datetime.now()"},
        {"daemon/usersd/planted.py": "from time import time"},
    ],
    "a_heavy_library_is_imported_by_the_function_that_needs_it": [{"usersctl/passwords.py": "import bcrypt"}],
    "showing_calls_no_journey": [{"usersctl/cli/show/planted.py": "from usersctl.accounts import Accounts"}],
    "a_handler_is_in_its_folder_and_in_the_table": [
        {"daemon/usersd/handlers/planted.py": HANDLER},
        {"daemon/usersd/handlers/planted.py": "def helps(request): ..."},
        {"daemon/usersd/handlers/users.py": HANDLER},
    ],
    "a_change_for_a_caller_checks_rights_in_its_transaction": [
        {
            "usersctl/accounts.py": "def rename(self, *, by):\n    with self.store.write() as tx:\n        tx.change_user(1)"
        },
    ],
    "every_module_says_what_it_is_for": [
        {"usersctl/planted.py": "x = 1"},
        {"usersctl/a.py": "'''Same.'''", "usersctl/b.py": "'''Same.'''"},
    ],
    "no_name_is_empty": [{"usersctl/planted.py": "class UserManager: ..."}, {"usersctl/cli/utils.py": ""}],
    "no_function_is_longer_than_a_screen": [{"usersctl/planted.py": "def f():\n" + "    x = 1\n" * 60}],
    "no_conditional_expression_holds_another": [
        {"usersctl/planted.py": "x = 1 if a else 2 if b else 3"},
        {"usersctl/planted.py": "x = (1 if a else 2) if b else 3"},
    ],
    "no_test_imports_a_test": [
        {"tests/core/test_planted.py": "from cli.test_accounts import helper"},
        {"tests/support/planted.py": "from conftest import PASSWORD"},
    ],
    "a_test_is_in_the_folder_of_what_it_tests": [
        {"tests/core/test_planted.py": "from usersctl.errors import Taken\nfrom usersd.app import App"},
        {"tests/interface/test_planted.py": "from usersctl.accounts import Accounts"},
        {"tests/cli/test_planted.py": "import json"},
        {"tests/planted/test_planted.py": "import json"},
        {"tests/test_planted.py": "from usersctl.accounts import Accounts"},
    ],
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_fails_on_files_that_break_it(name: str, tmp_path: Path) -> None:
    for number, files in enumerate(BREAKING[name]):
        root = tmp_path / str(number)
        for path, source in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(source, "utf-8")
        planted = read_modules(root)
        assert len(planted) == len(files)
        broken = list(RULES[name]({**checkout(), **planted}))
        assert [
            line
            for line in broken
            for module in planted.values()
            if module.path in line or module.name in line
        ], files


def test_the_doors_form_no_circle() -> None:
    def enter(room: str, way: tuple[str, ...] = ()) -> None:
        assert room not in way, f"a circle: {way}"
        for door in ROOMS[room]:
            enter(door, (*way, room))

    for room in ROOMS:
        enter(room)


def test_a_journey_is_imported_by_no_other_room_but_the_service() -> None:
    journeys = {f"usersctl.{room}" for room, doors in CORE.items() if doors == JOURNEY and room != "oauth"}
    assert len(journeys) > 5
    for room in CORE_ROOMS - {"usersctl.service"}:
        assert not ROOMS[room] & {*journeys, "usersctl.service"}, room


@pytest.mark.parametrize(
    ("module", "late"), [("usersctl.service", NOT_AT_THE_START), ("usersd.start, usersd.app", ("bottle",))]
)
def test_core_and_daemon_start_without_a_heavy_library(module: str, late: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print([name for name in {late} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_an_error_of_the_core_has_its_code_and_no_status() -> None:
    from usersctl import errors

    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and not value.__name__.startswith("_")
    ]
    codes = [vars(error)["code"] for error in classes if "code" in vars(error)]
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
