"""API tokens, and clients that send one."""

from support.commands import OPERATOR
from support.web import Client, Site

from usersctl.models import User
from usersctl.networks import normal_ranges
from usersctl.scopes import normal_scopes


def api_token(site: Site, user: User, *scopes: str, ranges: tuple[str, ...] = ()) -> str:
    """Without scopes and ranges: one that may do all that its user may, from anywhere."""
    opened = site.service.sessions.create_api_token(
        user.id,
        name="ci",
        lifetime=None,
        scopes=normal_scopes(scopes) if scopes else None,
        ranges=normal_ranges(ranges) if ranges else None,
        by=OPERATOR,
    )
    return opened.token


def bearer(site: Site, token: str, **headers: str) -> Client:
    return site.client(headers={"Authorization": f"Bearer {token}"} | headers)
