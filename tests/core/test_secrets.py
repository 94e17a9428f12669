"""Secrets are random, and only their digests are kept."""

import hashlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from usersctl.config import Settings
from usersctl.models import Newcomer
from usersctl.passwords import check_password
from usersctl.secrets import digest, new_key, new_password, new_token, sign, verified

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))


def test_a_token_is_256_random_bits_safe_in_a_url() -> None:
    tokens = {new_token() for _ in range(1000)}
    assert len(tokens) == 1000
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{43}", token) for token in tokens)


def test_every_place_of_a_token_takes_every_character() -> None:
    tokens = [new_token() for _ in range(3000)]
    # The last one carries four bits only.
    assert all(len({token[place] for token in tokens}) == 64 for place in range(42))
    assert len({token[42] for token in tokens}) == 16


def test_a_digest_is_the_sha_256_of_the_token() -> None:
    assert digest("abc") == hashlib.sha256(b"abc").digest()


@given(ANY_TEXT, ANY_TEXT)
def test_any_text_has_a_digest_and_another_text_has_another(one: str, other: str) -> None:
    assert len(digest(one)) == 32
    assert (digest(one) == digest(other)) == (one == other)


@pytest.mark.parametrize("stray", [chr(0xD800), chr(0xDCFF), "a\udc80b", "\0", ""])
def test_surrogates_that_a_client_may_send_do_no_harm(stray: str) -> None:
    assert len(digest(stray)) == 32


@given(st.integers(12, 72))
def test_a_generated_password_meets_every_rule_that_can_be_switched_on(length: int) -> None:
    strict = Settings(
        database=Path("unused"),
        base_url="http://127.0.0.1",
        min_length=length,
        require_uppercase=True,
        require_lowercase=True,
        require_numbers=True,
        require_special_chars=True,
    )
    password = new_password(length)
    assert len(password) == length
    assert check_password(strict, password, Newcomer("ada@example.com", "Ada")) == password


def test_generated_passwords_differ_and_have_no_misread_characters() -> None:
    made = [new_password() for _ in range(500)]
    assert len(set(made)) == 500
    assert all(len(password) == 20 for password in made)
    assert not set("".join(made)) & set("Il1O0o")


def test_the_kinds_of_characters_in_a_generated_password_have_no_fixed_place() -> None:
    firsts = {new_password()[0] for _ in range(300)}
    assert any(c.isdigit() for c in firsts)
    assert any(c.isupper() for c in firsts)
    assert any(c.islower() for c in firsts)


@given(ANY_TEXT)
def test_a_signed_text_is_verified_for_its_key_and_purpose_only(text: str) -> None:
    key = new_key()
    signed = sign(key, "device", text)
    assert verified(key, "device", signed) == text
    assert verified(key, "other", signed) is None
    assert verified(new_key(), "device", signed) is None
    assert verified(key, "device", f"x{signed}") is None
    assert verified(key, "device", signed[:-1]) is None


@pytest.mark.parametrize("signed", ["", ".", "text", "text.", ".mac", "text.\u00e4", "text.\ud800"])
def test_an_unsigned_text_is_not_verified(signed: str) -> None:
    assert verified(new_key(), "device", signed) is None
