"""The command that replays a training on neighbouring data."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from askgauss.cli.destinations import Documents, Html, Json, write_document
from askgauss.cli.program import ExitCode
from askgauss.cli.terminal import say_result
from askgauss.exceptions import InvalidArgumentError

__all__ = ["replay"]


def replay(
    training: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="The training function, train(data, replay); a file.py will do for a module.",
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="The records, or a function that makes them; by default `data` of the module.",
        ),
    ] = None,
    leave_out: Annotated[
        int | None, typer.Option(metavar="INDEX", help="The record to leave out.")
    ] = None,
    replace: Annotated[
        int | None, typer.Option(metavar="INDEX", help="The record to replace instead.")
    ] = None,
    steps: Annotated[int, typer.Option(help="How many steps to take.")] = 5,
    adjacency: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What the run claims: add-remove, replace-one or zero-out; by default the first, "
            "and the second where a record is replaced.",
        ),
    ] = None,
    plant: Annotated[
        bool, typer.Option(help="Put the record into the batch of every other step.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Where batches and noise come from.")] = 0,
    html: Html = None,
    json: Json = None,
) -> None:
    """Replay a training without one record, same coins, and say what differed.

    Runs the function, on data that should be few: a thousand records and a few steps are enough.
    Exits with 0 if nothing differed but what may, 1 on a leak, 2 if there is no answer (a training
    that is not deterministic, too), 3 if something could not be checked.
    """
    outputs = Documents(json=json, html=html)
    function = _named(training, "MODULE:FUNCTION")
    module = training.rpartition(":")[0]
    records = _named(data if data is not None else f"{module}:data", "--data")
    if callable(records) and not hasattr(records, "__getitem__"):
        records = records()
    from askgauss.replay import replay as run_replay

    # What the training prints is not the answer.
    with contextlib.redirect_stdout(sys.stderr):
        found = run_replay(
            function,
            records,
            leave_out=leave_out,
            replace=replace,
            steps=steps,
            adjacency=adjacency,  # type: ignore[arg-type]
            plant=plant,
            seed=seed,
        )
    if not outputs.on_stdout:
        say_result(found)
    documents = []
    if json is not None:
        documents.append((json, found.to_json() + "\n"))
    if html is not None:
        from askgauss.report.replay_page import render_replay

        documents.append((html, render_replay(found)))
    for path, text in documents:
        # What differs between neighbouring data tells of the record.
        write_document(path, partial(_write, text.encode("utf-8")), private=True)
    raise typer.Exit(ExitCode.of_replay(found))


def _write(content: bytes, stream: IO[bytes]) -> None:
    stream.write(content)


def _named(name: str, argument: str) -> Any:
    """The object of a module that a ``module:name`` stands for."""
    module, colon, attribute = name.rpartition(":")
    if not colon or not module or not attribute:
        raise InvalidArgumentError(
            f"Expected {argument} to be like module:name or file.py:name, got {name!r}."
        )
    found: Any = _imported(module, argument)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InvalidArgumentError(
                f"Expected {argument} to name something in {module}, which has no {attribute!r}. "
                "Name it as module:name; the records are --data."
            )
        found = getattr(found, part)
    return found


def _imported(module: str, argument: str) -> Any:
    """A module by its name, looked for in the current folder too, or by its file."""
    if module.endswith(".py"):
        path = Path(module)
        if not path.is_file():
            raise InvalidArgumentError(
                f"Expected {argument} to name a file, there is no {module!r}. Check the path."
            )
        name = path.stem
        if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(path):
            return sys.modules[name]
        sys.path.insert(0, str(path.parent.absolute()))
        specification = importlib.util.spec_from_file_location(name, path)
        assert specification is not None
        assert specification.loader is not None
        loaded = importlib.util.module_from_spec(specification)
        sys.modules[name] = loaded
        specification.loader.exec_module(loaded)
        return loaded
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module + ".").startswith(error.name + "."):
            raise InvalidArgumentError(
                f"Expected {argument} to name a module, there is no {error.name!r} here. Run from "
                "the folder it is in, or give its file: train.py:function."
            ) from error
        raise
