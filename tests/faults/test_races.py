"""Two admins who take each other's rights, or delete each other, at the same moment: one of them stays.

150 rounds in every run, 500 by `USERSCTL_LONG=1 pytest tests/faults`.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from support.accounts import only_admins, open_session
from support.faults import LONG, OPEN
from support.web import Client, Reply, Site

from usersctl.models import User

ROUNDS = 500 if LONG else 150
WAYS: tuple[Callable[[Client, int, int], Reply], ...] = (
    lambda client, _me, other: client.patch(f"/api/users/{other}", {"role": "user"}),
    lambda client, _me, other: client.patch(f"/api/users/{other}", {"active": False}),
    lambda client, _me, other: client.delete(f"/api/users/{other}"),
    lambda client, me, _other: client.patch(f"/api/users/{me}", {"role": "user"}),
    lambda client, me, _other: client.delete(f"/api/users/{me}"),
)


@pytest.mark.slow
def test_two_admins_who_remove_each_other_leave_one(make_site: Callable[..., Site]) -> None:
    site = make_site(**OPEN)
    start, statuses = Barrier(2, timeout=20), []
    with ThreadPoolExecutor(2) as pool:
        for number in range(ROUNDS):
            users = only_admins(site.service, number)
            tokens = [open_session(site.service, user).token for user in users]

            def act(
                which: int, number: int = number, users: list[User] = users, tokens: list[str] = tokens
            ) -> Reply:
                me, other = users[which].id, users[1 - which].id
                client = Client(site.port, {"auth_token": tokens[which]})
                way = WAYS[number % 5] if which == 0 else WAYS[number // 5 % 5]
                start.wait()
                return way(client, me, other)

            replies = list(pool.map(act, (0, 1)))
            with site.service.store.read() as tx:
                assert tx.active_admins() >= 1, replies
            assert {reply.status for reply in replies} <= {200, 400, 401, 403, 404}, replies
            statuses.append(sorted(reply.status for reply in replies))
            assert 200 in statuses[-1], replies
    print(
        f"{ROUNDS} rounds: {sum(status != [200, 200] for status in statuses)} times one of the two was refused"
    )
