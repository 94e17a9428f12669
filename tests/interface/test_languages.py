"""The language of the pages: what a browser asks for, among the catalogues, with `locale` as the default."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.web import Reply, Site

from usersd.pages import assets, languages, texts
from usersd.pages.languages import chosen

SHIPPED = texts.shipped()
TITLES = {"de": "Anmelden", "en": "Sign in", "es": "Iniciar sesión", "fr": "Connexion"}


def page(site: Site, wanted: str | None, path: str = "/login") -> Reply:
    return site.client().get(path, headers={"Accept-Language": wanted} if wanted is not None else {})


def language(reply: Reply) -> str:
    """That of a page, which all of its parts have to agree on."""
    html = reply.body.decode()
    named = {
        *re.findall(r'<html lang="([^"]+)" dir="ltr">', html),
        *re.findall(r"/assets/script\.([\w-]+)\.json\?", html),
        str(reply.header("Content-Language")),
    }
    assert len(named) == 1, named
    assert reply.header("Vary") == "Accept-Language"
    return named.pop()


# Of a site whose default is German.
WANTED = {
    None: "de",
    "": "de",
    "*": "de",
    "en": "en",
    "fr-CA": "fr",
    "FR-ca": "fr",
    "es-419,es;q=0.9": "es",
    "it": "de",
    "it, en;q=0.3, fr;q=0.7": "fr",
    "it;q=0.9,*;q=0.1": "de",
    "de;q=0, *": "en",
    "de;q=0": "en",
    "en;q=0.2,*;q=0.8": "de",
    "fr,es": "fr",
    "es,fr": "es",
    "fr;q=0.5,es;q=0.5": "fr",
    "en-GB,en;q=0.8,fr;q=0.9": "en",
    " fr ; q=0.9 ,\t es ;q=1.000": "es",
    # What is no weight and what is no language is passed over.
    "fr;q=2,es": "es",
    "fr;q=-1,es": "es",
    "fr;q=0.1234,es;q=0.1": "es",
    "fr;q=nan,es;q=0.1": "es",
    "fr;x=1,es;q=0.1": "es",
    "fr_FR,es;q=0.1": "es",
    "französisch,es;q=0.1": "es",
    "../../etc/passwd,es;q=0.1": "es",
    ",,;,es": "es",
    "q=1": "de",
}


@pytest.mark.parametrize("wanted", WANTED)
def test_a_page_has_the_language_that_the_browser_prefers(
    make_site: Callable[..., Site], wanted: str | None
) -> None:
    reply = page(make_site(locale="de"), wanted and wanted.encode().decode("latin-1"))
    assert reply.status == 200
    assert language(reply) == WANTED[wanted]
    assert f"<h1>{TITLES[WANTED[wanted]]}</h1>" in reply.body.decode()


@pytest.mark.parametrize("name", SHIPPED)
def test_pages_refusals_and_texts_of_the_script_have_one_language(
    make_site: Callable[..., Site], name: str
) -> None:
    site = make_site(whitelist=("/register",))
    admin, user = site.signed_in(site.add(role="admin")), site.signed_in(site.add("grace"))
    wanted = {"Accept-Language": name}
    for path in ("/account", "/users", "/logout"):
        assert language(admin.get(path, headers=wanted)) == name
    refused = user.get("/users", headers=wanted)
    assert (refused.status, language(refused)) == (403, name)
    login = site.client().get("/login?error=account_inactive", headers=wanted)
    catalogue = texts.catalogue(name)
    assert catalogue["oauth.account_inactive"] in login.body.decode()
    (address,) = re.findall(r'data-texts="([^"]+)"', login.body.decode())
    reply = site.client().get(address, headers={"Accept-Language": "tlh"})
    assert reply.json["say.missing"] == catalogue["say.missing"]
    assert reply.header("Vary") == "Accept-Encoding"  # its language stands in its address


def test_the_interface_stays_english(make_site: Callable[..., Site]) -> None:
    site = make_site(locale="fr")
    reply = site.client().post(
        "/api/users/session", {"email": "ada@example.com", "password": "x"}, headers={"Accept-Language": "de"}
    )
    assert reply.message == "Invalid email or password"
    assert reply.header("Content-Language") is None


def test_an_operators_own_catalogue_is_for_all_visitors(
    make_site: Callable[..., Site], tmp_path: Path
) -> None:
    own = tmp_path / "own.json"
    own.write_text(json.dumps({"lang": "pt-BR", "login.title": "Entrar"}))
    site = make_site(locale=str(own))
    for wanted in (None, "de", "en;q=0.1, *;q=0", "pt"):
        reply = page(site, wanted)
        assert language(reply) == "pt-BR"
        assert "<h1>Entrar</h1>" in reply.body.decode()
    assert site.client().get("/assets/script.de.json").status == 404


def test_an_own_catalogue_is_completed_by_the_shipped_one_of_its_language(tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    own.write_text(
        json.dumps({"lang": "de-AT", "login.title": "Servus", "messages": {"Not there": "Nix da"}})
    )
    words = texts.catalogue(str(own))
    assert (words["lang"], words["login.title"]) == ("de-AT", "Servus")
    assert words["login.submit"] == texts.catalogue("de")["login.submit"]
    assert words["messages"] == texts.catalogue("de")["messages"] | {"Not there": "Nix da"}


def test_a_script_from_right_to_left_is_written_so(make_site: Callable[..., Site], tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    own.write_text(json.dumps({"lang": "he-IL"}))
    assert b'<html lang="he-IL" dir="rtl">' in page(make_site(locale=str(own)), None).body


def test_a_hostile_header_costs_little_and_leaves_nothing_behind(site: Site) -> None:
    headers = [
        ",".join(f"x{number}-y;q=0.{number % 1000:03}" for number in range(1000)),
        "a-" * 7000,
        ";q=" * 4000,
        "," * 14000,
        " " * 14000,
        "*" * 14000,
        "de;q=" + "0" * 14000,
    ]
    assert language(page(site, "en")) == "en"
    kept = assets.content.cache_info().currsize, texts.catalogues.cache_info().currsize
    started = process_time()
    for header in headers * 100:
        chosen(SHIPPED, header)
    assert (process_time() - started) / (len(headers) * 100) < 0.002
    for header in headers:
        reply = page(site, header)
        assert (reply.status, language(reply)) == (200, "en")
    assert (assets.content.cache_info().currsize, texts.catalogues.cache_info().currsize) == kept


def test_languages_behind_many_others_are_not_read() -> None:
    many = [f"x{number}" for number in range(languages.MAX_RANGES)]
    assert chosen(SHIPPED, ",".join([*many[1:], "fr"])) == "fr"
    assert chosen(SHIPPED, ",".join([*many, "fr"])) == SHIPPED[0]


@pytest.mark.slow
@given(st.text(st.characters(codec="latin-1")) | st.from_regex(r"([a-z*,;=q0-9. -]{0,40},?)*"))
def test_any_header_chooses_one_of_the_languages(header: str) -> None:
    assert chosen(SHIPPED, header) in SHIPPED
