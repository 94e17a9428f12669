"""No way in goes around the second factor of an account: each leads to a sign-in that waits for it, or to none."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_network
from urllib.parse import urlsplit

import pytest
from support.addresses import OTHER, claim, forgets, links, not_me, prove, resets
from support.commands import OPERATOR, PASSWORD
from support.fakes import FakeClock
from support.identities import link
from support.oauth_site import Browser, MakeOAuthSite, OAuthSite, asked, error_of
from support.postbox import Link, last_link
from support.second_factors import SECOND_STEP, Phone, enrol, finish
from support.web import Client, application, hosting

from usersctl.mail.kinds import RESET
from usersctl.models import UNUSABLE, User
from usersd.gate import Gate
from usersd.server.connections import Hosted

ADA = "ada@example.com"
VERIFY = "/api/users/auth/verify"
HERE = (ip_network("127.0.0.0/8"),)
WEEK = timedelta(days=7)
PENDING = "auth_pending"


@dataclass
class Account:
    """Ada, whose address is proven, and who has an authenticator app. The session that set it up has ended."""

    site: OAuthSite
    clock: FakeClock
    user: User
    phone: Phone

    def client(self) -> Client:
        return self.site.site.client()

    def email(self) -> Link:
        return last_link(self.site.service)

    def loses_password(self) -> None:
        with self.site.service.store.write() as tx:
            tx.change_user(self.user.id, password_hash=UNUSABLE)

    def logs_in(self, password: str = PASSWORD, email: str = ADA, **more: object) -> Client:
        client = self.client()
        client.login(email, password, **more)
        return client

    def signed_in(self) -> Client:
        client = self.logs_in()
        assert finish(client, code=self.phone.next_code()).status == 200
        return client


@pytest.fixture
def site(make_oauth_site: MakeOAuthSite) -> OAuthSite:
    return make_oauth_site(
        others={"corp": {"trusts_factors": True}, "work": {}},
        oauth_allow_auto_registration=True,
        whitelist=("/register",),
        trusted_proxies=HERE,
    )


@pytest.fixture
def ada(site: OAuthSite, clock: FakeClock) -> Account:
    user = site.proven()
    client = site.site.signed_in(user)
    phone = enrol(client, clock)
    assert client.delete("/api/users/session").status == 200
    clock.move(hours=1)
    return Account(site, clock, user, phone)


# --- all that a person can do without the factor ---


def by_password(ada: Account) -> Client:
    return ada.logs_in()


def by_password_to_stay_signed_in(ada: Account) -> Client:
    return ada.logs_in(rememberMe=True, rememberDevice=True)


def by_provider(ada: Account) -> Client:
    """Which links the account."""
    browser = ada.site.browser()
    browser.sign_in()
    return browser.client


def by_linked_provider(ada: Account) -> Client:
    link(ada.site.service, ada.user.id, "1001", ada.site.provider.issuer)
    return by_provider(ada)


def by_another_provider(ada: Account) -> Client:
    browser = ada.site.browser()
    browser.sign_in_at("work")
    return browser.client


def by_provider_twice_with_one_state(ada: Account) -> Client:
    browser = ada.site.browser()
    back = browser.consent(browser.set_out(), "1001")
    browser.callback(back)
    browser.callback(back)
    return browser.client


def by_invitation(ada: Account) -> Client:
    """Of an active account without a password."""
    ada.loses_password()
    ada.site.service.invitations.again([ada.user.id], WEEK, by=OPERATOR)
    link, client = ada.email(), ada.client()
    body = {"token": link.token, "email": link.email, "name": "Ada", "password": OTHER}
    client.post("/api/users/invite/accept", body)
    return client


def by_invitation_through_the_provider(ada: Account) -> Client:
    ada.loses_password()
    ada.site.service.invitations.again([ada.user.id], WEEK, by=OPERATOR)
    return by_provider(ada)


def by_reset(ada: Account) -> Client:
    assert resets(ada.site, forgets(ada.site, ADA)[-1]).status == 200
    return ada.logs_in(OTHER)


def by_reset_of_an_operator(ada: Account) -> Client:
    """`usersctl link reset`, `usersctl set-password`, `usersctl unlock`."""
    service = ada.site.service
    url = service.outbox.link(RESET, ada.user, by=OPERATOR)
    query = asked(url)
    assert resets(ada.site, Link(urlsplit(url).path, query["token"], query["email"])).status == 200
    service.accounts.set_password(ada.user.id, OTHER, by=OPERATOR)
    service.throttle.unlock(ada.user, OPERATOR)
    return ada.logs_in(OTHER)


def by_undone_deletion(ada: Account) -> Client:
    client = ada.signed_in()
    assert client.delete("/api/users/me", body={"password": PASSWORD}).status == 200
    link, client = ada.email(), ada.client()
    reply = client.post("/api/users/undo-deletion", {"token": link.token, "email": link.email})
    assert (reply.status, client.cookies) == (200, {})
    client.login(ADA, PASSWORD)
    return client


def by_activation(ada: Account) -> Client:
    for active in (False, True):
        ada.site.service.accounts.set_active([ada.user.id], active=active, by=OPERATOR)
    return ada.logs_in()


def by_new_address(ada: Account) -> Client:
    session = ada.signed_in()
    assert claim(session, "new@example.com").status == 200
    proof = links(ada.site, "new@example.com", "/confirm-new-email")[-1]
    client = ada.client()
    reply = prove(ada.site, proof)
    assert "Set-Cookie" not in dict(reply.headers)
    client.login("new@example.com", PASSWORD)
    return client


def by_this_was_not_me(ada: Account) -> Client:
    """The link of a notice ends sessions and the password, and no factor that it does not tell of; then a reset."""
    assert claim(ada.signed_in(), "new@example.com").status == 200
    assert not_me(ada.site, links(ada.site, ADA, "/not-me")[-1]).status == 200
    assert resets(ada.site, forgets(ada.site, ADA)[-1]).status == 200
    return ada.logs_in(OTHER)


def by_registration_of_the_same_address(ada: Account) -> Client:
    client = ada.client()
    client.post("/api/users/register", {"email": ADA, "name": "Ada", "password": OTHER})
    client.login(ADA, PASSWORD)
    return client


WAYS: list[Callable[[Account], Client]] = [
    by_password,
    by_password_to_stay_signed_in,
    by_provider,
    by_linked_provider,
    by_another_provider,
    by_provider_twice_with_one_state,
    by_invitation,
    by_invitation_through_the_provider,
    by_reset,
    by_reset_of_an_operator,
    by_undone_deletion,
    by_activation,
    by_new_address,
    by_this_was_not_me,
    by_registration_of_the_same_address,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: str(way.__name__))
def test_no_way_in_goes_around_the_factor(ada: Account, way: Callable[[Account], Client]) -> None:
    client = way(ada)
    pending = client.cookies[PENDING]
    assert is_shut_out(client, ada)
    # The cookie of the waiting sign-in opens nothing else, under whatever name.
    assert is_shut_out(Client(client.port, cookies={"auth_token": pending}), ada)
    assert is_shut_out(Client(client.port, headers={"Authorization": f"Bearer {pending}"}), ada)
    assert finish(client, code=ada.phone.wrong_code()).status == 401
    assert is_shut_out(client, ada)
    assert client.get(SECOND_STEP).json == {"methods": ["totp", "recovery"]}
    assert finish(client, code=ada.phone.next_code()).status == 200
    first = "provider:" if "provider" in way.__name__ else "pwd"
    verified = client.get(VERIFY)
    assert verified.header("Remote-User") == str(ada.user.id)
    assert str(verified.header("Remote-Auth")).startswith(first)
    assert str(verified.header("Remote-Auth")).endswith(" otp")


def is_shut_out(client: Client, ada: Account) -> bool:
    """Signed in to nothing, and Ada's factor is where it was."""
    with ada.site.service.store.read() as tx:
        user = tx.user(ada.user.id)
        assert user is not None
        assert user.factors == 1
        assert tx.count_recovery_codes(ada.user.id) == 10
    statuses = {client.get(path).status for path in ("/api/users/me", "/api/users/me/factors", VERIFY)}
    pages = {client.get(path).status for path in ("/account", "/", "/users")}
    return statuses == {401} and pages == {302}


