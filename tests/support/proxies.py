"""nginx and Caddy from Debian, started with the output of `usersctl snippet`, with TLS on a free port."""

import http.client
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
from support.commands import OPERATOR, PASSWORD, Command, create_user
from support.daemons import free_port, wait_for
from support.oauth_site import CALLBACK
from support.oauth_site import SECRET as CLIENT_SECRET
from support.recipes import python_verifier
from support.web import Client, Site, running

from usersctl.config import Settings
from usersctl.config.values import UNIX
from usersctl.models import UNKNOWN_CLIENT, User
from usersctl.service import build
from usersd.dev_provider import CLIENT, SampleProvider
from usersd.routes import TABLE
from usersd.server.listener import listening

NAME = "accounts.example.com"
PACKAGES = {
    "nginx": "nginx-light",
    "node": "nodejs",
    "systemd-analyze": "systemd",
    "fail2ban-regex": "fail2ban",
    "etcd": "etcd-server",
}  # Debian's packages, where the name is not that of the program
SECRET = "shared by two, and unknown to others"
PAUSE = 3.0  # seconds between two events of the application
RULES = (("/admin/*", "admin"), ("/docs/drafts/*", "admin"), ("/staff/*", ("group:staff", "admin")))
WHITELIST = ("/about", "/docs/*")
FACTOR_RULES = ("/money/*", "/docs/secret")


@dataclass
class Visitor(Client):
    """A client that uses the site's name, and TLS if the site does."""

    tls: ssl.SSLContext | None = field(default_factory=ssl.create_default_context)

    def __post_init__(self) -> None:
        self.headers.setdefault("Host", f"{NAME if self.tls else 'localhost'}:{self.port}")

    def connection(self) -> http.client.HTTPConnection:
        connection = super().connection()
        connection.sock = self.opened()
        return connection

    def opened(self) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self.port), 20)
        return self.tls.wrap_socket(plain, server_hostname=NAME) if self.tls else plain

    def ask(self, targets: list[str]) -> Iterator[tuple[str, int, bytes]]:
        """Status and body for each target, which is sent unchanged, on as few connections as possible."""
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection = None
        for target in targets:
            connection = connection or self.opened()
            connection.sendall(
                f"GET {target} HTTP/1.1\r\nHost: {self.headers['Host']}\r\nCookie: {cookies}\r\n\r\n".encode()
            )
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            yield target, answer.status, answer.read()
            if answer.will_close:
                connection.close()
                connection = None
        if connection is not None:
            connection.close()


@dataclass
class Proxy:
    port: int
    tls: ssl.SSLContext | None

    def visitor(self, **cookies: str) -> Visitor:
        return Visitor(self.port, cookies, tls=self.tls)


def needed(program: str, tests: str = "WHOLE") -> str:
    """The path of a program. A missing one skips the test, or fails it with WHOLE_TESTS=required, or what `tests` names."""
    path = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
    if path is None:
        missing = f"needs {program}: apt-get install {PACKAGES.get(program, program)}"
        if os.environ.get(f"{tests}_TESTS") == "required":
            pytest.fail(missing)
        pytest.skip(missing)
    return path


def certified(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for NAME, and its key."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "fullchain.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "privkey.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return folder / "fullchain.pem", folder / "privkey.pem"


@contextmanager
def started(
    command: list[str | Path],
    folder: Path,
    port: int,
    *,
    env: dict[str, str] | None = None,
    signum: int = signal.SIGTERM,
) -> Iterator[None]:
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env={"HOME": str(folder), "PATH": os.environ["PATH"]} | (env or {}),
        )
    try:
        wait_for(lambda: process.poll() is not None or _answers(port))
        assert process.poll() is None, (folder / "output").read_text()
        yield
    finally:
        process.send_signal(signum)
        try:
            process.wait(8)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(8)


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def with_tls(snippet: str, folder: Path, replacements: tuple[tuple[str, str], ...]) -> ssl.SSLContext:
    """Writes the snippet with the test's certificate and ports. Everything else stays as it is printed."""
    certificate, _ = certified(folder)
    for old, new in replacements:
        assert old in snippet, old
        snippet = snippet.replace(old, new)
    (folder / "snippet").write_text(snippet)
    return ssl.create_default_context(cafile=certificate)


