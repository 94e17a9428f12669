"""The journey of desired state: a plan, its execution in one transaction, and a file of what there is."""

from collections.abc import Iterator
from contextlib import contextmanager

from usersctl.config import Settings
from usersctl.errors import Forbidden
from usersctl.mail.kinds import EmailQueue
from usersctl.models import Actor, Standing
from usersctl.named import NamedTuple
from usersctl.permissions import admit
from usersctl.state.applying import Applying
from usersctl.state.planning import Change, Options, plan
from usersctl.state.reading import State
from usersctl.store.progress import Progress, unwatched
from usersctl.store.store import Store


class Present(NamedTuple):
    """What there is."""

    name: str  # under which everything is managed; "users" if there is no such name, or several
    groups: list[str]
    standings: Iterator[Standing]  # of all accounts but unconfirmed registrations, without holding them all


class DesiredState(NamedTuple):
    store: Store
    settings: Settings
    emails: EmailQueue

    def plan(self, state: State, options: Options) -> list[Change]:
        with self.store.read() as tx:
            return plan(tx, self.settings, state, options)

    def apply(
        self,
        state: State,
        options: Options,
        *,
        confirmed: bool,
        shown: list[Change] | None = None,
        progress: Progress = unwatched,
        by: Actor,
    ) -> list[Change]:
        """All changes, or none. `shown`: the plan to which the operator agreed, which has to be the plan still."""
        with self.store.write() as tx:
            admit(tx, by)
            changes = plan(tx, self.settings, state, options)
            if shown is not None and changes != shown:
                raise Forbidden(
                    "The accounts changed since the plan was shown; nothing was done",
                    hint="run the command again, and read the new plan",
                )
            if not confirmed and any(change.is_grave for change in changes):
                raise Forbidden(
                    "This deactivates, deletes, ends an invitation or takes the role admin; nothing was done",
                    hint="look at it with --plan, and confirm with --yes",
                )
            Applying(tx, self.emails, state.name, progress, by=by).carry_out(changes)
        return changes

    @contextmanager
    def present(self) -> Iterator[Present]:
        """All in one snapshot, which lasts as long as the block."""
        with self.store.read() as tx:
            names = tx.managers()
            yield Present(
                names[0] if len(names) == 1 else "users",
                list(tx.managers_of_groups()),
                (standing for standing in tx.standings() if not standing.user.awaiting_confirmation),
            )
