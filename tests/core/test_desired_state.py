"""Desired state: what a file may say, the plan, and that applying it does what the plan said, all of it or nothing."""

import random
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from support.accounts import open_session
from support.commands import HASH, OPERATOR, create_user
from support.factors import add_authenticator_apps, store_passkey
from support.fakes import FakeClock
from support.faults import LONG
from support.identities import link
from support.states import (
    after,
    apply,
    disturb,
    random_options,
    random_state,
    read,
    world,
)
from support.tables import audit, everything, query, statements

from usersctl.clock import stamp
from usersctl.config.webhooks import Webhook
from usersctl.errors import Forbidden, LastAdmin, Taken, UsersError
from usersctl.mail.kinds import CONFIRM, CONFIRM_NEW_EMAIL, DELETE, INVITATION, RESET, UNDO
from usersctl.models import PendingSignIn, User
from usersctl.service import Service
from usersctl.state.lines import Place, lines_of
from usersctl.state.planning import Change, Conflicts, Options
from usersctl.state.reading import LARGEST, Broken, WantedGroup, WantedUser, read_state
from usersctl.store.conninfo import Conninfo

STATES = 2_000 if LONG else 60
ADA, BOB, CY = (f"{name}@example.com" for name in ("ada", "bob", "cy"))


def people(
    *users: str | dict[str, Any], groups: tuple[str, ...] = (), name: str = "people"
) -> dict[str, Any]:
    """A file; a user that is only an address leaves everything open."""
    entries = [{"email": user} if isinstance(user, str) else user for user in users]
    return {"name": name, "groups": [{"name": group} for group in groups], "users": entries}


def problems(content: str | bytes) -> list[tuple[str, str]]:
    with pytest.raises(Broken) as refused:
        read_state(content.encode() if isinstance(content, str) else content)
    return [(problem.where, problem.message) for problem in refused.value.problems]


def short(changes: list[Change]) -> list[tuple[str, str, str]]:
    return [(change.action, change.kind, change.key) for change in changes]


def invitations(service: Service, email: str) -> int:
    ((count,),) = query(service, "SELECT count(*) FROM outbox WHERE kind = 'invitation' AND email = ?", email)
    return int(count)


# --- the file ---

FILE = """\
name = "people"   # [[users]]

[[groups]]
name = "staff"

[[users]]
email = " Ada@Example.COM "
name = \"\"\"
Ada
\"\"\"
role = "admin"
active = true
groups = [
    "staff",
    "board",  # ]
]

[[users]]
email = 'bob@example.com'
invite = true
"""


def test_a_file_is_read_in_the_stored_form_of_its_fields() -> None:
    state = read(FILE)
    assert (state.name, state.groups) == ("people", (WantedGroup(0, "staff"),))
    ada, bob = state.users
    assert ada == WantedUser(0, ADA, "Ada", "admin", True, ("board", "staff"), False)
    assert bob == WantedUser(1, BOB, invite=True)
    places = [state.groups[0].place(), ada.place(), ada.place("groups"), bob.place()]
    assert list(map(state.places.named, places)) == ["line 4", "line 7", "line 13", "line 19"]


def test_json_says_the_same_and_its_places_have_a_path() -> None:
    state = read(people({"email": ADA, "groups": ["staff"]}, groups=("staff",)))
    assert state.users == (WantedUser(0, ADA, groups=("staff",)),)
    assert state.groups == (WantedGroup(0, "staff"),)
    places = [state.groups[0].place(), state.users[0].place(), state.users[0].place("groups")]
    assert list(map(state.places.named, places)) == [
        "line 1, groups[0].name",
        "line 1, users[0].email",
        "line 1, users[0].groups",
    ]


def test_problems_of_json_are_named_by_line_and_path() -> None:
    text = """{
  "name": "people",
  "users": [
    {"email": "ada@example.com", "role": "boss"},
    {
      "email": "bob@example.com", "name": "}] \\\" {",
      "note": {"role": ["[{"], "active":
        {}}, "groups": [
        "a", {"invite": "}"}],
      "active" :
        1
    },
    3
  ],
  "groups": [{}, {
    "name"
    : "Staff"}],
  "colour": 1
}"""
    assert [where for where, _ in problems(text)] == [
        "line 4, users[0].role",
        "line 7, users[1].note",
        "line 8, users[1].groups",
        "line 10, users[1].active",
        "line 13, users[2]",
        "line 15, groups[0]",
        "line 16, groups[1].name",
        "line 18, colour",
    ]


