"""The thread that sends emails."""

import threading
import time

from usersctl.errors import UsersError
from usersctl.mail.outbox import Outbox
from usersd.log import Log

# Seconds. An email that another process queued is found only by polling.
POLL_EVERY = 0.1
AFTER_AN_ERROR = 2.0
# Start after the response is out: the work takes longer when an account exists, and its timing must not show.
AFTER_THE_RESPONSE = 0.03


class Mailer(threading.Thread):
    """Sends the emails that are due one after the other, and sleeps until the next one is due."""

    def __init__(self, outbox: Outbox, *, log: Log) -> None:
        super().__init__(name="mailer", daemon=True)
        self._outbox = outbox
        self._log = log
        self._stopping = False

    def stop(self) -> None:
        """Waits two seconds for an email that is being sent; the next leader sends an unfinished one again."""
        self._stopping = True
        self._outbox.queue.committed.set()
        self.join(2)

    def run(self) -> None:
        due = self._outbox.queue.committed
        while not self._stopping:
            due.clear()
            try:
                attempt = self._outbox.work()
                if attempt is None:
                    if due.wait(self._outbox.seconds_until_due(POLL_EVERY)):
                        time.sleep(AFTER_THE_RESPONSE)
                    continue
                email = attempt.email
                about = {"id": email.id, "kind": email.kind, "user": email.user_id, "attempt": email.attempts}
                self._log.event("email", state=attempt.state, **about, detail=attempt.message)
            except UsersError as error:
                self._log.event("email", waiting=str(error))
                due.wait(AFTER_AN_ERROR)
            except Exception as error:  # noqa: BLE001 - the thread must live to send the next one
                self._log.error(error)
                due.wait(AFTER_AN_ERROR)
