"""doctor: what is wrong with this installation, and the command that mends it."""

from typing import TYPE_CHECKING, Annotated

import typer

from usersctl.cli.healthcheck import NotReady, ask_within, configured
from usersctl.cli.questions import invocation
from usersctl.cli.show.findings import Line, show
from usersctl.cli.show.output import PARTLY_FAILED, Output
from usersctl.config import Settings
from usersctl.config.sources import Loaded
from usersctl.errors import UsersError

if TYPE_CHECKING:
    from usersctl.doctor import Finding, Severity

ANSWERS_WITHIN = 3.0  # seconds: the daemon, on this machine


def register(app: typer.Typer) -> None:
    app.command("doctor", rich_help_panel="Operation", epilog="Example: usersctl doctor --online")(doctor)


def doctor(
    ctx: typer.Context,
    online: Annotated[
        bool,
        typer.Option(
            "--online", help="Also ask the mail server, the identity provider, and baseUrl from here."
        ),
    ] = False,
) -> None:
    """Look for what is wrong with this installation. Exit code 7 when there is a problem or a warning.

    Nothing is changed. With --quiet, what is well is left out.
    """
    from usersctl.clock import utc_now
    from usersctl.doctor import CHECKS, Installation, Severity, examine
    from usersd import start

    run = invocation(ctx)
    loaded: Loaded | UsersError
    try:
        loaded = run.loaded
    except UsersError as error:
        loaded = error
    installation = Installation(
        loaded=loaded,
        options=run.options.to_repeat(),
        now=utc_now,
        check_files=start.check,
        ask_daemon=_why_not_ready,
    )
    try:
        findings = list(examine(installation, with_network=online))
    finally:
        installation.close()
    counts = {each: sum(found.severity is each for found in findings) for each in Severity}
    if run.out.json:
        run.out.write_json(
            {
                "online": online,
                "findings": [found._asdict() for found in findings],
                "counts": counts,
            }
        )
    else:
        shown = [each for each in findings if not run.out.quiet or each.severity is not Severity.OK]
        show(run.out, ("code", "severity", "message"), _lines(run.out, shown))
        left = 0 if online else sum(check.online for check in CHECKS)
        run.out.note(_summed_up(counts) + (f"; {left} more checks with --online" if left else ""))
    if counts[Severity.PROBLEM] or counts[Severity.WARNING]:
        raise typer.Exit(PARTLY_FAILED)


def _why_not_ready(settings: Settings) -> str | None:
    try:
        ask_within(ANSWERS_WITHIN, configured(settings))
    except NotReady as error:
        return str(error)
    return None


def _lines(out: Output, found: "list[Finding]") -> list[Line]:
    """On a terminal, what stands in the way of several checks is told once, after the others."""
    if not out.terminal:
        return [Line(*each) for each in found]
    lines, waiting = [], dict[str, list[str]]()
    for each in found:
        if each.severity == "unchecked":
            waiting.setdefault(each.message, []).append(each.code)
        else:
            lines.append(Line(*each))
    return lines + [
        Line("", "unchecked", f"{reason}: {', '.join(codes)}", None) for reason, codes in waiting.items()
    ]


def _summed_up(counts: "dict[Severity, int]") -> str:
    words = {"problem": "problems", "warning": "warnings", "hint": "hints", "unchecked": "not checked"}
    told = [
        f"{count} {words[each] if count != 1 or each == 'unchecked' else each}"
        for each, count in counts.items()
        if each in words and count
    ]
    return ", ".join(told[::-1]) or "Nothing is wrong"
