"""Changes of accounts, made by the calls that the endpoints make."""

from typing import Any

from support.commands import OPERATOR, create_user

from usersctl.models import UNKNOWN_CLIENT, Actor, Client, Session, User, UserFilter
from usersctl.secrets import digest
from usersctl.service import Service
from usersctl.sessions import Opened

# Of the user object, as the command and the HTTP interface give it.
USER_KEYS = [
    "id",
    "email",
    "name",
    "role",
    "active",
    "created_at",
    "updated_at",
    "last_login_at",
    "oauth_id",
    "profile_picture",
]


def change_password(service: Service, opened: Any, current: str, new: str) -> str:
    """Changes a user's own password and returns the new session token."""
    token, renew = service.sessions.renewal(opened.session)
    service.accounts.change_password(
        opened.user.id, current, new, session_id=opened.session.id, by=author(opened), renew=renew
    )
    return token


def open_session(
    service: Service, user: User, *, remember: bool = False, client: Client = UNKNOWN_CLIENT
) -> Opened:
    """As a login does, without a password and a second factor."""
    with service.store.write(alone=False) as tx:
        opened = service.sessions.open_in(
            tx, tx.existing_user(user.id), remember=remember, client=client, is_enough=True
        )
    assert isinstance(opened, Opened)
    return opened


def stored_sessions(service: Service) -> list[Session]:
    """Of all users, also those that have expired, and API tokens."""
    columns = ", ".join(Session._fields[:-1])
    with service.store.read() as tx:
        return [Session(*row) for row in tx._run(f"SELECT {columns} FROM auth_tokens ORDER BY id")]  # noqa: S608 - our own columns


def author(opened: Any, *, as_admin: bool = False) -> Actor:
    """The author of the changes of a request with this session."""
    user_id = opened.user.id
    return Actor(f"user:{user_id}", "192.0.2.9", user_id, digest(opened.token), as_admin)


def signed_in_admin(service: Service, user: User) -> Actor:
    return author(open_session(service, user), as_admin=True)


def only_admins(service: Service, number: int) -> list[User]:
    """Two new ones. `number`: of the round, for their addresses."""

    def admin(which: int) -> User:
        return create_user(service, f"a{number}-{which}@example.com", "A", None, role="admin", by=OPERATOR)

    users = [admin(0), admin(1)]
    others = service.accounts.page(UserFilter(role="admin"), limit=100).users
    service.accounts.delete([other.id for other in others if other not in users], by=OPERATOR)
    return users