def test_another_session_of_the_browser_stays_what_it_was_until_the_second_step(ada: Account) -> None:
    bob = ada.site.site.add("bob")
    client = ada.site.site.signed_in(bob)
    token = client.cookies["auth_token"]
    assert client.login(ADA, PASSWORD).message == "Second factor required"
    assert client.get("/api/users/me").json["user"]["id"] == bob.id
    assert finish(client, code=ada.phone.next_code()).json["user"]["id"] == ada.user.id
    assert ada.site.site.client(cookies={"auth_token": token}).get("/api/users/me").status == 401


# --- providers ---


def test_an_account_with_a_factor_and_an_address_that_was_never_proven_is_not_linked(ada: Account) -> None:
    """Also not by a provider that is trusted with second factors: the account may be another person's."""
    with ada.site.service.store.write() as tx:
        tx.change_user(ada.user.id, email_proven_at=None)
    for provider in ("oauth", "corp"):
        browser = ada.site.browser()
        assert error_of(browser.sign_in_at(provider)) == "oauth_failed"
        assert PENDING not in browser.client.cookies
        assert is_shut_out(browser.client, ada)
    assert finish(ada.logs_in(), code=ada.phone.next_code()).status == 200


def test_a_sign_in_through_a_provider_goes_on_after_the_second_step(ada: Account) -> None:
    browser = ada.site.browser()
    reply = browser.sign_in(query="?redirect=/page%3Fx%3D1")
    assert reply.header("Location") == "/second-factor?redirect=%2Fpage%3Fx%3D1"
    assert "oauth" not in [line["event"] for line in ada.site.site.log]
    waits = [line for line in ada.site.site.log if line["event"] == "oauth-waits"]
    assert [(line["user"], line["reason"]) for line in waits] == [(ada.user.id, "second_factor")]
    page = browser.client.get(str(reply.header("Location")))
    assert (page.status, b'data-then="/page?x=1"' in page.body) == (200, True)
    assert finish(browser.client, code=ada.phone.next_code()).status == 200
    again = browser.client.get(str(reply.header("Location")))
    assert (again.status, again.header("Location")) == (302, "/page?x=1")


