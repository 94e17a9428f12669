"""The headers by which a proxy tells an application who the user is: those that are sent, and those that no visitor may send."""

import re
from collections.abc import Iterable
from itertools import product

KINDS = ("id", "email", "name", "role", "groups", "auth")
DEFAULT = (
    ("Remote-User", "id"),
    ("Remote-Email", "email"),
    ("Remote-Name", "name"),
    ("Remote-Role", "role"),
    ("Remote-Groups", "groups"),
    ("Remote-Auth", "auth"),  # what the session was opened with
)
ASSERTION = "Remote-Assertion"

# The names that applications and other proxies use: each beginning with each end.
# fmt: off
BEGINNINGS = ("Remote", "X-Remote", "X-Forwarded", "X-Auth", "X-Auth-Request", "X-Webauth", "X-Authentik", "X-Authenticated")
ENDS = (
    "User", "Username", "Preferred-Username", "Userid", "User-Id", "Uid", "Id", "Sub", "Login", "Email", "Mail", "Name",
    "Fullname", "Display-Name", "Role", "Roles", "Group", "Groups", "Access-Token", "Id-Token",
)
OTHERS = (
    "Remote-Auth", "X-User", "X-Username", "X-Email", "X-Vouch-User", "X-Token-Subject", "X-Authentik-Jwt", "X-Authentik-Entitlements",
    "X-Goog-Authenticated-User-Email", "X-Goog-Authenticated-User-Id", "X-Goog-Iap-Jwt-Assertion",
    "X-Ms-Client-Principal", "X-Ms-Client-Principal-Id", "X-Ms-Client-Principal-Name",
    "X-Amzn-Oidc-Identity", "X-Amzn-Oidc-Data", "X-Amzn-Oidc-Accesstoken", "X-Apigateway-Api-Userinfo",
    "Cf-Access-Authenticated-User-Email", "Cf-Access-Jwt-Assertion", "Tailscale-User-Login", "Tailscale-User-Name",
    "X-Pomerium-Jwt-Assertion", "X-Pomerium-Claim-Email", "X-Pomerium-Claim-User",
    # Of certificates that a client showed to a proxy.
    "X-Forwarded-Client-Cert", "X-Forwarded-Tls-Client-Cert", "X-Client-Cert", "X-Ssl-Cert", "X-Ssl-Client-Cert",
    "X-Ssl-Client-Dn", "X-Ssl-Client-S-Dn", "X-Ssl-Client-Verify", "Ssl-Client-Cert", "Ssl-Client-Verify",
    # Of the scheme, for which the proxies send X-Forwarded-Proto, and of a prefix of the path.
    "X-Forwarded-Scheme", "X-Forwarded-Ssl", "X-Forwarded-Protocol", "X-Scheme", "X-Url-Scheme", "Front-End-Https", "X-Script-Name",
)
# fmt: on

_NAME = r"(?=.{1,64}$)[A-Za-z][A-Za-z0-9]*(-[A-Za-z0-9]+){0,5}"
# Headers with a meaning of their own, in a request or in the answer that carries the identity.
_TAKEN = r"""(?x)
    (accept|access-control|content|cross-origin|if|proxy|sec|x-accel|x-original|x-rewrite)-.*
    |x-forwarded-(for|host|method|port|prefix|proto|scheme|server|ssl|uri|url)
    |remote-(assertion|authorization|cookie)
    |accept|age|allow|alt-svc|authorization|cache-control|clear-site-data|connection|cookie2?|date|etag|expect|expires
    |forwarded|from|front-end-https|host|http2-settings|keep-alive|last-modified|link|location|max-forwards|nel|origin|pragma
    |priority|range|referer|referrer-policy|refresh|report-to|retry-after|server|set-cookie2?|strict-transport-security|te
    |trailer|transfer-encoding|upgrade|upgrade-insecure-requests|user-agent|vary|via|warning|www-authenticate
    |x-content-type-options|x-frame-options|x-http-method(-override)?|x-method-override|x-real-ip|x-request-id"""


def problem_with(names: Iterable[str]) -> str:
    """What is wrong with these names for identity headers; empty if nothing is."""
    seen: set[str] = set()
    for name in names:
        if not re.fullmatch(_NAME, name, re.ASCII):
            return f"{name!r} is no name of a header: words of letters and digits, at most six, with - between them"
        if re.fullmatch(_TAKEN, name.lower()):
            return f"{name} is a header with another meaning"
        if name.lower() in seen:
            return f"{name} comes twice"
        seen.add(name.lower())
    return ""


def known_names() -> list[str]:
    return [*("-".join(parts) for parts in product(BEGINNINGS, ENDS)), *OTHERS]


def spellings(name: str, marks: str = "-_") -> list[str]:
    """The name with each of its hyphens as it is or as another mark, which some servers read as a hyphen."""
    first, *rest = name.split("-")
    return [
        first + "".join(mark + part for mark, part in zip(some, rest, strict=True))
        for some in product(marks, repeat=len(rest))
    ]
