"""Sites with identity providers, which no attack may harm, and a browser that visits one."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.oauth_site import Browser, MakeOAuthSite, OAuthSite


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
