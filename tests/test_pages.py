"""The pages without a browser: who gets which, their words in every language, what an operator adds, what they weigh."""

import ast
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Command
from web import Client, Site

import usersctl
import usersd
from usersctl import colours
from usersctl.config import Settings
from usersctl.errors import ConfigError
from usersd import pages

HERE = Path(pages.__file__).parent
TEMPLATES = {file.name: file.read_text("utf-8") for file in HERE.glob("*.html")}
SCRIPT = (HERE / "script.js").read_text("utf-8")
CATALOGUES = {file.stem: json.loads(file.read_text("utf-8")) for file in (HERE / "locales").glob("*.json")}
ENGLISH = CATALOGUES["en"]
OTHERS = sorted(CATALOGUES.keys() - {"en"})
PATHS = [
    "/login",
    "/register",
    "/confirm-email",
    "/forgot-password",
    "/reset-password",
    "/not-me",
    "/setup",
    "/",
    "/users",
]


@pytest.fixture
def admin(make_site: Callable[..., Site]) -> Client:
    site = make_site(whitelist=("/register",))
    return site.signed_in(site.add(role="admin"))


def settings(**changes: Any) -> Settings:
    return Settings(database=Path("users.db"), base_url="http://127.0.0.1:8080", **changes)


# --- who gets which ---


def test_a_page_for_admins_says_so_to_others_readably(site: Site) -> None:
    reply = site.signed_in(site.add()).get("/users")
    assert (reply.status, reply.header("Content-Type")) == (403, "text/html; charset=utf-8")
    assert b"This page is for admins" in reply.body
    assert b'href="/users"' not in reply.body


def test_only_admins_are_shown_the_way_to_all_users(site: Site, admin: Client) -> None:
    assert b'href="/users"' in admin.get("/").body
    assert b'href="/users"' not in site.signed_in(site.add("grace")).get("/").body


def test_registration_that_is_closed_has_no_pages_and_no_way_there(site: Site) -> None:
    user = site.signed_in(site.add())
    for path in ("/register", "/confirm-email"):
        reply = site.client().get(path)
        assert (reply.status, reply.header("Location")) == (302, f"/login?redirect={path}")
        assert (user.get(path).status, user.get(path).message) == (403, "Registration is closed")
    login = site.client().get("/login").body
    assert b"/register" not in login
    assert b"auth/oauth" not in login


def test_registration_that_is_open_is_offered(admin: Client) -> None:
    login = Client(admin.port).get("/login").body
    assert b'href="/register"' in login
    assert b"/api/users/register/resend" in login


def test_the_set_up_page_is_over_with_the_first_admin(site: Site) -> None:
    assert b"<form" in site.client().get("/setup?token=x").body
    site.add(role="admin")
    assert b"<form" not in site.client().get("/setup?token=x").body


@pytest.mark.parametrize(
    "code", ["oauth_failed", "oauth_not_configured", "user_not_registered", "account_inactive"]
)
def test_a_code_of_a_failed_sign_in_is_said_in_words(site: Site, code: str) -> None:
    page = site.client().get(f"/login?error={code}").body.decode()
    assert ENGLISH[f"oauth.{code}"] in page
    assert code not in page


def test_another_code_says_nothing(site: Site) -> None:
    assert b"note bad" not in site.client().get("/login?error=nonsense").body.replace(
        b'<p class="note bad">This page needs', b""
    )


# --- what a page is ---


