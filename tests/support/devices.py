"""Browsers that signed in to an account before, and wrong passwords."""

from support.commands import PASSWORD
from support.web import DEVICE, Client, Site

from usersctl.models import User

OWN_PASSWORD = "/api/users/password"
WITHOUT_CLIENT_LIMIT = {"failed_logins_per_minute": 10**6}


def device_of(site: Site, user: User) -> Client:
    """A browser that signed in to the account before, without a session."""
    client = site.client()
    assert client.login(user.email, PASSWORD).status == 200
    return site.client(cookies={DEVICE: client.cookies[DEVICE]})


def fail(client: Client, user: User, times: int = 1) -> list[int]:
    return [client.login(user.email, "wrong").status for _ in range(times)]


def change_password(client: Client, current: str) -> int:
    new = {"newPassword": "another sentence", "newPasswordConfirmation": "another sentence"}
    return client.patch(OWN_PASSWORD, {"currentPassword": current, **new}).status
