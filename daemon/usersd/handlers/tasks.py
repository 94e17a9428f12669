"""The endpoints of the task runner."""

from typing import Any

from usersctl.service import Service
from usersctl.store.slots import CLEANUP_TASK
from usersd.inputs import Body, flag
from usersd.openapi.operation import MANAGEMENT, Operation
from usersd.openapi.schemas import array, boolean, exactly, integer, model, string
from usersd.request import Request

_DESCRIPTION = {"description": "Delete expired tokens"}
_LISTED = {
    "type": "object",
    "additionalProperties": exactly({"description": string(_DESCRIPTION["description"])}),
    "examples": [{CLEANUP_TASK: _DESCRIPTION}],
}
_SCHEDULED = exactly({"cron": string("0 2 * * *"), "tasks": array(string(CLEANUP_TASK))})
_CLEANED = {
    "result": {"type": "string", "const": "success"},
    "expiredTokensRemoved": integer(12, minimum=0),
    "noExpirationTokensRemoved": integer(0, minimum=0),
    "totalTokensCleaned": integer(12, minimum=0),
    "includeNoExpiration": boolean(example=False),
}


class Cleanup(Body):
    no_expiration = flag("includeNoExpiration", "Also tokens that never expire.", example=False)


@Operation(
    "listTasks", MANAGEMENT, model("TaskList", {"tasks": _LISTED, "scheduledTasks": array(_SCHEDULED)})
)
def list_tasks(request: Request, _service: Service) -> dict[str, Any]:
    """List tasks and their schedule."""
    cron = request.settings.cleanup_schedule
    return {
        "tasks": {CLEANUP_TASK: _DESCRIPTION},
        "scheduledTasks": [{"cron": cron, "tasks": [CLEANUP_TASK]}] if cron is not None else [],
    }


@Operation("cleanupTokens", MANAGEMENT, model("TokensCleaned", _CLEANED), Cleanup)
def cleanup_tokens(request: Request, service: Service) -> dict[str, Any]:
    """Delete expired tokens."""
    body = Cleanup(request.body)
    done = service.cleaner.run(include_no_expiration=body.no_expiration, by=request.actor)
    request.log_fields |= {"expired": done.expired, "no_expiration": done.no_expiration}
    return done.as_json()
