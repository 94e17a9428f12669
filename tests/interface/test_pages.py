"""The pages without a browser: access, texts in every language, an operator's brand, and size."""

import ast
import gzip
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from support.accounts import open_session
from support.commands import OPERATOR, Command, create_user
from support.databases import destroy
from support.documentation import ROOT, page
from support.fakes import FakeClock
from support.web import Client, Site

import usersctl
import usersd
from usersctl import colours
from usersctl.config import Settings
from usersctl.errors import ConfigError
from usersctl.mail.writer import Writer
from usersctl.passwords import refused_for_all
from usersctl.service import MAKE_AN_ADMIN, Service
from usersd.pages import assets, common_passwords, layout, pages, ways
from usersd.request import Request
from usersd.response import PAGE, Response, as_json, error_response

HERE = Path(pages.__file__).parent
TEMPLATES = {file.name: file.read_text("utf-8") for file in HERE.parent.glob("*/*.html")}
SCRIPTS = {file.name: file.read_text("utf-8") for file in sorted(HERE.glob("*.js"), reverse=True)}
SCRIPT = "".join(SCRIPTS.values())
CATALOGUES = {file.stem: json.loads(file.read_text("utf-8")) for file in (HERE / "locales").glob("*.json")}
ENGLISH = CATALOGUES["en"]
TEMPLATES_OF_EMAILS = Path(usersctl.__file__).parent / "mail" / "templates"
OTHERS = sorted(CATALOGUES.keys() - {"en"})
PATHS = [
    "/login",
    "/logout",
    "/second-factor",
    "/register",
    "/confirm-email",
    "/forgot-password",
    "/reset-password",
    "/not-me",
    "/confirm-new-email",
    "/confirm-deletion",
    "/undo-deletion",
    "/accept-invite",
    "/setup",
    "/account",
    "/",
    "/users",
    "/users/1",
    "/users/groups",
    "/overview",
    "/audit",
]
FOR_ADMINS = {"/users", "/users/1", "/users/groups", "/overview", "/audit"}
# Path, and whether the visitor is signed in: some pages differ.
VISITS = [(path, True) for path in PATHS] + [
    (path, False) for path in PATHS if path not in {"/account", "/", *FOR_ADMINS}
]


WITHOUT_A_SCRIPT = {"/logout", "/overview", "/audit"}
ENGLISH_PAGE = (("Content-Language", "en"), ("Vary", "Accept-Language"))


@pytest.fixture
def admin(make_site: Callable[..., Site]) -> Client:
    site = make_site(whitelist=("/register",))
    return site.signed_in(site.add(role="admin"))


def visitor(admin: Client, *, signed_in: bool) -> Client:
    return admin if signed_in else Client(admin.port)


def settings(**changes: Any) -> Settings:
    return Settings(database=Path("users.db"), base_url="http://127.0.0.1:8080", **changes)


# --- access ---


def test_a_page_for_admins_tells_other_users_so(site: Site) -> None:
    reply = site.signed_in(site.add()).get("/users")
    assert (reply.status, reply.header("Content-Type")) == (403, "text/html; charset=utf-8")
    assert b"This page is for admins" in reply.body
    assert b'href="/users"' not in reply.body


def test_only_admins_see_the_link_to_all_users(site: Site, admin: Client) -> None:
    assert b'href="/users"' in admin.get("/").body
    assert b'href="/users"' not in site.signed_in(site.add("grace")).get("/").body


def test_the_profile_is_at_account_and_at_the_root_and_links_lead_to_account(
    site: Site, admin: Client
) -> None:
    for client in (admin, site.signed_in(site.add("grace"))):
        shown = [client.get(path) for path in ("/account", "/")]
        assert [reply.status for reply in shown] == [200, 200]
        assert shown[0].body == shown[1].body
        for path in ("/account", "/users", "/login"):
            page = client.get(path).body
            assert b'<a href="/account"' in page
            assert re.findall(rb'<a[^>]* href="/"[^>]*>', page) == [b'<a class="brand" href="/">']
    assert site.client().get("/account").header("Location") == "/login?redirect=/account"
    assert 'href = "/"' not in SCRIPT


def test_the_address_of_password_managers_leads_to_the_password(site: Site, admin: Client) -> None:
    address = "/.well-known/change-password"
    assert admin.get(address).header("Location") == "/account#change"
    assert '<h2 id="change">Password</h2>' in admin.get("/account").body.decode()
    assert site.client().get(address).header("Location") == f"/login?redirect={address}"


def test_closed_registration_has_no_pages_and_no_links(site: Site) -> None:
    user = site.signed_in(site.add())
    for path in ("/register", "/confirm-email"):
        reply = site.client().get(path)
        assert (reply.status, reply.header("Location")) == (302, f"/login?redirect={path}")
        assert (user.get(path).status, user.get(path).message) == (403, "Registration is closed")
    login = site.client().get("/login").body
    assert b"/register" not in login
    assert b"auth/oauth" not in login


def test_open_registration_is_offered(admin: Client) -> None:
    login = Client(admin.port).get("/login").body
    assert b'href="/register"' in login
    assert b"/api/users/register/resend" in login


def test_the_set_up_page_has_no_form_once_there_is_an_admin(site: Site) -> None:
    path = site.service.first_admin.link().removeprefix(site.service.settings.base_url)
    assert b"<form" in site.client().get(path).body
    site.add(role="admin")
    assert b"<form" not in site.client().get(path).body


