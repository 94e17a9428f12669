"""The emergency brake: pulled in one process, in force at the next request in every other, and who is still let in."""

import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from support.accounts import author, stored_sessions
from support.commands import OPERATOR, PASSWORD, Command, create_user
from support.fakes import FakeClock
from support.oauth_site import error_of, oauth_site
from support.postbox import link_in
from support.tables import query
from support.web import Client, Reply, Site, application, hosting

from usersctl.clock import stamp
from usersctl.errors import Forbidden, LockedDown
from usersctl.invitations import guest
from usersctl.mail.kinds import CONFIRM, CONFIRM_NEW_EMAIL, INVITATION, RESET
from usersctl.models import Actor, Lockdown, User
from usersctl.secrets import digest, new_token
from usersctl.service import Service
from usersd.gate import Gate
from usersd.server.connections import Hosted

ME = "/api/users/me"
ROOT = "root@example.com"
CLOSED = "The service is closed for the time being"
NEW = "another good password"


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    made = make_site(whitelist=("/register",))
    made.add("root", role="admin")
    made.add("other", role="admin")
    made.add("ada")
    return made


def one_time_token(site: Site, purpose: str, user: User) -> str:
    """As an email would hold it."""
    token = new_token()
    with site.service.store.write() as tx:
        tx.add_one_time_token(digest(token), purpose, timedelta(days=1), user_id=user.id, email=user.email)
    return token


def user_of(site: Site, name: str) -> User:
    return site.service.accounts.find(f"{name}@example.com")


def bearer(site: Site, name: str) -> Client:
    opened = site.service.sessions.create_api_token(
        user_of(site, name).id, name="ci", lifetime=None, by=OPERATOR
    )
    return site.client(headers={"Authorization": f"Bearer {opened.token}"})


def is_refused(reply: Reply) -> bool:
    return (reply.status, reply.message, reply.header("Retry-After")) == (503, CLOSED, "600")


# --- in force ---


@pytest.mark.slow
def test_a_lockdown_holds_at_the_next_request_on_every_surface(site: Site, usersctl: Command) -> None:
    with hosting(Hosted(app=Gate(application, site.service))) as port:
        clients: list[tuple[Client, str]] = []
        for name in ("root", "other", "ada"):
            cookie = site.signed_in(user_of(site, name))
            persistent = site.signed_in(user_of(site, name), rememberMe=True)
            machine = bearer(site, name)
            clients += [(client, ME) for client in (cookie, persistent, machine)]
            clients += [
                (Client(port, dict(client.cookies), dict(client.headers)), "/api/x")
                for client in (cookie, machine)
            ]
        clients += [(client, "/api/users/auth/verify") for client, path in list(clients) if path == ME]
        assert [client.get(path).status for client, path in clients] == [200] * len(clients)
        printed = usersctl.ok("lockdown", "on", "--except", ROOT, "--yes", "--json").json
        assert (printed["on"], printed["except"], printed["changed"], printed["ended_sessions"]) == (
            True,
            ROOT,
            True,
            6,
        )
        assert [client.get(path).status for client, path in clients] == [401] * len(clients)
        # The admin who was named comes in again, and is in everywhere.
        root = site.client()
        assert root.login(ROOT, PASSWORD).status == 200
        assert root.get("/api/users").status == 200
        assert Client(port, dict(root.cookies)).get("/api/x").json["user"]["email"] == ROOT
        assert [client.get(path).status for client, path in clients] == [401] * len(clients)
        usersctl.ok("lockdown", "off")
        # Tokens of machines go on; every user signs in again.
        alive = [200 if "Authorization" in client.headers else 401 for client, _ in clients]
        assert [client.get(path).status for client, path in clients] == alive
        assert site.client().login("ada@example.com", PASSWORD).status == 200


