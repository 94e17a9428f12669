"""Writes an email from its template: subject, text part and HTML part."""

import html
import json
import re
import textwrap
from contextlib import suppress
from datetime import datetime, timedelta
from email.errors import MessageError
from email.header import Header
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import EmailPolicy
from email.utils import format_datetime, parseaddr
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from usersctl.colours import readable_on
from usersctl.config import Settings
from usersctl.config.providers import host_of
from usersctl.config.sources import refuse_pipe
from usersctl.errors import ConfigError
from usersctl.mail.kinds import KINDS
from usersctl.mail.sending import Undeliverable
from usersctl.named import NamedTuple

PLACEHOLDERS = {"brand", "link", "hours", "until", "email", "new_email"}
TEMPLATES = Path(__file__).parent / "templates"
ACCENT = "#0b5fff"
# How a date is written in figures. A language that is not here gets the international form.
_DATES = {"de": "%d.%m.%Y um %H:%M UTC", "es": "%d/%m/%Y a las %H:%M UTC", "fr": "%d/%m/%Y à %H:%M UTC"}
_INTERNATIONAL = "%Y-%m-%d %H:%M UTC"


class _Policy(EmailPolicy):
    """Folds what is not ASCII into encoded words of at most 75 characters, as RFC 2047 has it. The folding of EmailPolicy
    makes them as long as a line, and loses spaces between shorter ones."""

    def fold_binary(self, name: str, value: Any) -> bytes:
        if value.isascii():
            return super().fold_binary(name, value)
        folded = Header(header_name=name, maxlinelen=75)
        for address in getattr(value, "addresses", ()):  # one at most
            folded.append(address.display_name, "utf-8")
            folded.append(f"<{address.addr_spec}>")
        if name == "Subject":
            folded.append(str(value), "utf-8")
        return f"{name}: {folded.encode(linesep=self.linesep)}{self.linesep}".encode()


# Seven bits, because not every server takes eight. Long lines, so that a link in an .eml file is never broken and can
# be copied from it, if all of it is ASCII.
_POLICY = _Policy(linesep="\r\n", cte_type="7bit", max_line_length=990)
_ENCODED = _POLICY.clone(max_line_length=76)  # for a body that has to be encoded, as RFC 2045 has it


