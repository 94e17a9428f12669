"""The interface of everything that sends emails: how it is called, and how it fails."""

from email.message import EmailMessage
from typing import Protocol


class Undeliverable(Exception):
    """The email was not accepted.

    `permanent`: trying again cannot help. `perhaps_taken`: the server's answer was lost, so it may have the email.
    """

    def __init__(self, message: str, *, permanent: bool, perhaps_taken: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent
        self.perhaps_taken = perhaps_taken


class Send(Protocol):
    """Sends a message to one address and returns the answer of the server. `number`: the id of its outbox row."""

    def __call__(self, message: EmailMessage, recipient: str, number: int) -> str: ...
