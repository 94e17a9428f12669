"""Paths of the table of routes, with values for their parameters."""

import re

USUAL = {
    "id": "1",
    "session_id": "1",
    "passkey_id": "1",
    "token_id": "1",
    "name": "style.css",
    "group": "staff",
    "provider": "oauth",
}


def filled(path: str, **values: str) -> str:
    """A parameter that is not known here is an error, so that no request is sent to `<id>` itself."""
    return re.sub("<(.+?)>", lambda found: (USUAL | values)[found[1]], path)
