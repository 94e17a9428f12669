"""Sends an email to a mail server by SMTP."""

import smtplib
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.message import EmailMessage
from typing import NamedTuple

from usersctl.config import Settings
from usersctl.mail.sending import Undeliverable
from usersctl.mail.writer import domain

TIMEOUT = 10.0  # for each step of a conversation
WHOLE = 30.0  # for all of it: a server that drips must not hold the worker
_LONGEST_ANSWER = 500  # of a server's, for the log and the list


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
        from usersctl.config.values import is_loopback

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
