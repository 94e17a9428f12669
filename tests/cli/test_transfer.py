"""import: formats, broken rows, conflicts, passwords and hashes. For export see test_export.py."""

import fcntl
import gzip
import io
import json
import os
import signal
import struct
import subprocess
import termios
import zipfile
from pathlib import Path
from typing import IO

import bcrypt
import pytest
from support import tables
from support.commands import HASH, PASSWORD, Command
from support.daemons import wait_for
from support.hashes import PHRASE, of_packages


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>" * 100)
    return file.getvalue()


PEOPLE = [
    {"email": "ada@example.com", "name": "Ada", "role": "admin", "password_hash": HASH},
    {"email": "eve@example.com", "active": False},
]


# --- forms ---


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.csv", f"email,name,role,active,password_hash\nada@example.com,Ada,admin,,{HASH}\neve@example.com,,,false,\n"),
        ("p.csv", f'\ufeffEMAIL,name,role,active,password_hash\r\nada@example.com,Ada,admin,true,{HASH}\r\n\r\n"eve@example.com",,,no,\r\n'),
        ("p.json", json.dumps(PEOPLE)),
        ("p.json", "\ufeff" + json.dumps(PEOPLE, indent=2)),
        ("p.jsonl", "\n".join(map(json.dumps, PEOPLE))),
        ("p.ndjson", "\r\n\r\n".join(map(json.dumps, PEOPLE)) + "\r\n"),
    ],
)  # fmt: skip
def test_every_format_imports_the_same_accounts(usersctl: Command, name: str, content: str) -> None:
    done = usersctl.ok("import", usersctl.put(name, content))
    assert done.stdout == "Imported: 2 created, 0 updated, 0 skipped\n"
    assert done.stderr == (
        "Note: 1 new admin\nNew accounts without a password: 1; their owners set one through a reset email\n"
    )
    ada, eve = usersctl.ok("list", "--json").json
    assert (ada["name"], ada["role"], ada["active"]) == ("Ada", "admin", True)
    assert (eve["name"], eve["role"], eve["active"]) == ("eve", "user", False)
    assert usersctl.can_log_in("ada@example.com")


def test_standard_input_is_read_as_csv_by_default(usersctl: Command) -> None:
    assert usersctl.ok("import", "-", stdin="email\nada@example.com\n", env={}).code == 0
    done = usersctl.ok("import", "-", "--format", "jsonl", "--json", stdin='{"email": "eve@example.com"}')
    assert done.json == {
        "created": 1,
        "updated": 0,
        "unchanged": 0,
        "skipped": 0,
        "left_out": 0,
        "rows": 1,
        "without_password": 1,
        "foreign_hashes": {},
        "invited": 0,
        "admins": 0,
        "linked": 0,
        "repeated": 0,
        "overdue": 0,
        "notes": [],
        "dry_run": False,
    }
    usersctl.ok("import", "-", "--format", "json", stdin='[{"email": "grace@example.com"}]')
    assert len(usersctl.emails()) == 3


def test_an_unknown_file_format_is_refused(usersctl: Command) -> None:
    done = usersctl("import", usersctl.put("people.txt", "email\n"))
    assert done.code == 2
    assert "--format" in done.stderr
    assert usersctl("import", usersctl.folder / "nowhere.csv").code == 2
    assert "Is a directory" in usersctl("import", usersctl.folder, "--format", "csv").stderr


def test_an_empty_file_imports_nothing(usersctl: Command) -> None:
    for form, nothing in (("csv", "email\n"), ("json", "[]"), ("jsonl", "")):
        done = usersctl.ok("import", "-", "--format", form, stdin=nothing)
        assert done.stdout.startswith("Imported: 0 created")


def test_a_kind_of_file_that_is_not_given_to_from_is_told_how(usersctl: Command) -> None:
    people = usersctl.put("people.csv", "email\nada@example.com\n")
    for words, hint in (
        ((f"csv:{people}",), f"use: --from csv:{people}"),
        (("--from", "csv", people), f"with a colon between them: --from csv:{people}"),
        (("--from", "csv", "my people.csv"), "with a colon between them: --from 'csv:my people.csv'"),
        (("--from", f"csv:{people}", people), "see: usersctl import --help"),
    ):
        assert usersctl("import", *words).stderr.splitlines()[1:] == [f"  {hint}"]


def test_csv_of_another_form_names_the_command_that_reads_it(usersctl: Command) -> None:
    people = usersctl.folder / "my people.csv"
    for rows in (
        "email;name\nada@example.com;Ada",
        "email\tname\nada@example.com\tAda",
        "E-Mail\nada@example.com",
    ):
        people.write_text(f"{rows}\n")
        refused = usersctl("import", people)
        command = f"usersctl import --from 'csv:{people}' --dry-run"
        assert (refused.code, refused.stderr.endswith(f"are read with: {command}\n")) == (2, True)
        assert usersctl.shell(command).stdout.endswith("Would import: 1 created, 0 updated, 0 skipped\n")
    assert "usersctl import --from csv:FILE" in usersctl("import", "-", stdin="email;name\n").stderr