def test_the_set_up_page_recognises_an_expired_link(site: Site, clock: FakeClock) -> None:
    def opens(path: str) -> bool:
        page = site.client().get(path).body.decode()
        is_refused = f'<p class="note bad">{ENGLISH["messages"]["Invalid or expired link"]}' in page
        assert is_refused == ("<form" not in page) == (f"<code>{MAKE_AN_ADMIN}</code>" in page)
        return not is_refused

    old, new = (
        site.service.first_admin.link().removeprefix(site.service.settings.base_url) for _ in range(2)
    )
    assert [opens(path) for path in (new, new, old, "/setup", "/setup?token=", f"{new}x")] == [
        *(True, True),
        *(False, False, False, False),
    ]
    clock.move(minutes=31)
    assert not opens(new)


def test_only_users_with_a_password_are_asked_for_it(site: Site) -> None:
    ada, grace = site.add(), site.add("grace", password=None)
    client = site.signed_in(ada)
    token = open_session(site.service, grace).token
    page = site.client(cookies={"auth_token": token}).get("/account").body
    assert b"currentPassword" in client.get("/account").body
    assert b"currentPassword" not in page
    assert b'data-api="/api/users/password/forgot"' in page
    assert b'name="email" value="grace@example.com"' in page


@pytest.mark.parametrize(
    ("asked", "then"),
    [
        ("", None),
        ("?redirect=/users%3Fpage=2", "/users?page=2"),
        ("?redirect=/login", None),
        ("?redirect=/login%3Fredirect=/users", None),
        ("?redirect=/login%23x", None),
        ("?redirect=/login/", None),
        ("?redirect=//evil.example", None),
        ("?redirect=/a&redirect=/b", None),
    ],
)
def test_the_sign_in_leads_on_and_never_to_itself(
    make_site: Callable[..., Site], asked: str, then: str | None
) -> None:
    site = make_site(oauth_client_id="x", oauth_client_secret="y", oauth_issuer="https://id.example.com")
    page = site.client().get(f"/login{asked}").body.decode()
    onward = f"?{urlencode({'redirect': then})}" if then else ""
    assert f'data-then="{then or ""}"' in page
    assert f'href="{ways.WAY}{onward}"' in page
    signed_in = site.signed_in(site.add()).get(f"/login{asked}").body.decode()
    assert "data-then" not in signed_in
    assert f'<a class="button primary" href="{then or "/account"}">' in signed_in
    assert f'data-logout="/login{onward}"' in signed_in


@pytest.mark.parametrize(
    "code", ["oauth_failed", "oauth_not_configured", "user_not_registered", "account_inactive"]
)
def test_an_error_code_of_a_sign_in_is_shown_in_words(site: Site, code: str) -> None:
    page = site.client().get(f"/login?error={code}").body.decode()
    assert ENGLISH[f"oauth.{code}"] in page
    assert code not in page


def test_an_unknown_error_code_shows_nothing(site: Site) -> None:
    assert b"note bad" not in site.client().get("/login?error=nonsense").body.replace(
        b'<p class="note bad">This page needs', b""
    )


BROWSER = {"HTTP_ACCEPT": "text/html", "HTTP_SEC_FETCH_MODE": "navigate"}


def call(path: str, **environ: str) -> Request:
    return Request({"REQUEST_METHOD": "GET", "PATH_INFO": path, **environ}, settings())


@pytest.mark.parametrize(
    ("status", "message"), [(404, "There is no such page"), (403, "Registration is closed")]
)
@pytest.mark.parametrize("user", [None, "ada"])
def test_a_browser_reads_a_refusal_as_a_page(
    service: Service, status: int, message: str, user: str | None
) -> None:
    asked = call("/nowhere", **BROWSER)
    asked.user = user and create_user(service, "ada@example.com", "Ada", None, by=OPERATOR)
    answer = layout.instead(asked, error_response(status, "No", ("X-Other", "kept")))
    page = answer.body.decode()
    assert (answer.status, answer.headers) == (status, (*PAGE, *ENGLISH_PAGE, ("X-Other", "kept")))
    assert f"<h1>{message}</h1>" in page
    assert f'href="{"/account" if user else "/login"}"' in page.partition("<main")[2]


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (call("/nowhere"), error_response(404, "Not found")),
        (call("/nowhere", HTTP_ACCEPT="application/json"), error_response(404, "Not found")),
        (
            call("/nowhere", HTTP_ACCEPT="text/html", HTTP_SEC_FETCH_MODE="cors"),
            error_response(404, "Not found"),
        ),
        (call("/nowhere", **BROWSER | {"REQUEST_METHOD": "POST"}), error_response(404, "Not found")),
        (call("/api/users/7", **BROWSER), error_response(404, "User not found")),
        (call("/_tasks/x", **BROWSER), error_response(404, "Not found")),
        (call("/api/users/me", **BROWSER), error_response(503, "Not now")),
        (call("/login", **BROWSER), as_json({})),
        (call("/users", **BROWSER), Response(403, b"<!doctype html>", PAGE)),
    ],
)
def test_refusals_outside_of_pages_stay_json(asked: Request, answer: Response) -> None:
    assert layout.instead(asked, answer) is answer


