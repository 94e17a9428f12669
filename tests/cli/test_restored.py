"""What db restore brings back: nothing that has to stay in the past, and no secret without its key."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from support.accounts import open_session
from support.backups import restored, saved
from support.commands import OPERATOR, PASSWORD, Command
from support.factors import SEED, add_authenticator_apps, opened_secrets
from support.fakes import FakeClock
from support.postbox import last_link
from support.second_factors import enrol, finish, second_step
from support.web import Site

from usersctl.clock import moment, stamp, utc_now
from usersctl.errors import Invalid
from usersctl.mail.kinds import RESET
from usersctl.models import User
from usersctl.service import Service

pytestmark = pytest.mark.usefixtures("progress_is_drawn_often")

ME = "/api/users/me"


@pytest.mark.parametrize("keep", [False, True])
def test_revoked_tokens_come_back_only_with_keep_tokens(
    service: Service, add: Callable[..., User], tmp_path: Path, keep: bool
) -> None:
    ada = add("ada")
    session = service.sessions.login(ada.email, PASSWORD)
    machine = service.sessions.create_api_token(ada.id, name="ci", lifetime=None, by=OPERATOR)
    link = service.outbox.link(RESET, ada, by=OPERATOR)
    service.store.copy(tmp_path / "saved.db")
    service.sessions.revoke_all([ada.id], by=OPERATOR)
    restored(tmp_path / "saved.db", service.store.database, keep_tokens=keep)
    assert [service.sessions.check(opened.token) is not None for opened in (session, machine)] == [keep, keep]
    token = link.partition("token=")[2].partition("&")[0]
    if keep:
        service.recovery.reset(token, ada.email, "another good password", by=OPERATOR)
    else:
        with pytest.raises(Exception, match="Invalid or expired link"):
            service.recovery.reset(token, ada.email, "another good password", by=OPERATOR)


@pytest.mark.parametrize("keep", [False, True])
def test_devices_stay_known_only_with_keep_tokens(
    service: Service, add: Callable[..., User], tmp_path: Path, keep: bool
) -> None:
    ada = add("ada")
    cookie = service.devices.cookie(
        (), ada.id, service.sessions.login(ada.email, PASSWORD).session.created_at
    )
    service.store.copy(tmp_path / "saved.db")
    service.sessions.revoke_all([ada.id], by=OPERATOR)
    restored(tmp_path / "saved.db", service.store.database, keep_tokens=keep)
    assert [device.user_id for device in service.devices.read([cookie])] == [ada.id] * keep


def test_a_restore_never_leads_to_a_reused_id(
    service: Service, add: Callable[..., User], tmp_path: Path
) -> None:
    """Other applications may refer to users by their ids."""
    add("ada")
    service.store.copy(tmp_path / "saved.db")
    assert add("bob").id == 2
    restored(tmp_path / "saved.db", service.store.database)
    assert add("eve").id == 3


def test_a_restore_never_leads_to_a_reused_number_of_a_session(
    service: Service, add: Callable[..., User], tmp_path: Path
) -> None:
    """Rows of the audit trail name sessions by it."""
    ada = add("ada")
    service.store.copy(tmp_path / "saved.db")
    service.sessions.login(ada.email, PASSWORD)
    restored(tmp_path / "saved.db", service.store.database)
    service.sessions.login(ada.email, PASSWORD)
    assert [session.id for session in service.sessions.listed(ada.id)] == [2]


def test_deletions_that_were_due_wait_a_week_after_a_restore(usersctl: Command) -> None:
    """Their owners may have undone them after the backup was made."""
    (grace,) = usersctl.add("grace")
    with usersctl.service() as service, service.store.write() as tx:
        tx.change_user(grace.id, active=False, delete_at="2026-01-01T00:00:00.000Z")
    file = saved(usersctl)
    usersctl.ok("activate", str(grace.id))
    usersctl.ok("db", "restore", str(file), "--yes")
    with usersctl.service() as service:
        assert service.deletion.carry_out(by=OPERATOR) == 0
        until = service.accounts.get(grace.id).delete_at
    assert until is not None
    assert timedelta(days=6) < moment(until) - utc_now() <= timedelta(days=7)


@pytest.mark.parametrize("options", [[], ["--keep-tokens"]])
def test_an_owner_can_undo_a_deletion_after_a_restore(
    usersctl: Command, ada: User, options: list[str]
) -> None:
    (root,) = usersctl.add("root", role="admin")
    with usersctl.service() as service:
        session = open_session(service, ada).session
        assert service.deletion.request(ada.id, PASSWORD, session_id=session.id, by=OPERATOR)
        before = last_link(service, ada.email)
    file = saved(usersctl)
    with usersctl.service() as service:
        service.deletion.undo(before.token, before.email, by=OPERATOR)
    usersctl.ok("db", "restore", str(file), "--yes", *options)
    with usersctl.service() as service:
        assert not service.accounts.get(ada.id).active
        again = last_link(service, ada.email)
        assert again.token != before.token
        service.deletion.undo(again.token, again.email, by=OPERATOR)
        assert service.accounts.get(ada.id).active
        assert service.accounts.get(root.id).active


def test_an_invitation_shows_as_expired_after_a_restore(usersctl: Command) -> None:
    usersctl.ok("db", "init")
    usersctl.ok("invite", "eve@example.com")
    file = saved(usersctl)
    usersctl.ok("db", "restore", str(file), "--yes", "--keep-tokens")
    (waiting,) = usersctl.ok("invite", "list", "--json").json
    usersctl.ok("db", "restore", str(file), "--yes")
    (ended,) = usersctl.ok("invite", "list", "--json").json
    assert ended["expires_at"] <= stamp(utc_now()) < waiting["expires_at"]
    usersctl.ok("invite", "resend", "eve@example.com")


@pytest.mark.parametrize("admin", [True, False])
def test_a_lockdown_outlives_a_restore(
    service: Service, add: Callable[..., User], tmp_path: Path, admin: bool
) -> None:
    root = add("root", role="admin" if admin else "user")
    service.store.copy(tmp_path / "open.db")
    service.accounts.update(root.id, role="admin", by=OPERATOR)
    service.lockdown.start(service.accounts.get(root.id), by=OPERATOR)
    service.store.copy(tmp_path / "closed.db")
    restored(tmp_path / "open.db", service.store.database)
    lockdown = service.lockdown.state()
    assert lockdown is not None
    # The exception stays in force, if that account is an admin of the restored database.
    assert lockdown.admits(root) is admin
    service.lockdown.stop(by=OPERATOR)
    restored(tmp_path / "closed.db", service.store.database)
    assert service.lockdown.state() is not None  # the backup was made during a lockdown


def test_what_a_lockdown_ended_does_not_return_with_kept_tokens(
    site: Site, usersctl: Command, clock: FakeClock
) -> None:
    """Perhaps it was for a thief with a session of the admin whom it lets in."""
    clock.now = utc_now()  # that of the command
    service, root = site.service, site.add("root", role="admin")
    thief, phone = site.signed_in(root), enrol(site.signed_in(root), clock)
    remembered = second_step(site.client(), root.email)
    assert finish(remembered, recoveryCode=phone.codes[0], rememberDevice=True).status == 200
    device = {name: value for name, value in remembered.cookies.items() if "device" in name}
    opened = service.sessions.create_api_token(root.id, name="ci", lifetime=None, by=OPERATOR)
    machine = site.client(headers={"Authorization": f"Bearer {opened.token}"})
    link = service.outbox.link(RESET, root, by=OPERATOR)
    saved(usersctl)
    service.lockdown.start(root, by=OPERATOR)
    usersctl.ok("db", "restore", "saved.db", "--yes", "--keep-tokens")
    for is_over in (False, True):
        if is_over:
            service.lockdown.stop(by=OPERATOR)
        assert [client.get(ME).status for client in (thief, remembered)] == [401, 401]
        assert machine.get(ME).status == (200 if is_over else 401)  # as after a lockdown without a restore
    again = site.client(cookies=device).login(root.email, PASSWORD)
    assert (again.status, again.message) == (401, "Second factor required")
    token = link.partition("token=")[2].partition("&")[0]
    with pytest.raises(Invalid, match="Invalid or expired link"):
        service.recovery.reset(token, root.email, "another good password", by=OPERATOR)


def test_a_restore_with_the_key_says_nothing_of_it(usersctl: Command, ada: User) -> None:
    with usersctl.service() as service:
        add_authenticator_apps(service, ada.id)
    file = saved(usersctl)
    usersctl.ok("key", "rotate")  # the older key stays, and opens the backup
    done = usersctl.ok("db", "restore", file, "--yes")
    assert "authenticator app" not in done.stderr
    assert usersctl.ok("db", "restore", file, "--yes", "--json").json["unreadable"] == 0
    with usersctl.service() as service:
        assert opened_secrets(service) == [SEED]


@pytest.mark.sqlite  # the key of a server is configured
def test_a_restore_without_the_key_says_what_cannot_be_used_and_how_to_go_on(
    usersctl: Command, ada: User
) -> None:
    with usersctl.service() as service:
        add_authenticator_apps(service, ada.id)
    file, key = saved(usersctl), usersctl.folder / "users.key"
    (there := usersctl.folder / "elsewhere").mkdir()
    lost, database = key.read_text(), there / "users.db"  # another machine
    note = (
        f"1 authenticator app cannot be used, because the key is not in {there / 'users.key'}. Add it there, one key a line; or,"
        " if it is lost, let users enrol again after: usersctl factor reset USER --totp. usersctl doctor names them\n"
    )
    done = usersctl.ok("db", "restore", file, "--db", database, "--dry-run")
    assert done.stderr == note
    done = usersctl.ok("db", "restore", file, "--db", database, "--yes")
    assert done.stderr.endswith(note)
    done = usersctl.ok("db", "restore", file, "--db", database, "--yes", "--json").json
    assert done["unreadable"] == 1
    doctor = usersctl("doctor", "--db", database).stdout
    assert "secret-key\tproblem\tno key opens 1 secret of authenticator apps: ada@example.com" in doctor
    # Another key was made meanwhile, and the old one turns up.
    (there / "users.key").write_text(f"{'new key ' * 5}\n{lost}")
    (there / "users.key").chmod(0o600)
    assert "secret-key\thint" in usersctl("doctor", "--db", database).stdout
    assert usersctl.ok("key", "rotate", "--db", database).stdout == "Sealed 1 secret anew\n"


@pytest.mark.sqlite  # the key of a server is configured
def test_an_authenticator_app_whose_key_is_lost_is_reset(usersctl: Command, ada: User) -> None:
    with usersctl.service() as service:
        add_authenticator_apps(service, ada.id)
    (usersctl.folder / "users.key").unlink()
    assert usersctl("doctor", "--quiet").stdout.count("secret-key\tproblem") == 1
    usersctl.ok("factor", "reset", ada.email, "--totp")
    assert "secret-key" not in usersctl("doctor").stdout
    assert usersctl.ok("factor", "list", ada.email).rows == []
