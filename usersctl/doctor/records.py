"""Checks of what the database holds: times, admins, the lockdown, the last cleanup, emails."""

from collections import Counter
from datetime import UTC, datetime, timedelta

from usersctl.clock import moment, stamp
from usersctl.config.providers import ProviderSettings, table_of
from usersctl.config.values import groups_in
from usersctl.doctor.installation import (
    Installation,
    Result,
    for_each_provider,
    hint,
    ok,
    problem,
    warning,
)
from usersctl.models import EmailState, QueuedEmail
from usersctl.oauth.identities import unbound
from usersctl.passwords import ARGON2, MEND_LIBRARY, beginning_of, kind_of
from usersctl.schedule import next_slot
from usersctl.store.transaction import Transaction
from usersctl.text import counted

CLOCKS_DIFFER = timedelta(minutes=5)
FIRST_RELEASE = datetime(2026, 11, 1, tzinfo=UTC)  # a clock before that was never set
CLEANUP_IS_LATE = timedelta(hours=1)
WITHOUT_CLEANUP = timedelta(days=8)
# A daemon deletes within a minute, `cleanup-tokens` of a cron within a day.
DELETION_IS_LATE = timedelta(days=2)
MANY_DELETIONS = 5
EMAIL_IS_LATE = timedelta(minutes=15)
MANY_ISSUERS = 5
MANY_TOKENS = 5
IDLE_TOKEN = timedelta(days=90)
MOST_KINDS = 50  # of hashes, by cost and system


def clock(installation: Installation) -> Result:
    now = installation.now()
    if now < FIRST_RELEASE:
        return problem(f"the clock says {stamp(now)}, before this program was written", "timedatectl status")
    later = installation.query(lambda tx: tx.count_later_than(stamp(now + CLOCKS_DIFFER)))
    rows = ", ".join(f"{count} of {table}" for table, count in later.items() if count)
    if rows:
        return warning(f"rows from the future ({rows}): the clock was or is wrong", "timedatectl status")
    return ok(stamp(now))


def admin(installation: Installation) -> Result:
    admins = installation.query(lambda tx: tx.active_admins())
    if not admins:
        return problem("there is no active admin", installation.command("create EMAIL --admin"))
    return ok(f"{admins} active")


def lockdown(installation: Installation) -> Result:
    lockdown = installation.query(lambda tx: tx.lockdown())
    if lockdown is None:
        return ok("off")
    effect = "no user can sign in"
    if lockdown.admitted:
        effect = f"only {lockdown.admitted.email} can sign in"
    message = f"on since {lockdown.since}, by {lockdown.actor}: {effect}"
    return warning(message, installation.command("lockdown off"))


def tokens(installation: Installation) -> Result:
    """API tokens that last for ever, and that no client uses any more."""
    since = stamp(installation.now() - IDLE_TOKEN)
    idle = installation.query(lambda tx: tx.idle_endless_tokens(since, MANY_TOKENS + 1))
    if not idle:
        return ok("every one expires, or was used in the last 90 days")
    named = _first([f"{number} ({name}, of {email})" for number, name, email in idle], MANY_TOKENS)
    message = f"without an expiry date, and unused for 90 days: {named}"
    return warning(message, installation.command(f"token revoke --id {idle[0][0]}"))


def cleanup(installation: Installation) -> Result:
    schedule, now = installation.settings.cleanup_schedule, installation.now()
    last = installation.query(lambda tx: tx.last_cleanup())
    if last is not None:
        since, history = last.at, f"last ran at {last.at}"
    else:
        first = installation.query(lambda tx: tx.first_audited_at())
        if first is None:
            return ok("nothing to clean up yet")
        since, history = first, "never ran"
    if schedule is None and now - moment(since) > WITHOUT_CLEANUP:
        return warning(f"tokenCleanupSchedule is off, and it {history}", installation.command("snippet cron"))
    if schedule is None:
        return ok(f"not by the daemon; {history}")
    due = next_slot(schedule, moment(since))
    if now - due > CLEANUP_IS_LATE:
        message = f"was due at {stamp(due)} by {schedule!r}, {history}: no daemon runs, or it cannot write"
        return warning(message, installation.command("cleanup-tokens"))
    return ok(f"{history}; due at {stamp(due)} by {schedule!r}")


def deletions(installation: Installation) -> Result:
    """Accounts that their owners were told would be gone by now."""
    since = stamp(installation.now() - DELETION_IS_LATE)
    users, lockdown = installation.query(
        lambda tx: (tx.users_to_delete(MANY_DELETIONS + 1, since=since), tx.lockdown())
    )
    if not users:
        return ok("none is overdue")
    named = _first([f"{user.email} ({user.delete_at})" for user in users], MANY_DELETIONS)
    if lockdown is not None:
        return ok(f"wait for the end of the lockdown: {named}")
    # The command says why, if other data belongs to one of them.
    return warning(
        f"accounts that their owners deleted are still there: {named}", installation.command("cleanup-tokens")
    )


