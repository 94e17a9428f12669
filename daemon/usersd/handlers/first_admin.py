"""The first admin, by the one-time link that `serve` prints."""

from typing import Any

from usersctl.service import Service
from usersd.inputs import Body, required
from usersd.openapi.operation import SIGNING_IN, Operation
from usersd.openapi.schemas import EMAIL, NAME, NEW_PASSWORD, TOKEN, USER
from usersd.request import Request


class FirstAdmin(Body, missing="Token, email, name and password are required"):
    token = required(TOKEN)
    email = required(EMAIL)
    name = required(NAME)
    password = required(NEW_PASSWORD)


@Operation("createFirstAdmin", SIGNING_IN, USER, FirstAdmin)
def first_admin(request: Request, service: Service) -> dict[str, Any]:
    """Create the first admin. With the link that `usersctl serve` prints while there is no admin."""
    body = FirstAdmin(request.body)
    user = service.first_admin.create(body.token, body.email, body.name, body.password, by=request.actor)
    return {"user": user.as_json()}
