"""The thread that sends letters."""

import threading
import time

from usersctl.errors import UsersError
from usersctl.mail.outbox import Outbox
from usersd.log import Log

# Another process may have written a letter, of which this one hears only by looking.
LOOK_EVERY = 0.1
AFTER_TROUBLE = 2.0
# Whoever asked has the answer before the work begins, whose length tells whether there is an account to write to.
AFTER_THE_ANSWER = 0.03


class Worker:
    """Sends what is due, one letter after the other, and sleeps until the next one is."""

    def __init__(self, outbox: Outbox, *, log: Log) -> None:
        self._outbox = outbox
        self._log = log
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="letters", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """A letter that is being sent has two seconds; after that it is sent again by whoever comes next."""
        self._stopping = True
        self._outbox.store.letter_due.set()
        self._thread.join(2)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _work(self) -> None:
        due = self._outbox.store.letter_due
        while not self._stopping:
            due.clear()
            try:
                attempt = self._outbox.work()
                if attempt is None:
                    if due.wait(self._outbox.seconds_until_due(LOOK_EVERY)):
                        time.sleep(AFTER_THE_ANSWER)
                    continue
                letter = attempt.letter
                self._log.event(
                    "letter",
                    state=attempt.state,
                    id=letter.id,
                    kind=letter.kind,
                    user=letter.user_id,
                    attempt=letter.attempts,
                    told=attempt.told,
                )
            except UsersError as error:
                self._log.event("letters", waiting=str(error))
                due.wait(AFTER_TROUBLE)
            except Exception as error:  # noqa: BLE001 - the thread must live to send the next one
                self._log.error(error)
                due.wait(AFTER_TROUBLE)