@contextmanager
def nginx(folder: Path, snippet: str, port: int) -> Iterator[Proxy]:
    """The snippet as it is printed; for https with other ports, and without IPv6, which some machines lack."""
    program, tls = needed("nginx"), None
    (folder / "snippet").write_text(snippet)
    if " ssl;" in snippet:
        (written,) = set(re.findall(r"listen (\d+) ssl;", snippet))
        assert written in ("443", str(port))
        replacements = (
            ("listen [::]:80;", ""),
            (f"listen [::]:{written} ssl;", ""),
            ("listen 80;", f"listen 127.0.0.1:{free_port()};"),
            (f"listen {written} ssl;", f"listen 127.0.0.1:{port} ssl;"),
            (f"/etc/letsencrypt/live/{NAME}", str(folder)),
        )
        tls = with_tls(snippet, folder, replacements)
    places = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    # The default account of its workers cannot read the folder.
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"daemon off; {user} worker_processes 1; pid {folder}/pid; error_log stderr; events {{}}"
        f" http {{ access_log off; {places} include {folder}/snippet; }}"
    )
    with started(
        [program, "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf")], folder, port
    ):
        assert "[warn]" not in (folder / "output").read_text()
        yield Proxy(port, tls)


@contextmanager
def caddy(folder: Path, snippet: str, port: int) -> Iterator[Proxy]:
    """The snippet as it is printed; for https with the test's certificate, because Caddy would fetch one itself."""
    program, tls = needed("caddy"), None
    options = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n"
    (folder / "snippet").write_text(options + snippet)
    if "\nhttp://" not in snippet:
        (written,) = re.findall(rf"^{re.escape(NAME)}(:\d+|) {{$", snippet, re.MULTILINE)
        assert written in ("", f":{port}")
        keys = f"{folder}/fullchain.pem {folder}/privkey.pem"
        site = f"{NAME}:{port} {{\n\tbind 127.0.0.1\n\ttls {keys}\n"
        tls = with_tls(options + snippet, folder, ((f"{NAME}{written} {{\n", site),))
    with started(
        [program, "run", "--config", str(folder / "snippet"), "--adapter", "caddyfile"], folder, port
    ):
        yield Proxy(port, tls)


STARTS = {"nginx": nginx, "caddy": caddy}


# --- a proxy, the daemon behind it, and the application that they protect ---


class Quiet(WSGIRequestHandler):
    """A naive server that reads `Remote_User` as `Remote-User`. It upgrades to a protocol that returns each line with the
    name of the protocol and the user's id."""

    disable_nagle_algorithm = True  # otherwise each answer waits until the proxy acknowledges its head

    def parse_request(self) -> bool:
        """False: the request is answered."""
        if not super().parse_request():
            return False
        protocol = self.headers.get("Upgrade")
        if not protocol or "upgrade" not in self.headers.get("Connection", "").lower():
            return True
        self.wfile.write(
            f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n".encode()
        )
        for line in self.rfile:
            self.wfile.write(f"{protocol} {self.headers.get('Remote-User')} ".encode() + line)
        self.close_connection = True
        return False

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        pass


def application(remote_user: Any) -> Any:
    """Answers with the headers it received and the user it concludes from them."""
    import flask

    app = flask.Flask(__name__)

    @app.route("/events")
    def events() -> Any:
        """Two events, with a pause between them."""

        def each() -> Iterator[str]:
            yield "data: first\n\n"
            time.sleep(PAUSE)
            yield "data: second\n\n"

        headers = {"X-Accel-Buffering": "no"} if "told" in flask.request.args else {}
        return flask.Response(each(), mimetype="text/event-stream", headers=headers)

    @app.route("/", defaults={"path": ""}, methods=["GET", "POST", "PUT", "DELETE"])
    @app.route("/<path:path>", methods=["GET", "POST", "PUT", "DELETE"])
    def anything(path: str) -> Any:
        request = flask.request
        return {
            "method": request.method,
            "path": "/" + path,
            "query": request.query_string.decode(),
            "body": request.get_data().decode(),
            "headers": {name.lower(): value for name, value in request.headers},
            "who": remote_user(request.environ),
        }

    return app


