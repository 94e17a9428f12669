"""Emails: their content, how SMTP servers of all kinds receive them, and the folder for them without a server."""

import email.header
import email.policy
import errno
import html.parser
import os
import re
import socket
import stat
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from pathlib import Path
from string import Template
from typing import Any

import pytest
from support.certificates import Certificates, make_certificates
from support.commands import OPERATOR, PASSWORD
from support.postbox import (
    DATA,
    EHLO,
    END,
    GREETING,
    MAIL,
    RCPT,
    Postbox,
    drip,
    hang,
    link_in,
    scripted_server,
    send_all,
    smtp_server,
    until,
)

from usersctl.config import Settings
from usersctl.errors import ConfigError, Invalid
from usersctl.fields import normal_email, normal_name
from usersctl.mail import folder as mail_folder
from usersctl.mail import kinds, writer
from usersctl.mail.folder import FolderSender
from usersctl.mail.outbox import link_to
from usersctl.mail.outbox import sender as sender_for
from usersctl.mail.sending import Undeliverable
from usersctl.mail.smtp import SmtpSender
from usersctl.mail.writer import Writer
from usersctl.service import Service

TO = "ada@example.com"
LINK = "https://accounts.example.com/confirm-email?token=abc-_123&email=ada%40example.com"
NOW = datetime(2026, 11, 20, 8, 22, 19, tzinfo=UTC)
SHIPPED = Path(writer.__file__).parent / "templates"
KINDS = [*kinds.KINDS, "test"]
LINKED = {kind.name for kind in kinds.KINDS.values() if kind.purpose is not None}


def settings(tmp_path: Path = Path("/nowhere"), **changes: Any) -> Settings:
    values = {"database": tmp_path / "users.db", "base_url": "https://accounts.example.com"} | changes
    return Settings(**values)


def written(kind: str = "confirm", to: str = TO, link: str = LINK, **changes: Any) -> EmailMessage:
    return Writer(settings(**changes)).write(
        kind, to, link=link, lifetime=timedelta(hours=24), message_id="0123456789abcdef", date=NOW
    )


def part(message: EmailMessage, kind: str) -> str:
    body = message.get_body((kind,))
    assert body is not None
    return str(body.get_content())


def sending(port: int, step: float = 5, whole: float = 10, answer: float = 10, **changes: Any) -> SmtpSender:
    values = {"mailer_host": "127.0.0.1", "mailer_port": port} | changes
    return SmtpSender(settings(**values), step, whole, answer)


def refused(sender: SmtpSender, to: str = TO) -> Undeliverable:
    with pytest.raises(Undeliverable) as raised:
        sender(written(to=to), to, 1)
    return raised.value


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def trusted(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> Certificates:
    """Trusts the authority as an operator would: by OpenSSL's own variable."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    return certificates


# --- content ---


class Tags(html.parser.HTMLParser):
    """Collects every tag, attribute and text of a document."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.texts: list[str] = []
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(data.strip())


@pytest.mark.parametrize("kind", KINDS)
def test_an_email_has_text_and_html_parts_with_the_same_content(kind: str) -> None:
    message = written(kind)
    assert message.get_content_type() == "multipart/alternative"
    text, seen = part(message, "plain"), Tags(part(message, "html"))
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    for paragraph in paragraphs:
        assert paragraph in seen.texts
    assert "Users" in text
    if kind in LINKED:
        assert link_in(text).token == "abc-_123"
        assert seen.links == [LINK]
        assert LINK in paragraphs


@pytest.mark.parametrize("kind", KINDS)
def test_an_email_loads_nothing_and_has_both_colour_schemes(kind: str) -> None:
    document = part(written(kind), "html")
    seen = Tags(document)
    assert not {"script", "img", "link", "iframe", "form", "object"} & set(seen.tags)
    assert "url(" not in document
    assert "prefers-color-scheme: dark" in document


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        ("confirm", "Confirm my address"),
        ("reset", "Set a new password"),
        ("password-changed", "This wasn't me"),
        ("email-changed", "This wasn't me"),
        ("account-linked", "This wasn't me"),
    ],
)
def test_the_button_says_what_it_does(kind: str, label: str) -> None:
    assert label in Tags(part(written(kind), "html")).texts
    assert "Button:" not in part(written(kind), "plain")


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_is_seven_bit_with_lines_of_at_most_998_bytes(kind: str) -> None:
    raw = written(kind, brand="Größe & Söhne 测试 \u202e").as_bytes()
    assert raw.isascii()
    assert max(map(len, raw.split(b"\r\n"))) <= 998
    assert b"\n" not in raw.replace(b"\r\n", b"")


