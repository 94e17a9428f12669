"""All secrets are sealed anew while others write and read; wherever it is killed, each secret opens."""

import threading
from base64 import b32decode
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from support import postgres
from support.commands import HASH, OPERATOR, PASSWORD, create_user
from support.databases import SECRET_KEY
from support.factors import SEED, add_authenticator_apps, opened_secrets
from support.fakes import FakeClock
from support.killed import folders_after_kills
from support.tables import audit, query
from support.web import Site

from usersctl.config import Settings
from usersctl.errors import KeyUnusable
from usersctl.factors import rotation
from usersctl.factors.rotation import Rotated
from usersctl.factors.sealing import key_name_of
from usersctl.factors.totp import code_at, step_at
from usersctl.models import UNKNOWN_CLIENT, Proof, User
from usersctl.service import Service
from usersctl.sessions import Opened, Pending
from usersctl.store.opening import open_store

OLD, NEW = "old key " * 5, "new key " * 5


def add_accounts(service: Service, count: int) -> list[int]:
    """Quickly: without a check of each."""
    names = ("email", "name", "password_hash", "active", "created_at", "updated_at")
    moment = "2026-11-20T08:22:19.123Z"
    rows = [(f"user{n}@example.com", "User", HASH, 1, moment, moment) for n in range(count)]
    with service.store.write() as tx:
        tx._insert_rows("users", names, rows)
    return [number for (number,) in query(service, "SELECT id FROM users ORDER BY id")]


def names_of_used_keys(service: Service) -> set[bytes]:
    return {key_name_of(sealed) for (sealed,) in query(service, "SELECT secret FROM totp_secrets")}


@pytest.mark.sqlite  # the key of a server is configured
def test_a_new_key_of_the_file_seals_all_secrets(service: Service, add: Callable[..., User]) -> None:
    add_authenticator_apps(service, add("ada").id, add("bob").id)
    before = service.sealer.names()
    assert service.key_rotation.run(by=OPERATOR) == Rotated(sealed=2, unreadable=0)
    assert service.sealer.names()[1:] == before
    assert names_of_used_keys(service) == {service.sealer.names()[0]}
    assert opened_secrets(service) == [SEED] * 2
    assert [(row.action, row.details) for row in audit(service)][-1] == ("rotate-key", {"secrets": 2})


def test_a_backup_of_before_opens_with_the_older_key_of_the_file(
    service: Service, add: Callable[..., User], tmp_path: Path
) -> None:
    add_authenticator_apps(service, add().id)
    service.store.copy(tmp_path / "backup.db")
    service.key_rotation.run(by=OPERATOR)
    with closing(open_store(tmp_path / "backup.db")) as backup, backup.read() as tx:
        (totp,) = tx.totp_secrets(0, 1)
    assert service.sealer.open(totp.secret, f"totp of user {totp.user_id}") == SEED


def test_the_first_configured_key_seals_all_secrets_and_makes_no_file(
    make_service: Callable[..., Service],
) -> None:
    before = make_service(secret_keys=(OLD,))
    add_authenticator_apps(before, create_user(before, "ada@example.com", "Ada", None).id)
    both = make_service(secret_keys=(NEW, OLD))
    assert both.key_rotation.run(by=OPERATOR) == Rotated(1, 0)
    assert opened_secrets(make_service(secret_keys=(NEW,))) == [SEED]
    with pytest.raises(KeyUnusable):
        opened_secrets(before)
    assert both.key_rotation.run(by=OPERATOR) == Rotated(0, 0)
    assert not (both.settings.folder / "users.key").exists()


@pytest.mark.sqlite  # the key of a server is configured
def test_a_rotation_moves_the_secrets_from_the_file_to_a_configured_key(
    make_service: Callable[..., Service],
) -> None:
    service = make_service()
    add_authenticator_apps(service, create_user(service, "ada@example.com", "Ada", None).id)
    configured = make_service(secret_keys=(NEW,))
    assert configured.key_rotation.run(by=OPERATOR) == Rotated(1, 0)
    configured.sealer.file.path.unlink()
    assert opened_secrets(configured) == [SEED]