def test_all_problems_are_named_by_line_and_key_with_what_is_allowed() -> None:
    text = """\
naem = "people"

[[users]]
email = "nonsense"
role = "boss"

[[users]]
email = "ada@example.com"
activ = true
groups = "staff"
name = ""

[[users]]
name = '''
[[users]]
'''

[[users]]
email = "ADA@example.com"
invite = true
active = false

[[groups]]
name = "Staff"
"""
    assert problems(text) == [
        ("file", 'it has no name; begin it with one, such as name = "people"'),
        ("line 1", "unknown key naem; perhaps name; known are name, users, groups"),
        ("line 4", "email: Invalid email format: 'nonsense'"),
        ("line 5", "role: Role must be one of admin, user: 'boss'"),
        ("line 9", "unknown key activ; perhaps active; known are email, name, role, active, groups, invite"),
        ("line 10", 'groups: must be a list of at most 1,000 names, such as ["staff", "board"]'),
        ("line 11", "name: Name must have 1 to 200 characters: ''"),
        ("line 13", "email is missing"),
        ("line 19", "ada@example.com stands in users twice: see line 8"),
        ("line 20", "invite is for accounts that are to be used: leave it out, or active = false"),
        (
            "line 24",
            "name: Group name must be of a-z, 0-9 and . _ -, 63 at most, and begin with a-z or 0-9: 'Staff'",
        ),
    ]


def test_entries_in_one_list_are_named_by_their_lines() -> None:
    text = 'name = "x"\nusers = [\n  {email = "ada@example.com"},\n  {email = "b", role = "x"}, {}\n]\n'
    assert [where for where, _ in problems(text)] == ["line 4", "line 4", "line 4"]


def test_a_list_of_an_unknown_name_is_named_by_its_line() -> None:
    text = 'name = "x"\n[[user]]\nemail = "ada@example.com"\n[[user]]\n'
    assert problems(text) == [("line 2", "unknown key user; perhaps users; known are name, users, groups")]


# In each, something looks like a header, a bracket, a comment or the end of the value, and is not.
VALUES = [
    "true",
    "1979-05-27T07:32:00Z",
    '"plain # ["',
    '"an escaped \\" ] # [[users]]"',
    "'literal \\ \" ['",
    '"""\n[[users]]\nemail = "x"\n"""',
    '"""an escaped \\""" ] """',
    '"""ends with a quote""""',
    "'''\n]] \" # \n[[groups]]\n'''",
    '["a", # ]\n  "b]",\n]',
    "[[1, 2],\n [3]]",
    '{a = "}", b = [1, {c = 2}]}  # {',
]


def test_each_key_of_any_document_is_found_in_its_line() -> None:
    chance = random.Random(random.randrange(10**9))
    for _ in range(200):
        lines: list[str] = []
        places: dict[Place, int] = {}
        numbers = dict.fromkeys(("users", "groups"), 0)

        def write(text: str, place: Place | None = None) -> None:
            if place is not None:
                places[place] = len(lines) + 1  # noqa: B023
            lines.extend(text.split("\n"))  # noqa: B023

        write(f"name = {chance.choice(VALUES)}", ("name", None, None))
        for kind in chance.choices(("users", "groups"), k=chance.randrange(6)):
            write(chance.choice(["", "# [[users]]", "\n\n", "\t"]))
            write(chance.choice([f"[[{kind}]]", f"  [[ {kind} ]]  # ["]), (kind, numbers[kind], None))
            for key in chance.sample(["email", "name", "no-te"], chance.randrange(4)):
                written = chance.choice([key, f'"{key}"', f"  {key}"])
                write(f"{written} = {chance.choice(VALUES)}", (kind, numbers[kind], key))
            numbers[kind] += 1
        document = "\n".join(lines)
        tomllib.loads(document)
        assert lines_of(document) == places, document


@pytest.mark.parametrize("key", ["password", "password_hash", "passwordHash"])
def test_a_password_never_stands_in_it(key: str) -> None:
    ((where, message),) = problems(f'name = "x"\n[[users]]\nemail = "ada@example.com"\n{key} = "{HASH}"\n')
    assert where == "line 4"
    assert message == f"{key}: passwords never stand in this file; invite = true lets the owner choose one"
    assert HASH not in message


