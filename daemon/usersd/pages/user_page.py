"""What the page of one user shows: what admins can do, sessions in words, rows of the audit trail."""

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlencode

from usersctl.models import Role, Session, TokenKind, User
from usersctl.named import NamedTuple
from usersctl.scopes import Scope
from usersctl.service import Service
from usersctl.trail import Wanted
from usersctl.why import Cause, Gate, Step
from usersd.pages import factors_page
from usersd.request import Request

_LOCKS = {Cause.LOCKED, Cause.THROTTLED, Cause.DEVICES_LOCKED}
# By what a User-Agent says. Its own name comes before those that it names to be served alike: Edge says Chrome and Safari,
# too, and Android says Linux.
_BROWSERS = {"Edg": "Edge", "OPR": "Opera", "SamsungBrowser": "Samsung Internet", "Firefox": "Firefox", "FxiOS": "Firefox",
             "Chrome": "Chrome", "CriOS": "Chrome", "Safari": "Safari", "curl": "curl"}  # fmt: skip
_SYSTEMS = {"Android": "Android", "iPhone": "iPhone", "iPad": "iPad", "Windows": "Windows", "Mac OS X": "macOS",
            "CrOS": "ChromeOS", "Linux": "Linux"}  # fmt: skip

_SCOPES_OF_USERS = (Scope.ME, Scope.VERIFY)  # the others open what admins may
OWN_SESSIONS = 50  # that /account shows at first
GROUPS = 50  # boxes to tick; those of the user beyond them stand in a field
MOST, STEP = 1000, 10  # how much of a list the page shows, and how many times more each time


class Act(NamedTuple):
    """A button that asks before it calls the API. Its texts are act.NAME, act.NAME.ask and act.NAME.done."""

    name: str
    method: str
    path: str  # below the user's
    body: str = ""
    then: str = ""  # where to go afterwards
    is_grave: bool = False


_RESET = Act("reset", "POST", "/reset-letter")
_CONFIRM = Act("confirm", "POST", "/confirm-letter")
_INVITE = Act("invite", "POST", "/invite")
_UNLOCK = Act("unlock", "POST", "/unlock")
_ACTIVATE = Act("activate", "PATCH", "", '{"active":true}')
_DEACTIVATE = Act("deactivate", "PATCH", "", '{"active":false}', is_grave=True)
_WITHDRAW = Act("withdraw", "DELETE", "/invite", then="/users", is_grave=True)
_DELETE = Act("delete", "DELETE", "", then="/users", is_grave=True)
_END = Act("end", "DELETE", "")
_END_ALL = Act("end-all", "DELETE", "/sessions")
_RESET_FACTORS = Act("reset-factors", "DELETE", "/factors", is_grave=True)

OF_STEP = {
    Step.ACTIVATE: _ACTIVATE,
    Step.UNLOCK: _UNLOCK,
    Step.SEND_RESET: _RESET,
    Step.SEND_CONFIRMATION: _CONFIRM,
    Step.INVITE: _INVITE,
}


def content(
    request: Request, service: Service, user: User, findings: list[Gate], query: Mapping[str, int]
) -> dict[str, Any]:
    """The values of the template. The query says how much of its lists the page shows."""
    is_own = request.signed_in.id == user.id
    offered = acts(user, findings, is_own=is_own, may_confirm=request.settings.registration_is_open)
    steps = {step: act for step, act in OF_STEP.items() if act in offered}
    sessions, tokens = _listed(service, user.id)
    history = service.trail.page(Wanted(str(user.id)), limit=query["rows"])
    return {
        "one": user,
        "email": user.called,
        "base_path": f"/api/users/{user.id}",
        "is_own": is_own,
        "findings": findings,
        "steps": steps,
        "acts": [act for act in offered if act not in _mending(findings, steps)],
        "has_password": service.recovery.has_password(user.id),
        "groups": [group.name for group in service.groups.some(after="", at_most=GROUPS)],
        "most_groups": GROUPS,
        "own_groups": service.groups.of(user.id),
        "managed_by": service.accounts.manager_of(user.id),
        "identities": service.identities.of(user.id),
        **_session_lists(request, sessions, tokens, query),
        "end": _END,
        "end_all": _END_ALL,
        "factors": factors_page.factors_of(service, user.id),
        "reset_factors": _RESET_FACTORS,
        "rows": history.rows,
        "more_rows": _more(query, "rows", len(history.rows) + (history.next is not None)),
        "in_words": in_words,
    }


