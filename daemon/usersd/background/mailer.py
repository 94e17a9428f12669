"""The threads that send: one emails, and one for each webhook its events."""

import threading
import time
from typing import Protocol

from usersctl.errors import UsersError
from usersctl.outgoing import Attempt
from usersd.log import Log

# Seconds.
AFTER_AN_ERROR = 2.0
# Start after the response is out: the work takes longer when an account exists, and its timing must not show.
AFTER_THE_RESPONSE = 0.03


class Outbox(Protocol):
    """What waits to be sent one way: emails, or the events for one webhook."""

    @property
    def committed(self) -> threading.Event: ...

    def work(self) -> Attempt | None: ...

    def seconds_until_due(self, at_most: float) -> float: ...


class Mailer(threading.Thread):
    """Sends what is due one after the other, and sleeps until the next one is due.

    `look_every`: an email that another process queued is found by a look so often (seconds), if not by `wake` before.
    """

    def __init__(self, outbox: Outbox, *, log: Log, look_every: float, name: str = "email") -> None:
        super().__init__(name=f"sends {name}", daemon=True)
        self._what = name
        self._outbox = outbox
        self._log = log
        self._look_every = look_every
        self._stopping = False

    def wake(self) -> None:
        self._outbox.committed.set()

    def end(self) -> None:
        """After what is being sent."""
        self._stopping = True
        self.wake()

    def run(self) -> None:
        due, problem = self._outbox.committed, ""
        while not self._stopping:
            due.clear()
            try:
                attempt = self._outbox.work()
                problem = ""
                if attempt is None:
                    if due.wait(self._outbox.seconds_until_due(self._look_every)):
                        time.sleep(AFTER_THE_RESPONSE)
                    continue
                name, fields = attempt.for_log()
                self._log.event(name, **fields)
            except UsersError as error:
                if str(error) != problem:  # once, and not every two seconds for as long as it lasts
                    problem = str(error)
                    self._log.event(self._what, waiting=problem)
                due.wait(AFTER_AN_ERROR)
            except Exception as error:  # noqa: BLE001 - the thread must live to send the next one
                self._log.error(error)
                due.wait(AFTER_AN_ERROR)
