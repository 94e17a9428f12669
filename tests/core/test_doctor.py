"""doctor: each check on a sound and on a broken installation, and the command on unusable ones."""

import json
import os
import re
import socket
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from support.accounts import author, open_session
from support.backups import ignore
from support.certificates import make_certificates
from support.commands import OPERATOR, PASSWORD, Command, by_hand, create_user
from support.daemons import free_port, serving, wait_for
from support.documentation import page, rows, same, steps
from support.factors import add_authenticator_apps, store_passkey
from support.fakes import FakeClock
from support.hostile import answer, hostile
from support.oauth_site import CALLBACK, oauth_site
from support.old_databases import old_database
from support.postbox import Postbox, hang, scripted_server, smtp_server

from usersctl.clock import stamp
from usersctl.config.sources import Loaded, Origin
from usersctl.config.webhooks import Webhook
from usersctl.doctor import CHECKS, Finding, Installation, Severity, examine, files, installation
from usersctl.errors import Referred
from usersctl.models import Client, EmailState, User
from usersctl.service import Service
from usersctl.store import database_file
from usersctl.store.move import move

# Those of a server have tests of their own.
OFFLINE = [check.code for check in CHECKS if not check.online and not check.code.startswith("server-")]

NOT_HERE = {
    "environment",
    "config-files",
    "password-hashes",
    "provider",
    "provider-links",
    "secret-key",
    "passkeys",
    "webhooks",
    "factor-rules",
}  # they do not apply to the fixture


class Doctor:
    """Runs the checks on the installation of a service."""

    def __init__(self, service: Service, clock: FakeClock) -> None:
        self.service = service
        self.clock = clock
        self.daemon_reason: str | None = None
        self.origins = {"database": Origin("default", None)}
        self.file: Path | None = None

    def findings(self, *, online: bool = False, **changes: Any) -> dict[str, Finding]:
        settings = self.service.settings._replace(**changes)
        checked = Installation(
            loaded=Loaded(settings, self.file, self.origins),
            options="",
            now=self.clock,
            check_files=id,
            ask_daemon=lambda _settings: self.daemon_reason,
        )
        try:
            findings = examine(checked, with_network=online)
            return {finding.code: finding for finding in findings if not finding.code.startswith("server-")}
        finally:
            checked.close()

    def finds(self, code: str, *, online: bool = False, **changes: Any) -> tuple[str, str, str | None]:
        _, severity, message, mend = self.findings(online=online, **changes)[code]
        return str(severity), message, mend


@pytest.fixture
def doctor(service: Service, clock: FakeClock) -> Doctor:
    create_user(service, "ada@example.com", "Ada", None, role="admin", by=OPERATOR)
    return Doctor(service, clock)


PUBLIC: dict[str, Any] = {"base_url": "https://accounts.example.com", "mailer_host": "mail.example.com"}


@pytest.mark.sqlite  # lists the checks of a file
def test_a_sound_installation_has_no_findings(doctor: Doctor) -> None:
    findings = doctor.findings(**PUBLIC, trusted_proxies=("127.0.0.1",), mailer_from="a@example.com")
    assert {code: finding for code, finding in findings.items() if finding.severity is not Severity.OK} == {}
    assert set(findings) == set(OFFLINE) - NOT_HERE


def test_a_rule_for_a_group_that_does_not_exist_is_a_warning(doctor: Doctor) -> None:
    rules = (("/hr/*", ("group:hr", "admin")), ("/staff", "group:staff"))
    assert doctor.finds("groups") == ("ok", "no rule names one", None)
    doctor.service.groups.create("staff", by=OPERATOR)
    severity, message, mend = doctor.finds("groups", role_rules=rules)
    assert (severity, mend) == ("warning", "usersctl group create hr")
    assert message == "auth.roleRules has the group 'hr' for /hr/*, which does not exist"
    doctor.service.groups.create("hr", by=OPERATOR)
    assert doctor.finds("groups", role_rules=rules) == ("ok", "2 groups", None)


def test_every_code_is_unique_and_in_kebab_case() -> None:
    codes = [check.code for check in CHECKS]
    assert len(set(codes)) == len(codes) >= 28
    assert all(re.fullmatch("[a-z]+(-[a-z]+)*", code) for code in codes)


# --- files ---


