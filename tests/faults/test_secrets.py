"""After all journeys nothing that opens anything lies about: not in the database, its log or a backup, not in what the
daemon writes down, what commands print unasked, in exports, or where the system shows processes."""

import base64
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qs, quote, quote_plus, urlsplit

import pytest
from support.commands import Command
from support.daemons import serving, wait_for
from support.faults import LONG
from support.hostile import hostile
from support.postbox import Link, Postbox, smtp_server
from support.web import Client

from usersctl.clock import utc_now
from usersctl.factors import totp

GO, BACK = "/api/users/auth/oauth/redirect", "/api/users/auth/oauth/callback"
# Unique text, with characters that are escaped in JSON, in a URL and in a header.
PLANTED = {
    name: f'planted "{name}" /+&é {number:04}'
    for number, name in enumerate(
        ("first", "second", "third", "wrong", "typed", "operator", "file", "client", "mailer", "assert", "code", "access")
    )
}  # fmt: skip
# These two allow fewer characters: the mail library sends ASCII only, and the other is part of a header.
PLANTED |= {"mailer": 'planted "mailer" /+& 0008', "access": "planted.access~0011"}
KEPT_IN = ("secret.txt", "password.txt")  # where the operator put them


def spellings(secret: str) -> set[bytes]:
    raw = secret.encode()
    escaped = secret.replace('"', '\\"')
    return {
        raw, raw.hex().encode(), base64.b64encode(raw), base64.urlsafe_b64encode(raw).rstrip(b"="), quote(secret).encode(),
        quote(secret, safe="").encode(), quote_plus(secret).encode(), escaped.encode(), escaped.encode("unicode_escape").replace(b"\\xe9", b"\\u00e9"),
    }  # fmt: skip


class Journeys:
    """Does everything that involves a password or a token, and returns all of these secrets."""

    def __init__(self, usersctl: Command, box: Postbox, client: Client) -> None:
        self.usersctl = usersctl
        self.box = box
        self.client = client
        self.opened: set[str] = set()

    def letter(self, page: str, email: str, number: int = 1) -> Link:
        """The link with this number of those that lead to this page."""

        def matching() -> list[Link]:
            links = [letter.link for letter in list(self.box.received) if letter.recipients == [email]]
            return [letter for letter in links if letter.path == page][number - 1 :]

        link: Link = wait_for(matching)[0]
        return link

    def keep(self) -> None:
        self.opened |= set(self.client.cookies.values())

    def by_letters(self) -> None:
        email, client = "ada@example.com", self.client
        person = {"email": email, "name": "Ada", "password": PLANTED["first"]}
        assert client.post("/api/users/register", person).status == 200
        link = self.letter("/confirm-email", email)
        assert client.get(f"/api/users/confirm-email?token={link.token}&email={quote(email)}").status == 200
        assert client.login(email, PLANTED["wrong"]).status == 401
        assert client.login(PLANTED["typed"], PLANTED["first"]).status == 401  # the wrong field
        assert client.login(email, PLANTED["first"], rememberMe=True).status == 200
        self.keep()
        change = {"currentPassword": PLANTED["first"], "newPassword": PLANTED["second"], "newPasswordConfirmation": PLANTED["second"]}  # fmt: skip
        assert client.patch("/api/users/password", change).status == 200
        self.keep()
        assert client.get(f"/api/users/me?token={client.cookies['auth_token']}").status == 200
        assert client.get(f"/no/such/{quote('page?token=')}{client.cookies['auth_token']}").status in (
            401,
            404,
        )
        assert client.post("/api/users/password/forgot", {"email": email}).status == 200
        link = self.letter("/reset-password", email)
        assert client.get(f"/reset-password?token={link.token}&email={quote(email)}").status == 200
        new = {"password": PLANTED["third"], "password_confirmation": PLANTED["third"]}
        assert (
            client.post("/api/users/password/reset", {"token": link.token, "email": email, **new}).status
            == 200
        )
        link = self.letter("/not-me", email, 2)
        assert client.post("/api/users/not-me", {"token": link.token, "email": email}).status == 200
        self.opened |= {email.link.token for email in self.box.received}

    def by_provider(self) -> None:
        gone = self.client.get(GO)
        self.keep()
        state = parse_qs(urlsplit(gone.header("Location") or "").query)["state"][0]
        back = self.client.get(f"{BACK}?code={quote(PLANTED['code'])}&state={state}")
        assert (back.status, back.header("Location")) == (302, "/"), back.headers
        self.keep()
        self.opened |= {state}
        assert self.client.get("/api/users/auth/verify").status == 200

    def by_command(self) -> None:
        ok, email = self.usersctl.ok, "bea@example.com"
        ok("create", email, "--admin", "--password-stdin", stdin=PLANTED["operator"])
        (self.usersctl.folder / "password.txt").write_text(PLANTED["file"])
        ok("set-password", email, "--password-file", self.usersctl.folder / "password.txt")
        self.opened |= {ok("create", "cy@example.com", "--generate").stdout.strip()}
        self.opened |= {ok("token", "create", email, "--expires", "90d").stdout.strip()}
        reset = ok("link", "reset", email).stdout.strip()
        self.opened |= {parse_qs(urlsplit(reset).query)["token"][0]}

    def by_factors(self) -> None:
        """Of the account that the command made."""
        client, email = self.client, "bea@example.com"
        assert client.login(email, PLANTED["file"]).status == 200
        self.keep()
        secret = client.post("/api/users/me/totp").json["secret"]
        code = totp.code_at(base64.b32decode(secret), totp.step_at(utc_now()))
        codes = client.post("/api/users/me/totp/confirm", {"code": code}).json["recoveryCodes"]
        assert client.login(email, PLANTED["file"]).message == "Second factor required"
        self.keep()
        finished = client.post("/api/users/session/second-factor", {"recoveryCode": codes[0].upper()})
        assert finished.status == 200
        self.keep()
        self.opened |= {
            secret,
            secret.lower(),
            *codes,
            *(code.replace("-", "") for code in codes),
            codes[0].upper(),
        }


