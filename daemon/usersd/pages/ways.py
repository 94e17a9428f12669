"""The buttons of a page that lead to identity providers."""

from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from usersctl.config.providers import ProviderSettings
from usersctl.models import OAUTH
from usersctl.named import NamedTuple
from usersd.request import Request

if TYPE_CHECKING:
    from usersctl.oauth.identities import Connection

WAY = "/api/users/auth/oauth/redirect"


class Way(NamedTuple):
    """A button that leads to an identity provider."""

    label: str
    logo: str | None
    href: str


def ways_to(providers: Iterable[ProviderSettings], then: str = "") -> list[Way]:
    ways = []
    for provider in providers:
        query = {} if provider.name == OAUTH else {"provider": provider.name}
        if then:
            query["redirect"] = then
        href = WAY + (f"?{urlencode(query)}" if query else "")
        ways.append(Way(provider.display, provider.logo, href))
    return ways


def proofs(request: Request, connections: Iterable["Connection"], then: str = "") -> list[Way]:
    """The providers where a new sign-in proves who the user is. It ends at this page, whose script goes on.

    `then`: the page that this one leads to in the end.
    """
    linked = {connection.name for connection in connections if connection.is_linked}
    providers = [provider for provider in request.settings.providers if provider.name in linked]
    onward = f"&{urlencode({'redirect': then})}" if then else ""
    return ways_to(providers, f"{request.path}?confirmed{onward}")
