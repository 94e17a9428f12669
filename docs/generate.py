"""Writes the files that are generated from the code: the reference, the man page and the files of daemon/.

`python docs/generate.py` writes them; with --check it names those that differ, and exits with 1.
The texts are in docs/templates.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path
from textwrap import fill
from typing import Any

import bottle

from usersctl import __version__
from usersctl.cli.exit_codes import ExitCode
from usersctl.cli.snippet import Site, Snippet, write
from usersctl.cli.tree import COMMANDS, SHARED, command_tree
from usersctl.config import Loaded, Settings
from usersctl.config.settings import ALL_KEYS as KEYS
from usersctl.config.settings import Key
from usersctl.config.sources import Origin
from usersd.openapi.document import document
from usersd.openapi.reference import kind_of
from usersd.routes import TABLE

ROOT = Path(__file__).parent.parent
TEMPLATES = Path(__file__).parent / "templates"
ROOT_COMMAND: Any = command_tree()
REFERENCE = [f"docs/reference/{name}.md" for name in ("commands", "configuration", "http")]

# The installation of the files in daemon/: a command in an environment of its own, one configuration file.
FILE = Path("/etc/users/users.toml")
SETTINGS = Settings(database=Path("/var/lib/users/users.db"), base_url="https://accounts.example.com")
INSTALLED = Loaded(SETTINGS, FILE, {name: Origin(str(FILE), "") for name in ("database", "baseUrl")})
UNITS = (Snippet.SYSTEMD, Snippet.SOCKET, Snippet.TIMER, Snippet.CLEANUP, Snippet.CRON)

# --- formats ---


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table whose first column is code."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name, *cells in rows:
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in (f"`{name}`", *cells)) + " |")
    return "\n".join(lines)


def entries(rows: Iterable[tuple[str, str]]) -> str:
    """A list of terms in roff."""
    return "\n".join(f".TP\n.B {roff(term)}\n{roff(text)}" for term, text in rows)


def roff(text: str) -> str:
    """Escapes text for man. Paragraphs stay, and `code` becomes bold."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("\n\n", "\n.PP\n")
    text = re.sub(r"^(['.](?!PP$))", r"\\&\1", text, flags=re.MULTILINE)
    text = re.sub(r"[^\0-~]", lambda character: f"\\[u{ord(character[0]):04X}]", text)
    return re.sub(r"`([^`]+)`", r"\\fB\1\\fR", text)


def comment(text: str) -> str:
    return fill(text, 118, initial_indent="## ", subsequent_indent="## ")


# --- configuration ---


def tables() -> dict[str, list[Key]]:
    """The keys by their table in the file. Those without a table come first, as TOML asks for."""
    tables: dict[str, list[Key]] = {"": []}
    for key in KEYS.values():
        tables.setdefault(key.table, []).append(key)
    return tables


def default(key: Key) -> str:
    return "none" if key.default is None else f"`{json.dumps(key.default)}`"


def in_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {json.dumps(one)}" for name, one in value.items()) + "}"
    return json.dumps(value)


def environment() -> Iterator[tuple[str, str]]:
    yield "USERS_CONFIG", "`--config`"
    for key in KEYS.values():
        for variable in key.variables:
            prefix = "" if variable == key.env else "a file that holds "
            yield variable, f"{prefix}`{key.name}`"
    yield "USERS_ADMIN_EMAIL", "the email of the first admin, whom `usersctl serve` creates"
    yield "USERS_ADMIN_PASSWORD_FILE", "a file that holds the password of the first admin"


# --- commands ---


def command_at(name: str) -> Any:
    """The Typer command of a name such as `token create`."""
    return reduce(lambda group, word: group.commands[word], name.split(), ROOT_COMMAND)


def own_parameters(name: str) -> list[Any]:
    """Arguments, then options, without the global options."""
    own = [parameter for parameter in command_at(name).params if parameter.name not in SHARED]
    return sorted(own, key=lambda parameter: parameter.param_type_name)


def spelled(parameter: Any) -> str:
    """`EMAIL`, `--limit N`, `--role admin|user`, `--json`."""
    choices = getattr(parameter.type, "choices", [parameter.type.name.upper()])
    value: str = parameter.metavar or "|".join(choices)
    if parameter.param_type_name == "argument":
        return value
    name = "|".join(parameter.opts)
    return name if parameter.is_flag else f"{name} {value}"


