"""Letters as mail: written from templates, sent by SMTP, or laid into a folder where there is no mail server."""

import html
import os
import re
import smtplib
import socket
import ssl
import textwrap
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from email import message_from_bytes
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, parseaddr
from pathlib import Path
from string import Template
from typing import NamedTuple, Protocol
from urllib.parse import urlencode, urlsplit

from usersctl.colours import readable_on
from usersctl.config.settings import Settings
from usersctl.errors import ConfigError

TIMEOUT = 10.0  # for each step of a conversation
WHOLE = 30.0  # for all of it: a server that drips must not hold the worker
WORDS = {"brand", "link", "hours", "email"}  # what a template may speak of
ACCENT = "#0b5fff"
_SHIPPED = Path(__file__).parent / "templates"
# Seven bits, because not every server takes eight; lines that nothing has to break, so that a link in an .eml file can
# be read and copied as it stands.
_POLICY = SMTP.clone(cte_type="7bit", max_line_length=990)
_LONGEST_ANSWER = 500  # of a server's, for the log and the list


class Undeliverable(Exception):
    """The server will not take this letter; `permanent`: not tomorrow either. `perhaps_taken`: its word was not heard."""

    def __init__(self, message: str, *, permanent: bool, perhaps_taken: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent
        self.perhaps_taken = perhaps_taken


class Send(Protocol):
    """Sends one message to one address, and tells what was answered."""

    def __call__(self, message: EmailMessage, recipient: str, number: int) -> str: ...


# --- writing ---


@dataclass(frozen=True)
class Writer:
    """Text and HTML from a template: `Subject: …` and `Button: …`, an empty line, paragraphs; one that is only $link is
    the button."""

    settings: Settings

    def check(self) -> None:
        """An operator's templates are read at the start, so that a slip shows then and not in the night."""
        folder = self.settings.mailer_templates
        if folder is None:
            return
        if not folder.is_dir():
            raise ConfigError(f"mailer.templates = {folder}: no such folder")
        for file in sorted(each for each in folder.iterdir() if not each.name.startswith(".")):
            known = file.suffix in (".txt", ".html") and (_SHIPPED / f"{file.stem}.txt").exists()
            if not known and file.name != "layout.html":
                raise ConfigError(
                    f"{file}: no letter of that name; there are "
                    + ", ".join(sorted(each.stem for each in _SHIPPED.glob("*.txt")))
                )
            if file.name == "layout.html":
                _check(file, WORDS | {"lang", "subject", "content"}, {"content"})
            else:
                _check(file, WORDS, set() if file.stem == "test" else {"link"})

    def write(
        self, kind: str, recipient: str, *, link: str | None, hours: int, message_id: str, date: datetime
    ) -> EmailMessage:
        words = {"brand": self.settings.brand, "link": link or "", "hours": str(hours), "email": recipient}
        head, _, body = self._template(f"{kind}.txt").partition("\n\n")
        subject = _filled(Template(_line(head, "Subject") or ""), words)
        message = EmailMessage(policy=_POLICY)
        message["From"] = self._sender()
        message["To"] = _address(recipient)
        message["Subject"] = " ".join(subject.split())
        message["Date"] = format_datetime(date)
        message["Message-ID"] = f"<{message_id}@{domain(self.settings)}>"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(_wrapped(_filled(Template(body), words)))
        message.add_alternative(self._html(kind, subject, head, body, words), subtype="html")
        return message

    def _html(self, kind: str, subject: str, head: str, body: str, words: dict[str, str]) -> str:
        safe = {name: html.escape(value) for name, value in words.items()}
        own = self._override(f"{kind}.html")
        if own is not None:
            return _filled(Template(own), safe)
        label = _inner(_line(head, "Button") or "Continue", safe)
        parts = (part.strip() for part in body.split("\n\n"))
        content = "\n".join(
            _button(label, safe["link"], self.settings.accent)
            if part in ("$link", "${link}")
            else f"<p>{_inner(part, safe)}</p>"
            for part in parts
            if part
        )
        layout = self._template("layout.html")
        return _filled(
            Template(layout),
            safe | {"lang": self._language(), "subject": html.escape(subject), "content": content},
        )

    def _template(self, name: str) -> str:
        own = self._override(name)
        if own is not None:
            return own
        translated = _SHIPPED / self._language() / name
        return (translated if translated.exists() else _SHIPPED / name).read_text("utf-8")

    def _language(self) -> str:
        """English where the locale is a file: then the letters are an operator's own, too, or are not translated."""
        locale = self.settings.locale
        return locale if locale.isalpha() and (_SHIPPED / locale).is_dir() else "en"

    def _override(self, name: str) -> str | None:
        folder = self.settings.mailer_templates
        file = folder / name if folder is not None else None
        return file.read_text("utf-8") if file is not None and file.exists() else None

    def _sender(self) -> Address:
        given = self.settings.mailer_from
        if given is None:
            return Address(self.settings.brand, "no-reply", domain(self.settings))
        name, address = parseaddr(given)
        return Address(name, addr_spec=address)


def domain(settings: Settings) -> str:
    """What our letters come from. An address and a greeting cannot end in a bare number."""
    host = urlsplit(settings.base_url).hostname or ""
    return host if ":" not in host and re.search(r"[a-z]", host) else "localhost"


def _line(head: str, name: str) -> str | None:
    found = re.search(rf"^{name}:(.*)$", head, re.MULTILINE)
    return found[1].strip() if found else None


def _filled(template: Template, words: Mapping[str, str]) -> str:
    return template.substitute(words)


def _check(file: Path, words: set[str], needed: set[str]) -> None:
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file}: cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}"
        ) from None
    template = Template(text)
    used = set(template.get_identifiers())
    known = f"known are {', '.join(f'${word}' for word in sorted(words))}"
    if used - words:
        raise ConfigError(f"{file}: unknown word ${min(used - words)}; {known}")
    if not template.is_valid():
        raise ConfigError(f"{file}: a $ that begins no word (write $$); {known}")
    if needed - used:
        raise ConfigError(f"{file}: ${min(needed - used)} is missing, without which the letter is of no use")
    head, _, body = text.partition("\n\n")
    if file.suffix == ".txt" and (not _line(head, "Subject") or not body.strip()):
        raise ConfigError(f'{file}: must begin with a line "Subject: ..." and an empty one')


