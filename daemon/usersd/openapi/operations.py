"""What is said of each route for who calls it: `openapi` adds what the table knows. A row without an entry fails a test."""

from dataclasses import dataclass, field
from typing import Any

from usersctl.config import Settings
from usersctl.models import Role
from usersctl.passwords import MAX_BYTES

Schema = dict[str, Any]

HTML = "text/html"


@dataclass(frozen=True)
class Operation:
    topic: str
    summary: str
    answer: Schema | str | None  # of a 200: a schema of JSON, a media type, or None where it is a redirect
    body: Schema | None = None
    query: tuple[Schema, ...] = ()
    more: str = ""
    sets_cookie: str = ""  # what of
    redirect: str = ""  # where a 302 leads
    # Beyond those that follow from the row, as who may call, ids, limits and a body do; or in better words.
    refusals: dict[int, str] = field(default_factory=dict)
    as_page: frozenset[int] = frozenset()  # refusals that a browser is shown as a page
    takes_session: bool = False  # where anyone may ask, too
    headers: dict[str, str] = field(default_factory=dict)  # of the 200
    # What to ask next: method, path, and where in the answer the id for it stands.
    links: dict[str, tuple[str, str, str]] = field(default_factory=dict)


# --- values ---


def text(example: str, description: str = "", **rules: Any) -> Schema:
    told = {"description": description} if description else {}
    return {"type": "string", **rules, **told, "examples": [example]}


def whole(example: int, **rules: Any) -> Schema:
    return {"type": "integer", **rules, "examples": [example]}


def yes_or_no(description: str = "", *, example: bool = True) -> Schema:
    told = {"description": description} if description else {}
    return {"type": "boolean", **told, "examples": [example]}


def or_null(schema: Schema) -> Schema:
    return schema | {"type": [schema["type"], "null"], "examples": [None]}


def fields(needed: dict[str, Schema], **also: Schema) -> Schema:
    """A body: what it must hold, what it may, and whatever else is passed over."""
    told = {"type": "object", "properties": needed | also}
    return told | {"required": list(needed)} if needed else told


def exactly(properties: dict[str, Schema]) -> Schema:
    """An answer: it holds these, and nothing else."""
    return fields(properties) | {"additionalProperties": False}


