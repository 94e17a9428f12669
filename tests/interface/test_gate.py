"""The gate in front of another application in the same process, and the examples of the documentation."""

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from support import postgres
from support.accounts import open_session
from support.commands import OPERATOR, create_user
from support.daemons import free_port, wait_for
from support.databases import destroy
from support.documentation import blocks, page, section
from support.fakes import FakeClock
from support.proxies import started
from support.servers import installed
from support.web import Client, Reply, hosting

from usersctl.clock import moment, utc_now
from usersctl.config import Settings
from usersctl.errors import ConfigError
from usersctl.models import User
from usersctl.secrets import new_token
from usersctl.service import Service, build
from usersctl.store.conninfo import Conninfo, Database
from usersd.gate import Gate, Refused, current_user, require_group, require_role, require_user
from usersd.router import Router
from usersd.routes import TABLE
from usersd.server.connections import Hosted

PAGE = "docs/integrating/python.md"


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """Responds with the current user."""
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps({"user": current_user(environ), "path": environ["PATH_INFO"]}).encode()]


class Gated:
    def __init__(self, service: Service, port: int) -> None:
        self.service = service
        self.port = port

    def client(self, user: User | None = None, *, remember: bool = False) -> Client:
        if user is None:
            return Client(self.port)
        token = open_session(self.service, user, remember=remember).token
        return Client(self.port, cookies={"auth_token": token})


@pytest.fixture
def gated(make_service: Callable[..., Service]) -> Iterator[Gated]:
    service = make_service(whitelist=("/about", "/docs/*", "/register"))
    with hosting(Hosted(app=Gate(application, service))) as port:
        yield Gated(service, port)


@pytest.fixture
def ada(service: Service) -> User:
    return create_user(service, "ada@example.com", "Ada", None, by=OPERATOR)


@pytest.mark.parametrize("path", ["/", "/page", "/page?x=1", "/login/", "/docsx", "/apis"])
def test_a_page_without_a_session_leads_to_the_login(gated: Gated, path: str) -> None:
    for method in ("GET", "HEAD"):
        reply = gated.client().send(method, path)
        assert (reply.status, reply.body) == (302, b"")
        assert reply.header("Location") == "/login?redirect=" + path.replace("?", "%3F").replace("=", "%3D")
    assert gated.client().post(path).message == "Authentication required"


