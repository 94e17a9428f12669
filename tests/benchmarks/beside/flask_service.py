"""Another account service: Flask's signed cookie, and the user from SQLite, on waitress. `flask_service.py PORT DATABASE`

The cookie is taken on trust until it expires: nobody can end such a session.
"""

import logging
import sqlite3
import sys
import threading

import flask
import waitress

COLUMNS = ("id", "email", "name", "role", "active", "created_at", "updated_at")
USER = "SELECT id, email, name, role, active, created_at, updated_at FROM users WHERE id = ? AND active = 1"

app = flask.Flask(__name__)
app.config.update(SECRET_KEY="only for this measure", SESSION_COOKIE_NAME="auth_token")
local = threading.local()


def connection() -> sqlite3.Connection:
    if not hasattr(local, "connection"):
        local.connection = sqlite3.connect(sys.argv[2], isolation_level=None)
    return local.connection


@app.get("/login/<int:user_id>")
def login(user_id: int) -> str:
    flask.session["user_id"] = user_id
    return ""


@app.get("/api/users/me")
def me() -> dict[str, object]:
    row = connection().execute(USER, (flask.session.get("user_id"),)).fetchone()
    if row is None:
        flask.abort(401)
    return {"user": dict(zip(COLUMNS, row, strict=True))}


logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # a line for each request that waits, else
waitress.serve(app, listen=f"127.0.0.1:{sys.argv[1]}", threads=4)
