"""The folder for emails where no mail server is configured: one .eml file each."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from usersctl.config import Settings
from usersctl.mail.sending import Undeliverable
from usersctl.named import NamedTuple
from usersctl.ownership import give_to

if TYPE_CHECKING:
    from email.message import EmailMessage  # slow to import, and a cleanup reads no email


TRIAL = "users-dev.db"  # the database of `serve --dev`
MOST_SHOWN = 50  # emails
TEST = 0  # the number of an email that tries the folder: the next one takes its place

# The number of an email; behind it a second one where the folder has that number from another database already.
_NAME = re.compile(r"[0-9]+(-[0-9]+)?")


def mail_folder(settings: Settings) -> Path:
    """Files are named by the id of an email, so the trial beside the usual database needs a folder of its own."""
    is_trial = isinstance(settings.database, Path) and settings.database.name == TRIAL
    return settings.folder / ("mail-dev" if is_trial else "mail")


class FolderSender:
    """Writes each email to a file that only its owner can read. What root writes gets the owner of `beside`."""

    def __init__(self, folder: Path, beside: Path | None = None) -> None:
        self.folder = folder
        self.beside = beside

    def __call__(self, message: "EmailMessage", recipient: str, number: int) -> str:
        del recipient  # the message has it
        try:
            self._make_folder()
            path = self._place(number, _id_of(message))
            unfinished = path.with_suffix(".tmp")
            unfinished.unlink(missing_ok=True)
            try:
                with os.fdopen(
                    os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb"
                ) as file:
                    self._give(file.fileno())
                    file.write(message.as_bytes())
                    file.flush()
                    os.fsync(file.fileno())
                unfinished.replace(path)
            finally:
                unfinished.unlink(missing_ok=True)  # what a full disk, or a signal, cut off
        except OSError as error:
            raise Undeliverable(f"{self.folder}: {error.strerror}", permanent=False) from None
        return f"written to {path}"

    def _place(self, number: int, message_id: str) -> Path:
        """That of the same email, if it was written before; else a free one."""
        places = (self.folder / name for name in _names(number))
        if number == TEST:
            return next(places)
        return find(self.folder, number, message_id) or next(path for path in places if not path.exists())

    def _make_folder(self) -> None:
        is_new = not self.folder.is_dir()
        # `mail test` may come before the database, whose folder is private from the start, too.
        self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        if is_new:
            # O_NOFOLLOW: root must not give away the target of a link that another user put there.
            handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                self._give(handle)
            finally:
                os.close(handle)

    def _give(self, handle: int) -> None:
        """A root without all rights, as in a container, writes its emails all the same."""
        if self.beside is not None and self.beside.exists():
            with suppress(PermissionError):
                give_to(self.beside.stat(), handle)


def _names(number: int) -> Iterator[str]:
    yield f"{number}.eml"
    for other in count(2):
        yield f"{number}-{other}.eml"


def find(folder: Path, number: int, message_id: str) -> Path | None:
    """Other databases may keep emails of the same number there."""
    for path in (folder / f"{number}.eml", *folder.glob(f"{number}-*.eml")):
        with suppress(OSError):  # it is not there, or another user's
            if _NAME.fullmatch(path.stem) and read(path).message_id == message_id:
                return path
    return None


def remove_emails(folder: Path, before: datetime) -> None:
    """Removes the emails, and the unfinished ones, that were written before this time: their links are secrets.

    A folder that is missing or belongs to another user is left alone.
    """
    with suppress(OSError):
        for file in folder.iterdir():
            if _NAME.fullmatch(file.stem) and file.suffix in (".eml", ".tmp"):
                with suppress(OSError):
                    if file.lstat().st_mtime < before.timestamp():
                        file.unlink()


class SavedEmail(NamedTuple):
    """An email in the folder, as it is shown to a person."""

    number: int
    message_id: str
    to: str
    subject: str
    date: datetime | None
    parts: list[str]  # paragraphs of its text


def newest_emails(folder: Path) -> list[SavedEmail]:
    files = [file for file in folder.glob("*.eml") if _NAME.fullmatch(file.stem)]
    # Sorted by time, because a new database numbers its emails from 1 again.
    files.sort(key=lambda file: (file.stat().st_mtime_ns, _number_of(file)), reverse=True)
    return [read(file) for file in files[:MOST_SHOWN]]


def _number_of(file: Path) -> int:
    return int(file.stem.partition("-")[0])


def _id_of(message: "EmailMessage") -> str:
    return str(message["Message-ID"]).strip("<").partition("@")[0]


def read(file: Path) -> SavedEmail:
    from email import message_from_bytes
    from email.policy import SMTP

    message = message_from_bytes(file.read_bytes(), policy=SMTP)
    body = message.get_body(("plain",))
    paragraphs: list[str] = []
    if body is not None:
        text = body.get_content().replace("\r\n", "\n")
        # The no-break spaces stay.
        paragraphs = [re.sub(r"[ \t\n]+", " ", paragraph).strip() for paragraph in text.split("\n\n")]
    return SavedEmail(
        _number_of(file),
        _id_of(message),
        str(message["To"]),
        str(message["Subject"]),
        getattr(message["Date"], "datetime", None),
        list(filter(None, paragraphs)),
    )
