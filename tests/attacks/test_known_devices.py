"""The cookie by which a browser is known to an account: who gets one, what ends it, and forgeries of it."""

from collections.abc import Callable

import pytest
from support.commands import OPERATOR, PASSWORD
from support.devices import WITHOUT_CLIENT_LIMIT, change_password, device_of, fail
from support.fakes import FakeClock
from support.oauth_site import oauth_site
from support.web import DEVICE, Site, refusal_of, running

from usersctl.devices import PURPOSE
from usersctl.mail.kinds import PASSWORD_CHANGED, RESET, Kind
from usersctl.models import User
from usersctl.secrets import new_key, sign
from usersctl.service import Service
from usersctl.store.signing_keys import COOKIES


def test_a_browser_stays_known_to_the_five_accounts_that_signed_in_last(unlimited: Site) -> None:
    site = unlimited
    users = [site.add(f"user{number}") for number in range(6)]
    client = site.client()
    for user in users:
        assert client.login(user.email, PASSWORD).status == 200
    known = {DEVICE: client.cookies[DEVICE]}
    for user in users:
        fail(site.client(), user, 10)
    statuses = [site.client(cookies=dict(known)).login(user.email, PASSWORD).status for user in users]
    assert statuses == [429] + [200] * 5


def test_a_sign_in_through_the_provider_makes_a_device_known(
    make_service: Callable[..., Service], clock: FakeClock
) -> None:
    limits = WITHOUT_CLIENT_LIMIT | {"oauth_allow_auto_registration": True}
    with oauth_site(make_service, **limits) as site:
        browser = site.browser()
        assert browser.sign_in().header("Location") == "/"
        user = site.service.accounts.find((browser.me() or {})["email"])
        clock.move(seconds=1)
        site.service.accounts.set_password(user.id, PASSWORD, by=OPERATOR)
        known = site.site.client(cookies={DEVICE: browser.client.cookies[DEVICE]})
        fail(site.site.client(), user, 10)
        assert known.login(user.email, PASSWORD).status == 429, "a new password ends it"
        browser.sign_in()
        known = site.site.client(cookies={DEVICE: browser.client.cookies[DEVICE]})
        assert known.login(user.email, PASSWORD).status == 200


def test_the_end_of_all_other_sessions_leaves_only_this_device_known(
    unlimited: Site, clock: FakeClock
) -> None:
    site, ada = unlimited, unlimited.add()
    other, session = device_of(site, ada), site.signed_in(ada)
    clock.move(seconds=1)
    assert session.post("/api/users/me/sessions/end-others").status == 200
    fail(site.client(), ada, 10)
    assert other.login(ada.email, PASSWORD).status == 429
    assert site.client(cookies={DEVICE: session.cookies[DEVICE]}).login(ada.email, PASSWORD).status == 200


def resigned(cookie: str, key: bytes, purpose: str = PURPOSE) -> str:
    return sign(key, purpose, cookie.rpartition(".")[0])