def test_a_browser_gets_refusals_as_pages(site: Site) -> None:
    browser = {"Accept": "text/html", "Sec-Fetch-Mode": "navigate"}
    user = site.signed_in(site.add())
    for path, status, message in (
        ("/nowhere", 404, "There is no such page"),
        ("/users/", 404, "There is no such page"),
        ("/register", 403, "Registration is closed"),
        ("/confirm-email?token=x&email=y", 403, "Registration is closed"),
    ):
        plain, page = user.get(path), user.get(path, headers=browser)
        assert (plain.status, page.status) == (status, status)
        assert plain.json["statusCode"] == status
        assert page.header("Content-Type") == "text/html; charset=utf-8"
        assert f"<h1>{message}</h1>" in page.body.decode()
        assert b'href="/account"' in page.body
        shared = ("Cache-Control", "X-Content-Type-Options", "Referrer-Policy")
        assert [page.header(name) for name in shared] == [plain.header(name) for name in shared]
        assert user.send("HEAD", path, headers=browser).body == b""
    for path in ("/api/nowhere", "/api", "/_tasks/nowhere", "/api/users/999"):
        assert user.get(path, headers=browser).json["statusCode"] in (403, 404)
    assert site.client().get("/nowhere", headers=browser).status == 302


def test_a_page_without_the_database_says_so_and_leads_to_another_try(site: Site) -> None:
    browser = {"Accept": "text/html", "Sec-Fetch-Mode": "navigate", "Accept-Language": "de"}
    ada = site.signed_in(site.add())
    site.service.store.close()
    destroy(site.service.settings.database)
    plain, reply = ada.get("/account?x=1"), ada.get("/account?x=1", headers=browser)
    assert (plain.status, plain.json["statusCode"]) == (503, 503)
    assert (reply.status, reply.header("Retry-After")) == (503, "5")
    page = reply.body.decode()
    assert "<h1>Diese Website ist gerade nicht erreichbar</h1>" in page
    assert '<a href="">Noch einmal versuchen</a>' in page  # an empty address is that of the page
    for path in ("/api/users/me", "/ready"):
        assert ada.get(path, headers=browser).json["statusCode"] == 503


def test_a_page_that_fails_says_so_and_leads_to_another_try(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = {"Accept": "text/html", "Sec-Fetch-Mode": "navigate", "Accept-Language": "fr"}
    ada = site.signed_in(site.add())
    monkeypatch.delattr(type(site.service.identities), "connections")
    plain, reply = ada.get("/account"), ada.get("/account", headers=browser)
    assert (plain.status, plain.message) == (500, "Internal server error")
    assert reply.status == 500
    page = reply.body.decode()
    assert "<h1>Un problème est survenu de notre côté</h1>" in page
    assert '<a href="">Réessayer</a>' in page
    # What failed may be what all pages have in common.
    monkeypatch.delattr("usersd.pages.layout._template")
    reply = ada.get("/account", headers=browser)
    assert (reply.status, reply.message) == (500, "Internal server error")
    assert site.log[-1]["path"] == "/account"
    assert [line["event"] for line in site.log].count("error") == 3


# --- markup ---


@pytest.mark.parametrize(("path", "signed_in"), VISITS)
def test_no_page_can_be_framed_or_cached_or_runs_foreign_scripts(
    admin: Client, path: str, signed_in: bool
) -> None:
    reply = visitor(admin, signed_in=signed_in).get(path)
    assert (reply.status, reply.header("Cache-Control")) == (200, "no-store")
    policy = dict(
        directive.strip().split(" ", 1)
        for directive in (reply.header("Content-Security-Policy") or "").split(";")
    )
    assert (policy["default-src"], policy["frame-ancestors"], policy["base-uri"]) == (
        "'none'",
        "'none'",
        "'none'",
    )
    assert (policy["script-src"], policy["style-src"]) == ("'self'", "'self'")
    assert "unsafe" not in str(policy)
    page = reply.body.decode()
    assert re.search(r"<[^>]+ (style|on\w+)=", page) is None
    assert ("<noscript>" in page) == (path not in WITHOUT_A_SCRIPT)


# Loaded with the first refusal.
MESSAGES = re.compile(r'data-messages="([^"]+)"')
GZIP = {"Accept-Encoding": "gzip, deflate, br, zstd"}  # as browsers send it
PROFILE = ["/api/users/me/email"]
LOADED = {"/users": ["/api/users?limit=50&"], "/account": PROFILE, "/": PROFILE}


@pytest.mark.parametrize("locale", sorted(CATALOGUES))
def test_a_page_with_all_that_it_loads_is_below_60_kb(make_site: Callable[..., Site], locale: str) -> None:
    site = make_site(whitelist=("/register",), locale=locale)
    admin = site.signed_in(site.add(role="admin"))
    for number in range(60):
        site.add(f"somebody.with.a.name{number:02}", password=None)
    for number in range(pages.GROUPS_SHOWN):
        site.service.groups.create(f"{number:03}{'g' * 60}", by=OPERATOR)
    weights = {}
    for path, signed_in in VISITS:
        client = visitor(admin, signed_in=signed_in)
        page = client.get(path).body
        files = re.findall(r'(?:src|href|data-texts)="(/assets/[^"]+)"', page.decode())
        assert len(files) == 3
        loaded = [client.get(file, headers=GZIP).body for file in (*files, *LOADED.get(path, ()))]
        weights[path, signed_in] = len(page) + sum(map(len, loaded))
    print(locale, weights)
    assert [called for calls in LOADED.values() for called in calls if f'"{called}"' not in SCRIPT] == []
    assert len(admin.get(LOADED["/users"][0]).json["users"]) == 50
    assert max(weights.values()) < 60_000, weights


def test_the_style_sheet_is_served_without_comments_and_blanks_that_say_nothing(site: Site) -> None:
    source = (HERE / "style.css").read_text("utf-8")
    served = site.client().get("/assets/style.css").body.decode()
    assert len(served.splitlines()) == len(source.splitlines())
    assert "/*" not in served
    without_comments = re.sub(r"^/\*.*\*/$", "", source, flags=re.MULTILINE)
    without_comments = re.sub(
        r";(\s*})", r"\1", without_comments
    )  # nothing follows that a semicolon would part from
    words = re.compile(r"[^\s{};:,]+|[{};:,]")
    assert words.findall(served) == words.findall(without_comments)
    # A blank before a colon means "below".
    assert served.count(" :") == len(re.findall(r"\S[^{};\n]* :", without_comments))


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip", "gzip"),
        ("br, GZIP;q=0.5", "gzip"),
        ("gzip ; q=1", "gzip"),
        ("gzip;q=0", None),
        ("gzip; q=0.000, br", None),
        ("x-gzip, br", None),
        ("*", None),
        ("", None),
        ("," * 5_000 + "gzip", None),
    ],
)
def test_a_file_of_a_page_is_compressed_for_a_client_that_takes_it(
    site: Site, accepted: str, encoding: str | None
) -> None:
    plain = site.client().get("/assets/style.css")
    reply = site.client().get("/assets/style.css", headers={"Accept-Encoding": accepted})
    assert (reply.header("Content-Encoding"), reply.header("Vary")) == (encoding, "Accept-Encoding")
    assert (gzip.decompress(reply.body) if encoding else reply.body) == plain.body
    assert plain.header("Content-Encoding") is None
    # What may hold a secret is not: its length would show it.
    assert site.client().get("/login", headers=GZIP).header("Content-Encoding") is None