def test_a_spreadsheet_and_a_missing_file_are_named_as_such(usersctl: Command) -> None:
    (usersctl.folder / "people.xlsx").write_bytes(b"PK\x03\x04")
    for words in (("import", usersctl.folder / "people.xlsx"), ("export", usersctl.folder / "new.xlsx")):
        assert "use a file .csv\n" in usersctl(*words).stderr
    for command in ("import", "export"):
        told = usersctl(command, usersctl.put("people.toml", 'name = "people"\n')).stderr
        assert told.endswith("  TOML is written with --as-state, and read by: usersctl apply FILE\n")
    assert "peopel cannot be read: No such file" in usersctl("import", usersctl.folder / "peopel").stderr
    assert "cannot be read: Is a directory" in usersctl("import", usersctl.folder).stderr


@pytest.mark.parametrize("content", ["", "\ufeff", "\n\n"])
def test_csv_without_a_header_is_broken(usersctl: Command, content: str) -> None:
    """As what wrote it leaves it when it fails."""
    file = usersctl.put("people.csv", content)
    for source in (("-",), (file,), ("--from", f"csv:{file}")):
        refused = usersctl("import", *source, stdin=content)
        assert (refused.code, refused.stdout) == (2, ""), refused
        assert "no header: the first line has to name the columns" in refused.stderr


# --- broken rows ---


def test_every_broken_row_is_reported_with_its_line_and_nothing_is_written(usersctl: Command) -> None:
    rows = [
        "email,name,role,active,password,password_hash,created_at",
        "ada@example.com,Ada,,,,,",
        "nonsense,,,,,,",
        '"eve@example.com","two\nlines",,,,,',
        "grace@example.com,G,boss,,,,",
        "grace@example.com,G,,perhaps,,,",
        "grace@example.com,G,,,short,,",
        "grace@example.com,G,,,,$2b$03$" + "a" * 53 + ",",
        "grace@example.com,G,,,,$2b$31$" + "a" * 53 + ",",
        "grace@example.com,G,,,,5f4dcc3b5aa765d61d8327deb882cf99,",
        f"grace@example.com,G,,,{PASSWORD},{HASH},",
        "grace@example.com,G,,,,,last week",
        ",G,,,,,",
        "grace@example.com,G",
        "grace@example.com,\0,,,,,",
        "grace@example.com,\x1b[2J,,,,,",
    ]
    content = "\n".join(rows).encode()
    done = usersctl("import", usersctl.put("p.csv", content))
    assert done.code == 2
    assert done.stdout == ""
    printed = done.stderr.splitlines()
    assert [line.partition(":")[0] for line in printed[:-1]] == [
        f"line {number}" for number in (3, 4, *range(6, 18))
    ]
    assert printed[-1] == "usersctl: 14 rows cannot be imported; nothing was imported"
    assert "\x1b" not in done.stderr
    assert usersctl.emails() == []
    error = usersctl("import", usersctl.folder / "p.csv", "--json").error
    assert (error["code"], len(error["rows"])) == ("invalid", 14)
    assert error["rows"][0] == {"where": "line 3", "message": "Invalid email format: 'nonsense'"}
    time = {"where": "line 13", "message": "created_at is not an ISO 8601 time: 'last week'"}
    assert time in error["rows"]
    assert usersctl("import", usersctl.folder / "p.csv", "--dry-run").code == 2