def _mending(findings: Iterable[Gate], steps: Mapping[Step, Act]) -> set[Act]:
    """The buttons beside what they mend."""
    return {steps[gate.step] for gate in findings if gate.step is not None and gate.step in steps}


def _more(query: Mapping[str, Any], name: str, there: int) -> str:
    """The query that shows more of one list, if there is more, up to a thousand."""
    shown: int = query[name]
    if there <= shown or shown >= MOST:
        return ""
    return urlencode({**query, name: min(MOST, shown * STEP)})


def acts(user: User, findings: Iterable[Gate], *, is_own: bool, may_confirm: bool) -> list[Act]:
    """What an admin can do for or with this user. Their own account they leave at /account."""
    offered = {
        _INVITE: user.awaits_owner,
        _CONFIRM: user.awaiting_confirmation and may_confirm,
        _RESET: user.active,
        _UNLOCK: any(gate.cause in _LOCKS for gate in findings),
        _ACTIVATE: not user.active,
        _DEACTIVATE: user.active and not is_own,
        _WITHDRAW: user.awaits_owner,
        _DELETE: not user.awaits_owner and not is_own,
    }
    return [act for act, is_offered in offered.items() if is_offered]


class SessionLine(NamedTuple):
    label: str  # empty for a session of a client that did not say what it is
    client: str  # its address and program, as far as they are known
    is_current: bool
    session: Session


def own_sessions(request: Request, service: Service, query: Mapping[str, Any]) -> dict[str, Any]:
    """Of the caller, for the same lists at /account, whose query this is."""
    user = request.signed_in
    return {
        **_session_lists(request, *_listed(service, user.id), query),
        "scopes": list(Scope) if user.role == Role.ADMIN else _SCOPES_OF_USERS,
        "end": _END,
    }


def _listed(service: Service, user_id: int) -> tuple[list[Session], list[Session]]:
    """The sessions of a user, and the API tokens."""
    listed = service.sessions.listed(user_id)
    tokens = [each for each in listed if each.kind == TokenKind.API]
    return [each for each in listed if each.kind != TokenKind.API], tokens


def _session_lists(
    request: Request, sessions: list[Session], tokens: list[Session], query: Mapping[str, Any]
) -> dict[str, Any]:
    """At most `query["sessions"]` of each: an account may have any number."""
    most: int = query["sessions"]
    return {
        "lines": _session_lines(sessions, request.session_id, most),
        "sessions": len(sessions),
        "more_sessions": _more(query, "sessions", len(sessions)),
        "tokens": _session_lines(tokens, None, most),
        "token_count": len(tokens),
        "more_tokens": _more(query, "sessions", len(tokens)),
    }


def _session_lines(sessions: Iterable[Session], current: int | None, most: int) -> list[SessionLine]:
    """The current one first, whose use may not be noted yet; then the ones that were used last."""

    def order(session: Session) -> tuple[bool, str]:
        return session.id == current, session.last_used_at or session.created_at

    newest_first = sorted(sessions, key=order, reverse=True)[:most]
    return [_session_line(session, is_current=session.id == current) for session in newest_first]


def _session_line(session: Session, *, is_current: bool) -> SessionLine:
    program = device(session.user_agent or "")
    client = " · ".join(filter(None, (session.ip, program)))
    label = session.name if session.kind == TokenKind.API else program
    return SessionLine(label, client, is_current, session)


def device(agent: str) -> str:
    """Shortens a User-Agent to "Firefox · Linux"."""
    found = (
        next((name for sign, name in signs.items() if sign in agent), "") for signs in (_BROWSERS, _SYSTEMS)
    )
    return " · ".join(filter(None, found)) or agent


def in_words(details: dict[str, Any]) -> dict[str, str]:
    """The details of an audit row: texts as they are, `false` and numbers as in JSON."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in details.items()
    }
