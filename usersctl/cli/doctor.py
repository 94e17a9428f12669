"""doctor: looks for problems of this installation, with the command that fixes each."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Context, Option

from usersctl.cli.exit_codes import ExitCode
from usersctl.cli.healthcheck import NotReady, ask_within, configured
from usersctl.cli.invocation import invocation
from usersctl.cli.show.findings import Line, show
from usersctl.cli.show.output import Output
from usersctl.config import Settings
from usersctl.config.sources import Loaded
from usersctl.errors import UsersError
from usersctl.text import counted

if TYPE_CHECKING:
    from usersctl.doctor import Finding

ANSWERS_WITHIN = 3.0  # seconds: the daemon, on this machine


def doctor(
    ctx: Context,
    online: Annotated[bool, Option("--online", help="Also ask mail server, provider and baseUrl.")] = False,
) -> None:
    """Check this installation.

    Changes nothing. Exit code 7 for a problem or a warning. With --quiet, checks that are ok are not printed, and those
    that were not possible share a line for each reason.
    """
    from usersctl.clock import utc_now
    from usersctl.doctor import CHECKS, Installation, Severity, examine
    from usersd.check import check

    run = invocation(ctx)
    loaded: Loaded | UsersError
    try:
        loaded = run.loaded
    except UsersError as error:
        loaded = error
    counts: dict[str, int] = dict.fromkeys(Severity, 0)
    installation = Installation(loaded, run.options.to_repeat(), utc_now, check, _why_not_ready)
    with closing(installation):
        findings = _counting(examine(installation, with_network=online), counts)
        if run.out.json:
            rows = [finding._asdict() for finding in findings]
            run.out.write_json({"online": online, "findings": rows, "counts": counts})
        else:
            columns, lines = ("code", "severity", "message"), _lines(run.out, findings)
            show(run.out, columns, lines, names=[check.code for check in CHECKS], states=Severity)
            skipped = sum(check.online for check in CHECKS)
            run.out.note(_summary(counts) + ("" if online else f"; {skipped} more checks with --online"))
    if counts[Severity.PROBLEM] or counts[Severity.WARNING]:
        raise typer.Exit(ExitCode.PARTLY_FAILED)


def _counting(findings: "Iterable[Finding]", counts: dict[str, int]) -> "Iterator[Finding]":
    for finding in findings:
        counts[finding.severity] += 1
        yield finding


def _why_not_ready(settings: Settings) -> str | None:
    try:
        ask_within(ANSWERS_WITHIN, configured(settings))
    except NotReady as error:
        return str(error)
    return None


def _lines(out: Output, findings: "Iterable[Finding]") -> Iterator[Line]:
    """For people, and for emails of cron, the checks that were not possible come last, one line for each reason."""
    unchecked = dict[str, list[str]]()
    for finding in findings:
        if (out.terminal or out.quiet) and finding.severity == "unchecked":
            unchecked.setdefault(finding.message, []).append(finding.code)
        elif not out.quiet or finding.severity != "ok":
            yield Line(*finding)
    for reason, codes in unchecked.items():
        yield Line("", "unchecked", f"{reason}: {', '.join(codes)}", None)


def _summary(counts: dict[str, int]) -> str:
    parts = [counted(counts[name], name) for name in ("problem", "warning", "hint") if counts[name]]
    if counts["unchecked"]:
        parts.append(f"{counts['unchecked']} not checked")
    return ", ".join(parts) or "Nothing is wrong"
