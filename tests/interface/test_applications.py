"""Real applications behind nginx and Caddy, set up as docs/integrating/applications.md says."""

import base64
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.daemons import free_port
from support.documentation import blocks, section
from support.proxies import NAME, House, Visitor, house, started
from support.servers import installed
from support.web import Client

PAGE = "docs/integrating/applications.md"
BROWSER = {"Accept": "text/html,application/xhtml+xml", "Sec-Fetch-Mode": "navigate"}
MB = 1024 * 1024
EVENT = """\
BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//test//test//EN
BEGIN:VEVENT
UID:1
DTSTAMP:20261122T120000Z
DTSTART:20261122T120000Z
SUMMARY:Tea
END:VEVENT
END:VCALENDAR
"""


def config(title: str, language: str, number: int = 0) -> str:
    return blocks(section(PAGE, title), language)[number]


def words(title: str) -> tuple[str, ...]:
    """The options of the snippet, without the application's address."""
    ((line,)) = blocks(section(PAGE, title), "sh")
    options = line.split()
    return tuple(options[options.index("--app") + 2 :]) if "--app" in options else ()


@contextmanager
def radicale(folder: Path, port: int) -> Iterator[None]:
    written = config("Radicale", "ini").replace("127.0.0.1:5232", f"127.0.0.1:{port}")
    (folder / "radicale.ini").write_text(
        written.replace("/var/lib/radicale/collections", f"{folder}/collections")
    )
    with started(
        [str(installed("radicale", "applications")), "--config", str(folder / "radicale.ini")], folder, port
    ):
        yield


@contextmanager
def wsgidav(folder: Path, port: int) -> Iterator[None]:
    (folder / "files").mkdir()
    written = config("WebDAV with WsgiDAV", "yaml").replace("port: 8001", f"port: {port}")
    (folder / "wsgidav.yaml").write_text(written.replace("/srv/files", f"{folder}/files"))
    with started(
        [str(installed("wsgidav", "applications")), "--config", str(folder / "wsgidav.yaml")], folder, port
    ):
        yield


DJANGO = """\
import sys
from pathlib import Path

import django
from django.conf import settings, global_settings
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.urls import path

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
{settings}
settings.configure(
    SECRET_KEY="of a test, and of nothing else",
    ROOT_URLCONF="site_urls",
    INSTALLED_APPS=["django.contrib." + name for name in ("admin", "auth", "contenttypes", "sessions", "messages")],
    DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "django.db"}}}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    TEMPLATES=[{{
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {{"context_processors": ["django.template.context_processors.request",
            "django.contrib.auth.context_processors.auth", "django.contrib.messages.context_processors.messages"]}},
    }}],
    USE_TZ=True,
    CSRF_COOKIE_SECURE=True,
    SESSION_COOKIE_SECURE=True,
    MIDDLEWARE=MIDDLEWARE,
    AUTHENTICATION_BACKENDS=AUTHENTICATION_BACKENDS,
    SECURE_PROXY_SSL_HEADER=SECURE_PROXY_SSL_HEADER,
    ALLOWED_HOSTS=ALLOWED_HOSTS,
)
application = get_wsgi_application()
call_command("migrate", verbosity=0)
import waitress
waitress.serve(
    application,
    listen=f"127.0.0.1:{{sys.argv[1]}}",
    threads=2,
    trusted_proxy="127.0.0.1",
    trusted_proxy_headers={{"x-forwarded-proto"}},
)
"""
URLS = """\
from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
"""


@contextmanager
def django(folder: Path, port: int) -> Iterator[None]:
    installed("django-admin", "applications")
    title = "Django and its admin"
    (folder / "accounts.py").write_text(config(title, "python"))
    (folder / "site_urls.py").write_text(URLS)
    (folder / "site.py.txt").write_text(DJANGO.format(settings=config(title, "python", 1)))
    with started([sys.executable, str(folder / "site.py.txt"), str(port)], folder, port):
        yield


SOCKETS = """\
import sys
from websockets.sync.server import serve

def talk(connection):
    for message in connection:
        connection.send(f"{connection.request.headers['Remote-Email']}: {message}")

with serve(talk, "127.0.0.1", int(sys.argv[1])) as server:
    server.serve_forever()
"""


@contextmanager
def sockets(folder: Path, port: int) -> Iterator[None]:
    installed("websockets", "applications")
    (folder / "sockets.py").write_text(SOCKETS)
    with started([sys.executable, str(folder / "sockets.py"), str(port)], folder, port):
        yield


Application = Callable[[Path, int], AbstractContextManager[None]]


@contextmanager
def behind(kind: str, folder: Path, application: Application, *options: str) -> Iterator[House]:
    with ExitStack() as stack:
        port, own = free_port(), folder / "application"
        own.mkdir()
        stack.enter_context(application(own, port))
        more: dict[str, Any] = {"forward_basic": True, "role_rules": (), "whitelist": ()}
        yield stack.enter_context(house(kind, folder, application_port=port, words=options, **more))


