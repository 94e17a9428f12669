"""The task runner's endpoints."""

from typing import Any

from usersctl.service import Service
from usersd.request import Request

CLEANUP = "users:cleanup-tokens"


def list_tasks(request: Request, _service: Service) -> dict[str, Any]:
    cron = request.settings.cleanup_schedule
    return {
        "tasks": {CLEANUP: {"description": "Delete expired tokens"}},
        "scheduledTasks": [{"cron": cron, "tasks": [CLEANUP]}] if cron is not None else [],
    }


def cleanup_tokens(request: Request, service: Service) -> dict[str, Any]:
    endless = bool(request.boolean("includeNoExpiration")) if request.given("includeNoExpiration") else False
    done = service.sessions.cleanup(include_no_expiration=endless, by=request.actor)
    request.log_fields |= {"expired": done.expired, "no_expiration": done.no_expiration}
    return done.as_json()
