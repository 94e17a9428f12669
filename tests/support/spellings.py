"""Other spellings of a path, and what applications and file systems make of them."""

import posixpath
import re
import unicodedata
from collections.abc import Callable, Iterator
from ipaddress import ip_network
from urllib.parse import unquote

# Spellings that some server takes for the path `p`; `o` is an open path.
TRICKS = """
    /{p} //{p} ///{p} /%2f{p} %2f{p} /.{p} /..{p} /%2e{p} /%2e%2e{p} {o}/..{p} {o}/../..{p} {o}/%2e%2e{p}
    {o}/.%09.{p} {o}/..%20{p} {o}/..%3f{p} {o}/..%23{p} {o}/..%0a{p} {o}/..%00{p} {o}/%09..{p} {o}/.%2509.{p} {o}/..%253f{p}
    {o}/.%c2%a0.{p} {o}/..%e2%80%8b{p} {o}/.%e2%80%8b.{p} {o}/..%3fx{p} {o}/..%20%09{p} {o}/..%09;{p} {o}/..%ef%bc%9f{p}
    {o}%2f..{p} {o}/..%2f{p} {o}%5c..%5c{p} {o}\\..{p} \\{p} /\\{p} %5c{p} {o};/..{p} {o}/..;{p} /;{p} {p}; {p};x
    {p};.css {p}?{o} {p}?/../..{o} {p}?.css {p}#{o} {p}/ {p}// {p}/. {p}/.. {p}/x/.. {p}/%2e {p}%2f {p}%5c {p}\\
    {p}%00 {p}%00{o} %00{p} {p}%0a {p}%0d%0a {p}%20 {p}%09 {p}%ff %ff{p} {p}%c0%ae {p}%c0%af {p}.json {p}.css
    {p}~ {p}* /*{p} {p}%23 {p}%3f {p}%3b {p}%25 {p}%252f /%252f{p} {o}/%252e%252e{p} {o}/..%252f{p} {o}%252f..{p}
    http://evil.example{p} HTTP://evil.example{p} http://{p} https://127.0.0.1{p} //evil.example{p} evil.example{p}
    file://{p} *{p} ?{p} {o}?{p} {o}%3f{p} {o}%23{p} {o}{p} {o}/{p} /%ef%bc%8f{p} /%e2%80%a5{p} {o}/%ef%bc%8e%ef%bc%8e{p}
    {o}/%e2%80%a5{p} {p}%cc%81 /%u002f{p} {p}%u002e {o}/%u002e%U002e{p} {p}%zz {p}% {p}%2
    """.split()  # noqa: SIM905 - a list of so many would be all quotes


def other_spellings(path: str, opened: str) -> list[str]:
    hexed = "".join(f"%{ord(c):02x}" if c.isalpha() else c for c in path)
    wide = "".join(chr(ord(c) + 0xFEE0) if c.isalpha() else c for c in path)
    return [
        *(trick.format(p=path, o=opened) for trick in TRICKS),
        path.upper(),
        path.title(),
        hexed,
        hexed.replace("%", "%25"),
        hexed.replace("%", "%u00"),
        "".join(f"%{byte:02x}" for byte in wide.encode()),
        path.replace("/", "//"),
        path.replace("/", "/./"),
        path.replace("/", "%2f"),
        path.replace("/", "%2F"),
        path.replace("s", "%c5%bf"),  # the long s, which is an s in upper case
        path + "/" + "x" * 8000,
        path + "?" + "x" * 8000,
        "/" * 8000 + path,
        "/." * 4000 + path,
    ]


# What some parsers drop, and where some stop.
NOISE = ["%3f", "%23", "%09", "%20", "%0a", "%00", "%2509", "%253f", "%c2%a0", "\n", "\0", " ", "?", "#", "\t", "\x7f", "\xa0", "\xad", "\u200b",
         "\u2028", "\u3000", "\ufeff", "\uff1f", "\uff03"]  # fmt: skip

# Parts of which a property test builds paths.
PIECES = ["/", "/", "/", "docs", "about", "login", "shop", "view", "admin", "..", ".", "%2f", "%2e", "%5c", "%252f", "%252e",
          "%3b", "%u002e", "%u0061dmin", "\\", ";", ";x", "*", "\udcff", "\u2025", "\uff0e", "\uff0f", "\u0301", "\u017f", "A",
          *NOISE, *(f"/..{noise}/" for noise in NOISE), *(f"/.{noise}./" for noise in NOISE)]  # fmt: skip


def visible(path: str) -> str:
    """Without control characters, format characters and spaces: URL parsers drop some of them."""
    return "".join(c for c in path if unicodedata.category(c)[0] not in "CZ")


def readings(path: str) -> Iterator[str]:
    """What applications and file systems are known to make of a path."""
    forms = {path}
    for _ in range(3):
        forms |= {unquote(form) for form in forms}
        forms |= {re.sub("%[uU]([0-9a-fA-F]{4})", lambda code: chr(int(code[1], 16)), form) for form in forms}
        forms |= {form.replace("\\", "/") for form in forms}
        forms |= {re.sub(r";[^/]*", "", form) for form in forms}
        forms |= {unicodedata.normalize("NFKC", form) for form in forms}
        forms |= {re.split(r"[?#\0]", form)[0] for form in forms}
        forms |= {re.sub(r"[?#][^/]*", "", form) for form in forms}
        forms |= {visible(form) for form in forms}
        forms |= {form.encode("utf-8", "surrogateescape").decode("utf-8", "ignore") for form in forms}
    for form in forms:
        yield "/" + posixpath.normpath(form).lstrip("/")


# --- a site with rules, and how its proxy asks ---

VERIFY = "/api/users/auth/verify"
HERE = (ip_network("127.0.0.1"),)
WHITELIST = ("/about", "/docs/*", "/shop/*/view")
RULES = (("/admin/*", "admin"), ("/docs/drafts/*", "admin"), ("/teams/*/secrets/*", "admin"))
CLOSED = ["/admin", "/docs/drafts/7", "/teams/7/secrets"]

Ask = Callable[[str], dict[str, str]]
ASKS: list[Ask] = [
    lambda target: {"X-Original-URL": target, "X-Original-Method": "GET"},
    lambda target: {
        "X-Forwarded-Uri": target,
        "X-Forwarded-Method": "GET",
        "X-Forwarded-Host": "site.example",
    },
]


def may_be(path: str, closed: str) -> bool:
    """Whether somebody may take one for the other, or for what is below it: by any reading, in any letter case, without
    accents, with a suffix."""
    wanted = _bare(closed)
    for reading in readings(path):
        for form in (reading, re.split(r"[?#\0]", reading)[0]):
            bare = _bare(re.sub(r"(?<=[^/])\.[^/]*", "", form))
            if bare == wanted or bare.startswith(wanted + "/"):
                return True
    return False


def _bare(path: str) -> str:
    folded = unicodedata.normalize("NFKD", path).upper().lower()
    plain = "".join(
        c for c in unicodedata.normalize("NFKD", folded) if unicodedata.category(c)[0] not in "MC"
    )
    return re.sub(r"\s*/+\s*", "/", plain).strip().rstrip("/")


def spellings(closed: str) -> list[str]:
    """All except the very long ones, which a header cannot hold."""
    return [target for target in other_spellings(closed, "/docs") if len(target) < 1000]
