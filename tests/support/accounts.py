"""Changes of accounts, made by the calls that the endpoints make."""

from typing import Any

from usersctl.models import Actor
from usersctl.service import Service


def change_password(service: Service, opened: Any, current: str, new: str) -> str:
    """Changes a user's own password and returns the new session token."""
    token, renew = service.sessions.renewal(opened.session)
    service.accounts.change_password(
        opened.user.id, current, new, session_id=opened.session.id, by=Actor("user:1", None, 1), renew=renew
    )
    return token
