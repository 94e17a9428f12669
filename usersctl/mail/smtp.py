"""Sends an email to a mail server by SMTP."""

import re
import smtplib
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.message import EmailMessage
from enum import StrEnum

from usersctl.config import Settings
from usersctl.config.values import host_and_port, is_loopback
from usersctl.mail.sending import Undeliverable
from usersctl.mail.writer import domain
from usersctl.named import NamedTuple

STEP = 10.0  # seconds for each step of the conversation
WHOLE = 30.0  # seconds for all steps before the email, so that a server that drips bytes holds no worker
# Seconds for the email with the answer to it. Many servers examine an email before they answer, and have taken it also if
# nobody waits for that: who gives up early sends it twice (RFC 5321, 4.5.3.2.6).
ANSWER = 60.0
LONGEST_REPLY = 500  # characters of a server's reply that are logged and listed


class Step(StrEnum):
    """The steps of a conversation before the email, as far as they went well."""

    GREETED = "greeted"
    ENCRYPTED = "encrypted"
    IN_CLEAR = "in clear"
    LOGGED_IN = "logged in"


class Probe(NamedTuple):
    """The steps that succeeded, and the error that ended the conversation."""

    passed: list[Step]
    error: str | None


class SmtpSender:
    def __init__(
        self, settings: Settings, step: float = STEP, whole: float = WHOLE, answer: float = ANSWER
    ) -> None:
        self.settings, self.step, self.whole, self.answer = settings, step, whole, answer

    def probe(self) -> Probe:
        """Goes through all steps before the email itself, to show at which of them sending would fail."""
        passed: list[Step] = []
        try:
            with self._connected(passed):
                return Probe(passed, None)
        except Undeliverable as error:
            return Probe(passed, str(error))
        except (smtplib.SMTPException, OSError, ValueError) as error:
            return Probe(passed, self._described(error))

    def __call__(self, message: EmailMessage, recipient: str, number: int) -> str:
        del number
        try:
            with self._connected([]) as server, _limited(server, self.answer):
                return _deliver(server, message, recipient, self.answer)
        except smtplib.SMTPRecipientsRefused as error:
            code, reply = error.recipients[recipient]
            raise Undeliverable(_one_line(code, reply), permanent=500 <= code < 600) from None
        except smtplib.SMTPDataError as error:
            raise Undeliverable(self._described(error), permanent=500 <= error.smtp_code < 600) from None
        except smtplib.SMTPAuthenticationError as error:
            raise Undeliverable(self._described(error), permanent=False, login_refused=True) from None
        except (smtplib.SMTPException, OSError, ValueError) as error:
            # Never permanent, because it is not about this email: the operator mends a refused login or sender.
            raise Undeliverable(self._described(error), permanent=False) from None

    @property
    def _host(self) -> str:
        return self.settings.mailer_host or ""

    @property
    def _port(self) -> int:
        return self.settings.mailer_port or (465 if self.settings.mailer_secure else 587)

    @property
    def _place(self) -> str:
        """The server, for an error."""
        return host_and_port(self._host, self._port)

    def _described(self, error: Exception) -> str:
        """The reply of the server; without one, what went wrong, and where."""
        if isinstance(error, smtplib.SMTPResponseException):
            return _one_line(error.smtp_code, error.smtp_error)
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return _shortened(f"{self._place}: {reason}")

    @contextmanager
    def _connected(self, passed: list[Step]) -> Iterator[smtplib.SMTP]:
        """`passed` gets each step that went well."""
        settings, server = self.settings, self._unconnected()
        try:
            with _limited(server, self.whole):
                self._greet(server)
                passed.append(Step.GREETED)
                is_encrypted = settings.mailer_secure or self._start_tls(server)
                passed.append(Step.ENCRYPTED if is_encrypted else Step.IN_CLEAR)
                if settings.mailer_user is not None:
                    if settings.mailer_password is None:  # only the daemon has it
                        raise Undeliverable(
                            "mailer.auth.pass is missing: set USERS_MAILER_PASS", permanent=False
                        )
                    _log_in(server, settings.mailer_user, settings.mailer_password)
                    passed.append(Step.LOGGED_IN)
            yield server
            with suppress(smtplib.SMTPException, OSError):
                server.putcmd("quit")  # without waiting for the reply: the email is accepted already
        finally:
            server.close()

    def _greet(self, server: smtplib.SMTP) -> None:
        """Says how to mend the commonest mistake, which the errors of the libraries do not name."""
        try:
            code, reply = server.connect(self._host, self._port)
        except ssl.SSLError as error:
            if error.reason not in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
                raise
            problem = "no TLS from the start; mailer.secure = false asks for STARTTLS instead"
        except smtplib.SMTPServerDisconnected as error:
            if self.settings.mailer_secure:
                raise
            problem = f"no greeting ({error}); a server with TLS from the start needs mailer.secure = true"
        else:
            if code == 220:
                server.ehlo_or_helo_if_needed()
                return
            problem = _one_line(code, reply)
        raise Undeliverable(f"{self._place}: {problem}", permanent=False)

    def _unconnected(self) -> smtplib.SMTP:
        # Without a name of our own smtplib would look one up, which has no time limit.
        name = domain(self.settings)
        server: smtplib.SMTP
        if self.settings.mailer_secure:
            server = smtplib.SMTP_SSL(local_hostname=name, timeout=self.step, context=_verifying())
        else:
            server = smtplib.SMTP(local_hostname=name, timeout=self.step)
        # The name that the certificate must have. smtplib sets it only in a constructor that also connects, and then
        # the whole greeting would pass without the overall time limit.
        server._host = self._host  # type: ignore[attr-defined]  # noqa: SLF001
        return server

    def _start_tls(self, server: smtplib.SMTP) -> bool:
        if server.has_extn("starttls"):
            server.starttls(context=_verifying())
            server.ehlo()
            return True
        if self.settings.mailer_user is not None and not is_loopback(self._host):
            message = f"{self._host} offers no STARTTLS, and mailer.auth is never sent unencrypted"
            raise Undeliverable(message, permanent=False)
        return False


