"""Changes of accounts, made by the calls that the endpoints make."""

from typing import Any

from usersctl.models import Actor, User
from usersctl.secrets import digest
from usersctl.service import Service


def change_password(service: Service, opened: Any, current: str, new: str) -> str:
    """Changes a user's own password and returns the new session token."""
    token, renew = service.sessions.renewal(opened.session)
    service.accounts.change_password(
        opened.user.id, current, new, session_id=opened.session.id, by=author(opened), renew=renew
    )
    return token


def author(opened: Any, *, as_admin: bool = False) -> Actor:
    """The author of the changes of a request with this session."""
    user_id = opened.user.id
    return Actor(f"user:{user_id}", "192.0.2.9", user_id, digest(opened.token), as_admin)


def signed_in_admin(service: Service, user: User) -> Actor:
    return author(service.sessions.open(user, remember=False), as_admin=True)