@pytest.mark.parametrize(
    ("form", "content", "printed"),
    [
        ("csv", "name\nAda\n", "no column email"),
        ("csv", "email;name\nada@example.com;Ada\n", "separated by commas"),
        ("csv", "email,name,email\n", "stands twice"),
        ("csv", "ada@example.com,,\n", "line 1: two columns have no name"),
        ("csv", "email,shoe size\nada@example.com,41\n", "line 1: unknown column 'shoe size'"),
        ("csv", 'email\n"ada@example.com', "line 2: not CSV"),
        ("csv", 'email\n"ada"@example.com\n', "line 2: not CSV"),
        ("csv", "email,name\nada@example.com," + "n" * 200_000, "line 2: not CSV"),
        ("csv", "email\n".encode("utf-16"), "is not UTF-8"),
        ("csv", "email,name\nada@example.com\n", "line 2: 1 field instead of 2"),
        ("csv", "email\nada@example.com,Ada\n", "line 2: 2 fields instead of 1"),
        ("csv", "email,name\n\n" + "," * 1_100_000, "line 3: longer than 1048576 characters"),
        ("csv", "email" + "," * 1_100_000, "line 1: longer than 1048576 characters"),
        (
            "jsonl",
            '{"email": "a@example.com"}\n\n' + "[" * 1_100_000,
            "line 3: longer than 1048576 characters",
        ),
        ("json", "{", "not JSON"),
        ("json", '{"email": "ada@example.com"}', "not a JSON array"),
        ("json", '{"users": []}', "jq .users FILE"),
        ("json", '{"email": "a@example.com"}\n{"email": "b@example.com"}', "--format jsonl"),
        ("json", "[" * 100_000, "not JSON"),
        ("json", "[1" + "0" * 5000 + "]", "not JSON"),
        ("json", '["ada@example.com"]', "entry 1: not a JSON object"),
        ("json", '[{"email": "a@example.com"}, {"email": 7}]', "entry 2: email must be a string"),
        ("jsonl", '{"email": "a@example.com"}\nnonsense\n', "line 2: not JSON"),
        ("jsonl", '{"email": "a@example.com", "email": "b@example.com"}', "stands twice"),
        ("jsonl", '{"email": "a@example.com", "\\u001b[2J": 1}', "unknown column '\\x1b[2J'"),
        ("jsonl", '{"email": "a@example.com", "name": "\\ud800"}', "line 1: name is not valid text"),
        ("jsonl", '{"email": "a@example.com", "oauth_id": "1\\r2"}', "line 1: oauth_id is not valid text"),
        ("csv", "email,profile_picture\na@example.com,a\x1bb\n", "line 2: profile_picture is not valid text"),
        (
            "csv",
            "email,profile_picture\na@example.com,javascript:alert(1)\n",
            "line 2: profile_picture 'javascript:",
        ),
        (
            "jsonl",
            '{"email": "a@example.com", "profile_picture": "//x/a.png"}',
            "line 1: profile_picture '//x/a.png'",
        ),
        ("jsonl", '{"email": "a@example.com", "name": NaN}', "line 1: name must be a string"),
        ("jsonl", '{"email": "a@example.com", "active": 2}', "line 1: active must be true or false"),
        ("jsonl", "[" * 100_000, "line 1: not JSON"),
    ],
)
def test_a_file_without_accounts_is_refused(
    usersctl: Command, form: str, content: str | bytes, printed: str
) -> None:
    done = usersctl("import", "-", "--format", form, stdin=content)
    assert done.code == 2
    assert printed in done.stderr
    assert usersctl.emails() == []


def test_the_scheme_of_a_picture_in_a_file_may_be_in_capitals(usersctl: Command) -> None:
    usersctl.ok("import", "-", stdin="email,profile_picture\na@example.com,HTTPS://x.example/a.png\n")
    assert usersctl.ok("show", "a@example.com", "--json").json["profile_picture"] == "HTTPS://x.example/a.png"


@pytest.mark.parametrize("form", ["csv", "json", "jsonl"])
def test_an_endless_line_in_a_file_is_refused(usersctl: Command, form: str) -> None:
    # Limited memory, so that a command that reads on does not take the machine's.
    done = usersctl.shell(f"ulimit -v 4000000; usersctl import - --format {form} </dev/zero")
    assert (done.code, done.stdout) == (2, "")
    printed = "use JSON lines" if form == "json" else "line 1: longer than 1048576 characters"
    assert printed in done.stderr
    done = usersctl.shell("ulimit -v 4000000; usersctl import --from csv:/dev/zero")
    assert (done.code, done.stderr) == (2, "usersctl: line 1: longer than 1048576 characters\n")


def test_a_line_of_the_greatest_length_is_read(usersctl: Command) -> None:
    name = "n" * (1024 * 1024 - len('{"email": "ada@example.com", "name": ""}'))
    line = f'{{"email": "ada@example.com", "name": "{name}"}}'
    for end in ("", "\n", "\r\n"):
        done = usersctl("import", "-", "--format", "jsonl", stdin=line + end)
        assert "line 1: Name must have" in done.stderr
    assert "longer than" in usersctl("import", "-", "--format", "jsonl", stdin=f" {line}\n").stderr


@pytest.mark.parametrize("form", ["csv", "json", "jsonl"])
@pytest.mark.parametrize(
    ("encoding", "named"),
    [("latin-1", "latin1"), ("utf-16", "utf16"), ("utf-16-le", "utf16"), ("utf-16-be", "utf16be")],
)
def test_a_file_that_is_not_utf_8_is_refused_once_with_the_way_to_convert_it(
    usersctl: Command, form: str, encoding: str, named: str
) -> None:
    people = [{"email": f"u{number}@example.com", "name": "J\u00fcrgen"} for number in range(100)]
    content = {
        "csv": "email,name\n" + "".join(f"{row['email']},{row['name']}\n" for row in people),
        "json": json.dumps(people, ensure_ascii=False),
        "jsonl": "\n".join(json.dumps(row, ensure_ascii=False) for row in people),
    }[form].encode(encoding)
    file = usersctl.folder / f"the people.{form}"
    file.write_bytes(content)
    done = usersctl("import", file.name)
    assert (done.code, done.stdout) == (2, "")
    line, hint = done.stderr.splitlines()
    assert line.startswith(f"usersctl: {file.name} is not UTF-8: see line ")
    convert = f"iconv -f {named} -t utf8 '{file.name}' > 'the people-utf8.{form}'"
    assert hint == f"  convert it, for example: {convert}"
    assert usersctl.shell(convert).code == 0
    assert usersctl.ok("import", f"the people-utf8.{form}", "--json").json["created"] == 100
    piped = usersctl("import", "-", "--format", form, stdin=content)
    line, hint = piped.stderr.splitlines()
    assert line.startswith("usersctl: standard input is not UTF-8: see line ")
    assert hint == f"  convert it, for example: iconv -f {named} -t utf8"