def test_the_script_is_served_without_comments_and_indentation(site: Site) -> None:
    served = {
        f"{name}.js": "".join(SCRIPTS[part] for part in parts) for name, parts in assets.SCRIPTS.items()
    }
    for name, text in served.items():
        lean = [re.sub(r"^//.*|(?<=;) +// .*", "", line.strip()) for line in text.splitlines()]
        assert site.client().get(f"/assets/{name}").body.decode().splitlines() == lean
    # A template literal over several lines would lose its indentation.
    assert [line for line in SCRIPT.splitlines() if line.count("`") % 2] == []


@pytest.mark.parametrize(("path", "signed_in"), VISITS)
def test_every_field_has_a_label_a_name_and_a_place_for_its_error(
    admin: Client, path: str, signed_in: bool
) -> None:
    page = visitor(admin, signed_in=signed_in).get(path).body.decode()
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for field in re.findall(r"<(?:input|select) [^>]*>", page):
        if 'type="hidden"' in field or 'class="away"' in field:
            continue
        match = re.search(r' id="([^"]+)"', field)
        if match is None:
            assert 'type="checkbox"' in field  # inside of its label
            continue
        assert f'<label for="{match[1]}">' in page
        assert " name=" in field
        described = re.search(r'aria-describedby="([^"]+)"', field)
        assert set(described[1].split() if described else []) <= set(ids)
        assert (f"{match[1]}-error" in ids) == (described is not None)
    for form in re.findall(r"<form [^>]*>", page):
        # Without the script nothing would land in an address, but what is searched for.
        assert 'method="post"' in form or 'role="search" method="get"' in form
    for button in re.findall(r"<button(?![^>]* type=)[^>]*>", page):
        assert " disabled" in button  # without the script nothing is sent at all


def test_a_field_takes_the_longest_name_of_emoji(admin: Client) -> None:
    name = "\U0001f600" * 200
    assert admin.patch("/api/users/me", {"name": name}).status == 200
    field = re.search(r'<input id="name"[^>]*>', admin.get("/account").body.decode())
    assert field
    (length,) = re.findall(r'maxlength="(\d+)"', field[0])
    assert int(length) >= len(name.encode("utf-16-le")) / 2  # as browsers count


def test_templates_escape_all_values_but_constants() -> None:
    raw = {match.strip() for text in TEMPLATES.values() for match in re.findall(r"{{!(.*?)}}", text)}
    ours = {"base", "style"}
    assert ours <= raw
    for expression in raw - ours:
        # A conditional expression of two constants; one may hold the user's id.
        tree = ast.parse(expression.replace("{user.id}", "1"), mode="eval").body
        assert isinstance(tree, ast.IfExp), expression
        branches = [
            branch.values[0] if isinstance(branch, ast.JoinedStr) else branch
            for branch in (tree.body, tree.orelse)
        ]
        assert all(isinstance(branch, ast.Constant) for branch in branches), expression


def test_markup_in_a_text_is_neither_in_the_page_nor_run(
    make_site: Callable[..., Site], tmp_path: Path
) -> None:
    file = tmp_path / "own.json"
    file.write_text(json.dumps({"say.failed": "</script><script>alert(1)</script><!--"}))
    client = make_site(locale=str(file)).client()
    page = client.get("/login").body.decode()
    assert page.count("</script>") == 1
    assert "<!--" not in page
    texts = client.get("/assets/script.en.json")
    assert texts.header("Content-Type") == "application/json; charset=utf-8"
    assert texts.header("X-Content-Type-Options") == "nosniff"


def judged_common(filter_: bytes, password: str) -> bool:
    """As script.js does it."""
    first, second = (
        reduce(lambda hash_, byte: ((hash_ ^ byte) * 16777619) % 2**32, password.encode(), start)
        for start in common_passwords.FNV
    )
    places = ((first + step * second) % (len(filter_) * 8 - 1) for step in range(common_passwords.HASHES))
    return all(filter_[place >> 3] >> (place & 7) & 1 for place in places)