class Writer(NamedTuple):
    """Reads templates of `Subject: …`, perhaps `Button: …`, an empty line, and paragraphs; $link alone is the button."""

    settings: Settings

    def check(self) -> None:
        """Raises ConfigError for an unusable template of the operator, so that it shows when the daemon starts."""
        folder = self.settings.mailer_templates
        if folder is None:
            return
        if not folder.is_dir():
            raise ConfigError(f"mailer.templates = {folder}: no such folder")
        names = sorted(template.stem for template in TEMPLATES.glob("*.txt"))
        linked = {kind.name for kind in KINDS.values() if kind.purpose is not None}
        for file in sorted(folder.iterdir()):
            if file.name == "layout.html":
                _check(file, PLACEHOLDERS | {"lang", "subject", "content"}, "content")
            elif file.suffix in (".txt", ".html") and file.stem in names:
                _check(file, PLACEHOLDERS, "link" if file.stem in linked else None)
            elif not file.name.startswith("."):
                raise ConfigError(f"{file}: no email of that name; there are {', '.join(names)}")

    def write(
        self,
        kind: str,
        recipient: str,
        *,
        link: str = "",
        lifetime: timedelta = timedelta(),
        new_email: str = "",
        message_id: str,
        date: datetime,
    ) -> EmailMessage:
        """`lifetime` is that of the link."""
        values = {
            "brand": self.settings.brand,
            "link": link,
            "hours": str(lifetime // timedelta(hours=1)),
            "until": f"{date + lifetime:{_DATES.get(self._language(), _INTERNATIONAL)}}",
            "email": recipient,
            "new_email": new_email,
        }
        head, _, body = self._template(f"{kind}.txt").partition("\n\n")
        subject = Template(_header(head, "Subject")).substitute(values)
        message = EmailMessage(policy=_POLICY)
        message["From"] = self._sender()
        message["To"] = _address(recipient)
        # One line; the spaces that hold a word and its punctuation together stay.
        message["Subject"] = re.sub(r"[^\S\u00a0\u202f]+", " ", subject).strip()
        message["Date"] = format_datetime(date)
        message["Message-ID"] = f"<{message_id}@{domain(self.settings)}>"
        message["Auto-Submitted"] = "auto-generated"
        message["MIME-Version"] = "1.0"
        message.make_alternative()
        message.attach(_part(_wrap(Template(body).substitute(values)), "plain"))
        message.attach(_part(self._html(kind, subject, head, body, values), "html"))
        return message

    def _html(self, kind: str, subject: str, head: str, body: str, values: dict[str, str]) -> str:
        safe = {name: html.escape(value) for name, value in values.items()}
        own = (self.settings.mailer_templates or TEMPLATES) / f"{kind}.html"
        if own.exists():
            return Template(own.read_text("utf-8")).substitute(safe)
        label = _escape(_header(head, "Button") or "Continue", safe)
        content = []
        for paragraph in filter(None, map(str.strip, body.split("\n\n"))):
            if paragraph in ("$link", "${link}"):
                content.append(_button(label, safe["link"], self.settings.accent))
            else:
                content.append(f"<p>{_escape(paragraph, safe)}</p>")
        return Template(self._template("layout.html")).substitute(
            safe, lang=self._language(), subject=html.escape(subject), content="\n".join(content)
        )

    def _template(self, name: str) -> str:
        """The operator's template, else ours in the language of the pages, else the English one."""
        folders = filter(None, (self.settings.mailer_templates, TEMPLATES / self._language(), TEMPLATES))
        return next(folder / name for folder in folders if (folder / name).exists()).read_text("utf-8")

    def _language(self) -> str:
        """That of the pages, if there are templates in it, else English."""
        language = _language_of(self.settings.locale)
        return language if (TEMPLATES / language).is_dir() else "en"

    def _sender(self) -> Address:
        if self.settings.mailer_from is None:
            return Address(self.settings.brand, "no-reply", domain(self.settings))
        name, address = parseaddr(self.settings.mailer_from)
        return Address(name, addr_spec=address)


@cache
def _language_of(locale: str) -> str:
    """Without its region. A file names its own; one that cannot be read is reported by the pages."""
    if not locale.isalpha():
        with suppress(OSError, ValueError, AttributeError):
            locale = json.loads(Path(locale).read_text("utf-8")).get("lang", "en")
    language = re.match("[a-z]+", str(locale).lower())
    return language[0] if language else "en"


def domain(settings: Settings) -> str:
    """The host of baseUrl. An IP address can stand neither after an @ nor in a greeting, so it becomes localhost."""
    host = host_of(settings.base_url)
    if ":" not in host and re.search(r"[a-z]", host):
        return host
    return "localhost"


def _header(head: str, name: str) -> str:
    line = re.search(rf"^{name}:(.*)$", head, re.MULTILINE)
    return line[1].strip() if line else ""


def _check(file: Path, known: set[str], required: str | None) -> None:
    refuse_pipe(file, str(file))
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {getattr(error, 'strerror', 'not UTF-8')}") from None
    template = Template(text)
    used = set(template.get_identifiers())
    listed = f"known are {', '.join(f'${name}' for name in sorted(known))}"
    if used - known:
        raise ConfigError(f"{file}: unknown placeholder ${min(used - known)}; {listed}")
    if not template.is_valid():
        raise ConfigError(f"{file}: a $ without a placeholder (a dollar sign is written $$); {listed}")
    if required is not None and required not in used:
        raise ConfigError(f"{file}: ${required} is missing, and the email is useless without it")
    head, _, body = text.partition("\n\n")
    if file.suffix == ".txt" and (not _header(head, "Subject") or not body.strip()):
        raise ConfigError(f'{file}: must begin with a line "Subject: ..." and an empty line')


def _part(text: str, subtype: str) -> EmailMessage:
    part = EmailMessage(policy=_POLICY)
    part.set_content(text, subtype=subtype)
    if part["Content-Transfer-Encoding"] != "7bit":
        part = EmailMessage(policy=_ENCODED)
        part.set_content(text, subtype=subtype)
    return part


def _wrap(text: str) -> str:
    lines: list[str] = []
    for line in text.strip().splitlines():
        lines += textwrap.wrap(line, 72, break_long_words=False, break_on_hyphens=False) or [""]
    return "\n".join(lines) + "\n"


def _escape(text: str, safe: dict[str, str]) -> str:
    """HTML of a template's plain text. Its own characters are escaped first, then the safe values are put in."""
    return Template(html.escape(text)).substitute(safe)


def _button(label: str, link: str, accent: str | None) -> str:
    # Inline, because some mail programs ignore style sheets. The layout's style sheet gives class "button" another
    # colour in dark mode; the colour of a brand stays.
    name, colour = "button", ACCENT
    if accent:
        name, colour = "branded", accent
    look = f"background:{colour};color:{readable_on(colour)};border-radius:6px;text-decoration:none;font-weight:600"
    return (
        f'<p><a class="{name}" href="{link}" style="display:inline-block;padding:12px 20px;{look}">{label}</a></p>\n'
        f'<p class="quiet" style="font-size:13px;color:#59636e;word-break:break-all">{link}</p>'
    )


def _address(recipient: str) -> Address:
    """Raises Undeliverable unless this is exactly one address."""
    with suppress(ValueError, IndexError, MessageError):
        address = Address(addr_spec=recipient)
        if address.addr_spec == recipient:
            return address
    raise Undeliverable(f"{recipient!r} is not an email address", permanent=True)
