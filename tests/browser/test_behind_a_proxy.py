"""A real browser, a real proxy, and an application behind it; and an application of another origin."""

import base64
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from support.commands import OPERATOR, PASSWORD, create_user
from support.proxies import NAME, House, house
from support.virtual_authenticator import VirtualAuthenticator, without_suggestions
from support.visitors import Visitor
from support.web import Site, hosting

from usersctl.factors import totp
from usersd.server.connections import Hosted

DEEP = "/reports/7?from=2026-01-01&q=%C3%A4%26b"


@pytest.fixture(scope="module", params=["nginx", "caddy"])
def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp(request.param)
    with house(request.param, folder, factor_rules=("/payroll/*",)) as site:
        yield site


@pytest.fixture
def visitor(chromium: Any, here: House) -> Iterator[Visitor]:
    # The browser does not trust the proxy's certificate.
    context = chromium.new_context(ignore_https_errors=True)
    visitor = Visitor(context, f"https://{NAME}:{here.proxy.port}", here.site)
    yield visitor
    context.close()
    assert visitor.odd == []


def shown_by(visitor: Visitor) -> dict[str, Any]:
    """The user that the application sees."""
    shown: dict[str, Any] = json.loads(visitor.page.inner_text("body"))
    return shown


def test_a_deep_link_survives_the_sign_in(here: House, visitor: Visitor) -> None:
    visitor.signs_in("ada", at=DEEP)
    assert visitor.page.url == visitor.base + DEEP
    assert (shown_by(visitor)["path"], shown_by(visitor)["who"]["email"]) == ("/reports/7", "ada@example.com")
    visitor.goes("/account")
    visitor.sees("Your profile")
    visitor.goes("/login")
    visitor.follows("Continue")
    visitor.is_at("/account")
    visitor.expected = {403}
    visitor.goes("/admin/x")
    visitor.sees({"nginx": "403 Forbidden", "caddy": "This page is for admins"}[here.kind])


def test_every_link_to_the_own_profile_leads_to_account(visitor: Visitor) -> None:
    """And not to /, where the application is."""
    visitor.goes("/account")
    visitor.is_at("/login?redirect=/account")
    visitor.fills(Email="root@example.com", Password=PASSWORD)
    visitor.presses("Sign in")
    visitor.is_at("/account")
    visitor.sees("Your profile")
    visitor.page.get_by_role("navigation").get_by_role("link", name="Users").click()
    visitor.sees("Page 1 of 1")
    visitor.page.get_by_role("navigation").get_by_role("link", name="Profile").click()
    visitor.is_at("/account")
    visitor.presses("Sign out")
    visitor.is_at("/login")
    visitor.expected = {403}
    visitor.signs_in("ada", at="/login?redirect=/users")
    visitor.sees("This page is for admins")
    visitor.page.get_by_role("main").get_by_role("link", name="Profile").click()
    visitor.is_at("/account")
    visitor.sees("Your profile")
    visitor.goes("/")
    assert shown_by(visitor)["path"] == "/"


def test_the_page_that_signs_out_leads_back_to_the_application(visitor: Visitor) -> None:
    visitor.signs_in("ada")
    visitor.goes("/logout?redirect=/about")
    visitor.presses("Sign out")
    visitor.is_at("/about")
    assert shown_by(visitor)["who"] is None
    visitor.goes("/account")
    visitor.is_at("/login?redirect=/account")


def test_a_deep_link_survives_the_sign_in_through_the_provider(visitor: Visitor) -> None:
    visitor.goes(DEEP)
    visitor.page.get_by_role("link", name=re.compile("Continue with")).click()
    visitor.follows("Ada Lovelace")
    visitor.page.wait_for_url(visitor.base + DEEP)
    assert shown_by(visitor)["who"]["email"] == "ada@example.com"


PAYROLL = "/payroll/7?month=%C3%A4%26b"


