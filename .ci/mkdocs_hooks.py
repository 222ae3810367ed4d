"""What mkdocs takes from the program: its version on every page, and the command reference."""

from __future__ import annotations

from typing import Any

_SHARED = ("--config", "--debug", "--quiet", "--help", "--version")


def on_config(config: Any) -> Any:
    """Say at the foot of every page which version it is of."""
    from askgauss import __version__

    config["copyright"] = f"askgauss {__version__}"
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the commands on their page."""
    return markdown + commands() if page.file.src_uri == "commands.md" else markdown


def commands() -> str:
    """Every command with its arguments and options, as Markdown."""
    import typer

    from askgauss.cli import app

    return "".join(_sections(typer.main.get_command(app), ("askgauss",)))


def _sections(group: Any, path: tuple[str, ...]) -> list[str]:
    found = []
    for name, command in sorted(group.commands.items()):
        here = (*path, name)
        if getattr(command, "commands", None):
            found += _sections(command, here)
        elif not command.hidden:
            found.append(_section(command, " ".join(here)))
    return found


def _section(command: Any, name: str) -> str:
    parameters = [item for item in command.params if not {*item.opts} & {*_SHARED}]
    arguments = [item for item in parameters if item.param_type_name == "argument"]
    options = [item for item in parameters if item.param_type_name == "option"]
    usage = " ".join([name, *(["[OPTIONS]"] if options else []), *map(_metavar, arguments)])
    words = " ".join((command.help or "").split("\f")[0].split("\n\n")[0].split())
    rest = ["\n".join(line.split()) and " ".join(part.split())
            for part in (command.help or "").split("\n\n")[1:] for line in [part]]  # fmt: skip
    lines = [f"\n## {name}\n", words, *rest, f"```\n{usage}\n```"]
    text = "\n\n".join(lines) + "\n"
    rows = [(f"`{_metavar(item)}`", getattr(item, "help", "") or "", "") for item in arguments]
    rows += [(_names(item), item.help or "", _default(item)) for item in options]
    if rows:
        text += "\n| | | default |\n|---|---|---|\n"
        text += "".join(f"| {' | '.join(_cell(cell) for cell in row)} |\n" for row in rows)
    return text


def _metavar(argument: Any) -> str:
    return argument.metavar or str(argument.name).upper()


def _names(option: Any) -> str:
    return ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))


def _default(option: Any) -> str:
    if isinstance(option.show_default, str):
        return option.show_default
    value = option.default
    if value is None or callable(value) or value is False:
        return ""
    return f"{getattr(value, 'value', value)}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
