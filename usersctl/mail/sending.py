"""The interface of everything that sends emails: how it is called, and how it fails."""

from email.message import EmailMessage
from typing import Protocol


class Undeliverable(Exception):
    """The email was not accepted."""

    def __init__(self, message: str, *, permanent: bool, perhaps_taken: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent  # trying again cannot help
        self.perhaps_taken = perhaps_taken  # the server's answer was lost


class Send(Protocol):
    """Sends a message to one address and returns the answer of the server. `number`: the id of its outbox row."""

    def __call__(self, message: EmailMessage, recipient: str, number: int) -> str: ...
