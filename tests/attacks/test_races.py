"""Requests at once for one address, or with one link: one of them succeeds."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from support.commands import PASSWORD
from support.web import Client, Site, running

from usersctl.models import User
from usersctl.service import Service


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        barrier.wait(10)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_parallel_creations_of_an_address_make_one_account(site: Site, add: Callable[..., User]) -> None:
    add(role="admin")
    admin = site.client()
    admin.login("ada@example.com", PASSWORD)
    for number in range(5):
        spellings = [f"eve{number}@example.com", f"EVE{number}@example.com", f" eve{number}@EXAMPLE.com "] * 3
        replies = at_once(
            *(
                lambda e=email: Client(site.port, dict(admin.cookies)).post(
                    "/api/users", {"email": e, "name": "Eve", "password": PASSWORD}
                )
                for email in spellings
            )
        )
        statuses = sorted(reply.status for reply in replies)
        assert statuses.count(200) == 1, statuses
        assert set(statuses) <= {200, 400, 503}
        assert len(admin.get(f"/api/users?search=eve{number}").json["users"]) == 1


def test_parallel_changes_to_an_address_give_it_to_one_user(site: Site, add: Callable[..., User]) -> None:
    clients = []
    for number in range(6):
        add(f"user{number}")
        clients.append(site.client())
        clients[-1].login(f"user{number}@example.com", PASSWORD)
    replies = at_once(
        *(lambda c=client: c.patch("/api/users/me", {"email": "Same@example.com"}) for client in clients)
    )
    assert sorted(reply.status for reply in replies) == [200] + [400] * 5


def test_a_first_admin_link_makes_one_admin(make_service: Callable[..., Service]) -> None:
    service = make_service()
    token = service.first_admin.link().partition("token=")[2]
    with running(service) as site:
        replies = at_once(
            *(
                lambda n=n: site.client().post(
                    "/api/users/setup",
                    {"token": token, "email": f"a{n}@example.com", "name": "A", "password": PASSWORD},
                )
                for n in range(8)
            )
        )
    assert [reply.status for reply in replies].count(200) == 1
    with service.store.read() as tx:
        assert tx.counts()["users"] == tx.active_admins() == 1
