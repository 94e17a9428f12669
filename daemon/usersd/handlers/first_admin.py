"""The first admin, by the one-time link that `serve` prints."""

from typing import Any

from usersctl.service import Service
from usersd.request import Request


def first_admin(request: Request, service: Service) -> dict[str, Any]:
    token, email, name, password = request.texts(
        "token", "email", "name", "password", otherwise="Token, email, name and password are required"
    )
    return {"user": service.first_admin.first_admin(token, email, name, password, by=request.actor).as_json()}
