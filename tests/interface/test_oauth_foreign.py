"""The whole sign-in against an independent provider, oidc-provider of npm, driven like a browser."""

import html
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from support.fakes import FakeClock
from support.oauth_site import CALLBACK, Browser, error_of, path_of
from support.web import Client, Site, running

from usersctl.service import Service

VERSION = "9.13.3"
INSTALL_WITHIN = 90
BASE_URL = "http://127.0.0.1:8080"
SECRET = "odd-%: &=+~ secret, long enough for every way to use it"
PEOPLE: dict[str, dict[str, Any]] = {
    "ada": {
        "email": "ada@example.com",
        "email_verified": True,
        "name": "Ada Lovelace",
        "picture": "https://p.example/a.png",
    },
    "alan": {"email": "alan@example.com", "email_verified": False, "name": "Alan Turing"},
}


@pytest.fixture(scope="module")
def package() -> Path:
    """The folder of its installation, kept among the temporary files for later runs."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not here")
    major = subprocess.run(
        ["node", "--version"], capture_output=True, text=True, check=True, timeout=20
    ).stdout
    if int(major.strip("v\n").split(".")[0]) < 20:
        pytest.skip(f"node {major.strip()} is too old for oidc-provider {VERSION}")
    kept = Path(tempfile.gettempdir()) / f"usersctl-{os.getuid()}-oidc-provider-{VERSION}"
    if kept.exists():
        # Its code is run, so no other user may have written it.
        assert (kept.stat().st_uid, kept.stat().st_mode & 0o077) == (os.getuid(), 0), kept
        return kept
    with tempfile.TemporaryDirectory(prefix=f"{kept.name}-") as folder:
        new = Path(folder) / "new"
        new.mkdir(0o700)
        (new / "package.json").write_text("{}")
        words = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", f"oidc-provider@{VERSION}"]
        try:
            done = subprocess.run(words, cwd=new, capture_output=True, timeout=INSTALL_WITHIN, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm did not install oidc-provider within {INSTALL_WITHIN} s")
        if done.returncode:
            pytest.skip(f"npm cannot install oidc-provider {VERSION} here")
        try:
            new.rename(kept)
        except OSError:  # another worker of pytest was faster
            assert kept.exists()
    return kept


def start(package: Path, changes: dict[str, Any]) -> tuple[subprocess.Popen[str], str]:
    client = {"client_id": "client:77", "client_secret": SECRET, "redirect_uris": [BASE_URL + CALLBACK]}
    client |= changes
    script = Path(__file__).parents[1] / "support" / "foreign_provider.mjs"
    process = subprocess.Popen(
        ["node", script, package, json.dumps({"client": client, "people": PEOPLE})],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    timer = threading.Timer(20, process.kill)
    timer.start()
    line = process.stdout.readline()
    timer.cancel()
    assert line, "the provider did not start"
    return process, json.loads(line)["issuer"]


@pytest.fixture
def client() -> dict[str, Any]:
    """How the client is registered there, beside the usual."""
    return {}


@pytest.fixture
def issuer(package: Path, client: dict[str, Any]) -> Iterator[str]:
    process, provider = start(package, client)
    yield provider
    process.kill()
    process.communicate(timeout=10)


@pytest.fixture
def make_browser(
    make_service: Callable[..., Service], issuer: str, clock: FakeClock
) -> Iterator[Callable[..., Browser]]:
    clock.now = datetime.now(UTC)  # of the provider, whose ID tokens say when they were made
    with ExitStack() as stack:

        def make(sites: list[Site] | None = None, /, **changes: Any) -> Browser:
            values = {
                "base_url": BASE_URL,
                "oauth_client_id": "client:77",
                "oauth_client_secret": SECRET,
                "oauth_issuer": issuer,
                "oauth_allow_auto_registration": True,
            }
            site = stack.enter_context(running(make_service(**(values | changes))))
            if sites is not None:
                sites.append(site)
            return Browser(BASE_URL, site.client())

        yield make


def through(there: str, person: str | None) -> str:
    """Clicks through the provider's pages as this person, or cancels. Returns the final redirect."""
    visitor = Client(urlsplit(there).port or 0)
    reply = visitor.get(path_of(there))
    for _ in range(12):
        location = reply.header("Location")
        if location is not None and location.startswith(BASE_URL + "/"):
            return location
        if location is not None:
            reply = visitor.get(path_of(location))
            continue
        page = reply.body.decode()
        assert reply.status == 200, page
        if person is None:
            match = re.search(r'href="([^"]*/abort)"', page)
            assert match, page
            reply = visitor.get(path_of(html.unescape(match[1])))
            continue
        action = re.search(r'<form[^>]* action="([^"]+)"', page)
        prompt = re.search(r'name="prompt" value="(\w+)"', page)
        assert action, page
        assert prompt, page
        form = urlencode({"prompt": prompt[1], "login": person, "password": "any"})
        reply = visitor.send(
            "POST",
            path_of(html.unescape(action[1])),
            raw=form.encode(),
            headers={"Content-Type": "application/x-www-form-urlencoded"},
        )
    raise AssertionError("the provider goes in circles")


