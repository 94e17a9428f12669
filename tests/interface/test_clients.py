"""Clients that generators make of the OpenAPI document, as docs/integrating/typescript.md shows them, against a daemon."""

import json
import os
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commands import Command
from support.documentation import ROOT, blocks, section
from support.proxies import needed
from support.web import Site

PAGE = "docs/integrating/typescript.md"
CLIENTS = ROOT / "tests" / "clients"
INSTALL_WITHIN = 400  # seconds
COMPILER = {
    "strict": True,
    "noUncheckedIndexedAccess": True,
    "types": [],
    "module": "nodenext",
    "target": "es2022",
    "lib": ["es2023", "dom", "dom.iterable"],
    "outDir": "out",
}
# Hey API from 0.95 on takes a fetch of this type only.
FETCH_OF_NEWER_CLIENTS = (
    'import { keepingCookies } from "./cookies";\nexport const ours: typeof fetch = keepingCookies();\n'
)
# The types of the answers fit what a browser takes.
PASSKEYS = """
export const options = (answer: PasskeyRequest) => PublicKeyCredential.parseRequestOptionsFromJSON(answer.publicKey);
export const creation = (answer: PasskeyCreation) => PublicKeyCredential.parseCreationOptionsFromJSON(answer.publicKey);
export const login: PasskeyLogin = { credential: { id: "AAAA", type: "public-key" } };
"""
TYPES = {
    "Hey API": 'import type { PasskeyCreation, PasskeyLogin, PasskeyRequest } from "./hey";',
    "openapi-typescript": """import type { components } from "./schema";
type PasskeyCreation = components["schemas"]["PasskeyCreation"];
type PasskeyLogin = components["schemas"]["PasskeyLogin"];
type PasskeyRequest = components["schemas"]["PasskeyRequest"];""",
}
RUN = "require(process.argv[1]).tour(process.argv[2]).then((user) => console.log(JSON.stringify(user)))"
RUN_PYTHON = "import json, sys, tour; print(json.dumps(tour.tour(sys.argv[1]).to_dict()))"