def test_a_hint_about_a_file_whose_name_begins_with_a_dash_works(usersctl: Command) -> None:
    usersctl.put("-p.csv", "email,name\nada@example.com,Zoë\n".encode("latin-1"))
    refused = usersctl("import", "--format", "csv", "--", "-p.csv")
    convert = refused.stderr.splitlines()[1].partition(": ")[2]
    assert convert == "iconv -f latin1 -t utf8 ./-p.csv > ./-p-utf8.csv"
    assert usersctl.shell(convert).code == 0
    assert usersctl.ok("import", "--", "-p-utf8.csv").stdout.startswith("Imported: 1 created")
    usersctl.put("-backup.db", "no database")
    refused = usersctl("db", "restore", "--yes", "--", "-backup.db")
    assert refused.stderr.splitlines()[-1].endswith("see: usersctl db verify ./-backup.db")
    assert usersctl.shell("usersctl db verify ./-backup.db").code == 7


@pytest.mark.parametrize(
    "packed",
    [
        zipped(),
        b"PK\x03\x04\x14\0\0\0\x08\n",
        gzip.compress(b"email\n"),
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
    ],
    ids=["zip", "zip that begins with ASCII", "gzip", "older spreadsheet"],
)
def test_a_spreadsheet_or_a_packed_file_is_no_text_to_convert(usersctl: Command, packed: bytes) -> None:
    file = usersctl.put("people.csv", packed)
    for source in ((file,), ("--from", f"csv:{file}")):
        done = usersctl("import", *source)
        assert (done.code, done.stdout) == (2, "")
        assert (
            done.stderr.splitlines()[0] == f"usersctl: {file} is no text but a packed file or a spreadsheet"
        )


def test_an_empty_name_counts_as_left_out_in_every_format(usersctl: Command) -> None:
    for number, empty in enumerate(("", " ", "\u3000")):
        usersctl.ok("import", "-", stdin=f"email,name\ncsv{number}@example.com,{empty}\n")
        for form in ("json", "jsonl"):
            row = {"email": f"{form}{number}@example.com", "name": empty}
            content = json.dumps([row] if form == "json" else row)
            usersctl.ok("import", "-", "--format", form, stdin=content)
    users = usersctl.ok("list", "--json").json
    assert len(users) == 9
    assert all(user["name"] == user["email"].partition("@")[0] for user in users)


# --- conflicts ---


def test_a_taken_address_fails_the_import_by_default(usersctl: Command) -> None:
    usersctl.add("ada", role="admin")
    usersctl.ok("token", "create", "1", "--no-expiry")
    people = usersctl.put("p.csv", "email,name,role\nADA@example.com,Ada L,user\neve@example.com,Eve,admin\n")
    done = usersctl("import", people)
    assert done.code == 4
    assert "line 2: ada@example.com is taken by user 1" in done.stderr
    assert "--on-conflict" in done.stderr
    assert usersctl("import", people, "--json").error["code"] == "taken"
    assert usersctl("import", people, "--dry-run").code == 4
    assert usersctl.emails() == ["ada@example.com"]
    done = usersctl.ok("import", people, "--on-conflict", "skip")
    assert done.stdout == "Imported: 1 created, 0 updated, 1 skipped\n"
    done = usersctl.ok("import", people, "--on-conflict", "update")
    assert done.stdout == "Imported: 0 created, 1 updated, 0 skipped, 1 unchanged\n"
    again = usersctl.ok("import", people, "--on-conflict", "update")
    assert again.stdout == "Imported: 0 created, 0 updated, 0 skipped, 2 unchanged\n"
    ada = usersctl.ok("show", "1", "--json").json
    assert (ada["name"], ada["role"]) == ("Ada L", "user")
    assert len(usersctl.ok("token", "list").rows) == 1
    assert usersctl.can_log_in("ada@example.com")


@pytest.mark.parametrize("policy", ["skip", "update"])
def test_the_numbers_of_an_import_add_up_to_its_rows(usersctl: Command, policy: str) -> None:
    usersctl.add("ada", "bob")
    rows = ["ada@example.com,Ada", "bob@example.com,Robert", "eve@example.com,Eve", "eve@example.com,Eve"]
    people = "\n".join(["email,name", *rows])
    done = usersctl.ok("import", "-", "--on-conflict", policy, "--json", stdin=people).json
    counted = {name: done[name] for name in ("created", "updated", "unchanged", "skipped")}
    expected = {"skip": (1, 0, 0, 3), "update": (1, 1, 2, 0)}[policy]
    assert tuple(counted.values()) == expected
    assert sum(counted.values()) == done["rows"] == len(rows)


def test_a_repeated_address_conflicts_with_the_earlier_row(usersctl: Command) -> None:
    usersctl.add("ada")
    done = usersctl("import", "-", stdin="email\neve@example.com\nEVE@example.com\nada@example.com\n")
    assert done.code == 4
    assert "line 3: eve@example.com is taken by an earlier row" in done.stderr
    assert "line 4: ada@example.com is taken by user 1" in done.stderr


