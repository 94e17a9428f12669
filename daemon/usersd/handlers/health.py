"""Two probes for monitoring: is the daemon alive, and is it ready."""

from typing import Any

from usersctl.service import Service
from usersd.openapi.operation import SERVICE, Operation
from usersd.openapi.schemas import model
from usersd.request import Request
from usersd.response import Response, error_response


@Operation("health", SERVICE, model("Alive", {"status": {"type": "string", "const": "alive"}}))
def alive(_request: Request, _service: Service) -> dict[str, Any]:
    """Tell that the daemon is alive. Does not use the database: a restart of the daemon would not repair it."""
    return {"status": "alive"}


@Operation(
    "ready",
    SERVICE,
    model("Ready", {"status": {"type": "string", "const": "ready"}}),
    refusals={503: "Not ready: the message names the parts that fail, or says that the daemon stops."},
)
def ready(_request: Request, service: Service) -> Response | dict[str, Any]:
    """Tell whether the daemon can do its work."""
    readiness = service.readiness
    failing = ["the daemon stops"] if readiness.stopping else readiness.failing()
    if failing:
        return error_response(503, f"Not ready: {', '.join(failing)}", ("Retry-After", "5"))
    return {"status": "ready"}
