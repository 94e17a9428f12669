"""Sites that are attacked and must not be harmed, and a browser that visits one."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.commands import OPERATOR, PASSWORD, create_user
from support.devices import WITHOUT_CLIENT_LIMIT
from support.oauth_site import Browser, MakeOAuthSite, OAuthSite
from support.web import Client, Site, running

from usersctl.service import Service


@pytest.fixture
def open_site(make_service: Callable[..., Service]) -> Iterator[Site]:
    """Registration is open, limits are off; Ada is an admin (1) and Bob a user (2)."""
    service = make_service(limits_enabled=False, whitelist=("/register",))
    for name, role in (("ada", "admin"), ("bob", "user")):
        create_user(service, f"{name}@example.com", name.title(), PASSWORD, role=role, by=OPERATOR)
    with running(service, listening="192.0.2.1") as site:
        yield site
        assert not [line for line in site.log if line["event"] == "error"]


@pytest.fixture
def ada(open_site: Site) -> Client:
    client = open_site.client()
    assert client.login("ada@example.com", PASSWORD).status == 200
    return client


@pytest.fixture
def unlimited(make_service: Callable[..., Service]) -> Iterator[Site]:
    """With limits for accounts only."""
    with running(make_service(**WITHOUT_CLIENT_LIMIT)) as site:
        yield site


@pytest.fixture
def make_oauth_site(make_oauth_site: MakeOAuthSite) -> Iterator[MakeOAuthSite]:
    """The same, and fails if one of the sites answered with a 5xx or logged an error."""
    made: list[OAuthSite] = []

    def make(**keywords: Any) -> OAuthSite:
        made.append(make_oauth_site(**keywords))
        return made[-1]

    yield make
    for site in made:
        site.assert_unharmed()


@pytest.fixture
def browser(site: OAuthSite) -> Browser:
    return site.browser()