OLD_REGISTRATION = {
    "email": "ada@example.com",
    "active": False,
    "confirmed": False,
    "created_at": "2020-01-01",
    "oauth_id": "123",
}


def test_accounts_that_never_confirmed_can_be_imported_again(usersctl: Command) -> None:
    usersctl.ok("import", "-", "--format", "jsonl", stdin=json.dumps(OLD_REGISTRATION))
    before = usersctl.ok("show", "ada@example.com", "--json").json
    for policy, number in (("skip", "skipped"), ("update", "unchanged")):
        again = ("import", "-", "--format", "jsonl", "--json", "--on-conflict", policy)
        assert usersctl.ok(*again, stdin=json.dumps(OLD_REGISTRATION)).json[number] == 1
    assert usersctl.ok("show", "ada@example.com", "--json").json == before
    assert usersctl("import", "-", "--format", "jsonl", stdin=json.dumps(OLD_REGISTRATION)).code == 4

    confirmed = OLD_REGISTRATION | {"active": True, "confirmed": True}
    done = usersctl.ok("import", "-", "--format", "jsonl", "--json", stdin=json.dumps(confirmed)).json
    assert done["created"] == 1  # the lapsed registration yields, and its provider id with it


def test_an_import_tells_of_accounts_that_the_next_cleanup_removes(usersctl: Command) -> None:
    new = {"email": "eve@example.com", "active": False, "confirmed": False}
    people = json.dumps([OLD_REGISTRATION, new, {"email": "bob@example.com", "created_at": "2020-01-01"}])
    importing = ("import", "-", "--format", "json")
    done = usersctl.ok(*importing, "--dry-run", "--json", stdin=people).json
    assert done["overdue"] == 1
    (note,) = done["notes"]
    assert note.startswith("never confirmed, and older than auth.unconfirmedExpiration: 1 new account;")
    usersctl.ok(*importing, stdin=people)
    usersctl.ok("cleanup-tokens")
    assert sorted(usersctl.emails()) == ["bob@example.com", "eve@example.com"]

    usersctl.configure("[auth]\nunconfirmedExpiration = 0\n")
    assert usersctl.ok(*importing, "--on-conflict", "skip", "--json", stdin=people).json["overdue"] == 0


def test_a_repeated_address_is_a_conflict_also_if_the_earlier_row_never_confirmed(usersctl: Command) -> None:
    rows = [OLD_REGISTRATION, {"email": "Ada@example.com", "role": "admin"}]
    done = usersctl("import", "-", "--format", "json", stdin=json.dumps(rows))
    assert (done.code, done.stderr.splitlines()[0]) == (
        4,
        "entry 2: ada@example.com is taken by an earlier row",
    )


def test_rows_that_overwrite_an_earlier_row_are_told(usersctl: Command) -> None:
    usersctl.add("ada")
    importing = ("import", "-", "--on-conflict", "update")
    rows = "email,name\nada@example.com,One\nAda@example.com,Two\neve@example.com,One\neve@example.com,Two\n"
    told = "Note: 2 rows overwrote what an earlier row of the same address said\n"
    assert told in usersctl.ok(*importing, stdin=rows).stderr
    assert usersctl.ok(*importing, "--json", stdin=rows).json["repeated"] == 2
    once = "email,name\nada@example.com,One\neve@example.com,One\neve@example.com,One\n"
    assert usersctl.ok(*importing, "--json", stdin=once).json["repeated"] == 0


def test_an_imported_account_was_last_updated_when_it_was_created(usersctl: Command) -> None:
    rows = "email,created_at,oauth_id\nada@example.com,2020-01-01T00:00:00Z,\neve@example.com,2020-01-01T00:00:00Z,7\n"
    usersctl.ok("import", "-", stdin=rows)
    assert [user["updated_at"] for user in usersctl.ok("list", "--json").json] == [
        "2020-01-01T00:00:00.000Z"
    ] * 2


def test_a_provider_account_of_another_user_is_taken(usersctl: Command) -> None:
    usersctl.ok("import", "-", stdin="email,oauth_id\nada@example.com,123\n")
    for choice in ("fail", "update"):
        done = usersctl("import", "-", "--on-conflict", choice, stdin="email,oauth_id\neve@example.com,123\n")
        assert done.code == 4
        assert "oauth_id is taken by ada@example.com" in done.stderr
        # --on-conflict has no effect on it.
        assert "--on-conflict" not in done.stderr
        assert done.stderr.endswith("or free it with: usersctl update USER --unlink oauth\n")
    twice = "email,oauth_id\nbea@example.com,7\ncy@example.com,7\n"
    assert "oauth_id is taken by bea@example.com" in usersctl("import", "-", stdin=twice).stderr
    both = "email,oauth_id\neve@example.com,123\nada@example.com,123\n"
    assert "choose with --on-conflict skip" in usersctl("import", "-", stdin=both).stderr