@pytest.mark.parametrize("locale", ["en", "de", "es", "fr"])
@pytest.mark.parametrize("brand", ["Acme", "Größe", "测试" * 60])
def test_encoded_bodies_have_lines_of_at_most_76_characters(locale: str, brand: str) -> None:
    for kind in KINDS:
        for each in written(kind, brand=brand, locale=locale).iter_parts():
            if each["Content-Transfer-Encoding"] != "7bit":
                assert max(map(len, str(each.get_payload()).splitlines())) <= 76, kind


@pytest.mark.parametrize("locale", ["en", "de", "es", "fr"])
@pytest.mark.parametrize("brand", ["Acme", "Größe, Söhne <a@b.c>", "测试" * 60, "é" * 200, "e " * 99 + "é"])
def test_headers_have_encoded_words_of_at_most_75_characters(locale: str, brand: str) -> None:
    for kind in KINDS:
        message = written(kind, brand=brand, locale=locale)
        head = message.as_bytes().partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
        assert all(len(word) <= 75 for word in re.findall(rb"=\?[^?]+\?[bq]\?[^?]*\?=", head)), kind
        plain = email.message_from_bytes(head)
        for name in ("From", "Subject"):
            read = str(email.header.make_header(email.header.decode_header(plain[name])))
            assert read.replace('"', "") == str(message[name]).replace('"', ""), kind
        assert email.message_from_bytes(head, policy=email.policy.SMTP)["Subject"] == message["Subject"], kind


def test_the_text_part_is_readable_in_the_raw_file() -> None:
    assert LINK.encode() in written().as_bytes()
    text = part(written(), "plain").splitlines()
    assert max(len(line) for line in text if line != LINK) <= 72


def test_the_headers_mark_an_automatic_email() -> None:
    message = written()
    assert str(message["From"]) == "Users <no-reply@accounts.example.com>"
    assert str(message["To"]) == TO
    assert str(message["Subject"]) == "Confirm your email address for Users"
    assert str(message["Message-ID"]) == "<0123456789abcdef@accounts.example.com>"
    assert str(message["Date"]) == "Fri, 20 Nov 2026 08:22:19 +0000"
    assert str(message["Auto-Submitted"]) == "auto-generated"


@pytest.mark.parametrize(
    ("base_url", "domain"),
    [
        ("https://accounts.example.com", "accounts.example.com"),
        ("https://accounts.example.com:8443", "accounts.example.com"),
        ("http://localhost:8080", "localhost"),
        ("http://127.0.0.1:8080", "localhost"),
        ("http://[::1]:8080", "localhost"),
        ("http://[2001:db8::a]", "localhost"),
    ],
)
def test_the_default_sender_is_no_reply_at_the_base_url(base_url: str, domain: str) -> None:
    message = written(base_url=base_url)
    assert message["From"].addresses[0].addr_spec == f"no-reply@{domain}"
    assert str(message["Message-ID"]).endswith(f"@{domain}>")
    assert not message["From"].defects
    assert not message["Message-ID"].defects


