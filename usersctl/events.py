"""Which events an action tells: the one table of all actions of the audit trail, and of the sign-in, which has no row there."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

TRIED_FOR = timedelta(days=3)  # then an event that its webhook has not taken is given up

USER_CREATED = "user.created"
USER_CONFIRMED = "user.confirmed"
USER_UPDATED = "user.updated"
USER_DELETED = "user.deleted"
USER_ACTIVATED = "user.activated"
USER_DEACTIVATED = "user.deactivated"
SESSION_CREATED = "session.created"
SESSION_REVOKED = "session.revoked"
FACTOR_CHANGED = "factor.changed"
LOCKDOWN_ON = "lockdown.on"
LOCKDOWN_OFF = "lockdown.off"
WEBHOOK_TEST = "webhook.test"  # by an operator; no action tells it

EVENTS = (
    USER_CREATED,
    USER_CONFIRMED,
    USER_UPDATED,
    USER_DELETED,
    USER_ACTIVATED,
    USER_DEACTIVATED,
    SESSION_CREATED,
    SESSION_REVOKED,
    FACTOR_CHANGED,
    LOCKDOWN_ON,
    LOCKDOWN_OFF,
    WEBHOOK_TEST,
)

SIGN_IN = "sign-in"  # no row of the trail: it would grow with each
# A new password ends sessions. What deactivates, deletes or locks all out ends them, too, and has an event of its own.
_NEW_PASSWORD = (USER_UPDATED, SESSION_REVOKED)

OF_ACTION: dict[str, tuple[str, ...]] = {
    "accept-invitation": (USER_CONFIRMED,),
    "activate": (USER_ACTIVATED,),
    "change-password": _NEW_PASSWORD,
    "confirm-email": (USER_CONFIRMED,),
    "create": (USER_CREATED,),
    "create-token": (SESSION_CREATED,),
    "deactivate": (USER_DEACTIVATED,),
    "delete": (USER_DELETED,),
    "end-others": (SESSION_REVOKED,),
    "factor-add": (FACTOR_CHANGED,),
    "factor-remove": (FACTOR_CHANGED,),
    "factor-take-back": (FACTOR_CHANGED,),
    "import": (USER_CREATED,),
    "import-update": (USER_UPDATED,),
    "invite": (USER_CREATED,),
    "link": (USER_UPDATED,),
    "lockdown-off": (LOCKDOWN_OFF,),
    "lockdown-on": (LOCKDOWN_ON,),
    "not-me": _NEW_PASSWORD,
    "prove-email": (USER_UPDATED,),
    "recovery-code-used": (FACTOR_CHANGED,),
    "recovery-codes": (FACTOR_CHANGED,),
    "register": (USER_CREATED,),
    "registration-expired": (USER_DELETED,),
    "replace-password": (USER_UPDATED,),
    "request-deletion": (USER_DEACTIVATED,),
    "reset-factors": (FACTOR_CHANGED, SESSION_REVOKED),
    "reset-password": _NEW_PASSWORD,
    "revoke": (SESSION_REVOKED,),
    "revoke-all": (SESSION_REVOKED,),
    "set-password": _NEW_PASSWORD,
    SIGN_IN: (SESSION_CREATED,),
    "sign-out": (SESSION_REVOKED,),
    "undo-deletion": (USER_ACTIVATED,),
    "unlink": (USER_UPDATED,),
    "update": (USER_UPDATED,),
    "withdraw-invitation": (USER_DELETED,),
    # None: they change no account that others know, and no session.
    "adopt": (),  # by a file of `usersctl apply`
    "backup": (),
    "claim-email": (),  # until the new address is proven, others know the old one
    "claim-ended": (),
    "claim-expired": (),
    "claim-taken-back": (),
    "claim-yielded": (),
    "cleanup-tokens": (),
    "email-confirm": (),
    "email-reset": (),
    "group-add": (),  # groups are no part of the user object
    "group-adopt": (),
    "group-create": (),
    "group-delete": (),
    "group-remove": (),
    "link-approve-new-email": (),
    "link-confirm": (),
    "link-confirm-new-email": (),
    "link-invitation": (),
    "link-reset": (),
    "passkey-refused": (),
    "passkey-rename": (),
    "restore": (),
    "rotate-key": (),
    "unlock": (),
}
ACTIONS = frozenset(OF_ACTION) - {SIGN_IN}  # that the trail has


# Told only where the details have this.
_ONLY_WITH = {"invite": "created", "withdraw-invitation": "removed"}  # else the account was there, or stays
# With one of these among the details, sessions ended as well.
_ENDS_SESSIONS_WITH = {
    "accept-invitation": ("was_active",),
    "import-update": ("password",),
    "link": ("password_replaced", "ended"),
}
_MAY_CHANGE_ACTIVE = ("import-update", "not-me", "update")
_BESIDE_ACTIVE = ("name", "role", "linked", "password")  # what else a row of an import changed


def events_of(action: str, details: Mapping[str, Any]) -> tuple[str, ...]:
    if action in _ONLY_WITH and not details.get(_ONLY_WITH[action]):
        return ()
    events = OF_ACTION.get(action, ())
    if any(map(details.get, _ENDS_SESSIONS_WITH.get(action, ()))):
        events += (SESSION_REVOKED,)
    if action in _MAY_CHANGE_ACTIVE and "active" in details:
        if action == "import-update" and not any(map(details.get, _BESIDE_ACTIVE)):
            events = ()
        events += (USER_ACTIVATED if details["active"] else USER_DEACTIVATED,)
    return events
