"""Passwords: the rules, hashing in slots, and the same work for every answer."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import bcrypt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from usersctl.config import Settings
from usersctl.errors import Busy, Invalid
from usersctl.models import UNUSABLE, Newcomer, User
from usersctl.passwords import MAX_BYTES, Hasher, check_hash, check_password, cost_of

KNOWN = "$2b$04$abcdefghijklmnopqrstuu"  # a salt; bcrypt wants its last character to be one of . O e u
ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))


def hashed(password: str, rounds: int = 4, prefix: bytes = b"2b") -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(rounds, prefix=prefix)).decode()


# --- the rules ---


SERVICE: dict[str, object] = {"base_url": "https://www.analytical.example:8443"}


def rules(**changes: object) -> Settings:
    values = {"database": Path("unused"), "base_url": "http://127.0.0.1"} | changes
    return Settings(**values)  # type: ignore[arg-type]


def checked(password: str, **changes: object) -> str:
    return check_password(rules(**changes), password, Newcomer("ada.l@example.com", "Ada Lovelace"))


@pytest.mark.parametrize(
    ("changes", "password"),
    [
        ({}, "plain sentence"),
        ({}, "ünïcödé"[:7] + "x"),
        ({}, "a" * 60 + "bcdefghijklm"),
        ({}, "ab" * 7),
        ({}, "12345 12345"),
        ({}, "0123456789a"),
        ({"min_length": 1}, "§"),
        ({"require_uppercase": True}, "plain Sentence"),
        ({"require_uppercase": True}, "plain sentencÉ"),
        ({"require_lowercase": True}, "PLAIN SENTENCe"),
        ({"require_numbers": True}, "plain sentence 7"),
        ({"require_special_chars": True}, "plain sentence!"),
        ({"require_special_chars": True}, "plain_sentence"),
        ({"prevent_common_passwords": False}, "password"),
        ({"prevent_common_passwords": False}, "ada.l@example.com"),
        ({}, "ada.l@example.com!"),
        ({}, "not ada lovelace"),
        (SERVICE, "analytical!"),
        (SERVICE | {"prevent_common_passwords": False}, "analytical"),
        ({"min_strength": 1}, "plain sentence"),
        ({"min_strength": 4}, "drifting walnut cathedral"),
    ],
)
def test_a_password_that_meets_the_rules_is_returned_unchanged(
    changes: dict[str, object], password: str
) -> None:
    assert checked(password, **changes) == password


@pytest.mark.parametrize(
    ("changes", "password", "message"),
    [
        ({}, "", "at least 8 characters"),
        ({}, "seven77", "at least 8 characters"),
        ({}, "é" * 7, "at least 8 characters"),
        ({"min_length": 12}, "eleven char", "at least 12 characters"),
        ({"require_uppercase": True}, "plain sentence", "an upper-case letter"),
        ({"require_lowercase": True}, "PLAIN SENTENCE", "a lower-case letter"),
        ({"require_numbers": True}, "plain sentence", "a number"),
        ({"require_special_chars": True}, "plain sentence 7", "a special character"),
        (
            {"require_uppercase": True, "require_numbers": True, "require_special_chars": True},
            "short",
            "at least 8 characters, an upper-case letter, a number and a special character",
        ),
        ({}, "x" * 73, "at most 72 bytes"),
        ({}, "é" * 36 + "x", "at most 72 bytes"),
        ({"min_length": 72}, "é" * 72, "at most 72 bytes"),
        ({}, "with\0nul character", "NUL"),
        ({}, "with \ud800 surrogate", "UTF-8"),
        ({}, "password", "too common"),
        ({}, "PassWord", "too common"),
        ({}, "1234567890", "too common"),
        ({}, "Michelle", "too common"),
        ({}, "88888888", "too common"),
        ({}, "12341234", "too common"),
        ({}, "AsdAsdAsd", "too common"),
        ({}, "        ", "too common"),
        ({}, "9012345678", "too common"),
        ({}, "0987654321", "too common"),
        ({}, "zyxwvutsrq", "too common"),
        ({}, "ada.l@example.com", "your own email address or name"),
        ({}, "ADA.L@Example.com", "your own email address or name"),
        ({"min_length": 3}, "Ada.L", "your own email address or name"),
        ({}, "ada lovelace", "your own email address or name"),
        ({"brand": "Difference Engines"}, "difference ENGINES", "name or address of this service"),
        ({"brand": "Difference Engines"}, "DifferenceEngines", "name or address of this service"),
        (SERVICE, "www.analytical.example", "name or address of this service"),
        (SERVICE, "Analytical.example", "name or address of this service"),
        (SERVICE, "ANALYTICAL", "name or address of this service"),
        ({"min_strength": 1}, "abababababababab", "too easy to guess"),
        ({"min_strength": 3}, "lovelace1815", "too easy to guess"),
        ({"min_strength": 4}, "ada.l@example.com!", "too easy to guess"),
        (SERVICE | {"min_strength": 2}, "analytical!", "too easy to guess"),
        ({"min_strength": 4, "min_length": 72}, "ab" * 36, "too easy to guess"),
    ],
)
def test_the_error_about_a_password_lists_every_missing_rule(
    changes: dict[str, object], password: str, message: str
) -> None:
    with pytest.raises(Invalid, match=message) as refused:
        checked(password, **changes)
    assert password == "" or len(password) < 8 or password not in str(refused.value)


@pytest.mark.parametrize(
    ("claimed", "password"),
    [
        (None, "ada.l@xn--bcher-kva.example"),
        (None, "ada.l@bücher.example"),
        (None, "Ada.L@BÜCHER.example"),
        ("countess@xn--fa-hia.example", "ada.l@bücher.example"),
        ("countess@xn--fa-hia.example", "countess@faß.example"),
        ("countess@example.com", "countess@example.com"),
        ("countess@example.com", "Countess"),
    ],
)
def test_no_address_of_an_account_is_its_password_however_it_is_typed(
    claimed: str | None, password: str
) -> None:
    now = "2026-11-20T08:22:19.123Z"
    email = "ada.l@xn--bcher-kva.example"
    ada = User(
        1,
        email,
        "Ada",
        "user",
        True,
        now,
        now,
        None,
        None,
        None,
        now,
        awaiting_confirmation=False,
        claimed_email=claimed,
    )
    with pytest.raises(Invalid, match="your own email address or name"):
        check_password(rules(), password, ada)
    assert check_password(rules(), "countess@example.org", ada)


def test_tens_of_thousands_of_common_passwords_are_refused() -> None:
    from usersctl.passwords import _common_passwords

    assert len(_common_passwords()) > 20_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "password", ["a" * 72, "4@8({[<369&#!1/|0$5+7%2" * 3, "qwertyuiop[]" * 6, "1!l|i" * 14, "é@3€" * 9]
)
def test_the_strength_of_a_long_password_is_estimated_in_the_time_of_four_hashes(password: str) -> None:
    took, hashed = [], []
    for _ in range(3):  # the first one imports the library
        began = time.process_time()
        Hasher(12).hash(password)
        hashed.append(time.process_time() - began)
        began = time.process_time()
        with suppress(Invalid):
            checked(password, min_strength=4)
        took.append(time.process_time() - began)
    assert min(took) < 4 * min(hashed)  # with the cost of measuring coverage


def test_strength_is_estimated_in_parallel_without_another_user_s_names() -> None:
    def estimated(number: int) -> bool:
        owner = Newcomer(f"user{number}@example.com", f"Zyxwra{number} Kvothlin{number}")
        password = (
            f"Zyxwra{number + 1 - number % 2 * 2}Kvothlin{number + 1 - number % 2 * 2}"  # the neighbour's
        )
        with suppress(Invalid):
            return bool(check_password(rules(min_strength=4), password, owner))
        return False

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(estimated, range(24)))


@given(ANY_TEXT)
def test_every_password_that_meets_the_rules_can_be_hashed_and_matches(password: str) -> None:
    try:
        checked(password, min_length=1)
    except Invalid:
        return
    hasher = Hasher(4)
    assert hasher.matches(password, hasher.hash(password))


# --- hashes ---


@pytest.mark.parametrize("prefix", [b"2a", b"2b"])
@pytest.mark.parametrize("rounds", [4, 5])
def test_the_cost_of_a_hash_is_read_from_its_text(prefix: bytes, rounds: int) -> None:
    assert cost_of(hashed("x", rounds, prefix)) == rounds


def test_a_2y_hash_of_another_system_matches() -> None:
    stored = hashed("plain sentence").replace("$2b$", "$2y$")
    assert Hasher(4).matches("plain sentence", check_hash(stored))


ODD = KNOWN[:-1] + "z" + "x" * 31  # the shape of a hash, with a salt that bcrypt raises on
BROKEN = [
    "",
    UNUSABLE,
    "plain sentence",
    "$2b$04$",
    KNOWN,
    KNOWN + "x" * 30,
    KNOWN + "x" * 32,
    KNOWN + "x" * 30 + "\n",
    KNOWN + "x" * 31 + "\n",
    KNOWN + "x" * 30 + "é",
    KNOWN.replace("2b", "2x") + "x" * 31,
    KNOWN.replace("2b", "2") + "x" * 31,
    KNOWN.replace("04", "03") + "x" * 31,
    KNOWN.replace("04", "4") + "x" * 31,
    KNOWN.replace("04", "17") + "x" * 31,
    KNOWN.replace("04", "31") + "x" * 31,  # would take a week
    KNOWN.replace("04", "٠٤") + "x" * 31,
    "$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHQ$RdescudvJCsgt3ub+b5dWRWJTmaa=",
    "\ud800",
    "\0",
]


@pytest.mark.parametrize("stored", [None, ODD, *BROKEN])
@pytest.mark.parametrize("password", ["plain sentence", "", UNUSABLE, "x" * 73, "\0", "\ud800"])
def test_a_broken_hash_matches_no_password_and_raises_nothing(stored: str | None, password: str) -> None:
    assert Hasher(4).matches(password, stored) is False


@pytest.mark.parametrize("stored", BROKEN)
def test_a_broken_hash_is_not_imported(stored: str) -> None:
    assert cost_of(stored) is None
    with pytest.raises(Invalid, match="bcrypt"):
        check_hash(stored)


@given(
    st.from_regex(r"\A\$2[aby]\$04\$[./A-Za-z0-9]{53}\Z") | ANY_TEXT,
    ANY_TEXT,
)
def test_no_stored_text_and_no_password_raises(stored: str, password: str) -> None:
    assert Hasher(4).matches(password, stored) is False


@pytest.mark.parametrize("prefix", ["", "Straße ", "\0", "a" * 40])
def test_a_password_matches_only_itself(prefix: str) -> None:
    hasher = Hasher(4)
    stored = hasher.hash(prefix + "sentence")
    assert hasher.matches(prefix + "sentence", stored)
    for other in ("sentence"[:-1], "sentence ", "Sentence", "sentence\0", "sentence\0x"):
        assert not hasher.matches(prefix + other, stored)


def test_the_bytes_beyond_72_are_not_cut_off() -> None:
    hasher = Hasher(4)
    stored = hasher.hash("x" * 72)
    assert hasher.matches("x" * 72, stored)
    assert not hasher.matches("x" * 73, stored)
    assert not hasher.matches("x" * 100_000, stored)


def test_two_hashes_of_one_password_differ() -> None:
    assert Hasher(4).hash("same") != Hasher(4).hash("same")


def test_a_hash_of_another_cost_is_to_be_renewed() -> None:
    hasher = Hasher(5)
    assert hasher.needs_renewal(hashed("x", 4))
    assert hasher.needs_renewal(hashed("x", 6))
    assert not hasher.needs_renewal(hasher.renew("x"))


# --- the same work for every answer ---


class Work:
    """bcrypt itself, with a count of the work that it is asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done = 0
        self._check, self._hash = bcrypt.checkpw, bcrypt.hashpw
        monkeypatch.setattr(bcrypt, "checkpw", self.checkpw)
        monkeypatch.setattr(bcrypt, "hashpw", self.hashpw)

    def checkpw(self, password: bytes, stored: bytes) -> bool:
        fits = self._check(password, stored)
        self.done += 2 ** int(stored[4:6])
        return fits

    def hashpw(self, password: bytes, salt: bytes) -> bytes:
        self.done += 2 ** int(salt[4:6])
        return self._hash(password, salt)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [4, 5, 6, 7, 8])