def test_an_import_cannot_demote_the_last_admin(usersctl: Command) -> None:
    usersctl.add("ada", role="admin")
    for row in ("ada@example.com,user,true", "ada@example.com,admin,false"):
        people = f"email,role,active\neve@example.com,user,true\n{row}\n"
        done = usersctl("import", "-", "--on-conflict", "update", stdin=people)
        assert done.code == 5
        assert "last active admin" in done.stderr
    assert usersctl.emails() == ["ada@example.com"]


def test_an_import_that_changes_a_password_ends_sessions(usersctl: Command) -> None:
    usersctl.add("ada")
    usersctl.ok("token", "create", "1", "--no-expiry")
    people = f"email,password_hash\nada@example.com,{HASH}\n"
    usersctl.ok("import", "-", "--on-conflict", "update", stdin=people)
    assert usersctl.ok("token", "list").rows == []


def test_an_import_tells_of_new_admins_and_of_links_of_existing_accounts(usersctl: Command) -> None:
    usersctl.add("ada", "bob")
    usersctl.ok("import", "-", stdin="email,role,oauth_id\neve@example.com,admin,1\n")
    header = "email,role,oauth_id\n"
    people = f"{header}ada@example.com,admin,2\nbob@example.com,user,\neve@example.com,admin,3\nnew@example.com,admin,4\n"
    update = ("import", "-", "--on-conflict", "update")
    note = "2 new admins; 2 new links of existing accounts to identity providers"
    for options in (["--dry-run"], []):
        assert f"Note: {note}\n" in usersctl.ok(*update, *options, stdin=people).stderr
    assert "Note" not in usersctl.ok(*update, stdin=people).stderr  # all of that is there already
    done = usersctl.ok(*update, "--json", stdin=f"{header}bob@example.com,admin,\n").json
    assert (done["admins"], done["linked"], done["notes"]) == (1, 0, [])


def test_a_dry_run_prints_the_result_and_writes_nothing(usersctl: Command) -> None:
    usersctl.add("ada")
    people = f"email,name,password\nada@example.com,A,\neve@example.com,E,{PASSWORD}\n"
    done = usersctl.ok("import", "-", "--on-conflict", "update", "--dry-run", stdin=people)
    assert done.stdout == "Would import: 1 created, 1 updated, 0 skipped\n"
    assert usersctl.ok("show", "1", "--json").json["name"] == "Ada"
    assert usersctl.emails() == ["ada@example.com"]
    twice = usersctl("import", "-", "--dry-run", stdin="email\neve@example.com\nEve@example.com\n")
    assert "line 3: eve@example.com is taken by an earlier row" in twice.stderr


@pytest.mark.sqlite  # a missing file
def test_a_dry_run_creates_no_database(usersctl: Command) -> None:
    printed = "Would import: 1 created, 0 updated, 0 skipped\n"
    people = "email\nada@example.com\n"
    assert usersctl.ok("import", "-", "--dry-run", stdin=people).stdout == printed
    assert usersctl.is_unused
    usersctl.database.touch()  # an import turns an empty file into a database
    assert usersctl.ok("import", "-", "--dry-run", stdin=people).stdout == printed
    assert usersctl.database.stat().st_size == 0


@pytest.mark.slow
def test_what_a_killed_dry_run_left_is_removed_by_the_next_one(usersctl: Command, tmp_path: Path) -> None:
    usersctl.add("ada")
    usersctl.env["TMPDIR"] = str(tmp_path)

    def folders() -> set[Path]:
        return set(tmp_path.glob(".users-import-*"))

    def begun() -> tuple[subprocess.Popen[bytes], Path]:
        before = folders()
        process = usersctl.start("import", "-", "--dry-run", stdin=subprocess.PIPE)
        wait_for(lambda: any((folder / "users.db").exists() for folder in folders() - before))
        (folder,) = folders() - before
        return process, folder

    (killed, left), (alive, used) = begun(), begun()
    killed.kill()
    killed.communicate()
    for folder in (left, used):
        os.utime(folder, times=(0, 0))
    usersctl.ok("import", "-", "--dry-run", stdin="email\neve@example.com\n")
    assert folders() == {used}
    alive.communicate(b"email\neve@example.com\n")
    assert alive.returncode == 0
    assert folders() == set()


def test_a_dry_run_and_a_check_remove_no_folder_of_somebody_else(usersctl: Command, tmp_path: Path) -> None:
    usersctl.add("ada")
    usersctl.env["TMPDIR"] = str(tmp_path)
    saved, people = tmp_path / "users-check-mine" / "saved.db", tmp_path / "users-import-mine" / "p.csv"
    for file in (saved, people):
        file.parent.mkdir()
    usersctl.ok("db", "backup", saved)
    people.write_text("email\neve@example.com\n")
    for file in (saved, people):
        os.utime(file.parent, times=(0, 0))
    usersctl.ok("db", "verify", saved)
    usersctl.ok("import", people, "--dry-run")
    assert (saved.exists(), people.exists()) == (True, True)


