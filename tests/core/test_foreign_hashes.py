"""Password hashes of other systems, made by their own packages: read, bounded, checked, and as slow as others."""

import logging
import sys
import time
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.commands import OPERATOR, PASSWORD
from support.hashes import PHRASE, PUBLISHED, of_packages, passlib_kinds, wordpress
from support.tables import hash_of, plan, statements, store_hash

from usersctl import foreign_hashes
from usersctl.errors import Inactive, Invalid, Unauthenticated
from usersctl.foreign_hashes import ForeignHash
from usersctl.models import User
from usersctl.passwords import Hasher, TooCostly, beginning_of, check_hash, kind_of, lacks_library, level
from usersctl.service import Service

MADE = of_packages()
ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))
DJANGO = "pbkdf2_sha256${rounds}$JzQ8wVAvdxUQwAvlIFgjXJ$" + "A" * 43 + "="
ARGON = "$argon2id$v=19$m={m},t={t},p={p}$c2FsdHNhbHQ$" + "A" * 43
SCRYPT = "scrypt:{n}:{r}:{p}$JzQ8wVAvdxUQwAvl$" + "ab" * 64


def foreign(stored: str) -> ForeignHash:
    hashed = foreign_hashes.read(stored)
    assert hashed is not None, stored
    return hashed


# --- read and checked ---


@pytest.mark.parametrize("name", MADE)
def test_a_hash_of_another_system_matches_its_password_and_no_other(name: str) -> None:
    hasher, stored = Hasher(4), MADE[name]
    assert check_hash(stored) == stored
    assert hasher.matches(PHRASE, stored)
    for other in (
        PHRASE[:-1],
        f"{PHRASE} ",
        PHRASE.lower(),
        f"{PHRASE}\0",
        f"{PHRASE}\0x",
        "",
        stored,
        "\ud800",
    ):
        assert not hasher.matches(other, stored), other


@pytest.mark.parametrize("stored", PUBLISHED)
def test_a_published_hash_matches_its_password(stored: str) -> None:
    assert Hasher(4).matches(PUBLISHED[stored], check_hash(stored))
    assert not Hasher(4).matches(PUBLISHED[stored] + "x", stored)


def test_a_password_matches_as_the_forms_of_wordpress_and_phpbb_hand_it_on() -> None:
    typed, slashed, html = (
        'it\'s \\ <"R&D">',
        'it\\\'s \\\\ <\\"R&D\\">',
        "it's \\ &lt;&quot;R&amp;D&quot;&gt;",
    )
    phpass = passlib_kinds().phpass.using(rounds=7)
    hasher = Hasher(4)
    for stored in (
        wordpress(slashed)["WordPress"],
        phpass.hash(slashed),
        phpass.hash(typed),
        phpass.using(ident="H").hash(html),
        phpass.using(ident="H").hash(typed),
    ):
        assert hasher.matches(typed, check_hash(stored))
        assert not hasher.matches(typed[1:], stored)


def test_every_kind_is_made_by_a_package() -> None:
    kinds = {kind_of(stored) for stored in MADE.values()}
    assert kinds >= {"PBKDF2", "scrypt", "Argon2", "phpass", "salted SHA", "WordPress"}


@pytest.mark.parametrize("mark", ["bcrypt$", "{CRYPT}", "{crypt}", "{BCRYPT}", "{BLF-CRYPT}"])
def test_bcrypt_with_the_mark_of_another_system_is_bcrypt(mark: str) -> None:
    hasher = Hasher(4)
    stored = mark + hasher.hash("right")
    assert kind_of(check_hash(stored)) == "bcrypt"
    assert hasher.matches("right", stored)
    assert not hasher.matches("wrong", stored)
    assert hasher.needs_renewal(stored)


def test_a_mark_and_the_scheme_of_ldap_have_any_letter_case() -> None:
    stored = MADE["passlib ldap_salted_sha1"]
    assert Hasher(4).matches(PHRASE, stored.replace("SSHA", "ssha"))


def test_a_password_over_72_bytes_matches_no_hash() -> None:
    from werkzeug.security import generate_password_hash

    long = "x" * 73
    assert not Hasher(4).matches(long, generate_password_hash(long, "pbkdf2:sha256:10"))
    assert Hasher(4).matches(long[1:], generate_password_hash(long[1:], "pbkdf2:sha256:10"))


