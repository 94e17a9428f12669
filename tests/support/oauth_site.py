"""A site and its identity provider over real HTTP, and a client that follows the redirects between them."""

import html
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from support.identities import provider_settings
from support.web import Client, Reply, Site, running

from usersctl.models import User
from usersctl.service import Service
from usersd.dev_provider import CLIENT, Person, SampleProvider
from usersd.routes import TABLE
from usersd.server.listener import listen

GO = "/api/users/auth/oauth/redirect"
CALLBACK = "/api/users/auth/oauth/callback"
IDENTITIES = "/api/users/me/identities"
SECRET = "odd: %&=+/~ä 密"  # characters that have to be encoded in a header
HOSTILE = {name: {"allow_auto_registration": True} for name in ("evil", "wicked")}  # providers beside `oauth`
# Targets that a redirect must not lead to.
ELSEWHERE = [
    "//evil.example", "///evil.example", "/\\evil.example", "\\\\evil.example", "\\/evil.example", "https:evil.example", "https://evil.example",
    "http:/evil.example", "javascript:alert(1)", "JaVaScRiPt:alert(1)", "data:text/html,x", "evil.example", "", " /x", "/x y", "/x\r\nSet-Cookie: a=b",
    "/\r/evil.example", "/\n/evil.example", "/\t/evil.example", "\t//evil.example", "\x00/x", "/\x00/evil.example", "/\u2028x", "/ä", "?x", "#x", "x:/y",
    "/\x7f", "/a\\..\\..\\\\evil.example",
]  # fmt: skip


@dataclass
class Browser:
    """`base_url` is the public address of the site, which may listen elsewhere."""

    base_url: str
    client: Client

    def set_out(self, query: str = "", **keywords: Any) -> str:
        """Starts a sign-in and returns the address at the provider."""
        reply = self.client.get(GO + query, **keywords)
        assert reply.status == 302, reply.body
        return str(reply.header("Location"))

    def consent(self, there: str, person: str) -> str:
        """Chooses a person on the provider's page and returns the address of the callback."""
        reply = self._at_provider(there, rf'href="([^"]*[?&;]person={person})"')
        assert reply.status == 302, reply.body
        return str(reply.header("Location"))

    def cancel(self, there: str) -> str:
        page = self.client.get(path_of(there))
        match = re.search(r'href="([^"]*error=access_denied[^"]*)"', page.body.decode())
        assert match, page.body
        return html.unescape(match[1])

    def callback(self, back: str, **keywords: Any) -> Reply:
        assert back.startswith(self.base_url + "/"), back
        return self.client.get(path_of(back), **keywords)

    def sign_in(self, person: str = "1001", query: str = "") -> Reply:
        return self.callback(self.consent(self.set_out(query), person))

    def sign_in_at(self, provider: str, person: str = "1001") -> Reply:
        return self.sign_in(person, f"?provider={provider}")

    def me(self) -> dict[str, Any] | None:
        """The user who is signed in."""
        reply = self.client.get("/api/users/me")
        assert reply.status in (200, 401)
        return dict(reply.json["user"]) if reply.status == 200 else None

    def flows(self) -> list[str]:
        """The cookies of sign-ins that have not ended."""
        return [name for name in self.client.cookies if "oauth_" in name]

    def _at_provider(self, there: str, link: str) -> Reply:
        page = self.client.get(path_of(there))
        assert page.status == 200, page.body
        match = re.search(link, page.body.decode())
        assert match, page.body
        return self.client.get(html.unescape(match[1]))


@dataclass
class OAuthSite:
    site: Site
    provider: SampleProvider
    browsers: list[Browser] = field(default_factory=list)
    others: dict[str, SampleProvider] = field(default_factory=dict)  # those of auth.providers, by name

    @property
    def service(self) -> Service:
        return self.site.service

    def browser(self) -> Browser:
        return Browser(self.service.settings.base_url, self.site.client())

    def errors(self) -> list[dict[str, Any]]:
        """The errors in the log."""
        return [line for line in self.site.log if line["event"] in ("error", "library")]

    def assert_unharmed(self) -> None:
        """No attack may cause a 5xx, or an error in the log."""
        assert not self.errors()
        assert not [line for line in self.site.log if line.get("status", 0) >= 500]

    def accounts(self) -> int:
        with self.service.store.read() as tx:
            return len(list(tx.all_credentials()))

    def proven(self, name: str = "ada") -> User:
        """An account whose owner has proven its address."""
        user = self.site.add(name)
        with self.service.store.write() as tx:
            return tx.change_user(user.id, email_proven_at=tx.now_text)

    def exchanges(self, provider: str = "provider") -> int:
        """How often this provider was asked for the tokens of a code."""
        return sum(line.get("path") == f"/dev/{provider}/token" for line in self.site.log)


MakeOAuthSite = Callable[..., OAuthSite]


@contextmanager
def oauth_site(
    make_service: Callable[..., Service],
    *,
    callback: str = CALLBACK,
    others: dict[str, dict[str, Any]] | None = None,
    **changes: Any,
) -> Iterator[OAuthSite]:
    """The site and its providers on one port, as with --dev. Keywords are fields of Settings; `others` has those of
    ProviderSettings for each more provider."""
    listener = listen("127.0.0.1", 0)
    base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    provider = SampleProvider(base_url, SECRET, base_url + callback)
    more = {
        name: SampleProvider(base_url, SECRET, f"{base_url}{callback}/{name}", path=f"/dev/{name}")
        for name in others or {}
    }
    for each in (provider, *more.values()):
        each.people["1004"] = Person("1004", "eve@example.com", "Eve")
    configured: dict[str, Any] = {
        "base_url": base_url,
        "oauth_client_id": CLIENT,
        "oauth_client_secret": SECRET,
        "oauth_issuer": provider.issuer,
        "oauth_callback_url": callback,
        "provider_sign_ins_per_minute": 10**6,  # the limit has a test of its own
    }
    configured["more_providers"] = tuple(
        provider_settings(
            name,
            **{"client_id": CLIENT, "client_secret": SECRET, "issuer": more[name].issuer, **fields},
        )
        for name, fields in (others or {}).items()
    )
    service = make_service(**(configured | changes))
    routes = [route for each in (provider, *more.values()) for route in each.routes()]
    with running(service, table=(*TABLE, *routes), listener=listener) as site:
        yield OAuthSite(site, provider, others=more)


def path_of(url: str) -> str:
    parts = urlsplit(url)
    return parts.path + (f"?{parts.query}" if parts.query else "")


def asked(url: str) -> dict[str, str]:
    """The query of an address as a dict; a name that occurs twice fails."""
    query = parse_qs(urlsplit(url).query, keep_blank_values=True, strict_parsing=True)
    assert all(len(values) == 1 for values in query.values()), url
    return {name: values[0] for name, values in query.items()}


def answered(there: str, **more: str) -> str:
    """The path of the callback for this sign-in, with an unknown code."""
    return f"{CALLBACK}?{urlencode({'code': 'x', 'state': asked(there)['state'], **more})}"


def error_of(reply: Reply) -> str:
    """The error code of a failed sign-in, after a check that no session was opened."""
    assert reply.status == 302, (reply.status, reply.body)
    assert not [cookie for cookie in reply.all("Set-Cookie") if "auth_token" in cookie]
    return asked(str(reply.header("Location")))["error"]
