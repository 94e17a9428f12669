"""For whoever watches over the daemon: is it alive, and can it do its work? Names of parts, and nothing that is a secret."""

from typing import Any

from usersctl.service import Service
from usersd.request import Request
from usersd.response import Response, error_response


def alive(_request: Request, _service: Service) -> dict[str, Any]:
    """Asks nothing of the database: a daemon that is alive without one need not be started anew."""
    return {"status": "alive"}


def ready(_request: Request, service: Service) -> Response | dict[str, Any]:
    readiness = service.readiness
    failing = ["the daemon stops"] if readiness.stopping else readiness.failing()
    if failing:
        return error_response(503, f"Not ready: {', '.join(failing)}", ("Retry-After", "5"))
    return {"status": "ready"}