def test_every_way_to_sign_in_answers_503_in_a_lockdown(site: Site) -> None:
    ada = user_of(site, "ada")
    sleeping = site.service.registration.register("new@example.com", "New", PASSWORD, by=OPERATOR)
    reset, confirm = one_time_token(site, "reset", ada), one_time_token(site, "confirm", sleeping)
    not_me = one_time_token(site, "not_me", ada)
    setup = site.service.first_admin.link().partition("token=")[2]
    site.service.lockdown.start(user_of(site, "root"), by=OPERATOR)
    client = site.client()
    new = {"password": NEW, "password_confirmation": NEW}
    doors = [
        client.login("ada@example.com", PASSWORD),
        client.login("ada@example.com", "wrong wrong wrong"),
        client.login("other@example.com", PASSWORD),
        client.login("nobody@example.com", PASSWORD),
        client.login(ROOT, "wrong wrong wrong"),
        client.post("/api/users/register", {"email": "x@example.com", "name": "X", "password": NEW}),
        client.post("/api/users/register/resend", {"email": "new@example.com"}),
        client.get(f"/api/users/confirm-email?token={confirm}&email=new@example.com"),
        client.post("/api/users/password/forgot", {"email": "ada@example.com"}),
        client.post("/api/users/password/forgot", {"email": ROOT}),
        client.post("/api/users/password/reset", {"token": reset, "email": ada.email, **new}),
        client.post("/api/users/password/reset", {"token": "made-up", "email": ada.email, **new}),
        client.post("/api/users/not-me", {"token": not_me, "email": ada.email}),
        client.post(
            "/api/users/setup", {"token": setup, "email": "x@example.com", "name": "X", "password": NEW}
        ),
    ]
    assert [client for client in doors if not is_refused(client)] == []
    assert {client.body for client in doors} == {doors[0].body}
    assert client.cookies == {}
    assert client.delete("/api/users/session").status == 200
    site.service.lockdown.stop(by=OPERATOR)
    # Nothing was used up, but links that set a password are no longer good: they may be in wrong hands.
    assert client.get(f"/api/users/confirm-email?token={confirm}&email=new@example.com").status == 200
    assert client.post("/api/users/password/reset", {"token": reset, "email": ada.email, **new}).status == 400
    assert client.post("/api/users/not-me", {"token": not_me, "email": ada.email}).status == 200


def test_the_excepted_admin_sets_a_password_by_a_link_of_the_command(site: Site) -> None:
    site.service.lockdown.start(user_of(site, "root"), by=OPERATOR)
    for name, status in (("root", 200), ("other", 503)):
        link = site.service.outbox.link(RESET, user_of(site, name), by=OPERATOR)
        token = link.partition("token=")[2].partition("&")[0]
        body = {"token": token, "email": f"{name}@example.com", "password": NEW, "password_confirmation": NEW}
        assert site.client().post("/api/users/password/reset", body).status == status
    assert site.client().login(ROOT, NEW).status == 200


@pytest.mark.parametrize(
    "change", [{"role": "user"}, {"active": False}, None], ids=["demoted", "inactive", "gone"]
)
def test_an_excepted_user_who_is_no_longer_an_admin_is_refused(
    site: Site, change: dict[str, Any] | None
) -> None:
    site.service.lockdown.start(user_of(site, "root"), by=OPERATOR)
    root = site.client()
    root.login(ROOT, PASSWORD)
    if change is None:
        site.service.accounts.delete([user_of(site, "root").id], by=OPERATOR)
    else:
        site.service.accounts.update(user_of(site, "root").id, by=OPERATOR, **change)
    assert root.get(ME).status == 401
    assert is_refused(site.client().login(ROOT, PASSWORD))
    state = site.service.lockdown.state()
    assert state is not None
    assert state.admitted is None


def test_a_formerly_excepted_user_is_refused_also_after_becoming_an_admin_again(
    service: Service, add: Callable[..., User]
) -> None:
    root = add("root", role="admin")
    add("other", role="admin")
    service.lockdown.start(root, by=OPERATOR)
    service.accounts.update(root.id, role="user", by=OPERATOR)
    assert service.lockdown.start(None, by=OPERATOR) is None  # as closed as it was already
    service.accounts.update(root.id, role="admin", by=OPERATOR)
    state = service.lockdown.state()
    assert state is not None
    assert state.admitted is None


def test_a_provider_sign_in_admits_only_the_excepted_admin(make_service: Callable[..., Service]) -> None:
    with oauth_site(make_service, oauth_allow_auto_registration=True) as site:
        service = site.service
        ada = site.browser()
        assert ada.sign_in("1001").header("Location") == "/"  # somebody who is there
        root = service.accounts.find("ada@example.com")
        create_user(service, "root2@example.com", "Root", PASSWORD, role="admin", by=OPERATOR)
        service.lockdown.start(None, by=OPERATOR)
        assert ada.me() is None
        for person in ("1001", "1004"):  # known and unknown
            assert error_of(site.browser().sign_in(person)) == "oauth_failed"
        with service.store.read() as tx:
            assert len(list(tx.all_credentials())) == 2
        service.accounts.update(root.id, role="admin", by=OPERATOR)
        service.lockdown.start(service.accounts.get(root.id), by=OPERATOR)
        browser = site.browser()
        assert browser.sign_in("1001").header("Location") == "/"
        assert browser.me() is not None
        assert not site.errors()


