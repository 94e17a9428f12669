"""Invitations over HTTP: by an admin, and accepted on the page that the email leads to."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from support.commands import OPERATOR, PASSWORD
from support.daemons import free_port
from support.fakes import FakeClock
from support.faults import LONG
from support.postbox import Link, Postbox, last_link, send_all, smtp_server
from support.web import Client, Reply, Site

from usersctl.invitations import guest

ADA = "ada@example.com"
OWN = "a sentence of my own"
WEEK = timedelta(days=7)


@pytest.fixture
def admin(site: Site) -> Client:
    return site.signed_in(site.add("root", role="admin"))


def accept(client: Client, link: Link, **more: str) -> Reply:
    body = {"token": link.token, "email": link.email, "password": OWN, **more}
    return client.post("/api/users/invite/accept", body)


def page(site: Site, link: Link) -> str:
    reply = site.client().get(f"/accept-invite?token={link.token}&email={link.email}")
    assert reply.status == 200
    return reply.body.decode()


def test_an_admin_invites_and_the_owner_is_signed_in(site: Site, admin: Client) -> None:
    site.service.groups.create("staff", by=OPERATOR)
    body = {
        "email": " Ada@Example.com ",
        "name": "Ada",
        "role": "admin",
        "groups": ["staff"],
        "expires": "14d",
    }
    reply = admin.post("/api/users/invite", body)
    assert reply.status == 200
    user = reply.json["user"]
    assert (user["email"], user["name"], user["role"], user["active"]) == (ADA, "Ada", "admin", False)
    assert "invited_at" not in user
    ada = site.client()
    accepted = accept(ada, last_link(site.service))
    assert accepted.status == 200
    assert (accepted.json["user"]["id"], accepted.json["user"]["active"]) == (user["id"], True)
    assert any(line.startswith("auth_token=") and "Max-Age" not in line for line in accepted.cookies())
    assert accepted.header("Set-Cookie")
    assert ada.get("/api/users").status == 200
    assert admin.get(f"/api/users/{user['id']}/groups").json == {"groups": ["staff"]}
    assert site.client().login(ADA, OWN).status == 200


def test_a_session_that_the_browser_had_ends(site: Site, admin: Client) -> None:
    admin.post("/api/users/invite", {"email": ADA, "name": "Ada"})
    client = site.signed_in(site.add("bob"))
    token = client.token
    assert accept(client, last_link(site.service)).status == 200
    assert site.client(cookies={"auth_token": token}).get("/api/users/me").status == 401
    assert client.get("/api/users/me").json["user"]["email"] == ADA


def test_every_request_that_may_send_too_many_invitations_says_so_in_the_description(
    site: Site, admin: Client
) -> None:
    guest_id = admin.post("/api/users/invite", {"email": ADA}).json["user"]["id"]
    for _ in range(2):
        send_all(site.service)
        assert admin.post(f"/api/users/{guest_id}/invite").status == 200
    send_all(site.service)
    paths = admin.get("/api/users/openapi.json").json["paths"]
    one = f"/api/users/{guest_id}"
    requests: list[tuple[str, str, str, dict[str, object]]] = [
        ("POST", "/api/users/invite", "/api/users/invite", {"email": ADA}),
        ("POST", "/api/users/{id}/invite", f"{one}/invite", {}),
        ("POST", "/api/users/bulk", "/api/users/bulk", {"ids": [guest_id], "action": "invite"}),
        ("PATCH", "/api/users/{id}", one, {"email": "countess@example.com"}),
    ]
    for method, described, path, body in requests:
        refused = admin.send(method, path, body)
        assert (refused.status, refused.header("Retry-After")) == (429, "900"), described
        assert refused.message.startswith("Too many emails of this kind, please try again later: "), described
        assert "429" in paths[described][method.lower()]["responses"], described


def test_an_invited_address_is_invited_again_and_one_with_an_account_is_refused(
    site: Site, admin: Client
) -> None:
    first = admin.post("/api/users/invite", {"email": ADA, "name": "Ada"}).json["user"]
    link = last_link(site.service)
    again = admin.post(f"/api/users/{first['id']}/invite", {"expires": "1d"})
    assert again.json["user"]["id"] == first["id"]
    refused = accept(site.client(), link)
    assert (refused.status, refused.message) == (400, "This invitation was replaced by a newer one")
    assert accept(site.client(), last_link(site.service)).status == 200
    taken = admin.post("/api/users/invite", {"email": ADA})
    assert (taken.status, taken.message) == (400, "Email is already registered")
    used = admin.post(f"/api/users/{first['id']}/invite")
    assert (used.status, used.message) == (400, "This account needs no invitation")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Email is required"),
        ({"email": "no address"}, "Invalid email format"),
        ({"email": ADA, "name": ""}, "Name must have 1 to 200 characters"),
        ({"email": ADA, "name": "Ada\r\nBcc: eve@example.com"}, "Name must not contain control characters"),
        ({"email": f"{ADA}\r\nBcc: eve@example.com"}, "Invalid email format"),
        ({"email": ADA, "name": 7}, "name must be a string"),
        ({"email": ADA, "role": "owner"}, "Role must be one of admin, user"),
        ({"email": ADA, "groups": "staff"}, "groups must be a list"),
        ({"email": ADA, "groups": ["none"]}, "Unknown group"),
        ({"email": ADA, "expires": "30m"}, "An invitation expires after 1h to 90d"),
        ({"email": ADA, "expires": "91d"}, "An invitation expires after 1h to 90d"),
        ({"email": ADA, "expires": 7}, "expires must be a string"),
    ],
)
def test_a_wrong_invitation_is_refused_whole(
    site: Site, admin: Client, body: dict[str, object], message: str
) -> None:
    refused = admin.post("/api/users/invite", body)
    assert (refused.status, refused.message) == (400, message)
    assert admin.get("/api/users?state=invited").json["users"] == []
    assert send_all(site.service) == []


def test_invited_users_are_listed(admin: Client) -> None:
    admin.post("/api/users/invite", {"email": ADA})
    listed = admin.get("/api/users?state=invited").json
    assert [user["email"] for user in listed["users"]] == [ADA]
    assert admin.get("/api/users?state=deactivated").json["users"] == []


def test_an_invitation_is_withdrawn_by_deleting_the_user(site: Site, admin: Client) -> None:
    user = admin.post("/api/users/invite", {"email": ADA}).json["user"]
    link = last_link(site.service)
    assert admin.delete(f"/api/users/{user['id']}").status == 200
    refused = accept(site.client(), link)
    assert (refused.status, refused.message) == (400, "This invitation was withdrawn")


def test_an_invitation_is_withdrawn_with_its_account(site: Site, admin: Client) -> None:
    user = admin.post("/api/users/invite", {"email": ADA}).json["user"]
    link = last_link(site.service)
    reply = admin.delete(f"/api/users/{user['id']}/invite")
    assert (reply.status, reply.json) == (200, {"success": True})
    refused = accept(site.client(), link)
    assert (refused.status, refused.message) == (400, "This invitation was withdrawn")
    gone = admin.delete(f"/api/users/{user['id']}/invite")
    assert (gone.status, gone.message) == (404, "User not found")


def test_an_account_whose_invitation_was_accepted_meanwhile_is_not_withdrawn(
    site: Site, admin: Client
) -> None:
    user = admin.post("/api/users/invite", {"email": ADA, "name": "Ada"}).json["user"]
    ada = site.client()
    assert accept(ada, last_link(site.service)).status == 200
    refused = admin.delete(f"/api/users/{user['id']}/invite")
    assert (refused.status, refused.message) == (403, "There is no invitation to withdraw")
    assert ada.get("/api/users/me").status == 200


def test_an_active_account_stays_when_its_invitation_is_withdrawn(site: Site, admin: Client) -> None:
    bob = site.add("bob", password=None)
    assert admin.post(f"/api/users/{bob.id}/invite").status == 200
    assert admin.delete(f"/api/users/{bob.id}/invite").json == {"success": True}
    assert admin.get(f"/api/users/{bob.id}").json["user"]["active"]
    assert site.service.invitations.waiting() == []


def test_the_page_names_the_guest_and_uses_nothing_up(site: Site, admin: Client) -> None:
    admin.post("/api/users/invite", {"email": ADA, "name": "Ada <b>Lovelace"})
    link = last_link(site.service)
    for _ in range(3):
        assert 'value="Ada &lt;b&gt;Lovelace"' in page(site, link)
    assert "check your name" in page(site, link)
    assert site.client().send("HEAD", f"/accept-invite?token={link.token}&email={link.email}").status == 200
    assert accept(site.client(), link).status == 200


def test_the_page_asks_a_guest_without_a_name_for_it(site: Site, admin: Client) -> None:
    admin.post("/api/users/invite", {"email": ADA})
    assert "give your name" in page(site, last_link(site.service))


def test_the_page_says_what_became_of_a_dead_link(site: Site, admin: Client, clock: FakeClock) -> None:
    user = admin.post("/api/users/invite", {"email": ADA}).json["user"]
    replaced = last_link(site.service)
    admin.post(f"/api/users/{user['id']}/invite")
    expired = last_link(site.service)
    assert "There is a newer invitation" in page(site, replaced)
    clock.move(days=7)
    assert "This invitation has expired. Ask" in page(site, expired)
    site.service.invitations.again([user["id"]], WEEK, by=OPERATOR)
    used = last_link(site.service)
    assert accept(site.client(), used, name="Ada").status == 200
    assert "has been accepted already. Sign in" in page(site, used)
    site.service.accounts.delete([user["id"]], by=OPERATOR)
    assert "The account that belonged to this invitation has been deleted" in page(site, used)
    invented = Link("/accept-invite", "A" * 43, ADA)
    assert "Open the link in the newest invitation" in page(site, invented)
    assert "Open the link in the newest invitation" in page(site, Link("/accept-invite", "", ""))


def test_why_tells_of_an_invitation(site: Site, admin: Client, clock: FakeClock) -> None:
    user = admin.post("/api/users/invite", {"email": ADA}).json["user"]
    send_all(site.service)
    (finding,) = admin.get(f"/api/users/{user['id']}/why").json["findings"]
    assert finding["code"] == "invited"
    assert "Invite the user again" in finding["mend"]
    clock.move(days=7)
    admin.login("root@example.com", PASSWORD)
    (finding,) = admin.get(f"/api/users/{user['id']}/why").json["findings"]
    assert finding["code"] == "invitation-expired"


def test_links_of_invitations_lead_to_a_page_of_the_application(make_site: Callable[..., Site]) -> None:
    site = make_site(base_url="https://users.example.com", link_invite="/app/welcome?from=email")
    site.service.invitations.invite([guest(ADA)], WEEK, by=OPERATOR)
    link = last_link(site.service)
    assert link.path == "/app/welcome"


@pytest.mark.slow
def test_500_invitations_outlive_an_hour_without_a_mail_server(
    make_site: Callable[..., Site], clock: FakeClock
) -> None:
    """Each arrives exactly once, or its fate is told. All 500 with USERSCTL_LONG=1, in every run some of them."""
    number_of_guests = 500 if LONG else 80
    port = free_port()
    site = make_site(mailer_host="127.0.0.1", mailer_port=port)
    service = site.service
    guests = [guest(f"guest-{number}@example.com") for number in range(number_of_guests)]
    refused, withdrawn, again = (guests[number].email for number in (7, 8, 9))
    users = {user.email: user for user in service.invitations.invite(guests, WEEK, by=OPERATOR)}
    service.invitations.invite([guest("late@example.com")], timedelta(hours=1), by=OPERATOR)
    assert {attempt.state for attempt in send_all(service)} == {"waiting"}
    clock.move(minutes=30)
    for _ in range(30):  # enough to see that they are tried again
        assert service.outbox.work()
    clock.move(minutes=30)
    service.invitations.withdraw([users[withdrawn].id], by=OPERATOR)
    service.invitations.again([users[again].id], WEEK, by=OPERATOR)
    with smtp_server(Postbox({f"RCPT {refused}": "550 no such user"}), port=port) as box:
        for _ in range(3):
            send_all(service)
            clock.move(minutes=20)
    received = [recipient for email in box.received for recipient in email.recipients]
    assert sorted(received) == sorted(users.keys() - {refused, withdrawn})
    told = {waiting.user.email: waiting.last_email for waiting in service.invitations.waiting()}
    assert [email for email in told if told[email] != "sent"] == ["late@example.com", refused]
    assert (told["late@example.com"], told[refused]) == ("dropped", "failed")
    links = {email.link.email: email.link for email in box.received}
    assert accept(site.client(), links[again], name="Guest").status == 200
