"""`usersctl` and `python -m usersctl`: runs one command line and turns an error into one line and an exit code."""

import gc

gc.set_threshold(100_000)  # modules are no garbage, and searching them takes a good part of their import

# ruff: noqa: E402
import errno
import os
import signal
import sys
from contextlib import suppress
from io import BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import IO, Any

from usersctl.cli.exit_codes import ExitCode, code_of
from usersctl.cli.invocation import Invocation
from usersctl.errors import UsersError


def command() -> None:
    """Runs `main`, and ends the process at once: the interpreter would first take every module apart, for 2 ms of 40."""
    try:
        main()
    except SystemExit as end:
        from threading import active_count

        if active_count() > 1:  # which the interpreter waits for
            raise
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(int(end.code or 0))


def main() -> None:
    catch_signals()
    stdout_is_closed = sys.stdout is None
    _prepare_streams()
    run = Invocation(sys.argv[1:])
    code: int = ExitCode.DONE
    try:
        if stdout_is_closed:  # before anything is done
            raise OSError(errno.EBADF, "stdout is closed")
        code = _run(run)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough
        _drop_output()
    except KeyboardInterrupt as interrupt:
        _drop_output()  # the same Ctrl-C may have ended the reader
        if not run.endless:
            run.out.interrupted(*interrupt.args)
        code = ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - every error becomes one line, and the trace with --debug
        code = _report(run, run.explained(error))
        if run.options.debug:
            import traceback

            traceback.print_exception(error)
    finally:
        run.close()
    sys.exit(code)


def catch_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup it is ignored, and stays so
            signal.signal(number, _stop)
    sys.unraisablehook = _stop_again


def _stop(number: int, _frame: FrameType | None) -> None:
    """An exception, so that transactions roll back and temporary files are removed."""
    raise SystemExit(128 + number)


def _stop_again(dropped: "sys.UnraisableHookArgs") -> None:
    """Python drops an exception out of __del__. One of a signal comes again when this function has ended."""
    if isinstance(dropped.exc_value, SystemExit | KeyboardInterrupt):
        import threading

        number = signal.SIGTERM if isinstance(dropped.exc_value, SystemExit) else signal.SIGINT
        main = threading.main_thread().ident or 0
        threading.Thread(target=_send_after_hook, args=(number, main)).start()
    else:
        sys.__unraisablehook__(dropped)


def _send_after_hook(number: int, main: int) -> None:
    """On a busy machine the main thread may be in _stop_again for long, and out of there the exception is dropped, too."""
    import time

    is_in_hook = True
    while is_in_hook:
        time.sleep(0.01)
        frame = sys._current_frames().get(main)  # noqa: SLF001 - documented, and the only way to see another thread
        is_in_hook = False
        while frame is not None:
            is_in_hook |= frame.f_code is _stop_again.__code__
            frame = frame.f_back
    os.kill(os.getpid(), number)


def _prepare_streams() -> None:
    """Sets UTF-8 in every locale, and replaces a stream that the caller closed.

    Without a stderr, print(file=None) would write messages to stdout, among the data.
    """
    sys.stdin = sys.stdin or _null("r")
    sys.stdout = sys.stdout or _null("w")
    sys.stderr = sys.stderr or _null("w")
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
    """Ignores that a message cannot be written (disk full, reader gone): results and exit codes do not depend on it.

    A line of which only the beginning could be written is ended before the next one, or a log would lose that, too.
    """

    _last, _is_cut = b"\n", False

    def write(self, data: Any, /) -> int:
        try:
            if self._is_cut:
                super().write(b"\n")
                self._last, self._is_cut = b"\n", False
            written = super().write(data) or len(data)
            self._last = bytes(data[written - 1 : written])
        except OSError:
            self._is_cut = self._last != b"\n"
            return len(data)
        return written


def _null(mode: str) -> IO[str]:
    return open(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8", closefd=False)


def _drop_output() -> None:
    """Otherwise Python flushes the rest at exit, and prints an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(run: Invocation) -> int:
    if any(word.startswith("--") for word in run.words):
        # An option of the command: what follows it may be its value, and not a shared option.
        from usersctl.cli.tree import value_options

        run.parse(value_options(run.words))
    if run.options.version:
        from usersctl import __version__

        if run.options.json:
            run.out.write_json({"version": __version__})
        else:
            print(f"usersctl {__version__}")
        return ExitCode.DONE
    if _run_without_typer(run):
        return ExitCode.DONE
    from usersctl.cli.tree import run_tree

    return run_tree(run)


def _run_without_typer(run: Invocation) -> bool:
    """Runs what scripts call most, and what loads the most: importing Typer would take two thirds and a third of their time.

    Through Typer, the same words lead to the same functions.
    """
    if run.words == ["list"] and run.options.json:
        from usersctl.cli.show.listing import list_users
        from usersctl.models import UserFilter

        list_users(run, UserFilter(), form="json")
    elif run.words == ["openapi"]:
        from usersctl.cli.show.interface import show_interface

        show_interface(run)
    else:
        return False
    return True


def _report(run: Invocation, error: Exception) -> ExitCode:
    if isinstance(error, UsersError):
        run.out.error(error, code=error.code, hint=error.hint)
        return code_of(error)
    if isinstance(error, OSError):
        # An error without a file name comes from one of the standard streams.
        message, hint = f"{error.filename!r}: {error.strerror or error}", None
        if not error.filename:
            message = f"Input or output failed: {error.strerror or error}"
            if run.out.is_done:
                hint = "the command has done its work; only its report could not be written"
            elif error.errno == errno.ENOENT and not _is_somewhere():
                message, hint = "The working folder was removed", "go to another one, and start again"
        run.out.error(OSError(message), code="io", hint=hint)
        _drop_output()
        return ExitCode.UNUSABLE
    hint = "this is a bug in usersctl: run again with --debug, and report the output"
    run.out.error(error, code="bug", hint=hint)
    return ExitCode.BUG


def _is_somewhere() -> bool:
    """Whether the folder that this process works in still exists."""
    try:
        Path.cwd()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    command()
