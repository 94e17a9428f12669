"""mail and link: the emails in the outbox, and links for users whom no email reaches."""

from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Context

from usersctl.cli.arguments import UserArgument, one_user
from usersctl.cli.exit_codes import ExitCode
from usersctl.cli.invocation import Invocation, invocation
from usersctl.cli.show.cells import clean
from usersctl.cli.show.listing import print_json_list
from usersctl.clock import moment, stamp, utc_now
from usersctl.errors import Forbidden, NotFound
from usersctl.fields import normal_email
from usersctl.models import EmailState, QueuedEmail, User

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usersctl.cli.show.tables import Step
    from usersctl.mail.kinds import Kind
    from usersctl.service import Service
    from usersctl.store.transaction import Transaction

HIDDEN = ("message_id", "webhook", "subject", "payload")  # the last three are of events, which are no emails
COLUMNS = ("id", "kind", "email", "state", "attempts", "created_at", "due_at", "last_error")


class Purpose(StrEnum):
    CONFIRM = "confirm"
    RESET = "reset"
    EMAIL = "email"
    INVITE = "invite"


def list_(ctx: Context) -> None:
    """List the emails that wait, have failed, or are done."""
    run = invocation(ctx)
    with run.store(write=False).read() as tx:
        emails = map(_as_json, tx.queued_emails())
        if run.out.json:
            print_json_list(run, emails)
            return
        rows = ([values[name] for name in COLUMNS] for values in emails)
        run.out.table(COLUMNS, rows, empty="No emails.", steps=_steps() if run.out.terminal else ())


def _steps() -> "Sequence[Step]":
    from usersctl.cli.show.tables import DAYS, Step

    first = (Step("last_error", 24), Step("created_at"), Step("email", 28), Step("attempts"), Step("due_at"))
    return (*first, Step("last_error", 12), Step("last_error"), DAYS)


def show(
    ctx: Context, email_id: Annotated[int, Argument(metavar="ID", min=1, help="The number of the email.")]
) -> None:
    """Show one email: its state, and its text if it was written to the mail folder."""
    from usersctl.mail import folder

    run = invocation(ctx)
    with run.store(write=False).read() as tx:
        queued = _queued(tx, email_id)
    file = folder.find(folder.mail_folder(run.loaded.settings), email_id, queued.message_id)
    facts = _as_json(queued) | {"file": None, "subject": None}
    text = None
    if file is not None:
        written = folder.read(file)
        facts |= {"file": str(file), "subject": written.subject}
        text = "\n\n".join(written.parts)
    if run.out.json:
        run.out.write_json(facts | {"text": text})
        return
    run.out.facts(facts.items())
    if text is not None:
        run.out.data(clean(f"\n{text}"))


def retry(
    ctx: Context,
    email_ids: Annotated[
        list[int] | None, Argument(metavar="[ID...]", min=1, help="Default: all that wait or have failed.")
    ] = None,
) -> None:
    """Send waiting emails now. Works without a running daemon. Exit code 7 if an email could not be sent."""
    from usersctl.mail import writer

    run = invocation(ctx)
    service = run.service()
    with service.store.read() as tx:
        for email_id in email_ids or []:
            _queued(tx, email_id)
    writer.Writer(run.loaded.settings).check()
    tried = service.outbox.retry(email_ids or None)
    # Only emails that are due now: one that fails again is postponed, and must not be tried in an endless loop.
    due_by = stamp(service.now())
    while service.outbox.work(due_by=due_by) is not None:
        pass
    for before in tried:
        service.outbox.wait_for_others(before.id)  # the daemon may have taken it
    with service.store.read() as tx:
        emails = [queued for before in tried if (queued := tx.queued_email(before.id)) is not None]
    outcomes = "\n".join(_outcome(queued) for queued in emails)
    run.out.result(outcomes or "No email waits; nothing to do", [_as_json(queued) for queued in emails])
    if any(queued.state in (EmailState.WAITING, EmailState.FAILED) for queued in emails):
        raise typer.Exit(ExitCode.PARTLY_FAILED)


def _outcome(queued: QueuedEmail) -> str:
    line = f"Email {queued.id} to {queued.email}: {queued.state}"
    if queued.state != EmailState.SENT and queued.last_error:
        line += f" ({queued.last_error})"
    return line


def test(ctx: Context, to: Annotated[str, Argument(metavar="TO", help="The address to send it to.")]) -> None:
    """Send a test email, and print the answer of the mail server.

    Exit code 7 if the email was not accepted.
    """
    from usersctl.mail import outbox, sending, writer
    from usersctl.secrets import new_message_id

    run = invocation(ctx)
    address, settings = normal_email(to), run.loaded.settings
    email_writer = writer.Writer(settings)
    email_writer.check()
    message_id = new_message_id()
    message = email_writer.write("test", address, message_id=message_id, date=utc_now())
    try:
        answer = outbox.sender(settings)(message, address, 0)
    except sending.Undeliverable as error:
        run.out.error(error, code="undeliverable", hint="see: usersctl config show --origin")
        raise typer.Exit(ExitCode.PARTLY_FAILED) from None
    told = f"Sent to {address}" if settings.mailer_host else "No mail server is configured"
    run.out.result(f"{told}: {answer}", {"to": address, "answer": answer})


