"""The table of the HTTP interface: method, path, who may call, with which scope of API tokens, handler.

A path without a route is answered 401 before 404, so that an anonymous caller cannot probe which paths exist.
To add an endpoint, write its handler, describe it with @Operation(...), and add a row here.
"""

from usersctl.scopes import Scope
from usersd.handlers import (
    assistance,
    audit,
    bulk,
    claims,
    deletion,
    factors,
    first_admin,
    groups,
    health,
    identities,
    invitations,
    oauth,
    passkeys,
    recovery,
    registration,
    second_factor,
    session,
    tasks,
    tokens,
    users,
    verify,
)
from usersd.openapi.reference import Reference
from usersd.pages import pages
from usersd.routing import ANY, CALLBACK, CALLBACK_OF, Access, Limit, Route
from usersd.server.lanes import Lane

ANYONE, OPTIONAL_SESSION, SIGNED_IN = Access.ANYONE, Access.OPTIONAL_SESSION, Access.SIGNED_IN
OWN_OR_ADMIN, ADMIN, ADMIN_PAGE = Access.OWN_OR_ADMIN, Access.ADMIN, Access.ADMIN_PAGE
REGISTRATION, OPERATOR, THIS_MACHINE = Access.REGISTRATION, Access.OPERATOR, Access.THIS_MACHINE
USERS_READ, USERS_WRITE, ME = Scope.USERS_READ, Scope.USERS_WRITE, Scope.ME
SESSIONS_READ, SESSIONS_WRITE, TASKS, VERIFY = (
    Scope.SESSIONS_READ,
    Scope.SESSIONS_WRITE,
    Scope.TASKS,
    Scope.VERIFY,
)
NO = None  # closed to API tokens with scopes, where a session is looked up
reference = Reference(lambda: TABLE)