@pytest.mark.parametrize("path", PATHS)
def test_no_page_can_be_framed_or_kept_or_runs_what_is_not_ours(admin: Client, path: str) -> None:
    reply = admin.get(path)
    assert (reply.status, reply.header("Cache-Control")) == (200, "no-store")
    policy = dict(
        each.strip().split(" ", 1) for each in (reply.header("Content-Security-Policy") or "").split(";")
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
    assert "<noscript>" in page


@pytest.mark.parametrize("path", PATHS)
def test_a_page_with_all_that_it_loads_is_below_40_kb(admin: Client, path: str) -> None:
    page = admin.get(path).body
    assets = re.findall(r'(?:src|href)="(/assets/[^"]+)"', page.decode())
    assert len(assets) == 2
    assert len(page) + sum(len(admin.get(asset).body) for asset in assets) < 40_000


@pytest.mark.parametrize("path", PATHS)
def test_every_field_has_a_label_a_name_and_a_place_for_its_error(admin: Client, path: str) -> None:
    page = admin.get(path).body.decode()
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for field in re.findall(r"<(?:input|select) [^>]*>", page):
        if 'type="hidden"' in field or 'class="away"' in field:
            continue
        found = re.search(r' id="([^"]+)"', field)
        if found is None:
            assert 'type="checkbox"' in field  # inside of its label
            continue
        assert f'<label for="{found[1]}">' in page
        assert " name=" in field
        described = re.search(r'aria-describedby="([^"]+)"', field)
        assert set(described[1].split() if described else []) <= set(ids)
        assert (f"{found[1]}-error" in ids) == (described is not None)
    for form in re.findall(r"<form [^>]*>", page):
        assert 'method="post"' in form  # without the script nothing would land in an address


def test_templates_escape_all_but_what_is_ours() -> None:
    raw = {found.strip() for text in TEMPLATES.values() for found in re.findall(r"{{!(.*?)}}", text)}
    ours = {"texts", "base", "style"}
    assert ours <= raw
    for expression in raw - ours:
        # One literal or another, by a condition; in one of them a number.
        tree = ast.parse(expression.replace("{user.id}", "1"), mode="eval").body
        assert isinstance(tree, ast.IfExp), expression
        branches = [
            each.values[0] if isinstance(each, ast.JoinedStr) else each for each in (tree.body, tree.orelse)
        ]
        assert all(isinstance(each, ast.Constant) for each in branches), expression


def test_text_in_the_script_element_cannot_end_it(make_site: Callable[..., Site], tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    file.write_text(json.dumps({"say.failed": "</script><script>alert(1)</script><!--"}))
    page = make_site(locale=str(file)).client().get("/login").body.decode()
    assert page.count("</script>") == 2
    assert "<!--" not in page


# --- words ---


def used_keys() -> set[str]:
    everywhere = "".join(TEMPLATES.values())
    used = set(re.findall(r'\bt\("([^"]+)"\)', everywhere)) | set(
        re.findall(r'data-done="([^"]+)"', everywhere)
    )
    used |= set(re.findall(r'"((?:say|hint|profile|users|nav)\.[a-z.-]+)"', SCRIPT))
    return used


def test_every_text_is_there_and_none_is_left_over() -> None:
    computed = {key for key in ENGLISH if key.startswith(("role.", "rules.", "oauth."))} | {
        "lang",
        "messages",
    }
    assert used_keys() | computed == set(ENGLISH)


@pytest.mark.parametrize("name", OTHERS)
def test_every_language_has_every_text_with_the_same_blanks(name: str) -> None:
    other = CATALOGUES[name]
    assert other["lang"] == name
    assert list(other) == list(ENGLISH)
    for key in ENGLISH.keys() - {"messages"}:
        assert other[key].strip(), key
        assert set(re.findall(r"{\w+}", other[key])) == set(re.findall(r"{\w+}", ENGLISH[key])), key


ROOMS = ("accounts", "errors", "fields", "passwords", "registration", "recovery", "sessions", "setup")
DAEMON = ("app", "access", "registration", "recovery", "session", "setup", "users")
# What no page asks for, or says in its own words by the status.
NOT_SHOWN = re.compile(
    r"No user|USERS_ADMIN_|password_hash |a session was admitted|You may only read your own profile|[Rr]ole must be one of|active must be true or false|search must be a text"
    r"|Account is inactive$|Internal server error|Not found|Method not allowed|This uses something up|Logged out"
    r"|Too many |The service is not available|The use of a session is to be noted"
)


def said() -> Iterator[str]:
    """Every refusal and message of the core and the daemon that a page may be told."""
    files = [Path(usersctl.__file__).parent / f"{room}.py" for room in ROOMS]
    files += [Path(usersd.__file__).parent / f"{room}.py" for room in DAEMON]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func).rpartition(".")[2]
                found = [*node.args[:1]] if name[0].isupper() or name == "__init__" else []
                found += node.args[1:2] if name == "refusal" else []
                found += [keyword.value for keyword in node.keywords if keyword.arg == "otherwise"]
            elif isinstance(node, ast.Dict):
                keys = [ast.unparse(key) if key else "" for key in node.keys]
                found = [value for key, value in zip(keys, node.values, strict=True) if key == "'message'"]
            else:
                continue
            yield from (text for each in found if (text := literal(each)) and " " in text)


def literal(node: ast.expr) -> str:
    """Its text; of one with blanks what stands before the first, and our constants filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        text = ast.unparse(node)[2:-1]
        return text.replace("{MAX_BYTES}", "72").replace("{MAX_NAME}", "200").partition(" {")[0]
    return ""


@pytest.mark.parametrize("name", OTHERS)
def test_every_language_has_what_the_server_says(name: str) -> None:
    messages = CATALOGUES[name]["messages"]
    shown = {text for text in said() if not NOT_SHOWN.match(text)}
    assert len(shown) > 25
    assert shown - set(messages) == set()
    assert set(ENGLISH["messages"]) <= set(messages)


# --- an operator's own ---


def test_a_brand_has_a_name_a_logo_a_colour_and_a_style_sheet(
    make_site: Callable[..., Site], tmp_path: Path
) -> None:
    logo, own = tmp_path / "logo.SVG", tmp_path / "own.css"
    logo.write_text("<svg/>")
    own.write_text("h1 { color: red }")
    client = make_site(brand="Räder & Söhne", logo=logo, stylesheet=own, accent="#ffcc00").client()
    page = client.get("/login").body.decode()
    assert "<title>Sign in · Räder &amp; Söhne</title>" in page
    assets = {path.partition("?")[0]: path for path in re.findall(r'"(/assets/[^"]+)"', page)}
    assert set(assets) == {"/assets/style.css", "/assets/brand.css", "/assets/logo", "/assets/script.js"}
    assert client.get(assets["/assets/logo"]).header("Content-Type") == "image/svg+xml"
    sheet = client.get(assets["/assets/brand.css"])
    assert sheet.body.startswith(b":root { --accent: #ffcc00; --on-accent: #000000;")
    assert sheet.body.endswith(b"h1 { color: red }")
    for path in assets.values():
        assert "immutable" in (client.get(path).header("Cache-Control") or "")


def test_the_address_of_an_asset_changes_with_it(make_site: Callable[..., Site], tmp_path: Path) -> None:
    own = tmp_path / "own.css"
    addresses = set()
    for colour in ("red", "blue"):
        own.write_text(f"h1 {{ color: {colour} }}")
        page = make_site(stylesheet=own, brand=colour).client().get("/login").body.decode()
        addresses |= set(re.findall(r"/assets/brand\.css\?v=\w+", page))
    assert len(addresses) == 2


def test_without_a_brand_there_is_nothing_of_it(site: Site) -> None:
    assert b"brand.css" not in site.client().get("/login").body
    for name in ("brand.css", "logo", "login.html", "de.json", "__init__.py"):
        assert site.client().get(f"/assets/{name}").status == 404


def test_links_and_buttons_of_any_colour_can_be_read() -> None:
    levels = (0, 51, 102, 128, 153, 204, 255)
    for colour in [f"#{r:02x}{g:02x}{b:02x}" for r in levels for g in levels for b in levels]:
        found = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", pages._accent(colour).partition("@media")[0]))
        dark = re.findall(r"--link: (#[0-9a-f]{6})", pages._accent(colour))[1]

        def contrast(one: str, other: str) -> float:
            return colours._contrast(colours._parts(one), colours._parts(other))

        assert contrast(found["on-accent"], colour) >= 4.5
        assert contrast(found["link"], "#f5f6f8") >= 4.5
        assert contrast(dark, "#1b1f23") >= 4.5
    assert pages._accent("#0b57d0").count("#0b57d0") == 2  # what can be read stays as it is


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON"),
        ("[]", "must hold one JSON object"),
        ('{"login.titel": "Moin"}', "'login.titel' must be a key of en.json with a text"),
        ('{"login.title": 7}', "'login.title' must be a key of en.json with a text"),
        ('{"messages": {"User not found": 7}}', "'messages' must be a key"),
        ('{"lang": "de_DE.UTF-8"}', "'lang' must be a language such as 'de' or 'pt-BR'"),
    ],
)
def test_a_catalogue_with_a_slip_is_refused(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "own.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(told)) as refused:
        pages.check(settings(locale=str(file)))
    assert str(refused.value).startswith(f"locale = {str(file)!r}: ")


def test_a_catalogue_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"^locale = 'fr': neither de nor en, and as a file: No such file"):
        pages.check(settings(locale="fr"))


def test_a_logo_or_style_sheet_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    big, text = tmp_path / "big.png", tmp_path / "logo.txt"
    big.write_bytes(b"x" * (pages.MOST_BYTES + 1))
    text.write_text("x")
    for changes, told in (
        ({"logo": tmp_path / "none.svg"}, "none.svg: cannot be read: No such file"),
        ({"stylesheet": tmp_path}, "cannot be read: Is a directory"),
        ({"logo": big}, "big.png: must be a file of at most 512 KiB"),
        ({"logo": text}, "logo.txt: must be one of .svg, .png, .jpg, .webp"),
    ):
        with pytest.raises(ConfigError, match=told):
            pages.check(settings(**changes))


@pytest.mark.parametrize(
    ("key", "value"), [("locale", "fr"), ("branding.logo", "logo.svg"), ("branding.accent", "blue")]
)
def test_a_slip_stops_the_start_with_one_line(usersctl: Command, key: str, value: str) -> None:
    usersctl.configure(f'{key} = "{value}"\n')
    refused = usersctl("serve", "--port", "1")
    assert (refused.code, refused.stderr.count("\n")) == (6, 1)
    assert f"{key} = " in refused.stderr


def test_the_pictures_in_the_readme_are_there_and_small() -> None:
    root = Path(__file__).parent.parent
    pictures = re.findall(r'<img src="([^"]+)"', (root / "README.md").read_text("utf-8"))
    assert len(pictures) == 3
    for picture in pictures:
        assert 1_000 < (root / picture).stat().st_size < 60_000