FORGERIES: dict[str, Callable[[Site, User, str], str]] = {
    "none": lambda _site, _ada, _cookie: "",
    "nonsense": lambda _site, _ada, _cookie: "1~x~2026-11-20T08:22:19.123Z",
    "separators": lambda _site, _ada, _cookie: "~/~/~.~",
    "unsigned": lambda _site, _ada, cookie: cookie.rpartition(".")[0] + ".",
    "cut": lambda _site, _ada, cookie: cookie[:-1],
    "later": lambda _site, _ada, cookie: cookie.replace("2026", "2027"),
    "of another account": lambda site, _ada, _cookie: device_of(site, site.add("eve")).cookies[DEVICE],
    "for another account": lambda site, ada, _cookie: (
        device_of(site, site.add("eve")).cookies[DEVICE].replace("2~", f"{ada.id}~", 1)
    ),
    "with another key": lambda _site, _ada, cookie: resigned(cookie, new_key()),
    "for another purpose": lambda site, _ada, cookie: resigned(
        cookie, site.service.store.signing_key(COOKIES), "oauth"
    ),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_or_foreign_device_is_a_stranger(unlimited: Site, forgery: str) -> None:
    site, ada = unlimited, unlimited.add()
    cookie = device_of(site, ada).cookies[DEVICE]
    forged = site.client(cookies={DEVICE: FORGERIES[forgery](site, ada, cookie)})
    fail(site.client(), ada, 10)
    assert refusal_of(forged.login(ada.email, PASSWORD)) == refusal_of(
        site.client().login(ada.email, PASSWORD)
    )
    assert forged.login(ada.email, PASSWORD).status == 429


def token_for(site: Site, user: User, kind: Kind) -> str:
    link = site.service.outbox.link(kind, user, by=OPERATOR)
    return link.partition("token=")[2].partition("&")[0]


REVOCATIONS: dict[str, Callable[[Site, User], object]] = {
    "a password set by an operator": lambda site, ada: site.service.accounts.set_password(
        ada.id, PASSWORD, by=OPERATOR
    ),
    "a deactivation": lambda site, ada: [
        site.service.accounts.set_active([ada.id], active=active, by=OPERATOR) for active in (False, True)
    ],
    "the end of all sessions": lambda site, ada: site.service.sessions.revoke_all([ada.id], by=OPERATOR),
    "a reset": lambda site, ada: site.client().post(
        "/api/users/password/reset",
        {
            "token": token_for(site, ada, RESET),
            "email": ada.email,
            "password": PASSWORD,
            "password_confirmation": PASSWORD,
        },
    ),
    "this wasn't me": lambda site, ada: site.client().post(
        "/api/users/not-me", {"token": token_for(site, ada, PASSWORD_CHANGED), "email": ada.email}
    ),
    "a change of the password elsewhere": lambda site, ada: change_password(site.signed_in(ada), PASSWORD),
    "a restored backup": lambda site, _ada: without_keys(site.service),
}


def without_keys(service: Service) -> None:
    with service.store.write() as tx:
        tx.delete_signing_keys()


@pytest.mark.parametrize("revocation", REVOCATIONS)
def test_a_thief_s_device_is_a_stranger_after(unlimited: Site, clock: FakeClock, revocation: str) -> None:
    site, ada = unlimited, unlimited.add()
    device = device_of(site, ada)
    clock.move(seconds=1)
    REVOCATIONS[revocation](site, ada)
    assert fail(site.client(), ada, 10) == [401] * 10
    assert device.login(ada.email, PASSWORD).status == 429


def test_a_device_is_known_for_a_year(unlimited: Site, clock: FakeClock) -> None:
    site, ada = unlimited, unlimited.add()
    device = device_of(site, ada)
    fail(site.client(), ada, 80)
    clock.move(days=364, hours=23)
    while fail(site.client(), ada) == [401]:
        clock.move(seconds=1)
    assert fail(device, ada) == [401]
    clock.move(hours=2)
    while fail(site.client(), ada) == [401]:
        pass
    assert fail(device, ada) == [429]


def test_a_change_of_the_password_keeps_this_device_known(unlimited: Site, clock: FakeClock) -> None:
    site, ada = unlimited, unlimited.add()
    session = site.signed_in(ada)
    clock.move(seconds=1)
    assert change_password(session, PASSWORD) == 200
    fail(site.client(), ada, 10)
    device = site.client(cookies={DEVICE: session.cookies[DEVICE]})
    assert device.login(ada.email, "another sentence").status == 200


def test_the_cookie_of_a_device_is_out_of_reach_of_scripts_and_other_sites(
    make_service: Callable[..., Service],
) -> None:
    with running(make_service()) as site:
        ada = site.add()
        (cookie,) = (
            text for text in site.client().login(ada.email, PASSWORD).all("Set-Cookie") if DEVICE in text
        )
        assert cookie.partition("; ")[2] == "Path=/; HttpOnly; SameSite=Lax; Max-Age=31536000"
    with running(make_service(base_url="https://users.example")) as site:
        cookies = site.client().login(ada.email, PASSWORD).all("Set-Cookie")
        (cookie,) = (text for text in cookies if DEVICE in text)
        assert cookie.startswith(f"__Host-{DEVICE}=")
        assert cookie.partition("; ")[2] == "Path=/; HttpOnly; SameSite=Lax; Secure; Max-Age=31536000"


def test_the_cookie_of_a_device_is_not_logged(unlimited: Site) -> None:
    site, ada = unlimited, unlimited.add()
    device = device_of(site, ada)
    cookie = device.cookies[DEVICE]
    fail(device, ada, 11)
    for path in ("/", "/api/users/me", "/login", "/nowhere"):
        device.get(path)
        assert site.log[-1]["path"] == path
    assert cookie.rpartition(".")[2] not in site.stream.getvalue()
    assert cookie.split("~")[1] not in site.stream.getvalue()