# --- refused ---

REFUSED = [
    "5f4dcc3b5aa765d61d8327deb882cf99",
    "md5$salt$5f4dcc3b5aa765d61d8327deb882cf99",
    "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=",  # no salt
    "{SSHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=",  # nor this one
    "{CRYPT}$6$salt$abc",
    "$1$salt$abc",
    "!",
    "*",
    "pbkdf2_sha256$0$salt$" + "A" * 43 + "=",
    "pbkdf2_sha256$-1$salt$" + "A" * 43 + "=",
    "pbkdf2_sha256$٣$salt$" + "A" * 43 + "=",
    "pbkdf2_sha256$010$salt$" + "A" * 43 + "=",
    "pbkdf2_sha256$10$$" + "A" * 43 + "=",
    "pbkdf2_sha256$10$salt$" + "A" * 40,  # another length than that of the digest
    "pbkdf2_md5$10$salt$" + "A" * 22,
    "pbkdf2_sha256$10$salt$" + "A" * 43 + "=\n",
    "pbkdf2:sha256$salt$" + "ab" * 32,  # the rounds are those of the version that reads it
    "pbkdf2:sha256:10$salt$" + "AB" * 32,
    "scrypt:1000:8:1$salt$" + "ab" * 64,  # N is no power of two
    "scrypt:1:8:1$salt$" + "ab" * 64,
    "$argon2x$v=19$m=64,t=1,p=1$c2FsdHNhbHQ$" + "A" * 43,
    "$argon2id$v=20$m=64,t=1,p=1$c2FsdHNhbHQ$" + "A" * 43,
    "$argon2id$v=19$m=8,t=1,p=2$c2FsdHNhbHQ$" + "A" * 43,  # less than eight blocks a lane
    "$argon2id$v=19$m=64,t=1,p=1,keyid=x$c2FsdHNhbHQ$" + "A" * 43,
    "$P$Zsaltsalt" + "." * 22,
    "$P$4saltsalt" + "." * 22,
    "$wp$P$Bsaltsalt" + "." * 22,
]


@pytest.mark.parametrize("stored", REFUSED)
def test_a_text_of_no_known_kind_is_refused_without_being_shown(stored: str) -> None:
    assert kind_of(stored) is None
    with pytest.raises(Invalid, match="password_hash") as refused:
        check_hash(stored)
    assert stored not in refused.value.in_full
    assert not Hasher(4).matches("x", stored)


@pytest.mark.parametrize(
    ("at_most", "above", "message"),
    [
        (
            DJANGO.format(rounds=5_000_000),
            DJANGO.format(rounds=5_000_001),
            "5000001 rounds is more than 5000000",
        ),
        (ARGON.format(m=262144, t=1, p=1), ARGON.format(m=262145, t=1, p=1), "257 MiB is more than 256"),
        (ARGON.format(m=64, t=20, p=1), ARGON.format(m=64, t=21, p=1), "21 passes is more than 20"),
        (ARGON.format(m=256, t=1, p=16), ARGON.format(m=256, t=1, p=17), "17 lanes is more than 16"),
        (SCRYPT.format(n=2**18, r=8, p=1), SCRYPT.format(n=2**18, r=9, p=1), "288 MiB is more than 256"),
        (SCRYPT.format(n=2**18, r=8, p=1), SCRYPT.format(n=2**33, r=9**9, p=1), "is more than 256"),
        (SCRYPT.format(n=2**10, r=8, p=16), SCRYPT.format(n=2**10, r=8, p=17), "17 lanes is more than 16"),
        # The blocks of the lanes need memory, too.
        (SCRYPT.format(n=2**18, r=8, p=16), SCRYPT.format(n=2**4, r=2**17, p=16), "512 MiB is more than 256"),
        ("$P$Isaltsalt" + "." * 22, "$P$Jsaltsalt" + "." * 22, "2097152 rounds is more than 1048576"),
        ("$wp$2y$16$" + "." * 53, "$wp$2y$17$" + "." * 53, "cost 4 to 16"),
    ],
)
def test_a_hash_that_costs_too_much_is_refused_at_once(at_most: str, above: str, message: str) -> None:
    assert check_hash(at_most) == at_most
    began = time.process_time()
    with pytest.raises(Invalid, match=message):
        check_hash(above)
    # One that was written past the import is not checked either.
    assert kind_of(above) is None
    assert not Hasher(4).matches("x", above)
    assert time.process_time() - began < 0.2


