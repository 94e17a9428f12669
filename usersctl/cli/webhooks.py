"""webhook: the receivers of events, what waits for them, and a test of one."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Context

from usersctl.cli.exit_codes import ExitCode
from usersctl.cli.questions import invocation
from usersctl.errors import NotFound
from usersctl.models import EmailState
from usersctl.text import counted

if TYPE_CHECKING:
    from usersctl.cli.invocation import Invocation
    from usersctl.webhooks.webhooks import Condition, Webhooks

COLUMNS = ("name", "url", "events", "state", "waiting", "failed", "oldest_waiting")
OF_AN_EVENT = ("message_id", "kind", "subject", "state", "attempts", "created_at", "due_at", "last_error")
NONE = "The configuration has no webhook"

Name = Annotated[str, Argument(metavar="NAME", help="Its name in the configuration.")]


def list_(ctx: Context) -> None:
    """List the webhooks of the configuration, whether their receivers work, and what waits for them."""
    run = invocation(ctx)
    conditions = []
    if run.loaded.settings.webhooks:
        conditions = [_as_json(each) for each in _webhooks(run, write=False).conditions()]
    if run.out.json:
        run.out.write_json(conditions)
        return
    rows = [[_cell(values[name]) for name in COLUMNS] for values in conditions]
    run.out.table(COLUMNS, rows, empty=f"{NONE}.")


def show(ctx: Context, name: Name) -> None:
    """Show a webhook, and its newest events."""
    run = invocation(ctx)
    condition = _webhooks(run, write=False).condition(name)
    facts, newest = _as_json(condition), [_event(each) for each in condition.newest]
    if run.out.json:
        run.out.write_json(facts | {"newest": newest})
        return
    run.out.facts((key, _cell(value)) for key, value in facts.items())
    run.out.data("")
    columns = ("id", "type", "user_id", *OF_AN_EVENT[3:])
    run.out.table(columns, ([event[column] for column in columns] for event in newest), empty="No events.")


def retry(ctx: Context, name: Name) -> None:
    """Begin a webhook again that ended, and send what waits now. Works without a running daemon.

    Events that were given up are sent as well, unless a later one of the same user was taken. Exit code 7 if an event could
    not be sent: the daemon goes on with the others.
    """
    run = invocation(ctx)
    webhooks = _webhooks(run)
    attempts = list(webhooks.retry(name))
    sent = sum(attempt.state == EmailState.SENT for attempt in attempts)
    failed = [attempt.message for attempt in attempts if attempt.state != EmailState.SENT]
    waiting = webhooks.condition(name).counts["waiting"]
    outcome = f"{name}: {counted(sent, 'event')} sent, {waiting} waiting"
    if failed:
        outcome += f" ({failed[-1]})"
    problem = failed[-1] if failed else None
    run.out.result(outcome, {"name": name, "sent": sent, "waiting": waiting, "error": problem})
    if failed:
        raise typer.Exit(ExitCode.PARTLY_FAILED)


def test(ctx: Context, name: Name) -> None:
    """Send the event webhook.test at once, and print the status of the answer. Exit code 7 unless it was taken."""
    from usersctl.webhooks.errors import NotDelivered

    run = invocation(ctx)
    hint = f"see: usersctl webhook show {name}"
    try:
        event_id, answer = _webhooks(run, write=False).test(name, by=run.actor)
    except NotDelivered as error:
        run.out.error(error, code="undeliverable", hint=hint)
        raise typer.Exit(ExitCode.PARTLY_FAILED) from None
    if not 200 <= answer.status < 300:
        refusal = NotDelivered(f"the receiver answered {answer.status}")
        run.out.error(refusal, code="undeliverable", hint=hint)
        raise typer.Exit(ExitCode.PARTLY_FAILED)
    run.out.result(f"{name} took {event_id}: {answer.status}", {"id": event_id, "status": answer.status})


def _webhooks(run: "Invocation", *, write: bool = True) -> "Webhooks":
    if not run.loaded.settings.webhooks:
        raise NotFound(NONE, hint="usersctl config explain webhooks tells how to add one")
    webhooks = run.service(write=write).webhooks
    assert webhooks is not None  # noqa: S101 - the configuration has one
    return webhooks


def _as_json(condition: "Condition") -> dict[str, Any]:
    from usersctl.webhooks.webhooks import as_json

    return as_json(condition)


def _event(event: Any) -> dict[str, Any]:
    values = event._asdict()
    named = {"id": values["message_id"], "type": values["kind"], "user_id": values["subject"] or None}
    named |= {name: values[name] for name in OF_AN_EVENT[3:]}
    if event.state != EmailState.WAITING or event.is_behind:
        named["due_at"] = None
    return named


def _cell(value: Any) -> Any:
    return " ".join(value) if isinstance(value, list) else value
