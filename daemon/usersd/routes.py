"""The table: method, path, who may call, handler. The HTTP interface on one page.

What has no row is refused before it is not found.
"""

from usersd.handlers import first_admin, health, oauth, recovery, registration, session, tasks, users, verify
from usersd.openapi import document
from usersd.pages import pages
from usersd.routing import Access, Limit, Route
from usersd.server.lanes import Lane

# The specific before the general: /api/users/me is not the user "me".
TABLE: tuple[Route, ...] = (
    Route(
        "POST",
        "/api/users/session",
        Access.ANYONE,
        session.login,
        Limit.FAILED_LOGINS,
        lane=Lane.HASHING,
        event="login",
    ),
    Route("DELETE", "/api/users/session", Access.ANYONE, session.logout, event="logout"),
    Route(
        "POST",
        "/api/users/setup",
        Access.ANYONE,
        first_admin.first_admin,
        lane=Lane.HASHING,
        event="first-admin",
    ),
    Route(
        "POST",
        "/api/users/register",
        Access.REGISTRATION,
        registration.register,
        Limit.REGISTRATIONS,
        lane=Lane.HASHING,
        event="register",
    ),
    Route(
        "POST",
        "/api/users/register/resend",
        Access.REGISTRATION,
        registration.resend,
        Limit.FORGOTS,
        event="resend-confirmation",
    ),
    Route(
        "GET",
        "/api/users/confirm-email",
        Access.REGISTRATION,
        registration.confirm,
        lane=Lane.WRITING,
        once=True,
        event="confirm-email",
    ),
    Route(
        "POST",
        "/api/users/password/forgot",
        Access.ANYONE,
        recovery.forgot,
        Limit.FORGOTS,
        event="forgot-password",
    ),
    Route(
        "POST",
        "/api/users/password/reset",
        Access.ANYONE,
        recovery.reset,
        lane=Lane.HASHING,
        event="reset-password",
    ),
    Route("POST", "/api/users/not-me", Access.ANYONE, recovery.not_me, event="not-me"),
    Route("GET", "/api/users/me", Access.SIGNED_IN, users.read_me, lane=Lane.HERE),
    Route("PATCH", "/api/users/me", Access.SIGNED_IN, users.change_me, event="update-self"),
    Route("GET", "/api/users/me/sessions", Access.SIGNED_IN, session.list_mine),
    Route(
        "DELETE", "/api/users/me/sessions/<session_id>", Access.SIGNED_IN, session.end_mine, event="revoke"
    ),
    Route(
        "PATCH",
        "/api/users/password",
        Access.SIGNED_IN,
        users.change_password,
        Limit.FAILED_LOGINS,
        lane=Lane.HASHING,
        event="change-password",
    ),
    Route("GET", "/api/users", Access.ADMIN, users.list_all),
    Route("POST", "/api/users", Access.ADMIN, users.create, lane=Lane.HASHING, event="create"),
    Route("GET", "/api/users/inactive", Access.ADMIN, users.list_inactive),
    Route("GET", "/api/users/<id>", Access.SIGNED_IN, users.read),
    Route("PATCH", "/api/users/<id>", Access.ADMIN, users.change, event="update"),
    Route("DELETE", "/api/users/<id>", Access.ADMIN, users.delete, event="delete"),
    Route("GET", "/api/users/<id>/sessions", Access.ADMIN, session.list_theirs),
    Route("DELETE", "/api/users/<id>/sessions", Access.ADMIN, session.end_theirs, event="revoke-all"),
    Route(
        "GET", "/api/users/auth/oauth/redirect", Access.ANYONE, oauth.redirect, lane=Lane.AWAY, signs_in=True
    ),
    # The path is that of auth.oauth.callbackUrl.
    Route(
        "GET",
        "/api/users/auth/oauth/callback",
        Access.ANYONE,
        oauth.callback,
        lane=Lane.AWAY,
        once=True,
        signs_in=True,
        event="oauth",
    ),
    # Anyone may ask: the answer is whether they are let in.
    Route("GET", "/api/users/auth/verify", Access.ANYONE, verify.verify, lane=Lane.HERE),
    Route("GET", "/_tasks/", Access.OPERATOR, tasks.list_tasks),
    Route(
        "POST", "/_tasks/users:cleanup-tokens", Access.OPERATOR, tasks.cleanup_tokens, event="cleanup-tokens"
    ),
    Route("GET", "/api/users/openapi.json", Access.ANYONE, document.as_document),
    Route("GET", "/api/users/docs", Access.ANYONE, document.as_page),
    Route("GET", "/health", Access.ANYONE, health.alive, is_probe=True),
    Route("GET", "/ready", Access.ANYONE, health.ready, is_probe=True),
    Route("GET", "/login", Access.ANYONE, pages.login),
    Route("GET", "/register", Access.REGISTRATION, pages.register),
    Route("GET", "/confirm-email", Access.REGISTRATION, pages.confirm_email),
    Route("GET", "/forgot-password", Access.ANYONE, pages.forgot_password),
    Route("GET", "/reset-password", Access.ANYONE, pages.reset_password),
    Route("GET", "/not-me", Access.ANYONE, pages.not_me),
    Route("GET", "/setup", Access.ANYONE, pages.setup),
    Route("GET", "/assets/<name>", Access.ANYONE, pages.asset),
    # Where an application has /, too.
    Route("GET", "/account", Access.SIGNED_IN, pages.profile),
    Route("GET", "/", Access.SIGNED_IN, pages.profile),
    Route("GET", "/users", Access.SIGNED_IN, pages.users),
)

# Only with --dev, on this machine: everybody's letters.
FOR_DEVELOPMENT: tuple[Route, ...] = (Route("GET", "/dev/mail", Access.ANYONE, pages.dev_mail),)