def test_too_much_is_told_apart_from_no_hash_at_all() -> None:
    with pytest.raises(TooCostly):
        check_hash(DJANGO.format(rounds=10**9))
    with pytest.raises(Invalid) as other:
        check_hash("plain text")
    assert not isinstance(other.value, TooCostly)


def makers() -> dict[str, Callable[[str], str]]:
    """At the lowest cost."""
    from argon2.low_level import Type, hash_secret
    from werkzeug.security import generate_password_hash

    return {
        "pbkdf2": lambda password: generate_password_hash(password, "pbkdf2:sha256:1", 8),
        "scrypt": lambda password: generate_password_hash(password, "scrypt:1024:8:1", 8),
        "argon2": lambda password: hash_secret(password.encode(), b"saltsalt", 1, 8, 1, 16, Type.ID).decode(),
        "phpass": passlib_kinds().phpass.using(rounds=7).hash,
        "ldap": passlib_kinds().ldap_salted_sha256.hash,
    }


@pytest.mark.parametrize("kind", makers())
@settings(max_examples=30)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=18))
def test_every_password_matches_the_hash_that_another_system_made_of_it(kind: str, password: str) -> None:
    stored = makers()[kind](password)
    hasher = Hasher(4)
    assert hasher.matches(password, check_hash(stored))
    assert not hasher.matches(password + "x", stored)
    assert hasher.matches(password, hasher.renew(password))


def cut(stored: str, at: int, instead: str, length: int) -> str:
    at %= len(stored) + 1
    return stored[:at] + instead + stored[at + length :]


@given(
    ANY_TEXT
    | st.builds(
        cut, st.sampled_from([*MADE.values(), *PUBLISHED]), st.integers(0, 200), ANY_TEXT, st.integers(0, 9)
    )
    | st.builds(
        cut,
        st.sampled_from([*MADE.values()]),
        st.integers(0, 60),
        st.sampled_from("0123456789$.,=:"),
        st.just(1),
    ),
    ANY_TEXT,
)
def test_no_text_and_no_password_raises(stored: str, password: str) -> None:
    hashed = foreign_hashes.read(stored)
    kind_of(stored)
    if hashed is None or hashed.excess or hashed.work < 100_000:
        assert not Hasher(4).matches(password, stored)


# --- the extra ---


