"""A real browser for the tests of this folder, which are skipped where it is missing."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.identities import provider_settings
from support.visitors import Visitor
from support.web import Site, running

from usersctl.config import Settings
from usersctl.service import Service
from usersd.dev_provider import CLIENT, SampleProvider
from usersd.routes import FOR_DEVELOPMENT, TABLE
from usersd.routing import CALLBACK
from usersd.server.listener import listen

HERE = Path(__file__).parent
# The first one is Chromium without its windows, in which the tests take half the time.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a browser one test stands for all of this folder and is skipped, so that the report has one line."""
    here = [item for item in items if HERE in item.path.parents]
    for item in here:
        item.add_marker(pytest.mark.browser)
    if here and (lacking := missing()) and os.environ.get("BROWSER_TESTS") != "required":
        first, *others = here
        first.add_marker(pytest.mark.skip(f"{len(here)} tests need {lacking}"))
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]


def browser() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def missing() -> str | None:
    """What has to be installed before these tests can run."""
    if not all(map(find_spec, ("playwright", "axe_playwright_python"))):
        return "Playwright and axe-core: pip install -e '.[browser]'"
    if browser() is None:
        return "Chromium: apt-get install chromium-headless-shell"
    return None


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """With BROWSER_TESTS=required, as CI sets it, a missing browser is a failure."""
    assert missing() is None, missing()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser(), args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(chromium: Any) -> Iterator[Callable[..., Visitor]]:
    """Opens a browser of its own for each person. An error that a browser reported fails the test at its end."""
    visitors: list[Visitor] = []

    def visit(site: Site, **context: Any) -> Visitor:
        visitors.append(Visitor(chromium.new_context(**context), f"http://127.0.0.1:{site.port}", site))
        return visitors[-1]

    yield visit
    problems = [line for visitor in visitors for line in visitor.odd]
    for visitor in visitors:
        visitor.context.close()
    assert problems == []


@pytest.fixture
def house(make_service: Callable[..., Service]) -> Iterator[Callable[..., Site]]:
    """Sites as `--dev` makes them: open for registration, with letters to read and a provider. Keywords are settings."""
    with ExitStack() as stack:

        def house(host: str = "127.0.0.1", *, others: tuple[str, ...] = (), **changes: Any) -> Site:
            """`others`: the presets of more providers, which are the sample provider, too."""
            listener = listen("127.0.0.1", 0)
            base_url = f"http://{host}:{listener.getsockname()[1]}"
            provider = SampleProvider(base_url, "secret", base_url + CALLBACK)
            settings = Settings(database=Path(), base_url=base_url, whitelist=("/register",))
            values = provider.settings(settings)._asdict() | {
                "rounds": 4,
                "brand": "Acme",
                "oauth_label": "Example ID",
            }
            for name in ("database", "state_folder", "secret_keys"):  # make_service() has its own
                del values[name]
            more = [
                SampleProvider(base_url, "secret", f"{base_url}{CALLBACK}/{name}", path=f"/dev/{name}")
                for name in others
            ]
            values["more_providers"] = tuple(
                provider_settings(
                    name,
                    preset=name,
                    label=name.title(),
                    client_id=CLIENT,
                    client_secret="secret",
                    issuer=provider.issuer,
                    allow_auto_registration=True,
                )
                for name, provider in zip(others, more, strict=True)
            )
            service = make_service(**(values | changes))
            routes = [route for each in (provider, *more) for route in each.routes()]
            table = (*TABLE, *FOR_DEVELOPMENT, *routes)
            return stack.enter_context(running(service, table=table, listener=listener))

        yield house


@pytest.fixture
def ada(house: Callable[..., Site], visit: Callable[..., Visitor]) -> Visitor:
    """A visitor with an account, at the login page. Some modules have another Ada."""
    site = house()
    site.add()
    visitor = visit(site)
    visitor.goes("/login")
    return visitor