def test_it_goes_on_at_another_origin_only_where_the_configuration_says(
    make_oauth_site: MakeOAuthSite, clock: FakeClock
) -> None:
    there = "https://app.example.com/start?x=1"
    site = make_oauth_site(oauth_success_redirect=there, allowed_origins=("https://app.example.com",))
    ada = site.site.signed_in(site.proven())
    phone = enrol(ada, clock)
    browser = site.browser()
    way = str(browser.sign_in().header("Location"))
    assert asked(way) == {"redirect": there}
    page = browser.client.get(way)
    assert page.body.count(there.encode()) == 0  # the script stays on this site
    assert finish(browser.client, code=phone.next_code()).status == 200
    assert browser.client.get(way).header("Location") == there
    for other in (
        "https://evil.example/",
        f"{there}2",
        "https://app.example.com/",
        "//app.example.com/start?x=1",
    ):
        reply = browser.client.get(f"/second-factor?redirect={other}")
        assert (reply.status, reply.header("Location")) == (302, "/"), other


def test_a_trusted_provider_spares_the_factor_and_opens_pages_that_need_two(ada: Account) -> None:
    browser = ada.site.browser()
    reply = browser.sign_in_at("corp")
    assert reply.header("Location") == "/"
    verified = browser.client.get(f"{VERIFY}?factors=2")
    assert (verified.status, verified.header("Remote-Auth")) == (200, "provider:corp")
    # It is no proof by the account's own factor, which changes of factors ask for.
    assert browser.client.delete("/api/users/me/totp").message == "Confirm that it is you"
    assert browser.client.post("/api/users/session/confirm", {"code": ada.phone.next_code()}).status == 200
    assert browser.client.delete("/api/users/me/totp").status == 200


def test_trust_in_one_provider_is_not_trust_in_another(ada: Account) -> None:
    """Also not for one that comes back at the callback of the trusted one."""
    browser = ada.site.browser()
    back = browser.consent(browser.set_out("?provider=work"), "1001")
    reply = browser.client.get(back.removeprefix(browser.base_url).replace("/work?", "/corp?"))
    assert error_of(reply) == "oauth_failed"
    assert browser.me() is None
    browser.sign_in_at("work")
    assert is_shut_out(browser.client, ada)


def test_a_session_that_is_not_fresh_by_the_factor_connects_no_provider(ada: Account) -> None:
    """Whoever has the session and the password would make a way in of their own."""
    session = ada.signed_in()
    ada.clock.move(minutes=11)
    assert session.post("/api/users/session/confirm", {"password": PASSWORD}).status in (400, 403)
    for reply in (
        session.post("/api/users/me/identities/corp", {}),
        session.delete("/api/users/me/identities/corp"),
    ):
        assert (reply.status, reply.message) == (403, "Confirm that it is you")


def test_a_link_ends_with_a_fresh_proof_as_it_began(ada: Account) -> None:
    session = ada.signed_in()
    ada.clock.move(minutes=6)
    there = session.post("/api/users/me/identities/corp", {}).json["url"]
    browser = Browser(ada.site.service.settings.base_url, session)
    back = browser.consent(there, "1001")
    ada.clock.move(minutes=6)
    assert browser.callback(back).header("Location") == "/account?error=oauth_failed"
    assert session.get("/api/users/me/identities").json == {"identities": []}


