"""The endpoints of groups, which are for admins."""

import re
from typing import Any

import pytest
from support.commands import OPERATOR
from support.tables import audit
from support.web import Client, Site


@pytest.fixture
def admin(site: Site) -> Client:
    return site.signed_in(site.add("root", role="admin"))


def test_groups_are_created_listed_and_deleted(admin: Client) -> None:
    assert admin.get("/api/groups").json == {"groups": []}
    for name in ("staff", "board"):
        reply = admin.post("/api/groups", {"name": name, "members": 7})
        assert (reply.status, reply.json) == (200, {"group": {"name": name, "members": 0}})
    assert [group["name"] for group in admin.get("/api/groups").json["groups"]] == ["board", "staff"]
    assert admin.send("DELETE", "/api/groups/staff").json == {"success": True}
    reply = admin.send("DELETE", "/api/groups/staff")
    assert (reply.status, reply.message) == (404, "Group not found")
    assert admin.get("/api/groups").json == {"groups": [{"name": "board", "members": 0}]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Name is required"),
        ({"name": ""}, "Name is required"),
        ({"name": None}, "Name is required"),
        ({"name": 7}, "name must be a string"),
        (
            {"name": "Staff"},
            "Group name must be of a-z, 0-9 and . _ -, 63 at most, and begin with a-z or 0-9",
        ),
        (
            {"name": "a,b"},
            "Group name must be of a-z, 0-9 and . _ -, 63 at most, and begin with a-z or 0-9",
        ),
        ({"name": "taken"}, "Group name is taken"),
    ],
)
def test_a_group_without_a_good_name_is_a_400(admin: Client, body: dict[str, Any], message: str) -> None:
    admin.post("/api/groups", {"name": "taken"})
    reply = admin.post("/api/groups", body)
    assert (reply.status, reply.message) == (400, message)


@pytest.mark.parametrize(
    "name", ["nobody", "Staff", "a%20b", "%00", "%ff", "staff%0a", "x" * 2000, "1", "..", "%2e%2e"]
)
def test_a_name_that_no_group_has_is_a_404(admin: Client, name: str) -> None:
    admin.post("/api/groups", {"name": "staff"})
    assert admin.send("DELETE", f"/api/groups/{name}").status in (400, 404)
    assert len(admin.get("/api/groups").json["groups"]) == 1


def test_the_groups_of_a_user_are_read_and_set(site: Site, admin: Client) -> None:
    ada = site.add("ada")
    path = f"/api/users/{ada.id}/groups"
    for name in ("staff", "board"):
        admin.post("/api/groups", {"name": name})
    assert admin.get(path).json == {"groups": []}
    reply = admin.send("PUT", path, {"groups": ["staff", "board", "staff"]})
    assert (reply.status, reply.json) == (200, {"groups": ["board", "staff"]})
    assert admin.get(path).json == {"groups": ["board", "staff"]}
    assert admin.get("/api/groups").json["groups"] == [
        {"name": "board", "members": 1},
        {"name": "staff", "members": 1},
    ]
    assert admin.send("PUT", path, {"groups": []}).json == {"groups": []}
    actions = [
        (row.action, row.details["group"])
        for row in audit(site.service)
        if row.user_id == ada.id and "group" in row.details
    ]
    assert actions == [
        ("group-add", "board"),
        ("group-add", "staff"),
        ("group-remove", "board"),
        ("group-remove", "staff"),
    ]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Groups are required"),
        ({"groups": None}, "Groups are required"),
        ({"groups": "staff"}, "groups must be a list"),
        ({"groups": {"staff": True}}, "groups must be a list"),
        ({"groups": ["staff", 1]}, "groups must be a list of strings"),
        ({"groups": [["staff"]]}, "groups must be a list of strings"),
        ({"groups": ["staff", "nobody"]}, "Unknown group"),
        ({"groups": ["STAFF"]}, "Unknown group"),
    ],
)
def test_groups_that_cannot_be_set_change_nothing(
    site: Site, admin: Client, body: dict[str, Any], message: str
) -> None:
    ada = site.add("ada")
    admin.post("/api/groups", {"name": "staff"})
    admin.post("/api/groups", {"name": "board"})
    site.service.groups.set(ada.id, ["board"], by=OPERATOR)
    reply = admin.send("PUT", f"/api/users/{ada.id}/groups", body)
    assert (reply.status, reply.message) == (400, message)
    assert site.service.groups.of(ada.id) == ("board",)


def test_an_unknown_user_has_no_groups(admin: Client) -> None:
    for path, status in (("/api/users/99/groups", 404), ("/api/users/0x1/groups", 400)):
        assert admin.get(path).status == status
        assert admin.send("PUT", path, {"groups": []}).status == status


def test_only_admins_see_and_change_groups(site: Site, admin: Client) -> None:
    """Not even their own: a rule for a group would be none."""
    admin.post("/api/groups", {"name": "staff"})
    ada = site.add("ada")
    own = f"/api/users/{ada.id}/groups"
    requests: list[tuple[str, str, Any]] = [
        ("GET", "/api/groups", None),
        ("POST", "/api/groups", {"name": "board"}),
        ("DELETE", "/api/groups/staff", None),
        ("GET", own, None),
        ("PUT", own, {"groups": ["staff"]}),
    ]
    for client, status in ((site.client(), 401), (site.signed_in(ada), 403)):
        for method, path, body in requests:
            assert client.send(method, path, body).status == status
    ada_client = site.signed_in(ada)
    assert "groups" not in ada_client.send("PATCH", "/api/users/me", {"groups": ["staff"], "name": "A"}).json
    assert site.service.groups.of(ada.id) == ()


def test_the_user_object_has_no_groups(site: Site, admin: Client) -> None:
    ada = site.add("ada")
    admin.post("/api/groups", {"name": "staff"})
    admin.send("PUT", f"/api/users/{ada.id}/groups", {"groups": ["staff"]})
    assert "groups" not in admin.get(f"/api/users/{ada.id}").json["user"]
    assert "groups" not in site.signed_in(ada).get("/api/users/me").json["user"]


# --- the page ---


def test_the_page_lists_groups_and_goes_on_behind_the_last(site: Site, admin: Client) -> None:
    assert b"There are no groups." in admin.get("/users/groups").body
    for number in range(32):
        site.service.groups.create(f"g{number:03}", by=OPERATOR)
    site.service.groups.add("g000", [site.add("ada").id], by=OPERATOR)
    first = admin.get("/users/groups").body.decode()
    assert first.count("<tr><th") == 1 + 30
    assert '<a href="/users?group=g000">1</a>' in first
    assert 'data-path="/api/groups/g029"' in first
    (more,) = re.findall(r'href="(\?after=[^"]*)"', first)
    second = admin.get(f"/users/groups{more}").body.decode()
    assert re.findall(r'data-path="/api/groups/(\w+)"', second) == ["g030", "g031"]
    assert "?after=" not in second
    assert admin.get("/users/groups?after=%ff&x=<b>").status == 200


def test_the_page_is_for_admins(site: Site) -> None:
    reply = site.signed_in(site.add("ada")).get("/users/groups", headers={"Accept": "text/html"})
    assert (reply.status, b"This page is for admins" in reply.body) == (403, True)
    assert site.client().get("/users/groups").header("Location") == "/login?redirect=/users/groups"
