"""The files that pages load: style sheet, script, texts, and the operator's own logo and style sheet."""

import gzip
import json
import re
from functools import cache
from hashlib import sha256
from pathlib import Path

from usersctl.colours import BLACK, WHITE, made_readable, readable_on
from usersctl.config import Settings
from usersctl.config.sources import refuse_pipe
from usersctl.errors import ConfigError, NotFound
from usersd.pages import common_passwords, texts

_FOLDER = Path(__file__).parent
_STYLE, _SCRIPT, _TEXTS = (
    f"{kind}; charset=utf-8" for kind in ("text/css", "text/javascript", "application/json")
)
# One script for a page. Some pages have more to do than the others: theirs is the common one with additions.
SCRIPTS = {
    "script": ("script.js",),
    "login": ("script.js", "passkeys.js"),
    "profile": (
        *("script.js", "dialogs.js", "parts.js", "passkeys.js"),
        *("factors.js", "tokens.js", "proof.js", "profile.js"),
    ),
    "confirm_new_email": ("script.js", "dialogs.js", "passkeys.js", "proof.js"),
    "audit": ("script.js", "audit.js"),
    "user": ("script.js", "dialogs.js", "parts.js", "passkeys.js", "proof.js", "user.js"),
    "users": ("script.js", "dialogs.js", "users.js"),
}
SHARED = {"groups": "user", "second_factor": "login"}  # pages that have the actions of another
_IMAGES = {
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
}
MAX_SIZE = 512 * 1024  # of an operator's file


def address(settings: Settings, name: str) -> str:
    """Names the version, so that a browser may keep the file for ever."""
    return f"/assets/{name}?{query(settings, name)}"


@cache
def query(settings: Settings, name: str) -> str:
    """What tells this version from others."""
    made_of = (
        content(settings, name)[1] if name != common_passwords.NAME else common_passwords.made_of(settings)
    )
    return f"v={sha256(made_of).hexdigest()[:12]}"


@cache
def content(settings: Settings, name: str) -> tuple[str, bytes]:
    """Media type and content."""
    stem, _, kind = name.rpartition(".")
    script, _, language = stem.partition(".")
    if name == "style.css":
        return _STYLE, _lean(name)
    if stem in SCRIPTS and kind == "js":
        return _SCRIPT, b"".join(map(_lean, SCRIPTS[stem]))
    if kind == "json" and language in texts.catalogues(settings.locale):
        return _TEXTS, _texts(settings, script, texts.catalogues(settings.locale)[language])
    if name == common_passwords.NAME and settings.prevent_common_passwords:
        return "application/octet-stream", common_passwords.content(settings)
    if name == "brand.css" and is_branded(settings):
        sheet = accent_rules(settings.accent).encode()
        if settings.stylesheet is not None:
            sheet += settings.stylesheet.read_bytes()
        return _STYLE, sheet
    if name == "logo" and settings.logo is not None:
        return _IMAGES[settings.logo.suffix.lower()], settings.logo.read_bytes()
    raise NotFound("Not found")


def _texts(settings: Settings, name: str, words: texts.Words) -> bytes:
    """The translations of the server's messages, or the texts of a script."""
    if name == "messages":
        found = words["messages"]
    elif name in SCRIPTS:
        found = texts.for_script(words, content(settings, f"{name}.js")[1].decode())
    else:
        raise NotFound("Not found")
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()


def takes_gzip(accepted: str) -> bool:
    """Whether a header Accept-Encoding names it, and not with q=0."""
    for entry in accepted[:1000].lower().split(","):
        coding, _, weight = entry.partition(";")
        if coding.strip() == "gzip":
            return re.fullmatch(r"q=0(\.0*)?", weight.strip()) is None
    return False


@cache
def compressed(settings: Settings, name: str) -> bytes:
    return gzip.compress(content(settings, name)[1], mtime=0)


def script_of(page: str) -> str:
    return page if page in SCRIPTS else SHARED.get(page, "script")


def is_branded(settings: Settings) -> bool:
    return settings.accent is not None or settings.stylesheet is not None


@cache
def _lean(name: str) -> bytes:
    """Without indentation, comments and, in a style sheet, blanks and semicolons that say nothing. The lines stay, so that
    line numbers in a browser are those of the file."""
    text = re.sub(
        r"^ +(//.*)?|^//.*|(?<=;) +// .*|^/\*.*\*/$",
        "",
        (_FOLDER / name).read_text("utf-8"),
        flags=re.MULTILINE,
    )
    if name == "style.css":
        text = re.sub(r" ?([{};,]) ?|(:) ", r"\1\2", text)
        text = re.sub(r";(\n*})", r"\1", text)
    return text.encode()


def accent_rules(colour: str | None) -> str:
    """The operator's colour with black or white text on it, and as links that are readable on light and dark."""
    if colour is None:
        return ""
    light = made_readable(colour, on="#f5f6f8", towards=BLACK)
    dark = made_readable(colour, on="#1b1f23", towards=WHITE)
    return (
        f":root {{ --accent: {colour}; --on-accent: {readable_on(colour)}; --link: {light}; }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ --link: {dark}; }} }}\n"
    )


def check(settings: Settings) -> None:
    """Reads the operator's files at the start, so that a mistake in them stops it."""
    texts.catalogue(settings.locale)
    if settings.logo is not None and settings.logo.suffix.lower() not in _IMAGES:
        raise ConfigError(f"branding.logo = {settings.logo}: must be one of {', '.join(_IMAGES)}")
    for key, file in (("branding.logo", settings.logo), ("branding.stylesheet", settings.stylesheet)):
        if file is None:
            continue
        refuse_pipe(file, f"{key} = {file}")
        try:
            with file.open("rb") as opened:
                size = len(opened.read(MAX_SIZE + 1))  # a device may have no end
        except OSError as error:
            raise ConfigError(f"{key} = {file}: cannot be read: {error.strerror}") from None
        if size > MAX_SIZE:
            raise ConfigError(f"{key} = {file}: must be a file of at most {MAX_SIZE // 1024} KiB")
