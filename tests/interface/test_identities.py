"""The links of accounts to an identity provider: shown, disconnected, and bound to their issuer, over real HTTP."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.commands import OPERATOR, PASSWORD, Command
from support.daemons import serving
from support.identities import At, link, link_of
from support.oauth_site import GO, IDENTITIES, Browser, OAuthSite, error_of, oauth_site
from support.passkeys import ORIGIN, use_passkey, with_passkey
from support.postbox import last_link, sent
from support.tables import store_hash
from support.web import Site

from usersctl.models import UNUSABLE
from usersctl.service import Service

CONFIGURED = '[auth.oauth]\nclientId = "x"\nclientSecret = "y"\nissuer = "{}"\n'
HERE, ELSEWHERE = "https://id.example", "https://former.example"


@pytest.fixture
def site(make_service: Callable[..., Service]) -> Iterator[OAuthSite]:
    with oauth_site(make_service, oauth_allow_auto_registration=True) as running_site:
        yield running_site


@pytest.fixture
def browser(site: OAuthSite) -> Browser:
    return site.browser()


# --- shown and disconnected ---


def test_a_user_sees_and_disconnects_the_provider(site: OAuthSite, browser: Browser) -> None:
    user = site.proven()
    browser.sign_in()
    shown = browser.client.get(IDENTITIES).json
    (linked_at,) = [identity.pop("linked_at") for identity in shown["identities"]]
    assert shown == {"identities": [{"name": "oauth", "label": "127.0.0.1", "email": user.email}]}
    assert linked_at == (browser.me() or {})["last_login_at"]
    before = len(sent(site.service))
    assert browser.client.delete(f"{IDENTITIES}/oauth").json == {"success": True}
    assert browser.client.get(IDENTITIES).json == {"identities": []}
    assert (browser.me() or {})["oauth_id"] is None
    assert link_of(site.service, user.id) is None
    (notice,) = sent(site.service)[before:]
    assert (notice.to, last_link(site.service).path) == (user.email, "/not-me")
    with site.service.store.read() as tx:
        rows = [row for row in tx.audit_rows() if row.action == "unlink"]
    assert [(row.user_id, row.actor) for row in rows] == [(user.id, f"user:{user.id}")]


def test_a_sign_in_with_the_address_of_the_account_connects_it_again_and_the_email_says_so(
    site: OAuthSite, browser: Browser
) -> None:
    user = site.proven()
    browser.sign_in()
    linked = link_of(site.service, user.id)
    assert browser.client.delete(f"{IDENTITIES}/oauth").status == 200
    notice = " ".join(sent(site.service)[-1].parts[0].split())
    assert "then a sign-in with it connects it again" in notice
    again = site.browser()
    again.sign_in()
    assert ((again.me() or {})["id"], link_of(site.service, user.id)) == (user.id, linked)


def test_the_last_way_into_an_account_is_not_disconnected(site: OAuthSite, browser: Browser) -> None:
    browser.sign_in()
    me = browser.me() or {}
    reply = browser.client.delete(f"{IDENTITIES}/oauth")
    assert (reply.status, reply.message) == (
        400,
        "This is the only way into the account: set a password first",
    )
    assert (browser.me(), len(sent(site.service))) == (me, 0)
    site.service.accounts.set_password(me["id"], PASSWORD, by=OPERATOR)
    again = site.browser()
    again.sign_in()
    assert again.client.delete(f"{IDENTITIES}/oauth").status == 200


def test_a_provider_is_disconnected_if_a_passkey_is_another_way_in(make_site: Callable[..., Site]) -> None:
    configured = {"oauth_client_id": "x", "oauth_client_secret": "y", "oauth_issuer": HERE}
    here = make_site(base_url=ORIGIN, **configured)
    owner = here.add("ada")
    device = with_passkey(here.signed_in(owner)).device
    store_hash(here.service, owner, UNUSABLE)
    link(here.service, owner.id, "7", HERE)
    browser = here.client()
    assert use_passkey(browser, device).status == 200
    assert (
        'data-api="/api/users/me/identities/oauth" data-method="DELETE"'
        in browser.get("/account").body.decode()
    )
    assert browser.delete(f"{IDENTITIES}/oauth").json == {"success": True}
    assert use_passkey(here.client(), device).status == 200


def test_a_provider_that_is_linked_already_is_linked_to_no_other_account_there(
    site: OAuthSite, browser: Browser
) -> None:
    """Also not by a link that was begun in another tab before."""
    browser.client = site.site.signed_in(site.site.add("bob"))
    first, again, other = (browser.client.post(f"{IDENTITIES}/oauth", {}).json["url"] for _ in range(3))
    assert browser.callback(browser.consent(first, "1001")).header("Location") == "/account?linked=oauth"
    before = len(sent(site.service))
    reply = browser.client.post(f"{IDENTITIES}/oauth", {})
    assert (reply.status, reply.message) == (
        400,
        "This provider is linked already: disconnect it first",
    )
    assert browser.callback(browser.consent(again, "1001")).header("Location") == "/account?linked=oauth"
    reply = browser.callback(browser.consent(other, "1004"))
    assert reply.header("Location") == "/account?error=oauth_failed"
    assert [one["email"] for one in browser.client.get(IDENTITIES).json["identities"]] == ["ada@example.com"]
    assert len(sent(site.service)) == before
    with site.service.store.read() as tx:
        linked = [row for row in tx.audit_rows() if row.action == "link"]
    assert [row.details["email"] for row in linked] == ["ada@example.com"]


def test_sign_ins_that_wait_for_a_provider_leave_places_for_others(site: OAuthSite) -> None:
    """And give theirs back, also after a failure."""
    places, taken = site.service.sign_ins["oauth"].places, 0
    while places.acquire(blocking=False):
        taken += 1
    browser = site.browser()
    assert error_of(browser.client.get(GO)) == "oauth_failed"
    assert [line["why"] for line in site.site.log if line["event"] == "oauth-refused"] == [
        "too many sign-ins wait for oauth already"
    ]
    places.release()
    for _ in range(2):
        there = browser.set_out()
        assert error_of(browser.callback(browser.cancel(there))) == "oauth_failed"
        site.provider.people["1001"].email_verified = False
        assert error_of(browser.sign_in()) == "oauth_failed"
        site.provider.people["1001"].email_verified = True
        browser.sign_in()
        assert browser.me() is not None
    places.release(taken - 1)


def test_a_provider_that_is_not_linked_is_not_disconnected(site: OAuthSite, browser: Browser) -> None:
    client = site.site.signed_in(site.site.add("bea"))
    browser.sign_in()
    for caller, name in ((client, "oauth"), (browser.client, "other"), (browser.client, "OAUTH")):
        reply = caller.delete(f"{IDENTITIES}/{name}")
        assert (reply.status, reply.message) == (404, "No such provider is linked")
    assert client.get(IDENTITIES).json == {"identities": []}


@pytest.mark.parametrize("issuer", ["https://[", "https://\u2100.example", "no address"])
def test_a_link_whose_issuer_is_no_address_is_shown(site: OAuthSite, browser: Browser, issuer: str) -> None:
    """An import of an earlier version may have brought it."""
    browser.sign_in()
    link(site.service, (browser.me() or {})["id"], "7", issuer, provider="gone")
    shown = browser.client.get(IDENTITIES).json["identities"]
    assert [one["label"] for one in shown] == ["127.0.0.1", "Identity provider"]
    assert "Identity provider" in browser.client.get("/account").body.decode()


# --- bound to its issuer ---


def test_an_id_of_another_issuer_matches_no_account(site: OAuthSite, browser: Browser) -> None:
    """After a change of provider, the person who has the same id there is a stranger."""
    browser.sign_in()
    owner = browser.me() or {}
    link(site.service, owner["id"], "1001", ELSEWHERE)
    site.provider.people["1001"].email = "mallory@example.com"
    stranger = site.browser()
    stranger.sign_in()
    assert (stranger.me() or {})["id"] != owner["id"]
    assert link_of(site.service, owner["id"]) == ("1001", ELSEWHERE)


def test_a_link_at_a_former_provider_is_replaced_by_a_verified_address(
    site: OAuthSite, browser: Browser
) -> None:
    user = site.proven()
    browser.sign_in()
    link(site.service, user.id, "1001", ELSEWHERE)
    site.provider.people["9001"] = site.provider.people.pop("1001")
    site.provider.people["9001"].sub = "9001"
    before = len(sent(site.service))
    browser.sign_in("9001")
    assert link_of(site.service, user.id) == ("9001", site.provider.issuer)
    (notice,) = sent(site.service)[before:]
    assert notice.to == user.email
    assert site.site.client().login(user.email, PASSWORD).status == 200


def test_a_former_link_of_an_unproven_address_gives_its_holder_nothing(
    site: OAuthSite, browser: Browser
) -> None:
    user = site.site.add("ada")
    waiting = site.site.signed_in(user)
    link(site.service, user.id, "666", ELSEWHERE)
    browser.sign_in()
    assert link_of(site.service, user.id) == ("1001", site.provider.issuer)
    assert waiting.get("/api/users/me").status == 401
    assert waiting.login(user.email, PASSWORD).status == 401


def test_a_link_without_an_issuer_is_bound_by_the_same_person_and_replaced_by_no_other(
    site: OAuthSite, browser: Browser
) -> None:
    """After a restore of an old backup, until the next start."""
    user = site.proven()
    link(site.service, user.id, "666")
    assert error_of(browser.sign_in()) == "oauth_failed"
    assert link_of(site.service, user.id) == ("666", "")
    link(site.service, user.id, "1001")
    browser.sign_in()
    assert link_of(site.service, user.id) == ("1001", site.provider.issuer)


def test_another_id_of_the_same_issuer_replaces_no_link(site: OAuthSite, browser: Browser) -> None:
    browser.sign_in()
    site.provider.people["1004"].email = "ada@example.com"
    assert error_of(site.browser().sign_in("1004")) == "oauth_failed"


def test_the_log_of_a_refused_sign_in_names_the_provider_and_the_account(
    site: OAuthSite, browser: Browser
) -> None:
    browser.sign_in()
    user = browser.me() or {}
    site.provider.people["1004"].email = "ada@example.com"
    site.browser().sign_in("1004")
    site.browser().sign_in("1003")  # whose address is not verified, so nobody knows an account
    lines = [line for line in site.site.log if line["event"] == "oauth-refused"]
    assert [(line["provider"], line.get("account")) for line in lines] == [
        ("oauth", user["id"]),
        ("oauth", None),
    ]


def test_who_has_another_id_at_the_provider_now_is_told_the_way_in(site: OAuthSite, browser: Browser) -> None:
    browser.sign_in()
    del site.provider.people["1001"]
    site.provider.people["1004"].email = "ada@example.com"
    ada = site.browser()
    assert ada.sign_in("1004").header("Location") == "/login?error=oauth_failed"
    told = ada.client.get("/login?error=oauth_failed").body.decode()
    assert "set a new password by email first, and disconnect that one in your profile" in told
    ada.client.post("/api/users/password/forgot", {"email": "ada@example.com"})
    link = last_link(site.service, "ada@example.com")
    passwords = {"password": PASSWORD, "password_confirmation": PASSWORD}
    reset = {"token": link.token, "email": link.email} | passwords
    assert ada.client.post("/api/users/password/reset", reset).status == 200
    assert ada.client.login("ada@example.com", PASSWORD).status == 200
    assert ada.client.delete("/api/users/me/identities/oauth").status == 200
    assert ada.sign_in("1004").header("Location") == "/"


def test_who_has_nothing_to_prove_it_with_any_more_is_led_to_a_new_password(
    site: OAuthSite, browser: Browser
) -> None:
    browser.sign_in()
    site.service.accounts.update((browser.me() or {})["id"], unlink="oauth", by=OPERATOR)
    dialog = browser.client.get("/account").body.decode().partition('<dialog id="proof"')[2]
    dialog = dialog.partition("</dialog>")[0]
    assert "Set a password first." in dialog
    assert 'href="/forgot-password"' in dialog
    assert "sign in once more" not in dialog


# --- bound at the first start with a provider ---


def linked(service: Service, name: str, oauth_id: str, issuer: str) -> int:
    user = service.accounts.create(
        service.accounts.newcomer(f"{name}@example.com", name.title()), PASSWORD, by=OPERATOR
    )
    link(service, user.id, oauth_id, issuer)
    return user.id


def link_all(usersctl: Command, **accounts: At) -> None:
    """Accounts by their names, each with its id at a provider."""
    with usersctl.service() as service:
        for name, (oauth_id, issuer) in accounts.items():
            linked(service, name, oauth_id, issuer)


def links(usersctl: Command) -> dict[str, Any]:
    with usersctl.service() as service:
        with service.store.read() as tx:
            users = [credentials.user for credentials in tx.all_credentials()]
        return {user.email: link_of(service, user.id) for user in users}


@pytest.mark.slow
def test_the_first_start_with_a_provider_binds_the_links_that_have_none(usersctl: Command) -> None:
    usersctl.configure(CONFIGURED.format(HERE))
    # The id of dan is that of another account there: it is never bound.
    link_all(usersctl, ada=("7", ""), bea=("8", ELSEWHERE), cyd=("9", HERE), dan=("9", ""))
    with serving(usersctl) as daemon:
        messages = [line["message"] for line in daemon.events("provider-links")]
        assert daemon.stop() == 0
    assert messages == [
        f"1 account bound to {HERE}",
        f"2 accounts linked at another provider than {HERE}; see: usersctl doctor",
    ]
    expected = {
        "ada@example.com": ("7", HERE),
        "bea@example.com": ("8", ELSEWHERE),
        "cyd@example.com": ("9", HERE),
        "dan@example.com": ("9", ""),
    }
    assert links(usersctl) == expected
    usersctl.configure(CONFIGURED.format("https://next.example"))
    with serving(usersctl) as daemon:
        assert "another provider" in daemon.events("provider-links")[-1]["message"]
    assert links(usersctl)["ada@example.com"] == ("7", HERE)


def test_a_slash_at_the_end_of_the_issuer_that_is_set_right_keeps_the_links(usersctl: Command) -> None:
    for before, after in ((f"{HERE}/", HERE), (HERE, f"{HERE}/")):
        with usersctl.service() as service:
            service.accounts.delete([1], if_exists=True, by=OPERATOR)
            user_id = linked(service, "ada", "7", before)
        usersctl.configure(CONFIGURED.format(after))
        with serving(usersctl) as daemon:
            assert daemon.events("provider-links")[-1]["message"] == f"1 account bound to {after}"
        with usersctl.service() as service:
            assert link_of(service, user_id) == ("7", after)


def test_a_start_without_a_provider_binds_nothing(usersctl: Command) -> None:
    with usersctl.service() as service:
        linked(service, "ada", "7", "")
    with serving(usersctl) as daemon:
        assert daemon.events("provider-links") == []
    assert links(usersctl) == {"ada@example.com": ("7", "")}


def test_doctor_tells_of_links_to_another_provider(usersctl: Command) -> None:
    usersctl.configure(CONFIGURED.format(HERE))
    with usersctl.service() as service:
        linked(service, "ada", "7", "")
    findings = {finding["code"]: finding for finding in usersctl("doctor", "--json").json["findings"]}
    assert findings["provider-links"]["severity"] == "hint"
    with usersctl.service() as service:
        linked(service, "bea", "8", ELSEWHERE)
    findings = {finding["code"]: finding for finding in usersctl("doctor", "--json").json["findings"]}
    assert findings["provider-links"]["severity"] == "warning"
    assert f"1 at {ELSEWHERE}" in findings["provider-links"]["message"]


def test_an_import_binds_ids_to_the_configured_provider(usersctl: Command) -> None:
    rows = "email,oauth_id\nada@example.com,7\n"
    usersctl.ok("import", "-", "--format", "csv", stdin=rows)
    assert links(usersctl) == {"ada@example.com": ("7", "")}
    usersctl.configure(CONFIGURED.format(HERE))
    # An id that no daemon has bound yet belongs to one account all the same.
    assert usersctl("import", "-", "--format", "csv", stdin="email,oauth_id\nbea@example.com,7\n").code == 4
    usersctl.ok("import", "-", "--format", "csv", "--on-conflict", "update", stdin=rows)
    assert links(usersctl) == {"ada@example.com": ("7", HERE)}
    usersctl.configure(CONFIGURED.format("https://next.example"))
    usersctl.ok("import", "-", "--format", "csv", "--on-conflict", "update", stdin=rows)
    assert links(usersctl) == {"ada@example.com": ("7", HERE)}  # an old export makes no new link
    usersctl.ok("import", "-", "--format", "csv", stdin="email,oauth_id\nbea@example.com,7\n")
    assert links(usersctl)["bea@example.com"] == ("7", "https://next.example")


def test_an_export_keeps_the_issuers_of_ids(usersctl: Command) -> None:
    usersctl.configure(CONFIGURED.format(HERE))
    link_all(usersctl, ada=("7", ELSEWHERE), bea=("7", HERE), cyd=("8", ""))
    exported = usersctl.ok("export", "-", "--format", "csv").stdout
    (folder := usersctl.folder / "next").mkdir()
    usersctl = Command(folder)
    usersctl.configure(CONFIGURED.format(HERE))
    usersctl.ok("import", "-", "--format", "csv", stdin=exported)
    assert links(usersctl) == {
        "ada@example.com": ("7", ELSEWHERE),
        "bea@example.com": ("7", HERE),
        "cyd@example.com": ("8", HERE),
    }
    assert ELSEWHERE in usersctl.ok("show", "ada@example.com").stdout
    usersctl.ok("import", "-", "--on-conflict", "update", stdin=exported)
    assert links(usersctl)["ada@example.com"] == ("7", ELSEWHERE)
    # The provider has another name, and the same people.
    renamed = exported.replace(ELSEWHERE, "https://renamed.example")
    usersctl.ok("import", "-", "--on-conflict", "update", stdin=renamed)
    assert links(usersctl)["ada@example.com"] == ("7", "https://renamed.example")
    odd = usersctl("import", "-", stdin="email,oauth_id,oauth_issuer\ndan@example.com,9,elsewhere\n")
    assert (odd.code, "oauth_issuer 'elsewhere' is no web address" in odd.stderr) == (2, True)
