"""export: its files, and the way there and back."""

import contextlib
import csv
import io
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.commands import HASH, OPERATOR, Command
from support.databases import opened

from usersctl.cli.files import Format, read_rows, write_rows
from usersctl.cli.show.formulas import no_formula
from usersctl.errors import Invalid
from usersctl.fields import normal_name
from usersctl.models import UNUSABLE
from usersctl.transfer.writing import ImportOptions


def test_an_exported_file_is_readable_by_its_owner_only(usersctl: Command) -> None:
    usersctl.add("ada")
    for name in ("p.csv", "p.json", "p.jsonl"):
        file = usersctl.folder / name
        file.write_text("before")
        file.chmod(0o644)
        done = usersctl.ok("export", file)
        assert done.stdout == f"Exported 1 user to {file}\n"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert usersctl.ok("export", "p.csv", "--json").json == {"exported": 1, "file": "p.csv"}
    assert not list(usersctl.folder.glob(".p.*"))


def test_export_writes_hashes_only_with_the_option(usersctl: Command) -> None:
    usersctl.add("ada")
    assert "$2b$" not in usersctl.ok("export").stdout
    assert "$2b$" in usersctl.ok("export", "-", "--with-hashes").stdout
    assert usersctl.ok("export", "--json").json[0]["email"] == "ada@example.com"
    assert "password_hash" not in usersctl.ok("export", "--format", "jsonl").stdout


def test_export_to_an_unwritable_place_is_refused(usersctl: Command) -> None:
    usersctl.add("ada")
    assert usersctl("export", "/nowhere/p.csv").code == 2
    assert usersctl("export", "/proc/p.csv").code == 2
    assert usersctl("export", "people").code == 2
    done = usersctl("export", "/dev/full", "--format", "csv")
    assert (done.code, done.stderr) == (6, "usersctl: '/dev/full': No space left on device\n")


def test_an_export_to_a_full_disk_names_its_file_and_keeps_the_old_one(
    usersctl: Command,
) -> None:
    rows = "".join(f"user{number}@example.com\n" for number in range(1000))
    usersctl.ok("import", "-", stdin=f"email\n{rows}")
    file = usersctl.put("p.csv", "before")
    # A limit of the shell stands for a full disk. Coverage is off, because it writes files.
    done = usersctl.shell("unset ${!COVERAGE@}; ulimit -f 50; usersctl export p.csv")
    assert (done.code, done.stderr) == (6, "usersctl: 'p.csv': File too large\n")
    assert file.read_text() == "before"
    assert not list(usersctl.folder.glob(".p.csv.*"))


@pytest.mark.parametrize("before", ["before", None])
def test_an_export_follows_a_symbolic_link(usersctl: Command, before: str | None) -> None:
    usersctl.add("ada")
    kept = usersctl.folder / "kept"
    kept.mkdir()
    if before is not None:
        (kept / "real.csv").write_text(before)
    link = usersctl.folder / "link.csv"
    link.symlink_to("kept/real.csv")
    assert usersctl.ok("export", "link.csv").stdout == "Exported 1 user to link.csv\n"
    assert link.is_symlink()
    assert "ada@example.com" in (kept / "real.csv").read_text()
    assert stat.S_IMODE((kept / "real.csv").stat().st_mode) == 0o600
    assert [path.name for path in kept.iterdir()] == ["real.csv"]


def test_an_export_to_dev_stdout_writes_to_standard_output(usersctl: Command) -> None:
    usersctl.add("ada")
    assert "ada@example.com" in usersctl.ok("export", "/dev/stdout", "--format", "jsonl").stdout


