"""How an email gets into the outbox: in the transaction of the change that it reports."""

import threading
from dataclasses import dataclass, field
from datetime import timedelta

from usersctl.mail.kinds import Kind
from usersctl.models import User
from usersctl.secrets import digest, new_message_id
from usersctl.store.transaction import Transaction

AT_MOST, WITHIN = 3, timedelta(minutes=15)


@dataclass(frozen=True)
class EmailQueue:
    committed: threading.Event = field(default_factory=threading.Event)  # wakes the worker that sends

    def add(self, tx: Transaction, kind: Kind, user: User | None, email: str) -> None:
        """To the stored address only. Silently drops more than three of a kind to one account in fifteen minutes."""
        if user is None:
            # Without an account the text may be a mistyped password or a megabyte, so only its digest is stored.
            email = digest(email).hex()
        tx.add_email(
            kind.name,
            user and user.id,
            email,
            new_message_id(),
            at_most=AT_MOST,
            within=WITHIN,
        )
        tx.after_commit(self.committed.set)
