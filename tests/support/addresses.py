"""Claims, proofs and the ways back of an address, as requests of a person."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from support.commands import OPERATOR, PASSWORD, create_user
from support.oauth_site import Browser, OAuthSite, oauth_site
from support.postbox import Link, link_in, sent
from support.web import Client, Reply

from usersctl.models import User
from usersctl.service import Service
from usersctl.transfer.writing import ImportOptions

OTHER = "another horse battery"
SECRET = "a secret that two programs share, long enough"


@contextmanager
def address_site(make_service: Callable[..., Service]) -> Iterator[OAuthSite]:
    """A site where visitors register, and sign in through the provider."""
    with oauth_site(
        make_service,
        whitelist=("/register",),
        oauth_allow_auto_registration=True,
        assertion_secret=SECRET,
        trusted_proxies=(),
    ) as site:
        yield site
        assert not site.errors()


def add(site: OAuthSite, name: str = "ada", **keywords: Any) -> User:
    password = keywords.pop("password", PASSWORD)
    return create_user(site.service, f"{name}@example.com", name.title(), password, by=OPERATOR, **keywords)


def sign_in(site: OAuthSite, email: str, password: str = PASSWORD) -> Client:
    client = site.site.client()
    assert client.login(email, password).status == 200
    return client


def refused(site: OAuthSite, email: str, password: str) -> bool:
    return site.site.client().login(email, password).status == 401


def links(site: OAuthSite, to: str, page: str) -> list[Link]:
    """All links to this page that were sent to an address, oldest first."""
    parts = [" ".join(email.parts) for email in sent(site.service, to)]
    every = [link_in(text) for text in parts if "http" in text]
    return [link for link in every if link.path == page]


def subjects(site: OAuthSite, to: str) -> list[str]:
    return [email.subject for email in sent(site.service, to)]


def claim(client: Client, email: str) -> Reply:
    return client.patch("/api/users/me", {"email": email})


def prove(site: OAuthSite, link: Link, password: str | None = PASSWORD) -> Reply:
    body = {"token": link.token, "email": link.email}
    if password is not None:
        body["password"] = password
    return site.site.client().post("/api/users/me/email", body)


def moves(site: OAuthSite, client: Client, email: str, password: str = PASSWORD) -> None:
    """A whole change of address: claimed and proven."""
    assert claim(client, email).status == 200
    assert prove(site, links(site, email, "/confirm-new-email")[-1], password).status == 200


def not_me(site: OAuthSite, link: Link) -> Reply:
    return site.site.client().post("/api/users/not-me", {"token": link.token, "email": link.email})


def forgets(site: OAuthSite, email: str) -> list[Link]:
    """The reset links that come to this address after asking for one."""
    before = links(site, email, "/reset-password")
    assert site.site.client().post("/api/users/password/forgot", {"email": email}).status == 200
    return links(site, email, "/reset-password")[len(before) :]


def resets(site: OAuthSite, link: Link, password: str = OTHER) -> Reply:
    body = {"token": link.token, "email": link.email, "password": password, "password_confirmation": password}
    return site.site.client().post("/api/users/password/reset", body)


def registers(site: OAuthSite, email: str, password: str = PASSWORD) -> Reply:
    body = {"email": email, "name": "Somebody", "password": password}
    return site.site.client().post("/api/users/register", body)


def confirms(site: OAuthSite, email: str) -> Reply:
    link = links(site, email, "/confirm-email")[-1]
    return site.site.client().get(f"/api/users/confirm-email?token={link.token}&email={link.email}")


def email_of(client: Client) -> str:
    reply = client.get("/api/users/me")
    assert reply.status == 200
    return str(reply.json["user"]["email"])


def state(client: Client) -> tuple[str, str | None]:
    """The known address and the claimed one."""
    reply = client.get("/api/users/me/email").json
    return reply["email"], reply["claim"] and reply["claim"]["email"]


def provider(site: OAuthSite, person: str) -> Browser:
    browser = site.browser()
    reply = browser.sign_in(person)
    assert "error=" not in str(reply.header("Location")), reply.header("Location")
    return browser


def audit(site: OAuthSite) -> list[str]:
    with site.service.store.read() as tx:
        return [row.action for row in tx.audit_rows()]


def imports(site: OAuthSite, **row: Any) -> None:
    options = ImportOptions("update", dry_run=False, by=OPERATOR, report=print, progress=lambda *_: None)
    site.service.transfer.import_rows([("row 1", row)], options)
