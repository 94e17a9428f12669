"""The folder for emails where no mail server is configured: one .eml file each."""

import os
from dataclasses import dataclass
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTP
from pathlib import Path
from typing import NamedTuple

from usersctl.config import Settings
from usersctl.mail.sending import Undeliverable


def mail_folder(settings: Settings) -> Path:
    return settings.database.parent / "mail"


@dataclass(frozen=True)
class FolderSender:
    """No mail server: one .eml file each, which nobody else may read."""

    folder: Path

    def __call__(self, message: EmailMessage, recipient: str, number: int) -> str:
        del recipient  # stands in the message
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self.folder / f"{number}.eml"
            waiting = path.with_suffix(".tmp")
            waiting.unlink(missing_ok=True)
            with os.fdopen(os.open(waiting, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                file.write(message.as_bytes())
                file.flush()
                os.fsync(file.fileno())
            waiting.replace(path)
        except OSError as error:
            raise Undeliverable(f"{self.folder}: {error.strerror}", permanent=False) from None
        return f"written to {path}"


class Caught(NamedTuple):
    """A letter in the folder, as a person reads it."""

    number: int
    message_id: str
    to: str
    subject: str
    date: str
    parts: list[str]  # paragraphs of its text


def caught(folder: Path, at_most: int = 50) -> list[Caught]:
    """The newest first."""
    files = [file for file in folder.glob("*.eml") if file.stem.isdigit()] if folder.is_dir() else []
    # By time, because the numbers begin anew with a new database.
    files.sort(key=lambda file: (file.stat().st_mtime_ns, int(file.stem)), reverse=True)
    return [read(file) for file in files[:at_most]]


def read(file: Path) -> Caught:
    message = message_from_bytes(file.read_bytes(), policy=SMTP)
    body = message.get_body(("plain",))
    text = body.get_content().replace("\r\n", "\n") if body is not None else ""
    parts = [" ".join(part.split()) for part in text.split("\n\n")]
    return Caught(
        int(file.stem),
        str(message["Message-ID"]).strip("<").partition("@")[0],
        str(message["To"]),
        str(message["Subject"]),
        str(message["Date"]),
        [part for part in parts if part],
    )
