"""What an operator would look at when something is wrong, or before it is: the checks, each with its code."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from usersctl.doctor import files, online, reach, records
from usersctl.doctor.case import Case, Severity, UncheckedError, Verdict
from usersctl.errors import UsersError

__all__ = ["CHECKS", "Case", "Check", "Finding", "Severity", "examine"]


class Check(NamedTuple):
    code: str
    look: Callable[[Case], Verdict | None]  # None: this installation has no such thing
    online: bool = False


class Finding(NamedTuple):
    code: str
    severity: Severity
    message: str
    mend: str | None = None


CHECKS = (
    Check("config", files.config),
    Check("config-files", files.config_files),
    Check("packages", files.packages),
    Check("database", files.database),
    Check("database-schema", files.schema),
    Check("database-modes", files.modes),
    Check("database-owners", files.owners),
    Check("database-integrity", files.integrity),
    Check("database-log", files.log),
    Check("disk", files.room),
    Check("clock", records.clock),
    Check("admin", records.admin),
    Check("lockdown", records.lockdown),
    Check("base-url", reach.base_url),
    Check("cookie", reach.cookie),
    Check("proxies", reach.proxies),
    Check("daemon", reach.daemon),
    Check("cleanup", records.cleanup),
    Check("mail", reach.mail),
    Check("letters-waiting", records.letters_waiting),
    Check("letters-failed", records.letters_failed),
    Check("provider", reach.provider),
    Check("mail-server", online.mail_server, online=True),
    Check("mail-starttls", online.mail_starttls, online=True),
    Check("mail-login", online.mail_login, online=True),
    Check("provider-discovery", online.provider_discovery, online=True),
    Check("provider-redirect", online.provider_redirect, online=True),
    Check("base-url-reachable", online.reachable, online=True),
)


def examine(case: Case, *, with_network: bool) -> Iterator[Finding]:
    for check in CHECKS:
        if check.online and not with_network:
            continue
        try:
            verdict = check.look(case)
        except UncheckedError as reason:
            verdict = Verdict(Severity.UNCHECKED, str(reason))
        except UsersError as error:
            verdict = Verdict(Severity.PROBLEM, str(error), error.hint)
        except OSError as error:
            said = f"{error.filename or 'the system'}: {error.strerror or type(error).__name__}"
            verdict = Verdict(Severity.PROBLEM, said, f"sudo {case.command('doctor')}")
        except Exception as error:  # noqa: BLE001 - a damaged database has surprises, and the other checks count
            verdict = Verdict(
                Severity.PROBLEM, f"cannot be checked: {type(error).__name__}", case.command("db verify")
            )
        if verdict is not None:
            yield Finding(check.code, *verdict)
