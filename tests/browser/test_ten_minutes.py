"""docs/integrating/ten-minutes.md in a browser: each application as the page shows it, from its start to signing out."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.commands import PASSWORD, Command
from support.daemons import free_port, serving
from support.documentation import blocks, section
from support.proxies import needed, started
from support.servers import importable, installed
from support.visitors import Visitor
from support.web import Client

PAGE = "docs/integrating/ten-minutes.md"
INSTALL_WITHIN = 120  # seconds


@contextmanager
def flask(usersctl: Command, folder: Path, port: int) -> Iterator[int]:
    (folder / "notes.py").write_text(blocks(section(PAGE, "Flask"), "python")[0], "utf-8")
    create(usersctl, usersctl.database)
    env = usersctl.env | {"USERS_BASE_URL": f"http://127.0.0.1:{port}", "PYTHONPATH": str(folder)}
    command = [installed("flask"), "--app=notes", "run", f"--port={port}"]
    with started(command, folder, port, env=env):
        yield port


@contextmanager
def fastapi(usersctl: Command, folder: Path, port: int) -> Iterator[int]:
    importable("fastapi", "browser")
    (folder / "notes.py").write_text(blocks(section(PAGE, "FastAPI"), "python")[0], "utf-8")
    words = [installed("uvicorn", "browser"), "notes:app", "--host=127.0.0.1", f"--port={port}"]
    with started(words, folder, port, env={"PYTHONPATH": str(folder)}), behind(usersctl, port) as front:
        yield front


@contextmanager
def express(usersctl: Command, folder: Path, port: int) -> Iterator[int]:
    (folder / "notes.cjs").write_text(blocks(section(PAGE, "Express"), "js")[0], "utf-8")
    (folder / "package.json").write_text("{}")
    words = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "express@5"]
    node = needed("node")
    if shutil.which("npm") is None:
        pytest.skip("npm is not here")
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, timeout=INSTALL_WITHIN, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not install express within {INSTALL_WITHIN} s")
    if done.returncode:
        pytest.skip("npm cannot install express here")
    with started([node, "notes.cjs"], folder, port, env={"PORT": str(port)}), behind(usersctl, port) as front:
        yield front


@contextmanager
def static_site(usersctl: Command, folder: Path, port: int) -> Iterator[int]:
    (folder / "site").mkdir()
    html = blocks(section(PAGE, "A static site"), "html")[0]
    (folder / "site" / "index.html").write_text(html, "utf-8")
    words = ["-m", "http.server", str(port), "--bind=127.0.0.1", f"--directory={folder}/site"]
    with started([sys.executable, *words], folder, port), behind(usersctl, port) as front:
        yield front


@contextmanager
def behind(usersctl: Command, port: int) -> Iterator[int]:
    with serving(usersctl, "--dev", "--app", f"http://127.0.0.1:{port}") as daemon:
        create(usersctl, usersctl.folder / "users-dev.db")
        yield daemon.port


def create(usersctl: Command, database: Path) -> None:
    words = ("--name", "Zoë <Ada>", "--admin", "--password-stdin", "--db", database)
    assert usersctl("create", "ada@example.com", *words, stdin=PASSWORD).code == 0


@pytest.mark.parametrize("application", [flask, fastapi, express, static_site])
def test_an_application_of_the_page_has_logins(
    chromium: Any, usersctl: Command, application: Callable[..., Any]
) -> None:
    folder = usersctl.folder / "application"
    folder.mkdir()
    with ExitStack() as stack:
        port = stack.enter_context(application(usersctl, folder, free_port()))
        context = chromium.new_context()
        stack.callback(context.close)
        visitor = Visitor(context, f"http://127.0.0.1:{port}", None)
        visitor.expected = {404}  # the icon
        visitor.goes("/")
        visitor.is_at("/login?redirect=/")
        visitor.fills(Email="ada@example.com", Password=PASSWORD)
        visitor.presses("Sign in")
        visitor.sees("Hello, Zoë <Ada>")
        visitor.sees("Your address is ada@example.com.")
        visitor.sees("Your account · Sign out")  # in UTF-8
        visitor.follows("Your account")
        visitor.sees("Your profile")
        visitor.goes("/users")
        visitor.sees("ada@example.com")
        visitor.goes("/")
        visitor.follows("Sign out")
        visitor.presses("Sign out")
        visitor.is_at("/login?redirect=/")
        assert visitor.odd == []


def test_the_dependencies_for_fastapi_refuse_whom_no_proxy_names_and_who_is_no_admin(
    usersctl: Command,
) -> None:
    port = free_port()
    user = {
        "Remote-User": "7",
        "Remote-Email": "ada@example.com",
        "Remote-Name": "Ada",
        "Remote-Role": "user",
    }
    with fastapi(usersctl, usersctl.folder, port):
        client = Client(port)
        assert client.get("/").status == client.get("/", headers={"Remote-User": ""}).status == 401
        assert client.get("/", headers=user).status == 200
        assert client.get("/report", headers=user).json == {"detail": "Admin access required"}
        reply = client.get("/report", headers=user | {"Remote-Role": "admin", "Remote-Name": "Zo%C3%AB"})
        assert reply.json == {"report": "for Zoë"}
