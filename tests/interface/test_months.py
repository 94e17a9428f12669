"""Months of everyday use: what expires, is given up or is deleted leaves no rows behind."""

from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any
from urllib.parse import urlencode

import pytest
from support.accounts import signed_in_admin
from support.authenticator import Authenticator
from support.commands import OPERATOR, PASSWORD
from support.fakes import FakeClock
from support.passkeys import ORIGIN, add_passkey, options, use_passkey
from support.postbox import Link, link_in
from support.second_factors import SECOND_STEP, enrol, second_step
from support.tables import query
from support.web import Client, Site, running

from usersctl.config.webhooks import Webhook
from usersctl.invitations import guest
from usersctl.mail.sending import Undeliverable
from usersctl.models import SYSTEM, Role
from usersctl.service import Service
from usersctl.webhooks.errors import NotDelivered
from usersctl.webhooks.sending import Answer

ANOTHER = "another horse battery"
OPS = Webhook("ops", "https://ops.example.com/hook", ("whsec_" + "A" * 43 + "=",))
DOWN = Webhook("down", "https://down.example.com/hook", ("whsec_" + "A" * 43 + "=",))
SEASON = timedelta(days=10)
# Longer than all that expires: an API token of 90 days is the longest.
SEASONS_UNTIL_STEADY, MORE_SEASONS = 11, 3
# Of these it is said in the documentation that they stay.
KEPT = {"audit", "daily_counts"}


