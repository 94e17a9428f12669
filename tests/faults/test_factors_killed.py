"""A process that is killed before any statement of an enrolment or a second step has done all of it, or nothing."""

import base64
from contextlib import closing
from pathlib import Path

import pytest
from support.commands import OPERATOR, PASSWORD, create_user
from support.databases import add_database, database_at
from support.factors import SEED, add_authenticator_apps, opened_secrets
from support.killed import folders_after_kills, opened
from support.tables import query

from usersctl.clock import utc_now
from usersctl.errors import InvalidCode, Unauthenticated
from usersctl.factors.recovery_codes import hash_of
from usersctl.factors.totp import code_at, step_at
from usersctl.models import UNKNOWN_CLIENT, Proof
from usersctl.service import Service
from usersctl.sessions import Pending

RECOVERY_CODE = "abcd-efgh-ijkl-mnop-qrst-uvwx"

ENROL = """
def act(database):
    import base64
    service = service_on(database)
    from usersctl.clock import utc_now
    from usersctl.factors.totp import code_at, step_at
    new = service.factors.begin_totp(1, session_id=1, by=operator)
    code = code_at(base64.b32decode(new.secret), step_at(utc_now()))
    assert len(service.factors.confirm_totp(1, code, session_id=1, by=operator)) == 10
"""
FINISH = """
def act(database):
    service = service_on(database)
    service.second_step.finish([{token!r}], {proof!r}, then=service.sessions.finish, client=UNKNOWN_CLIENT, by=operator)
"""


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """The folder of a database with an account."""
    folder = tmp_path / "made"
    folder.mkdir()
    add_database(database_at(folder / "users.db"))
    with closing(opened(folder)) as service:
        create_user(service, "ada@example.com", "Ada", PASSWORD)
    return folder


def pending(service: Service) -> str:
    waiting = service.sessions.login("ada@example.com", PASSWORD)
    assert isinstance(waiting, Pending)
    return waiting.token


def finish(service: Service, token: str, proof: Proof) -> None:
    service.second_step.finish(
        [token], proof, then=service.sessions.finish, client=UNKNOWN_CLIENT, by=OPERATOR
    )


def count(service: Service, table: str, where: str = "TRUE") -> int:
    ((number,),) = query(service, f"SELECT count(*) FROM {table} WHERE {where}")  # noqa: S608 - our own words
    return int(number)


@pytest.mark.slow
def test_an_enrolment_that_is_killed_is_done_or_not_begun(made: Path) -> None:
    outcomes = set()
    with folders_after_kills(made, ENROL) as folders:
        for folder in folders:
            with closing(opened(folder)) as service:
                done = count(service, "totp_secrets")
                assert query(service, "SELECT factors FROM users") == [(done,)]
                assert count(service, "recovery_codes") == 10 * done
                assert count(service, "outbox", "kind = 'totp-added'") == done
                assert count(service, "audit", "action = 'factor-add'") == done
                assert len(opened_secrets(service)) == done
                assert len(service.sealer.names()) in (done, 1)
                outcomes.add(done)
                if not done:  # the owner begins again
                    new = service.factors.begin_totp(1, session_id=2, by=OPERATOR)
                    code = code_at(base64.b32decode(new.secret), step_at(utc_now()))
                    assert service.factors.confirm_totp(1, code, session_id=2, by=OPERATOR)
                assert isinstance(service.sessions.login("ada@example.com", PASSWORD), Pending)
    assert outcomes == {0, 1}


@pytest.mark.slow
def test_a_code_whose_use_is_killed_opens_one_session_in_all(made: Path) -> None:
    with closing(opened(made)) as service:
        add_authenticator_apps(service, 1)
        token = pending(service)
    step = step_at(utc_now()) + 1  # it stays valid for a minute
    proof, outcomes = Proof(code=code_at(SEED, step)), set()
    with folders_after_kills(made, FINISH.format(token=token, proof=proof)) as folders:
        for folder in folders:
            with closing(opened(folder)) as service:
                done = count(service, "auth_tokens")
                assert count(service, "pending_sign_ins") == 1 - done
                assert query(service, "SELECT last_step FROM totp_secrets") == [(step * done,)]
                outcomes.add(done)
                if done:
                    with pytest.raises(Unauthenticated):
                        finish(service, token, proof)
                    with pytest.raises(InvalidCode):
                        finish(service, pending(service), proof)
                else:
                    finish(service, token, proof)
                assert count(service, "auth_tokens") == 1
    assert outcomes == {0, 1}


@pytest.mark.slow
def test_a_recovery_code_whose_use_is_killed_opens_one_session_in_all(made: Path) -> None:
    with closing(opened(made)) as service:
        add_authenticator_apps(service, 1)
        with service.store.write() as tx:
            tx.add_recovery_codes(1, [hash_of(RECOVERY_CODE), b"another"])
        token = pending(service)
    proof, outcomes = Proof(recovery_code=RECOVERY_CODE), set()
    with folders_after_kills(made, FINISH.format(token=token, proof=proof)) as folders:
        for folder in folders:
            with closing(opened(folder)) as service:
                done = count(service, "auth_tokens")
                assert count(service, "recovery_codes") == 2 - done
                assert count(service, "outbox", "kind = 'recovery-code-used'") == done
                assert count(service, "audit", "action = 'recovery-code-used'") == done
                outcomes.add(done)
                if done:
                    with pytest.raises(InvalidCode):
                        finish(service, pending(service), proof)
                else:
                    finish(service, token, proof)
                assert count(service, "auth_tokens") == 1
    assert outcomes == {0, 1}
