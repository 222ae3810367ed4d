"""How every command behaves: exit codes, errors, shared options, and options from a file."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import sys
import tomllib
import traceback
import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from askgauss._text import one_line
from askgauss.cli.terminal import be_quiet, note
from askgauss.exceptions import (
    AskGaussError,
    AskGaussWarning,
    FileFormatError,
    InvalidArgumentError,
)

if TYPE_CHECKING:
    from askgauss.replay import ReplayReport
    from askgauss.results import AuditResult


_CONFIG = "askgauss.config"
_debug = False
# What typer raises when it cannot read the command line; it exports only the leaf of the family.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]

_NEXT_STEP = {
    errno.ENOENT: "Check the path.",
    errno.ENOTDIR: "Check the path.",
    errno.EISDIR: "Name a file, not a folder.",
    errno.EACCES: "Check its permissions, or choose another place.",
    errno.EPERM: "Check its permissions, or choose another place.",
    errno.EROFS: "Choose a place that can be written to.",
    errno.ENOSPC: "The disk is full: make room, or choose another place.",
}


class ExitCode:
    """What the process tells its caller."""

    CONSISTENT = 0
    VIOLATION = 1
    FAILURE = 2
    """Wrong usage, unreadable input, unwritable output: there is no answer."""
    UNDECIDED = 3
    """Inconclusive, invalid, or without a verdict."""
    INTERRUPTED = 130
    """Stopped by Ctrl-C, as shells have it."""
    CLOSED_PIPE = 141
    """Stopped because nobody reads on, as shells have it."""

    @classmethod
    def of(cls, result: AuditResult, *, lenient: bool = False) -> int:
        """The code of a result by the rule of `askgauss.policy`; why, where no verdict says so."""
        from askgauss.policy import gate

        opened = gate(result, lenient=lenient)
        if opened.why:
            note(opened.why, always=True)
        return opened.exit_code

    @classmethod
    def of_replay(cls, report: ReplayReport) -> int:
        """The code of a replay, in which there is no chance: what was not seen is not passed."""
        codes = {"CONSISTENT": cls.CONSISTENT, "VIOLATION": cls.VIOLATION}
        return codes.get(report.verdict.value, cls.UNDECIDED)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, met at a place that kept what was done; the message says how to resume."""


def _exit_code(error: BaseException) -> int:
    """Say what a command raised in one line, and answer with its exit code.

    Nothing leaves as a traceback, because Python then exits with 1, which means VIOLATION.
    """
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return ExitCode.CONSISTENT
    if isinstance(error, UsageError):
        context: Any = getattr(error, "ctx", None)
        path = "askgauss" if context is None else context.command_path
        message: str = error.format_message()  # type: ignore[attr-defined]
        end = "" if message.endswith((".", "?", "!")) else "."
        note(f"{message}{end} Try '{path} --help'.", always=True)
        return ExitCode.FAILURE
    if _debug:
        with contextlib.suppress(OSError, ValueError):
            traceback.print_exception(error)
    if isinstance(error, BrokenPipeError):
        _silence_stdout()
        return ExitCode.CLOSED_PIPE
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        note(str(error) or "interrupted.", always=True)
        return ExitCode.INTERRUPTED
    note(_explain(error), always=True)
    if isinstance(error, OSError):
        _silence_stdout()
    return ExitCode.FAILURE