# --- stopped ---


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_import_prints_no_trace(usersctl: Command, number: int, code: int) -> None:
    usersctl.add("ada")
    people = usersctl.put("p.csv", "email\n" + "nonsense\n" * 100_000)
    process = usersctl.start("import", people, measured=False, stderr=subprocess.PIPE)
    until_it_is_full(process.stderr)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code
    printed = [line for line in err.decode().splitlines() if "Invalid email format" not in line]
    assert printed == (["usersctl: interrupted"] if number == signal.SIGINT else [])
    assert usersctl.emails() == ["ada@example.com"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_audit_follow_prints_no_trace(usersctl: Command, number: int, code: int) -> None:
    rows = "".join(f"user{number}@example.com\n" for number in range(1000))
    usersctl.ok("import", "-", stdin=f"email\n{rows}")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = usersctl.start("audit", "--follow", "--since", "1h", measured=False, **pipes)
    until_it_is_full(process.stdout)
    process.send_signal(number)
    assert process.communicate(timeout=30)[1] == b""
    assert process.returncode == code


def until_it_is_full(pipe: IO[bytes] | None) -> None:
    """Waits until the writer has filled the pipe and blocks in the middle of its work."""
    assert pipe is not None
    size = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)

    def waiting() -> int:
        (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
        return int(count)

    seen = 0

    def no_more() -> bool:
        nonlocal seen
        before, seen = seen, waiting()
        return seen == before and seen > size * 0.9

    wait_for(no_more)


# --- passwords ---


@pytest.mark.parametrize("kind", ["2a", "2b", "2y"])
def test_imported_bcrypt_hashes_are_kept_and_sign_in(usersctl: Command, kind: str) -> None:
    kept = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(6)).decode().replace("$2b$", f"${kind}$")
    usersctl.ok("import", "-", stdin=f"email,password_hash\nada@example.com,{kept}\n")
    exported = usersctl.ok("export", "--format", "json", "--with-hashes").json
    assert exported[0]["password_hash"] == kept
    assert usersctl.can_log_in("ada@example.com")
    assert not usersctl.can_log_in("ada@example.com", "wrong")


@pytest.mark.slow
def test_plain_passwords_are_hashed_at_the_configured_cost(usersctl: Command) -> None:
    usersctl.configure("passwordHashing.rounds = 11\n")
    rows = "".join(f"user{number}@example.com,{PASSWORD} {number}\n" for number in range(6))
    usersctl.ok("import", "-", stdin=f"email,password\n{rows}")
    exported = usersctl.ok("export", "--format", "json", "--with-hashes").json
    assert {row["password_hash"][:7] for row in exported} == {"$2b$11$"}
    assert usersctl.can_log_in("user3@example.com", f"{PASSWORD} 3")
    with usersctl.service() as service:
        assert PASSWORD.encode() not in tables.written(service)


# --- confirmed addresses ---


def test_an_imported_confirmation_activates_a_waiting_account(usersctl: Command) -> None:
    usersctl.ok("import", "-", stdin="email,confirmed\nada@example.com,false\nbob@example.com,false\n")
    people = "email,active,confirmed\nada@example.com,,true\nbob@example.com,false,true\n"
    usersctl.ok("import", "-", "--on-conflict", "update", stdin=people)
    exported = usersctl.ok("export", "-", "--format", "json").json
    assert [(row["active"], row["confirmed"]) for row in exported] == [(True, True), (False, True)]
    assert "not before the address is confirmed" not in usersctl("why", "ada@example.com").stdout


def test_an_import_keeps_confirmed_and_waiting_accounts_as_they_are(usersctl: Command) -> None:
    rows = (
        "ada@example.com,true,true\neve@example.com,,false\nbob@example.com,true,\nalan@example.com,false,\n"
    )
    usersctl.ok("import", "-", stdin=f"email,active,confirmed\n{rows}")
    exported = usersctl.ok("export", "--json").json
    assert [(row["active"], row["confirmed"]) for row in exported] == [
        (True, True),
        (False, False),
        (True, None),
        (False, None),
    ]
    with usersctl.service() as service:
        waiting = [service.accounts.get(number).awaiting_confirmation for number in range(1, 5)]
    assert waiting == [False, True, False, False]  # an email activates only accounts that were never active
    done = usersctl("import", "-", stdin="email,active,confirmed\nzoe@example.com,true,false\n")
    assert done.code == 2
    assert "is active and not confirmed" in done.stderr


def test_an_import_never_makes_an_active_account_confirm_again(usersctl: Command) -> None:
    usersctl.add("ada")
    people = "email,name,confirmed\nada@example.com,Ada L,false\n"
    usersctl.ok("import", "-", "--on-conflict", "update", stdin=people)
    (ada,) = usersctl.ok("export", "--json").json
    assert (ada["name"], ada["active"], ada["confirmed"]) == ("Ada L", True, None)


# --- hashes of other systems ---