def listed(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def named(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


MOMENT = text("2026-11-20T08:22:19.123Z", format="date-time")
ID = whole(1, minimum=1, maximum=10**18 - 1)
EMAIL = text("grace@example.com", format="email", maxLength=254)
NAME = text("Grace Hopper", minLength=1, maxLength=200)
ROLE = text(Role.USER, enum=list(Role))
TOKEN = text("gJz_R2rDRUH2UBKqLGkhd6Ofy3lfwTfUG4t2uPLb15k", minLength=1)
MESSAGE = exactly({"message": text("Logged out")})
DONE = exactly({"success": {"type": "boolean", "const": True}})
ANY_EMAIL = text("grace@example.com", minLength=1)  # of whoever asks: what is no address is nobody's
ANY_PASSWORD = text("correct horse battery", minLength=1)  # one that there is, and no new one

_REGISTERED = {
    "id": ID,
    "email": EMAIL,
    "name": text("Grace Hopper"),
    "role": ROLE,
    "created_at": MOMENT,
    "updated_at": MOMENT,
}


def schemas(settings: Settings) -> dict[str, Schema]:
    """What answers and bodies are made of, by name."""
    return {
        "Error": exactly(
            {
                "statusCode": whole(404, minimum=400, maximum=599),
                "statusMessage": text("User not found"),
            }
        ),
        "User": exactly(
            {
                "id": ID,
                "email": EMAIL,
                "name": text("Grace Hopper"),
                "role": ROLE,
                "active": yes_or_no(),
                "created_at": MOMENT,
                "updated_at": MOMENT,
                "last_login_at": or_null(MOMENT),
                "oauth_id": or_null(text("", "The account's id at the identity provider.")),
                "profile_picture": or_null(text("", "A URL.")),
            }
        ),
        "RegisteredUser": exactly(_REGISTERED),
        "Session": exactly(
            {
                "id": ID,
                "name": text("login", "`login`, or the name of an API token."),
                "created_at": MOMENT,
                "last_used_at": or_null(MOMENT),
                "expires_at": or_null(MOMENT),
                "ip": or_null(text("")),
                "user_agent": or_null(text("")),
                "current": yes_or_no("The one that this request came with."),
            }
        ),
        "UserPage": exactly(
            {
                "users": listed(named("User")),
                "pagination": exactly(
                    {
                        "page": whole(1, minimum=1),
                        "limit": whole(10, minimum=1, maximum=100),
                        "total": whole(1, minimum=0),
                        "totalPages": whole(1, minimum=0),
                        "hasNext": yes_or_no(example=False),
                        "hasPrev": yes_or_no(example=False),
                    }
                ),
            }
        ),
        "NewPassword": text(
            "correct horse battery",
            f"At most {MAX_BYTES} bytes. Common ones and one's own name or address may be refused.",
            minLength=settings.min_length,
            maxLength=MAX_BYTES,
        ),
    }


NEW_PASSWORD = named("NewPassword")
USER = exactly({"user": named("User")})
SESSIONS = exactly({"sessions": listed(named("Session"))})


def asked(name: str, schema: Schema, description: str, *, required: bool = False) -> Schema:
    return {"name": name, "in": "query", "required": required, "description": description, "schema": schema}


PAGING = (
    asked("page", whole(1, minimum=1, maximum=10**18 - 1), "From 1; 1 if left out."),
    asked("limit", whole(10, minimum=1, maximum=100), "Users on a page; 10 if left out."),
    asked(
        "after",
        whole(731, minimum=0, maximum=10**18 - 1),
        "The last id of the page before; makes late pages quick.",
    ),
    asked("search", text("grace", maxLength=200), "A part of the address or the name."),
    asked("role", ROLE, "Only this role."),
)
BY_LETTER = (
    asked("token", TOKEN, "From the letter's link.", required=True),
    asked("email", EMAIL, "From the letter's link.", required=True),
)
NO_SUCH_USER = {404: "User not found."}
CLOSED = {403: "Registration is closed."}
SINGLE_USER = {
    "read": ("GET", "/api/users/{id}", "$response.body#/user/id"),
    "change": ("PATCH", "/api/users/{id}", "$response.body#/user/id"),
    "delete": ("DELETE", "/api/users/{id}", "$response.body#/user/id"),
    "sessions": ("GET", "/api/users/{id}/sessions", "$response.body#/user/id"),
}
FIRST_USER = {"first": ("GET", "/api/users/{id}", "$response.body#/users/0/id")}

SIGNING_IN = "Session and registration"
OWN = "Your own account"
MANAGEMENT = "Management"
SERVICE = "The service itself"
PAGES = "Pages"


def page(summary: str, **more: Any) -> Operation:
    return Operation(PAGES, summary, HTML, **more)


# --- every row of usersd.routes.TABLE, in its order ---

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/api/users/session"): Operation(
        SIGNING_IN,
        "Sign in",
        USER,
        fields(
            {"email": ANY_EMAIL, "password": ANY_PASSWORD},
            rememberMe=yes_or_no("Beyond the end of the browser.") | {"type": ["boolean", "null"]},
        ),
        more="A session that comes along ends and is replaced.",
        sets_cookie="The new session.",
        refusals={401: "Invalid email or password.", 403: "Account is inactive, or another site asks."},
    ),
    ("DELETE", "/api/users/session"): Operation(
        SIGNING_IN, "Sign out", MESSAGE, more="Succeeds also without a session.", sets_cookie="Cleared."
    ),
    ("POST", "/api/users/setup"): Operation(
        SIGNING_IN,
        "Create the first admin",
        USER,
        fields({"token": TOKEN, "email": EMAIL, "name": NAME, "password": NEW_PASSWORD}),
        more="By the link that `usersctl serve` prints while there is none.",
    ),
    ("POST", "/api/users/register"): Operation(
        SIGNING_IN,
        "Register",
        exactly({"user": named("RegisteredUser"), "message": text("Registered.")}),
        fields({"email": EMAIL, "name": NAME, "password": NEW_PASSWORD}),
        more="The account is inactive until the link in the letter was used.",
    ),
    ("POST", "/api/users/register/resend"): Operation(
        SIGNING_IN,
        "Send the confirmation letter again",
        MESSAGE,
        fields({"email": ANY_EMAIL}),
        more="The answer is the same for every address.",
    ),
    ("GET", "/api/users/confirm-email"): Operation(
        SIGNING_IN,
        "Confirm an address",
        exactly({"success": {"type": "boolean", "const": True}, "message": text("You can sign in now")}),
        query=BY_LETTER,
        more="Works once. HEAD and browsers that look ahead use nothing up.",
    ),
    ("POST", "/api/users/password/forgot"): Operation(
        SIGNING_IN,
        "Ask for a reset letter",
        MESSAGE,
        fields({"email": ANY_EMAIL}),
        more="The answer is the same for every address.",
    ),
    ("POST", "/api/users/password/reset"): Operation(
        SIGNING_IN,
        "Set a new password by letter",
        MESSAGE,
        fields(
            {
                "token": TOKEN,
                "email": EMAIL,
                "password": NEW_PASSWORD,
                "password_confirmation": NEW_PASSWORD,
            }
        ),
        more="Ends all sessions, and does not sign in.",
    ),
    ("POST", "/api/users/not-me"): Operation(
        SIGNING_IN,
        "This wasn't me",
        MESSAGE,
        fields({"token": TOKEN, "email": EMAIL}),
        more="By the link of a notice: ends all sessions, and the password opens nothing until it is reset.",
    ),
    ("GET", "/api/users/me"): Operation(OWN, "Read your profile", USER),
    ("PATCH", "/api/users/me"): Operation(
        OWN,
        "Change your profile",
        named("User"),
        fields({}, name=NAME, email=EMAIL),
        more="Answers with the bare user object.",
    ),
    ("GET", "/api/users/me/sessions"): Operation(
        OWN,
        "List your sessions",
        SESSIONS,
        links={
            "end": ("DELETE", "/api/users/me/sessions/{session_id}", "$response.body#/sessions/0/id"),
        },
    ),
    ("DELETE", "/api/users/me/sessions/<session_id>"): Operation(
        OWN, "End one of your sessions", DONE, refusals={404: "Session not found, or somebody else's."}
    ),
    ("PATCH", "/api/users/password"): Operation(
        OWN,
        "Change your password",
        MESSAGE,
        fields(
            {
                "currentPassword": ANY_PASSWORD,
                "newPassword": NEW_PASSWORD,
                "newPasswordConfirmation": NEW_PASSWORD,
            }
        ),
        more="Ends all other sessions and API tokens.",
        sets_cookie="This session's, renewed.",
    ),
    ("GET", "/api/users"): Operation(
        MANAGEMENT,
        "List users",
        named("UserPage"),
        query=(*PAGING, asked("active", yes_or_no(), "Only active, or only inactive ones.")),
        more="Ordered by name, then id. A page beyond the end is an empty list.",
        links=FIRST_USER,
    ),
    ("POST", "/api/users"): Operation(
        MANAGEMENT,
        "Create a user",
        USER,
        fields({"email": EMAIL, "name": NAME, "password": NEW_PASSWORD}, role=ROLE),
        more="Active at once; `role` is `user` if left out.",
        links=SINGLE_USER,
    ),
    ("GET", "/api/users/inactive"): Operation(
        MANAGEMENT, "List inactive users", named("UserPage"), query=PAGING, links=FIRST_USER
    ),
    ("GET", "/api/users/<id>"): Operation(
        MANAGEMENT,
        "Read a user",
        USER,
        refusals={403: "You may only read your own profile."} | NO_SUCH_USER,
        links=SINGLE_USER,
    ),
    ("PATCH", "/api/users/<id>"): Operation(
        MANAGEMENT,
        "Change a user",
        USER,
        fields({}, name=NAME, email=EMAIL, role=ROLE, active=yes_or_no()),
        refusals=NO_SUCH_USER,
        more="One's own `active` cannot be changed (403), nor the last active admin be lost (400).",
    ),
    ("DELETE", "/api/users/<id>"): Operation(
        MANAGEMENT, "Delete a user", DONE, refusals=NO_SUCH_USER, more="With all that hangs on the account."
    ),
    ("GET", "/api/users/<id>/sessions"): Operation(
        MANAGEMENT, "List a user's sessions", SESSIONS, refusals=NO_SUCH_USER, more="API tokens included."
    ),
    ("DELETE", "/api/users/<id>/sessions"): Operation(
        MANAGEMENT, "End all sessions of a user", DONE, refusals=NO_SUCH_USER, more="API tokens included."
    ),
    ("GET", "/api/users/auth/oauth/redirect"): Operation(
        SIGNING_IN,
        "Sign in through the identity provider",
        None,
        query=(asked("redirect", text("/users"), "Where to go afterwards: a path of this site."),),
        redirect="To the identity provider, or to `auth.oauth.errorRedirect` with an `error`.",
        sets_cookie="What must come back, for ten minutes.",
    ),
    ("GET", "/api/users/auth/oauth/callback"): Operation(
        SIGNING_IN,
        "Come back from the identity provider",
        None,
        query=(
            asked("code", text("SplxlOBeZQQYbYS6WxSbIA"), "From the provider."),
            asked("state", text("af0ifjsldkj"), "As it was sent there."),
            asked("iss", text("https://id.example.com"), "Who the provider is."),
            asked("error", text("access_denied"), "Why there is no code."),
        ),
        redirect="Signed in, or to `auth.oauth.errorRedirect` with an `error`.",
        sets_cookie="The new session.",
    ),
    ("GET", "/api/users/auth/verify"): Operation(
        SERVICE,
        "Forward authentication",
        exactly({}),
        query=(asked("role", ROLE, "Ask for this role."),),
        more="For a proxy in front of another application: whether the request that it holds is let in. What was asked"
        " for is taken from `X-Original-URL` or `X-Forwarded-Uri` of trusted proxies only.",
        takes_session=True,
        redirect="Not signed in, and a browser: to `/login`, and back after signing in.",
        refusals={
            401: "Not signed in. `Location` is where a browser could sign in.",
            403: "The role does not suffice.",
        },
        as_page=frozenset({403}),
        headers={
            "Remote-User": "The user's id; empty, as all of these, where nobody is signed in.",
            "Remote-Email": "The address.",
            "Remote-Name": "The name, with what is not ASCII as UTF-8 in percent signs.",
            "Remote-Role": "The role.",
            "Remote-Assertion": "All of it, signed, where there is a secret for that.",
        },
    ),
    ("GET", "/_tasks/"): Operation(
        MANAGEMENT,
        "List tasks and their schedule",
        exactly(
            {
                "tasks": {
                    "type": "object",
                    "additionalProperties": exactly({"description": text("Delete expired tokens")}),
                    "examples": [{"users:cleanup-tokens": {"description": "Delete expired tokens"}}],
                },
                "scheduledTasks": listed(
                    exactly({"cron": text("0 2 * * *"), "tasks": listed(text("users:cleanup-tokens"))})
                ),
            }
        ),
    ),
    ("POST", "/_tasks/users:cleanup-tokens"): Operation(
        MANAGEMENT,
        "Delete expired tokens",
        exactly(
            {
                "result": {"type": "string", "const": "success"},
                "expiredTokensRemoved": whole(12, minimum=0),
                "noExpirationTokensRemoved": whole(0, minimum=0),
                "totalTokensCleaned": whole(12, minimum=0),
                "includeNoExpiration": yes_or_no(example=False),
            }
        ),
        fields({}, includeNoExpiration=yes_or_no("Also those that never expire.", example=False)),
    ),
    ("GET", "/api/users/openapi.json"): Operation(
        SERVICE, "This interface, as OpenAPI", {"type": "object", "examples": [{"openapi": "3.1.0"}]}
    ),
    ("GET", "/api/users/docs"): Operation(SERVICE, "This interface, as a page", HTML),
    ("GET", "/health"): Operation(
        SERVICE,
        "Is the daemon alive?",
        exactly({"status": {"type": "string", "const": "alive"}}),
        more="Asks nothing of the database.",
    ),
    ("GET", "/ready"): Operation(
        SERVICE,
        "Can the daemon do its work?",
        exactly({"status": {"type": "string", "const": "ready"}}),
        refusals={503: "Not ready: the message names the parts that fail, or that the daemon stops."},
    ),
    ("GET", "/login"): page(
        "Sign in",
        query=(
            asked("redirect", text("/users"), "Where to go afterwards: a path of this site."),
            asked("error", text("oauth_failed"), "Why a sign-in through the provider failed."),
        ),
    ),
    ("GET", "/register"): page("Create an account", refusals=CLOSED, as_page=frozenset({403})),
    ("GET", "/confirm-email"): page(
        "Where the confirmation letter leads", refusals=CLOSED, as_page=frozenset({403})
    ),
    ("GET", "/forgot-password"): page("Ask for a reset letter"),
    ("GET", "/reset-password"): page("Where the reset letter leads"),
    ("GET", "/not-me"): page("Where the link of a notice leads"),
    ("GET", "/setup"): page("The first admin, by the set-up link"),
    ("GET", "/assets/<name>"): Operation(
        PAGES, "Style sheet, script and logo", "*/*", refusals={404: "Not found."}
    ),
    ("GET", "/account"): page("Your profile, password and sessions"),
    ("GET", "/"): page("The same, where no application has this path"),
    ("GET", "/users"): page("User management", refusals={403: "For admins only."}, as_page=frozenset({403})),
}
