"""Codes of authenticator apps, and recovery codes: the rules alone."""

import base64
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from usersctl.factors import recovery_codes, totp

SECRET = b"12345678901234567890"  # of RFC 6238, appendix B


@pytest.mark.parametrize(
    ("seconds", "code"),
    [
        (59, "94287082"),
        (1111111109, "07081804"),
        (1111111111, "14050471"),
        (1234567890, "89005924"),
        (2000000000, "69279037"),
        (20000000000, "65353130"),
    ],
)
def test_codes_are_those_of_rfc_6238(seconds: int, code: str) -> None:
    # The vectors have eight digits, of which the last six are the code of six.
    assert totp.code_at(SECRET, seconds // 30) == code[2:]


@given(st.binary(min_size=20, max_size=20), st.integers(0, 2**40), st.integers(-3, 3))
def test_a_code_counts_one_step_either_way(secret: bytes, step: int, off: int) -> None:
    step = step % 10**8 + 10
    now = datetime.fromtimestamp(step * totp.STEP + 7, UTC)
    found = totp.matching_step(secret, totp.code_at(secret, step + off), now)
    near = {step + drift: totp.code_at(secret, step + drift) for drift in (-1, 0, 1)}
    if abs(off) <= 1:
        assert found is not None
        assert near[found] == totp.code_at(secret, step + off)
    else:  # unless two steps have the same code
        assert found is None or near[found] == totp.code_at(secret, step + off)


def test_of_two_steps_with_the_same_code_the_later_one_is_used() -> None:
    secret = (980_008).to_bytes(20)
    assert [totp.code_at(secret, step) for step in (1, 2)] == ["830892"] * 2
    assert totp.matching_step(secret, "830892", datetime.fromtimestamp(59, UTC)) == 2


@pytest.mark.parametrize("typed", ["287 082", " 287082 ", "287-082", "28 70 82"])
def test_blanks_and_dashes_in_a_code_do_not_matter(typed: str) -> None:
    assert totp.matching_step(SECRET, typed, datetime.fromtimestamp(59, UTC)) == 1


@pytest.mark.parametrize(
    "typed",
    ["", "28708", "2870822", "94287082", "٢٨٧٠٨٢", "287o82", "287082\0", "287082\u00e9", "\u00b2" * 6],
)
def test_what_is_no_code_is_wrong(typed: str) -> None:
    assert totp.matching_step(SECRET, typed, datetime.fromtimestamp(59, UTC)) is None


def test_the_address_for_apps_holds_the_secret_and_names_account_and_service() -> None:
    uri = urlsplit(totp.uri(SECRET, "grace+1@example.com", "Ärger & Söhne: Konten"))
    assert (uri.scheme, uri.netloc) == ("otpauth", "totp")
    assert uri.path == "/%C3%84rger%20%26%20S%C3%B6hne%20%20Konten:grace%2B1@example.com"
    query = {name: value for name, (value,) in parse_qs(uri.query).items()}
    assert base64.b32decode(query.pop("secret")) == SECRET
    assert query == {"issuer": "Ärger & Söhne: Konten", "algorithm": "SHA1", "digits": "6", "period": "30"}
    assert "+" not in uri.query  # which apps read as a plus


def test_secrets_have_160_bits_and_are_new_each_time() -> None:
    secrets = {totp.new_secret() for _ in range(100)}
    assert len(secrets) == 100
    assert {len(secret) * 8 for secret in secrets} == {160}


def test_recovery_codes_have_120_bits_in_groups_of_four() -> None:
    codes = recovery_codes.new_codes()
    assert len(set(codes)) == 10
    for code in codes:
        groups = code.split("-")
        assert [len(group) for group in groups] == [4] * 6
        assert len(base64.b32decode("".join(groups).upper())) * 8 == 120


@pytest.mark.parametrize(
    "typed", ["ABCD-efgh", " abcd efgh\n", "abcdefgh", "abcd\u2013efgh", "a b c d\u00a0e f g h"]
)
def test_case_blanks_and_dashes_of_a_recovery_code_do_not_matter(typed: str) -> None:
    assert recovery_codes.hash_of(typed) == recovery_codes.hash_of("abcd-efgh")


@given(st.text())
def test_no_text_breaks_the_check_of_a_code(text: str) -> None:
    assert totp.matching_step(SECRET, text, datetime.fromtimestamp(59, UTC)) in (None, 0, 1, 2)
    assert len(recovery_codes.hash_of(text)) == 32
