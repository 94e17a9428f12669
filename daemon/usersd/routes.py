"""The table of the HTTP interface: method, path, who may call, handler.

A path without a route is answered 401 before 404, so that an anonymous caller cannot probe which paths exist.
To add an endpoint, write its handler, describe it with @Operation(...), and add a row here.
"""

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
reference = Reference(lambda: TABLE)

# The specific before the general: /api/users/me is not the user "me".
# fmt: off
TABLE: tuple[Route, ...] = (
    Route("POST",   "/api/users/session",                  ANYONE,           session.login, Limit.FAILED_LOGINS, Lane.HASHING, event="login", spares=session.is_known_device),
    Route("DELETE", "/api/users/session",                  ANYONE,           session.logout, event="logout"),
    Route("POST",   "/api/users/session/confirm",          SIGNED_IN,        session.confirm, Limit.FAILED_LOGINS, Lane.HASHING, event="confirm", own=ANY, enrols=True),
    Route("GET",    "/api/users/session/second-factor",    ANYONE,           second_factor.methods),
    Route("POST",   "/api/users/session/second-factor",    ANYONE,           second_factor.finish, Limit.FAILED_LOGINS, event="second-factor", spares=second_factor.is_waiting),
    Route("POST",   "/api/users/session/passkey",          ANYONE,           passkeys.login, Limit.FAILED_LOGINS, event="passkey-login"),
    Route("POST",   "/api/users/session/passkey/options",  OPTIONAL_SESSION, passkeys.options, None, Lane.QUICK, own=ANY),
    Route("POST",   "/api/users/setup",                    ANYONE,           first_admin.first_admin, None, Lane.HASHING, event="first-admin"),
    Route("POST",   "/api/users/register",                 REGISTRATION,     registration.register, Limit.REGISTRATIONS, Lane.HASHING, event="register"),
    Route("POST",   "/api/users/register/resend",          REGISTRATION,     registration.resend, Limit.FORGOTS, event="resend-confirmation"),
    Route("GET",    "/api/users/confirm-email",            REGISTRATION,     registration.confirm, None, Lane.WRITING, once=True, event="confirm-email"),
    Route("POST",   "/api/users/password/forgot",          ANYONE,           recovery.forgot, Limit.FORGOTS, event="forgot-password"),
    Route("POST",   "/api/users/password/reset",           ANYONE,           recovery.reset, None, Lane.HASHING, event="reset-password"),
    Route("POST",   "/api/users/not-me",                   ANYONE,           recovery.not_me, event="not-me"),
    Route("POST",   "/api/users/invite",                   ADMIN,            invitations.invite, event="invite"),
    Route("POST",   "/api/users/invite/accept",            ANYONE,           invitations.accept, None, Lane.HASHING, event="accept-invitation"),
    Route("POST",   "/api/users/confirm-deletion",         ANYONE,           deletion.confirm_deletion, event="confirm-deletion"),
    Route("POST",   "/api/users/undo-deletion",            ANYONE,           deletion.undo_deletion, event="undo-deletion"),
    Route("GET",    "/api/users/me",                       SIGNED_IN,        users.read_me, None, Lane.HERE, enrols=True),
    Route("PATCH",  "/api/users/me",                       SIGNED_IN,        users.change_me, Limit.OWN_CHANGES, event="update-self", own="email"),
    Route("DELETE", "/api/users/me",                       SIGNED_IN,        deletion.delete_me, Limit.OWN_CHANGES, Lane.HASHING, event="delete-self", own=ANY),
    Route("GET",    "/api/users/me/email",                 SIGNED_IN,        claims.read),
    Route("POST",   "/api/users/me/email",                 OPTIONAL_SESSION, claims.prove, Limit.FAILED_LOGINS, Lane.HASHING, event="prove-email"),
    Route("DELETE", "/api/users/me/email",                 SIGNED_IN,        claims.take_back, event="take-back-email", own=ANY),
    Route("POST",   "/api/users/me/email/resend",          SIGNED_IN,        claims.resend, Limit.OWN_CHANGES, event="resend-new-email", own=ANY),
    Route("GET",    "/api/users/me/factors",               SIGNED_IN,        factors.read, own=ANY, enrols=True),
    Route("POST",   "/api/users/me/totp",                  SIGNED_IN,        factors.begin_totp, Limit.OWN_CHANGES, event="totp-begin", own=ANY, enrols=True),
    Route("POST",   "/api/users/me/totp/confirm",          SIGNED_IN,        factors.confirm_totp, Limit.OWN_CHANGES, event="totp-confirm", own=ANY, enrols=True),
    Route("DELETE", "/api/users/me/totp",                  SIGNED_IN,        factors.remove_totp, event="totp-remove", own=ANY),
    Route("POST",   "/api/users/me/passkeys/options",      SIGNED_IN,        passkeys.begin, Limit.OWN_CHANGES, event="passkey-begin", own=ANY, enrols=True),
    Route("POST",   "/api/users/me/passkeys",              SIGNED_IN,        passkeys.add, Limit.OWN_CHANGES, event="passkey-add", own=ANY, enrols=True),
    Route("PATCH",  "/api/users/me/passkeys/<passkey_id>", SIGNED_IN,        passkeys.rename, Limit.OWN_CHANGES, event="passkey-rename", own=ANY),
    Route("DELETE", "/api/users/me/passkeys/<passkey_id>", SIGNED_IN,        passkeys.remove, event="passkey-remove", own=ANY),
    Route("POST",   "/api/users/me/recovery-codes",        SIGNED_IN,        factors.new_recovery_codes, Limit.OWN_CHANGES, event="recovery-codes", own=ANY),
    Route("GET",    "/api/users/me/sessions",              SIGNED_IN,        session.list_own),
    Route("DELETE", "/api/users/me/sessions/<session_id>", SIGNED_IN,        session.end_own, event="revoke", own=ANY),
    Route("GET",    "/api/users/me/identities",            SIGNED_IN,        identities.list_own),
    Route("POST",   "/api/users/me/identities/<provider>", SIGNED_IN,        identities.connect, Limit.OWN_CHANGES, Lane.AWAY, event="connect", own=ANY),
    Route("DELETE", "/api/users/me/identities/<provider>", SIGNED_IN,        identities.disconnect, event="unlink", own=ANY),
    Route("POST",   "/api/users/me/sessions/end-others",   SIGNED_IN,        session.end_others, Limit.OWN_CHANGES, event="end-others", own=ANY),
    Route("PATCH",  "/api/users/password",                 SIGNED_IN,        users.change_password, Limit.FAILED_LOGINS, Lane.HASHING, event="change-password", own=ANY),
    Route("GET",    "/api/users",                          ADMIN,            users.list_all),
    Route("POST",   "/api/users",                          ADMIN,            users.create, None, Lane.HASHING, event="create"),
    Route("GET",    "/api/users/inactive",                 ADMIN,            users.list_inactive),
    Route("POST",   "/api/users/bulk",                     ADMIN,            bulk.change, event="bulk"),
    Route("GET",    "/api/users/<id>",                     OWN_OR_ADMIN,     users.read),
    Route("PATCH",  "/api/users/<id>",                     ADMIN,            users.change, event="update", own="email"),
    Route("DELETE", "/api/users/<id>",                     ADMIN,            users.delete, event="delete", own=ANY),
    Route("GET",    "/api/users/<id>/sessions",            ADMIN,            session.list_of_user),
    Route("DELETE", "/api/users/<id>/sessions",            ADMIN,            session.end_of_user, event="revoke-all", own=ANY),
    Route("DELETE", "/api/users/<id>/sessions/<session_id>", ADMIN,          session.end_one_of_user, event="revoke", own=ANY),
    Route("DELETE", "/api/users/<id>/factors",             ADMIN,            factors.reset, event="reset-factors", own=ANY),
    Route("GET",    "/api/users/<id>/why",                 ADMIN,            assistance.why),
    Route("POST",   "/api/users/<id>/unlock",              ADMIN,            assistance.unlock, event="unlock", own=ANY),
    Route("POST",   "/api/users/<id>/reset-letter",        ADMIN,            assistance.send_reset, event="email-reset", own=ANY),
    Route("POST",   "/api/users/<id>/confirm-letter",      ADMIN,            assistance.send_confirmation, event="email-confirm", own=ANY),
    Route("POST",   "/api/users/<id>/invite",              ADMIN,            invitations.invite_again, event="invite", own=ANY),
    Route("DELETE", "/api/users/<id>/invite",              ADMIN,            invitations.withdraw, event="withdraw-invitation", own=ANY),
    Route("GET",    "/api/users/<id>/groups",              ADMIN,            groups.list_of_user),
    Route("PUT",    "/api/users/<id>/groups",              ADMIN,            groups.set_of_user, event="set-groups", own=ANY),
    Route("GET",    "/api/groups",                         ADMIN,            groups.list_all),
    Route("POST",   "/api/groups",                         ADMIN,            groups.create, event="group-create"),
    Route("DELETE", "/api/groups/<group>",                 ADMIN,            groups.delete, event="group-delete"),
    Route("GET",    "/api/audit",                          ADMIN,            audit.rows),
    Route("GET",    "/api/audit/check",                    ADMIN,            audit.check),
    Route("GET",    "/api/users/auth/oauth/redirect",      ANYONE,           oauth.redirect, Limit.WAYS_TO_PROVIDER, Lane.AWAY, signs_in=True),
    Route("GET",    CALLBACK_OF,                           ANYONE,           oauth.callback_of, Limit.WAYS_BACK, Lane.AWAY, once=True, signs_in=True, event="oauth"),
    Route("GET",    CALLBACK,                              ANYONE,           oauth.callback, Limit.WAYS_BACK, Lane.AWAY, once=True, signs_in=True, event="oauth"),
    Route("GET",    "/api/users/auth/verify",              ANYONE,           verify.verify, Limit.FAILED_LOGINS, Lane.HERE, spares=verify.is_judged_first),  # the answer is the decision
    Route("GET",    "/_tasks/",                            OPERATOR,         tasks.list_tasks),
    Route("POST",   "/_tasks/users:cleanup-tokens",        OPERATOR,         tasks.cleanup_tokens, event="cleanup-tokens"),
    Route("GET",    "/api/users/openapi.json",             ANYONE,           reference.as_document),
    Route("GET",    "/api/users/docs",                     ANYONE,           reference.as_page),
    Route("GET",    "/health",                             ANYONE,           health.alive, is_probe=True),
    Route("GET",    "/ready",                              ANYONE,           health.ready, is_probe=True),
    Route("GET",    "/login",                              OPTIONAL_SESSION, pages.login),
    Route("GET",    "/logout",                             OPTIONAL_SESSION, pages.logout),
    Route("POST",   "/logout",                             ANYONE,           session.logout_by_form, event="logout"),
    Route("GET",    "/second-factor",                      OPTIONAL_SESSION, pages.second_factor),
    Route("GET",    "/register",                           REGISTRATION,     pages.register),
    Route("GET",    "/confirm-email",                      REGISTRATION,     pages.confirm_email),
    Route("GET",    "/forgot-password",                    ANYONE,           pages.forgot_password),
    Route("GET",    "/reset-password",                     ANYONE,           pages.reset_password),
    Route("GET",    "/not-me",                             ANYONE,           pages.not_me),
    Route("GET",    "/confirm-deletion",                   ANYONE,           pages.confirm_deletion),
    Route("GET",    "/undo-deletion",                      ANYONE,           pages.undo_deletion),
    Route("GET",    "/confirm-new-email",                  OPTIONAL_SESSION, pages.confirm_new_email),
    Route("GET",    "/accept-invite",                      ANYONE,           pages.accept_invite),
    Route("GET",    "/setup",                              ANYONE,           pages.setup),
    Route("GET",    "/assets/<name>",                      ANYONE,           pages.asset),
    Route("GET",    "/account",                            SIGNED_IN,        pages.profile, enrols=True),  # where an application has /
    Route("GET",    "/",                                   SIGNED_IN,        pages.home),
    Route("GET",    "/users",                              ADMIN_PAGE,       pages.users),
    Route("GET",    "/overview",                           ADMIN_PAGE,       pages.overview),
    Route("GET",    "/audit",                              ADMIN_PAGE,       pages.audit),
    Route("GET",    "/users/groups",                       ADMIN_PAGE,       pages.groups),
    Route("GET",    "/users/<id>",                         ADMIN_PAGE,       pages.user),
)
# fmt: on

# Only with --dev: all emails that were caught, whose links open accounts.
FOR_DEVELOPMENT = (Route("GET", "/dev/mail", THIS_MACHINE, pages.dev_mail),)