@pytest.mark.slow
def test_the_filter_holds_every_common_password_and_hardly_any_other(make_site: Callable[..., Site]) -> None:
    site = make_site(brand="Analytical")
    page = site.client().get("/reset-password?token=x&email=ada@example.com").body.decode()
    (address,) = re.findall(r'data-common="([^"]+)"', page)
    reply = site.client().get(address)
    assert (reply.status, reply.header("Content-Type")) == (200, "application/octet-stream")
    assert len(reply.body) < 22_000
    listed = {word for word in refused_for_all(site.service.settings) if len(word) >= 8}
    assert "analytical" in listed
    assert all(judged_common(reply.body, word) for word in listed)
    others = [f"{word} of {number}" for number, word in enumerate(sorted(listed))]
    assert sum(judged_common(reply.body, word) for word in others) < len(others) / 200


def test_a_browser_keeps_the_filter_of_common_passwords_that_a_page_asks_for(site: Site) -> None:
    client = site.client()
    page = client.get("/reset-password?token=x&email=ada@example.com").body.decode()
    (address,) = re.findall(r'data-common="([^"]+)"', page)
    assert client.get(address).header("Cache-Control") == "public, max-age=31536000, immutable"
    assert client.get("/assets/common.bin").header("Cache-Control") == "public, max-age=60"


def test_without_a_list_of_common_passwords_there_is_no_filter(make_site: Callable[..., Site]) -> None:
    client = make_site(prevent_common_passwords=False, whitelist=("/register",)).client()
    assert b"data-common" not in client.get("/register").body
    assert client.get("/assets/common.bin").status == 404


# --- texts ---


def used_keys() -> set[str]:
    everywhere = "".join(TEMPLATES.values())
    return set(re.findall(r'\bt\("([^"]+)"\)', everywhere)) | used_by(SCRIPT)


def used_by(script: str) -> set[str]:
    topics = {key.partition(".")[0] for key in ENGLISH if "." in key}
    return {key for key in re.findall(r'"([a-z-]+\.[a-z.-]+)"', script) if key.partition(".")[0] in topics}


def test_the_catalogue_has_exactly_the_texts_that_are_used() -> None:
    computed = {
        key
        for key in ENGLISH
        if key.startswith(
            (
                "role.",
                "rules.",
                "oauth.",
                "days.",
                "nav.",
                "why.",
                "act.",
                "overview.",
                "audit.",
                "scope.",
                "tokens.expires.",
            )
        )
    } | {
        "lang",
        "messages",
        "users.only-active",  # of /overview
        "users.only-admins",
    }
    assert used_keys() | computed == set(ENGLISH)


@pytest.mark.parametrize("name", OTHERS)
def test_every_language_has_every_text_with_the_same_placeholders(name: str) -> None:
    other = CATALOGUES[name]
    assert other["lang"] == name
    assert list(other) == list(ENGLISH)
    for key in ENGLISH.keys() - {"messages"}:
        assert other[key].strip(), key
        assert set(re.findall(r"{\w+}", other[key])) == set(re.findall(r"{\w+}", ENGLISH[key])), key


# What is the same word in English and another language.
SAME = {"name", "factors.passkeys", "role.admin", "users.status", "users.only-admins", "label.of"}


@pytest.mark.parametrize("name", OTHERS)
def test_no_text_was_left_in_english(name: str) -> None:
    other = CATALOGUES[name]
    same = {key for key, text in other.items() if key != "messages" and text == ENGLISH[key]}
    assert same - SAME == set()
    for message, text in other["messages"].items():
        assert text not in (message, ENGLISH["messages"].get(message)), message


def test_one_and_many_are_said_in_pairs() -> None:
    singular, plural = (
        {key.removesuffix(end) for key in ENGLISH if key.endswith(end)} for end in (".one", ".many")
    )
    assert singular == plural
    for catalogue in CATALOGUES.values():
        assert all("{n}" in catalogue[f"{key}.many"] for key in plural)


def every_text(name: str) -> list[str]:
    catalogue = CATALOGUES[name]
    emails = (TEMPLATES_OF_EMAILS / ("" if name == "en" else name)).glob("*.txt")
    words = [text for key, text in catalogue.items() if key not in ("lang", "messages")]
    return [*words, *catalogue["messages"].values(), *(file.read_text("utf-8") for file in emails)]


def test_french_keeps_its_punctuation_beside_the_words() -> None:
    for text in (text.replace("2001:db8::/32", "") for text in every_text("fr")):
        # A space that no line breaks at stands before high punctuation and inside of quotation marks.
        assert (
            re.search(r"[^\u202f][;?!]|[^\u00a0](?:»|:(?!//)(?![^\n]*\n(?:Button|\n)))|«[^\u00a0]", text)
            is None
        ), text
        assert "'" not in text, text


def test_spanish_opens_its_questions() -> None:
    for text in every_text("es"):
        assert text.count("¿") == text.count("?"), text
        assert text.count("¡") == text.count("!"), text