@pytest.mark.parametrize(
    ("content", "where", "message"),
    [
        ('name = "x"\n[[users]\n', "line 2", "it is not TOML"),
        ('name = "x"\n[users]\n[users]\n', "line 3", "it is not TOML: table [users] stands twice"),
        ('{"name": "x"\n, y}', "line 2", "it is not JSON"),
        ('{"name": "x",\n"name": "y"}', "line 2", "name stands twice"),
        ('{"users": [{"name": "name"},\n{"name": "x",\n"n\\u0061me": [1]}]}', "line 3", "name stands twice"),
        ('name = "x"\n[users.ada]\nrole = "admin"', "line 2", "write each entry below [[users]]"),
        ('name = "x"\nusers.ada.role = "admin"', "line 2", "write each entry below [[users]]"),
        ('name = "x"\n"my users" = 1', "line 2", "unknown key my users"),
        ('{"name": "x", "us\\u0065rs": [\n{"email": 1}]}', "line 2, users[0].email", "must be text"),
        ('[{"email": "ada@example.com"}]', "file", "must be a JSON object"),
        ('\r\n[\r\n{"email": "ada@example.com"}]', "file", "must be a JSON object"),
        ('name = "x"\n[users]\nemail = "ada@example.com"', "line 2", "write each entry below [[users]]"),
        ('name = "x"\nusers = ["ada@example.com"]', "line 2", "must be a table"),
        ("name = 3", "line 1", "must be text"),
        (
            '{"name": "x", "users": [{"email": "\\ud800@example.com"}]}',
            "users[0].email",
            "holds a character that no text may hold",
        ),
        ('{"name": "x", "users": [{"email": 1}]}', "users[0].email", "must be text"),
        ('{"name": "x", "groups": {"name": "a"}}', "groups", "must be a list"),
        (b'name = "x"\n# \xff\n', "line 2", "UTF-8"),
        ('name = "x"\n[[users]]\nEMAIL = "a@b.cd"', "line 3", "unknown key EMAIL; perhaps email; known are"),
        ('name = "x"\n[[users]]\nrole = ["admin"]', "line 3", "must be one of admin, user"),
        ('name = "x"\n[[groups]]\nname = "a"\n[[groups]]\nname = "a"', "line 5", "twice: see line 3"),
        pytest.param("name = " + "1" * 5_000, "file", "it is not TOML", id="digits"),
        pytest.param(
            f'name = "x"\n[[users]]\ngroups = {["a"] * 1_001}', "line 3", "at most 1,000 names", id="groups"
        ),
        pytest.param(b" " * (LARGEST + 1), "file", "it is larger than 64 MiB", id="blanks"),
        pytest.param("[" * 100_000, "", "it is not", id="brackets"),
        pytest.param('{"a":' * 100_000, "", "it is not JSON", id="objects"),
        ("", "file", 'it has no name; begin it with one, such as name = "people"'),
        ("{}", "file", 'it has no name; begin it with one, such as "name": "people"'),
    ],
)
def test_what_is_no_such_file_is_refused_with_its_place(
    content: str | bytes, where: str, message: str
) -> None:
    found = problems(content)
    assert any(where in place and message in text for place, text in found), found


# --- what a plan does ---


def test_accounts_and_groups_are_made_and_a_second_time_changes_nothing(service: Service) -> None:
    file = people({"email": ADA, "name": "Ada", "role": "admin", "groups": ["staff"]}, BOB, groups=("staff",))
    made = apply(service, file)
    assert short(made) == [("create", "group", "staff"), ("create", "user", ADA), ("create", "user", BOB)]
    assert world(service).users[ADA] == made[1].after
    assert made[1].after == {
        "name": "Ada",
        "role": "admin",
        "active": True,
        "groups": ["staff"],
        "invited": False,
        "managed_by": "people",
    }
    before = everything(service)
    assert apply(service, file) == []
    assert everything(service) == before


def test_the_order_of_a_plan_depends_on_names_alone(service: Service) -> None:
    emails = [CY, ADA, BOB]
    orders = set()
    for users, groups in ((emails, ("b", "a")), (emails[::-1], ("a", "b"))):
        state = read(people(*users, groups=groups))
        orders.add(tuple(short(service.desired_state.plan(state, Options()))))
    (order,) = orders
    assert [key for _, _, key in order] == ["a", "b", ADA, BOB, CY]


@pytest.mark.parametrize("active", [True, False])
def test_a_plan_shows_that_it_decides_instead_of_an_owner_who_deletes_the_account(
    service: Service, add: Callable[..., User], active: bool
) -> None:
    user = add("ada")
    apply(service, people(ADA), adopt=True)
    with service.store.write() as tx:
        tx.change_user(user.id, active=False, delete_at="2030-01-01T00:00:00.000Z")
    assert apply(service, people(ADA)) == []
    apply(service, people({"email": ADA, "name": "Countess"}))
    assert query(service, "SELECT delete_at FROM users") == [("2030-01-01T00:00:00.000Z",)]
    (change,) = apply(service, people({"email": ADA, "active": active}))
    assert change.before is not None
    assert change.after is not None
    assert change.before["delete_at"] == "2030-01-01T00:00:00.000Z"
    assert change.after["delete_at"] is None
    assert query(service, "SELECT active, delete_at FROM users") == [(active, None)]
    assert apply(service, people({"email": ADA, "active": active})) == []


def test_what_the_file_leaves_open_stays(service: Service, add: Callable[..., User]) -> None:
    user = add("ada", role="admin")
    service.groups.create("staff", by=OPERATOR)
    service.groups.add("staff", [user.id], by=OPERATOR)
    (change,) = apply(service, people(ADA), adopt=True)
    assert change.before is not None
    assert change.after == change.before | {"managed_by": "people"}
    assert world(service).users[ADA] == change.after
    assert [row.action for row in audit(service)][-2:] == ["group-add", "adopt"]
    assert audit(service)[-1].details == {"file": "people"}


