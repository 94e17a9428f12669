"""The interface of everything that sends emails: how it is called, and how it fails."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from email.message import EmailMessage  # slow to import


class Undeliverable(Exception):
    """The email was not accepted."""

    def __init__(
        self, message: str, *, permanent: bool, perhaps_taken: bool = False, login_refused: bool = False
    ) -> None:
        super().__init__(message)
        self.permanent = permanent  # trying again cannot help
        self.perhaps_taken = perhaps_taken  # the server's answer was lost
        self.login_refused = login_refused  # as it would be for the next email


# Sends a message to an address, and returns the answer of the server. The number is the id of the outbox row.
Send = Callable[["EmailMessage", str, int], str]
