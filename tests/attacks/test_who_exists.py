"""What refusals and their time reveal about accounts: nothing."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import bcrypt
import pytest
from support.commands import OPERATOR, PASSWORD, create_user
from support.factors import add_authenticator_apps
from support.fakes import FakeClock
from support.hashes import of_packages
from support.web import DEVICE, refusal_of, running

from usersctl.models import UNUSABLE
from usersctl.service import Service

NO_LIMITS: dict[str, Any] = {
    "failures_before_delay": 10**6,
    "failures_before_lock": 10**6,
    "failed_logins_per_minute": 10**6,
}  # counted as usual, and never reached


# Accounts with hashes of other systems, of different costs: the highest is not far from that of bcrypt beside it.
FOREIGN = {
    "pbkdf2": "pbkdf2_sha256$20000$JzQ8wVAvdxUQwAvlIFgjXJ$" + "A" * 43 + "=",
    "older pbkdf2": "pbkdf2_sha256$7000$JzQ8wVAvdxUQwAvlIFgjXJ$" + "A" * 43 + "=",
    "ldap": of_packages()["passlib ldap_salted_sha1"],
    "argon2": of_packages()["argon2-cffi ID 19"],
    "phpass": of_packages()["passlib phpass"],
    "wordpress": of_packages()["WordPress"],
}


def address(name: str) -> str:
    return f"{name.replace(' ', '-')}@example.com"


@pytest.fixture(scope="module")
def refused() -> dict[str, tuple[str, str]]:
    """Logins that get the same refusal: address and password."""
    names = ("wrong", "factor", "inactive", "broken", "nonsense", "unusable", "cheap")
    return {
        **{name: (address(name), "not the password") for name in (*names, *FOREIGN)},
        "unknown": ("nobody@example.com", "not the password"),
        "no address": ("nobody at all", "not the password"),
        "too long": ("wrong@example.com", "x" * 73),
        "far too long": ("wrong@example.com", "x" * 50_000),
        "too long, unknown": ("nobody@example.com", "x" * 73),
        "empty hash, empty word": ("unusable@example.com", UNUSABLE),
        "nothing much": ("wrong@example.com", " "),
        "too long, pbkdf2": (address("pbkdf2"), "x" * 73),
    }


def accounts_for_refusal(service: Service, foreign: dict[str, str]) -> None:
    stored = {
        **foreign,
        "broken": "$2b$12$short",
        "nonsense": "$2b$09$" + "." * 10 + "\u00e4" * 43,
        "unusable": UNUSABLE,
        "cheap": bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode(),
    }
    for name in ("wrong", "factor", "inactive", *stored):
        user = create_user(
            service, address(name), name.title(), PASSWORD, active=name != "inactive", by=OPERATOR
        )
        if name in stored:
            with service.store.write() as tx:
                tx.change_user(user.id, password_hash=stored[name])
        if name == "factor":
            add_authenticator_apps(service, user.id)


def test_login_refusals_do_not_reveal_accounts(
    make_service: Callable[..., Service], refused: dict[str, tuple[str, str]]
) -> None:
    service = make_service(**NO_LIMITS)
    accounts_for_refusal(service, FOREIGN)
    with running(service) as site:
        refusals = {name: refusal_of(site.client().login(*words)) for name, words in refused.items()}
    assert len({repr(refusal) for refusal in refusals.values()}) == 1, refusals
    assert refusals["wrong"][0] == 401


@pytest.mark.slow
def test_limits_do_not_reveal_accounts(
    make_service: Callable[..., Service], clock: FakeClock, refused: dict[str, tuple[str, str]]
) -> None:
    service = make_service(failures_before_lock=13, failed_logins_per_minute=10**6)
    accounts_for_refusal(service, FOREIGN)
    kinds = (
        "wrong",
        "factor",
        "inactive",
        "broken",
        "nonsense",
        "unusable",
        "cheap",
        "unknown",
        "no address",
        "pbkdf2",
    )
    seen: dict[str, list[Any]] = {name: [] for name in kinds}
    with running(service) as site:
        for _ in range(16):
            for name, seen_of_it in seen.items():
                seen_of_it.append(refusal_of(site.client().login(*refused[name])))
            clock.move(seconds=20)
    assert len({repr(statuses) for statuses in seen.values()}) == 1
    assert [statuses[0] for statuses in seen["unknown"]].count(429) > 3


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("foreign", [{}, FOREIGN], ids=["bcrypt only", "hashes of other systems"])
def test_the_time_of_a_refusal_does_not_reveal_accounts(
    make_service: Callable[..., Service], refused: dict[str, tuple[str, str]], foreign: dict[str, str]
) -> None:
    """All kinds in turn, so that whatever else this machine does meets them alike, and more of them while it is noisy.

    On a machine that never comes to rest the time that the processor worked for them tells as much.
    """
    service = make_service(rounds=8, **NO_LIMITS)
    accounts_for_refusal(service, foreign)
    kinds = (
        *foreign,
        "wrong",
        "factor",
        "inactive",
        "broken",
        "unusable",
        "cheap",
        "unknown",
        "no address",
        "too long",
        "far too long",
    )
    clocks = (time.perf_counter, time.process_time)
    took: dict[str, list[tuple[float, ...]]] = {name: [] for name in kinds}
    with running(service) as site:
        device = site.client()
        assert device.login(site.add("device").email, PASSWORD).status == 200
        client = site.client(cookies={DEVICE: device.cookies[DEVICE]})  # a device of another account
        for _ in range(6):
            for name in kinds * 12:
                began = [clock() for clock in clocks]
                assert client.login(*refused[name]).status == 401
                took[name].append(tuple(clock() - start for clock, start in zip(clocks, began, strict=True)))
            shares = [
                medians({name: [seconds[n] for seconds in times] for name, times in took.items()})
                for n in (0, 1)
            ]
            if any(all(0.9 <= share <= 1.1 for share in one.values()) for one in shares):
                return
    pytest.fail(str(shares))


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    """Of each, as a share of the middle one."""
    by_name = {name: statistics.median(seconds) for name, seconds in times.items()}
    return {name: round(median / statistics.median(by_name.values()), 3) for name, median in by_name.items()}