def _first(items: list[str], at_most: int) -> str:
    """`a, b and more`"""
    return ", ".join(items[:at_most]) + " and more" * (len(items) > at_most)


def why_unsent(installation: Installation, oldest: QueuedEmail) -> str:
    """Why an email or event that waits longest was not sent yet."""
    if oldest.last_error is not None:
        return oldest.last_error
    since = stamp(installation.now() - EMAIL_IS_LATE)
    is_at_work = installation.query(lambda tx: tx.was_any_sent(oldest.webhook, since=since))
    return "others are sent, but more come than that" if is_at_work else "no daemon sends them"


def emails_waiting(installation: Installation) -> Result:
    oldest = installation.query(lambda tx: tx.oldest_email(EmailState.WAITING))
    if oldest is None:
        return ok("none")
    count = installation.query(lambda tx: tx.count_emails())["waiting"]
    message = f"{count}, the oldest since {oldest.created_at}"
    if installation.now() - moment(oldest.created_at) < EMAIL_IS_LATE:
        return ok(message)
    reason = why_unsent(installation, oldest)
    return warning(f"{message}: {reason}", installation.command("mail retry"))


def emails_failed(installation: Installation) -> Result:
    oldest = installation.query(lambda tx: tx.oldest_email(EmailState.FAILED))
    if oldest is None:
        return ok("none")
    count = installation.query(lambda tx: tx.count_emails())["failed"]
    message = f"{count}, such as {oldest.id} to {oldest.email}: {oldest.last_error}"
    return warning(message, installation.command("mail list"))


def password_hashes(installation: Installation) -> Result | None:
    """Of other systems, while there are some."""
    from usersctl import foreign_hashes

    def count(tx: Transaction) -> Counter[str]:
        kinds: Counter[str] = Counter()
        for stored in tx.foreign_hashes(beginning_of, MOST_KINDS):
            number = tx.count_foreign_hashes(beginning_of(stored))
            kinds[kind_of(stored) or "that cannot be read"] += number
        return kinds

    kinds = installation.query(count)
    if not kinds:
        return None
    listed = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    if ARGON2 in kinds and not foreign_hashes.has_argon2():
        message = (
            f"of other systems: {listed}; Argon2 matches no password, because its library is not installed"
        )
        return problem(message, MEND_LIBRARY)
    return ok(f"of other systems, until their owners' next login: {listed}")


def group_rules(installation: Installation) -> Result:
    """A rule for a group that does not exist lets no user in."""
    rules = installation.settings.role_rules
    named = {name: path for path, needed in rules for name in groups_in(needed)}
    if not named:
        return ok("no rule names one")
    there = {group.name for group in installation.query(lambda tx: tx.groups())}
    unknown = sorted(named.keys() - there)
    if unknown:
        message = f"auth.roleRules has the group {unknown[0]!r} for {named[unknown[0]]}, which does not exist"
        return warning(message, installation.command(f"group create {unknown[0]}"))
    return ok(counted(len(named), "group"))


@for_each_provider
def _links_of_provider(installation: Installation, provider: ProviderSettings) -> Result | None:
    issuer = provider.issuer_of_links
    if issuer is None:
        return None
    others = installation.query(lambda tx: tx.links_elsewhere(provider.name, issuer))
    waiting = sum(others.pop(issuer_of_link, 0) for issuer_of_link in unbound(issuer))
    if others:
        listed = ", ".join(f"{count} at {other}" for other, count in sorted(others.items())[:MANY_ISSUERS])
        message = f"accounts are linked elsewhere than at {issuer}, and cannot sign in there: {listed}"
        unlink = f"unlink each: {installation.command(f'update USER --unlink {provider.name}')}"
        return warning(message, f"set {table_of(provider.name)} to that provider again, or {unlink}")
    if waiting:
        message = f"{counted(waiting, 'linked account')} will belong to {issuer} at the next start"
        return hint(message, installation.restart)
    return ok(f"all of {issuer}")


def provider_links(installation: Installation) -> list[Result]:
    configured = {provider.name for provider in installation.settings.providers}
    if not configured:
        return []
    results = _links_of_provider(installation)
    for name, count in sorted(installation.query(lambda tx: tx.providers_with_links()).items()):
        if name not in configured:
            message = f"{counted(count, 'account')} linked at {name}, which is not configured"
            unlink = installation.command(f"update USER --unlink {name}")
            results.append(warning(message, f"configure {table_of(name)} again, or unlink each: {unlink}"))
    return results