def test_the_callback_of_a_link_opens_no_session(ada: Account) -> None:
    session = ada.signed_in()
    there = session.post("/api/users/me/identities/corp", {}).json["url"]
    browser = Browser(ada.site.service.settings.base_url, session)
    back = browser.consent(there, "1001")
    session.cookies.pop("auth_token")
    reply = browser.callback(back)
    assert "error=oauth_failed" in str(reply.header("Location"))
    assert is_shut_out(session, ada)


# --- the gate, and the way in of the first admin ---


def test_the_login_of_the_gate_asks_for_the_factor(ada: Account) -> None:
    service = ada.site.service
    with hosting(Hosted(app=Gate(application, service, pages=True))) as port:
        client = Client(port)
        assert client.login(ADA, PASSWORD).message == "Second factor required"
        assert client.get("/page").header("Location") == "/login?redirect=/page"
        assert finish(client, code=ada.phone.next_code()).status == 200
        assert client.get("/page").json["user"]["auth"] == ["pwd", "otp"]


def test_the_set_up_link_makes_a_new_account_only(make_oauth_site: MakeOAuthSite, clock: FakeClock) -> None:
    site = make_oauth_site(second_factor="admins")
    user = site.site.add()
    enrol(site.site.signed_in(user), clock)
    link = site.service.first_admin.link()
    client, token = site.site.client(), asked(str(link))["token"]
    body = {"token": token, "email": ADA, "name": "Ada", "password": OTHER}
    assert client.post("/api/users/setup", body).status == 400
    assert client.cookies == {}
    # The admin that it makes has no factor yet, and must add one.
    reply = client.post("/api/users/setup", body | {"email": "root@example.com"})
    assert reply.status == 200
    assert client.login("root@example.com", OTHER).status == 200
    assert client.get("/api/users").message == "Second factor required"


# --- who must have a factor ---


def test_no_application_opens_to_a_user_who_must_add_a_factor_first(
    make_oauth_site: MakeOAuthSite, clock: FakeClock
) -> None:
    site = make_oauth_site(
        second_factor="everyone",
        whitelist=("/about",),
        trusted_proxies=HERE,
        others={"corp": {"trusts_factors": True}},
    )
    user = site.proven()
    client, thief = site.site.signed_in(user), site.site.signed_in(user)
    page = {"X-Forwarded-Uri": "/page", "X-Forwarded-Method": "GET"}
    for query in ("", "?factors=2", "?role=user"):
        reply = client.get(VERIFY + query, headers=page)
        assert (reply.status, reply.message) == (403, "Second factor required")
        assert reply.header("Location") == "/account?redirect=/page"
        assert reply.header("Remote-User") is None
        browser = client.get(VERIFY + query, headers=page | {"Sec-Fetch-Mode": "navigate"})
        assert (browser.status, browser.header("Location")) == (302, "/account?redirect=/page")
    public = client.get(VERIFY, headers=page | {"X-Forwarded-Uri": "/about"})
    assert (public.status, public.header("Remote-User"), public.header("Remote-Auth")) == (200, "", "")
    with hosting(Hosted(app=Gate(application, site.service))) as port:
        gated = Client(port, cookies=dict(client.cookies))
        assert [gated.get("/page").status, gated.post("/page").status] == [403, 403]
        reply = gated.get("/page", headers={"Sec-Fetch-Mode": "navigate"})
        assert (reply.status, reply.header("Location")) == (302, "/account?redirect=/page")
        assert gated.get("/about").json == {"user": None}
    # A provider that vouches for two factors is enough, for its session.
    trusted = site.browser()
    trusted.sign_in_at("corp")
    assert trusted.client.get(VERIFY, headers=page).status == 200
    assert client.get(VERIFY, headers=page).status == 403
    assert enrol(client, clock)
    assert client.get(f"{VERIFY}?factors=2", headers=page).status == 200
    # Another session, which began by the password alone, opens no more than before.
    assert thief.get("/api/users/me/sessions").message == "Second factor required"
    reply = thief.get(VERIFY, headers=page)
    assert (reply.status, reply.header("Location")) == (401, "/second-factor?redirect=/page")
    with hosting(Hosted(app=Gate(application, site.service))) as port:
        gated = Client(port, cookies=dict(thief.cookies))
        assert gated.get("/page").status == 403
        reply = gated.get("/page", headers={"Sec-Fetch-Mode": "navigate"})
        assert (reply.status, reply.header("Location")) == (302, "/second-factor?redirect=/page")
