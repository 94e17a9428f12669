"""The checks of `usersctl doctor`, each with its stable code."""

from collections.abc import Callable, Iterator

from usersctl.doctor import factors, files, online, reach, records, server, webhooks
from usersctl.doctor.installation import Installation, Result, Severity, UncheckedError, problem
from usersctl.errors import UsersError
from usersctl.named import NamedTuple

__all__ = ["CHECKS", "Check", "Finding", "Installation", "Severity", "examine"]


class Check(NamedTuple):
    code: str
    # None: does not apply to this installation. A list: a result for each of several providers.
    look: Callable[[Installation], Result | list[Result] | None]
    online: bool = False
    on_server: bool | None = None  # whether its database is on a server; None: wherever it is


class Finding(NamedTuple):
    code: str
    severity: Severity
    message: str
    mend: str | None


CHECKS = (
    Check("config", files.config),
    Check("environment", files.environment),
    Check("config-files", files.config_files),
    Check("packages", files.packages),
    Check("database", files.database),
    Check("database-schema", files.schema),
    Check("database-modes", files.modes, on_server=False),
    Check("database-owners", files.owners, on_server=False),
    Check("database-integrity", files.integrity, on_server=False),
    Check("database-log", files.log, on_server=False),
    Check("disk", files.disk, on_server=False),
    Check("server-rights", server.rights, on_server=True),
    Check("server-search", server.search, on_server=True),
    Check("server-connections", server.connections, on_server=True),
    Check("server-standbys", server.standbys, on_server=True),
    Check("server-clock", server.clock, on_server=True),
    Check("clock", records.clock),
    Check("admin", records.admin),
    Check("lockdown", records.lockdown),
    Check("tokens", records.tokens),
    Check("password-hashes", records.password_hashes),
    Check("secret-key", factors.secret_key),
    Check("passkeys", factors.passkeys),
    Check("factor-rules", factors.rules),
    Check("base-url", reach.base_url),
    Check("cookie", reach.cookie),
    Check("proxies", reach.proxies),
    Check("daemon", reach.daemon),
    Check("cleanup", records.cleanup),
    Check("deletions", records.deletions),
    Check("groups", records.group_rules),
    Check("mail", reach.mail),
    Check("letters-waiting", records.emails_waiting),
    Check("letters-failed", records.emails_failed),
    Check("webhooks", webhooks.receivers),
    Check("provider", reach.provider),
    Check("provider-links", records.provider_links),
    Check("mail-server", online.mail_server, online=True),
    Check("mail-starttls", online.mail_starttls, online=True),
    Check("mail-login", online.mail_login, online=True),
    Check("provider-discovery", online.provider_discovery, online=True),
    Check("provider-redirect", online.provider_redirect, online=True),
    Check("base-url-reachable", online.base_url_reachable, online=True),
)


def examine(installation: Installation, *, with_network: bool) -> Iterator[Finding]:
    for check in CHECKS:
        applies = check.on_server in (None, installation.is_on_server)
        if applies and (with_network or not check.online):
            for result in _results_of(check, installation):
                yield Finding(check.code, *result)


def _results_of(check: Check, installation: Installation) -> list[Result]:
    result = _result_of(check, installation)
    if isinstance(result, list):
        return result
    return [] if result is None else [result]


def _result_of(check: Check, installation: Installation) -> Result | list[Result] | None:
    try:
        return check.look(installation)
    except UncheckedError as reason:
        return Result(Severity.UNCHECKED, str(reason))
    except UsersError as error:
        return problem(str(error), installation.mend_of(error))
    except OSError as error:
        message = f"{error.filename or 'the system'}: {error.strerror or type(error).__name__}"
        return problem(message, f"sudo {installation.command('doctor')}")
    except Exception as error:  # noqa: BLE001 - a damaged database can raise anything, and the other checks must run
        return problem(f"cannot be checked: {type(error).__name__}", installation.command("db verify"))
