"""Groups: names, members, and what remains of a deleted group."""

from collections.abc import Callable

import pytest
from support.commands import OPERATOR
from support.tables import audit, query

from usersctl.errors import Forbidden, Invalid, NotFound, Taken
from usersctl.groups import REMOVED_AT_ONCE
from usersctl.models import Newcomer, User
from usersctl.service import Service


def members(service: Service, group: str) -> int:
    return service.groups.get(group).members


@pytest.mark.parametrize("name", ["a", "0", "staff", "a.b_c-d", "9lives", "x" * 63, "user", "admin"])
def test_a_group_is_created_under_its_name(service: Service, name: str) -> None:
    assert service.groups.create(name, by=OPERATOR).as_json() == {"name": name, "members": 0}
    assert [group.name for group in service.groups.all()] == [name]


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            " staff",
            "staff ",
            "Staff",
            "-a",
            ".a",
            "_a",
            "a,b",
            "a b",
            "a\n",
            "a\r\nX: 1",
            "é",
            "\uff41",
            "x" * 64,
        ),
        *("a/b", "a;b", "a%2Cb", "a\0", "group:staff", "²", "a\u200b"),
    ],
)
def test_another_name_is_refused(service: Service, name: str) -> None:
    with pytest.raises(Invalid, match="Group name must be of a-z"):
        service.groups.create(name, by=OPERATOR)
    assert service.groups.all() == []


def test_a_name_is_taken_once(service: Service) -> None:
    service.groups.create("staff", by=OPERATOR)
    with pytest.raises(Taken, match="Group name is taken"):
        service.groups.create("staff", by=OPERATOR)


def test_members_are_counted_with_every_change(service: Service, add: Callable[..., User]) -> None:
    ada, bob = add("ada"), add("bob")
    service.groups.create("staff", by=OPERATOR)
    assert service.groups.add("staff", [ada.id, bob.id, ada.id], by=OPERATOR) == [ada, bob]
    assert service.groups.add("staff", [ada.id], by=OPERATOR) == []
    assert members(service, "staff") == 2
    assert service.groups.remove("staff", [ada.id], by=OPERATOR) == [ada]
    assert service.groups.remove("staff", [ada.id], by=OPERATOR) == []
    assert members(service, "staff") == 1
    service.accounts.delete([bob.id], by=OPERATOR)
    assert members(service, "staff") == 0


def test_each_change_of_a_member_is_in_the_audit_trail(service: Service, add: Callable[..., User]) -> None:
    ada = add("ada")
    service.groups.create("staff", by=OPERATOR)
    service.groups.add("staff", [ada.id], by=OPERATOR)
    service.groups.add("staff", [ada.id], by=OPERATOR)
    service.groups.set(ada.id, [], by=OPERATOR)
    service.groups.delete("staff", by=OPERATOR)
    rows = [(row.action, row.user_id, row.email, row.details) for row in audit(service)[1:]]
    assert rows == [
        ("group-create", None, None, {"group": "staff"}),
        ("group-add", ada.id, ada.email, {"group": "staff"}),
        ("group-remove", ada.id, ada.email, {"group": "staff"}),
        ("group-delete", None, None, {"group": "staff", "members": 0}),
    ]


def test_an_unknown_user_stops_the_whole_change(service: Service, add: Callable[..., User]) -> None:
    ada = add("ada")
    service.groups.create("staff", by=OPERATOR)
    with pytest.raises(NotFound, match="User not found"):
        service.groups.add("staff", [ada.id, 99], by=OPERATOR)
    assert members(service, "staff") == 0


def test_other_changes_come_in_between_those_of_many_members(
    service: Service, add: Callable[..., User], monkeypatch: pytest.MonkeyPatch
) -> None:
    service.groups.create("staff", by=OPERATOR)
    users = [add(name).id for name in ("ada", "bea", "cyd", "dan", "eve")]
    monkeypatch.setattr("usersctl.groups.CHANGED_AT_ONCE", 2)
    transactions = []
    write = service.store.write
    monkeypatch.setattr(service.store, "write", lambda: transactions.append(1) or write())
    assert len(service.groups.add("staff", users, by=OPERATOR)) == 5
    assert len(transactions) == 3
    assert members(service, "staff") == 5
    with pytest.raises(NotFound):
        service.groups.add("unknown", [], by=OPERATOR)


def test_the_groups_of_a_user_are_set_as_a_whole_or_not(service: Service, add: Callable[..., User]) -> None:
    ada = add("ada")
    for name in ("staff", "board", "guests"):
        service.groups.create(name, by=OPERATOR)
    assert service.groups.set(ada.id, ["staff", "board", "staff"], by=OPERATOR) == ("board", "staff")
    assert service.groups.set(ada.id, ["guests", "staff"], by=OPERATOR) == ("guests", "staff")
    with pytest.raises(Invalid, match="Unknown group"):
        service.groups.set(ada.id, ["board", "nobody"], by=OPERATOR)
    assert service.groups.of(ada.id) == ("guests", "staff")
    assert {group.name: group.members for group in service.groups.all()} == {
        "board": 0,
        "guests": 1,
        "staff": 1,
    }


def test_a_group_with_members_is_deleted_only_on_demand(service: Service, add: Callable[..., User]) -> None:
    ada = add("ada")
    service.groups.create("staff", by=OPERATOR)
    service.groups.add("staff", [ada.id], by=OPERATOR)
    with pytest.raises(Forbidden, match="Group staff has members"):
        service.groups.delete("staff", with_members=False, by=OPERATOR)
    service.groups.delete("staff", by=OPERATOR)
    assert service.groups.of(ada.id) == ()
    with pytest.raises(NotFound):
        service.groups.get("staff")


def test_a_large_group_ends_at_once_and_the_cleanup_removes_its_rows(service: Service) -> None:
    count = REMOVED_AT_ONCE + 120
    with service.store.write() as tx:
        ids = tx.add_users([Newcomer(f"u{n}@example.com", "U") for n in range(count)])
    for name in ("staff", "board"):
        service.groups.create(name, by=OPERATOR)
        service.groups.add(name, ids, by=OPERATOR)
    service.groups.delete("staff", by=OPERATOR)
    assert service.groups.of(ids[-1]) == ("board",)
    assert query(service, "SELECT count(*) FROM group_members") == [(count + 120,)]
    # A new group of the name is another group.
    assert service.groups.create("staff", by=OPERATOR).members == 0
    assert service.groups.of(ids[-1]) == ("board",)
    service.cleaner.run(by=OPERATOR)
    assert query(service, "SELECT count(*) FROM group_members") == [(count,)]
    assert members(service, "board") == count