def link(
    ctx: Context,
    purpose: Annotated[
        Purpose, Argument(metavar="PURPOSE", help="The purpose of the link: confirm, reset, email or invite.")
    ],
    user: UserArgument,
) -> None:
    """Print a link for a user whom no email reaches.

    It confirms the address of a new account (confirm), resets the password (reset), confirms a new address that the user
    gave (email), or accepts an invitation (invite). It works once, like the link of an email.
    """
    from usersctl.mail.kinds import CONFIRM, CONFIRM_NEW_EMAIL, INVITATION, RESET

    run = invocation(ctx)
    service = run.service()
    account = one_user(service, user)
    kind, lifetime = RESET, timedelta()
    if purpose is Purpose.CONFIRM:
        _refuse_nothing_to_confirm(run, account)
        kind = CONFIRM
    elif purpose is Purpose.EMAIL:
        kind = _link_of_claim(run, service, account)
    elif purpose is Purpose.INVITE:
        kind, lifetime = INVITATION, _left_of_invitation(service, account)
    elif account.awaits_owner:
        hint = f"use: usersctl link invite {account.id}"
        raise Forbidden(f"{account.email} is invited, and has no password to reset", hint=hint)
    url = service.outbox.link(kind, account, by=run.actor)
    email = account.called if kind is CONFIRM_NEW_EMAIL else account.email
    run.out.note(f"For {email}; works once, within {_in_words(lifetime or kind.lifetime)}:")
    if purpose is Purpose.RESET and not account.active:
        let_in = run.options.repeated_in(f"To let it in: usersctl activate {account.id}")
        run.out.note(f"The account is inactive, and stays so. {let_in}")
    if run.out.json:
        run.out.write_json({"url": url, "email": email, "purpose": str(purpose)})
    else:
        run.out.data(url)


def _in_words(lifetime: timedelta) -> str:
    hours = round(lifetime / timedelta(hours=1))
    return f"{hours // 24} days" if hours >= 48 and hours % 24 == 0 else f"{hours} h"


def _link_of_claim(run: Invocation, service: "Service", account: User) -> "Kind":
    """The one to the new address. An account without a password needs another one after that, to the known address."""
    from usersctl.mail.kinds import APPROVE_NEW_EMAIL, CONFIRM_NEW_EMAIL

    with service.store.read() as tx:
        claim = tx.claim_of(account.id)
    if claim is None:
        hint = f"a change by the command is at once: usersctl update {account.id} --email EMAIL"
        raise Forbidden(f"{account.email} has no new address to confirm", hint=hint)
    if claim.proven_at is not None:
        return APPROVE_NEW_EMAIL
    if claim.approved_at is None and not service.recovery.has_password(account.id):
        when = "The account has no password. Once this link is used, print the one that approves the change"
        run.out.note(run.options.repeated_in(f"{when}: usersctl link email {account.id}"))
    return CONFIRM_NEW_EMAIL


def _left_of_invitation(service: "Service", account: User) -> timedelta:
    with service.store.read() as tx:
        invitation = tx.invitation_of(account.id)
        if invitation is None:
            raise Forbidden(f"{account.email} has no invitation", hint=f"see: usersctl why {account.id}")
        if invitation.has_expired(tx.now_text):
            hint = f"use: usersctl invite resend {account.id}"
            raise Forbidden(f"The invitation of {account.email} has expired", hint=hint)
        return moment(invitation.expires_at) - tx.now


def _refuse_nothing_to_confirm(run: Invocation, account: User) -> None:
    activate = f"usersctl activate {account.id}"
    if not account.awaiting_confirmation:
        hint = f"see: usersctl why {account.id}" if account.active else activate
        if account.awaits_owner:  # the link of the invitation proves the address as well
            hint = f"use: usersctl link invite {account.id}"
        raise Forbidden(f"{account.email} has nothing to confirm", hint=hint)
    if not run.loaded.settings.registration_is_open:
        hint = f'add "/register" to auth.whitelist, or: {activate}'
        raise Forbidden("Registration is closed, and its confirmation with it", hint=hint)


def _queued(tx: "Transaction", email_id: int) -> QueuedEmail:
    if email_id < 2**63:  # a larger number is no integer of SQLite
        queued = tx.queued_email(email_id)
        if queued is not None:
            return queued
    raise NotFound(f"No email {email_id}", hint="see: usersctl mail list")


def _as_json(queued: QueuedEmail) -> dict[str, Any]:
    values = {name: value for name, value in queued._asdict().items() if name not in HIDDEN}
    if queued.state != EmailState.WAITING:
        values["due_at"] = None
    return values