def _wrapped(text: str) -> str:
    lines = (
        textwrap.wrap(line, 72, break_long_words=False, break_on_hyphens=False) or [""]
        for line in text.strip().splitlines()
    )
    return "\n".join(part for wrapped in lines for part in wrapped) + "\n"


def _inner(text: str, safe: dict[str, str]) -> str:
    # The template's own text is text, too, and not HTML; only then are the words put in.
    return _filled(Template(html.escape(text)), safe)


def _button(label: str, link: str, accent: str | None) -> str:
    # Not every mail program reads a style sheet: what a button needs to be one stands in it. The style sheet has another
    # colour for the dark; that of a brand stays.
    name, colour = ("branded", accent) if accent else ("button", ACCENT)
    look = f"background:{colour};color:{readable_on(colour)};border-radius:6px;text-decoration:none;font-weight:600"
    style = f"display:inline-block;padding:12px 20px;{look}"
    return (
        f'<p><a class="{name}" href="{link}" style="{style}">{label}</a></p>\n'
        f'<p class="quiet" style="font-size:13px;color:#59636e;word-break:break-all">{link}</p>'
    )


def _address(recipient: str) -> Address:
    """One recipient, and not a list of them."""
    try:
        address = Address(addr_spec=recipient)
    except (ValueError, IndexError, MessageError):
        address = None
    if address is None or address.addr_spec != recipient:
        raise Undeliverable(f"{recipient!r} is no address", permanent=True)
    return address


def link(settings: Settings, target: str, token: str, email: str) -> str:
    """From the configuration, and from nothing that a request says."""
    base = settings.base_url + target if target.startswith("/") else target
    separator = "&" if "?" in base else "?"
    return f"{base}{separator}{urlencode({'token': token, 'email': email})}"


# --- sending ---


def sender(settings: Settings) -> Send:
    return SmtpSender(settings) if settings.mailer_host else FolderSender(mail_folder(settings))


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


GREETED, ENCRYPTED, IN_CLEAR, LOGGED_IN = "greeted", "encrypted", "in clear", "logged in"


class Probe(NamedTuple):
    """The steps of a conversation with the mail server that went well, and what ended it."""

    passed: list[str]
    error: str | None


