"""What people type instead of a command or an option, as in other tools, and what they need."""

import shlex
from collections.abc import Collection, Sequence
from itertools import takewhile

NOUNS = ("user", "users", "account", "accounts")

# fmt: off
GUESSES = {
    "create EMAIL":              "add new adduser useradd user-add add-user createuser create-user register signup",
    "create EMAIL --admin":      "add-admin create-admin createsuperuser admin setup",
    "list":                      "ls user users account accounts all list-users list-user users-list",
    "list --search TEXT":        "find search grep",
    "list --role admin":         "admins list-admins",
    "show USER":                 "get info view id whois show-user get-user",
    "update USER":               "edit modify change set rename usermod update-user edit-user",
    "update USER --role admin":  "promote grant make-admin role",
    "delete USER":               "rm remove del destroy userdel deluser delete-user remove-user",
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
    "group add GROUP USER":     "group:join group:add-user group:add-member usergroup",
    "group remove GROUP USER":  "group:leave group:kick group:remove-user group:remove-member",
    "import FILE":               "load restore-users",
    "export FILE":               "dump",
    "token create USER, or for people: usersctl serve": "login signin sign-in auth",
    "token create USER":         "api-token apikey token:add token:new token:generate",
    "token list":                "tokens session sessions token:ls token:show",
    "token revoke USER":         "logout signout kick session:revoke session:end session:delete sessions:revoke token:rm token:remove token:delete",
    "factor list USER":          "factors 2fa mfa totp passkey passkeys factor:ls factor:show",
    "factor reset USER":         "reset-2fa disable-2fa remove-2fa reset-mfa disable-mfa reset-totp factor:rm factor:remove factor:delete factor:disable",
    "apply FILE":                "sync provision state plan",
    "cleanup-tokens":            "cleanup clean prune purge gc token:cleanup token:clean token:prune",
    "mail list":                 "mails email emails outbox queue mail:ls mail:queue",
    "mail retry":                "send flush mail:send mail:resend mail:flush",
    "webhook list":              "webhooks hooks webhook:ls webhook:status",
    "config explain webhooks":   "webhook:add webhook:create webhook:new webhook:delete webhook:remove webhook:rm",
    "webhook test NAME":         "webhook:ping webhook:send webhook:check",
    "webhook retry NAME":        "webhook:resend webhook:start webhook:enable webhook:resume",
    "link confirm USER":         "confirm resend",
    "mail test TO":              "testmail test-mail send-mail sendmail mail:check",
    "serve":                     "start restart run server daemon up serv",
    "serve --dev":               "dev demo try",
    "healthcheck":               "health ping ready",
    "doctor":                    "check status diagnose debug",
    "db init":                   "init initdb db:create db:setup",
    "db migrate":                "migrate upgrade db:upgrade db:update",
    "db status":                 "db:info db:version db:check db:path db:show db:list stats count",
    "db backup FILE":            "backup db:save db:dump db:copy",
    "db restore FILE":           "restore db:load",
    "audit":                     "log logs history events tail audit:list audit:show audit:ls audit:tail",
    "lockdown on":               "lockdown:enable lockdown:start emergency",
    "lockdown off":              "lockdown:disable lockdown:stop lockdown:end",
    "key rotate":                "key:new key:generate key:create key:renew key:change",
    "config show":               "settings conf configuration config:list config:ls config:get config:print",
    "config check":              "validate config:test config:validate config:verify",
    "config path":               "config:where config:file config:edit config:set config:init",
    "config explain KEY":        "config:help config:doc",
    "snippet systemd":           "systemd service install",
    "snippet nginx":             "nginx",
    "snippet caddy":             "caddy proxy",
    "snippet traefik":           "traefik",
    "--install-completion":      "completion completions autocomplete install-completion",
    "--version":                 "version",
    "--help":                    "help commands man usage",
}

