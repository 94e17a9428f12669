"""key: the keys that seal the secrets of authenticator apps."""

import typer
from typer import Context

from usersctl.cli.exit_codes import ExitCode
from usersctl.cli.invocation import invocation
from usersctl.text import counted


def rotate(ctx: Context) -> None:
    """Seal the secrets of all authenticator apps with a new key. The daemon may run, and people may sign in.

    Without auth.secretKey, the file users.key gets a new key in its first line. The older keys stay in it, because
    older backups need them. With auth.secretKey: put a new key before the present one, restart the daemon, and then run
    this. Exit code 7 if no key opens some of the secrets.
    """
    run = invocation(ctx)
    service = run.service()
    with run.out.progress("Sealing secrets") as draw:
        rotated = service.key_rotation.run(by=run.actor, progress=draw)
    sealer = service.sealer
    file = None if sealer.configured else sealer.place
    done = f"Sealed {counted(rotated.sealed, 'secret')} anew"
    if file is not None and not sealer.file.keys():
        file, done = None, f"There is no key yet: the first authenticator app makes {file}; nothing to do"
    run.out.result(done, rotated._asdict() | {"file": file})
    if file is not None:
        run.out.note(f"{file} has a new first line: keep a copy of the file apart from the backups")
    if rotated.unreadable:
        secrets = counted(rotated.unreadable, "secret")
        see = run.options.repeated_in("see: usersctl doctor")
        run.out.note(f"No key opens {secrets}, which stay as they are; {see}")
        raise typer.Exit(ExitCode.PARTLY_FAILED)
