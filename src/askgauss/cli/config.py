"""Options from a TOML file: every key is the name of an option, and means what it means there."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any

import typer

from askgauss.exceptions import FileFormatError, InvalidArgumentError

__all__ = ["apply_file"]


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
    chain = _chain(context)
    tables = {key: value for key, value in content.items() if isinstance(value, dict)}
    options = {key: value for key, value in content.items() if key not in tables}
    group: Any = chain[0].command
    for table, values in tables.items():
        _known(table, list(group.commands), "command", path)
        if len(chain) > 1 and table == chain[1].info_name:
            options |= _own(values, chain[2:], chain[1].command, path)
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


def _own(values: dict[str, Any], rest: list[Any], command: Any, path: Path) -> dict[str, Any]:
    """What a command's table says about the command at hand, some levels further down."""
    if not rest:
        return values
    for key in values:
        _known(key, list(command.commands), "command", path)
    inner = values.get(rest[0].info_name, {})
    if not isinstance(inner, dict):
        raise InvalidArgumentError(
            f"Expected {rest[0].info_name!r} in {str(path)!r} to be a table of options, got "
            f"{inner!r}."
        )
    return _own(inner, rest[1:], rest[0].command, path)


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