@pytest.mark.slow
def test_a_stopped_export_leaves_only_the_old_file(usersctl: Command) -> None:
    usersctl.add("ada")
    file = usersctl.put("p.csv", "before")
    with opened(usersctl.database) as db:
        db.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000)"
            " INSERT INTO users (email, name, password_hash, role, active, created_at, updated_at)"
            " SELECT 'user' || i || '@example.com', 'n', '!', 'user', 1, 'x', 'x' FROM n"
        )
    process = usersctl.start("export", file, measured=False)
    while not list(usersctl.folder.glob(".p.csv.*")):
        assert process.poll() is None
    process.terminate()
    assert process.wait(60) == 143
    assert file.read_text() == "before"
    assert not list(usersctl.folder.glob(".p.csv.*"))


@pytest.mark.parametrize("letter", ["a", "ä"])
def test_an_export_may_have_the_longest_name(usersctl: Command, letter: str) -> None:
    file = usersctl.folder / f"{letter * (250 // len(letter.encode()))}.csv"
    assert len(os.fsencode(file.name)) == 254
    usersctl.add("ada")
    usersctl.ok("export", file)
    assert "ada@example.com" in file.read_text()


def test_an_empty_database_is_an_empty_export(usersctl: Command) -> None:
    usersctl.ok("db", "init")
    assert usersctl.ok("export", "--json").stdout == "[]\n"
    assert usersctl.ok("export", "--format", "jsonl").stdout == ""
    assert list(csv.reader(io.StringIO(usersctl.ok("export").stdout))) == [
        [
            "email",
            "name",
            "role",
            "active",
            "confirmed",
            "created_at",
            "last_login_at",
            "oauth_id",
            "oauth_issuer",
            "profile_picture",
            "identities",
            "groups",
        ]
    ]


# --- there and back ---


def is_name(text: str) -> bool:
    """Names that nobody sees are refused, and blanks around one are lost."""
    try:
        return normal_name(text) == text
    except Invalid:
        return False


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=40)
names = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"]), min_size=1, max_size=200
).filter(is_name)
times = st.datetimes().map(lambda when: f"{when.isoformat(timespec='milliseconds')}Z")
identities = st.fixed_dictionaries(
    {
        "provider": st.sampled_from(["google", "second-one"]),
        "issuer": st.sampled_from(["https://one.example", "https://two.example/"]),
        "subject": st.uuids().map(str),
    },
    optional={"email": st.just("ada@elsewhere.example"), "linked_at": times},
)
people = st.lists(
    st.fixed_dictionaries(
        {
            "email": st.from_regex(r"[a-z0-9]{1,20}@[a-z]{1,20}\.[a-z]{2,6}", fullmatch=True),
            "name": names,
            "role": st.sampled_from(["admin", "user"]),
            "active": st.booleans(),
            "created_at": times,
        },
        optional={
            "confirmed": st.just(True),
            "password_hash": st.just(HASH),
            "last_login_at": times,
            "oauth_id": texts.map(str.strip).filter(bool),
            "profile_picture": texts.map(lambda text: f"https://example.com/{text}".strip()),
            "identities": st.lists(
                identities, min_size=1, max_size=2, unique_by=lambda one: str(one["provider"])
            ),
        },
    ),
    max_size=8,
    unique_by=(lambda row: str(row["email"]), lambda row: str(row.get("oauth_id", row["email"]))),
)


def exported(usersctl: Command, form: Format) -> str:
    target = io.StringIO(newline="")
    with usersctl.service() as service:
        rows = service.transfer.export_rows(with_hashes=True)
        write_rows(target, form, rows, with_hashes=True)
    return target.getvalue()


def without_none(value: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in value.items() if one is not None}


def imported(usersctl: Command, form: Format, content: bytes) -> None:
    with usersctl.service() as service:
        options = ImportOptions("fail", False, OPERATOR, lambda _problem: None, lambda *_: None)
        service.transfer.import_rows(read_rows(io.BytesIO(content), form, name="-"), options)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(people, st.sampled_from(Format))
def test_what_is_exported_is_imported_as_it_was(rows: list[dict[str, Any]], form: Format) -> None:
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        there, back = Command(Path(first)), Command(Path(second))
        imported(there, Format.JSON, json.dumps(rows).encode())
        content = exported(there, form)
        imported(back, form, content.encode())
        assert exported(back, form) == content
        kept = [
            {name: value for name, value in row.items() if value is not None}
            for row in json.loads(exported(back, Format.JSON), object_hook=without_none)
        ]
        assert kept == rows


