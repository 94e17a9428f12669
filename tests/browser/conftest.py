"""A real browser for the tests of this folder; where there is none, they are skipped and say what is missing."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.visitors import Visitor
from support.web import Site, running

from usersctl.config import Settings
from usersctl.service import Service
from usersd.dev_provider import SampleProvider
from usersd.routes import FOR_DEVELOPMENT, TABLE
from usersd.server.listener import listen

HERE = Path(__file__).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP accounts.example.com 127.0.0.1",  # a site behind a proxy, by its name
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)


def missing(what: str) -> None:
    """A run that is there for these tests sets BROWSER_TESTS=required, and fails."""
    told = f"needs {what}: pip install -e '.[browser]' and apt-get install chromium"
    (pytest.fail if os.environ.get("BROWSER_TESTS") == "required" else pytest.skip)(told)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    try:
        from axe_playwright_python.sync_playwright import Axe  # noqa: F401
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("Playwright for Python and axe-core")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        missing("Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Any) -> Iterator[Callable[..., Visitor]]:
    """People with browsers of their own, at a site. Whatever went wrong in one fails the test at its end."""
    visitors: list[Visitor] = []

    def visit(site: Site, **context: Any) -> Visitor:
        visitors.append(Visitor(chromium.new_context(**context), f"http://127.0.0.1:{site.port}", site))
        return visitors[-1]

    yield visit
    told = [line for visitor in visitors for line in visitor.odd]
    for visitor in visitors:
        visitor.context.close()
    assert told == []


@pytest.fixture
def house(make_service: Callable[..., Service]) -> Iterator[Callable[..., Site]]:
    """Sites as `--dev` makes them: open for registration, with letters to read and a provider. Keywords are settings."""
    with ExitStack() as stack:

        def house(**changes: Any) -> Site:
            listener = listen("127.0.0.1", 0)
            base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            provider = SampleProvider(base_url, "secret", base_url + "/api/users/auth/oauth/callback")
            settings = Settings(database=Path(), base_url=base_url, whitelist=("/register",))
            values = provider.settings(settings)._asdict() | {"rounds": 4, "brand": "Acme"}
            del values["database"]
            service = make_service(**(values | changes))
            table = TABLE + FOR_DEVELOPMENT + provider.routes()
            return stack.enter_context(running(service, table=table, listener=listener))

        yield house
