"""A process that is killed before any statement of `usersctl apply` has done all that its file says, or nothing.

A small file in every run; one that is killed more than 100 times by `USERSCTL_LONG=1 pytest tests/faults`.
"""

import json
from contextlib import closing
from pathlib import Path

import pytest
from support.databases import add_database, database_at
from support.faults import LONG
from support.killed import folders_after_kills, opened
from support.states import apply, world
from support.tables import query

USERS = 8 if LONG else 2
ACT = """
# Once, and not in each of the processes that are killed.
import email_validator, usersctl.mail.outbox, usersctl.state.state
from usersctl.state.planning import Options
from usersctl.state.reading import read_state


def act(database):
    options = Options(adopt=True, prune="delete")
    desired_state = service_on(database).desired_state
    desired_state.apply(read_state({content!r}), options, confirmed=True, by=operator)
"""


def entry(kind: str, number: int, **fields: object) -> dict[str, object]:
    return {"email": f"{kind}{number}@example.com", **fields}


# Some stay, some leave, some are changed; then some are made, and some of these invited.
FIRST = {
    "name": "people",
    "groups": [{"name": "old"}, {"name": "staff"}],
    "users": [
        *(entry("stay", n, groups=["old", "staff"]) for n in range(USERS)),
        *(entry("leave", n, role="admin") for n in range(USERS)),
    ],
}
SECOND = {
    "name": "people",
    "groups": [{"name": "new"}, {"name": "staff"}],
    "users": [
        *(entry("stay", n, name="Renamed", active=n > 0, groups=["new"]) for n in range(USERS)),
        *(entry("guest", n, invite=True, groups=["staff"]) for n in range(USERS)),
        *(entry("new", n, role="admin") for n in range(USERS)),
    ],
}


@pytest.mark.slow
def test_an_apply_that_is_killed_has_done_all_or_nothing(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    add_database(database_at(made / "users.db"))
    with closing(opened(made)) as service:
        apply(service, FIRST)
        before = world(service)
    outcomes = []
    content = json.dumps(SECOND).encode()
    with folders_after_kills(made, ACT.format(content=content)) as folders:
        assert len(folders) > (100 if LONG else 20)
        for folder in folders:
            with closing(opened(folder)) as service:
                is_done = world(service) != before
                outcomes.append(is_done)
                ((invitations,),) = query(service, "SELECT count(*) FROM outbox WHERE kind = 'invitation'")
                assert invitations == USERS * is_done
                assert query(service, "SELECT count(*) FROM applied_invitations") == [(invitations,)]
                with service.store.read() as tx:
                    assert tx.check_audit().problem is None
                # The next run does what is left, and then there is nothing to do.
                left = apply(service, SECOND, adopt=True, prune="delete")
                assert bool(left) != is_done
                assert apply(service, SECOND, adopt=True, prune="delete") == []
    assert set(outcomes) == {False, True}
    assert outcomes == sorted(outcomes)