@dataclass(frozen=True)
class SmtpSender:
    settings: Settings
    step: float = TIMEOUT
    whole: float = WHOLE

    def probe(self) -> Probe:
        """As far as a letter would come before it is written: to see what stands in its way."""
        passed: list[str] = []
        try:
            with self._connected(passed.append):
                return Probe(passed, None)
        except smtplib.SMTPResponseException as error:
            told = _said(error.smtp_code, error.smtp_error)
        except (smtplib.SMTPException, OSError, ValueError, Undeliverable) as error:
            told = _short(str(error) or type(error).__name__)
        return Probe(passed, told)

    def __call__(self, message: EmailMessage, recipient: str, number: int) -> str:
        del number
        try:
            with self._connected() as server:
                return _deliver(server, message, recipient)
        except smtplib.SMTPRecipientsRefused as error:
            code, said = error.recipients[recipient]
            raise Undeliverable(_said(code, said), permanent=500 <= code < 600) from None
        except smtplib.SMTPDataError as error:
            raise Undeliverable(
                _said(error.smtp_code, error.smtp_error), permanent=500 <= error.smtp_code < 600
            ) from None
        except smtplib.SMTPResponseException as error:
            # Not about this letter: a login or a sender that is refused is for the operator to mend.
            raise Undeliverable(_said(error.smtp_code, error.smtp_error), permanent=False) from None
        except (smtplib.SMTPException, OSError, ValueError) as error:
            raise Undeliverable(_short(str(error) or type(error).__name__), permanent=False) from None

    @contextmanager
    def _connected(self, passed: Callable[[str], object] = id) -> Iterator[smtplib.SMTP]:
        settings = self.settings
        host = settings.mailer_host or ""
        context = ssl.create_default_context()  # verifies the certificate and the name in it
        # By our own name: smtplib would ask the resolver for one, for as long as that takes.
        name = domain(settings)
        server = (
            smtplib.SMTP_SSL(local_hostname=name, timeout=self.step, context=context)
            if settings.mailer_secure
            else smtplib.SMTP(local_hostname=name, timeout=self.step)
        )
        # The name that the certificate must have. Only a constructor that connects at once would set it, and then the
        # greeting would be over before anybody could watch it.
        server._host = host  # type: ignore[attr-defined]  # noqa: SLF001
        over = threading.Event()
        threading.Thread(target=_cut_after, args=(self.whole, server, over), daemon=True).start()
        try:
            code, said = server.connect(
                host, settings.mailer_port or (465 if settings.mailer_secure else 587)
            )
            if code != 220:
                raise smtplib.SMTPConnectError(code, said)
            server.ehlo_or_helo_if_needed()
            passed(GREETED)
            encrypted = settings.mailer_secure or self._start_tls(server, context, host)
            passed(ENCRYPTED if encrypted else IN_CLEAR)
            if settings.mailer_user is not None and settings.mailer_password is not None:
                self._log_in(server, settings.mailer_user, settings.mailer_password)
                passed(LOGGED_IN)
            yield server
            with suppress(smtplib.SMTPException, OSError):
                server.putcmd("quit")  # the letter is taken: no answer to this would change anything
        finally:
            over.set()
            server.close()

    def _log_in(self, server: smtplib.SMTP, user: str, password: str) -> None:
        try:
            server.login(user, password)
        except smtplib.SMTPResponseException as error:
            # Some servers repeat what they were sent, and what they say is kept and shown.
            said = error.smtp_error if isinstance(error.smtp_error, bytes) else error.smtp_error.encode()
            for secret in (f"\0{user}\0{password}".encode(), password.encode()):
                said = said.replace(b64encode(secret), b"***").replace(secret, b"***")
            raise smtplib.SMTPAuthenticationError(error.smtp_code, said) from None

    def _start_tls(self, server: smtplib.SMTP, context: ssl.SSLContext, host: str) -> bool:
        from usersctl.config.settings import is_loopback

        if server.has_extn("starttls"):
            server.starttls(context=context)
            server.ehlo()
            return True
        if self.settings.mailer_user is not None and not is_loopback(host):
            raise Undeliverable(
                f"{host} offers no STARTTLS, and mailer.auth is not sent in clear", permanent=False
            )
        return False


def _deliver(server: smtplib.SMTP, message: EmailMessage, recipient: str) -> str:
    """As smtplib's send_message, but for one recipient and with the server's last word."""
    sender_address = message["From"].addresses[0].addr_spec
    code, said = server.mail(sender_address)
    if code != 250:
        raise smtplib.SMTPSenderRefused(code, said, sender_address)
    code, said = server.rcpt(recipient)
    if code not in (250, 251):
        raise smtplib.SMTPRecipientsRefused({recipient: (code, said)})
    try:
        code, said = server.data(message.as_bytes())
    except smtplib.SMTPServerDisconnected as error:
        raise Undeliverable(str(error), permanent=False, perhaps_taken=True) from None
    if code != 250:
        raise smtplib.SMTPDataError(code, said)
    return _said(code, said)


def _cut_after(seconds: float, server: smtplib.SMTP, over: threading.Event) -> None:
    """Each step has its own limit in smtplib; a server that sends a byte now and then would never reach it."""
    while not over.wait(seconds):
        seconds = 1.0  # again, should it have come between two states of the connection
        with suppress(OSError):
            if server.sock is not None:
                server.sock.shutdown(socket.SHUT_RDWR)


def _said(code: int, said: bytes | str) -> str:
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    return _short(f"{code} {' '.join(text.split())}")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_ANSWER else text[:_LONGEST_ANSWER] + "…"