def told_by_commands(usersctl: Command, folder: Path) -> bytes:
    words = (
        ["list", "--json"], ["show", "ada@example.com", "--json"], ["token", "list", "--json"], ["mail", "list", "--json"], ["config", "show"],
        ["export", "-", "--format", "jsonl"], ["db", "status", "--json"], ["why", "ada@example.com"], ["doctor", "--json"],
        ["audit", "--json"], ["mail", "show", "1"], ["config", "show", "--json", "--origin"], ["export", "-", "--with-hashes"], ["export", "-", "--as-state"],
        ["db", "backup", str(folder / "backup.db")],
    )  # fmt: skip
    results = {tuple(line): usersctl(*line) for line in (words if LONG else words[-5:])}
    for line, result in results.items():  # the doctor warns of the sender that nobody set
        assert result.code == (7 if line[0] == "doctor" else 0), (line, result)
    return "\n".join(line.stdout + line.stderr for line in results.values()).encode()


def processes(daemon: int) -> bytes:
    """Everything that a caller without a session, or the same user, can see."""
    return b"\n".join(Path(f"/proc/{daemon}/{name}").read_bytes() for name in ("cmdline", "environ", "comm"))


@pytest.mark.slow
def test_no_secret_is_stored_or_logged_after_all_journeys(usersctl: Command, tmp_path: Path) -> None:
    with hostile() as provider, smtp_server(Postbox(login=("postman", PLANTED["mailer"]))) as box:
        provider.token["access_token"] = PLANTED["access"]
        provider.profile |= {"sub": "77", "email": "dora@example.com"}
        env = {}
        for name, variable in (("client", "OAUTH_CLIENT_SECRET"), ("mailer", "MAILER_PASS"), ("assert", "ASSERTION_SECRET")):  # fmt: skip
            file = usersctl.folder / name / "secret.txt"
            file.parent.mkdir()
            file.write_text(PLANTED[name] * 3 if name == "assert" else PLANTED[name])
            file.chmod(0o600)
            env[f"USERS_{variable}_FILE"] = str(file)
        usersctl.env |= env
        usersctl.configure(
            f'[auth]\nwhitelist = ["/register"]\n[auth.oauth]\nclientId = "us"\nissuer = "{provider.url}"\n'
            f'allowAutoRegistration = true\n[mailer]\nhost = "127.0.0.1"\nport = {box.port}\nauth.user = "postman"\n'
            f"[passwordHashing]\nrounds = 10\n[limits]\nenabled = false\n"
        )
        with serving(usersctl) as daemon:
            journeys = Journeys(usersctl, box, daemon.client())
            journeys.by_letters()
            journeys.by_provider()
            journeys.by_command()
            journeys.by_factors()
            assert len(journeys.opened) > 10
            output = told_by_commands(usersctl, tmp_path)
            shown = processes(daemon.process.pid)
            places = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file() and file.name not in KEPT_IN}  # fmt: skip
    names = {file.name for file in places}
    of_database = {"users.db", "users.db-wal"} if isinstance(usersctl.database, Path) else set()
    assert {*of_database, "backup.db", daemon.file.name} <= names
    with closing(sqlite3.connect(tmp_path / "backup.db")) as backup:
        places[Path("all rows of the backup")] = "\n".join(backup.iterdump()).encode()
    places |= {Path("what commands told"): output, Path("the list of processes"): shown}
    for secret in {*PLANTED.values(), *journeys.opened}:
        for spelling in spellings(secret):
            assert not [file.name for file, data in places.items() if spelling in data], (secret, spelling)


def test_the_search_finds_a_secret_that_is_there() -> None:
    for secret in PLANTED.values():
        for spelled in (secret, quote(secret), secret.replace('"', '\\"')):
            assert any(spelling in spelled.encode() for spelling in spellings(secret))