# The polite form; the familiar one would be a slip.
FAMILIAR = {
    "de": r"\b(du|dein\w*|dir|dich)\b",
    "fr": r"\b(tu|ton|ta|tes|toi)\b",
    "es": r"\b(tú|tu|tus|ti|te)\b",
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_language_has_one_form_of_address(name: str) -> None:
    for text in every_text(name):
        assert re.search(rf"(?i){FAMILIAR[name]}", text) is None, text


# Words for what has another word in all other texts of the language.
OTHER_WORDS = {
    "en": r"\bfailed sign-ins?\b|\blinked\b|\bworks no more\b",
    "de": r"verknüpf|\bPasswort (gesetzt|setzen)\b|\bsetzen Sie\b|\bBenutzernummer\b",
    "fr": r"déverrouill|\blié\b|\b(définir|définissez) un\b|jetons?( d.API)? (sont|seront|est déjà) fermé",
    "es": r"\b(definir|establezca) una\b|tokens?( de API)? .*\bcerrado",
}


@pytest.mark.parametrize("name", sorted(CATALOGUES))
def test_a_language_has_one_word_for_one_thing(name: str) -> None:
    for text in every_text(name):
        assert re.search(rf"(?i){OTHER_WORDS[name]}", text) is None, text


@pytest.mark.parametrize("name", sorted(CATALOGUES))
def test_a_text_quotes_the_pages_as_they_are(name: str) -> None:
    """Such as the button that an email speaks of."""
    quoted = {
        "".join(found).strip()
        for text in every_text(name)
        for found in re.findall(r'"([^"]+)"|“([^”]+)”|„([^“]+)“|«([^»]+)»', text)
    }
    commands = {text for text in quoted if text.startswith("usersctl ")}
    assert len(quoted - commands) == 3
    assert quoted - commands - set(map(str, CATALOGUES[name].values())) == set()


@pytest.mark.slow
@pytest.mark.parametrize("locale", sorted(CATALOGUES))
def test_a_page_loads_one_script_and_the_texts_that_the_script_names(
    make_site: Callable[..., Site], locale: str
) -> None:
    site = make_site(whitelist=("/register",), locale=locale)
    admin = site.signed_in(site.add(role="admin"))
    additions = {
        "/login": "login",
        "/second-factor": "login",
        "/confirm-new-email": "confirm_new_email",
        "/users": "users",
        "/users/1": "user",
        "/users/groups": "user",
        "/audit": "audit",
        "/account": "profile",
        "/": "profile",
    }
    for path, signed_in in VISITS:
        page = visitor(admin, signed_in=signed_in).get(path).body.decode()
        assert page.count("<script") == 1
        name = additions.get(path, "script")
        link = re.search(SCRIPT_TAG.replace("NAME", name).replace("LANGUAGE", locale), page)
        assert link is not None, path
        script, texts = (admin.get(address) for address in link.groups())
        assert texts.header("Content-Type") == "application/json; charset=utf-8"
        assert "immutable" in (texts.header("Cache-Control") or "")
        roles = {"role.admin", "role.user"} if name == "users" else set()
        assert set(texts.json) == used_by(script.body.decode()) | roles
        assert texts.json == {key: CATALOGUES[locale][key] for key in texts.json}
        (messages,) = MESSAGES.findall(page)
        assert admin.get(messages).json == CATALOGUES[locale]["messages"]


SCRIPT_TAG = (
    r'<script src="(/assets/NAME\.js\?v=[0-9a-f]{12})" data-texts="(/assets/NAME\.LANGUAGE\.json\?v=[0-9a-f]{12})"'
    r' data-messages="/assets/messages\.LANGUAGE\.json\?v=[0-9a-f]{12}" defer></script>'
)


ROOMS = (
    *("accounts", "deletion", "errors", "fields", "passwords"),
    *("registration", "recovery", "sessions", "first_admin", "invitations"),
    *("freshness", "groups", "oauth/identities", "permissions"),
    *(f"factors/{name}" for name in ("enrolment", "passkeys", "second_step")),
)
DAEMON = (
    "app",
    "access",
    *(
        f"handlers/{name}"
        for name in (
            *("registration", "recovery", "deletion", "session", "first_admin", "users"),
            *("assistance", "bulk", "groups", "identities", "invitations"),
            *("factors", "passkeys", "second_factor", "tokens"),
        )
    ),
)
# Messages that no page can receive, or for which it has a text by the status.
NOT_SHOWN = re.compile(
    r"No user|The owner of an invited account|[Gg]roups? (is|are) required|ids and action are required|a key stands twice|USERS_ADMIN_|password_hash |a session was admitted|You may only read your own profile|[Rr]ole must be one of|active must be true or false|search must be a string|.* is not an ISO 8601 time"
    # Each form has its own text for success.
    r"|All sessions have ended|Open the link in the email|If this address |(Password|Email) changed$|Registered\.|Your (account|email|password) "
    r"|Account is inactive$|Internal server error|Not found|Method not allowed|This link works once|Logged out"
    r"|Too many |Name at least one scope|Give at least one range|Tokens? (with scopes|lacks )|Credential( and name)? (is|are) required|Passkeys need an address|no account has it$|(it was|its counter|the authenticator) "
    r"|The service is not available|The use of a session is to be|Uses of sessions are to be|Sign in to change this$"
)


def own_messages(rooms: Sequence[str] = ROOMS, daemon: Sequence[str] = DAEMON) -> Iterator[str]:
    """Every refusal and message of the core and the daemon that a page may receive."""
    files = [Path(usersctl.__file__).parent / f"{room}.py" for room in rooms]
    files += [Path(usersd.__file__).parent / f"{room}.py" for room in daemon]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func).rpartition(".")[2]
                texts = [*node.args[:1]] if name[0].isupper() or name == "__init__" else []
                texts += node.args[1:2] if name == "error_response" else []
                texts += [keyword.value for keyword in node.keywords if keyword.arg == "otherwise"]
            elif isinstance(node, ast.ClassDef):
                texts = [keyword.value for keyword in node.keywords if keyword.arg == "missing"]
            elif isinstance(node, ast.Dict):
                keys = [ast.unparse(key) if key else "" for key in node.keys]
                texts = [value for key, value in zip(keys, node.values, strict=True) if key == "'message'"]
            else:
                continue
            yield from (text for node in texts if (text := literal(node)) and " " in text)