# The same for options: each counts where a command has it. `update:--active` is for one command, which may have none such.
OPTIONS = {
    "--yes":            "-y --force --assume-yes --confirm delete:-f",
    "--quiet":          "-q --silent -s",
    "--json":           "-j --format list:--output list:-o",
    "--debug":          "--verbose --trace",
    "--version":        "-v -V",
    "--config":         "-c",
    "--db":             "-d --database",
    "--no-input":       "--batch --non-interactive --noninteractive",
    "--dry-run":        "-n --dryrun --check --simulate --preview",
    "--plan":           "--diff --show",
    "--limit":          "-n --count --max --head --per-page",
    "--follow":         "-f -F --tail --watch",
    "--format":         "-f --type",
    "--state":          "--status --locked --invited",
    "--role admin":     "list:--admin list:--admins",
    "--search TEXT":    "--filter --query --grep list:--email list:--name",
    "--sort":           "--order --order-by --sort-by",
    "--desc":           "-r --reverse --descending",
    "--generate":       "--random --generate-password",
    "--password-stdin": "-p --password --pass --stdin",
    "--no-expiry":      "--never --no-expiration",
    "--expires":        "--expiry --ttl --expiration --valid --days --lifetime",
    "--include-no-expiration": "--include-no-expiry",
    "--on-conflict update": "--overwrite --upsert --replace --update",
    "--on-conflict skip": "--skip --skip-existing --ignore",
    "--if-missing":     "--if-not-exists --ignore-existing",
    "--if-exists":      "--ignore-missing --if-present",
    "--since":          "--from --after --start --last",
    "--until":          "--to --before --end",
    "--host":           "--bind --address --listen",
    "--port":           "-p",
    "--with-hashes":    "--hashes --passwords --with-passwords",
    "usersctl activate USER":         "update:--active update:--activate update:--enable",
    "usersctl deactivate USER":       "update:--inactive update:--deactivate update:--disable",
    "usersctl set-password USER":     "update:--password update:-p update:--generate update:--password-stdin",
    "usersctl update USER --role admin": "activate:--admin",
    "usersctl group add GROUP USER":  "update:--group update:--groups update:--add-group create:--group create:--groups",
    "usersctl invite send EMAIL":     "create:--invite create:--no-password",
    "usersctl show USER":             "list:--id",
}
# fmt: on


# Where people put a file or a name that comes with an option, or belongs to another command.
_OTHER_WAYS = {
    "db init": "--db",
    "db migrate": "--db",
    "db status": "--db",
    "config check": "--config",
    "config show": "usersctl config explain",
    "group list": "usersctl group show",
    "lockdown on": "--except",
}


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
    if words[1:2] == ["help"] and words[0] in commands:
        return f"{words[0]} --help"
    if words[0] not in commands and words[0].lower() in commands:
        return words[0].lower()
    return next((meant[phrase] for phrase in phrases if phrase in meant), None)


def option_for(mistyped: str, command: str, options: Collection[str]) -> str | None:
    """What this option stands for: one of the `options` of the command, or another command."""
    for wanted, line in OPTIONS.items():
        guesses = line.split()
        if f"{command}:{mistyped}" in guesses:
            return wanted
        if mistyped in guesses and wanted.split()[0] in options:
            return wanted
    return None


def hint_at_stray_words(
    stray: Sequence[str], command: str, options: Collection[str], words: Sequence[str]
) -> str | None:
    """What to do about words that the command does not take. `words`: the whole command line."""
    if "help" in stray:
        return None  # the hint that there is else
    hint = unquoted(words)
    if hint is None and f"--{stray[0].lower()}" in options:
        hint = f"use: --{stray[0].lower()}"
    elif hint is None and command in _OTHER_WAYS:
        hint = f"use: {_OTHER_WAYS[command]} {shlex.quote(stray[0])}"
    elif hint is None and command == "list":
        hint = f"use: usersctl list --search {shlex.quote(' '.join(stray))}"
    elif hint is None and command in ("create", "set-password") and not any("@" in word for word in stray):
        hint = "no password stands on a command line; see: --password-stdin, --password-file and --generate"
    return hint


def unquoted(words: Sequence[str]) -> str | None:
    """A hint at an option whose value has lost its quotes: `--name 'Ada Lovelace'` for `--name Ada Lovelace`."""
    for place, word in enumerate(words):
        option, equals, beginning = word.partition("=")
        if option in ("--name", "--search", "--since", "--until"):
            following = [*([beginning] * bool(equals)), *words[place + 1 :]]
            value = list(takewhile(lambda word: not word.startswith("-") and "@" not in word, following))
            if len(value) > 1:
                return f"quote a value of several words: {option} {shlex.quote(' '.join(value))}"
    return None