@pytest.mark.slow
def test_a_person_signs_in_and_signs_in_again(make_browser: Callable[..., Browser]) -> None:
    browser = make_browser()
    reply = browser.callback(through(browser.set_out("?redirect=/deep?x=1"), "ada"))
    assert reply.header("Location") == "/deep?x=1"
    first = browser.me()
    assert first is not None
    assert (first["email"], first["name"], first["oauth_id"], first["profile_picture"]) == (
        "ada@example.com",
        "Ada Lovelace",
        "ada",
        "https://p.example/a.png",
    )
    back = through(browser.set_out(), "ada")
    cookies = dict(browser.client.cookies)
    assert browser.callback(back).header("Location") == "/"
    assert (browser.me() or {})["id"] == first["id"]
    browser.client.cookies = {name: value for name, value in cookies.items() if "oauth_" in name}
    assert error_of(browser.callback(back)) == "oauth_failed"  # a second time
    assert browser.me() is None


@pytest.mark.slow
def test_a_callback_that_comes_twice_at_once_signs_in_at_a_provider_that_revokes_both(
    make_browser: Callable[..., Browser],
) -> None:
    """A code that comes twice ends all that it was exchanged for, as RFC 6749 4.1.2 asks for."""
    browser = make_browser()
    for _ in range(8):
        browser.client.cookies.clear()
        back = through(browser.set_out(), "ada")
        twins = [Client(browser.client.port, cookies=dict(browser.client.cookies)) for _ in range(2)]
        with ThreadPoolExecutor(2) as pool:
            replies = list(pool.map(lambda client: client.get(path_of(back)), twins))  # noqa: B023 - called in this round
        assert "/" in [reply.header("Location") for reply in replies]


@pytest.mark.slow
def test_cancelled_unverified_and_unknown_users_are_refused(
    make_browser: Callable[..., Browser],
) -> None:
    browser = make_browser()
    assert error_of(browser.callback(through(browser.set_out(), None))) == "oauth_failed"
    assert error_of(browser.callback(through(browser.set_out(), "alan"))) == "oauth_failed"
    assert browser.me() is None


@pytest.mark.slow
def test_closed_registration_and_a_wrong_secret_have_their_error_codes(
    make_browser: Callable[..., Browser],
) -> None:
    closed = make_browser(oauth_allow_auto_registration=False)
    assert error_of(closed.callback(through(closed.set_out(), "ada"))) == "user_not_registered"
    wrong = make_browser(oauth_client_secret="wrong")
    assert error_of(wrong.callback(through(wrong.set_out(), "ada"))) == "oauth_not_configured"


@pytest.mark.slow
@pytest.mark.parametrize(
    "client",
    [{"id_token_signed_response_alg": algorithm} for algorithm in ("PS256", "ES256", "EdDSA")],
    ids=lambda client: next(iter(client.values())),
)
def test_a_sign_in_survives_a_change_of_the_keys(make_browser: Callable[..., Browser], issuer: str) -> None:
    browser = make_browser()
    assert browser.callback(through(browser.set_out(), "ada")).header("Location") == "/"
    provider = Client(urlsplit(issuer).port or 0)
    assert provider.get("/rotate").status == 200
    assert browser.callback(through(browser.set_out(), "ada")).header("Location") == "/"


@pytest.mark.slow
@pytest.mark.parametrize("client", [{"subject_type": "pairwise"}])
def test_a_person_may_have_another_id_for_each_client(
    make_browser: Callable[..., Browser],
) -> None:
    browser = make_browser()
    assert browser.callback(through(browser.set_out(), "ada")).header("Location") == "/"
    assert (browser.me() or {})["oauth_id"] == "pairwise ada"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("client", "why"),
    [
        ({"id_token_signed_response_alg": "HS256"}, "signed with 'HS256', and not with RS256"),
        ({"id_token_encrypted_response_alg": "dir"}, "the ID token is encrypted"),
        ({"userinfo_signed_response_alg": "RS256"}, "without JSON (Content-Type: 'application/jwt"),
        ({"require_pushed_authorization_requests": True}, "Pushed Authorization Request must be used"),
    ],
    ids=["HS256", "encrypted ID token", "signed profile", "pushed request"],
)
def test_a_client_that_is_registered_in_another_way_is_refused_and_the_log_says_why(
    make_browser: Callable[..., Browser], why: str
) -> None:
    sites: list[Site] = []
    browser = make_browser(sites)
    assert error_of(browser.callback(through(browser.set_out(), "ada"))) == "oauth_failed"
    assert why in [line["why"] for line in sites[0].log if line["event"] == "oauth-refused"][-1]
