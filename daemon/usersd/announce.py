"""What each start logs."""

import os

from usersctl.config import Settings
from usersctl.mail import folder
from usersctl.service import Service
from usersctl.store.conninfo import Conninfo
from usersctl.text import counted
from usersd.log import Log


def announce(service: Service, log: Log) -> bool:
    """Logs what a start changed. Returns whether there is no admin yet."""
    migrated = service.store.migrated
    if migrated is not None:
        backup = migrated.backup and str(migrated.backup)
        log.event("migrated", accounts=migrated.accounts, backup=backup)
        for note in migrated.notes:
            log.event("migrated", message=note)
    log_links(service, log)
    if isinstance(service.settings.database, Conninfo) and not service.settings.secret_keys:
        from usersctl.factors.sealing import NO_KEY, SET_KEY  # late: a database in a file does without

        log.event("no-secret-key", message=NO_KEY, hint=SET_KEY)
    admin = service.first_admin.from_environment(os.environ)
    if admin is not None:
        log.event("first-admin", user=admin.id, email=admin.email)
    needed = service.first_admin.needed()
    if needed:
        message = f"There is no admin yet. Make one with: {service.first_admin.command}"
        log.event("no-admin", message=message)
    return needed


def log_links(service: Service, log: Log) -> None:
    """Binds links to the providers of the configuration, and tells of those that are another one's."""
    for provider, now, elsewhere in service.identities.bind():
        issuer = provider.issuer_of_links
        if now:
            log.event("provider-links", message=f"{counted(now, 'account')} bound to {issuer}")
        if elsewhere:
            message = f"{counted(elsewhere, 'account')} linked at another provider than {issuer}"
            log.event("provider-links", message=f"{message}; see: usersctl doctor")


def log_missing_metrics(settings: Settings, log: Log) -> None:
    """In a process that another server runs: it has no socket of its own."""
    if settings.metrics_port is not None:
        log.event("no-metrics", message="metrics.port is set, but only usersctl serve has metrics")


def log_mail(settings: Settings, log: Log) -> None:
    """Logs where emails go when there is no mail server."""
    if settings.is_trial:
        log.event("mail", caught_at=f"{settings.base_url}/dev/mail")
    elif settings.mailer_host is None:
        message = "No mail server is configured: emails are written into a folder"
        log.event("mail", message=message, folder=str(folder.mail_folder(settings)))