@dataclass
class House:
    """A proxy, the daemon behind it, and the application that they protect."""

    kind: str
    proxy: Proxy
    site: Site
    provider: SampleProvider
    port: int  # of the application
    ada: User
    root: User

    def visitor(self, user: User | None = None) -> Visitor:
        return self.proxy.visitor(**self.cookies(user))

    def opened_with(self, user: User, proofs: str) -> Visitor:
        return self.proxy.visitor(**self.cookies(user, proofs))

    def cookies(self, user: User | None, proofs: str = "pwd") -> dict[str, str]:
        """Of a session that was opened with these proofs."""
        if user is None:
            return {}
        service = self.site.service
        with service.store.write() as tx:
            opened = service.sessions.open_in(
                tx, user, remember=False, client=UNKNOWN_CLIENT, opened_with=proofs
            )
        return {service.settings.session_cookie: opened.token}

    def api_token(self, user: User) -> str:
        return self.site.service.sessions.create_api_token(
            user.id, name="x", lifetime=None, by=OPERATOR
        ).token


@contextmanager
def house(
    kind: str,
    folder: Path,
    *,
    by_socket: bool = False,
    plain: bool = False,
    words: tuple[str, ...] = (),
    application_port: int | None = None,
    edited: Callable[[str], str] = str,
    **changes: Any,
) -> Iterator[House]:
    """`words` follow `usersctl snippet`, `changes` are fields of Settings; `plain` is a trial on loopback without TLS;
    `edited` is what an operator does to the file."""
    with ExitStack() as stack:
        daemon, port = free_port(), free_port()
        base_url = f"http://localhost:{port}" if plain else f"https://{NAME}:{port}"
        provider = SampleProvider(f"http://127.0.0.1:{daemon}", CLIENT_SECRET, base_url + CALLBACK)
        settings = Settings(
            database=folder / "users.db",
            base_url=base_url,
            port=daemon,
            socket=folder / "usersd.sock" if by_socket else None,
            rounds=4,
            trusted_proxies=(UNIX if by_socket else ip_network("127.0.0.1"),),
            whitelist=WHITELIST,
            role_rules=RULES,
            factor_rules=FACTOR_RULES,
            assertion_secret=SECRET,
            oauth_client_id=CLIENT,
            oauth_client_secret=CLIENT_SECRET,
            oauth_issuer=provider.issuer,
        )._replace(**changes)
        service = build(settings)
        stack.callback(service.close)
        accounts = [
            create_user(service, f"{name}@example.com", shown, PASSWORD, role=role, by=OPERATOR)
            for name, shown, role in (("ada", "Ada Lövelace", "user"), ("root", "Root", "admin"))
        ]
        listener = stack.enter_context(listening(settings, {}))
        site = stack.enter_context(running(service, table=TABLE + provider.routes(), listener=listener))
        if application_port is None:
            application_port = stack.enter_context(echoing())
        command = Command(folder)
        at = f'socket = "{settings.socket}"' if by_socket else f"port = {daemon}"
        names = ", ".join(f'"{name}" = "{value}"' for name, value in settings.forward_headers)
        command.configure(f'baseUrl = "{base_url}"\nforward.headers = {{{names}}}\n[server]\n{at}\n')
        snippet = command.ok("snippet", kind, "--app", f"127.0.0.1:{application_port}", *words).stdout
        proxy = stack.enter_context(STARTS[kind](folder, edited(snippet), port))
        yield House(kind, proxy, site, provider, application_port, *accounts)


@contextmanager
def echoing() -> Iterator[int]:
    """The port of an application that answers with the headers that it got."""
    with make_server("127.0.0.1", 0, application(python_verifier(SECRET)), handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join(10)
