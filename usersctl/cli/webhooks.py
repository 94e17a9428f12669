"""webhook: the receivers of events, what waits for them, and a test of one."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Context

from usersctl.cli.arguments import complete_webhook
from usersctl.cli.exit_codes import ExitCode
from usersctl.cli.invocation import Invocation, invocation
from usersctl.cli.show.cells import in_cell
from usersctl.errors import NotFound
from usersctl.models import EmailState, QueuedEmail
from usersctl.text import counted

if TYPE_CHECKING:
    from usersctl.webhooks.webhooks import Webhooks

COLUMNS = ("name", "url", "events", "state", "waiting", "failed", "oldest_waiting")
OF_AN_EVENT = ("state", "attempts", "created_at", "due_at", "last_error")
NONE = "The configuration has no webhook"

Name = Annotated[
    str, Argument(metavar="NAME", help="Its name in the configuration.", autocompletion=complete_webhook)
]


def list_(ctx: Context) -> None:
    """List the webhooks of the configuration, whether their receivers work, and what waits for them."""
    run = invocation(ctx)
    conditions = []
    if run.loaded.settings.webhooks:
        conditions = [each.as_json() for each in _webhooks(run, write=False).conditions()]
    if run.out.json:
        run.out.write_json(conditions)
        return
    rows = [[in_cell(values[name]) for name in COLUMNS] for values in conditions]
    run.out.table(COLUMNS, rows, empty=f"{NONE}.")


def show(ctx: Context, name: Name) -> None:
    """Show a webhook, and its newest events."""
    run = invocation(ctx)
    condition = _webhooks(run, write=False).condition(name)
    facts, newest = condition.as_json(), [_event(each) for each in condition.newest]
    if run.out.json:
        run.out.write_json(facts | {"newest": newest})
        return
    run.out.facts((key, in_cell(value)) for key, value in facts.items())
    run.out.data("")
    columns = ("id", "type", "user_id", *OF_AN_EVENT)
    run.out.table(columns, ([event[column] for column in columns] for event in newest), empty="No events.")


def retry(ctx: Context, name: Name) -> None:
    """Resume a webhook that has ended, and send the events that wait. Works without a running daemon.

    Events that were given up are sent as well, unless a later one of the same user was taken. Exit code 7 if an event could
    not be sent: the daemon goes on with the others.
    """
    run = invocation(ctx)
    webhooks = _webhooks(run)
    attempts = list(webhooks.retry(name))
    sent = sum(attempt.state == EmailState.SENT for attempt in attempts)
    problem = next((attempt.message for attempt in attempts if attempt.state != EmailState.SENT), None)
    waiting = webhooks.condition(name).counts["waiting"]
    outcome = f"{name}: {counted(sent, 'event')} sent, {waiting} waiting"
    if problem is not None:
        outcome += f" ({problem})"
    run.out.result(outcome, {"name": name, "sent": sent, "waiting": waiting, "error": problem})
    if problem is not None:
        raise typer.Exit(ExitCode.PARTLY_FAILED)


def test(ctx: Context, name: Name) -> None:
    """Send the event webhook.test at once, and print the status of the answer. Exit code 7 unless it was taken."""
    from usersctl.webhooks.errors import NotDelivered

    run = invocation(ctx)
    try:
        event_id, answer = _webhooks(run, write=False).test(name, by=run.actor)
    except NotDelivered as error:
        run.out.error(error, code="undeliverable", hint=f"see: usersctl webhook show {name}")
        raise typer.Exit(ExitCode.PARTLY_FAILED) from None
    run.out.result(f"{name} took {event_id}: {answer.status}", {"id": event_id, "status": answer.status})


def _webhooks(run: Invocation, *, write: bool = True) -> "Webhooks":
    if not run.loaded.settings.webhooks:
        raise NotFound(NONE, hint="see: usersctl config explain webhooks")
    webhooks = run.service(write=write).webhooks
    assert webhooks is not None  # noqa: S101 - the configuration has one
    return webhooks


def _event(event: QueuedEmail) -> dict[str, Any]:
    named: dict[str, Any] = {"id": event.message_id, "type": event.kind, "user_id": event.subject or None}
    named |= {name: getattr(event, name) for name in OF_AN_EVENT}
    if event.state != EmailState.WAITING or event.is_behind:
        named["due_at"] = None
    return named
