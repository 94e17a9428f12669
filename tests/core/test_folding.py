"""The folded form: what a search and a sorted list take for the same."""
# ruff: noqa: RUF001 - letters that look alike

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from usersctl.folding import folded, folded_address, search_words

LETTERS = [
    character
    for character in map(chr, range(0x20000))
    if not "\uac00" <= character <= "\ud7a3"  # Hangul, made of parts by a rule
    and (unicodedata.decomposition(character) or character.upper() != character.lower())
]


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("Ada Lovelace", "ada lovelace"),
        ("  Ada\u00a0\u3000 Lovelace ", "ada lovelace"),
        ("Müller", "muller"),
        ("MÜLLER", "muller"),
        ("Mu\u0308ller", "muller"),
        ("Straße", "strasse"),
        ("STRAẞE", "strasse"),
        ("Ødegård", "odegard"),
        ("Ærø Œuvre", "aero oeuvre"),
        ("Þór Ðorđe", "thor dorde"),
        ("Łukasz Żółć", "lukasz zolc"),
        ("Nguyễn Thị Đình", "nguyen thi dinh"),
        ("e\u0323\u0302 e\u0302\u0323", "e e"),  # the same marks in another order
        ("İstanbul Isparta ısparta", "istanbul isparta isparta"),
        ("ΣΊΣΥΦΟΣ Σίσυφος", "σισυφοσ σισυφοσ"),
        ("ᾼ ᾳ", "αι αι"),
        ("Ёлкин ЙОД", "елкин иод"),
        ("Ａｄａ", "ada"),
        ("ｱﾀﾞ", "アタ"),  # half width
        ("ﬃ Ĳ ŉ", "ffi ij 'n"),
        ("Əliyev Ɓello", "eliyev bello"),
        ("O’Brien Hawaiʻi", "o'brien hawai'i"),
        ("Anne‑Marie –", "anne-marie -"),
        ("김정은", unicodedata.normalize("NFKD", "김정은")),
        ("مُحَمَّد", "محمد"),
        ("محمـد", "محمـد"),
        ("علی\u200cرضا", "علیرضا"),
        ("दीपक", "दीपक"),
        ("👩\u200d💻 ❤️", "👩💻 ❤"),
        ("so\u00adft \ufeffbom", "soft bom"),
        ("李 田中", "李 田中"),
        ("\u0301\u200b", ""),
        ("", ""),
    ],
)
def test_a_folded_form_has_no_case_marks_or_width(text: str, form: str) -> None:
    assert folded(text) == form


def test_a_folded_form_is_the_same_however_a_character_is_written() -> None:
    for character in LETTERS:
        form = folded(character)
        written = (character.upper(), character.lower(), character.title(), form)
        assert {folded(other) for other in written} == {form}, hex(ord(character))
        for name in ("NFC", "NFD"):
            assert folded(unicodedata.normalize(name, character)) == form, hex(ord(character))
        assert not any(map(unicodedata.combining, form)), hex(ord(character))


@given(st.text(st.characters(codec="utf-8")))
def test_folding_twice_is_folding_once(text: str) -> None:
    assert folded(folded(text)) == folded(text)


@pytest.mark.parametrize(
    ("email", "form"),
    [
        (None, None),
        ("ada@example.com", None),
        ("ada@xn--exmple-cua.com", "ada@example.com"),
        ("ada@mail.xn--strae-oqa.de", "ada@mail.strasse.de"),
        ("ada@xn--r8jz45g.xn--zckzah", "ada@例え.テスト"),
        ("ada@xn--99999999.com", "ada@xn--99999999.com"),  # of no Unicode form
        ("xn--ada@example.com", "xn--ada@example.com"),
        ("ÁDA", "ada"),  # of an older deployment
    ],
)
def test_an_address_has_a_folded_form_only_if_it_differs(email: str | None, form: str | None) -> None:
    assert folded_address(email) == form


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ada", ["ada"]),
        ("  Ada\tLOVELACE ada ", ["ada", "lovelace"]),
        ("Lovelace, Ada <ada@example.com>;", ["lovelace", "ada", "ada@example.com"]),
        ("100% a_b ,", ["100%", "a_b", ","]),
        (" ", []),
        ("\u0301 \u200b", []),
    ],
)
def test_a_search_is_a_set_of_words(text: str, words: list[str]) -> None:
    assert search_words(text) == words