@pytest.fixture(params=["nginx", "caddy"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def dav(here: House, user: str) -> Visitor:
    """A client that knows nothing but a password."""
    token = here.api_token({"ada": here.ada, "root": here.root}[user])
    encoded = base64.b64encode(f"{user}@example.com:{token}".encode()).decode()
    visitor = here.visitor()
    visitor.headers["Authorization"] = f"Basic {encoded}"
    return visitor


FORGED = {
    "X-Remote-User": "ada@example.com",
    "X_Remote_User": "ada@example.com",
    "Remote-Email": "ada@example.com",
}


def test_radicale_keeps_the_calendar_of_each_user(tmp_path: Path, kind: str) -> None:
    with behind(kind, tmp_path, radicale, *words("Radicale")) as here:
        ada, root = dav(here, "ada"), dav(here, "root")
        calendar = "/ada@example.com/calendar/"
        assert ada.send("MKCALENDAR", calendar).status == 201
        sent = {"Content-Type": "text/calendar"}
        assert ada.send("PUT", calendar + "1.ics", raw=EVENT.encode(), headers=sent).status == 201
        assert "SUMMARY:Tea" in ada.get(calendar + "1.ics").body.decode()
        host = f"https://{NAME}:{here.proxy.port}"
        moved = ada.send("MOVE", calendar + "1.ics", headers={"Destination": f"{host}{calendar}2.ics"})
        assert moved.status == 201, moved.body
        assert here.visitor(here.ada).get(calendar + "2.ics").status == 200
        assert root.get(calendar + "2.ics", headers=FORGED).status == 403
        assert root.send("MKCALENDAR", "/root@example.com/calendar/").status == 201
        found = ada.send("PROPFIND", "/.well-known/caldav", headers={"Depth": "0"})
        assert found.status in (301, 302, 207)
        asked = here.visitor().send("PROPFIND", calendar, headers=FORGED)
        assert (asked.status, str(asked.header("WWW-Authenticate"))[:5]) == (401, "Basic")


def test_wsgidav_takes_large_files_and_moves_them(tmp_path: Path, kind: str) -> None:
    with behind(kind, tmp_path, wsgidav, *words("WebDAV with WsgiDAV")) as here:
        ada, host = dav(here, "ada"), f"https://{NAME}:{here.proxy.port}"
        large = b"0123456789abcdef" * (20 * MB // 16)
        assert ada.send("PUT", "/large", raw=large).status == 201
        for method, target, gone in (("COPY", "/copy", False), ("MOVE", "/moved", True)):
            reply = ada.send(method, "/large", headers={"Destination": host + target})
            assert reply.status == 201, reply.body
            assert (tmp_path / "application" / "files" / target[1:]).read_bytes() == large
            assert (tmp_path / "application" / "files" / "large").exists() != gone
        assert ada.get("/moved").body == large
        assert here.visitor(here.ada).get("/copy", headers=BROWSER).status == 200
        assert here.visitor().get("/copy", headers=FORGED).status == 401
        assert ada.send("PROPFIND", "/", headers={"Depth": "1"}).status == 207
        around = Client(here.port, headers={"Authorization": ada.headers["Authorization"]})
        assert around.get("/copy").status != 200
        nobody = base64.b64encode(b"nobody:unused").decode()
        assert Client(here.port).get("/copy", headers={"Authorization": f"Basic {nobody}"}).status != 200


@pytest.mark.slow
def test_django_admin_takes_user_and_role_and_accepts_forms(tmp_path: Path, kind: str) -> None:
    with behind(kind, tmp_path, django) as here:
        origin = f"https://{NAME}:{here.proxy.port}"
        ada, root = here.visitor(here.ada), here.visitor(here.root)
        # Not of the staff: Django's own login.
        assert ada.get("/admin/", headers=BROWSER | FORGED).header("Location") == "/admin/login/?next=/admin/"
        shown = root.get("/admin/auth/group/add/", headers=BROWSER)
        assert (shown.status, b"root@example.com" in shown.body) == (200, True)
        (token,) = set(re.findall(rb'name="csrfmiddlewaretoken" value="(\w+)"', shown.body))
        form = b"csrfmiddlewaretoken=" + token + b"&name=editors&_save=Save"
        sent = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Origin": origin,
            "Referer": f"{origin}/admin/",
        }
        saved = root.send("POST", "/admin/auth/group/add/", raw=form, headers=sent)
        assert (saved.status, saved.header("Location")) == (302, "/admin/auth/group/"), saved.body
        assert b"editors" in root.get("/admin/auth/group/", headers=BROWSER).body
        elsewhere = sent | {"Origin": "https://evil.example"}
        assert root.send("POST", "/admin/auth/group/add/", raw=form, headers=elsewhere).status == 403


def test_a_real_websocket_server_talks_with_a_signed_in_user(tmp_path: Path, kind: str) -> None:
    with behind(kind, tmp_path, sockets) as here:
        from websockets.exceptions import InvalidStatus
        from websockets.sync.client import connect

        address = f"wss://{NAME}:{here.proxy.port}/live"
        (cookie,) = here.cookies(here.ada).items()

        def open_(**headers: str) -> Any:
            plain = socket.create_connection(("127.0.0.1", here.proxy.port), 10)
            return connect(address, sock=plain, ssl=here.proxy.tls, additional_headers=headers)

        with open_(Cookie="=".join(cookie)) as connection:
            for message in ("hello", "x" * 100_000):
                connection.send(message)
                assert connection.recv(timeout=10) == f"ada@example.com: {message}"
        with pytest.raises(InvalidStatus, match="401"):
            open_(**{"Remote-Email": "ada@example.com"})