@pytest.mark.sqlite  # the key of a server is configured
def test_secrets_that_no_key_opens_stay_and_are_counted(service: Service, add: Callable[..., User]) -> None:
    add_authenticator_apps(service, add("ada").id)
    lost = service.sealer.file.path.rename(service.sealer.file.path.with_suffix(".lost"))
    add_authenticator_apps(service, add("bob").id)
    before = query(service, "SELECT secret FROM totp_secrets ORDER BY user_id")
    assert service.key_rotation.run(by=OPERATOR) == Rotated(sealed=1, unreadable=1)
    after = query(service, "SELECT secret FROM totp_secrets ORDER BY user_id")
    assert before[0] == after[0]
    assert before[1] != after[1]
    file = service.sealer.file.path
    file.write_text(file.read_text() + lost.read_text())  # it turned up
    assert opened_secrets(service) == [SEED] * 2


@pytest.mark.sqlite  # the key of a server is configured
def test_without_any_secret_a_rotation_renews_a_key_and_makes_none(service: Service) -> None:
    assert service.key_rotation.run(by=OPERATOR) == Rotated(0, 0)
    assert service.sealer.file.keys() == ()
    assert query(service, "SELECT count(*) FROM audit WHERE action = 'rotate-key'") == [(0,)]
    service.sealer.file.make()
    assert service.key_rotation.run(by=OPERATOR) == Rotated(0, 0)
    assert len(service.sealer.file.keys()) == 2


@pytest.mark.sqlite  # the key of a server is configured
def test_an_app_that_is_confirmed_after_a_rotation_is_sealed_with_the_new_key(
    site: Site, clock: FakeClock
) -> None:
    client = site.signed_in(site.add())
    secret = b32decode(client.post("/api/users/me/totp").json["secret"])
    site.service.key_rotation.run(by=OPERATOR)
    code = code_at(secret, step_at(clock()))
    assert client.post("/api/users/me/totp/confirm", {"code": code}).status == 200
    assert names_of_used_keys(site.service) == {site.service.sealer.names()[0]}
    assert opened_secrets(site.service) == [secret]


@pytest.mark.sqlite  # the key of a server is configured
def test_a_secret_that_is_damaged_keeps_a_rotation_from_no_other(
    service: Service, add: Callable[..., User]
) -> None:
    ada, bob = add("ada"), add("bob")
    add_authenticator_apps(service, ada.id, bob.id)
    with service.store.write() as tx:
        totp = tx.totp(ada.id)
        assert totp is not None
        assert tx.replace_totp_secret(totp, totp.secret[:-1])
    progress: list[tuple[int, int | None]] = []
    rotated = service.key_rotation.run(by=OPERATOR, progress=lambda *done: progress.append(done))
    assert rotated == Rotated(sealed=1, unreadable=1)
    assert progress == [(2, 2)]


