"""mail and link: the letters that wait, and links for those whom no letter reaches."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from usersctl.cli.questions import UserArgument, invocation, one_user
from usersctl.cli.show.output import PARTLY_FAILED, clean
from usersctl.errors import Forbidden, NotFound
from usersctl.models import Letter
from usersctl.store.transaction import Transaction

PANEL = "Letters"
COLUMNS = ("id", "kind", "email", "state", "attempts", "created_at", "due_at", "last_error")


class Purpose(StrEnum):
    CONFIRM = "confirm"
    RESET = "reset"


def register(app: typer.Typer) -> None:
    mail = typer.Typer(
        no_args_is_help=True,
        help="Letters: what waits, what failed and why.",
        epilog="Example: usersctl mail list",
    )
    for name, command, example in (
        ("list", list_, "usersctl mail list --json"),
        ("show", show, "usersctl mail show 12"),
        ("retry", retry, "usersctl mail retry"),
        ("test", test, "usersctl mail test ada@example.com"),
    ):
        mail.command(name, epilog=f"Example: {example}")(command)
    app.add_typer(mail, name="mail", rich_help_panel=PANEL)
    app.command("link", rich_help_panel=PANEL, epilog="Example: usersctl link reset ada@example.com")(link)


def list_(ctx: typer.Context) -> None:
    """List the letters that wait, failed, or ended in the last days."""
    run = invocation(ctx)
    store = run.store(write=False)
    with store.read() as tx:
        letters = list(tx.letters())
    if run.out.json:
        run.out.write_json([_as_json(letter) for letter in letters])
        return
    run.out.table(
        COLUMNS, ([getattr(each, name) for name in COLUMNS] for each in letters), empty="No letters."
    )


def show(
    ctx: typer.Context,
    letter_id: Annotated[int, typer.Argument(metavar="ID", min=1, help="The number of the letter.")],
) -> None:
    """Show what became of one letter. Also its text, where it was laid into a folder."""
    from usersctl.mail import folder

    run = invocation(ctx)
    store = run.store(write=False)
    with store.read() as tx:
        letter = _found(tx, letter_id)
    file = folder.mail_folder(run.loaded.settings) / f"{letter_id}.eml"
    found = folder.read(file) if file.is_file() else None
    if found is not None and found.message_id != letter.message_id:
        found = None  # another database's, whose numbers are the same
    told = _as_json(letter) | {
        "file": str(file) if found else None,
        "subject": found.subject if found else None,
    }
    if run.out.json:
        run.out.write_json(told | {"text": "\n\n".join(found.parts) if found else None})
        return
    run.out.facts(told.items())
    if found is not None:
        run.out.data(clean("\n" + "\n\n".join(found.parts)))


def retry(
    ctx: typer.Context,
    letter_ids: Annotated[
        list[int] | None,
        typer.Argument(metavar="[ID...]", min=1, help="All that wait or failed if left out."),
    ] = None,
) -> None:
    """Send letters now, also while no daemon runs. Exit code 7 when one could not be sent."""
    from usersctl.clock import stamp
    from usersctl.mail import writer

    run = invocation(ctx)
    service = run.service()
    with service.store.read() as tx:
        for each in letter_ids or []:
            _found(tx, each)
    writer.Writer(run.loaded.settings).check()
    tried = service.outbox.retry(letter_ids or None)
    # Those that are due by now and no later: one that fails is put off, perhaps for less time than the others take.
    due_by = stamp(service.now())
    while service.outbox.work(due_by=due_by) is not None:
        pass
    with service.store.read() as tx:
        now = [found for each in tried if (found := tx.letter(each.id)) is not None]
    lines = [
        f"Letter {each.id} to {each.email}: {each.state}"
        + (f" ({each.last_error})" if each.state != "sent" and each.last_error else "")
        for each in now
    ]
    run.out.result("\n".join(lines) or "No letter waits; nothing to do", [_as_json(each) for each in now])
    if any(each.state in ("waiting", "failed") for each in now):
        raise typer.Exit(PARTLY_FAILED)


def test(
    ctx: typer.Context, to: Annotated[str, typer.Argument(metavar="TO", help="Where to send it.")]
) -> None:
    """Send a test letter, and tell what the mail server answered. Exit code 7 when it was not taken."""
    from usersctl.clock import utc_now
    from usersctl.fields import normal_email
    from usersctl.mail import writer
    from usersctl.mail.outbox import sender
    from usersctl.mail.sending import Undeliverable
    from usersctl.secrets import new_message_id

    run = invocation(ctx)
    address, settings = normal_email(to), run.loaded.settings
    writer.Writer(settings).check()
    message = writer.Writer(settings).write(
        "test", address, link=None, hours=0, message_id=new_message_id(), date=utc_now()
    )
    try:
        answer = sender(settings)(message, address, 0)
    except Undeliverable as error:
        run.out.error(error, code="undeliverable", hint="see: usersctl config show --origin")
        raise typer.Exit(PARTLY_FAILED) from None
    run.out.result(f"Sent to {address}: {answer}", {"to": address, "answer": answer})


def link(
    ctx: typer.Context,
    purpose: Annotated[Purpose, typer.Argument(metavar="confirm|reset", help="Which link.")],
    user: UserArgument,
) -> None:
    """Print a working link, for a user whom no letter reaches. It is good once, like the letter's."""
    from usersctl.mail.kinds import CONFIRM, RESET

    run = invocation(ctx)
    service = run.service()
    found = one_user(service, user)
    kind = {Purpose.CONFIRM: CONFIRM, Purpose.RESET: RESET}[purpose]
    if kind is CONFIRM:
        if not found.awaiting_confirmation:
            hint = None if found.active else f"usersctl activate {found.id}"
            raise Forbidden(f"{found.email} has nothing to confirm", hint=hint)
        if "/register" not in run.loaded.settings.whitelist:
            raise Forbidden(
                "Registration is closed, and its confirmation with it",
                hint=f'add "/register" to auth.whitelist, or: usersctl activate {found.id}',
            )
    url = service.outbox.link(kind, found, by=run.actor)
    run.out.note(f"For {found.email}, good once and for {kind.lifetime.total_seconds() / 3600:.0f} h:")
    if run.out.json:
        run.out.write_json({"url": url, "email": found.email, "purpose": str(purpose)})
    else:
        run.out.data(url)


def _found(tx: Transaction, letter_id: int) -> Letter:
    letter = tx.letter(letter_id) if letter_id < 2**63 else None  # SQLite's integers end there
    if letter is None:
        raise NotFound(f"No letter {letter_id}", hint="see: usersctl mail list")
    return letter


def _as_json(letter: Letter) -> dict[str, Any]:
    return {name: value for name, value in letter._asdict().items() if name != "message_id"}