def test_a_page_for_two_factors_asks_for_the_second_and_comes_back(here: House, visitor: Visitor) -> None:
    eve = create_user(here.site.service, "eve@example.com", "Eve", PASSWORD, by=OPERATOR)
    elsewhere = here.cookies(eve)  # another browser, signed in with the password
    visitor.signs_in("eve", at=PAYROLL)
    visitor.sees("What you want to open asks for a second step, and your account has none yet.")
    visitor.page.get_by_role("main").get_by_role("link", name="Profile").click()
    visitor.presses("Set up an app")
    visitor.sees("Scan this with the app on your phone.")
    key = visitor.page.locator("#totp-key").inner_text().replace(" ", "")
    now = totp.step_at(datetime.now(UTC))
    visitor.fills(Code_that_the_app_shows_now=totp.code_at(base64.b32decode(key), now))
    visitor.presses("Confirm")
    visitor.sees("Keep them where you find them without this device.")
    codes = visitor.page.locator("#codes-list code").all_inner_texts()
    visitor.presses("I have kept them")
    visitor.page.wait_for_url(visitor.base + PAYROLL)
    assert shown_by(visitor)["headers"]["remote-auth"] == "pwd otp"

    ((name, value),) = elsewhere.items()
    visitor.loses_cookies()
    visitor.context.add_cookies([{"name": name, "value": value, "url": visitor.base, "secure": True}])
    visitor.goes("/reports/7")
    assert shown_by(visitor)["headers"]["remote-auth"] == "pwd"
    visitor.goes(PAYROLL)
    visitor.sees("What you want to open asks for a second step.")
    visitor.fills(**{"Code from your app, or a recovery code": codes[0]})
    visitor.presses("Confirm")
    visitor.page.wait_for_url(visitor.base + PAYROLL)
    assert shown_by(visitor)["headers"]["remote-auth"] == "pwd recovery"


def test_a_passkey_alone_opens_a_page_for_two_factors(here: House, visitor: Visitor) -> None:
    create_user(here.site.service, "zoe@example.com", "Zoe", PASSWORD, by=OPERATOR)
    VirtualAuthenticator(visitor)
    visitor.signs_in("zoe", at="/account")
    visitor.presses("Add a passkey")
    visitor.presses("I have kept them")
    visitor.sees("The passkey has been added.")
    without_suggestions(visitor)
    visitor.loses_cookies()
    visitor.goes(PAYROLL)
    visitor.presses("Sign in with a passkey")
    visitor.page.wait_for_url(visitor.base + PAYROLL)
    assert shown_by(visitor)["headers"]["remote-auth"] == "passkey"
    assert shown_by(visitor)["who"]["email"] == "zoe@example.com"


def test_an_application_of_another_origin_calls_the_interface(
    house: Callable[..., Site], visit: Callable[..., Visitor]
) -> None:
    def application(_environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        body = b"<!doctype html><title>Application</title>"
        start_response("200 OK", [("Content-Type", "text/html"), ("Content-Length", str(len(body)))])
        return [body]

    with hosting(Hosted(app=application)) as port:
        site = house(allowed_origins=(f"http://127.0.0.1:{port}",))
        site.add()
        visitor = visit(site)
        script = """async ([base, method, path, body]) => {
            const headers = body ? { "Content-Type": "application/json" } : {};
            const options = { method, headers, body: body && JSON.stringify(body), credentials: "include" };
            try {
                const answer = await fetch(base + path, options);
                return [answer.status, await answer.json()];
            } catch (error) { return [0, error.name]; }
        }"""

        def fetch(method: str, path: str, body: Any = None) -> Any:
            return visitor.page.evaluate(script, [visitor.base, method, path, body])

        visitor.expected = {401}
        visitor.page.goto(f"http://127.0.0.1:{port}/")
        assert fetch("GET", "/api/users/me")[0] == 401
        words = {"email": "ada@example.com", "password": "correct horse battery"}
        assert fetch("POST", "/api/users/session", words)[0] == 200
        assert fetch("PATCH", "/api/users/me", {"name": "Ada L."})[1]["name"] == "Ada L."
        assert fetch("GET", "/api/users/me")[1]["user"]["name"] == "Ada L."
        visitor.offline = True  # what the browser calls what it does not let a page read
        assert fetch("GET", "/login") == [0, "TypeError"]
        visitor.page.goto(f"http://localhost:{port}/")  # another origin, and another site
        assert fetch("GET", "/api/users/me") == [0, "TypeError"]
        assert fetch("PATCH", "/api/users/me", {"name": "Eve"}) == [0, "TypeError"]
        assert site.service.accounts.find("ada@example.com").name == "Ada L."
        assert [line for line in visitor.odd if "CORS policy" not in line] == []
        visitor.odd.clear()