def test_sender_and_product_name_come_from_the_configuration() -> None:
    message = written(brand="Größe, Söhne <& Co>", mailer_from='"Das Büro, Wien" <post@example.org>')
    (address,) = message["From"].addresses
    assert (address.display_name, address.addr_spec) == ("Das Büro, Wien", "post@example.org")
    assert str(message["Subject"]) == "Confirm your email address for Größe, Söhne <& Co>"
    assert "at Größe, Söhne <& Co> with" in " ".join(part(message, "plain").split())
    assert "Größe, Söhne <& Co>" in Tags(part(message, "html")).texts
    (address,) = written(brand="Größe, Söhne <a@b.c>")["From"].addresses
    assert (address.display_name, address.addr_spec) == (
        "Größe, Söhne <a@b.c>",
        "no-reply@accounts.example.com",
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_is_escaped(kind: str) -> None:
    evil = "\"><script>alert(1)</script>&amp;'$link ${hours} $$"
    message = written(kind, brand=evil, link=LINK + '"><b>')
    seen = Tags(part(message, "html"))
    assert not {"script", "b"} & set(seen.tags)
    assert evil in seen.texts
    assert evil in " ".join(part(message, "plain").split())


def test_a_long_product_name_stays_in_its_header() -> None:
    message = written(brand="A very long name " * 200)
    again = message.as_bytes().partition(b"\r\n\r\n")[0].replace(b"\r\n ", b" ").split(b"\r\n")
    assert {line.partition(b":")[0] for line in again} == {
        b"From",
        b"To",
        b"Subject",
        b"Date",
        b"Message-ID",
        b"Auto-Submitted",
        b"MIME-Version",
        b"Content-Type",
    }


# --- injection ---

EVIL_ADDRESSES = [
    "ada@example.com\r\nBcc: eve@example.com",
    "ada@example.com\nBcc: eve@example.com",
    "ada@example.com\r\n\r\nbody",
    "ada@example.com, eve@example.com",
    "ada@example.com,eve@example.com",
    "ada@example.com;eve@example.com",
    "ada@example.com eve@example.com",
    "<ada@example.com>",
    "Ada <ada@example.com>",
    "ada@example.com>\r\nRCPT TO:<eve@example.com",
    "ada@example.com> <eve@example.com",
    '"ada@example.com, eve"@example.com',
    '"ada\r\nBcc: eve@example.com"@example.com',
    "ada@[127.0.0.1]",
    "group: ada@example.com, eve@example.com;",
    "ada(eve@example.com)@example.com",
    "ada@example.com\0",
    "ada\u202e@example.com",
    "ada@example.com\u2028Bcc: eve@example.com",
    "ada%0d%0aBcc:eve@example.com@example.com",
    "ada@eve@example.com",
    "@example.com",
    "ada@",
    "",
]


@pytest.mark.parametrize("email", EVIL_ADDRESSES)
def test_a_list_of_addresses_is_never_stored_as_one(email: str) -> None:
    with pytest.raises(Invalid):
        normal_email(email)


@pytest.mark.parametrize("email", EVIL_ADDRESSES)
def test_a_stored_list_of_addresses_adds_no_header_and_no_recipient(email: str) -> None:
    with smtp_server() as box:
        try:
            message = written(to=email)
            sending(box.port)(message, email, 1)
        except Undeliverable:
            pass
    for letter in box.received:
        assert letter.recipients == [email]
        assert letter.message["Bcc"] is None
        assert [address.addr_spec for address in letter.message["To"].addresses] == [email]


@pytest.mark.parametrize(
    "email",
    [
        f"{'a' * 64}@{'.'.join(['b' * 60] * 3)}.com",
        "o'brien+tag.!#$%&*/=?^`{|}~-@example.com",
        "ada@xn--bcher-kva.example",
    ],
)
def test_a_valid_unusual_address_receives_its_email(email: str) -> None:
    assert normal_email(email) == email
    with smtp_server() as box:
        sending(box.port)(written(to=email), email, 1)
    (letter,) = box.received
    assert letter.recipients == [email]
    assert letter.message["To"].addresses[0].addr_spec == email


@pytest.mark.parametrize(
    "name",
    [
        "Ada\r\nBcc: eve@example.com",
        "Ada\nX: y",
        "Ada\rX: y",
        "Ada\0",
        "Ada\u2028X: y",
        "Ada\x85X: y",
        "a" * 201,
        "\ud800",
        " ",
    ],
)
def test_a_name_that_could_break_a_line_is_refused(name: str) -> None:
    with pytest.raises(Invalid):
        normal_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "Eve <eve@example.com>, Bob <bob@example.com>",
        '"><script>alert(1)</script>',
        "\u202egro.live@eve\u202c",
        "$link ${email}",
        "Click https://evil.example",
        "a" * 200,
    ],
)
def test_no_email_contains_the_name_of_the_user(
    make_service: Callable[..., Service], name: str, tmp_path: Path
) -> None:
    service = make_service(whitelist=("/register",))
    service.registration.register(TO, name, PASSWORD, by=OPERATOR)
    send_all(service)
    (file,) = (tmp_path / "mail").iterdir()
    assert normal_name(name).encode() not in file.read_bytes()
    seen = mail_folder.read(file)
    assert seen.to == TO
    assert link_in(" ".join(seen.parts)).email == TO


# --- templates of the operator ---


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    templates = tmp_path / "templates"
    templates.mkdir()
    return templates


def test_a_template_of_the_operator_replaces_ours(folder: Path) -> None:
    (folder / "confirm.txt").write_text(
        "Subject: Willkommen bei $brand\nButton: Bestätigen\n\nGrüß Gott, $email!\n\n${link}\n\n$hours h, 5 $$\n",
        "utf-8",
    )
    message = written(mailer_templates=folder, brand="<Wir>")
    assert str(message["Subject"]) == "Willkommen bei <Wir>"
    assert part(message, "plain").split("\n\n") == [f"Grüß Gott, {TO}!", LINK, "24 h, 5 $\n"]
    seen = Tags(part(message, "html"))
    assert {"Bestätigen", f"Grüß Gott, {TO}!", "24 h, 5 $"} <= set(seen.texts)
    assert seen.links == [LINK]
    assert str(written("reset", mailer_templates=folder)["Subject"]) == "Set a new password for Users"
    Writer(settings(mailer_templates=folder)).check()


