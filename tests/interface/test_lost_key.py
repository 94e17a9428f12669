"""The key of authenticator apps is not here: what still works, and what works again when it is back."""

import pytest
from support.commands import PASSWORD
from support.fakes import FakeClock
from support.second_factors import SECOND_STEP, enrol, second_step, with_phone
from support.tables import query
from support.web import Site

pytestmark = pytest.mark.sqlite  # a database on a server has its key in the configuration

ADA = "ada@example.com"


@pytest.mark.slow
def test_a_code_without_the_key_is_a_503_that_the_log_explains_and_no_guess(
    site: Site, clock: FakeClock
) -> None:
    _, phone = with_phone(site, clock)
    key = site.service.sealer.file.path
    away = key.rename(key.with_suffix(".away"))
    clock.move(minutes=1)
    client = second_step(site.client())
    for _ in range(20):
        refused = client.post(SECOND_STEP, {"code": phone.code()})
        assert refused.status == 503
        assert refused.header("Retry-After")
        assert "key" not in refused.message
    for _ in range(20):
        with_code = site.client().login(ADA, PASSWORD, code=phone.code())
        assert with_code.status == 503
    assert any(
        line["event"] == "database" and "authenticator app is missing" in line["message"] for line in site.log
    )
    assert client.post(SECOND_STEP, {"recoveryCode": phone.codes[0]}).status == 200
    away.rename(key)
    again = second_step(site.client())
    assert again.post(SECOND_STEP, {"code": phone.code()}).status == 200  # without a restart
    assert query(site.service, "SELECT failures FROM login_failures") == []


def test_others_enrol_with_a_new_key_and_the_old_one_is_added_later(site: Site, clock: FakeClock) -> None:
    _, phone = with_phone(site, clock)
    key = site.service.sealer.file.path
    old = key.read_text()
    key.unlink()
    bob = site.signed_in(site.add("bob"))
    enrol(bob, clock)
    assert key.read_text() != old
    key.write_text(key.read_text() + old)
    clock.move(minutes=1)
    assert second_step(site.client()).post(SECOND_STEP, {"code": phone.code()}).status == 200
