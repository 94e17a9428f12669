"""Databases as existing deployments have them: without a version and with the tables of that time."""

import sqlite3
from pathlib import Path

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