def _verifying() -> ssl.SSLContext:
    """Verifies the certificate and the name in it. To make one takes longer than all else, so only where TLS begins."""
    return ssl.create_default_context()


def _log_in(server: smtplib.SMTP, user: str, password: str) -> None:
    try:
        server.login(user, password)
    except smtplib.SMTPResponseException as error:
        # Some servers repeat the password in their reply, which is logged and listed.
        reply = error.smtp_error
        if isinstance(reply, str):
            reply = reply.encode()
        for secret in (f"\0{user}\0{password}".encode(), password.encode()):
            reply = reply.replace(b64encode(secret), b"***").replace(secret, b"***")
        raise smtplib.SMTPAuthenticationError(error.smtp_code, reply) from None


def _deliver(server: smtplib.SMTP, message: EmailMessage, recipient: str, answer: float) -> str:
    """Like smtplib's send_message, but for one recipient, and returns the server's last reply."""
    sender = message["From"].addresses[0].addr_spec
    code, reply = server.mail(sender)
    if code != 250:
        raise smtplib.SMTPSenderRefused(code, reply, sender)
    code, reply = server.rcpt(recipient)
    if code not in (250, 251):
        raise smtplib.SMTPRecipientsRefused({recipient: (code, reply)})
    code, reply = server.docmd("data")
    if code != 354:
        raise smtplib.SMTPDataError(code, reply)
    if server.sock is not None:
        server.sock.settimeout(answer)
    content = re.sub(rb"^\.", b"..", message.as_bytes(), flags=re.MULTILINE).removesuffix(b"\r\n")
    try:
        # Not smtplib's data(), which does not tell an email that the server has from one that was not sent yet.
        server.send(content + b"\r\n.\r\n")
        code, reply = server.getreply()
    except smtplib.SMTPServerDisconnected as error:
        raise Undeliverable(str(error), permanent=False, perhaps_taken=True) from None
    if code != 250:
        raise smtplib.SMTPDataError(code, reply)
    return _one_line(code, reply)


@contextmanager
def _limited(server: smtplib.SMTP, seconds: float) -> Iterator[None]:
    finished = threading.Event()
    threading.Thread(target=_cut_after, args=(seconds, server, finished), daemon=True).start()
    try:
        yield
    finally:
        finished.set()


def _cut_after(seconds: float, server: smtplib.SMTP, finished: threading.Event) -> None:
    """Ends the conversation at a limit, which a server that drips bytes would otherwise never reach."""
    while not finished.wait(seconds):
        seconds = 1.0  # then every second, because the socket may just be replaced by its TLS wrapper
        with suppress(OSError):
            if server.sock is not None:
                server.sock.shutdown(socket.SHUT_RDWR)


def _one_line(code: int, reply: bytes | str) -> str:
    if isinstance(reply, bytes):
        reply = reply.decode("utf-8", "replace")
    return _shortened(f"{code} {' '.join(reply.split())}")


def _shortened(text: str) -> str:
    if len(text) <= LONGEST_REPLY:
        return text
    return text[:LONGEST_REPLY] + "…"