# The specific before the general: /api/users/me is not the user "me".
# fmt: off
TABLE: tuple[Route, ...] = (
    Route("POST",   "/api/users/session",                  ANYONE,           NO,             session.login, Limit.FAILED_LOGINS, Lane.HASHING, event="login", spares=session.is_known_device),
    Route("DELETE", "/api/users/session",                  ANYONE,           NO,             session.logout, event="logout"),
    Route("POST",   "/api/users/session/confirm",          SIGNED_IN,        NO,             session.confirm, Limit.FAILED_LOGINS, Lane.HASHING, event="confirm", own=ANY, enrols=True),
    Route("GET",    "/api/users/session/second-factor",    ANYONE,           NO,             second_factor.methods),
    Route("POST",   "/api/users/session/second-factor",    ANYONE,           NO,             second_factor.finish, Limit.FAILED_LOGINS, event="second-factor", spares=second_factor.is_waiting),
    Route("POST",   "/api/users/session/passkey",          ANYONE,           NO,             passkeys.login, Limit.FAILED_LOGINS, event="passkey-login", spares=passkeys.is_known_device),
    Route("POST",   "/api/users/session/passkey/options",  OPTIONAL_SESSION, NO,             passkeys.options, None, Lane.QUICK, own=ANY),
    Route("POST",   "/api/users/setup",                    ANYONE,           NO,             first_admin.first_admin, None, Lane.HASHING, event="first-admin"),
    Route("POST",   "/api/users/register",                 REGISTRATION,     NO,             registration.register, Limit.REGISTRATIONS, Lane.HASHING, event="register"),
    Route("POST",   "/api/users/register/resend",          REGISTRATION,     NO,             registration.resend, Limit.FORGOTS, event="resend-confirmation"),
    Route("GET",    "/api/users/confirm-email",            REGISTRATION,     NO,             registration.confirm, None, Lane.WRITING, once=True, event="confirm-email"),
    Route("POST",   "/api/users/password/forgot",          ANYONE,           NO,             recovery.forgot, Limit.FORGOTS, event="forgot-password"),
    Route("POST",   "/api/users/password/reset",           ANYONE,           NO,             recovery.reset, None, Lane.HASHING, event="reset-password"),
    Route("POST",   "/api/users/not-me",                   ANYONE,           NO,             recovery.not_me, event="not-me"),
    Route("POST",   "/api/users/invite",                   ADMIN,            USERS_WRITE,    invitations.invite, event="invite"),
    Route("POST",   "/api/users/invite/accept",            ANYONE,           NO,             invitations.accept, None, Lane.HASHING, event="accept-invitation"),
    Route("POST",   "/api/users/confirm-deletion",         ANYONE,           NO,             deletion.confirm_deletion, event="confirm-deletion"),
    Route("POST",   "/api/users/undo-deletion",            ANYONE,           NO,             deletion.undo_deletion, event="undo-deletion"),
    Route("GET",    "/api/users/me",                       SIGNED_IN,        ME,             users.read_me, None, Lane.HERE, enrols=True),
    Route("PATCH",  "/api/users/me",                       SIGNED_IN,        ME,             users.change_me, Limit.OWN_CHANGES, event="update-self", own="email"),
    Route("DELETE", "/api/users/me",                       SIGNED_IN,        NO,             deletion.delete_me, Limit.OWN_CHANGES, Lane.HASHING, event="delete-self", own=ANY),
    Route("GET",    "/api/users/me/email",                 SIGNED_IN,        NO,             claims.read),
    Route("POST",   "/api/users/me/email",                 OPTIONAL_SESSION, NO,             claims.prove, Limit.FAILED_LOGINS, Lane.HASHING, event="prove-email", own=ANY),
    Route("DELETE", "/api/users/me/email",                 SIGNED_IN,        NO,             claims.take_back, event="take-back-email", own=ANY),
    Route("POST",   "/api/users/me/email/resend",          SIGNED_IN,        NO,             claims.resend, Limit.OWN_CHANGES, event="resend-new-email", own=ANY),
    Route("GET",    "/api/users/me/factors",               SIGNED_IN,        NO,             factors.read, own=ANY, enrols=True),
    Route("POST",   "/api/users/me/totp",                  SIGNED_IN,        NO,             factors.begin_totp, Limit.OWN_FACTORS, event="totp-begin", own=ANY, enrols=True),
    Route("POST",   "/api/users/me/totp/confirm",          SIGNED_IN,        NO,             factors.confirm_totp, Limit.OWN_FACTORS, event="totp-confirm", own=ANY, enrols=True),
    Route("DELETE", "/api/users/me/totp",                  SIGNED_IN,        NO,             factors.remove_totp, event="totp-remove", own=ANY),
    Route("POST",   "/api/users/me/passkeys/options",      SIGNED_IN,        NO,             passkeys.begin, Limit.OWN_FACTORS, event="passkey-begin", own=ANY, enrols=True),
    Route("POST",   "/api/users/me/passkeys",              SIGNED_IN,        NO,             passkeys.add, Limit.OWN_FACTORS, event="passkey-add", own=ANY, enrols=True),
    Route("PATCH",  "/api/users/me/passkeys/<passkey_id>", SIGNED_IN,        NO,             passkeys.rename, Limit.OWN_FACTORS, event="passkey-rename", own=ANY),
    Route("DELETE", "/api/users/me/passkeys/<passkey_id>", SIGNED_IN,        NO,             passkeys.remove, event="passkey-remove", own=ANY),
    Route("POST",   "/api/users/me/recovery-codes",        SIGNED_IN,        NO,             factors.new_recovery_codes, Limit.OWN_FACTORS, event="recovery-codes", own=ANY),
    Route("GET",    "/api/users/me/sessions",              SIGNED_IN,        ME,             session.list_own),
    Route("DELETE", "/api/users/me/sessions/<session_id>", SIGNED_IN,        NO,             session.end_own, event="revoke", own=ANY),
    Route("GET",    "/api/users/me/tokens",                SIGNED_IN,        NO,             tokens.list_own),
    Route("POST",   "/api/users/me/tokens",                SIGNED_IN,        NO,             tokens.create_own, Limit.OWN_CHANGES, event="create-token", own=ANY),
    Route("DELETE", "/api/users/me/tokens/<token_id>",     SIGNED_IN,        NO,             tokens.end_own, event="revoke", own=ANY),
    Route("GET",    "/api/users/me/identities",            SIGNED_IN,        NO,             identities.list_own),
    Route("POST",   "/api/users/me/identities/<provider>", SIGNED_IN,        NO,             identities.connect, Limit.OWN_CHANGES, Lane.AWAY, event="connect", own=ANY),
    Route("DELETE", "/api/users/me/identities/<provider>", SIGNED_IN,        NO,             identities.disconnect, event="unlink", own=ANY),
    Route("POST",   "/api/users/me/sessions/end-others",   SIGNED_IN,        NO,             session.end_others, Limit.OWN_CHANGES, event="end-others", own=ANY),
    Route("PATCH",  "/api/users/password",                 SIGNED_IN,        NO,             users.change_password, Limit.FAILED_LOGINS, Lane.HASHING, event="change-password", own=ANY),
    Route("GET",    "/api/users",                          ADMIN,            USERS_READ,     users.list_all),
    Route("POST",   "/api/users",                          ADMIN,            USERS_WRITE,    users.create, None, Lane.HASHING, event="create"),
    Route("GET",    "/api/users/inactive",                 ADMIN,            USERS_READ,     users.list_inactive),
    Route("POST",   "/api/users/bulk",                     ADMIN,            USERS_WRITE,    bulk.change, event="bulk"),
    Route("GET",    "/api/users/<id>",                     OWN_OR_ADMIN,     USERS_READ,     users.read),
    Route("PATCH",  "/api/users/<id>",                     ADMIN,            USERS_WRITE,    users.change, event="update", own="email"),
    Route("DELETE", "/api/users/<id>",                     ADMIN,            USERS_WRITE,    users.delete, event="delete", own=ANY),
    Route("GET",    "/api/users/<id>/sessions",            ADMIN,            SESSIONS_READ,  session.list_of_user),
    Route("DELETE", "/api/users/<id>/sessions",            ADMIN,            SESSIONS_WRITE, session.end_of_user, event="revoke-all", own=ANY),
    Route("DELETE", "/api/users/<id>/sessions/<session_id>", ADMIN,          SESSIONS_WRITE, session.end_one_of_user, event="revoke", own=ANY),
    Route("DELETE", "/api/users/<id>/factors",             ADMIN,            NO,             factors.reset, event="reset-factors", own=ANY),
    Route("GET",    "/api/users/<id>/why",                 ADMIN,            USERS_READ,     assistance.why),
    Route("POST",   "/api/users/<id>/unlock",              ADMIN,            USERS_WRITE,    assistance.unlock, event="unlock", own=ANY),
    Route("POST",   "/api/users/<id>/reset-letter",        ADMIN,            USERS_WRITE,    assistance.send_reset, event="email-reset", own=ANY),
    Route("POST",   "/api/users/<id>/confirm-letter",      ADMIN,            USERS_WRITE,    assistance.send_confirmation, event="email-confirm", own=ANY),
    Route("POST",   "/api/users/<id>/invite",              ADMIN,            USERS_WRITE,    invitations.invite_again, event="invite", own=ANY),
    Route("DELETE", "/api/users/<id>/invite",              ADMIN,            USERS_WRITE,    invitations.withdraw, event="withdraw-invitation", own=ANY),
    Route("GET",    "/api/users/<id>/groups",              ADMIN,            USERS_READ,     groups.list_of_user),
    Route("PUT",    "/api/users/<id>/groups",              ADMIN,            USERS_WRITE,    groups.set_of_user, event="set-groups", own=ANY),
    Route("GET",    "/api/groups",                         ADMIN,            USERS_READ,     groups.list_all),
    Route("POST",   "/api/groups",                         ADMIN,            USERS_WRITE,    groups.create, event="group-create"),
    Route("DELETE", "/api/groups/<group>",                 ADMIN,            USERS_WRITE,    groups.delete, event="group-delete"),
    Route("GET",    "/api/audit",                          ADMIN,            USERS_READ,     audit.rows),
    Route("GET",    "/api/audit/check",                    ADMIN,            USERS_READ,     audit.check),
    Route("GET",    "/api/users/auth/oauth/redirect",      ANYONE,           NO,             oauth.redirect, Limit.WAYS_TO_PROVIDER, Lane.AWAY, signs_in=True),
    Route("GET",    CALLBACK_OF,                           ANYONE,           NO,             oauth.callback_of, Limit.WAYS_BACK, Lane.AWAY, once=True, signs_in=True, event="oauth"),
    Route("GET",    CALLBACK,                              ANYONE,           NO,             oauth.callback, Limit.WAYS_BACK, Lane.AWAY, once=True, signs_in=True, event="oauth"),
    Route("GET",    "/api/users/auth/verify",              ANYONE,           VERIFY,         verify.verify, Limit.FAILED_LOGINS, Lane.HERE, judges_first=True),  # the answer is the decision
    Route("GET",    "/_tasks/",                            OPERATOR,         TASKS,          tasks.list_tasks),
    Route("POST",   "/_tasks/users:cleanup-tokens",        OPERATOR,         TASKS,          tasks.cleanup_tokens, event="cleanup-tokens"),
    Route("GET",    "/api/users/openapi.json",             ANYONE,           NO,             reference.as_document),
    Route("GET",    "/api/users/docs",                     ANYONE,           NO,             reference.as_page),
    Route("GET",    "/health",                             ANYONE,           NO,             health.alive, is_probe=True),
    Route("GET",    "/ready",                              ANYONE,           NO,             health.ready, is_probe=True),
    Route("GET",    "/login",                              OPTIONAL_SESSION, NO,             pages.login),
    Route("GET",    "/logout",                             OPTIONAL_SESSION, NO,             pages.logout),
    Route("POST",   "/logout",                             ANYONE,           NO,             session.logout_by_form, event="logout"),
    Route("GET",    "/second-factor",                      OPTIONAL_SESSION, NO,             pages.second_factor),
    Route("GET",    "/register",                           REGISTRATION,     NO,             pages.register),
    Route("GET",    "/confirm-email",                      REGISTRATION,     NO,             pages.confirm_email),
    Route("GET",    "/forgot-password",                    ANYONE,           NO,             pages.forgot_password),
    Route("GET",    "/reset-password",                     ANYONE,           NO,             pages.reset_password),
    Route("GET",    "/not-me",                             ANYONE,           NO,             pages.not_me),
    Route("GET",    "/confirm-deletion",                   ANYONE,           NO,             pages.confirm_deletion),
    Route("GET",    "/undo-deletion",                      ANYONE,           NO,             pages.undo_deletion),
    Route("GET",    "/confirm-new-email",                  OPTIONAL_SESSION, NO,             pages.confirm_new_email),
    Route("GET",    "/accept-invite",                      ANYONE,           NO,             pages.accept_invite),
    Route("GET",    "/setup",                              ANYONE,           NO,             pages.setup),
    Route("GET",    "/assets/<name>",                      ANYONE,           NO,             pages.asset),
    Route("GET",    "/account",                            SIGNED_IN,        NO,             pages.profile, enrols=True),  # where an application has /
    Route("GET",    "/.well-known/change-password",        SIGNED_IN,        NO,             pages.change_password),
    Route("GET",    "/",                                   SIGNED_IN,        NO,             pages.home),
    Route("GET",    "/users",                              ADMIN_PAGE,       NO,             pages.users),
    Route("GET",    "/overview",                           ADMIN_PAGE,       NO,             pages.overview),
    Route("GET",    "/audit",                              ADMIN_PAGE,       NO,             pages.audit),
    Route("GET",    "/users/groups",                       ADMIN_PAGE,       NO,             pages.groups),
    Route("GET",    "/users/<id>",                         ADMIN_PAGE,       NO,             pages.user),
)
# fmt: on

# Only with --dev: all emails that were caught, whose links open accounts.
FOR_DEVELOPMENT = (Route("GET", "/dev/mail", THIS_MACHINE, NO, pages.dev_mail),)
