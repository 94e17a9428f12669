"""Guesses which columns of another application's table hold our fields, by their names."""

from collections.abc import Iterable, Mapping, Sequence

from usersctl.config import Settings
from usersctl.config.providers import host_of
from usersctl.errors import Invalid
from usersctl.text import listed
from usersctl.transfer.foreign import EXTERNAL, JOINED_ROLES, folded

# Columns that make an account inactive where they have a value.
DENYING = (
    "disabled", "isdisabled", "disabledat", "blocked", "isblocked", "blockedat",
    "banned", "isbanned", "bannedat", "banneduntil", "suspended", "issuspended", "suspendedat", "suspendedtill",
    "deactivated", "isdeactivated", "deactivatedat", "deleted", "isdeleted", "deletedat", "discardedat",
)  # fmt: skip
_GRANTING = ("active", "isactive", "enabled", "isenabled")

# Column names of other applications for each of our fields, the likeliest first, in their folded form.
NAMES: dict[str, tuple[str, ...]] = {
    "email": ("email", "emailaddress", "mail", "useremail", "primaryemail"),
    "name": ("name", "fullname", "displayname", "realname"),
    "role": ("role", "userrole", "usertype", "isadmin", "issuperuser", "admin",
             *JOINED_ROLES),
    "active": (*_GRANTING, *DENYING),
    "confirmed": ("confirmed", "isconfirmed", "verified", "isverified", "emailverified", "emailconfirmed",
                  "confirmedat", "verifiedat", "emailverifiedat", "emailconfirmedat", "emailprovenat"),
    "password_hash": ("passwordhash", "hashedpassword", "encryptedpassword", "passworddigest", "password",
                      "passwd", "userpass", "pwhash", "hash"),
    "created_at": ("createdat", "created", "datejoined", "registeredat", "signupat", "creationdate",
                   "createddate", "createdon", "insertedat", "joinedat",
                   "createdatetime", "userregistered"),
    # Devise has both: the current one came after the last one.
    "last_login_at": ("lastloginat", "lastlogin", "currentsigninat", "lastsigninat", "lastsignin"),
    "oauth_id": ("oauthid", "oauthsub", "oauthuid", "oidcsub", "oidcid", "openid", "providerid",
                 "provideruserid", "provideruid", "externalid", "sub"),
    "profile_picture": ("profilepicture", "picture", "pictureurl", "avatarurl", "avatar", "photourl", "photo",
                        "imageurl", "image"),
}  # fmt: skip
FIELDS = (*NAMES, "password")
PARTS_OF_NAMES = (("firstname", "givenname"), ("lastname", "familyname", "surname"))
SECOND_BEST_NAMES = ("username", "login", "userlogin", "nickname")


def map_columns(
    columns: Sequence[str], overrides: Mapping[str, str], settings: Settings
) -> dict[str, list[str]]:
    """The columns of each field, to be joined. In `overrides`, from --map, an empty name leaves the field out."""
    mapping = _guess(columns, settings)
    for field, theirs in overrides.items():
        option = f"--map {field}={theirs}"
        if field not in FIELDS:
            raise Invalid(f"{option}: no column {field!r} here", hint=f"there are {', '.join(FIELDS)}")
        mapping[field] = _named(columns, theirs, option) if theirs else []
    if "password" in overrides and "password_hash" not in overrides:
        mapping["password_hash"] = []
    if not mapping["email"]:
        hint = f"say which it is with --map email=COLUMN; there are {_listed(columns)}"
        raise Invalid("No column looks like one of email addresses", hint=hint)
    return {field: mapping[field] for field in FIELDS if mapping.get(field)}


def _named(columns: Sequence[str], theirs: str, option: str) -> list[str]:
    by_name = {name.lower(): name for name in columns}
    if theirs.lower() in by_name:
        return [by_name[theirs.lower()]]
    names = [name.strip() for name in theirs.split("+")]
    unknown = next((name for name in names if name.lower() not in by_name), None)
    if unknown is not None:
        raise Invalid(f"{option}: no column {unknown!r} there", hint=f"there are {_listed(columns)}")
    return [by_name[name.lower()] for name in names]


def _listed(columns: Sequence[str]) -> str:
    return listed([name[:40] for name in columns], 30) or "none"


def _guess(columns: Sequence[str], settings: Settings) -> dict[str, list[str]]:
    by_name = {folded(name): name for name in reversed(columns)}

    def first(names: Iterable[str]) -> list[str]:
        return [by_name[name] for name in names if name in by_name][:1]

    mapping = {field: first(names) for field, names in NAMES.items()}
    if not mapping["name"]:
        parts = [column for names in PARTS_OF_NAMES for column in first(names)]
        mapping["name"] = parts or first(SECOND_BEST_NAMES)
    # An account that is active and banned is not active, so all of them count.
    mapping["active"] = first(_GRANTING) + [by_name[name] for name in DENYING if name in by_name]
    mapping["oauth_id"] = first(_provider_ids(settings, by_name)) or mapping["oauth_id"]
    return mapping


def _provider_ids(settings: Settings, names: Iterable[str]) -> list[str]:
    """Columns with ids of the configured provider: an id counts only there. Without one, the only such column."""
    known = ("googleid", "githubid", "gitlabid")
    ids = [name for name in names if name.startswith(EXTERNAL) or name in known]
    if not settings.oauth_client_id:
        return ids if len(ids) == 1 else []
    hosts = {"accounts.google.com": "google", "gitlab.com": "gitlab"}
    provider = hosts.get(host_of(settings.oauth_issuer), "oidc")
    if settings.oauth_provider == "github":
        provider = "github"
    return [name for name in (f"{provider}id", EXTERNAL + provider) if name in ids]
