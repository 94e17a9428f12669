"""why: the gates in order, the first shut one, and the command that opens it."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from support.commands import OPERATOR, PASSWORD, Command, create_user
from support.factors import add_authenticator_apps, add_factors, store_passkey
from support.fakes import FakeClock
from support.identities import link, provider_settings
from support.postbox import send_all
from support.tables import statements

from usersctl.errors import UsersError
from usersctl.invitations import guest
from usersctl.models import OAUTH, Actor, Client, EmailState, User
from usersctl.oauth.providers import Profile
from usersctl.service import Service
from usersctl.why import Cause, Explanation, Gate, Why

ORDER = [
    "lockdown",
    "exists",
    "active",
    "confirmed",
    "throttled",
    "password",
    "provider",
    "second-factor",
    "letter",
    "sessions",
]
PROVIDER = {"oauth_client_id": "c", "oauth_client_secret": "s", "oauth_issuer": "https://id.example.com"}


def explained(service: Service, subject: User | str, **changes: Any) -> Explanation:
    settings = service.settings._replace(**changes)
    reference = subject if isinstance(subject, str) else str(subject.id)
    return Why(service.store, service.throttle, settings, service.sealer).explain(reference)


def gate(explanation: Explanation, name: str) -> Gate:
    (only,) = [gate for gate in explanation.gates if gate.name == name]
    return only


def stopped_by(explanation: Explanation) -> tuple[str, str | None] | None:
    return (explanation.shut.name, explanation.shut.mend) if explanation.shut else None


def test_a_user_who_can_sign_in_has_no_shut_gate(service: Service, add: Callable[..., User]) -> None:
    explanation = explained(service, add())
    assert [gate.name for gate in explanation.gates] == ORDER
    assert explanation.shut is None
    service.sessions.login("ada@example.com", PASSWORD)
    assert gate(explained(service, "ADA@example.com"), "sessions").message.startswith("1 open, 0 API tokens")


@pytest.mark.sqlite  # the key of a server is configured
def test_a_second_factor_is_no_obstacle_while_it_can_be_used(
    service: Service, add: Callable[..., User]
) -> None:
    ada = add()
    assert gate(explained(service, ada), "second-factor").message == "none, and none is asked for"
    add_factors(service, ada.id, rp_id="127.0.0.1")
    explanation = explained(service, ada)
    asked = "asked for after the password: authenticator app, 2 passkeys, 10 recovery codes"
    assert explanation.shut is None
    assert gate(explanation, "second-factor").message == asked
    assert gate(explanation, "second-factor").mend == f"if all are lost: usersctl factor reset {ada.id}"
    service.sealer.file.path.unlink()
    message = gate(explained(service, ada, base_url="https://id.example.com"), "second-factor").message
    assert message == (
        "asked for after the password: 10 recovery codes; the key that opens the secret of the authenticator app is"
        " missing; 2 passkeys made for another address than id.example.com"
    )


@pytest.mark.sqlite  # the key of a server is configured
def test_an_account_whose_factors_cannot_be_used_is_reset(service: Service, add: Callable[..., User]) -> None:
    ada = add()
    add_authenticator_apps(service, ada.id)
    service.sealer.file.path.unlink()
    explanation = explained(service, ada)
    assert stopped_by(explanation) == ("second-factor", f"usersctl factor reset {ada.id}")
    assert [finding.cause for finding in explanation.findings] == [Cause.NO_USABLE_FACTOR]


def test_an_account_that_must_have_a_factor_and_has_none_must_enrol(
    service: Service, add: Callable[..., User]
) -> None:
    ada, bob = add("ada", role="admin"), add("bob")
    for policy, needy in (("admins", [ada]), ("everyone", [ada, bob]), ("off", []), ("optional", [])):
        for user in (ada, bob):
            findings = explained(service, user, second_factor=policy).findings
            assert [finding.cause for finding in findings] == [Cause.MUST_ENROL] * (user in needy)


def test_an_app_that_too_many_wrong_codes_closed_is_unlocked(
    service: Service, add: Callable[..., User]
) -> None:
    ada = add()
    add_authenticator_apps(service, ada.id)
    with service.store.write() as tx:
        for _ in range(100):
            tx.count_code(ada.id)
    assert stopped_by(explained(service, ada)) == ("second-factor", f"usersctl unlock {ada.id}")
    assert service.throttle.unlock(ada, OPERATOR)
    assert stopped_by(explained(service, ada)) is None


def test_wrong_codes_count_among_the_failed_logins(service: Service, add: Callable[..., User]) -> None:
    ada = add()
    assert gate(explained(service, ada), "throttled").message == "no; 0 failed logins in a row"
    add_authenticator_apps(service, ada.id)
    message = gate(explained(service, ada), "throttled").message
    assert message == "no; 0 failed logins and wrong codes in a row"


def test_a_deactivated_user_is_activated_by_an_operator(service: Service, add: Callable[..., User]) -> None:
    ada = add(active=False)
    assert stopped_by(explained(service, ada)) == ("active", f"usersctl activate {ada.id}")


def test_a_registered_user_has_to_confirm(service: Service, clock: FakeClock) -> None:
    eve = service.registration.register("eve@example.com", "Eve", PASSWORD, by=OPERATOR)
    explanation = explained(service, eve, whitelist=("/register",))
    assert stopped_by(explanation) == ("active", f"usersctl link confirm {eve.id}")
    assert gate(explanation, "confirmed").state == "shut"
    letter = gate(explanation, "letter")
    assert (letter.state, letter.mend) == ("shut", "usersctl mail retry 1")
    assert letter.message.startswith("confirm of 2026-11-20T08:22:19.123Z: waiting")
    # While registration is closed, its links do not work.
    assert stopped_by(explained(service, eve)) == ("active", f"usersctl activate {eve.id}")
    clock.move(milliseconds=877)
    with service.store.write() as tx:
        tx.finish_email(1, EmailState.FAILED, "550 no such mailbox")
    letter = gate(explained(service, eve), "letter")
    assert "failed at 2026-11-20T08:22:20.000Z (550 no such mailbox)" in letter.message
    assert letter.mend == f"usersctl activate {eve.id}"
    explanation = explained(service, eve, whitelist=("/register",))
    assert gate(explanation, "letter").mend == f"usersctl link confirm {eve.id}"


def test_an_invited_user_has_to_accept_and_nothing_else(service: Service, clock: FakeClock) -> None:
    (ada,) = service.invitations.invite([guest("ada@example.com")], timedelta(days=7), by=OPERATOR)
    send_all(service)
    assert [gate.cause for gate in explained(service, ada).findings] == [Cause.INVITED]
    clock.move(days=7)
    (expired,) = explained(service, ada).findings
    assert (expired.cause, expired.mend) == (Cause.INVITATION_EXPIRED, f"usersctl invite resend {ada.id}")


def test_a_throttled_user_has_to_wait(service: Service, add: Callable[..., User], clock: FakeClock) -> None:
    ada = add()
    for _ in range(10):
        with pytest.raises(UsersError):
            service.sessions.login("ada@example.com", "wrong")
    explanation = explained(service, ada)
    assert stopped_by(explanation) == ("throttled", f"usersctl unlock {ada.id}")
    assert "until 2026-11-20T08:22:49.123Z" in gate(explanation, "throttled").message
    assert explained(service, ada, limits_enabled=False).shut is None
    clock.move(seconds=31)
    assert explained(service, ada).shut is None
    with service.store.write() as tx:
        tx._run("UPDATE login_failures SET failures = 100")
    assert "locked until a reset" in gate(explained(service, ada), "throttled").message


def test_known_devices_and_sessions_are_throttled_apart(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    ada = add()
    opened = service.sessions.login("ada@example.com", PASSWORD)
    device = Client(devices=(service.devices.cookie((), ada.id, opened.session.created_at),))
    for _ in range(19):
        with pytest.raises(UsersError):
            service.sessions.login("ada@example.com", "wrong", client=device)
        clock.move(minutes=15)
    message = "no; 0 failed logins in a row, and 19 on known devices or in sessions"
    assert gate(explained(service, ada), "throttled")[:4] == ("open", "throttled", message, None)
    with pytest.raises(UsersError):
        service.sessions.login("ada@example.com", "wrong", client=device)
    explanation = explained(service, ada)
    assert stopped_by(explanation) == ("throttled", f"usersctl unlock {ada.id}")
    assert gate(explanation, "throttled").message.endswith(": known devices are locked until a reset")
    assert service.throttle.unlock(ada, OPERATOR)
    assert explained(service, ada).shut is None


def test_a_user_without_a_password_gets_in_by_email_or_provider(service: Service) -> None:
    ada = create_user(service, "ada@example.com", "Ada", None, by=OPERATOR)
    assert stopped_by(explained(service, ada)) == ("password", f"usersctl link reset {ada.id}")
    assert "links the account" in gate(explained(service, ada, **PROVIDER), "provider").message
    service.sign_ins[OAUTH].user_for(
        Profile("77", "ada@example.com", True, None, None), then=lambda _tx, user: user, by=Actor("system")
    )
    assert explained(service, ada, **PROVIDER).shut is None
    explanation = explained(service, ada)
    assert stopped_by(explanation) == ("password", f"usersctl link reset {ada.id}")
    assert gate(explanation, "provider").message == "linked as 77, and auth.oauth is not configured"
    link(service, ada.id, "77", "https://former.example.com")
    elsewhere = gate(explained(service, ada, **PROVIDER), "provider")
    assert (
        elsewhere.message
        == "linked as 77 at https://former.example.com, which is not the configured provider"
    )
    link(service, ada.id, "77", PROVIDER["oauth_issuer"])
    assert (
        gate(explained(service, ada, **PROVIDER), "provider").message
        == "linked as 77 at https://id.example.com"
    )


def test_a_passkey_is_enough_to_sign_in(service: Service) -> None:
    ada = create_user(service, "ada@example.com", "Ada", None, by=OPERATOR)
    link(service, ada.id, "77", "https://former.example.com")
    with service.store.write() as tx:
        store_passkey(tx, ada.id, "phone", rp_id="id.example.com")
    explanation = explained(service, ada, base_url="https://id.example.com", **PROVIDER)
    assert explanation.shut is None
    assert gate(explanation, "password")[:4] == (
        "note",
        "password",
        "not set; the user signs in with a passkey",
        f"usersctl link reset {ada.id}",
    )
    assert gate(explanation, "provider").state == "note"
    message = "a passkey signs in without a password; after one is set, it is asked for: 1 passkey"
    assert gate(explanation, "second-factor").message == message
    elsewhere = explained(service, ada, base_url="https://new.example.com", **PROVIDER)
    assert stopped_by(elsewhere) == ("password", f"usersctl link reset {ada.id}")
    link(service, ada.id, "77", PROVIDER["oauth_issuer"])
    explanation = explained(service, ada, base_url="https://id.example.com", **PROVIDER)
    both = "not set; the user signs in through the provider or with a passkey"
    assert gate(explanation, "password").message == both
    assert gate(explanation, "second-factor").message == "asked for after the provider: 1 passkey"


def test_a_provider_links_no_account_with_a_factor_and_an_address_that_was_never_proven(
    service: Service, add: Callable[..., User]
) -> None:
    ada = add()
    add_authenticator_apps(service, ada.id)
    refused = (
        "refuses a sign-in through it: the account has a second factor, and its address was never proven",
        f"usersctl link reset {ada.id}",
    )
    unlinked = gate(explained(service, ada, **PROVIDER), "provider")
    assert (unlinked.message, unlinked.mend) == (f"not linked, and {refused[0]}", refused[1])
    link(service, ada.id, "77", "https://former.example.com")
    elsewhere = gate(explained(service, ada, **PROVIDER), "provider")
    assert elsewhere.message.endswith(f", which is not the configured provider, and {refused[0]}")
    assert elsewhere.mend == refused[1]
    with service.store.write() as tx:
        tx.change_user(ada.id, email_proven_at=tx.now_text)
    assert "links it again" in str(gate(explained(service, ada, **PROVIDER), "provider").mend)


def test_a_provider_that_is_trusted_with_factors_is_not_followed_by_one(service: Service) -> None:
    ada = create_user(service, "ada@example.com", "Ada", None, by=OPERATOR)
    add_authenticator_apps(service, ada.id)
    link(service, ada.id, "77", PROVIDER["oauth_issuer"])
    trusted = PROVIDER | {"oauth_trusts_factors": True}
    message = "not asked for after the provider, which has trustsFactors: authenticator app"
    assert gate(explained(service, ada, **trusted), "second-factor").message == message
    link(service, ada.id, "78", "https://second.example.com", provider="second")
    second = provider_settings(
        "second", client_id="c", client_secret="s", issuer="https://second.example.com"
    )
    message = "asked for after the provider: authenticator app"
    both = explained(service, ada, **trusted, more_providers=(second,))
    assert gate(both, "second-factor").message == message


def test_an_authenticator_app_alone_opens_nothing(service: Service) -> None:
    ada = create_user(service, "ada@example.com", "Ada", None, by=OPERATOR)
    add_authenticator_apps(service, ada.id)
    explanation = explained(service, ada)
    assert stopped_by(explanation) == ("password", f"usersctl link reset {ada.id}")
    assert gate(explanation, "second-factor").message == "asked for after the password: authenticator app"


def test_a_link_to_a_former_provider_names_its_table_beside_another_that_is_configured(
    service: Service,
) -> None:
    ada = create_user(service, "ada@example.com", "Ada", None, by=OPERATOR)
    link(service, ada.id, "77", "https://former.example.com", provider="former")
    former = gate(explained(service, ada, **PROVIDER), "provider-former")
    assert (former.state, former.message, former.mend) == (
        "shut",
        "linked as 77 at https://former.example.com, and auth.providers.former is not configured",
        "set auth.providers.former.clientId and clientSecret",
    )


def test_a_lockdown_is_the_first_shut_gate(service: Service, add: Callable[..., User]) -> None:
    ada, eve = add("ada", role="admin"), add("eve", active=False)
    service.lockdown.start(ada, by=OPERATOR)
    assert stopped_by(explained(service, eve)) == ("lockdown", "usersctl lockdown off")
    assert explained(service, ada).shut is None


def test_a_command_to_paste_runs_nothing_that_stands_in_the_address(service: Service) -> None:
    explanation = explained(service, "x`id`|y@example.com")
    assert gate(explanation, "registration").mend == "usersctl create 'x`id`|y@example.com'"


def test_an_address_without_an_account_is_explained(service: Service, add: Callable[..., User]) -> None:
    explanation = explained(service, "eve@example.com")
    assert explanation.user is None
    assert [gate.name for gate in explanation.gates] == [
        "lockdown",
        "exists",
        "throttled",
        "registration",
        "provider",
    ]
    assert gate(explanation, "registration").mend == "usersctl create eve@example.com"
    opened = explained(service, "eve@example.com", whitelist=("/register",), **PROVIDER)
    assert gate(opened, "registration").message.startswith("open")
    assert "user_not_registered" in gate(opened, "provider").message
    making = explained(service, "eve@example.com", oauth_allow_auto_registration=True, **PROVIDER)
    assert "would create the account" in gate(making, "provider").message
    assert gate(explained(service, "eve"), "address").state == "shut"
    eve = add("eve")
    service.accounts.delete([eve.id], by=OPERATOR)
    for reference in ("eve@example.com", str(eve.id)):
        output = gate(explained(service, reference), "exists").message
        assert output.startswith(f"was user {eve.id}, eve@example.com; last: delete at")


def test_of_a_deleted_account_only_the_last_row_of_the_trail_is_read(
    service: Service, add: Callable[..., User]
) -> None:
    eve = add("eve")
    service.accounts.delete([eve.id], by=OPERATOR)
    with statements(service) as run:
        explained(service, str(eve.id))
    (of_the_trail,) = [statement for statement in run if "FROM audit" in statement]
    assert "LIMIT" in of_the_trail


def test_an_address_without_an_account_is_throttled_like_any_other(service: Service) -> None:
    for _ in range(10):
        with pytest.raises(UsersError):
            service.sessions.login("eve@example.com", "wrong")
    throttled = gate(explained(service, "eve@example.com"), "throttled")
    assert (throttled.state, throttled.mend) == ("shut", None)


# --- the command ---


@pytest.mark.slow
def test_the_suggested_command_opens_the_gate(usersctl: Command) -> None:
    usersctl.add("ada", active=False)
    output = usersctl.ok("why", "ada@example.com", "--json").json
    assert (output["stopped_by"], output["user"]["email"]) == ("active", "ada@example.com")
    assert output["gates"][2] == {
        "name": "active",
        "state": "shut",
        "message": "an admin, an operator or an import made it inactive",
        "mend": "usersctl activate 1",
    }
    assert usersctl.shell(output["gates"][2]["mend"]).code == 0
    done = usersctl.ok("why", "1")
    assert [row[0] for row in done.rows] == ORDER
    # A full disk, say, lets nobody sign in, and no account shows it.
    assert done.stderr.startswith("Nothing of this account is in the way: ")
    assert done.stderr.endswith(": usersctl doctor\n")


def test_an_address_without_an_account_ends_with_exit_code_3(usersctl: Command) -> None:
    usersctl.add()
    done = usersctl("why", "eve@example.com", "--json")
    assert done.code == 3
    assert done.json["user"] is None
    assert done.json["stopped_by"] == "exists"
    assert done.error["code"] == "not_found"
    screen = usersctl.on_terminal("why", "eve@example.com", "--db", usersctl.database)
    assert screen.code == 3
    assert "-> usersctl create eve@example.com --db" in screen.text


def test_no_secret_is_in_it(usersctl: Command) -> None:
    usersctl.add("ada")
    with usersctl.service() as service, service.store.read() as tx:
        stored = tx.credentials_of(1)
    assert stored is not None
    assert stored.password_hash not in usersctl.ok("why", "1", "--json").stdout
