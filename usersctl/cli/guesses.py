"""What people type instead of the name of a command, as in other tools, and the command that they need."""

from collections.abc import Collection, Sequence

NOUNS = ("user", "users", "account", "accounts")

# fmt: off
GUESSES = {
    "create EMAIL":              "add new adduser useradd user-add createuser register signup",
    "create EMAIL --admin":      "add-admin create-admin createsuperuser admin setup",
    "list":                      "ls user users account accounts all",
    "list --search TEXT":        "find search grep",
    "show USER":                 "get info view id whois",
    "update USER":               "edit modify change set rename usermod",
    "update USER --role admin":  "promote grant make-admin role",
    "delete USER":               "rm remove del destroy userdel deluser",
    "activate USER":             "enable approve reactivate",
    "deactivate USER":           "disable block ban suspend lock",
    "set-password USER":         "passwd password chpasswd change-password changepassword",
    "set-password USER, or: usersctl link reset USER": "reset-password reset resetpassword forgot",
    "invite send EMAIL":        "invite:add invite:new invite:create",
    "invite list":              "invitations invites invite:ls invite:show",
    "invite resend USER":       "reinvite invite:again invite:retry",
    "invite revoke USER":       "uninvite invite:rm invite:remove invite:delete invite:cancel",
    "group list":               "groups group:ls",
    "group create GROUP":       "group:new group:make add-group addgroup groupadd create-group",
    "group delete GROUP":       "group:rm group:del delgroup groupdel delete-group",
    "group show GROUP":         "group:get group:info group:members members",
    "group add GROUP USER":     "group:join group:add-user usergroup",
    "group remove GROUP USER":  "group:leave group:kick group:remove-user",
    "import FILE":               "load restore-users",
    "export FILE":               "dump",
    "token create USER, or for people: usersctl serve": "login signin sign-in auth",
    "token create USER":         "api-token apikey token:add token:new token:generate",
    "token list":                "tokens session sessions token:ls token:show",
    "token revoke USER":         "logout signout kick token:rm token:remove token:delete",
    "factor list USER":          "factors 2fa mfa totp passkey passkeys factor:ls factor:show",
    "factor reset USER":         "reset-2fa disable-2fa remove-2fa reset-mfa disable-mfa reset-totp factor:rm factor:remove factor:delete",
    "apply FILE":                "sync provision state plan",
    "cleanup-tokens":            "cleanup clean prune gc token:cleanup token:clean token:prune",
    "mail list":                 "mails email emails outbox queue mail:ls mail:queue",
    "mail retry":                "send flush mail:send mail:resend mail:flush",
    "webhook list":              "webhooks hooks webhook:ls webhook:status",
    "webhook test NAME":         "webhook:ping webhook:send webhook:check",
    "webhook retry NAME":        "webhook:resend webhook:start webhook:enable webhook:resume",
    "link confirm USER":         "confirm resend",
    "mail test TO":              "testmail test-mail mail:check",
    "serve":                     "start restart run server daemon up serv",
    "serve --dev":               "dev demo try",
    "healthcheck":               "health ping ready",
    "doctor":                    "check status diagnose debug",
    "db init":                   "init initdb db:create db:setup",
    "db migrate":                "migrate upgrade db:upgrade db:update",
    "db status":                 "db:info db:version db:check",
    "db backup FILE":            "backup db:save db:dump db:copy",
    "db restore FILE":           "restore db:load",
    "audit":                     "log logs history events audit:list audit:show audit:ls",
    "lockdown on":               "lockdown:enable lockdown:start emergency",
    "lockdown off":              "lockdown:disable lockdown:stop lockdown:end",
    "config show":               "settings conf configuration config:list config:ls config:get config:print",
    "config check":              "validate config:test config:validate config:verify",
    "config path":               "config:where config:file config:edit config:set config:init",
    "config explain KEY":        "config:help config:doc",
    "snippet systemd":           "systemd service install",
    "snippet nginx":             "nginx",
    "snippet caddy":             "caddy proxy",
    "snippet traefik":           "traefik",
    "--version":                 "version",
    "--help":                    "help commands man usage",
}
# fmt: on


def command_for(words: Sequence[str], commands: Collection[str]) -> str | None:
    """The command that these words stand for, of those that there are: `list` for `user list`."""
    meant = {guess.replace(":", " "): command for command, line in GUESSES.items() for guess in line.split()}
    phrases = [" ".join(words[:2]), *words[:1]]
    if words[0] in NOUNS and len(words) > 1:
        if words[1] in commands:
            return words[1]
        phrases.insert(0, words[1])
    if words[0] == "help" and len(words) > 1 and words[1] in commands:
        return f"{words[1]} --help"
    return next((meant[phrase] for phrase in phrases if phrase in meant), None)
