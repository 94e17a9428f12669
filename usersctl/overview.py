"""The service at a glance: how many users there are, what happened on the last days, and what last ran."""

from datetime import date, timedelta

from usersctl.models import AuditRow, DayCounts, Role, UserFilter, UserState
from usersctl.named import NamedTuple
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction
from usersctl.throttle import AccountThrottle

DAYS = 30
MANY = 1000  # what no table counts is counted up to this number only


class Overview(NamedTuple):
    """Numbers of users and emails, and the days in UTC, the last one of which is today."""

    users: int
    active: int
    admins: int
    awaiting: int
    invited: int
    locked: int  # MANY: so many or more; the same for the next four
    groups: int
    emails_waiting: int
    emails_failed: int
    events_waiting: int | None  # for webhooks; None: there is none
    days: list[DayCounts]
    last_backup: AuditRow | None
    last_cleanup: AuditRow | None


class Overviews(NamedTuple):
    store: Store
    throttle: AccountThrottle
    has_webhooks: bool

    def now(self) -> Overview:
        with self.store.read() as tx:
            waiting, failed = tx.count_unfinished_emails(MANY)
            events = tx.count_waiting_events(MANY) if self.has_webhooks else None
            return Overview(
                users=tx.count_users(UserFilter()),
                active=tx.count_users(UserFilter(active=True)),
                admins=tx.count_users(UserFilter(role=Role.ADMIN)),
                awaiting=tx.count_users(UserFilter(state=UserState.AWAITING)),
                invited=tx.count_users(UserFilter(state=UserState.INVITED)),
                locked=len(tx.locked_ids(self.throttle.locks(tx.now), MANY)),
                groups=tx.count_groups(MANY),
                emails_waiting=waiting,
                emails_failed=failed,
                events_waiting=events,
                days=_days(tx),
                last_backup=tx.last_of("backup"),
                last_cleanup=tx.last_cleanup(),
            )


def _days(tx: Transaction) -> list[DayCounts]:
    today = date.fromisoformat(tx.day)
    names = [str(today - timedelta(days=ago)) for ago in reversed(range(DAYS))]
    counted = tx.daily_counts(names[0], names[-1])
    return [counted.get(name, DayCounts(name)) for name in names]