@settings(max_examples=25, deadline=None)
@given(st.binary(max_size=300) | texts.map(str.encode), st.sampled_from(Format))
def test_no_file_content_is_a_bug(content: bytes, form: Format) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = Command(Path(folder))
        with contextlib.suppress(Invalid):
            imported(command, form, b"email\n" + content if form is Format.CSV else content)
        assert all("@" in email for email in command.emails())


SIGNS = "=+-@\uff1d\uff0b\uff0d\uff20"  # also the wide forms
FORMULAS = (*(f"{sign}1+1" for sign in SIGNS), "Ada;=1+1", 'Ada,"=1+1')
FORMULA = re.compile(rf"[\s\"]*[{re.escape(SIGNS)}]")


def cells_in_any_country(text: str) -> Iterator[str]:
    """Every text that some spreadsheet may take for a cell, whatever separator and quoting it expects."""
    for row in csv.reader(io.StringIO(text)):
        yield from row
    yield from re.split(r"[,;\t\n]", text)


def test_a_safe_export_holds_no_formula(usersctl: Command) -> None:
    people = [{"email": f"p{number}@example.com", "name": name} for number, name in enumerate(FORMULAS)]
    people.append({"email": "=1@example.com", "name": "Eve", "oauth_id": "-1+1", "active": False})
    usersctl.ok("import", usersctl.put("p.json", json.dumps(people)))
    usersctl.ok("export", "safe.csv", "--safe")
    on_stdout = usersctl.ok("export", "--safe").stdout
    assert (usersctl.folder / "safe.csv").read_text("utf-8") == on_stdout
    assert [cell for cell in cells_in_any_country(on_stdout) if FORMULA.match(cell)] == []
    names = [row["name"] for row in csv.DictReader(io.StringIO(on_stdout))]
    assert [name.replace("'", "") for name in names] == [*FORMULAS, "Eve"]
    assert names[0] == "'=1+1"


def test_only_csv_can_be_exported_safe(usersctl: Command) -> None:
    usersctl.add("ada")
    for words in (["p.json", "--safe"], ["--safe", "--format", "jsonl"], ["--json", "--safe"]):
        refused = usersctl("export", *words)
        assert (refused.code, "--safe is for CSV" in refused.stderr) == (2, True)


@given(st.text() | st.text(SIGNS + " ,;\t\r\n\"'x", max_size=8))
@example('x;"=1')
@example("x, =1")
@example("'=1")
def test_a_cell_without_formula_has_none_for_any_separator(text: str) -> None:
    safe = no_formula(text)
    assert isinstance(safe, str)
    assert not any(FORMULA.match(cell) for cell in re.split("[,;\t]", safe))
    assert safe.replace("'", "") == text.replace("'", "")
    if not set(text) & set(SIGNS + "\t\r\n"):
        assert safe == text


def test_accounts_survive_a_round_trip_through_files(usersctl: Command) -> None:
    usersctl.add("ada", role="admin")
    usersctl.add("eve", active=False)
    usersctl.ok("import", "-", stdin='email,name\ngrace@example.com,"Zoë ""中"", [red]x[/red]"\n')
    usersctl.ok("import", "-", stdin="email,name\n=1@example.com,=1+1\n'=1@example.com,'=1+1\n")
    other = usersctl.folder / "other.db"
    for name in ("p.csv", "p.json", "p.jsonl"):
        usersctl.ok("export", name, "--with-hashes")
        usersctl.ok("import", name, "--db", other)
        again = usersctl.ok("export", "--format", name[2:], "--with-hashes", "--db", other).stdout
        assert again == (usersctl.folder / name).read_text("utf-8")
        other.unlink()
    assert UNUSABLE not in [
        row["password_hash"] for row in usersctl.ok("export", "--json", "--with-hashes").json
    ]