def literal(node: ast.expr) -> str:
    """The text of a literal; of an f-string the part before the first value, with constants filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        text = ast.unparse(node)[2:-1]
        return text.replace("{MAX_BYTES}", "72").replace("{MAX_NAME}", "200").partition(" {")[0]
    return ""


@pytest.mark.parametrize("name", OTHERS)
def test_every_language_translates_the_servers_messages(name: str) -> None:
    messages = {message.partition(" {")[0] for message in CATALOGUES[name]["messages"]}
    shown = {text for text in own_messages() if not NOT_SHOWN.match(text)}
    assert len(shown) > 25
    assert shown - messages == set()
    assert ENGLISH["messages"].keys() <= CATALOGUES[name]["messages"].keys()


@pytest.mark.parametrize("name", sorted(CATALOGUES))
def test_pages_say_email_and_not_letter(name: str) -> None:
    catalogue = CATALOGUES[name]
    words = {key: text for key, text in catalogue.items() if isinstance(text, str)} | catalogue["messages"]
    of_the_alphabet = {"rules.upper", "rules.lower"}
    for key, text in words.items():
        paper = re.search(r"(?i)\bletters?\b|brief", text)
        assert key in of_the_alphabet or paper is None, key


@pytest.mark.parametrize("name", sorted(CATALOGUES))
def test_sentences_end_with_a_full_stop(name: str) -> None:
    catalogue = CATALOGUES[name]
    sentences = re.compile(
        r"(say|hint|oauth|users\.did)\..*|.*\.(done|intro|over|saved|sent|resent|changed|ended|none|closed)"
    )
    no_sentences = {"register.closed", "say.again", "users.delete.intro"}
    for key, text in catalogue.items():
        if sentences.fullmatch(key) and key not in no_sentences:
            assert text.endswith("."), key
    for key, text in catalogue["messages"].items():
        assert text.endswith("."), key


# --- brand ---


def test_a_brand_has_a_name_a_logo_a_colour_and_a_style_sheet(
    make_site: Callable[..., Site], tmp_path: Path
) -> None:
    logo, own = tmp_path / "logo.SVG", tmp_path / "own.css"
    logo.write_text("<svg/>")
    own.write_text("h1 { color: red }")
    client = make_site(brand="Räder & Söhne", logo=logo, stylesheet=own, accent="#ffcc00").client()
    page = client.get("/login").body.decode()
    assert "<title>Sign in · Räder &amp; Söhne</title>" in page
    addresses = {path.partition("?")[0]: path for path in re.findall(r'"(/assets/[^"]+)"', page)}
    files = ("style.css", "brand.css", "logo", "login.en.json", "messages.en.json", "login.js")
    assert set(addresses) == {f"/assets/{name}" for name in files}
    assert client.get(addresses["/assets/logo"]).header("Content-Type") == "image/svg+xml"
    sheet = client.get(addresses["/assets/brand.css"])
    assert sheet.body.startswith(b":root { --accent: #ffcc00; --on-accent: #000000;")
    assert sheet.body.endswith(b"h1 { color: red }")
    for path in addresses.values():
        assert "immutable" in (client.get(path).header("Cache-Control") or "")


def test_the_address_of_an_asset_changes_with_it(make_site: Callable[..., Site], tmp_path: Path) -> None:
    own = tmp_path / "own.css"
    addresses = set()
    for colour in ("red", "blue"):
        own.write_text(f"h1 {{ color: {colour} }}")
        page = make_site(stylesheet=own, brand=colour).client().get("/login").body.decode()
        addresses |= set(re.findall(r"/assets/brand\.css\?v=\w+", page))
    assert len(addresses) == 2


def test_a_browser_keeps_only_the_version_of_an_asset_that_it_asked_for(site: Site) -> None:
    client = site.client()
    (style,) = re.findall(r"/assets/style\.css\?v=\w+", client.get("/login").body.decode())
    kept = client.get(style)
    for address in (
        "/assets/style.css",
        "/assets/style.css?v=",
        "/assets/style.css?v=0123456789ab",
        f"{style}&v=1",
        f"{style}&v=%zz",
    ):
        other = client.get(address)
        assert [other.status, other.body] == [200, kept.body]
        assert other.header("Cache-Control") == "public, max-age=60"
    assert kept.header("Cache-Control") == "public, max-age=31536000, immutable"


def test_without_a_brand_there_are_no_brand_files(site: Site) -> None:
    assert b"brand.css" not in site.client().get("/login").body
    for name in ("brand.css", "logo", "login.html", "de.json", "__init__.py"):
        assert site.client().get(f"/assets/{name}").status == 404


def test_links_and_buttons_of_any_colour_are_readable() -> None:
    levels = (0, 51, 102, 128, 153, 204, 255)
    for colour in [f"#{r:02x}{g:02x}{b:02x}" for r in levels for g in levels for b in levels]:
        rules = dict(
            re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", assets.accent_rules(colour).partition("@media")[0])
        )
        dark = re.findall(r"--link: (#[0-9a-f]{6})", assets.accent_rules(colour))[1]

        def contrast(one: str, other: str) -> float:
            return colours._contrast(colours._parts(one), colours._parts(other))

        assert contrast(rules["on-accent"], colour) >= 4.5
        assert contrast(rules["link"], "#f5f6f8") >= 4.5
        assert contrast(dark, "#1b1f23") >= 4.5
    assert assets.accent_rules("#0b57d0").count("#0b57d0") == 2  # what can be read stays as it is


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "must hold one JSON object"),
        ('{"login.titel": "Moin"}', "'login.titel' must be a key of en.json with a string"),
        ('{"login.title": 7}', "'login.title' must be a key of en.json with a string"),
        ('{"messages": "No"}', "'messages' must be a key of en.json with a string"),
        ('{"messages": {"User not found": 7}}', "'messages' must be a key"),
        ('{"lang": "de_DE.UTF-8"}', "'lang' must be a language such as 'de' or 'pt-BR'"),
    ],
)
def test_an_invalid_catalogue_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "own.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)) as refused:
        assets.check(settings(locale=str(file)))
    assert str(refused.value).startswith(f"locale = {str(file)!r}: ")


def test_all_texts_of_a_catalogue_that_an_upgrade_ended_are_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    file.write_text('{"confirm.done": "Done", "login.title": "Hi", "users.inactive": "inactive"}')
    with pytest.raises(
        ConfigError, match=r"'confirm.done', 'users.inactive' must be keys of en.json"
    ) as refused:
        assets.check(settings(locale=str(file)))
    assert "remove what this version has no text for: /" in str(refused.value.hint)
    assert Path(str(refused.value.hint).rpartition(": ")[2]).name == "en.json"


def test_the_error_for_a_missing_catalogue_names_the_shipped_ones() -> None:
    with pytest.raises(ConfigError, match=r"^locale = 'xx': none of de, en, es, fr, and as a file: No such"):
        assets.check(settings(locale="xx"))


@pytest.mark.parametrize("ending", ["jpg", "jpeg", "JPEG"])
def test_a_logo_in_jpeg_has_either_ending(
    tmp_path: Path, make_site: Callable[..., Site], ending: str
) -> None:
    logo = tmp_path / f"logo.{ending}"
    logo.write_bytes(b"\xff\xd8\xff")
    assets.check(settings(logo=logo))
    assert make_site(logo=logo).client().get("/assets/logo").header("Content-Type") == "image/jpeg"


def test_a_pipe_as_a_style_sheet_a_logo_a_locale_or_a_template_is_refused_and_not_waited_for(
    tmp_path: Path,
) -> None:
    pipe, templates = tmp_path / "style.png", tmp_path / "templates"
    templates.mkdir()
    os.mkfifo(pipe)
    os.mkfifo(templates / "confirm.txt")
    for changes in ({"stylesheet": pipe}, {"logo": pipe}, {"locale": str(pipe)}):
        with pytest.raises(ConfigError, match="is a pipe or a device, not a file"):
            assets.check(settings(**changes))
    with pytest.raises(ConfigError, match=r"confirm\.txt: is a pipe or a device, not a file"):
        Writer(settings(mailer_templates=templates)).check()


def test_an_unusable_logo_or_style_sheet_is_refused(tmp_path: Path) -> None:
    big, text = tmp_path / "big.png", tmp_path / "logo.txt"
    big.write_bytes(b"x" * (assets.MAX_SIZE + 1))
    text.write_text("x")
    for changes, message in (
        ({"logo": tmp_path / "none.svg"}, "none.svg: cannot be read: No such file"),
        ({"stylesheet": tmp_path}, "cannot be read: Is a directory"),
        (
            {"stylesheet": tmp_path / ("x" * 256)},
            "branding.stylesheet = .*: cannot be read: File name too long",
        ),
        ({"locale": f"/{'x' * 256}"}, "locale = .*, and as a file: File name too long"),
        ({"logo": big}, "big.png: must be a file of at most 512 KiB"),
        ({"logo": text}, "logo.txt: must be one of .svg, .png, .jpg, .jpeg, .webp"),
    ):
        with pytest.raises(ConfigError, match=message):
            assets.check(settings(**changes))


def test_a_style_sheet_without_an_end_is_refused_and_not_read_whole(tmp_path: Path) -> None:
    endless = tmp_path / "endless.css"
    endless.touch()
    os.truncate(endless, 2**42)  # more than any memory, and nothing on the disk
    with pytest.raises(ConfigError, match="must be a file of at most 512 KiB"):
        assets.check(settings(stylesheet=endless))


@pytest.mark.parametrize(
    ("key", "value"), [("locale", "xx"), ("branding.logo", "logo.svg"), ("branding.accent", "blue")]
)
def test_an_invalid_brand_or_locale_stops_the_start_with_one_line(
    usersctl: Command, key: str, value: str
) -> None:
    usersctl.configure(f'{key} = "{value}"\n')
    refused = usersctl("serve", "--port", "1")
    assert (refused.code, refused.stderr.count("\n")) == (6, 1)
    assert f"{key} = " in refused.stderr


def test_the_pictures_in_the_documentation_are_there_and_small() -> None:
    folder = ROOT / "docs" / "integrating"
    pictures = re.findall(r'<img src="([^"]+)"', page("docs/integrating/pages.md"))
    assert len(pictures) == 3
    for picture in pictures:
        assert 1_000 < (folder / picture).stat().st_size < 60_000