@pytest.mark.sqlite  # the key of a server is configured
def test_a_rotation_reads_the_secrets_that_another_one_sealed_meanwhile(
    service: Service, add: Callable[..., User], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_authenticator_apps(service, add("ada").id, add("bob").id)
    monkeypatch.setattr(rotation, "SOME", 1)
    others: list[Rotated] = []

    def rotate_again(*_: object) -> None:
        if not others:
            others.append(service.key_rotation.run(by=OPERATOR))

    assert service.key_rotation.run(by=OPERATOR, progress=rotate_again) == Rotated(sealed=1, unreadable=0)
    assert others == [Rotated(sealed=2, unreadable=0)]
    assert names_of_used_keys(service) == {service.sealer.names()[0]}


@pytest.mark.sqlite  # the key of a server is configured
def test_a_rotation_waits_for_another_one_before_it_reads_the_keys(service: Service) -> None:
    service.key_rotation.run(by=OPERATOR)
    before = service.sealer.names()
    rotating = threading.Thread(target=service.key_rotation.run, kwargs={"by": OPERATOR})
    with service.store.write():
        rotating.start()
        rotating.join(0.3)
        assert service.sealer.names() == before
    rotating.join(10)
    assert service.sealer.names()[1:] == before


def test_a_secret_that_is_replaced_meanwhile_stays_as_it_is(
    service: Service, add: Callable[..., User]
) -> None:
    ada = add()
    add_authenticator_apps(service, ada.id)
    with service.store.read() as tx:
        (totp,) = tx.totp_secrets(0, 1)
    with service.store.write() as tx:
        tx.delete_totp(ada.id)
    add_authenticator_apps(service, ada.id, seed=b"another")
    with service.store.write() as tx:
        assert not tx.replace_totp_secret(totp, b"sealed anew")
    assert opened_secrets(service) == [b"another"]


@pytest.mark.sqlite  # the key of a server is configured
def test_two_rotations_at_once_lose_no_key(service: Service) -> None:
    add_authenticator_apps(service, *add_accounts(service, 500))
    failed: list[BaseException] = []

    def rotate() -> None:
        try:
            service.key_rotation.run(by=OPERATOR)
        except BaseException as error:  # noqa: BLE001 - reported by the test
            failed.append(error)

    threads = [threading.Thread(target=rotate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert len(service.sealer.file.keys()) == 5
    assert opened_secrets(service) == [SEED] * 500


def sign_in(service: Service, email: str, code: str) -> Opened:
    """In two steps."""
    pending = service.sessions.login(email, PASSWORD)
    assert isinstance(pending, Pending)
    return service.second_step.finish(
        [pending.token],
        Proof(code=code),
        then=service.sessions.finish,
        client=UNKNOWN_CLIENT,
        by=OPERATOR,
    )


@pytest.mark.slow
def test_ten_thousand_secrets_are_sealed_anew_while_people_sign_in_and_enrol(
    make_service: Callable[..., Service],
) -> None:
    service = make_service()
    ids = add_accounts(service, 10_030)
    add_authenticator_apps(service, *ids[:10_000])
    if postgres.is_whole():  # the keys of a server are configured
        service = make_service(secret_keys=(NEW, SECRET_KEY))
    code, done = code_at(SEED, step_at(service.now())), threading.Event()
    signed_in: list[int] = []
    failed: list[BaseException] = []

    def people_sign_in() -> None:
        while not done.is_set():
            number = len(signed_in) * 997 % 10_000  # each account once
            signed_in.append(sign_in(service, f"user{number}@example.com", code).session.id)

    def people_enrol() -> None:
        for user_id in ids[10_000:]:
            add_authenticator_apps(service, user_id)

    def run(work: Callable[[], None]) -> threading.Thread:
        def reported() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - reported by the test
                failed.append(error)

        thread = threading.Thread(target=reported)
        thread.start()
        return thread

    signing_in, enrolling = run(people_sign_in), run(people_enrol)
    rotated = service.key_rotation.run(by=OPERATOR)
    enrolling.join(60)
    done.set()
    signing_in.join(60)
    assert failed == []
    assert rotated.sealed >= 10_000
    assert rotated.unreadable == 0
    assert len(set(signed_in)) == len(signed_in) > 10
    assert len(service.sealer.names()) == 2
    assert set(opened_secrets(service, every=50)) == {SEED}
    # A secret that was sealed while the new key was made may have the older one.
    assert names_of_used_keys(service) <= {*service.sealer.names()}


ROTATE = """
def act(database):
    from usersctl.factors import rotation
    rotation.SOME = 2
    service_on(database).key_rotation.run(by=operator)
"""


@pytest.mark.slow
@pytest.mark.sqlite  # the key of a server is configured
def test_a_rotation_that_is_killed_at_any_statement_leaves_secrets_that_open(
    service: Service, add: Callable[..., User], tmp_path: Path
) -> None:
    add_authenticator_apps(service, *(add(f"user{n}").id for n in range(5)))
    (made := tmp_path / "made").mkdir()
    service.store.copy(made / "users.db")
    (made / "users.key").write_bytes(service.sealer.file.path.read_bytes())
    with folders_after_kills(made, ROTATE) as folders:
        for folder in folders:
            after = Service(
                Settings(database=folder / "users.db", base_url=""), open_store(folder / "users.db")
            )
            assert opened_secrets(after) == [SEED] * 5
            assert after.key_rotation.run(by=OPERATOR) == Rotated(5, 0)
            assert opened_secrets(after) == [SEED] * 5
            after.close()