def synopsis(name: str) -> str:
    words = ["usersctl", name]
    for parameter in own_parameters(name):
        word = spelled(parameter)
        words.append(word if parameter.required or word.startswith("[") else f"[{word}]")
    return " ".join(words)


def explained(parameters: list[Any]) -> list[tuple[str, str]]:
    """Each parameter with its help and its default."""
    rows = []
    for parameter in parameters:
        text = parameter.help or ""
        if (
            getattr(parameter, "show_default", False)
            and parameter.default
            and isinstance(parameter.default, str)
        ):
            text += f" Default: `{parameter.default}`."
        rows.append((spelled(parameter), text))
    return rows


# --- HTTP ---


def caller(operation: Any) -> str:
    return str(operation["description"]).removeprefix("For ").partition(". ")[0].rstrip(".")


def query(operation: Any) -> list[tuple[str, str, str, str]]:
    return [
        (parameter["name"], parameter["in"], kind(parameter["schema"]), parameter.get("description", ""))
        for parameter in operation["parameters"]
    ]


def body(api: Any, schema: Any) -> Any:
    """What the name of a request's or an answer's body stands for. Objects that it consists of keep their names."""
    titled = api["components"]["schemas"].get(shape(schema), {})
    return titled if "title" in titled else schema


def fields(schema: Any) -> list[tuple[str, str, str]]:
    required = schema.get("required", ())
    return [
        (name, kind(field) + ("" if name in required else ", optional"), field.get("description", ""))
        for name, field in schema["properties"].items()
    ]


def details(api: Any, status: str, response: Any) -> str:
    """The body of a success, and the headers that only this response has."""
    text = ""
    if status == "200":
        ((media, content),) = response["content"].items()
        text += f" `{shape(body(api, content['schema'])) if media == 'application/json' else media}`"
    for name, header in response["headers"].items():
        if "$ref" not in header:
            text += f" `{name}`: {header['description']}"
    return text


def kind(schema: Any) -> str:
    if "$ref" in schema:
        return f"[{shape(schema)}](#{shape(schema).lower()})"
    if "properties" in schema or "items" in schema:
        return f"`{shape(schema)}`"
    return kind_of({}, schema)


def shape(schema: Any) -> str:
    """`{users: [User], total: integer}`"""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "items" in schema:
        return f"[{shape(schema['items'])}]"
    if "properties" in schema:
        members = ", ".join(f"{name}: {shape(field)}" for name, field in schema["properties"].items())
        if schema.get("additionalProperties"):
            members += ", …"
        return f"{{{members}}}"
    return kind_of({}, {"type": schema["type"]})  # without its limits


# --- files ---


def generated() -> dict[str, str]:
    """The text of each file, by its path."""
    api = document(Settings(database=Path("users.db"), base_url="http://127.0.0.1:8080"), TABLE)
    words = globals() | {  # templates may call the functions of this file
        "commands": COMMANDS,
        "notice": "Generated by docs/generate.py: change the code, then run `make docs`",
        "version": __version__,
        "exit_codes": [(str(int(code)), code.meaning) for code in ExitCode],
        "global_options": [*explained(ROOT_COMMAND.params), ("-h, --help", "Show this message and exit.")],
        "parameters": lambda name: explained(own_parameters(name)),
        "api": api,
        "calls": [
            (f"{method.upper()} {path}", operation)
            for path, methods in api["paths"].items()
            for method, operation in methods.items()
        ],
    }
    files = {}
    for name in ("daemon/users.example.toml", *REFERENCE, "docs/usersctl.1"):
        source = (TEMPLATES / f"{Path(name).name}.tpl").read_text("utf-8")
        files[name] = bottle.SimpleTemplate(source, noescape=True).render(words)
    site = Site(INSTALLED, ("/opt/usersctl/bin/usersctl",)).words() | {"user": "usersd"}
    return files | {f"daemon/{unit.file}": write(unit, site) for unit in UNITS}


def outdated() -> dict[str, str]:
    """The generated files that differ from those in the tree."""
    return {
        name: text
        for name, text in generated().items()
        if not (ROOT / name).exists() or (ROOT / name).read_text("utf-8") != text
    }


def main() -> int:
    files = outdated()
    if "--check" in sys.argv[1:]:
        for name in files:
            print(f"{name} differs from the code: run `make docs`")
        return int(bool(files))
    for name, text in files.items():
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(text, "utf-8")
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