class Months:
    """The same people come, use the service in all ways, and go, again and again."""

    def __init__(self, site: Site, clock: FakeClock) -> None:
        self.site, self.clock, self.service = site, clock, site.service
        self.links: dict[str, Link] = {}  # the newest by address and page
        self.numbers = count(1)
        # They stay all the time.
        self.admin, self.bea = site.add("admin", role=Role.ADMIN), site.add("bea")
        enrol(site.signed_in(self.bea), clock)
        self.outbox = self.service.outbox._replace(given_send=self._send)
        assert self.service.webhooks is not None
        taken, refused = self.service.webhooks.deliveries["ops"], self.service.webhooks.deliveries["down"]
        self.deliveries = taken._replace(post=self._take), refused._replace(post=self._refuse)

    def _send(self, message: Any, to: str, _number: int) -> str:
        if to.startswith("bounces"):
            raise Undeliverable("550 no such user", permanent=True)
        text = message.get_body(("plain",)).get_content()
        if "http" in text:
            link = link_in(text)
            self.links[to + link.path] = link
        return "250 OK"

    def _take(self, *_: Any, **__: Any) -> Answer:
        return Answer(204)

    def _refuse(self, *_: Any, **__: Any) -> Answer:
        raise NotDelivered("connection refused")

    def send_all(self) -> None:
        for sender in (self.outbox, *self.deliveries):
            while sender.work() is not None:
                pass

    def link(self, email: str, page: str) -> dict[str, str]:
        self.send_all()
        link = self.links.pop(email + page)
        return {"token": link.token, "email": link.email}

    def registered(self, name: str) -> Client:
        """A person who has just registered, confirmed and signed in."""
        client, email = self.site.client(), f"{name}@example.com"
        new = {"email": email, "name": name, "password": PASSWORD}
        assert client.post("/api/users/register", new).status == 200
        confirmed = client.get(f"/api/users/confirm-email?{urlencode(self.link(email, '/confirm-email'))}")
        assert confirmed.status == 200
        assert client.login(email, PASSWORD, rememberMe=True).status == 200
        return client

    def season(self) -> None:
        name = f"person{next(self.numbers)}"
        email, client = f"{name}@example.com", self.registered(name)
        self._sessions_and_tokens(client, email)
        self._addresses(client, name)
        email = f"{name}@new.example.com"
        self._factors(client, email)
        self._unfinished(email, name)
        self._by_operators(name)
        assert client.send("DELETE", "/api/users/me", {}).status == 200
        self.send_all()
        self.clock.now += SEASON
        self.service.claims.expire()
        self.service.deletion.carry_out(by=SYSTEM)
        self.send_all()
        self.service.cleaner.run(by=SYSTEM)

    def _sessions_and_tokens(self, client: Client, email: str) -> None:
        assert client.post("/api/users/me/tokens", {"name": "n", "expires": "90d"}).status == 200
        for _ in range(2):
            assert self.site.client().login(email, "wrong").status == 401
        known = Client(
            self.site.port, {key: value for key, value in client.cookies.items() if "device" in key}
        )
        assert known.login(email, "wrong").status == 401
        wrong = {"currentPassword": "wrong", "newPassword": ANOTHER, "newPasswordConfirmation": ANOTHER}
        assert client.patch("/api/users/password", wrong).status == 400
        assert client.patch("/api/users/password", wrong | {"currentPassword": PASSWORD}).status == 200
        for _ in range(2):
            assert client.post("/api/users/password/forgot", {"email": email}).status == 200
        link = self.link(email, "/reset-password")
        new = {"password": PASSWORD, "password_confirmation": PASSWORD}
        assert client.post("/api/users/password/reset", link | new).status == 200
        assert client.login(email, PASSWORD, rememberMe=True).status == 200
        assert self.site.client().login(email, PASSWORD).status == 200

    def _addresses(self, client: Client, name: str) -> None:
        new = f"{name}@new.example.com"
        assert client.patch("/api/users/me", {"email": new}).status == 200
        proof = self.link(new, "/confirm-new-email") | {"password": PASSWORD}
        assert client.post("/api/users/me/email", proof).status == 200
        assert client.patch("/api/users/me", {"email": f"{name}@unproven.example.com"}).status == 200
        self.send_all()

    def _factors(self, client: Client, email: str) -> None:
        phone = enrol(client, self.clock)
        device = Authenticator(ORIGIN)
        assert add_passkey(client, device).status == 200
        remembered = second_step(self.site.client(), email)
        body = {"code": phone.next_code(), "rememberDevice": True}
        assert remembered.post(SECOND_STEP, body).status == 200
        code = {"recoveryCode": phone.codes[0]}
        assert second_step(self.site.client(), email).post(SECOND_STEP, code).status == 200
        assert use_passkey(client, device).status == 200
        assert second_step(self.site.client(), email).post(SECOND_STEP, {"code": "000000"}).status == 401

    def _unfinished(self, email: str, name: str) -> None:
        """What people begin and never end."""
        client = self.site.client()
        second_step(client, self.bea.email)
        admin = self.site.signed_in(self.admin)
        assert admin.post("/api/users/me/totp").status == 200
        assert admin.patch("/api/users/me", {"email": f"{name}@admin.example.com"}).status == 200
        new = {"email": f"{name}@nobody.example.com", "name": name, "password": PASSWORD}
        assert client.post("/api/users/register", new).status == 200
        bounces = new | {"email": f"bounces-{name}@example.com"}
        assert client.post("/api/users/register", bounces).status == 200
        assert (
            client.post("/api/users/password/forgot", {"email": f"{name}@unknown.example.com"}).status == 200
        )
        second_step(client, email)
        options(client)
        begins = self.registered(f"{name}-begins")
        assert begins.post("/api/users/me/totp").status == 200
        id_ = begins.get("/api/users/me").json["user"]["id"]
        self.service.accounts.delete([id_], by=OPERATOR)

    def _by_operators(self, name: str) -> None:
        by = signed_in_admin(self.service, self.admin)
        group = self.service.groups.create(f"g-{name}", by=by)
        guests = [guest(f"{name}-{which}@guests.example.com", "G", "user", [group.name]) for which in "ab"]
        invited = self.service.invitations.invite(guests, timedelta(days=7), by=by)
        accepted = self.link(invited[0].email, "/accept-invite") | {"password": PASSWORD}
        assert self.site.client().post("/api/users/invite/accept", accepted).status == 200
        self.service.invitations.withdraw([invited[1].id], by=by)
        self.service.groups.add(group.name, [self.bea.id], by=by)
        self.service.groups.delete(group.name, by=by)
        self.service.accounts.delete([invited[0].id], by=by)

    def rows(self) -> dict[str, int]:
        tables = query(
            self.service,
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'user_search%'",
        )
        return {name: query(self.service, f"SELECT count(*) FROM {name}")[0][0] for (name,) in tables}  # noqa: S608 - our own tables


@pytest.mark.slow
@pytest.mark.sqlite  # asks a file for its tables
def test_tables_do_not_grow_with_the_months(make_service: Callable[..., Service], clock: FakeClock) -> None:
    service = make_service(base_url=ORIGIN, whitelist=("/register",), webhooks=(OPS, DOWN), processes=2)
    with running(service) as site:
        months = Months(site, clock)
        for _ in range(SEASONS_UNTIL_STEADY):
            months.season()
        before = months.rows()
        for _ in range(MORE_SEASONS):
            months.season()
        after = months.rows()
    grown = {name: (before[name], number) for name, number in after.items() if number > before[name]}
    assert set(grown) <= KEPT, grown
