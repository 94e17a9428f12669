"""Whose account a profile of the identity provider is: the rules, asked of the core."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.accounts import open_session
from support.commands import OPERATOR, PASSWORD, Command, create_user
from support.documentation import blocks, page
from support.fakes import FakeClock
from support.postbox import last_link, sent
from support.tables import hash_of

from usersctl.config import load
from usersctl.errors import SignInRefused, Taken, Unauthenticated
from usersctl.events import SESSION_REVOKED, USER_UPDATED, events_of
from usersctl.models import OAUTH, SYSTEM, UNUSABLE, Identity, User
from usersctl.oauth.providers import Profile
from usersctl.oauth.refusals import FAILED, NOT_CONFIGURED
from usersctl.oauth.sign_in import INACTIVE, NOT_REGISTERED, SPENT_FOR
from usersctl.service import Service

PICTURE = "https://pictures.example/ada.png"


@pytest.fixture
def service(make_service: Callable[..., Service]) -> Service:
    return make_service(oauth_allow_auto_registration=True)


@pytest.fixture
def closed(make_service: Callable[..., Service]) -> Service:
    """The default: no account is created through the provider."""
    return make_service()


def profile(subject: str = "1001", email: str = "ada@example.com", **more: Any) -> Profile:
    values = {"email_verified": True, "name": "Ada Lovelace", "picture": PICTURE} | more
    return Profile(subject, email, **values)


def signs_in(service: Service, *words: str, **more: Any) -> User:
    return service.sign_ins[OAUTH].user_for(profile(*words, **more), then=lambda _tx, user: user, by=SYSTEM)


def refusal(service: Service, *words: str, **more: Any) -> str:
    with pytest.raises(SignInRefused) as refused:
        signs_in(service, *words, **more)
    return refused.value.reason


def count(service: Service) -> int:
    with service.store.read() as tx:
        return len(list(tx.all_credentials()))


def audit(service: Service, action: str) -> list[dict[str, Any]]:
    with service.store.read() as tx:
        return [row.details for row in tx.audit_rows() if row.action == action]


def can_log_in(service: Service, user: User) -> bool:
    try:
        service.sessions.login(user.email, PASSWORD)
    except Unauthenticated:
        return False
    return True


def proven(service: Service, name: str = "ada", **keywords: Any) -> User:
    """An account whose owner has proved the address by an email."""
    user = create_user(service, f"{name}@example.com", name.title(), None, by=OPERATOR, **keywords)
    service.recovery.forgot(user.email)
    link = last_link(service, to=user.email)
    return service.recovery.reset(link.token, link.email, PASSWORD, by=SYSTEM)


# --- an address without an account ---


def test_a_new_account_takes_name_and_address_from_the_provider(service: Service) -> None:
    user = signs_in(service)
    assert (user.email, user.name, user.role, user.active) == (
        "ada@example.com",
        "Ada Lovelace",
        "user",
        True,
    )
    assert (user.oauth_id, user.profile_picture) == ("1001", PICTURE)
    assert user.email_proven_at is not None
    assert service.accounts.get(user.id) == user


def test_a_new_account_has_an_unusable_password(service: Service) -> None:
    user = signs_in(service)
    assert hash_of(service, user) == UNUSABLE
    for password in ("", UNUSABLE, PASSWORD, "1001", user.email):
        with pytest.raises(Unauthenticated):
            service.sessions.login(user.email, password)


def test_the_owner_of_a_new_account_sets_a_password_by_a_reset_email(service: Service) -> None:
    user = signs_in(service)
    service.recovery.forgot(user.email)
    link = last_link(service, to=user.email)
    service.recovery.reset(link.token, link.email, PASSWORD, by=SYSTEM)
    assert can_log_in(service, user)
    assert signs_in(service).id == user.id


def test_no_account_is_created_without_automatic_registration(closed: Service) -> None:
    assert refusal(closed) == "user_not_registered"
    assert count(closed) == 0


@pytest.mark.parametrize(
    ("sent_name", "name"),
    [
        ("  Ada  ", "Ada"),
        ("Ada\nLovelace\x00\x1b[31m", "Ada Lovelace [31m"),
        ("山田\u3000太郎", "山田 太郎"),
        ("<b>Ada</b>", "<b>Ada</b>"),
        ("x" * 500, "x" * 200),
        ("\ud800Ada", "Ada"),
        ("\u202e\u2028", "ada"),
        ("", "ada"),
        (None, "ada"),
    ],
)
def test_the_name_of_the_provider_is_stored_without_characters_that_names_may_not_hold(
    service: Service, sent_name: str | None, name: str
) -> None:
    assert signs_in(service, name=sent_name).name == name


@pytest.mark.parametrize("email", ["Ada@Example.COM", " ada@example.com "])
def test_the_address_of_the_provider_is_stored_in_its_normal_form(service: Service, email: str) -> None:
    assert signs_in(service, "1001", email).email == "ada@example.com"


@pytest.mark.parametrize("email", ["", "ada", "ada@", "ada@localhost", "a b@example.com", "\ud800@example.com",
                                   "ada@example.com\r\nBcc: eve@example.com", "x" * 65 + "@example.com"])  # fmt: skip
def test_a_profile_without_a_usable_address_is_refused(service: Service, email: str) -> None:
    assert refusal(service, "1001", email) == "oauth_failed"
    assert count(service) == 0


def test_an_unverified_address_of_the_provider_is_refused(service: Service) -> None:
    assert refusal(service, email_verified=False) == "oauth_failed"
    assert count(service) == 0
    user = proven(service)
    assert refusal(service, email_verified=False) == "oauth_failed"
    assert service.accounts.get(user.id) == user
    signs_in(service)
    assert refusal(service, email_verified=False) == "oauth_failed"  # the linked account neither


# --- an address with an account ---


@pytest.mark.parametrize("registration", ["service", "closed"])
def test_an_account_with_the_address_is_linked(registration: str, request: pytest.FixtureRequest) -> None:
    service = request.getfixturevalue(registration)
    user = proven(service, role="admin")
    linked = signs_in(service)
    assert linked.id == user.id
    assert (linked.oauth_id, linked.profile_picture) == ("1001", PICTURE)
    assert (linked.name, linked.role, linked.email) == (user.name, "admin", user.email)
    assert count(service) == 1


def test_a_linked_account_has_two_ways_in(service: Service) -> None:
    user = proven(service)
    opened = open_session(service, user)
    api = service.sessions.create_api_token(user.id, name="ci", lifetime=None, by=OPERATOR)
    signs_in(service)
    assert can_log_in(service, user)
    assert signs_in(service).id == user.id
    assert service.sessions.check(opened.token) is not None
    assert service.sessions.check(api.token) is not None
    assert audit(service, "link") == [{"provider": OAUTH, "password_replaced": False}]


def test_the_owner_of_a_linked_account_gets_one_email(service: Service) -> None:
    user = proven(service)
    before = len(sent(service))
    signs_in(service)
    signs_in(service)
    (letter,) = sent(service)[before:]
    assert letter.to == user.email
    link = last_link(service)
    assert link.path == "/not-me"
    service.recovery.not_me(link.token, link.email, by=SYSTEM)
    assert service.accounts.get(user.id).oauth_id is None


@pytest.mark.parametrize("way", ["made by an admin", "changed since"])
def test_linking_an_account_with_an_unproven_address_ends_every_former_access(
    service: Service, way: str
) -> None:
    if way == "changed since":
        user = proven(service, "eve")
        user = service.accounts.update(user.id, email="ada@example.com", by=SYSTEM)
    else:
        user = create_user(service, "ada@example.com", "Eve", PASSWORD, by=OPERATOR)
    session = open_session(service, user, remember=True)
    api = service.sessions.create_api_token(user.id, name="ci", lifetime=None, by=OPERATOR)
    service.recovery.forgot(user.email)
    reset = last_link(service, to="ada@example.com")
    linked = signs_in(service)
    assert linked.id == user.id
    assert linked.email_proven_at is not None
    assert hash_of(service, linked) == UNUSABLE
    assert not can_log_in(service, linked)
    assert service.sessions.check(session.token) is None
    assert service.sessions.check(api.token) is None
    with pytest.raises(Exception, match="Invalid or expired link"):
        service.recovery.reset(reset.token, reset.email, "another sentence", by=SYSTEM)
    assert audit(service, "link") == [{"provider": OAUTH, "password_replaced": True, "ended": 2}]


def test_the_end_of_the_tokens_of_an_account_without_a_password_is_told(service: Service) -> None:
    newcomer = service.accounts.newcomer("ada@example.com", "Build server")
    user = service.accounts.create(newcomer, None, by=OPERATOR)
    api = service.sessions.create_api_token(user.id, name="ci", lifetime=None, by=OPERATOR)
    signs_in(service)
    assert service.sessions.check(api.token) is None
    (details,) = audit(service, "link")
    assert details == {"provider": OAUTH, "password_replaced": False, "ended": 1}
    assert events_of("link", details) == (USER_UPDATED, SESSION_REVOKED)


def test_links_sent_to_a_former_address_stop_working_after_the_linking(service: Service) -> None:
    eve = proven(service, "eve")
    service.accounts.set_password(eve.id, PASSWORD, by=OPERATOR)
    theirs = last_link(service, to="eve@example.com")
    service.accounts.update(eve.id, email="ada@example.com", by=OPERATOR)
    linked = signs_in(service)
    with pytest.raises(Exception, match="Invalid or expired link"):
        service.recovery.not_me(theirs.token, theirs.email, by=SYSTEM)
    assert service.accounts.get(linked.id).oauth_id == "1001"


def test_an_inactive_account_is_neither_linked_nor_opened(service: Service) -> None:
    user = proven(service)
    user = service.accounts.update(user.id, active=False, by=OPERATOR)
    assert refusal(service) == "account_inactive"
    assert service.accounts.get(user.id) == user
    assert user.oauth_id is None


def test_an_account_that_awaits_its_confirmation_is_not_activated(
    make_service: Callable[..., Service],
) -> None:
    service = make_service(oauth_allow_auto_registration=True, whitelist=("/register",))
    service.registration.register("ada@example.com", "Eve", PASSWORD, by=SYSTEM)
    assert refusal(service) == "account_inactive"
    user = service.accounts.find("ada@example.com")
    assert (user.active, user.oauth_id) == (False, None)


def test_a_deactivated_linked_account_stays_inactive(service: Service) -> None:
    user = signs_in(service)
    service.accounts.update(user.id, active=False, by=OPERATOR)
    before = service.accounts.get(user.id)
    assert refusal(service, picture="https://pictures.example/new.png") == "account_inactive"
    assert service.accounts.get(user.id) == before


def test_an_account_that_is_linked_to_another_subject_is_refused(service: Service) -> None:
    user = signs_in(service)
    assert refusal(service, "666") == "oauth_failed"
    assert service.accounts.get(user.id) == user


# --- the subject is known ---


def test_a_linked_account_is_found_by_its_subject_and_not_by_its_address(service: Service) -> None:
    user = signs_in(service)
    other = proven(service, "grace")
    # The provider sends another address, even one of another account.
    assert signs_in(service, "1001", "countess@example.com").id == user.id
    assert signs_in(service, "1001", "grace@example.com").id == user.id
    assert service.accounts.get(user.id).email == "ada@example.com"
    assert service.accounts.get(other.id).oauth_id is None


def test_a_change_of_address_keeps_the_link(service: Service) -> None:
    user = signs_in(service)
    service.accounts.update(user.id, email="countess@example.com", by=OPERATOR)
    assert signs_in(service).id == user.id
    assert count(service) == 1


def test_subjects_are_compared_with_their_letter_case(service: Service) -> None:
    first = signs_in(service, "aB", "ada@example.com")
    second = signs_in(service, "Ab", "grace@example.com")
    assert first.id != second.id


def test_a_picture_is_updated_when_it_changed_and_only_then(service: Service, clock: FakeClock) -> None:
    user = signs_in(service)
    clock.move(hours=1)
    assert signs_in(service) == user  # updated_at, too
    changed = signs_in(service, picture="https://pictures.example/new.png")
    assert changed.profile_picture == "https://pictures.example/new.png"
    assert changed.updated_at > user.updated_at
    assert service.accounts.get(user.id) == changed


def test_a_name_changed_here_is_not_overwritten(service: Service) -> None:
    user = signs_in(service)
    service.accounts.update(user.id, name="Countess", by=OPERATOR)
    assert signs_in(service).name == "Countess"


@pytest.mark.parametrize("picture", [None, "", "javascript:alert(1)", "data:image/png;base64,AA==", "//pictures.example/a.png", "ftp://x/a.png",
                                     "https://", "https://pictures.example/a b.png", "https://pictures.example/a.png\r\nX: y",
                                     "https://pictures.example/\ud800", "https://pictures.example/ä.png", " https://pictures.example/a.png",
                                     "HTTPS://" + "x" * 2000, "https://pictures.example/" + "x" * 2000])  # fmt: skip
def test_an_invalid_picture_is_not_stored(service: Service, picture: str | None) -> None:
    assert signs_in(service, picture=picture).profile_picture is None
    signs_in(service, picture=PICTURE)
    assert signs_in(service, picture=picture).profile_picture == PICTURE  # nor does it take away a good one


@pytest.mark.parametrize(
    "picture",
    [
        "http://pictures.example/a.png?s=96&c=1",
        "HTTPS://pictures.example/a.png",
        "https://p.example/" + "x" * 1900,
    ],
)
def test_a_picture_is_any_web_address_under_two_kilobytes(service: Service, picture: str) -> None:
    assert signs_in(service, picture=picture).profile_picture == picture


# --- at the same time ---


def test_twenty_first_sign_ins_at_once_make_one_account(service: Service) -> None:
    users: list[int] = []
    start = threading.Barrier(20)

    def sign_in() -> None:
        start.wait(10)
        users.append(signs_in(service).id)

    threads = [threading.Thread(target=sign_in) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(users) == 20
    assert len(set(users)) == 1
    assert count(service) == 1
    assert len(audit(service, "create")) == 1


def test_one_of_two_subjects_with_the_same_address_gets_the_account(service: Service) -> None:
    outcomes: list[str] = []
    start = threading.Barrier(20)

    def sign_in(number: int) -> None:
        start.wait(10)
        try:
            outcomes.append(str(signs_in(service, str(number)).oauth_id))
        except SignInRefused as refused:
            outcomes.append(refused.reason)

    threads = [threading.Thread(target=sign_in, args=[number]) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert outcomes.count("oauth_failed") == 19
    assert service.accounts.find("ada@example.com").oauth_id in outcomes


def test_the_database_refuses_a_subject_on_two_accounts(service: Service) -> None:
    signs_in(service)
    other = proven(service, "grace")
    with pytest.raises(Taken), service.store.write() as tx:
        tx.add_identities([Identity(other.id, "oauth", "", "1001")])
    assert service.accounts.get(other.id).oauth_id is None


def test_a_state_is_spent_once_and_removed_when_it_is_too_old(service: Service, clock: FakeClock) -> None:
    service.sign_ins[OAUTH].spend("a state")
    with pytest.raises(SignInRefused, match="used before"):
        service.sign_ins[OAUTH].spend("a state")
    service.sign_ins[OAUTH].spend("another")
    clock.move(seconds=SPENT_FOR.total_seconds() + 1)
    service.cleaner.run(by=SYSTEM)
    service.sign_ins[OAUTH].spend("a state")  # its cookie is too old by now


# --- unlinked ---


def test_unlinking_an_account_tells_its_owner_and_leaves_the_password(service: Service) -> None:
    user = proven(service)
    signs_in(service)
    before = len(sent(service))
    unlinked = service.accounts.update(user.id, unlink=OAUTH, by=OPERATOR)
    assert unlinked.oauth_id is None
    (notice,) = sent(service)[before:]
    assert (notice.to, last_link(service).path) == (user.email, "/not-me")
    assert can_log_in(service, user)
    assert [row.get("unlinked") for row in audit(service, "update")] == [OAUTH]


def test_unlinking_an_account_without_a_password_sends_a_reset_email(service: Service) -> None:
    user = signs_in(service)
    service.accounts.update(user.id, unlink=OAUTH, by=OPERATOR)
    link = last_link(service, to=user.email)
    assert link.path == "/reset-password"
    service.recovery.reset(link.token, link.email, PASSWORD, by=SYSTEM)
    assert can_log_in(service, user)


def test_unlinking_an_account_without_a_link_changes_nothing(service: Service, clock: FakeClock) -> None:
    user = proven(service)
    before = len(sent(service))
    clock.move(hours=1)
    assert service.accounts.update(user.id, unlink=OAUTH, by=OPERATOR) == user
    assert len(sent(service)) == before


def test_the_command_shows_and_removes_a_link(usersctl: Command) -> None:
    usersctl.add("ada")
    with usersctl.service() as service:
        service.sign_ins[OAUTH].user_for(profile(), then=lambda _tx, user: user, by=SYSTEM)
    assert "1001" in usersctl.ok("show", "ada@example.com").stdout
    shown = usersctl.ok("show", "ada@example.com", "--json").json
    assert (shown["oauth_id"], shown["profile_picture"]) == ("1001", PICTURE)
    done = usersctl.ok("update", "ada@example.com", "--unlink", OAUTH, "--json")
    assert done.json["oauth_id"] is None
    assert "1001" not in usersctl.ok("show", "ada@example.com").stdout
    waiting = json.loads(usersctl.ok("mail", "list", "--json").stdout)
    assert [letter["kind"] for letter in waiting if letter["kind"] == "reset"] == ["reset"]
    assert (
        "Unchanged"
        in usersctl.ok("update", "ada@example.com", "--unlink", OAUTH).stderr
        + usersctl.ok("update", "ada@example.com", "--unlink", OAUTH).stdout
    )


# --- the documentation ---


def test_the_recipes_of_the_documentation_are_configurations_that_start(tmp_path: Path) -> None:
    text = page("docs/integrating/provider.md")
    recipes = blocks(text, "toml")
    assert len(recipes) == 11
    for recipe in recipes:
        file = tmp_path / "users.toml"
        file.write_text(recipe, "utf-8")
        settings = load(config=file, env={"HOME": str(tmp_path)}).settings
        assert settings.providers
    for code in (FAILED, NOT_CONFIGURED, NOT_REGISTERED, INACTIVE):
        assert f"| `{code}` |" in text