def test_an_account_that_no_file_or_another_one_manages_is_a_conflict(
    service: Service, add: Callable[..., User]
) -> None:
    add("ada")
    apply(service, people(BOB, groups=("staff",), name="others"))
    before = everything(service)
    with pytest.raises(Conflicts) as refused:
        apply(service, people(ADA, BOB, CY, groups=("staff",)))
    assert isinstance(refused.value, Taken)
    assert refused.value.hint == "--adopt takes over what exists"
    assert [message for _, message in refused.value.problems] == [
        "group staff exists, and is managed by the file 'others'",
        f"user 1 ({ADA}) exists, and is managed by no file",
        f"user 2 ({BOB}) exists, and is managed by the file 'others'",
    ]
    assert everything(service) == before
    apply(service, people(ADA, BOB, CY, groups=("staff",)), adopt=True)
    assert {view["managed_by"] for view in world(service).users.values()} == {"people"}
    with pytest.raises(Conflicts):
        apply(service, people(BOB, name="others"))


def test_only_accounts_of_the_file_are_pruned_and_only_if_asked(
    service: Service, add: Callable[..., User]
) -> None:
    add("ada", role="admin")
    apply(service, people(BOB, CY, groups=("staff",)))
    apply(service, people("dan@example.com", groups=("theirs",), name="others"))
    service.groups.create("unmanaged", by=OPERATOR)
    assert apply(service, people(CY)) == []
    assert short(apply(service, people(CY), prune="deactivate")) == [("update", "user", BOB)]
    assert apply(service, people(CY), prune="deactivate") == []
    assert world(service).users[BOB]["active"] is False
    assert short(apply(service, people(CY), prune="delete")) == [
        ("delete", "user", BOB),
        ("delete", "group", "staff"),
    ]
    assert set(world(service).users) == {ADA, CY, "dan@example.com"}
    assert set(world(service).groups) == {"theirs", "unmanaged"}


def test_a_deactivated_account_is_signed_out(service: Service, add: Callable[..., User]) -> None:
    add("bob", role="admin")
    user = add("ada")
    open_session(service, user)
    apply(service, people({"email": ADA, "active": False}), adopt=True)
    assert query(service, "SELECT count(*) FROM auth_tokens") == [(0,)]
    assert [row.action for row in audit(service)][-2:] == ["deactivate", "adopt"]


def test_accounts_that_are_pruned_together_are_shut_out_and_no_others(
    service: Service, add: Callable[..., User], clock: FakeClock
) -> None:
    purposes = ("confirm", "reset", "delete", "claim", "approve", "not_me", "invite", "remembered")
    kept = add("kept", role="admin")
    users = {name: add(name) for name in ("ada", "bob")} | {"kept": kept}
    apply(service, people(*(user.email for user in users.values())), adopt=True)
    for name, user in users.items():
        open_session(service, user)
        service.sessions.create_api_token(user.id, name="ci", lifetime=None, by=OPERATOR)
        old = f"old-{name}@example.com"
        with service.store.write() as tx:
            for purpose in purposes:
                secret = f"{purpose} {name}".encode()
                tx.add_one_time_token(secret, purpose, timedelta(days=1), user_id=user.id, email=old)
            tx.reserve(user.id, old, stamp(tx.now + timedelta(days=1)))
            pending = PendingSignIn(name.encode(), user.id, "pwd", False, None, None, 0)
            tx.add_pending(pending, timedelta(minutes=10))
            claim = {
                "claimed_email": f"new-{name}@example.com",
                "claim_expires_at": "2999-01-01T00:00:00.000Z",
            }
            tx.change_user(user.id, **claim)
            for kind in (CONFIRM, RESET, INVITATION, CONFIRM_NEW_EMAIL, DELETE, UNDO):
                service.emails.add(tx, kind, user, user.email)
    clock.move(minutes=1)
    apply(service, people(kept.email), prune="deactivate")
    assert query(service, "SELECT email FROM users WHERE active = 1") == [(kept.email,)]
    assert query(service, "SELECT count(*) FROM auth_tokens WHERE user_id = ?", kept.id) == [(2,)]
    for table in ("auth_tokens", "pending_sign_ins", "reserved_emails"):
        assert query(service, f"SELECT DISTINCT user_id FROM {table}") == [(kept.id,)]  # noqa: S608 - our own words
    links = query(service, "SELECT user_id, purpose FROM one_time_tokens")
    assert sorted(purpose for user_id, purpose in links if user_id == kept.id) == sorted(purposes)
    others = sorted(purpose for user_id, purpose in links if user_id != kept.id)
    assert others == ["invite_withdrawn", "invite_withdrawn"]
    waiting = query(service, "SELECT user_id, kind FROM outbox WHERE state = 'waiting'")
    assert sorted(kind for user_id, kind in waiting if user_id != kept.id) == ["deletion", "deletion"]
    assert len([kind for user_id, kind in waiting if user_id == kept.id]) == 6
    assert query(service, "SELECT id FROM users WHERE claimed_email IS NOT NULL") == [(kept.id,)]
    forgotten = query(service, "SELECT id FROM users WHERE devices_since = ?", stamp(clock()))
    assert sorted(forgotten) == [(users["ada"].id,), (users["bob"].id,)]
    rows = [(row.action, row.email, row.details) for row in audit(service)][-2:]
    assert rows == [
        ("deactivate", user.email, {"active": False, "file": "people"})
        for user in (users["ada"], users["bob"])
    ]


