"""Statements and the schema in PostgreSQL's words, without a server."""

import pytest

from usersctl.store.conninfo import Conninfo, is_conninfo
from usersctl.store.postgres import dialect
from usersctl.store.upgrade import schema


@pytest.mark.parametrize(
    ("ours", "theirs", "names"),
    [
        ("SELECT a FROM b WHERE c = ? AND d = ?", "SELECT a FROM b WHERE c = $1 AND d = $2", ()),
        ("c = :it OR d = :it LIMIT :most", "c = $1 OR d = $1 LIMIT $2", ("it", "most")),
        ("c LIKE :word ESCAPE '\\'", "c LIKE $1 ESCAPE '\\'", ("word",)),
        ("c = 'what?' AND d = ':name' AND e = 'it''s :so' AND f = ?", None, ()),
        ("CAST(:x AS TEXT) IS NULL", "CAST($1 AS TEXT) IS NULL", ("x",)),
        (
            "FROM users NOT INDEXED WHERE +active = 1 AND (+id = 2)",
            "FROM users WHERE active = 1 AND (id = 2)",
            (),
        ),
        ("failures + 1 > a+b", "failures + 1 > a+b", ()),
        ("SELECT group_concat(groups.name)", "SELECT string_agg(groups.name, ',')", ()),
    ],
)
def test_a_statement_is_said_in_the_words_of_postgresql(
    ours: str, theirs: str | None, names: tuple[str, ...]
) -> None:
    text, their_names = dialect.translated(ours)

    assert their_names == names
    assert text.decode() == (theirs or ours.replace("f = ?", "f = $1"))


def test_the_schema_has_no_word_left_that_only_sqlite_knows() -> None:
    made = "\n".join(dialect.schema())

    for word in (
        "INTEGER",
        "STRICT",
        "ROWID",
        "BLOB",
        "AUTOINCREMENT",
        "zeroblob",
        "VIRTUAL",
        "user_search",
        " char(",
    ):
        assert word not in made
    assert made.count("CREATE TABLE") == schema().count("CREATE TABLE") + 1  # the version stands in a table


def test_one_update_counts_all_rows_of_a_statement() -> None:
    made = "\n".join(dialect.schema())

    # And one tells the leader of what is queued.
    assert made.count("FOR EACH STATEMENT") == made.count("these.rows_changed FROM") + 1 == 9
    assert made.count("FOR EACH ROW") == 1  # a change of a user counts in two rows


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://users:secret@db.example/users", "postgresql://users:***@db.example/users"),
        ("postgresql://users@db.example/users", "postgresql://users@db.example/users"),
        ("postgres://u:se%40cret@a,b:5433/users?sslmode=require", "postgres://u:***@a,b:5433/users?sslmode=require"),
        ("postgresql://db/users?user=u&password=secret&sslmode=require", "postgresql://db/users?user=u&password=***&sslmode=require"),
        ("host=db password=secret dbname=users", "host=db password=*** dbname=users"),
        ("host=db password = 'se cr\\'et' dbname=users", "host=db password = *** dbname=users"),
    ],
)  # fmt: skip
def test_a_password_is_never_shown(text: str, shown: str) -> None:
    assert is_conninfo(text)
    assert Conninfo(text).shown == shown


@pytest.mark.parametrize("text", ["users.db", "/var/lib/users/users.db", "./postgresql", "C:/users.db"])
def test_a_path_is_no_connection_string(text: str) -> None:
    assert not is_conninfo(text)
