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
from collections.abc import Iterator
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
from usersctl.models import User
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
}  # Debian's packages, where the name is not that of the program
APPLICATION = "127.0.0.1:8000"  # the address in the snippets
SECRET = "shared by two, and unknown to others"
RULES = (("/admin/*", "admin"), ("/docs/drafts/*", "admin"))
WHITELIST = ("/about", "/docs/*")


@dataclass
class Visitor(Client):
    """A client that uses TLS and the site's name."""

    tls: ssl.SSLContext = field(default_factory=ssl.create_default_context)

    def __post_init__(self) -> None:
        self.headers.setdefault("Host", f"{NAME}:{self.port}")

    def connection(self) -> http.client.HTTPConnection:
        connection = super().connection()
        connection.sock = self.opened()
        return connection

    def opened(self) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.port), 20)
        return self.tls.wrap_socket(plain, server_hostname=NAME)

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
    tls: ssl.SSLContext

    def visitor(self, **cookies: str) -> Visitor:
        return Visitor(self.port, cookies, tls=self.tls)


def needed(program: str) -> str:
    """The path of a program. A missing one skips the test, or fails it with WHOLE_TESTS=required."""
    path = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
    if path is None:
        missing = f"needs {program}: apt-get install {PACKAGES.get(program, program)}"
        if os.environ.get("WHOLE_TESTS") == "required":
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
def started(command: list[str], folder: Path, port: int) -> Iterator[None]:
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env={"HOME": str(folder), "PATH": os.environ["PATH"]},
        )
    try:
        wait_for(lambda: process.poll() is not None or _answers(port))
        assert process.poll() is None, (folder / "output").read_text()
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(8)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(8)


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def port_in(snippet: str, pattern: str, port: int) -> str:
    """The port of baseUrl as the snippet writes it, or an empty string."""
    match = re.search(pattern, snippet, re.MULTILINE)
    assert match is None or match[1] in ("443", str(port))
    return match[1] if match else ""


@contextmanager
def nginx(folder: Path, snippet: str, port: int, application: int) -> Iterator[Proxy]:
    """The snippet, with other ports, the test's certificate and no IPv6, which some machines lack."""
    program, certificate = needed("nginx"), certified(folder)
    written = port_in(snippet, r"listen (\d+) ssl;", port)
    for old, new in (
        ("listen [::]:80;", ""),
        (f"listen [::]:{written} ssl;", ""),
        ("listen 80;", f"listen 127.0.0.1:{free_port()};"),
        (f"listen {written} ssl;", f"listen 127.0.0.1:{port} ssl;"),
        (f"/etc/letsencrypt/live/{NAME}", str(folder)),
        (APPLICATION, f"127.0.0.1:{application}"),
    ):
        assert old in snippet, old
        snippet = snippet.replace(old, new)
    places = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "site.conf").write_text(snippet)
    # The default account of its workers cannot read the folder.
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"daemon off; {user} worker_processes 1; pid {folder}/pid; error_log stderr; events {{}}"
        f" http {{ access_log off; {places} include {folder}/site.conf; }}"
    )
    with started(
        [program, "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf")], folder, port
    ):
        yield Proxy(port, ssl.create_default_context(cafile=certificate[0]))


@contextmanager
def caddy(folder: Path, snippet: str, port: int, application: int) -> Iterator[Proxy]:
    """The snippet, with other ports and the test's certificate, because Caddy would fetch one itself."""
    program, certificate = needed("caddy"), certified(folder)
    written = port_in(snippet, rf"^{re.escape(NAME)}:(\d+) {{$", port)
    for old, new in (
        (
            f"{NAME}{written and f':{written}'} {{\n",
            f"{NAME}:{port} {{\n\tbind 127.0.0.1\n\ttls {certificate[0]} {certificate[1]}\n",
        ),
        (APPLICATION, f"127.0.0.1:{application}"),
    ):
        assert old in snippet, old
        snippet = snippet.replace(old, new)
    (folder / "Caddyfile").write_text("{\n\tadmin off\n\tauto_https disable_redirects\n}\n" + snippet)
    with started(
        [program, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"], folder, port
    ):
        yield Proxy(port, ssl.create_default_context(cafile=certificate[0]))


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

    def cookies(self, user: User | None) -> dict[str, str]:
        if user is None:
            return {}
        return {"__Host-auth_token": self.site.service.sessions.open(user, remember=False).token}


@contextmanager
def house(kind: str, folder: Path, *, by_socket: bool = False) -> Iterator[House]:
    with ExitStack() as stack:
        daemon, port = free_port(), free_port()
        base_url = f"https://{NAME}:{port}"
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
            assertion_secret=SECRET,
            oauth_client_id=CLIENT,
            oauth_client_secret=CLIENT_SECRET,
            oauth_issuer=provider.issuer,
        )
        service = build(settings)
        stack.callback(service.close)
        accounts = [
            create_user(service, f"{name}@example.com", shown, PASSWORD, role=role, by=OPERATOR)
            for name, shown, role in (("ada", "Ada Lövelace", "user"), ("root", "Root", "admin"))
        ]
        listener = stack.enter_context(listening(settings, {}))
        site = stack.enter_context(running(service, table=TABLE + provider.routes(), listener=listener))
        server = stack.enter_context(
            make_server("127.0.0.1", 0, application(python_verifier(SECRET)), handler_class=Quiet)
        )
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        stack.callback(thread.join, 10)
        stack.callback(server.shutdown)
        command = Command(folder)
        at = f'socket = "{settings.socket}"' if by_socket else f"port = {daemon}"
        command.configure(f'baseUrl = "{base_url}"\n[server]\n{at}\n')
        snippet = command("snippet", kind).stdout
        start = {"nginx": nginx, "caddy": caddy}[kind]
        proxy = stack.enter_context(start(folder, snippet, port, server.server_port))
        yield House(kind, proxy, site, provider, server.server_port, *accounts)