def test_groups_are_exactly_those_of_the_file(service: Service) -> None:
    apply(service, people({"email": ADA, "groups": ["a", "b"]}, groups=("a", "b", "c")))
    before = len(audit(service))
    (change,) = apply(service, people({"email": ADA, "groups": ["b", "c"]}))
    assert sorted(row.action for row in audit(service)[before:]) == ["group-add", "group-remove"]
    assert change.after == world(service).users[ADA]
    assert world(service).users[ADA]["groups"] == ["b", "c"]
    assert service.groups.get("a").members == 0


def test_a_plan_shows_who_leaves_a_group_that_pruning_deletes(service: Service) -> None:
    apply(service, people({"email": ADA, "groups": ["a", "b"]}, groups=("a", "b")))
    ada, group = apply(service, people(ADA, groups=("a",)), prune="delete")
    assert ada.before is not None
    assert ada.after == ada.before | {"groups": ["a"]} == world(service).users[ADA]
    assert (group.action, group.key) == ("delete", "b")


def test_a_group_that_does_not_exist_is_refused_with_its_line(service: Service) -> None:
    with pytest.raises(Broken) as refused:
        apply(service, 'name = "people"\n\n[[users]]\nemail = "ada@example.com"\ngroups = ["staff"]\n')
    (problem,) = refused.value.problems
    assert problem.where == "line 5"
    assert "there is no group staff" in problem.message
    assert world(service).users == {}


def test_a_group_that_pruning_would_delete_is_refused_by_that_name(service: Service) -> None:
    apply(service, 'name = "people"\n\n[[groups]]\nname = "staff"\n')
    content = 'name = "people"\n\n[[users]]\nemail = "ada@example.com"\ngroups = ["staff"]\n'
    with pytest.raises(Broken) as refused:
        apply(service, content, prune="delete")
    (problem,) = refused.value.problems
    assert problem.message == "groups: --prune delete deletes group staff: add it below [[groups]]"


# --- invitations ---


def test_an_invitation_is_sent_once_ever(service: Service, clock: FakeClock) -> None:
    file = people({"email": ADA, "invite": True})
    (change,) = apply(service, file)
    assert change.after is not None
    assert (change.after["active"], change.after["invited"], change.after["sends_invitation"]) == (
        False,
        True,
        True,
    )
    assert invitations(service, ADA) == 1
    assert apply(service, file) == []
    clock.move(days=8)  # it has expired
    assert apply(service, file) == []
    service.accounts.delete([1], by=OPERATOR)
    sent_before = invitations(service, ADA)
    (change,) = apply(service, file)
    assert change.after is not None
    assert change.after["sends_invitation"] is False
    assert invitations(service, ADA) == sent_before
    assert world(service).users[ADA]["active"] is False
    assert apply(service, file) == []
    (row,) = service.invitations.waiting()
    assert row.has_expired


def test_an_account_without_a_way_in_is_invited_when_the_file_says_so_later(
    service: Service, add: Callable[..., User]
) -> None:
    add("ada")
    apply(service, people(BOB))
    file = people({"email": ADA, "invite": True}, {"email": BOB, "invite": True})
    changes = apply(service, file, adopt=True)
    assert short(changes) == [("update", "user", ADA), ("update", "user", BOB)]
    bob = changes[1].after
    assert bob is not None
    assert (bob["active"], bob["invited"], bob["sends_invitation"]) == (True, True, True)
    assert (invitations(service, ADA), invitations(service, BOB)) == (0, 1)
    assert apply(service, file) == []
    service.invitations.withdraw([2], by=OPERATOR)
    assert apply(service, file) == []


def test_an_invitation_that_waits_already_is_not_sent_again_by_the_file(service: Service) -> None:
    apply(service, people(ADA))
    list(service.invitations.invite_without_password(timedelta(days=7), by=OPERATOR))
    assert invitations(service, ADA) == 1
    apply(service, people({"email": ADA, "invite": True}))
    assert invitations(service, ADA) == 1


def test_only_what_opens_a_session_is_a_way_into_an_account_of_the_file(
    make_service: Callable[..., Service],
) -> None:
    configured = {"oauth_client_id": "c", "oauth_client_secret": "s", "oauth_issuer": "https://id.example"}
    service = make_service(base_url="http://localhost", **configured)
    names = ("app", "gone", "old-passkey", "passkey", "linked")
    emails = [f"{name}@example.com" for name in names]
    app, gone, old_passkey, passkey, linked = (create_user(service, email, "A", None).id for email in emails)
    add_authenticator_apps(service, app)
    link(service, gone, "7", "https://gone.example", provider="gone")
    link(service, linked, "7", "https://id.example")
    with service.store.write() as tx:
        store_passkey(tx, old_passkey, "old", rp_id="former.example")
        store_passkey(tx, passkey, "new", rp_id="localhost")
    apply(service, people(*({"email": email, "invite": True} for email in emails)), adopt=True)
    assert [invitations(service, email) for email in emails] == [1, 1, 1, 0, 0]


