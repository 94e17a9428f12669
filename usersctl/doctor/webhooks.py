"""The check of webhooks: their receivers take the events, and over TLS."""

from urllib.parse import urlsplit

from usersctl.clock import moment
from usersctl.config.values import is_loopback
from usersctl.config.webhooks import Webhook
from usersctl.doctor.installation import Installation, Result, ok, warning
from usersctl.doctor.records import EMAIL_IS_LATE, why_unsent
from usersctl.text import counted


def receivers(installation: Installation) -> list[Result]:
    return [_receiver(installation, webhook) for webhook in installation.settings.webhooks]


def _receiver(installation: Installation, webhook: Webhook) -> Result:
    name = webhook.name
    state = installation.query(lambda tx: tx.webhook_state(name))
    counts = installation.query(lambda tx: tx.count_events(name))
    oldest = installation.query(lambda tx: tx.oldest_waiting_event(name))
    again = installation.command(f"webhook retry {name}")
    waiting = f"{name}: {counted(counts['waiting'], 'event')} waiting"
    if state.ended_at is not None:
        return warning(f"{waiting}; the receiver ended it at {state.ended_at} (410)", again)
    if oldest is not None and installation.now() - moment(oldest.created_at) >= EMAIL_IS_LATE:
        reason = why_unsent(installation, oldest)
        return warning(f"{waiting}, the oldest since {oldest.created_at}: {reason}", again)
    if counts["failed"]:
        return warning(f"{name}: {counted(counts['failed'], 'event')} given up after three days", again)
    url = urlsplit(webhook.url)
    if url.scheme == "http" and not is_loopback(url.hostname or ""):
        return warning(
            f"{name}: {url.hostname} gets the events without TLS", "use https in the url of [[webhooks]]"
        )
    return ok(waiting)