def test_without_the_library_an_argon2_hash_matches_nothing_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stored = MADE["argon2-cffi ID 19"]
    for name in [*filter(lambda name: name.partition(".")[0] == "argon2", sys.modules), "argon2"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert lacks_library(stored)
    assert not lacks_library(MADE["passlib phpass"])
    assert check_hash(stored) == stored
    assert not Hasher(4).matches(PHRASE, stored)
    level("wrong", None, foreign(stored))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert (
        record.getMessage()
        == "A password was not checked, because its hash is Argon2: pip install argon2-cffi"
    )


# --- the login replaces it: see also tests/interface/test_foreign_hashes.py ---


def test_a_password_that_is_changed_during_the_check_is_not_replaced(
    service: Service, add: Callable[..., User], monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = add()
    store_hash(service, ada, MADE["Werkzeug pbkdf2:sha256:1000"])
    matches = Hasher.matches

    def changed_meanwhile(self: Hasher, password: str, stored: str | None) -> bool:
        fits = matches(self, password, stored)
        monkeypatch.undo()
        service.accounts.set_password(ada.id, PASSWORD, by=OPERATOR)
        return fits

    monkeypatch.setattr(Hasher, "matches", changed_meanwhile)
    with pytest.raises(Unauthenticated):
        service.sessions.login(ada.email, PHRASE)
    service.sessions.login(ada.email, PASSWORD)


def test_a_right_password_of_an_inactive_account_replaces_nothing(
    service: Service, add: Callable[..., User]
) -> None:
    ada = add(active=False)
    store_hash(service, ada, MADE["passlib phpass"])
    with pytest.raises(Inactive):
        service.sessions.login(ada.email, PHRASE)
    assert hash_of(service, ada) == MADE["passlib phpass"]


# --- the same work for every refusal ---


def test_the_slowest_hash_is_found_among_many(service: Service, add: Callable[..., User]) -> None:
    texts = {
        "a": "5f4dcc3b5aa765d61d8327deb882cf99",
        "b": DJANGO.format(rounds=1_000_000),
        "c": DJANGO.format(rounds=260_000),
        "d": DJANGO.format(rounds=5_000_000),  # above what refusals are levelled to
        "e": DJANGO.format(rounds=9_000_000),  # never checked
        "f": "{SSHA}VuI5iUcJ9cCoZ7rwqnPNx1w5xTiPEeLc",
        "g": "!",
        "h": "!unusable",
        "i": "argon2" + ARGON.format(m=65536, t=2, p=1),
    }
    for name, text in texts.items():
        store_hash(service, add(name), text)
        store_hash(service, add(f"{name}2"), text)
    with service.store.read() as tx:
        some = list(tx.foreign_hashes(beginning_of, 50))
        counts = {kind_of(text): tx.count_foreign_hashes(beginning_of(text)) for text in some}
        assert list(tx.foreign_hashes(beginning_of, 3)) == some[:3]
    assert some == sorted(text for name, text in texts.items() if name not in "gh")
    assert set(counts.values()) == {2}
    slowest = foreign_hashes.slowest(some)
    assert slowest is not None
    assert slowest.work == 1_000_000


@pytest.mark.parametrize(
    "marked", ["bcrypt$$2b$12$", "bcrypt_sha256$$2b$12$", "$wp$2y$10$", "{CRYPT}$2y$10$"]
)
def test_many_hashes_that_bcrypt_reads_hide_no_slower_one(
    service: Service, add: Callable[..., User], marked: str
) -> None:
    for number in range(60):
        store_hash(service, add(f"user{number}"), f"{marked}{number:053}")
    slow = foreign("scrypt:32768:8:1$salt$" + "ab" * 64)
    store_hash(service, add("last"), "scrypt:32768:8:1$salt$" + "ab" * 64)
    with service.store.read() as tx:
        some = list(tx.foreign_hashes(beginning_of, 50))
        counts = sorted(tx.count_foreign_hashes(beginning_of(text)) for text in some)
    slowest = foreign_hashes.slowest(some)
    assert slowest is not None
    assert slowest.work == slow.work
    assert counts == [1, 60]


@pytest.mark.sqlite  # the plan of SQLite
def test_an_installation_without_foreign_hashes_reads_no_table_for_them(service: Service) -> None:
    with service.store.read() as tx, statements(service) as run:
        assert list(tx.foreign_hashes(beginning_of, 1)) == []
    (statement,) = run
    assert "users_by_foreign_hash" in str(plan(service, statement))


@pytest.mark.slow
def test_every_refusal_costs_a_check_of_the_slowest_hash_in_addition() -> None:
    from werkzeug.security import generate_password_hash

    hasher = Hasher(6)
    stored = {
        "slowest": generate_password_hash("right", "pbkdf2:sha256:60000"),
        "quicker": generate_password_hash("right", "pbkdf2:sha256:15000"),
        "quickest": "{SSHA}VuI5iUcJ9cCoZ7rwqnPNx1w5xTiPEeLc",
        "bcrypt": hasher.hash("right"),
        "unknown": None,
        "broken": "$2b$06$short",
        "too costly": DJANGO.format(rounds=9_000_000),
    }
    slowest = foreign(stored["slowest"] or "")
    best: dict[str, float] = {}
    for turn in count(1):
        for name, text in stored.items():
            for password in ("wrong", "x" * 73):
                began = time.thread_time()
                assert not hasher.matches(password, text)
                level(password, text, slowest)
                took, which = time.thread_time() - began, f"{name} {len(password)}"
                best[which] = min(took, best.get(which, took))
        # What else the machine does only adds to a time, so more turns come closer to the true ones.
        if turn >= 12 and max(best.values()) < 1.2 * min(best.values()):
            break
        assert turn < 60, best