def run(*words: str | Path, folder: Path, seconds: float = 120) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wanted() -> None:
    if os.environ.get("CLIENT_TESTS") != "required":
        pytest.skip("CLIENT_TESTS=required installs what tests/clients names, 300 MB")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what npm installs, and its node_modules/.bin."""
    wanted()
    needed("node")
    folder = tmp_path_factory.mktemp("clients")
    (folder / "package.json").write_bytes((CLIENTS / "package.json").read_bytes())
    words = ("install", "--no-audit", "--no-fund", "--ignore-scripts")
    run(needed("npm"), *words, folder=folder, seconds=INSTALL_WITHIN)
    return folder


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wanted()
    folder = tmp_path_factory.mktemp("python")
    venv.create(folder, with_pip=True)
    words = ("-m", "pip", "install", "-q", "-r", str(CLIENTS / "requirements.txt"))
    run(folder / "bin" / "python", *words, folder=folder, seconds=INSTALL_WITHIN)
    return folder / "bin"


@pytest.fixture
def accounts(make_site: Callable[..., Site]) -> Site:
    """A daemon that is open for registration, with an admin."""
    site = make_site(whitelist=("/register",))
    site.add(role="admin")
    return site


def document_of(site: Site, folder: Path) -> None:
    (folder / "openapi.json").write_bytes(site.client().get("/api/users/openapi.json").body)


def of_the_page(title: str, language: str) -> str:
    return blocks(section(PAGE, title), language)[-1]


def generated(title: str, programs: Path) -> list[str]:
    """The words of the command with which the page makes the client."""
    (line,) = (line for line in of_the_page(title, "sh").splitlines() if "openapi.json" in line)
    words = line.removeprefix("npx ").split()
    return [str(programs / words[0]), *words[1:]]


def ends_well(output: str) -> None:
    """A wrong login, the tour, and a request after the logout."""
    *statuses, user = output.splitlines()
    assert statuses in (["401 Invalid email or password", "401"], ["401"])
    changed: dict[str, Any] = json.loads(user)
    assert (changed["name"], changed["active"], changed["role"]) == ("Grace Hopper", True, "user")


# --- linters ---


@pytest.fixture
def described(usersctl: Command, tmp_path: Path) -> Path:
    usersctl.configure('baseUrl = "https://accounts.example.org"')
    (tmp_path / "openapi.json").write_text(usersctl.ok("openapi").stdout)
    return tmp_path


def test_redocly_finds_nothing_but_the_trailing_slash_of_the_specification(
    programs: Path, described: Path
) -> None:
    (described / "redocly.yaml").write_text("extends: [recommended]\ntelemetry: 'off'\n")
    lint = [programs / "node_modules/.bin/redocly", "lint", "openapi.json", "--format=json"]
    done = subprocess.run(lint, cwd=described, capture_output=True, text=True, timeout=120, check=False)
    problems = json.loads(done.stdout)["problems"]
    assert [(problem["ruleId"], problem["location"][0]["pointer"]) for problem in problems] == [
        ("no-path-trailing-slash", "#/paths/~1_tasks~1")
    ]


def test_spectral_finds_nothing_but_the_trailing_slash_of_the_specification(
    programs: Path, described: Path
) -> None:
    (described / "rules.json").write_text('{"extends": ["spectral:oas"]}')
    lint = [programs / "node_modules/.bin/spectral", "lint", "openapi.json", "-r", "rules.json", "-f", "json"]
    done = subprocess.run(lint, cwd=described, capture_output=True, text=True, timeout=120, check=False)
    # OpenAPI 3.1 lets a bearer token name its scopes, as OAuth does; Spectral looks for them where only OAuth has them.
    of_scopes = ["security", "1", "bearer", "0"]
    problems = [problem for problem in json.loads(done.stdout) if problem["path"][3:] != of_scopes]
    assert [(problem["code"], problem["path"]) for problem in problems] == [
        ("path-keys-no-trailing-slash", ["paths", "/_tasks/"])
    ]


# --- clients ---


def test_the_page_installs_the_typescript_that_is_tested() -> None:
    tested = json.loads((CLIENTS / "package.json").read_text())["dependencies"]
    major = tested["typescript"].partition(".")[0]
    for title in ("openapi-typescript", "Hey API"):
        command = of_the_page(title, "sh").splitlines()[0]
        assert command.split()[-1] == f"typescript@{major}"


@pytest.mark.parametrize("title", ["openapi-typescript", "Hey API"])
def test_a_typescript_client_compiles_under_strict_rules_and_makes_the_tour(
    programs: Path, accounts: Site, title: str
) -> None:
    folder = programs / title.replace(" ", "-")
    folder.mkdir()
    document_of(accounts, folder)
    run(*generated(title, programs / "node_modules/.bin"), folder=folder)
    (folder / "cookies.ts").write_text(of_the_page("Cookies", "ts"))
    (folder / "newer.ts").write_text(FETCH_OF_NEWER_CLIENTS)
    (folder / "passkeys.ts").write_text(TYPES[title] + PASSKEYS)
    (folder / "tour.ts").write_text(of_the_page(title, "ts"))
    options = {"compilerOptions": COMPILER, "exclude": ["out"]}
    (folder / "tsconfig.json").write_text(json.dumps(options))
    run(programs / "node_modules/.bin/tsc", "--project", ".", folder=folder)
    words = ("-e", RUN, folder / "out" / "tour.js", f"http://127.0.0.1:{accounts.port}")
    ends_well(run(needed("node"), *words, folder=folder))


def test_a_python_client_is_typed_strictly_and_makes_the_tour(
    python: Path, accounts: Site, tmp_path: Path
) -> None:
    document_of(accounts, tmp_path)
    run(*generated("Python", python), folder=tmp_path)
    (tmp_path / "tour.py").write_text(of_the_page("Python", "python"))
    run(python / "mypy", "--strict", "tour.py", "accounts_client", folder=tmp_path)
    words = ("-c", RUN_PYTHON, f"http://127.0.0.1:{accounts.port}")
    ends_well(run(python / "python", *words, folder=tmp_path))