def test_a_text_template_cannot_become_html(folder: Path) -> None:
    (folder / "confirm.txt").write_text(
        "Subject: <b>x</b>\nButton: <i>go</i>\n\n<script>$brand</script> & <b>$email</b>\n\n$link\n"
    )
    seen = Tags(part(written(mailer_templates=folder, brand="</script>"), "html"))
    assert not {"script", "b", "i"} & set(seen.tags)
    assert f"<script></script></script> & <b>{TO}</b>" in seen.texts


def test_an_html_template_of_one_long_line_is_sent_in_short_ones(folder: Path) -> None:
    (folder / "reset.html").write_text(f"<p>{'word ' * 400}<a href='$link'>Go</a></p>", "utf-8")
    message = written("reset", mailer_templates=folder)
    assert max(map(len, message.as_bytes().split(b"\r\n"))) <= 99
    assert part(message, "html").count("word ") == 400


def test_an_html_template_and_a_layout_get_escaped_values(folder: Path) -> None:
    (folder / "reset.html").write_text('<h1 title="$brand">$brand</h1><a href="$link">$email</a>')
    (folder / "layout.html").write_text("<title>$subject</title><main>$content</main><p>$brand</p>")
    (folder / ".DS_Store").write_bytes(b"\xff")
    changes = {"mailer_templates": folder, "brand": '"><img src=x onerror=alert(1)>'}
    Writer(settings(**changes)).check()
    for kind in ("reset", "confirm"):
        seen = Tags(part(written(kind, **changes), "html"))
        assert not {"img"} & set(seen.tags)
        assert changes["brand"] in seen.texts
        assert seen.links == [LINK]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "confirm.txt",
            "Subject: x\n\n$link $token",
            "unknown placeholder $token; known are $brand, $email, $hours, $link",
        ),
        (
            "confirm.txt",
            "Subject: x\n\n$link costs 5$",
            "a $ without a placeholder (a dollar sign is written $$)",
        ),
        ("confirm.txt", "Subject: x\n\nno way on", "$link is missing"),
        ("confirm.txt", "\ufeffSubject: x\n\n$link", 'must begin with a line "Subject: ..."'),
        ("confirm.txt", "Dear $email\n\n$link", 'must begin with a line "Subject: ..."'),
        ("confirm.txt", "Subject: x\n$link", 'must begin with a line "Subject: ..."'),
        ("confirm.html", "<p>$content</p>", "unknown placeholder $content"),
        ("layout.html", "<p>$brand</p>", "$content is missing"),
        (
            "welcome.txt",
            "Subject: x\n\n$link",
            "no email of that name; there are account-linked, account-unlinked,",
        ),
        ("confirm.txt.bak", "", "no email of that name"),
        ("confirm.txt", b"Subject: \xff\n\n$link", "cannot be read: not UTF-8"),
    ],
)
def test_an_unusable_template_is_refused_at_the_start_in_one_line(
    folder: Path, name: str, text: str | bytes, message: str
) -> None:
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError) as error:
        Writer(settings(mailer_templates=folder)).check()
    assert str(error.value).startswith(f"{folder / name}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_folder_of_templates_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mailer\.templates = .*: no such folder"):
        Writer(settings(mailer_templates=tmp_path / "gone")).check()


@pytest.mark.parametrize("kind", KINDS)
def test_our_own_templates_meet_the_same_rules(folder: Path, kind: str) -> None:
    for name in (f"{kind}.txt", "layout.html"):
        (folder / name).write_bytes((SHIPPED / name).read_bytes())
    Writer(settings(mailer_templates=folder)).check()
    assert written(kind, mailer_templates=folder).get_body(("html",)) is not None


# --- links ---


@pytest.mark.parametrize(
    ("base_url", "target", "expected"),
    [
        (
            "https://a.example",
            "/confirm-email",
            "https://a.example/confirm-email?token=t%2F%26&email=a%2Bb%40x.example",
        ),
        ("https://a.example", "/x?y=1", "https://a.example/x?y=1&token=t%2F%26&email=a%2Bb%40x.example"),
        (
            "https://a.example",
            "https://app.example/c",
            "https://app.example/c?token=t%2F%26&email=a%2Bb%40x.example",
        ),
        (
            "https://a.example",
            "https://app.example/?x=1#/reset",
            "https://app.example/?x=1#/reset?token=t%2F%26&email=a%2Bb%40x.example",
        ),
        ("https://a.example", "/#/c?y=1", "https://a.example/#/c?y=1&token=t%2F%26&email=a%2Bb%40x.example"),
    ],
)
def test_a_link_is_built_from_the_configuration(base_url: str, target: str, expected: str) -> None:
    assert link_to(settings(base_url=base_url), target, "t/&", "a+b@x.example") == expected


# --- the folder ---


