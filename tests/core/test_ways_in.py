"""Ways in: what opens a session of an account, and what only looks so."""

from collections.abc import Callable

import pytest
from support.commands import PASSWORD, create_user
from support.factors import add_authenticator_apps, store_passkey
from support.identities import link
from support.tables import statements, store_hash

from usersctl.models import User
from usersctl.service import Service
from usersctl.ways_in import Way, ways_into, ways_into_each

ISSUER = "https://id.example"


@pytest.fixture
def here(make_service: Callable[..., Service]) -> Service:
    """At an address with a name, and with a provider."""
    return make_service(
        base_url="https://accounts.example",
        oauth_client_id="c",
        oauth_client_secret="s",
        oauth_issuer=ISSUER,
    )


def account(service: Service, name: str = "ada", password: str | None = None) -> User:
    return create_user(service, f"{name}@example.com", name, password)


def ways(service: Service, user: User, *, but: str | None = None, **changes: str) -> set[Way]:
    with service.store.read() as tx:
        return ways_into(tx, service.settings._replace(**changes), user.id, but=but)


def give_passkey(service: Service, user: User, rp_id: str) -> None:
    with service.store.write() as tx:
        store_passkey(tx, user.id, f"{user.id} at {rp_id}", rp_id=rp_id)


def test_a_password_that_may_be_right_is_a_way_in(here: Service) -> None:
    ada = account(here, password=PASSWORD)
    assert ways(here, ada) == {Way.PASSWORD}
    store_hash(here, ada, "of another system, and of no known kind")
    assert ways(here, ada) == set()


def test_a_link_is_a_way_in_while_its_provider_is_configured(here: Service) -> None:
    ada = account(here)
    link(here, ada.id, "7", "https://former.example")
    link(here, ada.id, "8", "https://gone.example", provider="gone")
    assert ways(here, ada) == set()
    link(here, ada.id, "7", ISSUER)
    assert ways(here, ada) == {Way.PROVIDER}
    assert ways(here, ada, oauth_client_id="") == set()
    assert ways(here, ada, but="gone") == {Way.PROVIDER}
    assert ways(here, ada, but="oauth") == set()


def test_a_passkey_is_a_way_in_at_the_host_that_it_was_made_for(here: Service) -> None:
    ada = account(here)
    give_passkey(here, ada, "former.example")
    assert ways(here, ada) == set()
    give_passkey(here, ada, "accounts.example")
    assert ways(here, ada) == {Way.PASSKEY}
    assert ways(here, ada, base_url="https://accounts.example:8443") == {Way.PASSKEY}
    assert ways(here, ada, base_url="https://192.0.2.1") == set()


def test_an_authenticator_app_is_no_way_in(here: Service) -> None:
    ada = account(here)
    add_authenticator_apps(here, ada.id)
    assert ways(here, ada) == set()


def test_many_accounts_share_their_statements(here: Service) -> None:
    users = [account(here, f"u{number}") for number in range(8)]
    link(here, users[1].id, "7", ISSUER)
    link(here, users[2].id, "8", ISSUER)
    give_passkey(here, users[2], "accounts.example")
    store_hash(here, users[3], "$2b$04$" + "a" * 53)
    with statements(here) as run, here.store.read() as tx:
        found = ways_into_each(tx, here.settings, [user.id for user in users])
        assert ways_into_each(tx, here.settings, []) == {}
    assert [found[user.id] for user in users] == [
        set(),
        {Way.PROVIDER},
        {Way.PROVIDER, Way.PASSKEY},
        {Way.PASSWORD},
        *[set()] * 4,
    ]
    assert sum(" IN (" in statement for statement in run) == 3
