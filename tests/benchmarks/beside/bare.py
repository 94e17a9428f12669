"""The bare framework: waitress and Bottle answer with 200 bytes of JSON, without any session. `bare.py PORT`"""

import logging
import sys

import bottle
import waitress

USER = {
    "id": 1,
    "email": "user00000001@example.com",
    "name": "User Number 1",
    "role": "user",
    "active": True,
    "created_at": "2026-11-20T08:22:19.123Z",
    "updated_at": "2026-11-20T08:22:19.123Z",
}

app = bottle.Bottle()


@app.get("/api/users/me")
def me() -> dict[str, object]:
    return {"user": USER}


logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # a line for each request that waits, else
waitress.serve(app, listen=f"127.0.0.1:{sys.argv[1]}", threads=4)