def test_without_a_mail_server_an_email_is_written_to_a_private_folder(tmp_path: Path) -> None:
    sender = sender_for(settings(tmp_path / "data"))
    assert isinstance(sender, FolderSender)
    assert sender.folder == tmp_path / "data" / "mail"
    answer = sender(written(), TO, 7)
    path = tmp_path / "data" / "mail" / "7.eml"
    assert answer == f"written to {path}"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["7.eml"]
    email = mail_folder.read(path)
    assert (email.number, email.to, email.subject) == (7, TO, "Confirm your email address for Users")
    assert link_in(" ".join(email.parts)).token == "abc-_123"


def test_an_email_file_is_complete_or_missing_even_after_a_crash(tmp_path: Path) -> None:
    sender = FolderSender(tmp_path / "mail")
    sender(written(), TO, 1)
    before = (tmp_path / "mail" / "1.eml").read_bytes()
    (tmp_path / "mail" / "1.tmp").write_bytes(b"half a let")
    assert [email.number for email in mail_folder.newest_emails(tmp_path / "mail")] == [1]
    sender(written("reset"), TO, 1)
    assert [path.name for path in (tmp_path / "mail").iterdir()] == ["1.eml"]
    assert (tmp_path / "mail" / "1.eml").read_bytes() != before


def test_an_email_that_is_written_again_takes_its_own_place_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "1.eml").write_text("Message-ID: <of-another-database@example.com>\n")
    (tmp_path / "1-2.eml").write_bytes(b"\xff")
    for _ in range(2):
        assert FolderSender(tmp_path)(written(), TO, 1) == f"written to {tmp_path / '1-3.eml'}"
    (tmp_path / "1.eml").unlink()
    assert mail_folder.find(tmp_path, 1, "0123456789abcdef") == tmp_path / "1-3.eml"
    assert mail_folder.find(tmp_path, 1, "of-another-database") is None
    assert {email.number for email in mail_folder.newest_emails(tmp_path)} == {1}