def test_only_an_account_that_the_file_makes_without_a_name_asks_its_owner_for_one(service: Service) -> None:
    invited = [{"email": ADA, "invite": True}, {"email": BOB, "name": "Bob B.", "invite": True}]
    apply(service, people(*invited, CY))
    apply(service, people({"email": CY, "invite": True}))
    asks = "SELECT email, invited_nameless FROM users ORDER BY email"
    assert query(service, asks) == [(ADA, 1), (BOB, 0), (CY, 0)]
    made = [row.details.get("created") for row in audit(service) if row.action == "invite"]
    assert made == [True, True, None]
    service.accounts.delete([1, 2], by=OPERATOR)
    apply(service, people(*invited))
    assert query(service, asks) == [(ADA, 1), (BOB, 0), (CY, 0)]


def test_an_accepted_invitation_is_nothing_to_do(service: Service) -> None:
    file = people({"email": ADA, "invite": True, "active": True})
    apply(service, file)
    service.accounts.update(1, active=True, by=OPERATOR)
    assert apply(service, file) == []


def test_an_invited_account_that_was_deactivated_later_is_active_again_only_if_the_file_says_so(
    service: Service,
) -> None:
    apply(service, people({"email": ADA, "invite": True}))
    service.accounts.update(1, active=True, by=OPERATOR)
    service.accounts.update(1, active=False, by=OPERATOR)
    assert apply(service, people({"email": ADA, "invite": True})) == []
    apply(service, people({"email": ADA, "invite": True, "active": True}))
    assert world(service).users[ADA]["active"] is True


def test_a_deactivated_account_without_a_way_in_is_not_invited(service: Service) -> None:
    apply(service, people({"email": ADA, "active": False}))
    assert apply(service, people({"email": ADA, "invite": True})) == []


def test_an_inactive_account_in_the_file_ends_its_invitation(service: Service) -> None:
    apply(service, people({"email": ADA, "invite": True}))
    (change,) = apply(service, people({"email": ADA, "active": False}))
    assert change.is_grave
    assert world(service).users[ADA] == change.after
    assert service.invitations.waiting() == []
    assert apply(service, people({"email": ADA, "active": False})) == []


def test_groups_of_new_accounts_are_in_the_trail(service: Service) -> None:
    users = ({"email": ADA, "groups": ["staff"]}, {"email": BOB, "groups": ["staff"], "invite": True})
    apply(service, people(*users, groups=("staff",)))
    written = [(row.action, row.email) for row in audit(service) if "staff" in str(row.details)]
    assert written == [("group-create", None), ("create", ADA), ("group-add", BOB)]
    assert service.groups.get("staff").members == 2


def test_every_row_of_the_trail_names_the_file(service: Service, add: Callable[..., User]) -> None:
    add("ada")
    service.registration.register(CY, "Cy", "correct horse battery", by=OPERATOR)
    service.groups.create("board", by=OPERATOR)
    before = len(audit(service))
    bob = {"email": BOB, "groups": ["staff"], "invite": True}
    apply(
        service, people({"email": ADA, "groups": ["staff"]}, bob, CY, groups=("board", "staff")), adopt=True
    )
    apply(service, people({"email": ADA, "name": "Countess", "groups": []}), prune="delete")
    rows = audit(service)[before:]
    assert {row.action for row in rows} == {
        *("create", "invite", "adopt", "update", "delete", "group-adopt", "group-create", "group-add"),
        *("group-delete", "group-remove"),
    }
    assert {row.details.get("file") for row in rows} == {"people"}
    assert [row.details["group"] for row in rows if row.action == "group-adopt"] == ["board"]


def test_webhooks_hear_of_what_a_file_does(make_service: Callable[..., Service]) -> None:
    webhook = Webhook("ops", "https://ops.example.com/hook", ("whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0",))
    service = make_service(webhooks=(webhook,))
    apply(service, people({"email": ADA, "role": "admin"}, {"email": BOB, "invite": True}))
    apply(service, people({"email": ADA, "name": "Ada Lovelace"}), prune="deactivate")
    apply(service, people(ADA), prune="delete")
    told = query(service, "SELECT kind, subject FROM outbox WHERE webhook <> '' ORDER BY id")
    made = sorted(told[:2])
    assert made == [("user.created", 1), ("user.created", 2)]
    assert told[2:] == [("user.updated", 1), ("user.deactivated", 2), ("user.deleted", 2)]


# --- addresses ---


def test_a_registration_of_a_stranger_never_becomes_the_account(service: Service) -> None:
    service.registration.register(ADA, "Stranger", "correct horse battery", by=OPERATOR)
    with pytest.raises(Conflicts, match="1 conflict"):
        apply(service, people(ADA))
    changes = apply(service, people(ADA), adopt=True)
    assert short(changes) == [("delete", "registration", ADA), ("create", "user", ADA)]
    assert query(service, "SELECT name, password_hash FROM users") == [("ada", "!")]
    assert ("delete", ADA) in [(row.action, row.email) for row in audit(service)]


