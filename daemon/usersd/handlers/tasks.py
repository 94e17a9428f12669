"""The task runner's endpoints."""

from typing import Any

from usersctl.service import Service
from usersd.request import Call

CLEANUP = "users:cleanup-tokens"


def list_tasks(call: Call, _service: Service) -> dict[str, Any]:
    cron = call.settings.cleanup_schedule
    return {
        "tasks": {CLEANUP: {"description": "Delete expired tokens"}},
        "scheduledTasks": [{"cron": cron, "tasks": [CLEANUP]}] if cron is not None else [],
    }


def cleanup_tokens(call: Call, service: Service) -> dict[str, Any]:
    endless = bool(call.boolean("includeNoExpiration")) if call.given("includeNoExpiration") else False
    done = service.sessions.cleanup(include_no_expiration=endless, by=call.actor)
    call.told |= {"expired": done.expired, "no_expiration": done.no_expiration}
    return done.as_json()
