"""What stands in the database: times, admins, the brake, the last cleanup, letters."""

from datetime import UTC, datetime, timedelta

from usersctl.clock import moment, stamp
from usersctl.doctor.case import Case, Verdict, ok, problem, warning
from usersctl.schedule import next_slot

CLOCKS_DIFFER = timedelta(minutes=5)
FIRST_RELEASE = datetime(2026, 11, 1, tzinfo=UTC)  # a clock before that was never set
LATE = timedelta(hours=1)  # a cleanup, after the time when it was due
WITHOUT_CLEANUP = timedelta(days=8)
LETTER_IS_LATE = timedelta(minutes=15)


def clock(case: Case) -> Verdict:
    now = case.now()
    if now < FIRST_RELEASE:
        return problem(f"the clock says {stamp(now)}, before this program was written", "timedatectl status")
    later = case.ask(lambda tx: tx.count_later_than(stamp(now + CLOCKS_DIFFER)))
    if any(later.values()):
        told = ", ".join(f"{count} of {table}" for table, count in later.items() if count)
        return warning(
            f"rows from the future ({told}): the clock was ahead, or is behind", "timedatectl status"
        )
    return ok(stamp(now))


def admin(case: Case) -> Verdict:
    admins = case.ask(lambda tx: tx.active_admins())
    if not admins:
        return problem("nobody is an active admin", case.command("create EMAIL --admin"))
    return ok(f"{admins} active")


def lockdown(case: Case) -> Verdict:
    closed = case.ask(lambda tx: tx.lockdown())
    if closed is None:
        return ok("off")
    who = f"nobody but {closed.admitted.email}" if closed.admitted else "nobody"
    return warning(f"on since {closed.since}, by {closed.actor}: {who} gets in", case.command("lockdown off"))


def cleanup(case: Case) -> Verdict:
    line, now = case.settings.cleanup_schedule, case.now()
    last = case.ask(lambda tx: tx.last_cleanup())
    since = last.at if last else case.ask(lambda tx: tx.first_audited_at())
    told = f"last at {last.at}" if last else "never ran"
    if since is None:
        return ok("nothing to clean up yet")
    if line is None:
        if now - moment(since) > WITHOUT_CLEANUP:
            return warning(f"tokenCleanupSchedule is off, and it {told}", case.command("snippet cron"))
        return ok(f"not by the daemon; {told}")
    due = next_slot(line, moment(since))
    if now - due > LATE:
        return warning(
            f"it was due at {stamp(due)} by {line!r}, and {told}: no daemon runs, or it cannot write",
            case.command("cleanup-tokens"),
        )
    return ok(f"{told}; due at {stamp(due)} by {line!r}")


def letters_waiting(case: Case) -> Verdict:
    oldest = case.ask(lambda tx: tx.oldest_letter("waiting"))
    if oldest is None:
        return ok("none")
    count = case.ask(lambda tx: tx.count_letters())["waiting"]
    told = f"{count}, the oldest since {oldest.created_at}"
    if case.now() - moment(oldest.created_at) < LETTER_IS_LATE:
        return ok(told)
    why = f": {oldest.last_error}" if oldest.last_error else ": no daemon sends them"
    return warning(told + why, case.command("mail retry"))


def letters_failed(case: Case) -> Verdict:
    oldest = case.ask(lambda tx: tx.oldest_letter("failed"))
    if oldest is None:
        return ok("none")
    count = case.ask(lambda tx: tx.count_letters())["failed"]
    return warning(
        f"{count}, such as {oldest.id} to {oldest.email}: {oldest.last_error}", case.command("mail list")
    )
