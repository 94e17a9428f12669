"""Databases as existing deployments have them: of another program, and of the first release."""

import sqlite3
from contextlib import closing
from pathlib import Path

from usersctl.secrets import digest

OLDER_TOKEN = "A" * 43  # of an API token from before scopes


def make_version(path: Path, version: int) -> Path:
    """A database as a release left it, with rows in every table and ids that were given and deleted."""
    now, later = "2026-01-02T03:04:05.678Z", "2036-01-02T03:04:05.678Z"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA foreign_keys = ON")
        db.executescript(Path(__file__).with_name(f"schema_of_version_{version}.sql").read_text("utf-8"))
        add_user = (
            "INSERT INTO users (email, name, password_hash, role, active, created_at, updated_at, oauth_id)"
            " VALUES (?, ?, '!', ?, ?, ?, ?, ?)"
        )
        for number in range(1, 8):
            role = "admin" if number == 1 else "user"
            row = (
                f"user{number}@example.com",
                f"User {number}",
                role,
                number % 3 > 0,
                now,
                now,
                f"subject-{number}",
            )
            db.execute(add_user, row)
        if version >= 3:
            db.execute("UPDATE users SET name_folded = lower(name)")
        for user_id in range(1, 8):
            session = "INSERT INTO auth_tokens (user_id, token_hash, kind, name, created_at, expires_at)"
            db.execute(
                f"{session} VALUES (?, ?, 'session', 'login', ?, ?)",
                (user_id, bytes([user_id]) * 32, now, later),
            )
        db.execute(
            "INSERT INTO one_time_tokens (token_hash, purpose, user_id, email, created_at, expires_at)"
            " VALUES (?, 'reset', 1, 'user1@example.com', ?, ?)",
            (bytes(32), now, later),
        )
        db.execute(
            "INSERT INTO outbox (kind, user_id, email, message_id, created_at, due_at)"
            " VALUES ('reset', 1, 'user1@example.com', 'id-1', ?, ?)",
            (now, now),
        )
        db.execute("INSERT INTO login_failures VALUES ('user:1', 1, 12, ?)", (now,))
        db.execute("INSERT INTO lockdown VALUES (1, 1, ?, 'cli:root')", (now,))
        if version >= 4:
            db.execute("INSERT INTO groups (name, created_at) VALUES ('staff', ?), ('former', ?)", (now, now))
            db.execute("INSERT INTO group_members VALUES (1, 2), (1, 3), (2, 4), (2, 7)")
            db.execute(
                "INSERT INTO identities (user_id, provider, issuer, subject)"
                " SELECT id, 'oauth', 'https://id.example', oauth_id FROM users"
            )
        if version >= 5:
            _add_what_version_5_began(db, now, later)
        db.execute("DELETE FROM users WHERE id = 7")
        db.execute("CREATE TABLE theirs (note TEXT)")
        db.execute("INSERT INTO theirs VALUES ('kept')")
        db.execute("PRAGMA application_id = 0x75737273")
        db.execute(f"PRAGMA user_version = {version}")
        db.commit()
    return path


def _add_what_version_5_began(db: sqlite3.Connection, now: str, later: str) -> None:
    for user_id in (1, 2, 7):
        db.execute("INSERT INTO totp_secrets VALUES (?, x'01', ?, 3, 0)", (user_id, now))
        db.execute(
            "INSERT INTO passkeys (user_id, credential_id, rp_id, public_key, algorithm, sign_count, name, synced, created_at)"
            " VALUES (?, ?, 'localhost', x'02', -7, 4, 'phone', 0, ?)",
            (user_id, bytes([user_id]), now),
        )
        db.execute("INSERT INTO recovery_codes VALUES (?, x'03', ?)", (user_id, now))
    db.execute("INSERT INTO pending_sign_ins VALUES (x'04', 2, 'pwd', 0, NULL, NULL, 1, ?)", (later,))
    db.execute("INSERT INTO totp_enrolments VALUES (3, 3, x'05', ?)", (later,))
    db.execute("UPDATE auth_tokens SET opened_with = 'pwd otp', factor_at = ? WHERE user_id = 1", (now,))
    db.execute(
        "INSERT INTO auth_tokens (user_id, token_hash, kind, name, created_at) VALUES (2, ?, 'api', 'backup', ?)",
        (digest(OLDER_TOKEN), now),
    )
    db.execute(
        "INSERT INTO outbox (kind, email, message_id, created_at, due_at, webhook, subject, payload)"
        " VALUES ('user.created', '', 'id-2', ?, ?, 'crm', 2, '{}')",
        (now, now),
    )
    db.execute("INSERT INTO webhooks VALUES ('crm', 3, ?, NULL)", (now,))


# The schema of existing deployments. Do not edit: their databases look like this.
OLD = """
CREATE TABLE users (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  email TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL,
  password TEXT NOT NULL,
  role TEXT DEFAULT 'user',
  active BOOLEAN DEFAULT 1,
  created_at DATETIME DEFAULT CURRENT_TIMESTAMP,
  updated_at DATETIME DEFAULT CURRENT_TIMESTAMP
);
CREATE TABLE personal_access_tokens (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  tokenable_type TEXT NOT NULL,
  tokenable_id INTEGER NOT NULL,
  name TEXT NOT NULL,
  token TEXT NOT NULL UNIQUE,
  abilities TEXT,
  last_used_at DATETIME,
  expires_at DATETIME,
  created_at DATETIME DEFAULT CURRENT_TIMESTAMP,
  updated_at DATETIME DEFAULT CURRENT_TIMESTAMP
);
CREATE TABLE password_reset_tokens (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  email TEXT NOT NULL,
  token TEXT NOT NULL,
  created_at DATETIME DEFAULT CURRENT_TIMESTAMP
);
CREATE INDEX idx_password_reset_tokens_email ON password_reset_tokens (email);
CREATE TABLE migrations (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, executed_at DATETIME);
"""
WITH_LAST_LOGIN = OLD.replace(
    "updated_at DATETIME DEFAULT CURRENT_TIMESTAMP\n);\nCREATE TABLE personal",
    "updated_at DATETIME DEFAULT CURRENT_TIMESTAMP,\n  last_login_at DATETIME\n);\nCREATE TABLE personal",
)
INTEGER_ACTIVE = OLD.replace("active BOOLEAN", "active INTEGER")


def old_database(path: Path, **changes: object) -> None:
    """One with a single account, and without the columns of OAuth."""
    user = {
        "id": 7,
        "email": "Ada@Example.com",
        "name": "Ada",
        "password": "$2b$04$" + "a" * 53,
        "role": "admin",
        "active": 1,
    } | changes
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(
            "CREATE TABLE users (id INTEGER PRIMARY KEY AUTOINCREMENT, email TEXT NOT NULL UNIQUE, name TEXT NOT NULL,"
            " password TEXT NOT NULL, role TEXT NOT NULL, active INTEGER NOT NULL)"
        )
        connection.execute("INSERT INTO users VALUES (:id, :email, :name, :password, :role, :active)", user)
    connection.close()
