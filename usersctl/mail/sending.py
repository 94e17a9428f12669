"""What a sender of emails is, and which one the settings ask for."""

from email.message import EmailMessage
from typing import Protocol


class Undeliverable(Exception):
    """The server will not take this letter; `permanent`: not tomorrow either. `perhaps_taken`: its word was not heard."""

    def __init__(self, message: str, *, permanent: bool, perhaps_taken: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent
        self.perhaps_taken = perhaps_taken


class Send(Protocol):
    """Sends one message to one address, and tells what was answered."""

    def __call__(self, message: EmailMessage, recipient: str, number: int) -> str: ...


# --- sending ---
