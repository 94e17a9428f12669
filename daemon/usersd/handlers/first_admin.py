"""The first admin, by the one-time link that `serve` prints."""

from typing import Any

from usersctl.service import Service
from usersd.request import Call


def first_admin(call: Call, service: Service) -> dict[str, Any]:
    token, email, name, password = call.texts(
        "token", "email", "name", "password", otherwise="Token, email, name and password are required"
    )
    return {"user": service.setup.first_admin(token, email, name, password, by=call.actor).as_json()}