@pytest.mark.parametrize("path", ["/api/things", "/api/", "/api", "/_tasks/", "/api/%ff"])
def test_an_api_without_a_session_is_a_401(gated: Gated, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        reply = gated.client().send(method, path)
        assert (reply.status, reply.message) == (401, "Authentication required")
        assert reply.header("Cache-Control") == "no-store"
    assert gated.client().send("HEAD", path).body == b""


@pytest.mark.parametrize("path", ["/login", "/about", "/docs", "/docs/a/b", "/register", "/confirm-email"])
def test_public_paths_reach_the_application_with_and_without_a_session(
    gated: Gated, ada: User, path: str
) -> None:
    assert gated.client().get(path).json == {"user": None, "path": path}
    assert gated.client(ada).get(path).json["user"]["id"] == ada.id


def test_the_application_gets_the_user_without_a_password(gated: Gated, ada: User) -> None:
    by_cookie = gated.client(ada)
    by_bearer = Client(gated.port, headers={"Authorization": f"Bearer {by_cookie.token}"})
    for client in (by_cookie, by_bearer):
        user = client.get("/page").json["user"]
        assert user == ada.as_json() | {
            "last_login_at": user["last_login_at"],
            "groups": [],
            "auth": ["pwd"],
        }
        assert not [name for name in user if "password" in name]


@pytest.mark.parametrize(
    "name", ["usersd.user", "Usersd-User", "X-User", "Remote-User", "usersd_user", "HTTP_USERSD.USER"]
)
def test_no_request_header_sets_the_current_user(gated: Gated, name: str) -> None:
    assert gated.client().get("/about", headers={name: '{"id":1,"role":"admin"}'}).json["user"] is None
    assert gated.client().get("/page", headers={name: "1"}).status == 302


@pytest.mark.parametrize("pages", [False, True])
def test_a_gate_that_is_made_while_the_server_of_the_database_is_away_works_when_it_is_back(
    postgres_database: Callable[..., Conninfo], *, pages: bool
) -> None:
    database = postgres_database(empty=True)
    letting = f"ALTER DATABASE {postgres.name_of(database)} WITH ALLOW_CONNECTIONS"
    postgres.run(f"{letting} false")
    gate = Gate(application, build(Settings(database=database, base_url="http://localhost")), pages=pages)
    with closing(gate), hosting(Hosted(app=gate)) as port:
        client = Client(port, cookies={"auth_token": new_token()})
        assert client.get("/page").status == 503
        postgres.run(f"{letting} true")
        wait_for(lambda: client.get("/page").status == 302)
        assert create_user(gate.service, "ada@example.com", "Ada", None, by=OPERATOR).id == 1


def test_the_refusal_of_a_head_request_has_no_body(make_service: Callable[..., Service]) -> None:
    heads: list[str] = []
    environ = {"REQUEST_METHOD": "HEAD", "PATH_INFO": "/api/x"}
    body = Gate(application, make_service())(environ, lambda status, _headers: heads.append(status))
    assert (heads, b"".join(body)) == (["401 Unauthorized"], b"")


def test_role_rules_apply_at_the_gate(make_service: Callable[..., Service], ada: User) -> None:
    service = make_service(
        whitelist=("/docs/*",),
        role_rules=(("/admin/*", "admin"), ("/docs/members", "user"), ("/api/admin/*", "admin")),
    )
    root = create_user(service, "root@example.com", "Root", None, role="admin", by=OPERATOR)
    with hosting(Hosted(app=Gate(application, service))) as port:
        site = Gated(service, port)
        nobody, user, admin = site.client(), site.client(ada), site.client(root)
        for path, statuses in (
            ("/admin", [302, 403, 200]),
            ("/admin/x", [302, 403, 200]),
            ("/ADMIN;x/", [302, 403, 200]),
            ("/docs/../admin", [302, 403, 200]),
            ("/docs/members", [302, 200, 200]),
            ("/docs/x", [200, 200, 200]),
            ("/login", [200, 200, 200]),
            ("/page", [302, 200, 200]),
            ("/api/admin/x", [401, 403, 200]),
        ):
            assert [client.get(path).status for client in (nobody, user, admin)] == statuses, path
        browser = {"Accept": "text/html", "Sec-Fetch-Mode": "navigate"}
        for path, headers, kind in (
            ("/admin", browser, "text/html; charset=utf-8"),
            ("/admin", {}, "application/json; charset=utf-8"),
            ("/api/admin/x", browser, "application/json; charset=utf-8"),
        ):
            reply = user.get(path, headers=headers)
            assert (reply.status, reply.header("Content-Type")) == (403, kind)
            assert reply.header("Cache-Control") == "no-store"
        assert user.post("/admin").message == "Admin access required"
        assert b"This page is for admins" in user.get("/admin", headers=browser).body


def test_group_rules_apply_at_the_gate(make_service: Callable[..., Service], ada: User) -> None:
    service = make_service(role_rules=(("/staff/*", "group:staff"), ("/hr/*", ("group:hr", "admin"))))
    root = create_user(service, "root@example.com", "Root", None, role="admin", by=OPERATOR)
    with hosting(Hosted(app=Gate(application, service))) as port:
        site = Gated(service, port)
        clients = (site.client(), site.client(ada), site.client(root))
        assert [client.get("/staff/x").status for client in clients] == [302, 403, 403]
        assert [client.get("/hr").status for client in clients] == [302, 403, 200]
        refused = clients[1].get("/staff", headers={"Accept": "text/html", "Sec-Fetch-Mode": "navigate"})
        assert b"This page is for a group" in refused.body
        assert clients[1].post("/staff").message == "Group access required"
        for name in ("staff", "a.b"):
            service.groups.create(name, by=OPERATOR)
        service.groups.set(ada.id, ["staff", "a.b"], by=OPERATOR)
        assert clients[1].get("/staff").json["user"]["groups"] == ["a.b", "staff"]
        assert clients[2].get("/x").json["user"]["groups"] == []
        service.groups.delete("staff", by=OPERATOR)
        assert clients[1].get("/staff").status == 403
        assert clients[1].get("/x").json["user"]["groups"] == ["a.b"]


def test_factor_rules_lead_to_the_second_step_and_back(
    make_service: Callable[..., Service], ada: User
) -> None:
    service = make_service(factor_rules=("/payroll/*", "/api/payroll/*"))
    with hosting(Hosted(app=Gate(application, service))) as port:
        client = Gated(service, port).client(ada)
        page = client.get("/payroll/1?x=2")
        assert page.header("Location") == "/second-factor?redirect=/payroll/1%3Fx%3D2"
        for refused in (client.get("/api/payroll"), client.post("/payroll")):
            assert (refused.status, refused.message) == (401, "Second factor required")
        assert client.get("/page").status == 200
        with service.store.write() as tx:
            tx._run("UPDATE auth_tokens SET opened_with = 'pwd otp'")
        for path in ("/payroll/1", "/api/payroll"):
            assert client.get(path).status == 200


def test_a_handler_can_require_one_of_several_groups() -> None:
    member = {"usersd.user": {"id": 1, "role": "user", "groups": ["staff"]}}
    assert require_group(member, "hr", "staff")["id"] == 1
    others: list[tuple[Any, tuple[str, ...], int, str]] = [
        (member, ("hr",), 403, "Group access required"),
        (member, (), 403, "Group access required"),
        ({"usersd.user": {"id": 2, "role": "admin", "groups": []}}, ("staff",), 403, "Group access required"),
        ({"usersd.user": None}, ("staff",), 401, "Authentication required"),
    ]
    for environ, groups, status, message in others:
        with pytest.raises(Refused) as refused:
            require_group(environ, *groups)
        assert refused.value.body == {"statusCode": status, "statusMessage": message}


def test_every_way_to_end_a_session_closes_the_gate(gated: Gated, ada: User, clock: FakeClock) -> None:
    service = gated.service
    endings: list[Callable[[Client], Any]] = [
        lambda client: service.sessions.end(client.token),
        lambda _: service.sessions.revoke_all([ada.id], by=OPERATOR),
        lambda _: service.accounts.set_password(ada.id, "another horse battery", by=OPERATOR),
        lambda _: clock.move(days=1),
        lambda _: service.accounts.set_active([ada.id], active=False, by=OPERATOR),
    ]
    for end in endings:
        client = gated.client(ada)
        assert client.get("/page").status == 200
        end(client)
        assert client.get("/page").status == 302


def test_requests_through_the_gate_move_the_session_and_its_cookie(
    gated: Gated, ada: User, clock: FakeClock
) -> None:
    client, short = gated.client(ada, remember=True), gated.client(ada)
    clock.move(hours=20)
    (cookie,) = client.get("/page").all("Set-Cookie")
    assert cookie.startswith(f"auth_token={client.token}; Path=/; HttpOnly; SameSite=Lax; Max-Age=")
    assert client.get("/page").all("Set-Cookie") == []
    assert short.get("/page").all("Set-Cookie") == []
    clock.move(hours=20)
    assert short.get("/page").status == 200


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ([], ["private"]),
        ([("Cache-Control", "public, max-age=3600")], ["private"]),
        ([("cache-control", "max-age=60"), ("CDN-Cache-Control", "max-age=60"), ("Surrogate-Control", "x")], ["private"]),
        ([("Cache-Control", "No-Store")], ["No-Store"]),
        ([("cache-control", "no-store")], ["no-store"]),
        ([("Cache-Control", "private, max-age=60")], ["private, max-age=60"]),
    ],
)  # fmt: skip
def test_no_cache_that_visitors_share_may_keep_an_answer_with_a_session(
    make_service: Callable[..., Service],
    ada: User,
    clock: FakeClock,
    sent: list[tuple[str, str]],
    kept: list[str],
) -> None:
    def style_sheet(_environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/css"), *sent])
        return [b"p { margin: 0 }"]

    service = make_service(whitelist=("/static/*",))
    with hosting(Hosted(app=Gate(style_sheet, service))) as port:
        client = Gated(service, port).client(ada, remember=True)
        clock.move(hours=20)
        first, second = client.get("/static/x.css"), client.get("/static/x.css")
    assert len(first.all("Set-Cookie")) == 1
    assert first.all("Cache-Control") == kept
    assert first.all("CDN-Cache-Control") == first.all("Surrogate-Control") == []
    assert second.all("Set-Cookie") == []
    assert [second.all(name) for name, _ in sent] == [[value] for _, value in sent], (
        "as the application sent it"
    )


def test_a_refusal_of_the_gate_moves_the_cookie_with_the_session(
    make_service: Callable[..., Service], ada: User, clock: FakeClock
) -> None:
    week = timedelta(days=7)
    service = make_service(role_rules=(("/admin/*", "admin"),), remember_me_expiration=week)
    with hosting(Hosted(app=Gate(application, service))) as port:
        client = Gated(service, port).client(ada, remember=True)
        clock.move(hours=20)
        reply = client.get("/admin")
    (session,) = service.sessions.listed(ada.id)
    assert reply.status == 403
    assert moment(str(service.sessions.uses.latest(session).expires_at)) == clock() + week
    (cookie,) = reply.all("Set-Cookie")
    assert cookie.startswith(f"auth_token={client.token}; Path=/; HttpOnly; SameSite=Lax; Max-Age=604800")


def test_without_a_database_the_gate_answers_503(gated: Gated, ada: User) -> None:
    client = gated.client(ada)
    gated.service.store.close()
    destroy(gated.service.settings.database)
    reply = client.get("/page")
    assert (reply.status, reply.header("Retry-After")) == (503, "5")


def test_on_https_the_gate_reads_the_host_bound_cookie(
    make_service: Callable[..., Service], ada: User
) -> None:
    service = make_service(base_url="https://users.example.com")
    token = open_session(service, ada).token
    with hosting(Hosted(app=Gate(application, service))) as port:
        assert Client(port, cookies={"__Host-auth_token": token}).get("/x").status == 200
        reply = Client(port, cookies={"auth_token": token}).get("/x")
    assert (reply.status, reply.header("Strict-Transport-Security")) == (302, "max-age=31536000")


@pytest.mark.parametrize(
    ("path", "is_ours"),
    [
        *[(path, True) for path in ("/login", "/logout", "/account", "/users", "/api/users", "/_tasks/")],
        *[
            (path, True)
            for path in (
                "/api/users/me",
                "/api/users/unknown/x",
                "/api/groups",
                "/api/groups/x",
                "/api/audit",
                "/api/audit/check",
                "/assets/style.css",
                "/assets/x",
                *("/api/groups/x/y", "/api/audit/x", "/assets/x/y", "/_tasks/x"),  # that no route has
            )
        ],
        *[(path, False) for path in ("/", "/health", "/ready", "/page", "/login/", "//login", "/api/users2")],
        *[(path, False) for path in ("/api/things", "/users/x/y", "/_tasks", None)],
    ],
)
def test_beside_an_application_the_service_keeps_its_own_paths(path: str | None, is_ours: bool) -> None:
    assert Router(TABLE, Settings(database=Path(), base_url="http://127.0.0.1:8080")).keeps(path) is is_ours


@pytest.mark.parametrize("drops", [False, True])
def test_beside_an_application_verify_believes_the_path_only_if_the_proxy_drops_underscores(
    make_service: Callable[..., Service], drops: bool
) -> None:
    """The server of the application may have taken the header of a client with underscores for that of the proxy."""
    trusting: dict[str, Any] = {"trusted_proxies": (ip_network("127.0.0.1"),), "whitelist": ("/docs/*",)}
    service = make_service(proxy_drops_underscores=drops, **trusting)
    statuses: list[str] = []
    asked = {"REQUEST_METHOD": "GET", "PATH_INFO": "/api/users/auth/verify", "REMOTE_ADDR": "127.0.0.1"}
    with closing(Gate(application, service, pages=True)) as gate:
        for name in ("HTTP_X_FORWARDED_URI", "HTTP_X_ORIGINAL_URL"):
            list(gate(asked | {name: "/docs/x"}, lambda status, *_: statuses.append(status[:3])))
    assert statuses == ["200" if drops else "401"] * 2


# --- the helpers ---

USER = {"id": 1, "role": "user"}
ADMIN = {"id": 2, "role": "admin"}


def test_a_gate_that_is_closed_leaves_no_thread_and_works_again_at_the_next_request(
    make_service: Callable[..., Service],
) -> None:
    before = set(threading.enumerate())
    gate = Gate(application, make_service(), pages=True)
    for _ in range(2):
        with hosting(Hosted(app=gate)) as port:
            assert Client(port).get("/login").status == 200
            wait_for(lambda: any(thread.name == "sends email" for thread in threading.enumerate()))
        gate.close()
        assert set(threading.enumerate()) <= before


def test_pages_beside_an_application_log_a_start_and_no_request(
    make_service: Callable[..., Service], capsys: pytest.CaptureFixture[str]
) -> None:
    gate = Gate(application, make_service(metrics_port=9180), pages=True)
    with hosting(Hosted(app=gate)) as port:
        assert Client(port).get("/login").status == 200
    gate.close()
    logged = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert logged[:3] == ["no-admin", "mail", "no-metrics"]
    assert "request" not in logged  # the server of the application logs them


def test_pages_that_cannot_be_configured_so_stop_the_start_of_the_application(
    make_service: Callable[..., Service],
) -> None:
    with pytest.raises(ConfigError, match="go together"):
        Gate(application, make_service(mailer_user="ada"), pages=True)


@pytest.mark.parametrize("pages", [False, True])
def test_a_gate_whose_threads_gevent_replaced_later_serves_nothing(
    make_service: Callable[..., Service], monkeypatch: pytest.MonkeyPatch, pages: bool
) -> None:
    gate = Gate(application, make_service(whitelist=("/about",)), pages=pages)
    with monkeypatch.context() as patched:
        patched.setattr(threading, "local", type("local", (threading.local,), {}))
        with pytest.raises(RuntimeError, match="without --preload"):
            gate({"REQUEST_METHOD": "GET", "PATH_INFO": "/about"}, lambda *_: None)
    gate.close()


def test_the_current_user_is_none_without_a_session() -> None:
    assert current_user({"usersd.user": None}) is None
    assert current_user({"usersd.user": USER}) == USER


def test_the_helpers_raise_outside_of_a_gate() -> None:
    with pytest.raises(RuntimeError, match="wrapped in"):
        current_user({})


def test_require_user_refuses_an_anonymous_request() -> None:
    assert require_user({"usersd.user": USER}) == USER
    with pytest.raises(Refused) as refused:
        require_user({"usersd.user": None})
    assert refused.value.status == 401
    assert refused.value.body == {"statusCode": 401, "statusMessage": "Authentication required"}


@pytest.mark.parametrize(
    ("user", "role", "status", "message"),
    [
        (ADMIN, "admin", None, None),
        (USER, "user", None, None),
        (USER, "admin", 403, "Admin access required"),
        (ADMIN, "user", None, None),
        (USER, "editor", 403, "Editor access required"),
        (None, "admin", 401, "Authentication required"),
    ],
)
def test_require_role_refuses_another_role(user: Any, role: str, status: int | None, message: str) -> None:
    if status is None:
        assert require_role({"usersd.user": user}, role) == user
        return
    with pytest.raises(Refused, match=message) as refused:
        require_role({"usersd.user": user}, role)
    assert refused.value.body == {"statusCode": status, "statusMessage": message}


# --- the examples of the documentation ---


SERVED = {
    "Bottle": ["waitress-serve", "--listen=127.0.0.1:{port}", "bottle_example:application"],
    "Flask": ["flask", "--app=flask_example", "run", "--port={port}"],
    "Flask with gunicorn": [
        "gunicorn",
        "--preload",
        "--workers=2",
        "--bind=127.0.0.1:{port}",
        "flask_example:app",
    ],
    "Django": ["waitress-serve", "--listen=127.0.0.1:{port}", "django_example:application"],
    "Any WSGI application with uWSGI": [
        *("uwsgi", "--http-socket=127.0.0.1:{port}", "--master", "--processes=2", "--enable-threads"),
        *("--die-on-term", "--module=wsgi_example:application"),
    ],
    "Any WSGI application": ["waitress-serve", "--listen=127.0.0.1:{port}", "wsgi_example:application"],
}


@contextmanager
def example(served: str, folder: Path, database: Database) -> Iterator[int]:
    """The example of that framework in a process of its own, which stops cleanly."""
    port = free_port()
    framework = served.partition(" with ")[0]
    if framework == "Django":
        installed("django-admin", "applications")
    program, *words = (word.format(port=port) for word in SERVED[served])
    module = next(word for word in words if "_example" in word).rpartition("=")[2].partition(":")[0]
    (folder / "users.toml").write_text(blocks(page(PAGE), "toml")[0], "utf-8")
    (folder / f"{module}.py").write_text(blocks(section(PAGE, framework), "python")[0], "utf-8")
    env = os.environ | {
        "USERS_CONFIG": str(folder / "users.toml"),
        "USERS_DATABASE": str(database),
        "STATE_DIRECTORY": str(folder),
        "USERS_BASE_URL": f"http://127.0.0.1:{port}",
        "PYTHONPATH": str(folder),
    }
    with started([installed(program), *words], folder, port, env=env, signum=signal.SIGINT):
        yield port
    assert not (folder / "users.db-wal").exists()


DJANGO = """\
import sys
import waitress
from django.conf import settings
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path
from usersctl.config import load
from usersctl.service import build
from usersd.gate import Gate

def home(request):
    return HttpResponse(f"{{request.user}} {{request.user.is_staff}}")

urlpatterns = [path("", home), path("about", home)]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
{settings}
settings.configure(
    SECRET_KEY="of a test, and of nothing else",
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["django.contrib." + name for name in ("auth", "contenttypes", "sessions")],
    DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "django.db"}}}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    MIDDLEWARE=MIDDLEWARE,
    AUTHENTICATION_BACKENDS=AUTHENTICATION_BACKENDS,
    ALLOWED_HOSTS=["127.0.0.1"],
)
application = Gate(get_wsgi_application(), build(load().settings), pages=True)
call_command("migrate", verbosity=0)
waitress.serve(application, listen=f"127.0.0.1:{{sys.argv[1]}}")
"""


@pytest.mark.slow
def test_the_user_of_django_is_that_of_the_gate(
    make_service: Callable[..., Service], tmp_path: Path, clock: FakeClock
) -> None:
    installed("django-admin", "applications")
    clock.now = utc_now()  # the application uses the real time
    service, port = make_service(), free_port()
    ada = create_user(service, "ada@example.com", "Ada", None, by=OPERATOR)
    root = create_user(service, "root@example.com", "Root", None, role="admin", by=OPERATOR)
    module, changes = blocks(section(PAGE, "Django's own user"), "python")
    (tmp_path / "accounts.py").write_text(module, "utf-8")
    (tmp_path / "site.py.txt").write_text(DJANGO.format(settings=changes), "utf-8")
    (tmp_path / "users.toml").write_text(blocks(page(PAGE), "toml")[0], "utf-8")
    env = os.environ | {
        "USERS_CONFIG": str(tmp_path / "users.toml"),
        "USERS_DATABASE": str(service.store.database),
        "USERS_BASE_URL": f"http://127.0.0.1:{port}",
    }
    with started([sys.executable, str(tmp_path / "site.py.txt"), str(port)], tmp_path, port, env=env):
        site = Gated(service, port)
        user, admin = site.client(ada), site.client(root)
        assert user.get("/").body == b"ada@example.com False"
        assert admin.get("/").body == b"root@example.com True"
        # The browser keeps the session of Django, and the gate has the last word.
        assert "sessionid" in user.cookies
        user.cookies["auth_token"] = admin.cookies["auth_token"]
        assert user.get("/").body == b"root@example.com True"
        del user.cookies["auth_token"]
        assert user.get("/about").body == b"AnonymousUser False"


def as_json(reply: Reply) -> tuple[int, Any]:
    assert (reply.header("Content-Type") or "").startswith("application/json")
    return reply.status, reply.json


@pytest.mark.slow
@pytest.mark.parametrize("served", SERVED)
def test_the_example_of_the_documentation_is_a_whole_application(
    make_service: Callable[..., Service], tmp_path: Path, clock: FakeClock, served: str
) -> None:
    clock.now = utc_now()  # the example uses the real time
    service = make_service()
    ada = create_user(service, "ada@example.com", "Ada", None, by=OPERATOR)
    root = create_user(service, "root@example.com", "Root", None, role="admin", by=OPERATOR)
    service.close()  # the example is the last to close the database
    with example(served, tmp_path, service.store.database) as port:
        site = Gated(service, port)
        nobody, user, admin = site.client(), site.client(ada), site.client(root)
        assert nobody.get("/").header("Location") == "/login?redirect=/"
        assert b"<h1>" in nobody.get("/login?redirect=/").body
        assert as_json(user.get("/")) == (200, {"hello": "Ada"})
        assert as_json(nobody.get("/about")) == (200, {"hello": "stranger"})
        assert as_json(user.get("/about")) == (200, {"hello": "Ada"})
        assert as_json(nobody.post("/api/comments")) == (
            401,
            {"statusCode": 401, "statusMessage": "Authentication required"},
        )
        assert as_json(user.post("/api/comments")) == (200, {"author": ada.id})
        assert nobody.get("/admin").status == 302
        assert as_json(user.get("/admin")) == (
            403,
            {"statusCode": 403, "statusMessage": "Admin access required"},
        )
        assert as_json(admin.get("/admin")) == (200, {"admin": "root@example.com"})
        service.accounts.update(ada.id, role="admin", by=OPERATOR)
        create_user(service, "other@example.com", "Other", None, role="admin", by=OPERATOR)
        service.accounts.set_active([root.id], active=False, by=OPERATOR)
        assert [user.get("/admin").status, admin.get("/admin").status] == [200, 302]
        assert [user.get("/reports/1").status, nobody.get("/reports/1").status] == [404, 302]
        service.accounts.update(ada.id, role="user", by=OPERATOR)
        assert as_json(user.get("/reports/1"))[1]["statusMessage"] == "Admin access required"
        assert user.get("/unknown").status == 404
        assert nobody.get("/api/unknown").status == 401
        # The emails are sent here, too.
        assert nobody.post("/api/users/password/forgot", {"email": "ada@example.com"}).status == 200
        (email,) = wait_for(lambda: list((tmp_path / "mail").glob("*.eml")))
        assert f"http://127.0.0.1:{port}/reset-password" in email.read_text()
        service.close()


def test_the_page_names_each_helper_and_both_refusals() -> None:
    text = page(PAGE)
    for words in (
        "Gate(",
        "current_user(environ)",
        "require_user(environ)",
        'require_role(environ, "admin")',
        "Authentication required",
        "Admin access required",
        "auth.whitelist",
        "auth.roleRules",
    ):
        assert words in text
    assert re.findall(r"^## (.*)$", text, re.MULTILINE)[-4:] == [
        "Bottle",
        "Flask",
        "Django",
        "Any WSGI application",
    ]
