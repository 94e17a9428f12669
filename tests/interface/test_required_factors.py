"""Who must have a second factor, and what a user without one can do until there is one."""

from collections.abc import Callable

import pytest
from support.commands import OPERATOR, PASSWORD
from support.factors import add_authenticator_apps
from support.fakes import FakeClock
from support.second_factors import CONFIRM, Phone, enrol, finish, second_step, with_phone
from support.web import Client, Site

ADA = "ada@example.com"


@pytest.fixture
def ada(site: Site, clock: FakeClock) -> tuple[Client, Phone]:
    return with_phone(site, clock)


@pytest.mark.parametrize(("policy", "role", "must"), [
    ("optional", "admin", False), ("off", "admin", False), ("admins", "user", False),
    ("admins", "admin", True), ("everyone", "user", True), ("everyone", "admin", True),
])  # fmt: skip
def test_who_must_have_a_factor(make_site: Callable[..., Site], policy: str, role: str, must: bool) -> None:
    site = make_site(second_factor=policy)
    client = site.signed_in(site.add(role=role))
    reply = client.get("/api/users/me/sessions")
    assert reply.status == (403 if must else 200)
    if must:
        assert reply.message == "Second factor required"


def test_who_must_enrol_can_do_that_and_little_else(make_site: Callable[..., Site], clock: FakeClock) -> None:
    site = make_site(second_factor="everyone")
    client = site.signed_in(site.add(role="admin"))
    assert client.get("/api/users/me").status == 200
    assert client.get("/api/users/me/factors").status == 200
    for page in ("/account", "/logout", "/second-factor"):
        assert client.get(page).status == 200
    assert client.get("/").status == 403
    assert client.get("/users").status == 403
    assert client.get("/api/users").status == 403
    assert client.patch("/api/users/me", {"name": "X"}).status == 403
    assert client.post("/_tasks/users:cleanup-tokens").status == 403
    assert client.post(CONFIRM, {"password": PASSWORD}).status == 200
    enrol(client, clock)
    assert client.get("/api/users").status == 200
    assert client.delete("/api/users/session").status == 200


def test_who_must_enrol_is_told_so_before_any_lack_of_rights(make_site: Callable[..., Site]) -> None:
    site = make_site(second_factor="everyone")
    client = site.signed_in(site.add())
    for path in ("/api/users", "/api/users/999", "/_tasks/"):
        reply = client.get(path)
        assert (reply.status, reply.message) == (403, "Second factor required")


def test_the_page_that_adds_a_factor_is_closed_to_who_has_one_to_prove(
    make_site: Callable[..., Site],
) -> None:
    site = make_site(second_factor="everyone")
    user = site.add()
    client = site.signed_in(user)
    add_authenticator_apps(site.service, user.id)
    assert client.get("/account").status == 403
    assert client.get("/api/users/me").status == 200


def test_a_session_that_was_open_when_the_rule_came_must_enrol(make_site: Callable[..., Site]) -> None:
    before = make_site()
    client = before.signed_in(before.add())
    client.port = make_site(second_factor="everyone").port
    assert client.get("/api/users/me/sessions").status == 403


def test_api_tokens_need_no_factor(make_site: Callable[..., Site]) -> None:
    site = make_site(second_factor="everyone")
    made = site.service.sessions.create_api_token(site.add().id, name="ci", lifetime=None, by=OPERATOR)
    client = site.client(headers={"Authorization": f"Bearer {made.token}"})
    assert client.get("/api/users/me/sessions").status == 200


def test_with_off_no_user_enrols_and_who_has_a_factor_is_asked(
    make_site: Callable[..., Site], clock: FakeClock
) -> None:
    _, phone = with_phone(make_site(), clock)
    site = make_site(second_factor="off")
    refused = site.signed_in(site.add("grace")).post("/api/users/me/totp")
    assert (refused.status, refused.message) == (403, "Second factors are switched off")
    assert finish(second_step(site.client()), code=phone.next_code()).status == 200
