"""Emails as recipients get them: from the folder, or from a real SMTP server that can misbehave."""

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTP
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from aiosmtpd import smtp
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword

from usersctl.mail import folder
from usersctl.mail.folder import SavedEmail
from usersctl.outgoing import Attempt
from usersctl.service import Service

# --- the folder ---


class Link(NamedTuple):
    path: str
    token: str
    email: str


def link_in(text: str) -> Link:
    """The only link of an email; it may occur several times."""
    (url,) = {word for word in text.split() if word.startswith(("http://", "https://"))}
    query = parse_qs(urlsplit(url).query, strict_parsing=True)
    (token,), (email,) = query["token"], query["email"]
    return Link(urlsplit(url).path, token, email)


def send_all(service: Service) -> list[Attempt]:
    """Does the work of the mailer until no email is due."""
    done = []
    while (attempt := service.outbox.work()) is not None:
        done.append(attempt)
        assert len(done) < 1000
    return done


def folder_emails(service: Service) -> list[SavedEmail]:
    """Oldest first."""
    return folder.newest_emails(folder.mail_folder(service.settings))[::-1]


def sent(service: Service, to: str | None = None) -> list[SavedEmail]:
    """Sends all emails that wait, and returns those in the folder."""
    send_all(service)
    return [email for email in folder_emails(service) if to in (None, email.to)]


def last_link(service: Service, to: str | None = None) -> Link:
    return link_in(" ".join(sent(service, to)[-1].parts))


# --- a real SMTP server ---


class Received(NamedTuple):
    sender: str
    recipients: list[str]
    raw: bytes
    over_tls: bool
    login: str | None

    @property
    def message(self) -> EmailMessage:
        message = message_from_bytes(self.raw, policy=SMTP)
        assert isinstance(message, EmailMessage)
        return message

    @property
    def id(self) -> str:
        return str(self.message["Message-ID"])

    def text(self, kind: str = "plain") -> str:
        body = self.message.get_body((kind,))
        assert body is not None
        return str(body.get_content())

    @property
    def link(self) -> Link:
        return link_in(self.text())


@dataclass
class Postbox:
    """A handler of aiosmtpd. `answers` replaces its usual answers, by command."""

    answers: dict[str, str] = field(default_factory=dict)
    delay: float = 0
    together: int = 1  # how many emails must arrive at once before the first is accepted
    login: tuple[str, str] | None = None
    received: list[Received] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    port: int = 0
    _enough: asyncio.Event = field(default_factory=asyncio.Event)

    def ids(self) -> list[str]:
        return [email.id for email in self.received]

    def _answer(self, command: str) -> str:
        return self.answers.get(command) or "250 OK"

    async def handle_EHLO(  # noqa: N802
        self, _server: Any, session: Any, _envelope: Envelope, hostname: str, responses: list[str]
    ) -> list[str]:
        session.host_name = hostname
        return [self.answers["EHLO"]] if "EHLO" in self.answers else responses

    async def handle_HELO(self, _server: Any, session: Any, _envelope: Envelope, hostname: str) -> str:  # noqa: N802
        session.host_name = hostname
        return self._answer("EHLO")

    async def handle_MAIL(  # noqa: N802
        self, _server: Any, _session: Any, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return self._answer("MAIL")

    async def handle_RCPT(  # noqa: N802
        self, _server: Any, _session: Any, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        answer = self.answers.get(f"RCPT {address}") or self._answer("RCPT")
        if answer.startswith("250"):
            envelope.rcpt_tos.append(address)
        return answer

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:  # noqa: N802
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        if self.at_once >= self.together:
            self._enough.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._enough.wait(), 8)  # less than the time limit of a client
        await asyncio.sleep(self.delay)
        self.at_once -= 1
        answer = self._answer("DATA")
        if answer.startswith("250"):
            raw = envelope.original_content
            assert raw is not None
            login = session.auth_data.login.decode() if session.auth_data else None
            over_tls = server.transport.get_extra_info("sslcontext") is not None
            self.received.append(
                Received(str(envelope.mail_from), list(envelope.rcpt_tos), raw, over_tls, login)
            )
        return answer

    def authenticate(
        self, _server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any
    ) -> AuthResult:
        assert isinstance(data, LoginPassword)
        given = (data.login.decode(), data.password.decode())
        return AuthResult(success=given == self.login, handled=False, auth_data=data)


@contextmanager
def smtp_server(
    postbox: Postbox | None = None,
    *,
    starttls: ssl.SSLContext | None = None,
    tls: ssl.SSLContext | None = None,
    port: int = 0,
) -> Iterator[Postbox]:
    """A server with its own port and thread, because a browser's event loop may run in this one."""
    box = postbox or Postbox()
    listener = socket.create_server(("127.0.0.1", port))
    box.port = listener.getsockname()[1]

    def protocol() -> smtp.SMTP:
        return smtp.SMTP(
            box,
            hostname="mail.example.com",
            tls_context=starttls,
            authenticator=box.authenticate,
            auth_require_tls=starttls is not None,
        )

    ends: Future[Callable[[], None]] = Future()

    async def serve() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(lambda _loop, _context: None)  # a client that disconnects is no error
        server = await loop.create_server(protocol, sock=listener, ssl=tls)
        ends.set_result(partial(loop.call_soon_threadsafe, over.set))
        await over.wait()
        server.close()  # open connections end with the loop

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="smtp")
    thread.start()
    end = ends.result(10)
    try:
        yield box
    finally:
        end()
        thread.join(10)


Script = Callable[[socket.socket], Any]


@contextmanager
def scripted_server(script: Script) -> Iterator[int]:
    """Runs a server that calls the script with each connection, and yields its port."""
    stopping = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)
    threads: list[threading.Thread] = []
    connections: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            script(connection)

    def accept() -> None:
        while not stopping.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            connection.settimeout(20)
            connections.append(connection)
            threads.append(threading.Thread(target=serve, args=(connection,)))
            threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield listener.getsockname()[1]
    finally:
        stopping.set()
        accepting.join(10)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(10)
        listener.close()


GREETING, EHLO, MAIL, RCPT, DATA, END = range(6)
USUAL = [b"220 mail", b"250 mail", b"250 OK", b"250 OK", b"354 go on", b"250 taken"]


def until(step: int, then: Script) -> Script:
    """A script that answers normally up to `step`, and calls `then` instead of it."""

    def script(connection: socket.socket) -> None:
        with connection.makefile("rb") as lines:
            for number in range(step):
                if number == END:
                    while lines.readline() not in (b".\r\n", b""):
                        pass
                elif number != GREETING:
                    lines.readline()
                connection.sendall(USUAL[number] + b"\r\n")
            if step != GREETING:
                lines.readline()
            then(connection)

    return script


def hang(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while connection.recv(65536):
            pass


def drip(connection: socket.socket) -> None:
    """Sends single bytes of a line that never ends."""
    with contextlib.suppress(OSError):
        while True:
            connection.sendall(b"2")
            time.sleep(0.05)