def test_a_variable_of_the_environment_that_sets_nothing_is_named(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USERS_PROVIDERS_GOOGLE_CLIENT_ID", "x")
    assert "environment" not in doctor.findings()
    monkeypatch.setenv("USERS_BASEURL", "https://accounts.example.com")
    severity, message, mend = doctor.finds("environment")
    assert (severity, mend) == ("hint", "usersctl config explain")
    assert message == "environment variables that set nothing: USERS_BASEURL (did you mean USERS_BASE_URL?)"


def test_modes_of_files_with_secrets_are_checked(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, secret = tmp_path / "users.toml", tmp_path / "secret"
    file.write_text("")
    file.chmod(0o644)
    secret.write_text("x")
    doctor.file = file
    assert doctor.finds("config-files")[0] == "ok"
    doctor.origins["mailer.auth.pass"] = Origin(str(file), "x")
    severity, message, mend = doctor.finds("config-files")
    assert (severity, mend) == ("problem", f"chmod o= {file}")
    assert "can read the secrets" in message
    file.chmod(0o660)
    assert "other users may change" in doctor.finds("config-files")[1]
    file.chmod(0o640)
    assert doctor.finds("config-files")[0] == "ok"
    monkeypatch.setenv("USERS_MAILER_PASS_FILE", str(secret))
    doctor.origins["mailer.auth.pass"] = Origin("USERS_MAILER_PASS_FILE", "x")
    secret.chmod(0o604)
    assert doctor.finds("config-files")[2] == f"chmod o= {secret}"
    secret.unlink()
    assert doctor.finds("config-files")[:2] == ("problem", f"{secret}: No such file or directory")


def test_a_file_with_secrets_of_webhooks_is_not_for_everybody(doctor: Doctor, tmp_path: Path) -> None:
    doctor.file = tmp_path / "users.toml"
    doctor.file.write_text("")
    doctor.origins["webhooks"] = Origin(str(doctor.file), [])
    ops = Webhook("ops", "https://ops.example.com/hook", ("whsec_x",))
    doctor.file.chmod(0o644)
    assert doctor.finds("config-files", webhooks=())[0] == "ok"
    severity, message, mend = doctor.finds("config-files", webhooks=(ops,))
    assert (severity, mend) == ("problem", f"chmod o= {doctor.file}")
    assert "can read the secrets" in message
    doctor.file.chmod(0o640)
    assert doctor.finds("config-files", webhooks=(ops,))[0] == "ok"


@pytest.mark.sqlite  # modes of files
def test_modes_and_owner_of_the_database_are_checked(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = doctor.service.settings.database
    database.chmod(0o640)
    assert doctor.finds("database-modes")[2] == f"chmod go= {database}"
    database.chmod(0o660)  # an operator gave it to a group on purpose
    assert doctor.finds("database-modes")[0] == "ok"
    tmp_path.chmod(0o777)
    assert doctor.finds("database-modes")[2] == f"chmod o-w {tmp_path}"
    tmp_path.chmod(
        0o1777
    )  # as /tmp, which has to stay so; the bit keeps nobody from putting a log beside the database
    assert doctor.finds("database-modes")[:2] == ("problem", f"every user may put files into {tmp_path}")
    assert "db move FILE" in doctor.finds("database-modes")[2]
    tmp_path.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert doctor.finds("database-owners")[0] == "hint"


@pytest.mark.sqlite  # modes of files
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_database_that_its_owner_cannot_write_is_a_problem(doctor: Doctor, tmp_path: Path) -> None:
    database = doctor.service.settings.database
    doctor.service.close()
    for path in (tmp_path, *tmp_path.glob("users.db*")):
        os.chown(path, 12345, -1)
    for path, mode in ((database, 0o400), (tmp_path, 0o500)):
        allowed = path.stat().st_mode
        path.chmod(mode)
        assert doctor.finds("database-modes") == ("problem", f"{path} is read-only", f"chmod u+w {path}")
        path.chmod(allowed)
    assert doctor.finds("database-modes")[0] == "ok"
    beside = tmp_path / "users.db-shm"
    for path in (database, beside):
        path.touch()
        os.chown(path, 12345, -1)
        path.chmod(0o400)
    assert doctor.finds("database-modes")[2] == f"chmod u+w {database} {beside}"
    beside.unlink()
    os.chown(database, 0, -1)
    database.chmod(0o400)  # root may write whatever the modes say
    assert doctor.finds("database-modes")[0] == "ok"


@pytest.mark.sqlite  # modes of files
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_database_that_was_moved_away_stays_read_only(doctor: Doctor, tmp_path: Path) -> None:
    database = doctor.service.settings.database
    move(doctor.service.store, tmp_path / "there.db", ignore)
    doctor.service.close()
    for path in (tmp_path, *tmp_path.glob("users.db*")):
        os.chown(path, 12345, -1)
    assert database.stat().st_mode & 0o200 == 0
    assert doctor.finds("database")[1] == f"{database} was moved to {tmp_path}/there.db"
    assert doctor.finds("database-modes")[0] == "ok"


@pytest.mark.sqlite  # modes of files
def test_a_log_that_cannot_be_read_is_not_to_be_moved_away(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hold the newest changes."""
    doctor.service.close()
    log, real, real_connect = tmp_path / "users.db-wal", os.access, sqlite3.connect
    log.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: path != log and real(path, mode))

    def connect(*values: Any, **keywords: Any) -> sqlite3.Connection:
        if not os.access(log, os.R_OK):
            error = sqlite3.OperationalError("unable to open database file")
            error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
            raise error
        return real_connect(*values, **keywords)

    monkeypatch.setattr(sqlite3, "connect", connect)
    message = f"{log} may not be read by this user"
    assert doctor.finds("database") == ("problem", message, f"chmod u+rw {log}")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert doctor.finds("database")[:2] == ("problem", message)
    assert doctor.finds("database")[2].startswith(f"sudo -u {log.owner()} usersctl doctor")


@pytest.mark.sqlite  # modes of files
def test_a_database_that_this_owner_cannot_write_is_a_problem_whatever_its_mode(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is mounted read-only."""
    database, real = doctor.service.settings.database, os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != database and real(path, mode))
    assert doctor.finds("database-modes") == (
        "problem",
        f"{database} is read-only",
        f"findmnt -T {database}; lsattr -d {database}",
    )
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path and real(path, mode))
    assert doctor.finds("database-modes")[1] == f"{tmp_path} is read-only"


@pytest.mark.sqlite  # owners of files
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_somebody_else_that_this_owner_cannot_write_is_given_back(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path and real(path, mode))
    os.chown(tmp_path, 12345, -1)
    assert doctor.finds("database-modes")[2] == f"chown root {tmp_path}"


@pytest.mark.sqlite  # pages of a file
def test_a_damaged_page_is_a_finding_and_crashes_no_check(doctor: Doctor) -> None:
    database = doctor.service.settings.database
    with doctor.service.store.write() as tx:
        tx._run(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)"
            " INSERT INTO login_failures (account, failures, last_failed_at) SELECT 'x' || i, 1, 'x' FROM n"
        )
    doctor.service.close()
    damaged = bytearray(database.read_bytes())
    damaged[-2 * 4096 :] = b"\xff" * 2 * 4096
    database.write_bytes(damaged)
    findings = doctor.findings()
    assert findings["database-integrity"].severity is Severity.PROBLEM
    assert findings["database-integrity"].mend == "usersctl db restore FILE"
    assert set(findings) == set(OFFLINE) - NOT_HERE


@pytest.mark.sqlite  # pages of a file
def test_the_integrity_check_has_a_time_limit(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    with doctor.service.store.write() as tx:
        tx._run(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
            " INSERT INTO login_failures (account, failures, last_failed_at) SELECT 'x' || i, 1, 'x' FROM n"
        )
    monkeypatch.setattr(installation, "QUERY_AT_MOST", -1)
    severity, message, mend = doctor.finds("database-integrity")
    assert (severity, "longer than" in message) == ("hint", True)
    assert mend == "usersctl db verify"


@pytest.mark.sqlite  # the log of a file
def test_a_large_log_and_a_full_disk_are_findings(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGE_LOG", 100)
    assert doctor.finds("database-log")[0] == "warning"
    monkeypatch.setattr(files, "LITTLE_ROOM", 2**62)
    assert doctor.finds("disk")[0] == "problem"


def test_a_missing_index_is_a_finding(doctor: Doctor) -> None:
    with doctor.service.store.write() as tx:
        tx._run("DROP INDEX users_by_name")
    assert doctor.finds("database-schema")[:2] == ("problem", "users_by_name missing")


def test_conflicting_packages_are_findings(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.29.1" if name == "typer" else real(name))
    assert doctor.finds("packages")[0] == "hint"
    for other in ("python-crontab", "jwt"):
        monkeypatch.setattr(
            metadata, "version", lambda name, other=other: "3.2.0" if name == other else real(name)
        )
        severity, message, mend = doctor.finds("packages")
        assert (severity, message.split()[0], mend.split()[3]) == ("problem", other, other)


@pytest.mark.sqlite  # owners of files
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_files_of_another_owner_are_a_finding(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "mail").mkdir()
    os.chown(tmp_path / "mail", 12345, -1)
    severity, message, mend = doctor.finds("database-owners")
    assert (severity, message.split()[0]) == ("problem", "mail")
    assert mend == f"chown root {tmp_path / 'mail'}"


# --- records ---


def test_a_wrong_clock_is_a_finding(doctor: Doctor, clock: FakeClock) -> None:
    clock.move(hours=-1)
    severity, message, _ = doctor.finds("clock")
    assert (severity, "1 of users, 1 of audit" in message) == ("warning", True)
    clock.move(days=-3650)
    assert doctor.finds("clock")[0] == "problem"


def test_a_missing_admin_and_a_lockdown_are_findings(doctor: Doctor) -> None:
    with doctor.service.store.write() as tx:
        tx._run("UPDATE users SET role = 'user'")
    assert doctor.finds("admin") == ("problem", "there is no active admin", "usersctl create EMAIL --admin")
    doctor.service.lockdown.start(None, by=OPERATOR)
    assert doctor.finds("lockdown")[2] == "usersctl lockdown off"


def test_tokens_without_an_expiry_that_no_client_uses_are_a_finding(doctor: Doctor, clock: FakeClock) -> None:
    sessions = doctor.service.sessions

    def make(name: str, lifetime: timedelta | None = None) -> str:
        return sessions.create_api_token(1, name=name, lifetime=lifetime, by=OPERATOR).token

    make("ends", timedelta(days=400))
    used = make("used")
    clock.move(days=60)
    assert sessions.check(used)
    sessions.uses.write()
    make("forgotten")
    clock.move(days=89)
    assert doctor.finds("tokens")[0] == "ok"
    clock.move(days=2)
    severity, message, mend = doctor.finds("tokens")
    assert severity == "warning"
    assert message == (
        "without an expiry date, and unused for 90 days: 2 (used, of ada@example.com), 3 (forgotten, of ada@example.com)"
    )
    assert mend == "usersctl token revoke --id 2"
    for number in range(5):
        make(f"more-{number}")
    clock.move(days=91)
    assert doctor.finds("tokens")[1].endswith("more-2, of ada@example.com) and more")


def test_an_overdue_cleanup_is_a_finding(doctor: Doctor, clock: FakeClock) -> None:
    assert doctor.finds("cleanup")[0] == "ok"
    clock.move(days=2)
    severity, message, mend = doctor.finds("cleanup")
    assert (severity, mend) == ("warning", "usersctl cleanup-tokens")
    assert "never ran" in message
    doctor.service.cleaner.run(by=OPERATOR)
    assert doctor.finds("cleanup")[0] == "ok"
    clock.move(days=7)
    assert doctor.finds("cleanup", cleanup_schedule=None)[0] == "ok"
    clock.move(days=2)
    assert doctor.finds("cleanup", cleanup_schedule=None)[2] == "usersctl snippet cron"


def test_an_account_that_is_not_deleted_when_its_owner_was_told_is_a_finding(
    doctor: Doctor, clock: FakeClock
) -> None:
    service = doctor.service
    by_hand(
        service.store.database,
        "CREATE TABLE orders (user_id INTEGER REFERENCES users (id))",
    )
    for name in ("bob", "cy"):
        user = create_user(service, f"{name}@example.com", name, PASSWORD, by=OPERATOR)
        session = open_session(service, user)
        service.deletion.request(user.id, PASSWORD, session_id=session.session.id, by=author(session))
    by_hand(service.store.database, "INSERT INTO orders VALUES (2)")
    assert doctor.finds("deletions") == ("ok", "none is overdue", None)
    clock.move(days=8)
    assert doctor.finds("deletions")[0] == "ok"  # one day over
    clock.move(days=2)
    due = stamp(clock() - timedelta(days=3))
    severity, message, mend = doctor.finds("deletions")
    assert (severity, mend) == ("warning", "usersctl cleanup-tokens")
    assert message == (
        f"accounts that their owners deleted are still there: bob@example.com ({due}), cy@example.com ({due})"
    )
    with pytest.raises(Referred):
        service.cleaner.run(by=OPERATOR)
    assert doctor.finds("deletions")[1].endswith(f"still there: bob@example.com ({due})")
    service.lockdown.start(None, by=OPERATOR)
    assert doctor.finds("deletions")[0] == "ok"


def test_waiting_and_failed_emails_are_findings(doctor: Doctor, clock: FakeClock) -> None:
    doctor.service.registration.register("eve@example.com", "Eve", PASSWORD, by=OPERATOR)
    assert doctor.finds("letters-waiting")[0] == "ok"
    clock.move(minutes=20)
    severity, message, mend = doctor.finds("letters-waiting")
    assert (severity, mend) == ("warning", "usersctl mail retry")
    assert message.startswith("1, the oldest since")
    with doctor.service.store.write() as tx:
        tx.finish_email(1, EmailState.FAILED, "550 no such mailbox")
    assert doctor.finds("letters-waiting")[0] == "ok"
    assert doctor.finds("letters-failed")[1] == "1, such as 1 to eve@example.com: 550 no such mailbox"


@pytest.mark.parametrize("webhook", ["", "ops"])
def test_a_queue_that_is_sent_too_slowly_is_not_one_that_no_daemon_sends(
    doctor: Doctor, clock: FakeClock, webhook: str
) -> None:
    changes = {"webhooks": (Webhook("ops", "https://ops.example.com/hook", ("whsec_x",)),)} if webhook else {}
    with doctor.service.store.write() as tx:
        for number in (1, 2):
            if webhook:
                tx.add_event(webhook, number, "user.updated", f"msg_{number}", "{}")
            else:
                tx.add_email("reset", None, "eve@example.com", f"{number}", dropped=False)
    clock.move(minutes=20)
    code = "webhooks" if webhook else "letters-waiting"
    assert doctor.finds(code, **changes)[1].endswith("no daemon sends them")
    with doctor.service.store.write() as tx:
        tx.finish_email(1, EmailState.SENT)
    clock.move(minutes=10)
    assert doctor.finds(code, **changes)[1].endswith("others are sent, but more come than that")
    clock.move(minutes=10)
    assert doctor.finds(code, **changes)[1].endswith("no daemon sends them")


# --- reach ---


@pytest.mark.parametrize(
    ("code", "changes", "severity", "message"),
    [
        ("cookie", {"base_url": "http://accounts.example.com"}, "problem", "unencrypted"),
        ("cookie", PUBLIC | {"host": "0.0.0.0"}, "hint", "past the proxy"),  # noqa: S104
        ("cookie", PUBLIC, "ok", "__Host-auth_token"),
        ("base-url", {"host": "0.0.0.0"}, "warning", "links in emails"),  # noqa: S104
        ("proxies", PUBLIC, "warning", "none is trusted"),
        ("proxies", PUBLIC | {"socket": Path("/run/x")}, "warning", "none is trusted"),
        ("mail", {"base_url": "https://accounts.example.com"}, "warning", "emails stay"),
        ("mail", {}, "hint", "emails stay"),
        ("mail", {"mailer_host": "mail.example.com"}, "warning", "no-reply@localhost"),
        ("provider", {"oauth_client_id": "x"}, "warning", "clientSecret is missing"),
        ("provider", {"oauth_client_secret": "x"}, "warning", "clientId is missing"),
        ("provider", {"oauth_client_id": "x", "oauth_client_secret": "y", "oauth_issuer": "https://id.example.com"},
         "ok", "http://127.0.0.1:8080/api/users/auth/oauth/callback"),
        ("provider", {"oauth_client_id": "x", "oauth_client_secret": "y", "oauth_issuer": "https://id.example.com",
                      "oauth_trusts_factors": True}, "ok", "its sign-ins count as two factors"),
        ("factor-rules", {"factor_rules": ("/payroll/*",), "second_factor": "off"}, "warning", "no new user can open /payroll/*"),
        ("factor-rules", {"factor_rules": ("/payroll/*",), "second_factor": "off", "oauth_trusts_factors": True}, "ok", "1 rule"),
        ("factor-rules", {"factor_rules": ("/payroll/*", "/x")}, "ok", "2 rules"),
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other_are_findings(
    doctor: Doctor, code: str, changes: dict[str, Any], severity: str, message: str
) -> None:
    findings = doctor.finds(code, **changes)
    assert findings[0] == severity
    assert message in findings[1]
    assert (findings[2] is None) is (severity == "ok")


def test_logins_all_from_one_address_are_a_finding(doctor: Doctor, add: Callable[..., User]) -> None:
    import ipaddress

    people = [add(f"user{number}") for number in range(3)]
    for person in people * 4:
        open_session(doctor.service, person, client=Client("10.0.0.7"))
    trusted = PUBLIC | {"trusted_proxies": (ipaddress.ip_network("192.0.2.1"),)}
    severity, message, _ = doctor.finds("proxies", **trusted)
    assert (severity, "12 logins of 3 users all came from 10.0.0.7" in message) == ("warning", True)
    open_session(doctor.service, people[0], client=Client("203.0.113.9"))
    assert doctor.finds("proxies", **trusted)[0] == "ok"
    everybody = PUBLIC | {"trusted_proxies": (ipaddress.ip_network("0.0.0.0/0"),)}
    assert doctor.finds("proxies", **everybody)[0] == "problem"


def test_the_state_of_the_daemon_is_a_finding(doctor: Doctor) -> None:
    doctor.daemon_reason = os.strerror(111)
    assert doctor.finds("daemon")[:2] == ("warning", "nothing listens at 127.0.0.1:8080")
    doctor.daemon_reason = "answers 404"
    assert doctor.finds("daemon")[0] == "problem"


@pytest.mark.sqlite  # the log of a file
def test_a_unit_of_systemd_is_named_where_there_is_one(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "UNITS", [tmp_path / "usersd.service"])
    monkeypatch.setattr(files, "LARGE_LOG", 100)

    def mends() -> list[str | None]:
        named = []
        for reason in (os.strerror(111), "answers 404"):
            doctor.daemon_reason = reason
            named.append(doctor.finds("daemon")[2])
        return [*named, doctor.finds("database-log")[2]]

    assert mends() == ["usersctl serve", "see its log", "stop the daemon, then: usersctl serve"]
    (tmp_path / "usersd.service").touch()
    assert mends() == [
        "systemctl start usersd",
        "journalctl -u usersd -o cat",
        "systemctl restart usersd",
    ]


# --- online ---


def online(doctor: Doctor, **changes: Any) -> dict[str, Finding]:
    findings = doctor.findings(online=True, **changes)
    return {code: finding for code, finding in findings.items() if code not in OFFLINE}


def test_the_mail_server_is_checked_up_to_the_login(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = make_certificates(tmp_path)
    box = Postbox(login=("me", "right"))

    def severities(port: int, password: str | None = None) -> list[str]:
        login = {"mailer_user": "me", "mailer_password": password} if password else {}
        findings = online(doctor, mailer_host="127.0.0.1", mailer_port=port, **login)
        assert "right" not in str(findings)
        return [str(finding.severity) for code, finding in findings.items() if code.startswith("mail-")]

    with smtp_server(box, starttls=certificates.server()):
        assert severities(box.port) == ["ok", "problem"]  # its certificate is of an unknown authority
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
        assert severities(box.port) == ["ok", "ok"]
        assert severities(box.port, "right") == ["ok", "ok", "ok"]
        assert severities(box.port, "wrong") == ["ok", "ok", "problem"]
    with smtp_server(Postbox()) as plain:
        assert severities(plain.port) == ["ok", "ok"]
    closed = free_port()
    assert severities(closed, "right") == ["problem", "unchecked", "unchecked"]
    refused = online(doctor, mailer_host="127.0.0.1", mailer_port=closed)["mail-server"].message
    assert refused == f"127.0.0.1:{closed}: Connection refused"
    assert box.received == []


def test_a_hanging_mail_server_has_a_time_limit(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "MAIL_AT_MOST", 0.3)
    with scripted_server(hang) as port:
        findings = online(doctor, mailer_host="127.0.0.1", mailer_port=port)
    assert findings["mail-server"].severity is Severity.PROBLEM


def test_the_provider_and_the_base_url_are_checked(
    make_service: Callable[..., Service], clock: FakeClock
) -> None:
    with oauth_site(make_service) as site:
        doctor = Doctor(site.service, clock)
        findings = online(doctor)
        assert {code: str(finding.severity) for code, finding in findings.items()} == {
            "provider-discovery": "ok",
            "provider-redirect": "ok",
            "base-url-reachable": "ok",
        }
        # Authentik without a signing key.
        site.provider.algorithms = ["HS256"]
        findings = online(doctor)
        assert (
            findings["provider-discovery"].severity,
            "ID tokens" in findings["provider-discovery"].message,
        ) == (
            Severity.PROBLEM,
            True,
        )
        # A slash too much in the issuer.
        findings = online(doctor, oauth_issuer=f"{site.provider.issuer}/")
        assert f"is called {site.provider.issuer!r}" in findings["provider-discovery"].message
        # The provider refuses an unregistered callback, and the finding names the callback to register.
        findings = online(
            doctor, oauth_callback_url="/elsewhere", base_url=site.service.settings.base_url + "/x"
        )
        assert findings["provider-redirect"].severity is Severity.PROBLEM
        assert "/x/elsewhere" in str(findings["provider-redirect"].mend)
        assert findings["base-url-reachable"].severity is Severity.PROBLEM
    findings = online(doctor)
    assert {finding.severity for finding in findings.values()} == {Severity.PROBLEM}
    assert all(finding.mend for finding in findings.values())


def test_a_provider_that_does_not_take_our_kind_of_sign_in_is_a_problem(doctor: Doctor) -> None:
    with hostile() as provider:
        here = {"oauth_client_id": "x", "oauth_client_secret": "y", "oauth_issuer": provider.url}
        findings = online(doctor, **here)
        assert findings["provider-redirect"].severity is Severity.PROBLEM  # it has no such page
        # It sends each browser back at once, as one does that wants the request by another way or knows no such scope.
        callback = doctor.service.settings.base_url + CALLBACK
        says = "error=invalid_request&error_description=Pushed+Authorization+Request+must+be+used"
        provider.answers["/authorize"] = answer(b"", f"Location: {callback}?{says}", status="303 See Other")
        finding = online(doctor, **here)["provider-redirect"]
        assert finding.severity is Severity.PROBLEM
        assert "'invalid_request': 'Pushed Authorization Request must be used'" in finding.message
        assert "auth.oauth.scopes" in str(finding.mend)
        # To sign in there, a browser is sent to another page, and back if it is signed in already.
        for target in ("/login?error=invalid_request", f"{callback}?code=x"):
            provider.answers["/authorize"] = answer(b"", f"Location: {target}", status="303 See Other")
            assert online(doctor, **here)["provider-redirect"].severity is Severity.OK
        assert online(doctor, **here)["provider-discovery"].severity is Severity.OK
        provider.discovery["token_endpoint_auth_methods_supported"] = ["private_key_jwt"]
        finding = online(doctor, **here)["provider-discovery"]
        assert (finding.severity, "private_key_jwt" in finding.message) == (Severity.PROBLEM, True)


# --- the command ---


def run_doctor(usersctl: Command, *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    done = usersctl("doctor", "--json", *words)
    assert done.stderr == ""
    return done.code, {finding["code"]: finding for finding in json.loads(done.stdout)["findings"]}


@pytest.mark.sqlite  # lists the checks of a file
def test_with_a_sound_daemon_the_exit_code_is_0(usersctl: Command) -> None:
    usersctl.add("ada", role="admin")
    port = free_port()
    usersctl.configure(
        f'baseUrl = "http://127.0.0.1:{port}"\n[server]\nport = {port}\n'
        '[mailer]\nhost = "127.0.0.1"\ndefaults.from = "a@example.com"\n'
    )
    with serving(usersctl, port=port) as daemon:
        wait_for(lambda: daemon.events("leader"))  # the last that it writes unasked
        before = {path.name: path.stat().st_mtime_ns for path in usersctl.folder.iterdir()}
        code, findings = run_doctor(usersctl)
        assert {
            finding["code"]: finding for finding in findings.values() if finding["severity"] != "ok"
        } == {}
        assert code == 0
        assert findings["daemon"]["message"] == f"ready at 127.0.0.1:{port}"
        assert {path.name: path.stat().st_mtime_ns for path in usersctl.folder.iterdir()} == before
        screen = usersctl.on_terminal("doctor", columns=90)
        assert screen.code == 0
        assert re.search(
            "^ok +database-integrity +every page and every text is sound$",
            "\n".join(screen.lines),
            re.MULTILINE,
        )
        assert screen.lines[-1] == "Nothing is wrong; 6 more checks with --online"
        silent = usersctl.ok("doctor", "--quiet")
        assert (silent.stdout, silent.stderr) == ("", "")


@pytest.mark.parametrize("state", ["older", "future", "foreign", "folder", "nowhere"])
def test_an_unusable_database_is_a_finding(doctor: Doctor, tmp_path: Path, state: str) -> None:
    path, code = tmp_path / "other.db", "database"
    if state == "older":
        old_database(path)
        code = "database-schema"
    elif state == "future":
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 99")
        connection.close()
    elif state == "foreign":
        path.write_text("no database at all" * 100)
    elif state == "folder":
        path.mkdir()
    else:
        path.symlink_to("other.db")  # to itself
    before = sorted(tmp_path.iterdir())
    severity, _, mend = doctor.finds(code, database=path)
    assert severity in ("problem", "warning")
    assert mend
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.sqlite  # a missing file
@pytest.mark.parametrize("state", ["missing", "locked"])
def test_a_missing_or_locked_database_crashes_no_check(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    path = tmp_path / "other.db"
    with ExitStack() as stack:
        if state == "locked":
            monkeypatch.setattr(database_file, "BUSY_SECONDS", 0.1)
            doctor.service.store.copy(path)
            held = stack.enter_context(closing(sqlite3.connect(path)))
            held.execute("PRAGMA locking_mode = EXCLUSIVE")
            held.execute("BEGIN IMMEDIATE")
        before = sorted(tmp_path.iterdir())
        findings = doctor.findings(database=path)
        assert findings["database"].severity is Severity.PROBLEM
        assert findings["database"].mend
        assert set(findings) == set(OFFLINE) - (NOT_HERE - {"password-hashes", "secret-key", "passkeys"})
        assert sorted(tmp_path.iterdir()) == before


@pytest.mark.sqlite  # a damaged file
def test_a_damaged_database_is_a_finding_of_the_command(usersctl: Command) -> None:
    usersctl.database.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    before = sorted(usersctl.folder.iterdir())
    exit_code, findings = run_doctor(usersctl)
    assert exit_code == 7
    assert findings["database"]["severity"] == "problem"
    assert findings["database"]["mend"]
    assert set(findings) == set(OFFLINE) - {
        "environment",
        "provider",
        "provider-links",
        "factor-rules",
        "webhooks",
    }
    assert sorted(usersctl.folder.iterdir()) == before


@pytest.mark.sqlite  # a missing file
def test_what_cannot_be_checked_is_one_line_for_each_reason_in_an_email_of_cron(usersctl: Command) -> None:
    quiet, every = (
        [line.split("\t") for line in usersctl("doctor", *option, "--db", "missing.db").stdout.splitlines()]
        for option in (["--quiet"], [])
    )
    assert "database" in [code for code, *_ in quiet]
    unchecked = {code for code, severity, *_ in every if severity == "unchecked"}
    assert len(unchecked) > 10
    lines = [message for _, severity, message, _ in quiet if severity == "unchecked"]
    reasons = [line.partition(": ")[0] for line in lines]
    assert sorted(reasons) == ["the database cannot be used", "there is no database"]
    assert {code for line in lines for code in line.partition(": ")[2].split(", ")} == unchecked


@pytest.mark.sqlite  # files
def test_what_mends_an_empty_or_damaged_database_works_on_this_database(usersctl: Command) -> None:
    usersctl.add("ada")
    usersctl.ok("db", "backup", "saved.db")
    short, empty = usersctl.folder / "short.db", usersctl.folder / "empty.db"
    short.write_bytes((usersctl.folder / "saved.db").read_bytes()[:9000])
    empty.touch()
    _, findings = run_doctor(usersctl, "--db", "empty.db")
    assert findings["database"]["mend"] == (
        "make a new one with: usersctl db init --db empty.db;"
        " or restore a backup: usersctl db restore FILE --db empty.db"
    )
    _, findings = run_doctor(usersctl, "--db", "short.db")
    assert findings["database"]["message"] == f"{short} is damaged"
    mend = f"stop the daemon, move {short} and its -wal and -shm away, then: usersctl db restore FILE --db short.db"
    assert findings["database"]["mend"] == mend
    restore = ("db", "restore", "saved.db", "--yes", "--db", "short.db")
    refused = usersctl(*restore)
    assert (refused.code, refused.stderr) == (
        6,
        f"usersctl: {short} is damaged\n  nothing was replaced; {mend}\n",
    )
    short.unlink()
    usersctl.ok(*restore)


def test_an_unusable_configuration_is_a_finding(usersctl: Command) -> None:
    usersctl.configure("server.prot = 80\n")
    exit_code, findings = run_doctor(usersctl)
    assert exit_code == 7
    assert "did you mean server.port" in findings["config"]["message"]
    assert {
        finding["severity"] for code, finding in findings.items() if code not in ("config", "packages")
    } == {"unchecked"}
    usersctl.configure('locale = "xx.json"\n')
    screen = usersctl.on_terminal("doctor", "--db", "other.db", columns=80)
    assert re.search("problem +config +/", screen.text)
    assert f"{usersctl.config}:locale=" in "".join(screen.text.split())
    assert "   -> usersctl db init --db other.db" in screen.text


def test_a_finding_is_printed_before_the_next_check_begins(usersctl: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        usersctl.configure(f"server.port = {silent.getsockname()[1]}\n")
        with usersctl.start("doctor", stdout=subprocess.PIPE) as doctor:
            assert doctor.stdout is not None
            lines = iter(doctor.stdout.readline, b"")
            assert next(lines) == b"code\tseverity\tmessage\tmend\n"
            assert any(line.startswith(b"proxies\t") for line in lines)
            with silent.accept()[0] as connection:  # the check of the daemon waits until this is closed
                connection.recv(4096)
            assert b"not ready: Remote end closed connection" in next(lines)
            doctor.stdout.read()


def test_findings_contain_no_secrets(usersctl: Command) -> None:
    usersctl.add("ada")
    usersctl.configure(
        f'[mailer]\nhost = "127.0.0.1"\nport = {free_port()}\nauth.user = "me"\nauth.pass = "planted-1"\n'
        f'[auth.oauth]\nissuer = "http://127.0.0.1:{free_port()}"\nclientId = "c"\nclientSecret = "planted-2"\n'
    )
    usersctl.config.chmod(0o644)
    done = usersctl("doctor", "--online", "--debug")
    assert done.code == 7
    assert "config-files\tproblem" in done.stdout
    assert "planted" not in done.stdout + done.stderr


def test_a_base_url_that_was_never_set_is_a_warning_as_soon_as_there_is_an_admin(
    service: Service, clock: FakeClock
) -> None:
    doctor = Doctor(service, clock)
    assert doctor.finds("base-url")[0] == "ok"
    create_user(service, "ada@example.com", "Ada", None, role="admin", by=OPERATOR)
    severity, message, mend = doctor.finds("base-url")
    assert (severity, mend) == ("warning", "set baseUrl to the address that people type")
    assert message == "baseUrl is not set: links lead to http://127.0.0.1:8080, where tasks need no session"
    doctor.origins["baseUrl"] = Origin("users.toml", "http://127.0.0.1:8080")
    assert doctor.finds("base-url")[0] == "ok"


# --- second factors ---


@pytest.mark.sqlite  # the key of a server is configured
def test_the_key_of_authenticator_apps_is_there_and_for_its_owner_only(
    doctor: Doctor, service: Service
) -> None:
    key = service.sealer.file.path
    add_authenticator_apps(service, 1)
    assert doctor.finds("secret-key")[:2] == (
        "ok",
        "users.key opens 1 secret; keep a copy of it apart from the backups",
    )
    for mode in (0o640, 0o604):
        key.chmod(mode)
        assert doctor.finds("secret-key")[1:] == ("other users can read users.key", f"chmod go= {key}")
    key.chmod(0o640)
    service.store.path.chmod(0o660)  # an operator gave both to a group on purpose
    assert doctor.finds("secret-key")[0] == "ok"


@pytest.mark.sqlite  # the key of a server is configured
def test_a_missing_key_of_authenticator_apps_is_a_problem(doctor: Doctor, service: Service) -> None:
    key = service.sealer.file.path
    add_authenticator_apps(service, 1)
    content = key.read_bytes()
    key.unlink()
    severity, message, mend = doctor.finds("secret-key")
    assert (severity, message) == (
        "problem",
        "no key opens 1 secret of authenticator apps: ada@example.com",
    )
    assert mend == f"put the key back into {key}; or for each: usersctl factor reset USER --totp"
    bob = create_user(service, "bob@example.com", "Bob", None)
    add_authenticator_apps(service, bob.id)  # makes another key
    assert doctor.finds("secret-key")[1] == message
    key.write_bytes(key.read_bytes() + content)
    severity, message, mend = doctor.finds("secret-key")
    assert (severity, message) == ("hint", "1 secret of authenticator apps sealed with an older key")
    assert mend == "usersctl key rotate"
    assert doctor.finds("secret-key", secret_keys=("k" * 32,))[0] == "hint"
    key.write_bytes(b"short")
    assert "users.key must be a secret of at least 32" in doctor.finds("secret-key")[1]
    key.unlink()
    assert "into auth.secretKey;" in (doctor.finds("secret-key", secret_keys=("k" * 32,))[2] or "")


@pytest.mark.sqlite  # the key of a server is configured
def test_a_link_in_place_of_the_key_is_a_problem_with_a_way_on(doctor: Doctor, service: Service) -> None:
    key = service.sealer.file.path
    add_authenticator_apps(service, 1)
    elsewhere = key.rename(key.with_name("elsewhere"))
    key.symlink_to(elsewhere)
    severity, message, mend = doctor.finds("secret-key")
    assert severity == "problem"
    assert message.startswith(f"{key} cannot be read: ")
    assert mend is not None
    assert "not a link" in mend


def test_passkeys_of_another_address_are_a_warning(doctor: Doctor, service: Service) -> None:
    with service.store.write() as tx:
        for number, rp_id in enumerate(("id.example.com", "id.example.com", "www.example.com")):
            store_passkey(tx, 1, str(number), rp_id=rp_id)
    severity, message, mend = doctor.finds("passkeys", base_url="https://www.example.com")
    assert (severity, message) == (
        "warning",
        "made for another address, and of no use at www.example.com: 2 of id.example.com",
    )
    assert mend == "set baseUrl to https://id.example.com again, or users make new ones"
    with service.store.write() as tx:
        tx.delete_passkeys(1)
        store_passkey(tx, 1, "4", rp_id="www.example.com")
    assert doctor.finds("passkeys", base_url="https://www.example.com")[:2] == ("ok", "1 of www.example.com")


# --- the documentation ---


def test_the_documentation_lists_exactly_these_codes() -> None:
    codes = [cells[0].strip("`") for cells in rows(page("docs/operating/doctor.md"))]
    assert codes == [check.code for check in CHECKS]
    for cells, check in zip(rows(page("docs/operating/doctor.md")), CHECKS, strict=True):
        assert cells[1].startswith("online: ") is check.online


@pytest.mark.sqlite  # the page shows the checks of a file
def test_it_shows_what_the_command_prints(usersctl: Command) -> None:
    usersctl.add("ada", "grace")
    usersctl.add("alan", active=False)
    port = free_port()
    usersctl.configure(f"server.port = {port}\n")
    examples = list(steps(page("docs/operating/doctor.md")))
    assert len(examples) == 2
    for line, shown in examples:
        screen = usersctl.on_terminal(*line.split()[1:])
        printed = "\n".join(screen.lines).replace(f":{port}", ":8080")
        assert same(printed).startswith(same(shown)), line