def test_a_registration_that_has_lapsed_gives_way(service: Service, clock: FakeClock) -> None:
    service.registration.register(ADA, "Stranger", "correct horse battery", by=OPERATOR)
    clock.move(days=40)
    assert short(apply(service, people(ADA))) == [("delete", "registration", ADA), ("create", "user", ADA)]
    assert [row.action for row in audit(service)][-2:] == ["registration-expired", "create"]


def test_an_address_that_is_reserved_for_another_account_is_a_conflict(
    service: Service, add: Callable[..., User]
) -> None:
    user = add("bob")
    with service.store.write() as tx:
        tx.reserve(user.id, ADA, "2999-01-01T00:00:00.000Z")
    with pytest.raises(Conflicts) as refused:
        apply(service, people(ADA))
    assert f"is reserved for user {user.id}" in refused.value.problems[0].message
    assert refused.value.hint is None  # no --adopt helps
    with pytest.raises(Conflicts):
        apply(service, people(ADA), adopt=True)


def test_a_claim_to_an_address_yields(service: Service, add: Callable[..., User]) -> None:
    user = add("bob")
    with service.store.write() as tx:
        tx.change_user(user.id, claimed_email=ADA, claim_expires_at="2999-01-01T00:00:00.000Z")
    apply(service, people(ADA))
    assert query(service, "SELECT claimed_email FROM users WHERE id = ?", user.id) == [(None,)]


# --- admins ---


def test_the_last_admin_stays(service: Service, add: Callable[..., User]) -> None:
    add("ada", role="admin")
    apply(service, people(ADA), adopt=True)
    before = everything(service)
    entries: tuple[dict[str, Any], ...] = ({"email": ADA, "role": "user"}, {"email": ADA, "active": False})
    for user in entries:
        for document, prune in ((people(user), None), (people(), "delete"), (people(), "deactivate")):
            with pytest.raises(LastAdmin):
                apply(service, document, prune=prune)
            with pytest.raises(LastAdmin):
                service.desired_state.plan(read(document), Options(prune=prune))
    assert everything(service) == before


def test_an_admin_may_leave_in_the_file_that_brings_another(
    service: Service, add: Callable[..., User]
) -> None:
    add("ada", role="admin")
    add("bob")
    file = people({"email": ADA, "role": "user"}, {"email": BOB, "role": "admin"})
    apply(service, file, adopt=True)
    assert {email: view["role"] for email, view in world(service).users.items()} == {
        ADA: "user",
        BOB: "admin",
    }
    file = people({"email": CY, "role": "admin"})
    apply(service, file, prune="delete")
    assert set(world(service).users) == {CY}


@pytest.mark.parametrize(
    ("entry", "prune"),
    [
        ({"email": BOB, "role": "user"}, None),
        ({"email": BOB, "active": False}, None),
        ({"email": ADA}, "deactivate"),
        ({"email": ADA}, "delete"),
    ],
)
def test_what_deactivates_deletes_or_takes_the_admin_role_has_to_be_confirmed(
    service: Service, entry: dict[str, Any], prune: str | None
) -> None:
    admins = [{"email": email, "role": "admin"} for email in (ADA, BOB)]
    apply(service, people(*admins))
    before = everything(service)
    options, state = Options(prune=prune), read(people(entry))
    with pytest.raises(Forbidden, match="nothing was done"):
        service.desired_state.apply(state, options, confirmed=False, by=OPERATOR)
    assert everything(service) == before
    service.desired_state.apply(state, options, confirmed=True, by=OPERATOR)
    assert everything(service) != before


def test_what_ends_an_invitation_has_to_be_confirmed(service: Service) -> None:
    apply(service, people({"email": ADA, "role": "admin"}, {"email": BOB, "invite": True}))
    state = read(people({"email": BOB, "active": False}))
    with pytest.raises(Forbidden, match="ends an invitation"):
        service.desired_state.apply(state, Options(), confirmed=False, by=OPERATOR)


@pytest.mark.parametrize("kept", [people(ADA, groups=("staff",)), people(ADA, BOB)])
def test_what_deletes_an_inactive_account_or_a_group_has_to_be_confirmed(
    service: Service, kept: dict[str, Any]
) -> None:
    entries = {"email": ADA, "role": "admin"}, {"email": BOB, "active": False}
    apply(service, people(*entries, groups=("staff",)))
    with pytest.raises(Forbidden, match="deletes"):
        service.desired_state.apply(read(kept), Options(prune="delete"), confirmed=False, by=OPERATOR)


# --- plan and database are of one moment ---