def test_every_check_costs_one_hash_of_the_configured_cost(
    rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = [None, UNUSABLE, KNOWN, *(hashed("right", cost) for cost in range(4, rounds + 1))]
    hasher, work = Hasher(rounds), Work(monkeypatch)
    for stored_hash in stored:
        for password in ("right", "wrong", "", "x" * 73, "x" * 5000, "\0", "é\ud800"):
            work.done = 0
            assert hasher.matches(password, stored_hash) is (
                password == "right" and (stored_hash or "").startswith("$2b") and stored_hash != KNOWN
            )
            assert work.done == 2**rounds, (stored_hash, password[:10])


@pytest.mark.slow
def test_the_time_of_a_check_does_not_depend_on_its_result() -> None:
    hasher = Hasher(9)
    scenarios: dict[str, tuple[str, str | None]] = {
        "right": ("right", hashed("right", 9)),
        "wrong": ("wrong", hashed("right", 9)),
        "nobody": ("right", None),
        "too long": ("x" * 5000, hashed("right", 9)),
        "broken": ("right", KNOWN),
        "cheap": ("right", hashed("right", 4)),
        "cheap and wrong": ("wrong", hashed("right", 5)),
    }
    times: dict[str, list[float]] = {name: [] for name in scenarios}
    for _ in range(5):
        for name, (password, stored) in scenarios.items():
            began = time.thread_time()
            hasher.matches(password, stored)
            times[name].append(time.thread_time() - began)
    best = {name: min(seconds) for name, seconds in times.items()}
    assert max(best.values()) < 1.25 * min(best.values()), best
    assert median(best.values()) > 0.005  # the work was done at all


# --- slots ---


@contextmanager
def held(hasher: Hasher, how_many: int) -> Iterator[Callable[[], None]]:
    """So many slots, or places in the waiting room, taken by threads until the end of the block."""
    inside, leave = threading.Semaphore(0), threading.Event()

    def stay() -> None:
        with hasher.slot():
            inside.release()
            leave.wait(10)

    def let_go() -> None:
        leave.set()

    threads = [threading.Thread(target=stay) for _ in range(how_many)]
    for thread in threads:
        thread.start()
    for _ in range(min(how_many, hasher.slots)):
        assert inside.acquire(timeout=5)
    until = time.monotonic() + 5
    while hasher.in_use + hasher.waiting != how_many:
        assert time.monotonic() < until
        time.sleep(0.001)
    try:
        yield let_go
    finally:
        leave.set()
        for thread in threads:
            thread.join()


def test_a_caller_beyond_slots_and_waiting_room_is_refused_as_busy() -> None:
    hasher = Hasher(4, slots=2, waiting_room=3)
    with held(hasher, 5):
        for attempt in (lambda: hasher.hash("x"), lambda: hasher.slot().__enter__()):
            with pytest.raises(Busy) as refused:
                attempt()
            assert refused.value.retry_after >= 1
    assert hasher.matches("x", hasher.hash("x"))


def test_a_waiting_caller_gets_the_slot_that_becomes_free() -> None:
    hasher = Hasher(4, slots=2, waiting_room=3)
    with held(hasher, 4) as let_go, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(hasher.hash, "x")
        time.sleep(0.05)
        assert not waiting.done()
        let_go()
        assert hasher.matches("x", waiting.result(5))


def test_no_more_than_the_slots_work_at_once() -> None:
    hasher = Hasher(4, slots=2, waiting_room=20)
    now, most, lock = [0], [0], threading.Lock()

    def work(_: int) -> None:
        with hasher.slot():
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            time.sleep(0.002)
            with lock:
                now[0] -= 1

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(work, range(40)))
    assert most[0] == 2


def test_a_failure_in_a_slot_frees_it() -> None:
    hasher = Hasher(4, slots=1, waiting_room=0)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), hasher.slot():
            _ = 1 / 0
    assert hasher.hash("x")


def test_there_are_as_many_slots_as_cores_and_a_waiting_room_of_eight() -> None:
    import os

    from usersctl.passwords import WAITING_ROOM

    assert Hasher(4).slots == os.cpu_count()
    assert WAITING_ROOM == 8
    assert MAX_BYTES == 72


@settings(max_examples=20)
@given(st.integers(4, 12), st.integers(4, 12))
def test_padding_and_check_add_up_to_the_configured_cost(cost: int, rounds: int) -> None:
    padding = [2**cost_ for cost_ in range(cost, rounds)]
    assert 2**cost + sum(padding) == 2 ** max(cost, rounds)