def _explain(error: BaseException) -> str:
    if isinstance(error, AskGaussError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        place = f"{os.fsdecode(error.filename)!r}: " if error.filename else ""
        return place + explain_os_error(error)
    if isinstance(error, MemoryError):
        return "Out of memory. Use fewer canaries or steps, or a larger machine."
    return (
        f"Unexpected {type(error).__name__}: {one_line(str(error))} This is a bug in askgauss: "
        "run again with --debug and report what it prints."
    )


def explain_os_error(error: OSError) -> str:
    """What the system says, and what to do."""
    return f"{error.strerror or error}. {_NEXT_STEP.get(error.errno or 0, '')}".rstrip()


def _claim_streams() -> None:
    """Make sure there is somewhere to say things before anything is done.

    A closed stream is None in Python. Its number goes to whatever file is opened next, so that what
    is meant for it could end up in there: notes go nowhere instead, and an answer that nobody could
    read is not looked for.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    if sys.stdout is None:
        raise OSError(
            errno.EBADF, "Standard output is closed. Send it to a file, or to the null device"
        )


def _silence_stdout() -> None:
    """Let what is still buffered go nowhere: Python would fail on it once more as it ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """Say our own warnings in a line each, without the place in the code they come from."""
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(message: Any, category: Any, *place: Any, **more: Any) -> None:
            if issubclass(category, AskGaussWarning):
                note(f"warning: {message}")
            else:
                shown(message, category, *place, **more)

        warnings.showwarning = show
        yield


class Group(TyperGroup):
    """A group of commands whose help says what each does in full, under their headings."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands by panel, for a pipe or a log; a terminal gets typer's boxes."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            panel = getattr(command, "rich_help_panel", None)
            title = panel if isinstance(panel, str) else "Commands"
            summary = " ".join((command.help or "").partition("\n\n")[0].split())
            panels.setdefault(title, []).append((name, summary))
        for title, rows in panels.items():
            with formatter.section(title):
                formatter.write_dl(rows)


class Program(Group):
    """The whole program: the group of all commands."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, and leave with an exit code."""
        global _debug
        _debug = False
        be_quiet(False)
        try:
            _claim_streams()
            name = self.name or "askgauss"
            self._main_shell_completion({}, name, complete_var)
            words = sys.argv[1:] if args is None else list(args)
            with _warnings_as_notes(), self.make_context(name, words, **extra) as context:
                self.invoke(context)
                # Here, so that a full disk or a closed pipe is met while it can be reported.
                sys.stdout.flush()
            code: int = ExitCode.CONSISTENT
        except BaseException as error:  # noqa: BLE001 - every end of the program is explained
            code = _exit_code(error)
        sys.exit(code)


class Command(TyperCommand):
    """One command; it also takes the options that the program declares for all."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its own parameters and the shared ones."""
        own = super().get_params(ctx)
        taken = {parameter.name for parameter in own}
        shared = [
            parameter
            for parameter in ctx.find_root().command.params
            if parameter.name in ("config", "debug", "quiet") and parameter.name not in taken
        ]
        return [*own[:-1], *shared, *own[-1:]]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options; a file given to the program counts as given to the command."""
        if _CONFIG in ctx.meta:
            apply_file(ctx, ctx.meta[_CONFIG])
        return super().parse_args(ctx, args)


def _config_option(context: typer.Context, path: Path | None) -> Path | None:
    """Take options from a file: at once, or for the program when its command is known."""
    if path is not None and not context.resilient_parsing:
        context.meta[_CONFIG] = path
        if context.parent is not None:
            apply_file(context, path)
    return path


def _quiet_option(value: bool) -> bool:
    """Say nothing but errors from here on."""
    if value:
        be_quiet(True)
    return value


def _debug_option(value: bool) -> bool:
    """Show tracebacks from here on."""
    global _debug
    _debug = _debug or value
    return value


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="TOML file with options: every key is the name of one.",
        is_eager=True,
        expose_value=False,
        callback=_config_option,
    ),
]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Show the traceback of an error.",
        is_eager=True,
        expose_value=False,
        callback=_debug_option,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        help="Say nothing but errors: documents and the exit code are the answer.",
        is_eager=True,
        expose_value=False,
        callback=_quiet_option,
    ),
]


def apply_file(context: typer.Context, path: Path) -> None:
    """Let a file give the options that the command line does not.

    Keys of the file are options of the command at hand; a table named after a command holds options
    of that command only, so that one file can serve several.

    Raises:
        FileFormatError: The file is not TOML.
        InvalidArgumentError: A key is no option, or a value is no single value or list.
    """
    from askgauss.files import atomic

    try:
        content = tomllib.loads(atomic.read_bytes(path).decode("utf-8"))
    # Bad TOML, bad UTF-8 and integers of thousands of digits are ValueErrors each.
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"Cannot read {str(path)!r} as TOML: {error}.") from error
    options: dict[str, Any] = {}
    table = content
    for outer, inner in pairwise(_chain(context)):
        inside = {key: value for key, value in table.items() if isinstance(value, dict)}
        for name in inside:
            _known(name, list(outer.command.commands), "command", path)
        options |= {key: value for key, value in table.items() if key not in inside}
        table = inside.get(inner.info_name, {})
    options |= table
    context.default_map = {
        _parameter(context.command, key, path): _words(key, value, path)
        for key, value in options.items()
    }
    for parameter in context.command.params:
        _check_code(parameter, context.default_map.get(str(parameter.name)), path)


def _chain(context: typer.Context) -> list[Any]:
    """The contexts from the program down to the command at hand."""
    chain: list[Any] = [context]
    while chain[0].parent is not None:
        chain.insert(0, chain[0].parent)
    return chain


def _parameter(command: Any, key: str, path: Path) -> str:
    """The parameter behind the name of an option."""
    names = {
        option.removeprefix("--"): str(parameter.name)
        for parameter in command.params
        for option in parameter.opts
        if parameter.param_type_name == "option" and option.startswith("--")
    }
    _known(key, list(names), "option", path)
    return names[key]


def _check_code(parameter: Any, given: str | list[str] | None, path: Path) -> None:
    """Refuse what would have a module imported: that is for whoever types the command to say."""
    named = [given] if isinstance(given, str) else given or []
    takes_code = parameter.name == "auditor" or "MODULE" in (parameter.metavar or "")
    for value in named:
        if takes_code and ":" in value:
            raise InvalidArgumentError(
                f"Expected {parameter.name!r} in {str(path)!r} to be a name, got {value!r}: a file "
                "runs no code. Give what is to be imported on the command line."
            )


def _known(key: str, names: list[str], what: str, path: Path) -> None:
    if key in names:
        return
    nearest = difflib.get_close_matches(key, names, n=1, cutoff=0.0)
    raise InvalidArgumentError(
        f"Expected every key of {str(path)!r} to be the name of {'an' if what == 'option' else 'a'}"
        f" {what}, got {key!r}. The nearest is {nearest[0]!r}."
        if nearest
        else f"Expected no key {key!r} in {str(path)!r}: there is no {what} to set."
    )


def _words(key: str, value: Any, path: Path) -> str | list[str]:
    """A value as it would stand on the command line, so that it is read the same way."""
    if isinstance(value, list):
        return [str(_words(key, item, path)) for item in value]
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float, str)):
        return str(value)
    raise InvalidArgumentError(
        f"Expected {key!r} in {str(path)!r} to be a number, text, true or false, or a list of "
        f"them, got a {type(value).__name__}."
    )
