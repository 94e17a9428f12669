"""An address that a stranger registered: its owner, an admin, an import and the cleanup take it back."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from support import identities
from support.addresses import (
    OTHER,
    add,
    address_site,
    audit,
    confirms,
    forgets,
    imports,
    links,
    provider,
    refused,
    registers,
    resets,
    sign_in,
)
from support.commands import OPERATOR, PASSWORD
from support.fakes import FakeClock
from support.oauth_site import OAuthSite, error_of
from support.postbox import sent

from usersctl.models import SYSTEM, Role
from usersctl.service import Service


@pytest.fixture
def site(make_service: Callable[..., Service]) -> Iterator[OAuthSite]:
    with address_site(make_service) as site:
        yield site


def test_a_strangers_password_never_works_once_the_owner_came_by_provider(site: OAuthSite) -> None:
    assert registers(site, "ada@example.com", "a stranger knows this").status == 200
    browser = site.browser()
    assert error_of(browser.sign_in("1001")) == "account_inactive"
    assert confirms(site, "ada@example.com").status == 200
    assert refused(site, "ada@example.com", "a stranger knows this")
    linked = provider(site, "1001").me()
    assert linked is not None
    assert linked["oauth_id"] == "1001"
    assert refused(site, "ada@example.com", "a stranger knows this")


def test_the_owner_who_comes_by_provider_a_day_after_a_strangers_registration_gets_an_account(
    site: OAuthSite, clock: FakeClock
) -> None:
    assert registers(site, "ada@example.com", "a stranger knows this").status == 200
    clock.move(hours=24)
    ada = provider(site, "1001").me()
    assert ada is not None
    assert (ada["email"], ada["oauth_id"]) == ("ada@example.com", "1001")
    assert refused(site, "ada@example.com", "a stranger knows this")


def test_an_account_that_an_admin_deactivated_keeps_its_password_at_a_provider_sign_in(
    site: OAuthSite,
) -> None:
    ada = add(site, active=False)
    assert error_of(site.browser().sign_in("1001")) == "account_inactive"
    site.service.accounts.set_active([ada.id], active=True, by=OPERATOR)
    assert sign_in(site, "ada@example.com")


def test_a_registration_with_an_id_of_the_provider_loses_its_password_when_the_owner_comes(
    site: OAuthSite,
) -> None:
    assert registers(site, "ada@example.com", OTHER).status == 200
    user = site.service.accounts.find("ada@example.com")
    identities.link(site.service, user.id, "1001", site.provider.issuer)
    assert error_of(site.browser().sign_in()) == "account_inactive"
    assert confirms(site, "ada@example.com").status == 200
    assert refused(site, "ada@example.com", OTHER)


def test_an_unconfirmed_registration_gives_way_when_its_email_has_expired(
    site: OAuthSite, clock: FakeClock
) -> None:
    assert registers(site, "ada@example.com", "a stranger knows this").status == 200
    former = links(site, "ada@example.com", "/confirm-email")[-1]
    clock.move(hours=23, minutes=59)
    assert registers(site, "ada@example.com").status == 400
    clock.move(minutes=1)
    assert registers(site, "ada@example.com").status == 200
    path = f"/api/users/confirm-email?token={former.token}&email={former.email}"
    assert site.site.client().get(path).status == 400
    assert confirms(site, "ada@example.com").status == 200
    assert sign_in(site, "ada@example.com")
    assert "registration-expired" in audit(site)


def test_links_that_are_asked_for_keep_a_registration_but_not_longer_than_a_week(
    site: OAuthSite, clock: FakeClock
) -> None:
    assert registers(site, "ada@example.com").status == 200
    for _ in range(7):
        clock.move(hours=23)
        assert (
            site.site.client().post("/api/users/register/resend", {"email": "ada@example.com"}).status == 200
        )
        sent(site.service, "ada@example.com")
        clock.move(hours=0.5)
        assert registers(site, "ada@example.com", OTHER).status == 400
    clock.move(hours=4)
    assert registers(site, "ada@example.com", OTHER).status == 200


def test_the_cleanup_removes_a_registration_that_was_not_confirmed(site: OAuthSite, clock: FakeClock) -> None:
    assert registers(site, "ada@example.com").status == 200
    kept = add(site, "kept", active=False)
    clock.move(days=29, hours=23)
    site.service.cleaner.run(by=SYSTEM)
    assert site.service.accounts.find("ada@example.com")
    clock.move(hours=1)
    assert site.service.cleaner.run(by=SYSTEM).accounts == 1
    with site.service.store.read() as tx:
        assert tx.user_by_email("ada@example.com") is None
        assert tx.user(kept.id) is not None  # an admin made it inactive
    assert "registration-expired" in audit(site)


def test_zero_days_keep_unconfirmed_registrations(
    make_service: Callable[..., Service], clock: FakeClock
) -> None:
    service = make_service(unconfirmed_expiration=timedelta(0))
    service.registration.register("ada@example.com", "Ada", PASSWORD, by=SYSTEM)
    clock.move(days=400)
    service.cleaner.run(by=SYSTEM)
    assert service.accounts.find("ada@example.com")


@pytest.mark.parametrize(
    "row", [{"confirmed": "true"}, {"active": "true"}, {"role": "admin"}, {"groups": "staff"}], ids=str
)
def test_an_import_over_a_strangers_registration_ends_the_strangers_password(
    site: OAuthSite, row: dict[str, str]
) -> None:
    site.service.groups.create("staff", by=OPERATOR)
    assert registers(site, "ada@example.com", OTHER).status == 200
    imports(site, email="ada@example.com", **row)
    if "role" in row or "groups" in row:
        assert (
            site.site.client().post("/api/users/register/resend", {"email": "ada@example.com"}).status == 200
        )
        assert confirms(site, "ada@example.com").status == 200
    assert refused(site, "ada@example.com", OTHER)
    (link,) = forgets(site, "ada@example.com")
    assert resets(site, link, PASSWORD).status == 200
    sign_in(site, "ada@example.com")


def test_an_import_that_changes_nothing_of_a_registration_leaves_its_password_and_its_link(
    site: OAuthSite,
) -> None:
    assert registers(site, "ada@example.com", OTHER).status == 200
    imports(site, email="ada@example.com", active="false")
    assert confirms(site, "ada@example.com").status == 200
    sign_in(site, "ada@example.com", OTHER)


@pytest.mark.parametrize("right", ["role", "group"])
def test_rights_given_to_a_strangers_registration_come_to_the_reader_of_the_address(
    site: OAuthSite, right: str
) -> None:
    assert registers(site, "ada@example.com", OTHER).status == 200
    ada = site.service.accounts.find("ada@example.com")
    if right == "role":
        site.service.accounts.update(ada.id, role=Role.ADMIN, by=OPERATOR)
    else:
        site.service.groups.create("staff", by=OPERATOR)
        site.service.groups.add("staff", [ada.id], by=OPERATOR)
    confirmed = confirms(site, "ada@example.com")
    assert confirmed.json["message"].endswith(
        ". Set a password with the link in the email that is on its way to you"
    )
    assert refused(site, "ada@example.com", OTHER)
    assert resets(site, links(site, "ada@example.com", "/reset-password")[-1], PASSWORD).status == 200
    assert sign_in(site, "ada@example.com").get("/api/users/me").json["user"]["id"] == ada.id


def test_a_stranger_who_asks_for_many_reset_emails_keeps_the_one_of_the_confirmation_from_nobody(
    site: OAuthSite,
) -> None:
    assert registers(site, "ada@example.com", OTHER).status == 200
    ada = site.service.accounts.find("ada@example.com")
    site.service.accounts.update(ada.id, role=Role.ADMIN, by=OPERATOR)
    asked = [forgets(site, "ada@example.com") for _ in range(4)]
    assert [len(links) for links in asked] == [1, 1, 1, 0]
    assert confirms(site, "ada@example.com").status == 200
    assert resets(site, links(site, "ada@example.com", "/reset-password")[-1], PASSWORD).status == 200


def test_a_password_set_by_an_email_before_the_confirmation_stays(site: OAuthSite) -> None:
    assert registers(site, "ada@example.com", OTHER).status == 200
    ada = site.service.accounts.find("ada@example.com")
    site.service.accounts.update(ada.id, role=Role.ADMIN, by=OPERATOR)
    (link,) = forgets(site, "ada@example.com")
    assert resets(site, link, PASSWORD).status == 200
    assert site.site.client().post("/api/users/register/resend", {"email": "ada@example.com"}).status == 200
    confirmed = confirms(site, "ada@example.com")
    assert confirmed.json["message"].endswith("You can sign in now")
    sign_in(site, "ada@example.com")


def test_an_import_over_a_lapsed_registration_makes_a_new_account(site: OAuthSite, clock: FakeClock) -> None:
    assert registers(site, "ada@example.com", OTHER).status == 200
    clock.move(hours=24)
    imports(site, email="ada@example.com", name="Ada")
    assert refused(site, "ada@example.com", OTHER)


def test_the_admin_of_the_environment_takes_the_place_of_a_strangers_registration(
    site: OAuthSite, tmp_path: Path
) -> None:
    assert registers(site, "root@example.com", OTHER).status == 200
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    env = {"USERS_ADMIN_EMAIL": "root@example.com", "USERS_ADMIN_PASSWORD_FILE": str(file)}
    admin = site.service.first_admin.from_environment(env)
    assert admin is not None
    assert (admin.role, admin.active) == (Role.ADMIN, True)
    assert refused(site, "root@example.com", OTHER)
    sign_in(site, "root@example.com")
    assert site.service.first_admin.from_environment(env) is None