def test_the_login_page_explains_the_lockdown(site: Site) -> None:
    assert b"signing in is switched off" not in site.client().get("/login").body
    site.service.lockdown.start(None, by=OPERATOR)
    assert b"signing in is switched off" in site.client().get("/login").body
    assert CLOSED in site.client().get("/assets/messages.en.json").json  # the form has words for it, too


# --- attacks ---


class Braking:
    """Somebody pulls the brake while a password is being checked or hashed."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def __getattr__(self, name: str) -> Any:
        return getattr(self.service.hasher, name)

    def matches(self, password: str, stored: str | None) -> bool:
        self.service.lockdown.start(None, by=OPERATOR)
        return self.service.hasher.matches(password, stored)

    def hash(self, password: str) -> str:
        self.service.lockdown.start(None, by=OPERATOR)
        return self.service.hasher.hash(password)


def test_a_login_that_began_before_the_lockdown_is_refused(
    service: Service, add: Callable[..., User]
) -> None:
    add("root", role="admin")
    add("ada")

    sessions = service.sessions._replace(hasher=Braking(service))  # type: ignore[arg-type]
    with pytest.raises(LockedDown):
        sessions.login("ada@example.com", PASSWORD)
    assert stored_sessions(service) == []


@pytest.mark.parametrize("way", ["reset", "new address", "invitation"])
def test_a_link_that_was_used_before_the_lockdown_changes_nothing_in_it(
    service: Service, add: Callable[..., User], way: str
) -> None:
    add("root", role="admin")
    ada = add("ada")
    opened = service.sessions.login(ada.email, PASSWORD)
    service.accounts.update(ada.id, email="new@example.com", by=author(opened))
    (bob,) = service.invitations.invite([guest("bob@example.com", "Bob")], timedelta(days=1), by=OPERATOR)
    kinds = {"reset": (RESET, ada), "new address": (CONFIRM_NEW_EMAIL, ada), "invitation": (INVITATION, bob)}
    link = link_in(service.outbox.link(*kinds[way], by=OPERATOR))
    hasher: Any = Braking(service)
    uses: dict[str, Callable[..., object]] = {
        "reset": service.recovery._replace(hasher=hasher).reset,
        "new address": service.claims._replace(hasher=hasher).prove,
        "invitation": partial(service.invitations._replace(hasher=hasher).accept, name=None, then=print),
    }
    columns = "SELECT id, email, password_hash, claim_proven_at, active FROM users"
    before = query(service, columns)
    with pytest.raises(LockedDown):
        uses[way](link.token, link.email, password=PASSWORD, by=Actor("anonymous"))
    assert query(service, columns) == before


def test_an_email_that_waits_in_the_outbox_opens_no_account_in_a_lockdown(
    service: Service, add: Callable[..., User]
) -> None:
    ada = add("ada")
    service.recovery.forgot("ada@example.com")
    link = service.first_admin.link().partition("token=")[2]
    service.lockdown.start(None, by=OPERATOR)
    with service.store.read() as tx:
        assert [(email.kind, email.state) for email in tx.queued_emails()] == [("reset", "dropped")]
        assert tx.one_time_token("setup", digest(link)) is None
    assert service.outbox.link(CONFIRM, ada, by=OPERATOR)  # the operator's own work goes on


def test_failed_logins_count_alike_for_every_account_in_a_lockdown(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    """Neither the answers nor when they stop tells who is let in, or whether a password fits."""
    root = add("root", role="admin")
    add("ada")
    service.lockdown.start(root, by=OPERATOR)

    def refusals(email: str, password: str) -> list[str]:
        answers = []
        for _ in range(13):
            try:
                service.sessions.login(email, password)
            except Exception as error:  # noqa: BLE001 - what it is, is the question
                answers.append(str(error))
        return answers

    wrong = "wrong wrong wrong"
    everyone = [
        refusals(ROOT, wrong),
        refusals("ada@example.com", PASSWORD),
        refusals("nobody@example.com", wrong),
    ]
    assert everyone[0] == everyone[1] == everyone[2]
    assert everyone[0].count(CLOSED) == 10
    clock.move(hours=1)
    service.lockdown.stop(by=OPERATOR)
    assert service.sessions.login("ada@example.com", PASSWORD)


@pytest.mark.alone
def test_a_refused_login_costs_the_same_for_every_account_in_a_lockdown(
    make_service: Callable[..., Service], add: Callable[..., User]
) -> None:
    root = add("root", role="admin")
    add("ada")
    service = make_service(rounds=8, limits_enabled=False)
    for name in ("root", "ada"):
        service.accounts.set_password(service.accounts.find(f"{name}@example.com").id, PASSWORD, by=OPERATOR)
    service.lockdown.start(root, by=OPERATOR)
    took: dict[str, list[float]] = {ROOT: [], "ada@example.com": [], "nobody@example.com": []}
    for _ in range(7):
        for email, times in took.items():
            began = time.thread_time()
            with pytest.raises(LockedDown):
                service.sessions.login(email, "wrong wrong wrong")
            times.append(time.thread_time() - began)
    medians = [statistics.median(times) for times in took.values()]
    assert max(medians) < 1.5 * min(medians), medians


# --- the command ---


def test_lockdown_on_twice_changes_nothing_and_each_change_is_audited(usersctl: Command) -> None:
    usersctl.add("root", "other", role="admin")
    with usersctl.service() as service:
        assert service.lockdown.start(None, by=OPERATOR) == 0
    done = usersctl.ok("lockdown", "on", "--except", ROOT, "--yes")
    assert done.stdout == "The service is closed to everybody but root@example.com now; 0 sessions ended\n"
    assert "but root@example.com already" in usersctl.ok("lockdown", "on", "--except", "1").stdout
    status = usersctl.ok("lockdown", "status")
    assert status.stdout.startswith("The service is closed to everybody but root@example.com since 20")
    assert usersctl.ok("lockdown", "status", "--quiet").stdout == status.stdout
    assert usersctl.ok("lockdown", "off").stdout == "The service is open again\n"
    assert usersctl.ok("lockdown", "off", "--json").json == {
        "on": False, "since": None, "actor": None, "except": None, "changed": False,
    }  # fmt: skip
    with usersctl.service() as service, service.store.read() as tx:
        rows = list(tx.audit_rows())[2:]
    assert [(row.action, row.email) for row in rows] == [
        ("lockdown-on", None), ("lockdown-on", ROOT), ("lockdown-off", None),
    ]  # fmt: skip


def test_lockdown_on_asks_before_it_ends_all_sessions(usersctl: Command) -> None:
    usersctl.add("root", role="admin")
    done = usersctl("lockdown", "on", "--except", ROOT)
    assert (done.code, "--yes" in done.stderr) == (5, True)
    question = "End all sessions and close the service to everybody but root@example.com? [y/N]"
    screen = usersctl.on_terminal("lockdown", "on", "--except", ROOT, typed=[(question, "n\n")])
    assert screen.code == 5
    with usersctl.service() as service:
        assert service.lockdown.state() is None


def test_another_exception_leaves_who_began_the_lockdown_and_when(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    root = add("root", role="admin")
    service.lockdown.start(None, by=OPERATOR)
    began = stamp(clock())
    clock.move(minutes=1)
    service.lockdown.start(root, by=Actor("cli:another", "local"))
    assert service.lockdown.state() == Lockdown(began, OPERATOR.name, root)


def test_only_an_active_admin_can_be_excepted(service: Service, add: Callable[..., User]) -> None:
    other = add("other", role="admin")
    add("root", role="admin")
    asleep = add("asleep", role="admin", active=False)
    service.accounts.update(other.id, role="user", by=OPERATOR)  # since they were looked up
    for user in (add("ada"), asleep, other):
        with pytest.raises(Forbidden, match="Only an active admin"):
            service.lockdown.start(user, by=OPERATOR)
    assert service.lockdown.state() is None


def test_the_command_works_on_in_a_lockdown(service: Service) -> None:
    service.lockdown.start(None, by=OPERATOR)
    made = create_user(service, "new@example.com", "New", PASSWORD, by=OPERATOR)
    service.accounts.set_password(made.id, NEW, by=OPERATOR)
    service.sessions.create_api_token(made.id, name="ci", lifetime=None, by=OPERATOR)
    service.accounts.set_active([made.id], active=False, by=OPERATOR)
    assert service.cleaner.run(by=OPERATOR)