def test_a_test_email_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "0.eml").write_text("Message-ID: <before@example.com>\n")
    FolderSender(tmp_path)(written(), TO, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["0.eml"]


def test_an_unwritable_folder_keeps_the_email_waiting(tmp_path: Path) -> None:
    (tmp_path / "mail").write_text("in the way")
    with pytest.raises(Undeliverable) as error:
        FolderSender(tmp_path / "mail")(written(), TO, 1)
    assert not error.value.permanent
    assert "File exists" in str(error.value)


def test_a_full_disk_leaves_no_part_of_an_email(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Undeliverable, match="No space left on device"):
        FolderSender(tmp_path / "mail")(written(), TO, 1)
    assert not list((tmp_path / "mail").iterdir())


def test_newest_emails_come_first_and_other_files_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = FolderSender(tmp_path)
    for number, second in ((2, 1), (9, 2), (10, 2), (1, 3)):
        sender(written(), TO, number)
        os.utime(tmp_path / f"{number}.eml", (second, second))
    (tmp_path / "note.eml").write_text("mine")
    assert [email.number for email in mail_folder.newest_emails(tmp_path)] == [1, 10, 9, 2]
    assert mail_folder.newest_emails(tmp_path / "nowhere") == []
    monkeypatch.setattr(mail_folder, "MOST_SHOWN", 1)
    assert [email.number for email in mail_folder.newest_emails(tmp_path)] == [1]


# --- SMTP ---


def test_a_plain_server_accepts_an_email_and_its_reply_is_returned() -> None:
    with smtp_server(Postbox(answers={"DATA": "250 2.0.0 queued as 4711"})) as box:
        assert sending(box.port)(written(), TO, 1) == "250 2.0.0 queued as 4711"
    (email,) = box.received
    assert (email.sender, email.recipients, email.over_tls) == ("no-reply@accounts.example.com", [TO], False)
    assert email.text() == part(written(), "plain").replace("\n", "\r\n")
    assert email.link.token == "abc-_123"
    assert Tags(email.text("html")).links == [LINK]


def test_the_envelope_has_the_bare_sender() -> None:
    with smtp_server() as box:
        sender = sending(box.port, mailer_from="Das Büro <post@example.org>")
        sender(Writer(sender.settings).write("test", TO, message_id="1", date=NOW), TO, 1)
    assert box.received[0].sender == "post@example.org"


def test_starttls_is_used_where_it_is_offered(trusted: Certificates) -> None:
    with smtp_server(starttls=trusted.server()) as box:
        for host in ("127.0.0.1", "localhost"):
            sending(box.port, mailer_host=host)(written(), TO, 1)
    assert [email.over_tls for email in box.received] == [True, True]


def test_tls_from_the_start(trusted: Certificates) -> None:
    with smtp_server(tls=trusted.server()) as box:
        sending(box.port, mailer_secure=True)(written(), TO, 1)
    assert [email.over_tls for email in box.received] == [True]


@pytest.mark.parametrize("secure", [True, False])
@pytest.mark.parametrize(
    ("names", "more", "message"),
    [
        ((), {"trusted": False}, "certificate verify failed"),
        ((), {"days": -2}, "certificate has expired"),
        (("mail.example.com",), {}, "mismatch"),
    ],
)
def test_a_server_with_a_bad_certificate_gets_no_email_and_no_password(
    trusted: Certificates, secure: bool, names: tuple[str, ...], more: dict[str, Any], message: str
) -> None:
    context = trusted.server(*names, **more)
    box = Postbox(login=("ada", "secret"))
    with smtp_server(box, **{"tls" if secure else "starttls": context}):
        error = refused(sending(box.port, mailer_secure=secure, mailer_user="ada", mailer_password="secret"))
    assert message in str(error).lower()
    assert not error.permanent
    assert box.received == []


def test_an_unknown_certificate_authority_is_not_trusted(certificates: Certificates) -> None:
    with smtp_server(tls=certificates.server()) as box:
        assert "certificate verify failed" in str(refused(sending(box.port, mailer_secure=True)))


@pytest.mark.parametrize("secure", [True, False])
def test_a_login_goes_over_tls(trusted: Certificates, secure: bool) -> None:
    box = Postbox(login=("ada", "secret"))
    with smtp_server(box, **{"tls" if secure else "starttls": trusted.server()}):
        sending(box.port, mailer_secure=secure, mailer_user="ada", mailer_password="secret")(written(), TO, 1)
    assert [(email.login, email.over_tls) for email in box.received] == [("ada", True)]


def test_a_login_to_another_host_needs_starttls() -> None:
    # A resolver takes 127.1 for 127.0.0.1, but is_loopback takes it for a name of another host.
    seen: list[bytes] = []

    def listening(connection: socket.socket) -> None:
        with connection.makefile("rb") as lines:
            connection.sendall(b"220 mail\r\n")
            seen.append(lines.readline())
            connection.sendall(b"250-mail\r\n250 AUTH PLAIN LOGIN\r\n")
            seen.extend(lines)

    with scripted_server(listening) as port:
        error = refused(sending(port, mailer_host="127.1", mailer_user="ada", mailer_password="secret"))
    assert str(error) == "127.1 offers no STARTTLS, and mailer.auth is never sent unencrypted"
    assert not error.permanent
    assert seen == [b"ehlo accounts.example.com\r\n"]


@pytest.mark.parametrize("mechanism", [b"PLAIN", b"LOGIN"])
def test_a_password_repeated_by_the_server_is_masked(mechanism: bytes) -> None:
    def listening(connection: socket.socket) -> None:
        with connection.makefile("rb") as lines:
            connection.sendall(b"220 mail\r\n")
            lines.readline()
            connection.sendall(b"250-mail\r\n250 AUTH " + mechanism + b"\r\n")
            heard = lines.readline().strip()
            if mechanism == b"LOGIN":
                connection.sendall(b"334 UGFzc3dvcmQ6\r\n")
                heard = lines.readline().strip()
            connection.sendall(b"535 not you: s3cretpass, as " + heard + b"\r\n")
            for _ in lines:
                connection.sendall(b"221 bye\r\n")

    for ask in (
        lambda sender: sender.probe().error,
        lambda sender: str(refused(sender)),
    ):
        with scripted_server(listening) as port:
            reply = ask(sending(port, mailer_user="ada", mailer_password="s3cretpass"))
        assert reply.startswith("535 not you: ***, as ")
        for secret in ("s3cretpass", "czNjcmV0cGFzcw", "AGFkYQBzM2NyZXRwYXNz"):
            assert secret not in reply


def test_a_login_to_another_host_with_starttls_is_sent(trusted: Certificates) -> None:
    box = Postbox(login=("ada", "secret"))
    with smtp_server(box, starttls=trusted.server("127.1")):
        sending(box.port, mailer_host="127.1", mailer_user="ada", mailer_password="secret")(written(), TO, 1)
    assert [(email.login, email.over_tls) for email in box.received] == [("ada", True)]


def test_a_login_on_this_machine_needs_no_tls() -> None:
    box = Postbox(login=("ada", "secret"))
    with smtp_server(box):
        sending(box.port, mailer_user="ada", mailer_password="secret")(written(), TO, 1)
    assert [(email.login, email.over_tls) for email in box.received] == [("ada", False)]


def test_a_user_without_a_password_sends_nothing_without_a_login() -> None:
    box = Postbox()
    with smtp_server(box):
        error = refused(sending(box.port, mailer_user="ada"))
    assert str(error) == "mailer.auth.pass is missing: set USERS_MAILER_PASS"
    assert not error.permanent
    assert box.received == []


@pytest.mark.parametrize("password", ["wrong", "wröng"])
def test_a_refused_login_keeps_the_email_waiting(trusted: Certificates, password: str) -> None:
    box = Postbox(login=("ada", "secret"))
    with smtp_server(box, starttls=trusted.server()):
        error = refused(sending(box.port, mailer_user="ada", mailer_password=password))
    assert not error.permanent
    assert password not in str(error)
    assert box.received == []


@pytest.mark.parametrize(
    ("step", "answer", "permanent"),
    [
        ("EHLO", "421 too busy", False),
        ("MAIL", "451 try later", False),
        ("MAIL", "550 we do not like you", False),  # a refused sender is mended by the operator
        ("RCPT", "450 greylisted", False),
        ("RCPT", "421 going down", False),
        ("RCPT", "550 no such user", True),
        ("DATA", "452 no space", False),
        ("DATA", "554 spam", True),
    ],
)
def test_a_refusal_is_temporary_or_permanent(step: str, answer: str, permanent: bool) -> None:
    with smtp_server(Postbox(answers={step: answer})) as box:
        error = refused(sending(box.port))
    assert (str(error), error.permanent) == (answer, permanent)
    assert not error.perhaps_taken
    assert box.received == []


@pytest.mark.parametrize("greeting", [b"554 go away\r\n", b"421 too busy\r\n", b"hello\r\n", b"\r\n"])
def test_a_server_without_a_greeting_is_tried_again(greeting: bytes) -> None:
    with scripted_server(lambda connection: connection.sendall(greeting)) as port:
        error = refused(sending(port))
    assert str(error).startswith(f"127.0.0.1:{port}: ")
    assert not error.permanent


def test_the_wrong_kind_of_tls_is_named_with_its_mend(trusted: Certificates) -> None:
    with smtp_server(tls=trusted.server()) as box:
        assert "needs mailer.secure = true" in str(refused(sending(box.port, step=0.3)))
    with smtp_server() as box:
        assert "mailer.secure = false asks for STARTTLS" in str(
            refused(sending(box.port, mailer_secure=True))
        )


def test_a_line_that_begins_with_a_dot_arrives_as_it_is() -> None:
    message = written()
    body = message.get_body(("plain",))
    assert body is not None
    body.set_content("first\n.\n..two\n.last\n")
    with smtp_server() as box:
        sending(box.port)(message, TO, 1)
    assert box.received[0].text().splitlines() == ["first", ".", "..two", ".last"]


@pytest.mark.parametrize("step", [GREETING, EHLO, MAIL, RCPT, DATA, END])
def test_a_hanging_server_is_abandoned_after_the_limit_of_one_step(step: int) -> None:
    with scripted_server(until(step, hang)) as port:
        began = time.monotonic()
        error = refused(sending(port, step=0.3, whole=8, answer=0.3))
        assert 0.25 < time.monotonic() - began < 4
    assert not error.permanent
    assert error.perhaps_taken == (step == END)


@pytest.mark.parametrize("step", [GREETING, EHLO, MAIL, RCPT, DATA, END])
def test_a_dripping_server_is_abandoned_after_the_overall_limit(step: int) -> None:
    with scripted_server(until(step, drip)) as port:
        began = time.monotonic()
        error = refused(sending(port, step=8, whole=0.4, answer=0.4))
        assert 0.3 < time.monotonic() - began < 4
    assert not error.permanent


def test_a_server_dripping_its_handshake_is_abandoned_as_well() -> None:
    with scripted_server(drip) as port:
        began = time.monotonic()
        error = refused(sending(port, step=0.5, whole=1, mailer_secure=True))
        assert time.monotonic() - began < 4
    assert not error.permanent


@pytest.mark.parametrize("step", [GREETING, EHLO, MAIL, RCPT, DATA, END])
def test_a_server_that_closes_during_an_email_is_tried_again(step: int) -> None:
    with scripted_server(until(step, lambda connection: connection.shutdown(socket.SHUT_RDWR))) as port:
        error = refused(sending(port))
    assert not error.permanent
    assert error.perhaps_taken == (step == END)


def test_a_server_that_hangs_after_the_email_has_accepted_it() -> None:
    with scripted_server(until(END + 1, hang)) as port:
        began = time.monotonic()
        assert sending(port, step=5)(written(), TO, 1) == "250 taken"
        assert time.monotonic() - began < 3


def test_a_server_may_examine_an_email_for_longer_than_one_step() -> None:
    def examine(connection: socket.socket) -> None:
        time.sleep(1)
        connection.sendall(b"250 taken\r\n")
        hang(connection)

    with scripted_server(until(END, examine)) as port:
        assert sending(port, step=0.5)(written(), TO, 1) == "250 taken"


def test_the_limits_are_ten_seconds_a_step_thirty_before_the_email_and_a_minute_for_it() -> None:
    sender = sender_for(settings(mailer_host="mail.example.com"))
    assert isinstance(sender, SmtpSender)
    assert (sender.step, sender.whole, sender.answer) == (10, 30, 60)


@pytest.mark.parametrize(
    "host", ["no-such-host.invalid", "a" * 300 + ".example", "ü..example", "exa mple.com", "[::1"]
)
def test_an_invalid_host_is_tried_again(host: str) -> None:
    assert not refused(sending(25, mailer_host=host)).permanent


def test_a_closed_port_is_tried_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    error = refused(sending(port))
    assert str(error) == f"127.0.0.1:{port}: Connection refused"
    assert not error.permanent


def test_a_long_reply_is_cut() -> None:
    answer = b"".join(b"550-%d %s\r\n" % (number, b"x" * 400) for number in range(200)) + b"550 end\r\n"
    with scripted_server(until(RCPT, lambda connection: connection.sendall(answer))) as port:
        error = refused(sending(port))
    assert error.permanent
    assert len(str(error)) < 600
    assert "\n" not in str(error)


def test_sending_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    with smtp_server() as box:
        sending(box.port)(written(), TO, 1)
        refused(sending(1))
    until_ = time.monotonic() + 5
    while [thread for thread in threading.enumerate() if thread not in before]:
        assert time.monotonic() < until_
        time.sleep(0.02)


LANGUAGES = sorted(path.name for path in writer.TEMPLATES.iterdir() if path.is_dir())


def test_more_than_one_language_is_shipped() -> None:
    assert LANGUAGES == ["de", "es", "fr"]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("english", sorted(writer.TEMPLATES.glob("*.txt")), ids=lambda path: path.stem)
def test_every_email_is_translated_with_the_same_placeholders(language: str, english: Path) -> None:
    translated = (writer.TEMPLATES / language / english.name).read_text("utf-8")
    original = english.read_text("utf-8")
    heads = [text.partition("\n\n")[0].splitlines() for text in (original, translated)]
    assert [line.partition(":")[0] for line in heads[1]] == [line.partition(":")[0] for line in heads[0]]
    assert set(Template(translated).get_identifiers()) == set(Template(original).get_identifiers())
    assert translated != original


@pytest.mark.parametrize("locale", ["en", *LANGUAGES])
def test_a_subject_is_short_enough_for_a_phone(locale: str) -> None:
    """In two lines of it, with a name of some ten characters."""
    subjects = [str(written(kind, locale=locale, brand="B")["Subject"]) for kind in KINDS]
    assert max(map(len, subjects)) <= 60, max(subjects, key=len)


@pytest.mark.parametrize("locale", ["en", "de", "es", "fr"])
def test_an_email_says_a_date_as_its_language_does(locale: str) -> None:
    dates = {
        "en": "2026-11-21 08:22 UTC",
        "de": "21.11.2026 um 08:22 UTC",
        "es": "21/11/2026 a las 08:22 UTC",
        "fr": "21/11/2026 à 08:22 UTC",
    }
    text = " ".join(part(written("deletion", locale=locale), "plain").split())
    assert dates[locale] in text


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ('{"lang": "fr-CA"}', "fr"),
        ('{"lang": "DE"}', "de"),
        ('{"lang": "it"}', "en"),
        ("{}", "en"),
        ("[]", "en"),
        ("{", "en"),
        ('{"lang": "../de"}', "en"),
    ],
)
def test_emails_have_the_language_of_an_operators_own_catalogue(
    tmp_path: Path, text: str, language: str
) -> None:
    file = tmp_path / f"own-{language}.json"  # each is read once, and folders of tests may have the same name
    file.write_text(text)
    assert f'<html lang="{language}">' in part(written(locale=str(file)), "html")


def test_the_spaces_of_french_punctuation_stay_in_a_subject() -> None:
    assert str(written("confirm-deletion", locale="fr")["Subject"]) == "Supprimer votre compte Users\u202f?"


def test_emails_follow_the_locale_and_the_accent_of_the_pages() -> None:
    letter = Writer(settings(locale="de", accent="#ffcc00")).write(
        "reset",
        "ada@example.com",
        link="https://example.com/x",
        lifetime=timedelta(hours=1),
        message_id="1",
        date=datetime.now(UTC),
    )
    assert "Passwort" in str(letter["Subject"])
    html_part = letter.get_body(("html",))
    assert html_part is not None
    html = html_part.get_content()
    assert '<html lang="de">' in html
    assert "background:#ffcc00;color:#000000" in html
    assert ".button {" in html  # the style sheet colours unbranded buttons in dark mode
    assert 'class="button"' not in html
