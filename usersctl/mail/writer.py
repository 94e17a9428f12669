"""Letters as mail: written from templates, sent by SMTP, or laid into a folder where there is no mail server."""

import html
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, parseaddr
from pathlib import Path
from string import Template
from urllib.parse import urlencode, urlsplit

from usersctl.colours import readable_on
from usersctl.config import Settings
from usersctl.errors import ConfigError
from usersctl.mail.sending import Undeliverable

WORDS = {"brand", "link", "hours", "email"}  # what a template may speak of
ACCENT = "#0b5fff"
_SHIPPED = Path(__file__).parent / "templates"
# Seven bits, because not every server takes eight; lines that nothing has to break, so that a link in an .eml file can
# be read and copied as it stands.
_POLICY = SMTP.clone(cte_type="7bit", max_line_length=990)


# --- writing ---


@dataclass(frozen=True)
class Writer:
    """Text and HTML from a template: `Subject: …` and `Button: …`, an empty line, paragraphs; one that is only $link is
    the button."""

    settings: Settings

    def check(self) -> None:
        """An operator's templates are read at the start, so that a slip shows then and not in the night."""
        folder = self.settings.mailer_templates
        if folder is None:
            return
        if not folder.is_dir():
            raise ConfigError(f"mailer.templates = {folder}: no such folder")
        for file in sorted(each for each in folder.iterdir() if not each.name.startswith(".")):
            known = file.suffix in (".txt", ".html") and (_SHIPPED / f"{file.stem}.txt").exists()
            if not known and file.name != "layout.html":
                raise ConfigError(
                    f"{file}: no letter of that name; there are "
                    + ", ".join(sorted(each.stem for each in _SHIPPED.glob("*.txt")))
                )
            if file.name == "layout.html":
                _check(file, WORDS | {"lang", "subject", "content"}, {"content"})
            else:
                _check(file, WORDS, set() if file.stem == "test" else {"link"})

    def write(
        self, kind: str, recipient: str, *, link: str | None, hours: int, message_id: str, date: datetime
    ) -> EmailMessage:
        words = {"brand": self.settings.brand, "link": link or "", "hours": str(hours), "email": recipient}
        head, _, body = self._template(f"{kind}.txt").partition("\n\n")
        subject = _filled(Template(_line(head, "Subject") or ""), words)
        message = EmailMessage(policy=_POLICY)
        message["From"] = self._sender()
        message["To"] = _address(recipient)
        message["Subject"] = " ".join(subject.split())
        message["Date"] = format_datetime(date)
        message["Message-ID"] = f"<{message_id}@{domain(self.settings)}>"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(_wrapped(_filled(Template(body), words)))
        message.add_alternative(self._html(kind, subject, head, body, words), subtype="html")
        return message

    def _html(self, kind: str, subject: str, head: str, body: str, words: dict[str, str]) -> str:
        safe = {name: html.escape(value) for name, value in words.items()}
        own = self._override(f"{kind}.html")
        if own is not None:
            return _filled(Template(own), safe)
        label = _inner(_line(head, "Button") or "Continue", safe)
        parts = (part.strip() for part in body.split("\n\n"))
        content = "\n".join(
            _button(label, safe["link"], self.settings.accent)
            if part in ("$link", "${link}")
            else f"<p>{_inner(part, safe)}</p>"
            for part in parts
            if part
        )
        layout = self._template("layout.html")
        return _filled(
            Template(layout),
            safe | {"lang": self._language(), "subject": html.escape(subject), "content": content},
        )

    def _template(self, name: str) -> str:
        own = self._override(name)
        if own is not None:
            return own
        translated = _SHIPPED / self._language() / name
        return (translated if translated.exists() else _SHIPPED / name).read_text("utf-8")

    def _language(self) -> str:
        """English where the locale is a file: then the letters are an operator's own, too, or are not translated."""
        locale = self.settings.locale
        return locale if locale.isalpha() and (_SHIPPED / locale).is_dir() else "en"

    def _override(self, name: str) -> str | None:
        folder = self.settings.mailer_templates
        file = folder / name if folder is not None else None
        return file.read_text("utf-8") if file is not None and file.exists() else None

    def _sender(self) -> Address:
        given = self.settings.mailer_from
        if given is None:
            return Address(self.settings.brand, "no-reply", domain(self.settings))
        name, address = parseaddr(given)
        return Address(name, addr_spec=address)


def domain(settings: Settings) -> str:
    """What our letters come from. An address and a greeting cannot end in a bare number."""
    host = urlsplit(settings.base_url).hostname or ""
    return host if ":" not in host and re.search(r"[a-z]", host) else "localhost"


def _line(head: str, name: str) -> str | None:
    found = re.search(rf"^{name}:(.*)$", head, re.MULTILINE)
    return found[1].strip() if found else None


def _filled(template: Template, words: Mapping[str, str]) -> str:
    return template.substitute(words)


def _check(file: Path, words: set[str], needed: set[str]) -> None:
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file}: cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}"
        ) from None
    template = Template(text)
    used = set(template.get_identifiers())
    known = f"known are {', '.join(f'${word}' for word in sorted(words))}"
    if used - words:
        raise ConfigError(f"{file}: unknown word ${min(used - words)}; {known}")
    if not template.is_valid():
        raise ConfigError(f"{file}: a $ that begins no word (write $$); {known}")
    if needed - used:
        raise ConfigError(f"{file}: ${min(needed - used)} is missing, without which the letter is of no use")
    head, _, body = text.partition("\n\n")
    if file.suffix == ".txt" and (not _line(head, "Subject") or not body.strip()):
        raise ConfigError(f'{file}: must begin with a line "Subject: ..." and an empty one')


def _wrapped(text: str) -> str:
    lines = (
        textwrap.wrap(line, 72, break_long_words=False, break_on_hyphens=False) or [""]
        for line in text.strip().splitlines()
    )
    return "\n".join(part for wrapped in lines for part in wrapped) + "\n"


def _inner(text: str, safe: dict[str, str]) -> str:
    # The template's own text is text, too, and not HTML; only then are the words put in.
    return _filled(Template(html.escape(text)), safe)


def _button(label: str, link: str, accent: str | None) -> str:
    # Not every mail program reads a style sheet: what a button needs to be one stands in it. The style sheet has another
    # colour for the dark; that of a brand stays.
    name, colour = ("branded", accent) if accent else ("button", ACCENT)
    look = f"background:{colour};color:{readable_on(colour)};border-radius:6px;text-decoration:none;font-weight:600"
    style = f"display:inline-block;padding:12px 20px;{look}"
    return (
        f'<p><a class="{name}" href="{link}" style="{style}">{label}</a></p>\n'
        f'<p class="quiet" style="font-size:13px;color:#59636e;word-break:break-all">{link}</p>'
    )


def _address(recipient: str) -> Address:
    """One recipient, and not a list of them."""
    try:
        address = Address(addr_spec=recipient)
    except (ValueError, IndexError, MessageError):
        address = None
    if address is None or address.addr_spec != recipient:
        raise Undeliverable(f"{recipient!r} is no address", permanent=True)
    return address


def link(settings: Settings, target: str, token: str, email: str) -> str:
    """From the configuration, and from nothing that a request says."""
    base = settings.base_url + target if target.startswith("/") else target
    separator = "&" if "?" in base else "?"
    return f"{base}{separator}{urlencode({'token': token, 'email': email})}"
