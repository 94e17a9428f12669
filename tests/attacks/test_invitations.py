"""Invitations under attack: guesses, races, other people's links, callers without rights, and squatters."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import pytest
from support.commands import OPERATOR, PASSWORD
from support.postbox import Link, last_link, sent
from support.web import Client, Reply, Site, refusal_of

from usersctl.errors import UsersError
from usersctl.invitations import guest
from usersctl.models import UNKNOWN_CLIENT, User
from usersctl.secrets import new_token

ADA = "ada@example.com"
OWN = "a sentence of my own"
WEEK = timedelta(days=7)


def invite(site: Site, email: str = ADA, **more: str) -> User:
    (user,) = site.service.invitations.invite([guest(email, "Ada", more.get("role"))], WEEK, by=OPERATOR)
    return user


def accept(client: Client, link: Link, **more: str) -> Reply:
    body = {"token": link.token, "email": link.email, "password": OWN, **more}
    return client.post("/api/users/invite/accept", body)


def count(site: Site, table: str) -> int:
    with site.service.store.read() as tx:
        return int(tx._run(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608 - our own tables


# --- links ---


def test_a_guessed_token_is_refused_alike_for_every_address(site: Site) -> None:
    invite(site)
    site.add("bob")
    guessed = [
        accept(site.client(), Link("", new_token(), email))
        for email in (ADA, "bob@example.com", "nobody@example.com", "no address")
    ]
    assert all(refusal_of(reply) == refusal_of(guessed[0]) for reply in guessed)
    assert (guessed[0].status, guessed[0].message) == (400, "Invalid or expired link")


def test_a_link_opens_no_other_invited_account(site: Site) -> None:
    invite(site)
    invite(site, "root@example.com", role="admin")
    link = last_link(site.service, ADA)
    refused = accept(site.client(), link._replace(email="root@example.com"))
    assert (refused.status, refused.message) == (400, "Invalid or expired link")
    assert accept(site.client(), link).json["user"]["role"] == "user"


def test_a_guest_gives_themselves_no_role_and_no_group(site: Site) -> None:
    site.service.groups.create("board", by=OPERATOR)
    invite(site)
    body = {"role": "admin", "groups": "board", "active": "true", "id": "1"}
    user = accept(site.client(), last_link(site.service), **body).json["user"]
    assert user["role"] == "user"
    assert site.service.groups.of(user["id"]) == ()


def test_of_32_parallel_uses_of_a_link_one_succeeds(site: Site) -> None:
    invite(site)
    link = last_link(site.service)
    together = threading.Barrier(32)

    def use(number: int) -> str:
        open_session = partial(site.service.sessions.open_in, remember=False, client=UNKNOWN_CLIENT)
        together.wait()
        try:
            site.service.invitations.accept(
                link.token, link.email, f"Ada {number}", f"{OWN} {number}", then=open_session, by=OPERATOR
            )
        except UsersError as error:
            return str(error)
        return "accepted"

    with ThreadPoolExecutor(32) as pool:
        outcomes = list(pool.map(use, range(32)))
    assert outcomes.count("accepted") == 1
    assert count(site, "auth_tokens") == 1
    assert set(outcomes) <= {
        "accepted",
        "This invitation was accepted already",
        "Too many logins at once, please try again",
    }


@pytest.mark.parametrize(
    "ends", ["withdrawn", "deactivated", "deleted", "lockdown", "invited again", "accepted"]
)
def test_an_invitation_that_ends_while_the_password_is_hashed_opens_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    service = site.service
    user = invite(site)
    link = last_link(service)
    hash_password = service.hasher.hash
    end = {
        "withdrawn": lambda: service.invitations.withdraw([user.id], by=OPERATOR),
        "deactivated": lambda: service.accounts.set_active([user.id], active=False, by=OPERATOR),
        "deleted": lambda: service.accounts.delete([user.id], by=OPERATOR),
        "lockdown": lambda: service.lockdown.start(None, by=OPERATOR),
        "invited again": lambda: service.invitations.again([user.id], WEEK, by=OPERATOR),
        "accepted": lambda: service.invitations.accept(
            link.token, link.email, None, OWN, then=lambda _tx, user: user, by=OPERATOR
        ),
    }[ends]

    def slowly(password: str) -> str:
        monkeypatch.undo()
        end()
        return hash_password(password)

    monkeypatch.setattr(type(service.hasher), "hash", lambda _self, password: slowly(password))
    client = site.client()
    refused = accept(client, link)
    assert refused.status == (503 if ends == "lockdown" else 400)
    assert client.cookies == {}
    assert count(site, "auth_tokens") == 0


# --- callers ---


@pytest.fixture
def callers(site: Site) -> dict[str, Client]:
    admin = site.signed_in(site.add("root", role="admin"))
    return {"user": site.signed_in(site.add("bob")), "nobody": site.client(), "admin": admin}


@pytest.mark.parametrize(("caller", "status"), [("user", 403), ("nobody", 401)])
def test_only_admins_invite_and_withdraw(
    site: Site, callers: dict[str, Client], caller: str, status: int
) -> None:
    user = invite(site)
    sent(site.service)
    for path in ("/api/users/invite", f"/api/users/{user.id}/invite", "/api/users/999/invite"):
        assert callers[caller].post(path, {"email": "eve@example.com", "role": "admin"}).status == status
    assert callers[caller].delete(f"/api/users/{user.id}/invite").status == status
    assert len(sent(site.service)) == 1
    assert [waiting.user.id for waiting in site.service.invitations.waiting()] == [user.id]


def test_another_site_neither_invites_nor_withdraws_nor_accepts(
    site: Site, callers: dict[str, Client]
) -> None:
    user = invite(site)
    link = last_link(site.service)
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        body = {"token": link.token, "email": link.email, "password": OWN}
        assert (
            callers["admin"].post("/api/users/invite", {"email": "eve@example.com"}, headers=headers).status
            == 403
        )
        assert callers["admin"].delete(f"/api/users/{user.id}/invite", headers=headers).status == 403
        assert site.client().post("/api/users/invite/accept", body, headers=headers).status == 403
    form = b"token=x&email=y&password=z"
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    assert site.client().post("/api/users/invite/accept", raw=form, headers=kind).status == 415


def test_an_api_token_invites_its_own_user_to_nothing(site: Site) -> None:
    user = site.add("ci", role="admin", password=None)
    token = site.service.sessions.create_api_token(user.id, name="ci", lifetime=WEEK, by=OPERATOR).token
    client = site.client(headers={"Authorization": f"Bearer {token}"})
    for method in ("POST", "DELETE"):
        assert client.send(method, f"/api/users/{user.id}/invite").message == "Sign in to change this"
    assert client.post("/api/users/invite", {"email": ADA}).status == 200


# --- addresses ---


def test_a_squatter_neither_holds_nor_enters_an_invited_address(make_site: Callable[..., Site]) -> None:
    site = make_site(whitelist=("/register",))
    squat = {"email": ADA, "name": "Eve", "password": PASSWORD}
    assert site.client().post("/api/users/register", squat).status == 200
    squatted = last_link(site.service)
    invite(site)
    link = last_link(site.service)
    path = f"/api/users/confirm-email?token={squatted.token}&email={squatted.email}"
    assert site.client().get(path).status == 400
    assert site.client().login(ADA, PASSWORD).status == 401
    assert site.client().post("/api/users/register", squat).status == 400
    assert accept(site.client(), link).status == 200
    assert site.client().login(ADA, PASSWORD).status == 401


def test_an_address_that_another_account_gave_up_lately_is_not_invited(site: Site) -> None:
    user = site.add()
    with site.service.store.write() as tx:
        tx.reserve(user.id, "old@example.com", "2999-01-01T00:00:00.000Z")
    admin = site.signed_in(site.add("root", role="admin"))
    refused = admin.post("/api/users/invite", {"email": "old@example.com"})
    assert (refused.status, refused.message) == (400, "Email is already registered")


def test_an_invitation_goes_to_one_recipient_and_names_nobody(site: Site) -> None:
    admin = site.signed_in(site.add("root", role="admin"))
    for email in (
        "ada@example.com,eve@example.com",
        "ada@example.com eve@example.com",
        '"a@b" <ada@example.com>',
    ):
        assert admin.post("/api/users/invite", {"email": email}).status == 400
    admin.post("/api/users/invite", {"email": ADA, "name": "Click https://evil.example now"})
    (email,) = sent(site.service)
    assert email.to == ADA
    assert "evil.example" not in " ".join(email.parts)


def test_an_invited_account_answers_a_login_as_an_unknown_address_does(site: Site) -> None:
    invite(site)
    known = site.client().login(ADA, PASSWORD)
    unknown = site.client().login("nobody@example.com", PASSWORD)
    assert refusal_of(known) == refusal_of(unknown)
    forgot = [
        site.client().post("/api/users/password/forgot", {"email": email})
        for email in (ADA, "nobody@example.com")
    ]
    assert refusal_of(forgot[0]) == refusal_of(forgot[1])