def test_what_changed_since_the_plan_was_shown_is_refused(service: Service, add: Callable[..., User]) -> None:
    add("ada", role="admin")
    user = add("bob")
    state = read(people({"email": BOB, "name": "Robert"}))
    options = Options(adopt=True)
    shown = service.desired_state.plan(state, options)
    service.accounts.update(user.id, name="Bobby", by=OPERATOR)
    before = everything(service)
    with pytest.raises(Forbidden, match="changed since the plan was shown"):
        service.desired_state.apply(state, options, confirmed=True, shown=shown, by=OPERATOR)
    assert everything(service) == before


def test_changes_elsewhere_do_not_refuse_a_plan(service: Service, add: Callable[..., User]) -> None:
    user = add("ada", role="admin")
    state = read(people(BOB))
    shown = service.desired_state.plan(state, Options())
    service.accounts.update(user.id, name="Countess", by=OPERATOR)
    assert service.desired_state.apply(state, Options(), confirmed=True, shown=shown, by=OPERATOR) == shown


def test_files_that_are_applied_at_once_come_one_after_the_other(service: Service) -> None:
    file = people(*({"email": f"u{n}@example.com", "invite": True} for n in range(20)))
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: len(apply(service, file)), range(8)))
    assert sorted(done) == [0] * 7 + [20]
    assert query(service, "SELECT count(*) FROM outbox WHERE kind = 'invitation'") == [(20,)]


def test_of_two_files_that_name_one_address_at_once_one_is_refused(service: Service) -> None:
    def attempt(name: str) -> bool:
        try:
            return bool(apply(service, people(ADA, name=name)))
        except Conflicts:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, [f"file {n}" for n in range(8)])) == 1


def test_two_files_that_take_the_role_of_the_others_admin_leave_one(service: Service) -> None:
    def attempt(number: int) -> bool:
        try:
            return bool(apply(service, people(name=f"file {number}"), prune="delete"))
        except LastAdmin:
            return False

    for _ in range(10):
        for number, email in enumerate((ADA, BOB)):
            apply(service, people({"email": email, "role": "admin"}, name=f"file {number}"))
        with ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(attempt, range(2))) == [False, True]


# --- any file, any database ---


def test_applying_does_exactly_what_the_plan_said(service: Service, clock: FakeClock) -> None:
    """Random files, with changes by others in between. 2,000 of them with USERSCTL_LONG=1, in every run some."""
    seed = random.randrange(10**9)
    chance = random.Random(seed)
    seen = set[str]()
    for step in range(STATES):
        for _ in range(chance.randrange(3)):
            disturb(service, chance)
        if chance.random() < 0.1:
            clock.move(hours=chance.randrange(60))
        state, options = read(random_state(chance)), random_options(chance)
        before = world(service)
        try:
            planned = service.desired_state.plan(state, options)
        except UsersError as refusal:
            rows = everything(service)
            with pytest.raises(type(refusal)):
                service.desired_state.apply(state, options, confirmed=True, by=OPERATOR)
            assert everything(service) == rows, (seed, step)
            seen.add(type(refusal).__name__)
            continue
        assert world(service) == before, (seed, step)
        done = service.desired_state.apply(state, options, confirmed=True, shown=planned, by=OPERATOR)
        assert done == planned, (seed, step)
        assert world(service) == after(before, planned), (seed, step)
        assert service.desired_state.plan(state, options) == [], (seed, step)
        seen |= {f"{change.action} {change.kind}" for change in planned}
    if LONG:
        assert seen >= {
            "Conflicts",
            "Broken",
            "LastAdmin",
            "create user",
            "update user",
            "delete user",
            "delete group",
        }
    invited = "SELECT count(*) AS n FROM audit WHERE action = 'invite' GROUP BY email"
    assert query(service, f"SELECT max(n) FROM ({invited}) AS invited") in ([(1,)], [(None,)])  # noqa: S608 - our own words
    with service.store.read() as tx:
        assert tx.check_audit().problem is None


@pytest.mark.slow
def test_many_accounts_share_their_statements(service: Service) -> None:
    count = 1_000
    file = people(
        *({"email": f"u{n}@example.com", "groups": ["staff"]} for n in range(count)), groups=("staff",)
    )
    with statements(service) as run:
        assert len(apply(service, file)) == count + 1
    # In a file, those of triggers count.
    assert len(run) < (count / 20 if isinstance(service.store.database, Conninfo) else 7 * count)
    with statements(service) as run:
        assert apply(service, file) == []
    assert len(run) < count / 20
    inviting = people(*({"email": f"u{n}@example.com", "invite": True} for n in range(count)))
    with statements(service) as run:
        assert len(service.desired_state.plan(read(inviting), Options())) == count
    assert len(run) < count / 20
    other = people(*file["users"], groups=("staff",), name="other")
    with statements(service) as run:
        assert len(apply(service, other, adopt=True)) == count + 1
    assert len(run) < count / 10
    with statements(service) as run:
        assert len(apply(service, people(groups=("staff",), name="other"), prune="deactivate")) == count
    assert len(run) < (count / 10 if isinstance(service.store.database, Conninfo) else 4 * count)