def test_hashes_of_other_systems_are_kept_in_their_own_text_and_exported_so(usersctl: Command) -> None:
    made = of_packages()
    people = {f"user{number}@example.com": stored for number, stored in enumerate(made.values())}
    lines = [json.dumps({"email": email, "password_hash": stored}) for email, stored in people.items()]
    done = usersctl.ok("import", "-", "--format", "jsonl", "--json", stdin="\n".join(lines)).json
    assert (done["created"], done["without_password"]) == (len(made), 0)
    exported = usersctl.ok("export", "--format", "jsonl", "--with-hashes").stdout
    rows = [json.loads(line) for line in exported.splitlines()]
    assert {row["email"]: row["password_hash"] for row in rows} == people
    for email in people:
        assert usersctl.can_log_in(email, PHRASE)
    again = usersctl.ok(
        "import", "-", "--format", "jsonl", "--on-conflict", "update", "--json", stdin=exported
    )
    assert again.json["foreign_hashes"] == done["foreign_hashes"]
    assert usersctl.can_log_in("user0@example.com", PHRASE)


def test_an_import_tells_how_many_hashes_are_of_other_systems_and_what_they_do_not_allow(
    usersctl: Command,
) -> None:
    made = of_packages()
    names = ("passlib phpass", "passlib pbkdf2_sha256", "Werkzeug pbkdf2:sha1:1000")
    people = "\n".join(f"user{number}@example.com,{made[name]}" for number, name in enumerate(names))
    done = usersctl.ok("import", "-", stdin=f"email,password_hash\n{people}\nada@example.com,{HASH}\n")
    kinds, long_ones = done.stderr.splitlines()
    assert kinds == (
        "Note: the password hashes of 3 rows are of other systems (PBKDF2 2, phpass 1): bcrypt replaces each at its"
        " owner's next login"
    )
    assert long_ones == (
        "Note: 3 rows of 2 kinds may be of passwords over 72 bytes, which do not sign in here: their owners set another"
        " one through a reset email"
    )
    findings = {finding["code"]: finding for finding in usersctl("doctor", "--json").json["findings"]}
    left = "of other systems, until their owners' next login: 2 PBKDF2, 1 phpass"
    assert findings["password-hashes"]["message"] == left


def test_every_hash_that_cannot_be_checked_is_named_by_its_line_at_once(usersctl: Command) -> None:
    hostile = {
        "pbkdf2_sha256$2000000000$salt$"
        + "A" * 43
        + "=": "PBKDF2 with 2000000000 rounds is more than 5000000",
        "scrypt:1073741824:8:1$salt$" + "ab" * 64: "scrypt with 1048576 MiB is more than 256",
        "scrypt$1024$salt$8$17$" + "A" * 86 + "==": "scrypt with 17 lanes is more than 16",
        "$argon2id$v=19$m=262145,t=1,p=1$c2FsdHNhbHQ$" + "A" * 43: "Argon2 with 257 MiB is more than 256",
        "$argon2id$v=19$m=64,t=21,p=1$c2FsdHNhbHQ$" + "A" * 43: "Argon2 with 21 passes is more than 20",
        "$P$Jsaltsalt" + "." * 22: "phpass with 2097152 rounds is more than 1048576",
        "5f4dcc3b5aa765d61d8327deb882cf99": "password_hash is neither bcrypt",
        "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=": "password_hash is neither bcrypt",
    }
    lines = [
        json.dumps({"email": f"user{n}@example.com", "password_hash": stored})
        for n, stored in enumerate(hostile)
    ]
    done = usersctl("import", "-", "--format", "jsonl", stdin="\n".join(lines))
    assert done.code == 2
    told = done.stderr.splitlines()
    assert [line.partition(":")[0] for line in told[:-1]] == [f"line {n}" for n in range(1, 9)]
    for line, reason in zip(told, hostile.values(), strict=False):
        assert reason in line
    assert told[-1] == "usersctl: 8 rows cannot be imported; nothing was imported"
    assert "5f4dcc3b" not in done.stderr
    assert usersctl.is_unused or usersctl.emails() == []


def test_the_library_that_argon2_needs_is_named_where_it_is_missing(usersctl: Command) -> None:
    (usersctl.folder / "without" / "argon2").mkdir(parents=True)
    (usersctl.folder / "without" / "argon2" / "__init__.py").write_text("raise ImportError")
    without = {"PYTHONPATH": str(usersctl.folder / "without")}
    row = f'email,password_hash\nada@example.com,"{of_packages()["argon2-cffi ID 19"]}"\n'
    done = usersctl.ok("import", "-", stdin=row, env=without)
    assert done.stderr.splitlines()[-1] == (
        "Note: Argon2 hashes match no password until their library is installed: pip install argon2-cffi"
    )
    findings = {
        finding["code"]: finding for finding in usersctl("doctor", "--json", env=without).json["findings"]
    }
    assert findings["password-hashes"]["severity"] == "problem"
    assert findings["password-hashes"]["mend"] == "pip install argon2-cffi"
    why = usersctl("why", "ada@example.com", env=without)
    assert "needs a library that is not installed" in why.stdout
    assert "pip install argon2-cffi" in why.stdout
    assert usersctl.can_log_in("ada@example.com", PHRASE)
