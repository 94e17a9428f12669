"""`usersctl` and `python -m usersctl`: runs one command line and turns what went wrong into a line and an exit code."""

import errno
import os
import signal
import sys
from io import BufferedWriter, FileIO, TextIOWrapper
from types import FrameType, TracebackType
from typing import IO, Any

from usersctl.cli.invocation import Invocation
from usersctl.cli.options import take
from usersctl.cli.show.output import INTERRUPTED, code_of
from usersctl.errors import UsersError


def main() -> None:
    options, rest = take(sys.argv[1:])
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup's wish is kept
            signal.signal(number, _stop)
    stdout_is_closed = sys.stdout is None
    _prepare_streams()
    run = Invocation(options)
    try:
        if stdout_is_closed:  # say so before anything is done
            raise OSError(errno.EBADF, "stdout is closed")
        code = _run(run, rest)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough.
        _drop_output()
        code = 0
    except KeyboardInterrupt as keys:
        _drop_output()  # the same keys may have ended the reader
        if not run.endless:
            run.out.interrupted(*keys.args)
        code = INTERRUPTED
    except UsersError as error:
        run.out.error(error, code=error.code, hint=error.hint)
        _trace(run, error.__traceback__, error)
        code = code_of(error)
    except OSError as error:
        # Without a file's name it was one of the standard streams.
        what = repr(error.filename) if error.filename else "Input or output failed"
        run.out.error(OSError(f"{what}: {error.strerror or error}"), code="io")
        _trace(run, error.__traceback__, error)
        _drop_output()
        code = 6
    except Exception as error:  # noqa: BLE001 - the last resort: one line, and the trace for who asks
        run.out.error(
            error,
            code="bug",
            hint="this is a bug of usersctl: run again with --debug and report what it says",
        )
        _trace(run, error.__traceback__, error)
        code = 1
    finally:
        run.close()
    sys.exit(code)


def _stop(number: int, _frame: FrameType | None) -> None:
    """As an exception, so that what is half done is taken back."""
    raise SystemExit(128 + number)


def _prepare_streams() -> None:
    """UTF-8 whatever the locale is, and a stream in the place of one that the caller closed.

    Without that, what belongs on a closed stderr would be printed among the data. No result and no exit code hangs on
    what nobody can read there.
    """
    sys.stdin = sys.stdin or _nowhere("r")
    sys.stdout = sys.stdout or _nowhere("w")
    sys.stderr = sys.stderr or _nowhere("w")
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)
    if isinstance(sys.stderr, TextIOWrapper):
        sys.stderr = TextIOWrapper(
            BufferedWriter(_Forgiving(sys.stderr.fileno(), "w", closefd=False)),
            encoding=sys.stderr.encoding,
            errors=sys.stderr.errors,
            line_buffering=True,
            write_through=sys.stderr.write_through,
        )


class _Forgiving(FileIO):
    """What cannot be written, because the disk is full or the reader has gone, counts as written."""

    def write(self, data: Any, /) -> int:
        try:
            written: int | None = super().write(data)
        except OSError:
            written = None
        return len(data) if written is None else written


def _nowhere(mode: str) -> IO[str]:
    return open(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8", closefd=False)


def _drop_output() -> None:
    """Python would flush what is left once more at the end, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(run: Invocation, rest: list[str]) -> int:
    if run.options.version:
        from usersctl import __version__

        print(f"usersctl {__version__}")
        return 0
    if rest == ["list"] and run.options.json:
        # What scripts ask most often. Importing Typer would take twice the time of the answer; the tree of commands
        # gets the same words to the same function.
        from usersctl.cli.show.listing import list_users
        from usersctl.models import UserFilter

        list_users(run, UserFilter(), form="json")
        return 0
    from usersctl.cli.tree import run_tree

    return run_tree(run, rest)


def _trace(run: Invocation, trace: TracebackType | None, error: BaseException) -> None:
    if run.options.debug:
        import traceback

        traceback.print_exception(type(error), error, trace)


if __name__ == "__main__":
    main()
