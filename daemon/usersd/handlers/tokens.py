"""API tokens of the caller: made, listed and ended. The command line makes them for any user."""

from typing import Any

from usersctl.durations import span
from usersctl.fields import normal_name
from usersctl.models import Session, TokenKind
from usersctl.networks import normal_ranges
from usersctl.scopes import Scope, normal_scopes
from usersctl.service import Service
from usersd.handlers.session import CONFIRM_FIRST
from usersd.inputs import Body, optional, optional_strings, required
from usersd.openapi.operation import OWN, Operation
from usersd.openapi.schemas import (
    DONE,
    ID,
    MOMENT,
    NAME,
    array,
    described,
    exactly,
    model,
    or_null,
    string,
)
from usersd.request import Request

NEVER, DEFAULT = "never", "90d"  # of `expires`

_SCOPE = string(Scope.USERS_READ, enum=list(Scope))
_RANGE = string("192.0.2.0/24")
_TOKEN = {
    "id": ID,
    "name": string("nightly report"),
    "scopes": described(or_null(array(_SCOPE)), "What it may do of that which you may; null: all."),
    "ip": described(or_null(array(_RANGE)), "Where it works; null: anywhere."),
    "created_at": MOMENT,
    "expires_at": or_null(MOMENT),
    "last_used_at": or_null(MOMENT),
    "last_ip": or_null(string("192.0.2.7", "The client that used it last.")),
    "last_user_agent": or_null(string("curl/8.5.0")),
}
_LIST = model("TokenList", {"tokens": array(exactly(_TOKEN))})
_END_FIRST = {"end": ("endMyToken", "token_id", "$response.body#/tokens/0/id")}
_EXAMPLE = "usr_MeE3KKxNo8rBta7K-IswPk1uzIOjGduI6ML0-keHICw3dcfVm"
_MADE = model(
    "NewToken",
    _TOKEN
    | {"token": string(_EXAMPLE, "Sent as `Authorization: Bearer …`. It is shown this once.", minLength=53)},
)


class TokenToMake(Body, missing="Name is required"):
    name = required(NAME)
    expires = optional(string(DEFAULT), f"After this time, or `{NEVER}`; {DEFAULT} if left out.")
    scopes = optional_strings(_SCOPE, "All that you may do, if they are left out.")
    ip = optional_strings(_RANGE, "Addresses and ranges that it works from; anywhere, if they are left out.")


@Operation("listMyTokens", OWN, _LIST, links=_END_FIRST)
def list_own(request: Request, service: Service) -> dict[str, Any]:
    """List your API tokens."""
    sessions = service.sessions.listed(request.signed_in.id)
    return {"tokens": [_shown(each) for each in sessions if each.kind == TokenKind.API]}


@Operation("createMyToken", OWN, _MADE, TokenToMake, refusals=CONFIRM_FIRST)
def create_own(request: Request, service: Service) -> dict[str, Any]:
    """Make an API token. It acts as you, within its scopes, until it expires or is ended."""
    body = TokenToMake(request.body)
    expires = DEFAULT if body.expires is None else body.expires
    opened = service.sessions.create_api_token(
        request.signed_in.id,
        lifetime=None if expires == NEVER else span(expires),
        scopes=None if body.scopes is None else normal_scopes(body.scopes),
        ranges=None if body.ip is None else normal_ranges(body.ip),
        name=normal_name(body.name),
        by=request.actor,
    )
    request.log_fields["token"] = opened.session.id
    return _shown(opened.session) | {"token": opened.token}


@Operation("endMyToken", OWN, DONE, refusals={404: "Token not found, or another user's."})
def end_own(request: Request, service: Service) -> dict[str, Any]:
    """End one of your API tokens."""
    service.sessions.revoke(
        request.ids["token_id"], by=request.actor, user_id=request.signed_in.id, kind=TokenKind.API
    )
    return {"success": True}


def _shown(token: Session) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "scopes": token.scope_names,
        "ip": token.range_texts,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "last_used_at": token.last_used_at,
        "last_ip": token.ip,
        "last_user_agent": token.user_agent,
    }
