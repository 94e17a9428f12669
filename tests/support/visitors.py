"""A person with a browser who opens pages, fills in forms and presses buttons. Errors of the browser are kept."""

import re
from collections.abc import Callable
from typing import Any

from support.commands import PASSWORD
from support.web import Site

# Chromium's console line for every failed request; `_response` checks these by status.
OWN_LINE = "Failed to load resource: "
TIME_LIMIT = 15_000  # milliseconds


class Visitor:
    """`expected` holds the error statuses that belong to the test; `offline` allows failed connections."""

    def __init__(self, context: Any, base: str, site: Site) -> None:
        context.set_default_timeout(TIME_LIMIT)
        self.context, self.base, self.site = context, base, site
        self.expected: set[int] = set()
        self.offline = False
        self.odd: list[str] = []
        self.page = self.tab()

    def tab(self) -> Any:
        page = self.context.new_page()
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.odd.append(f"error: {error}"))
        page.on("requestfailed", self._failed)
        page.on("response", self._response)
        return page

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(OWN_LINE):
            self.odd.append(f"console: {message.text}")

    def _failed(self, request: Any) -> None:
        # Requests are aborted when the page is left.
        if not self.offline and request.failure != "net::ERR_ABORTED":
            self.odd.append(f"failed: {request.url} {request.failure}")

    def _response(self, response: Any) -> None:
        if response.status >= 400 and response.status not in self.expected:
            self.odd.append(f"{response.status}: {response.url}")

    # --- what people do ---

    def loses_cookies(self, name: str | None = None) -> None:
        """Of that name, or all. Requests of the page are waited for, because without its cookies they would be refused."""
        self.page.wait_for_load_state("networkidle")
        self.context.clear_cookies(name=name)

    def has_session(self, token: str | None) -> None:
        """That was opened elsewhere."""
        self.context.add_cookies([{"name": "auth_token", "value": token, "url": self.base}])

    def goes(self, path: str) -> None:
        self.page.goto(self.base + path)

    def field(self, label: str) -> Any:
        return self.page.get_by_label(label, exact=True).locator("visible=true")

    def fills(self, **texts: str) -> None:
        """Fills fields by label, written with _ for a space and __ for a comma."""
        for label, text in texts.items():
            self.field(label.replace("__", ", ").replace("_", " ")).fill(text)

    def button(self, name: str) -> Any:
        return self.page.get_by_role("button", name=name, exact=True)

    def presses(self, name: str) -> None:
        self.button(name).click()

    def follows(self, name: str) -> None:
        self.page.get_by_role("link", name=name, exact=True).click()

    def signs_in(self, name: str = "ada", password: str = PASSWORD, at: str = "/login") -> None:
        self.goes(at)
        self.fills(Email=f"{name}@example.com", Password=password)
        self.presses("Sign in")
        self.page.wait_for_url(lambda url: "/login" not in url)

    # --- what they see ---

    def signs_in_by_provider(self, *, at: str | None = None, person: str = "Ada Lovelace") -> None:
        """`at`: the page to go to first."""
        if at is not None:
            self.goes(at)
        self.follows("Continue with Example ID")
        self.follows(person)

    def sees(self, text: str | re.Pattern[str]) -> None:
        expect(self.page.get_by_text(text).locator("visible=true").first).to_be_visible()

    def misses(self, text: str) -> None:
        expect(self.page.get_by_text(text).locator("visible=true")).to_have_count(0)

    def is_at(self, path: str) -> None:
        expect(self.page).to_have_url(self.base + path)

    def has_focus_on(self, locator: Any) -> None:
        expect(locator).to_be_focused()

    def waits(self, what: Callable[[], bool]) -> None:
        for _ in range(400):
            if what():
                return
            self.page.wait_for_timeout(20)
        raise AssertionError("waited too long")

    def cookie(self) -> dict[str, Any] | None:
        return next((cookie for cookie in self.context.cookies() if cookie["name"] == "auth_token"), None)

    # --- emails ---

    def opens_email(self, subject: str) -> str:
        """Opens the newest email at /dev/mail, follows its link and returns it."""
        while self.site.service.outbox.work() is not None:
            pass
        self.goes("/dev/mail")
        letter = self.page.get_by_role("article").filter(has=self.page.get_by_role("heading", name=subject))
        link = letter.first.get_by_role("link")
        address = str(link.get_attribute("href"))
        link.click()
        return address


def expect(what: Any) -> Any:
    from playwright.sync_api import expect as expecting

    expecting.set_options(timeout=TIME_LIMIT)
    return expecting(what)


def tries(visitor: Visitor, password: str) -> None:
    """To sign in, at the login page."""
    visitor.fills(Email="ada@example.com", Password=password)
    visitor.presses("Sign in")


def sees_profile(visitor: Visitor, at: str = "/") -> None:
    visitor.is_at(at)
    expect(visitor.page.get_by_role("heading", name="Your profile")).to_be_visible()


def all_users(visitor: Visitor) -> None:
    visitor.signs_in(at="/login?redirect=/users")
    visitor.sees("Page 1 of 1")
