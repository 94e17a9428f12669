"""The least that a session check can be: cookie, SHA-256, one indexed SELECT, JSON. `minimal.py PORT DATABASE`

No limits, no renewal, no refusal of odd requests, no headers for browsers, no log.
"""

import hashlib
import logging
import sqlite3
import sys
import threading
from datetime import UTC, datetime

import bottle
import waitress

COLUMNS = ("id", "email", "name", "role", "active", "created_at", "updated_at")
SESSION = (
    "SELECT users.id, email, users.name, role, active, users.created_at, updated_at"
    " FROM auth_tokens JOIN users ON users.id = user_id WHERE token_hash = ? AND active = 1 AND expires_at > ?"
)

app = bottle.Bottle()
local = threading.local()


def connection() -> sqlite3.Connection:
    if not hasattr(local, "connection"):
        local.connection = sqlite3.connect(sys.argv[2], isolation_level=None)
    return local.connection


@app.get("/api/users/me")
def me() -> dict[str, object]:
    token = bottle.request.get_cookie("auth_token") or ""
    digest, now = hashlib.sha256(token.encode()).digest(), datetime.now(UTC).isoformat()
    row = connection().execute(SESSION, (digest, now)).fetchone()
    if row is None:
        bottle.abort(401)
    return {"user": dict(zip(COLUMNS, row, strict=True))}


logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # a line for each request that waits, else
waitress.serve(app, listen=f"127.0.0.1:{sys.argv[1]}", threads=4)
