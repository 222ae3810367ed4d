"""Plain text in a pipe, colours and a bar only for somebody who looks."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from askgauss.cli import terminal
from tests.cli.conftest import ENVIRONMENT, PROGRAM

CLAIM = ("--epsilon", "8", "--delta", "1e-5")


def _in_a_terminal(arguments, error=False):
    """What the program prints where its stdout (or its stderr) is a terminal."""
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, *map(str, arguments)],
        env=ENVIRONMENT | {"TERM": "xterm"},
        stdin=slave,
        stdout=subprocess.DEVNULL if error else slave,
        stderr=slave if error else subprocess.PIPE,
    )
    os.close(slave)
    shown = b""
    # A terminal whose last user is gone reads as an error on Linux, as an end elsewhere.
    with contextlib.suppress(OSError):
        while piece := os.read(master, 4096):
            shown += piece
    os.close(master)
    process.communicate(timeout=300)
    return shown, process.returncode


def test_a_terminal_gets_colours(leaky):
    shown, code = _in_a_terminal(["audit", leaky, *CLAIM])
    assert code == 1
    assert b"\x1b[31m\x1b[1mVIOLATION\x1b[0m: " in shown


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_unless_it_wants_none(monkeypatch, environment, coloured):
    for name, value in {"NO_COLOR": "", "TERM": "xterm", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(terminal.sys, "stdout", SimpleNamespace(isatty=lambda: True))
    assert terminal.colourful() is coloured
    monkeypatch.setattr(terminal.sys, "stdout", SimpleNamespace(isatty=lambda: False))
    assert not terminal.colourful()


def test_a_pipe_gets_plain_text(run, leaky):
    done = run("audit", leaky, *CLAIM)
    assert done.exit_code == 1
    assert "\x1b[" not in done.stdout + done.stderr
    assert "\x1b[" not in run("--help").stdout


def test_a_terminal_gets_a_bar_and_a_pipe_gets_lines(run):
    arguments = ["selftest", "--audits", "2", "--steps", "10", "--present", "20", "--absent", "20"]
    shown, _ = _in_a_terminal(arguments, error=True)
    assert b"12/12" in shown
    assert b"left" in shown
    lines = run(*arguments).stderr.splitlines()
    assert len(lines) == 4
    assert lines[-1] == "askgauss: self-test: 12 of 12 audits, 0 s left."


@pytest.mark.parametrize("arguments", [["audit", "-", *CLAIM], ["report", "-"]])
def test_a_terminal_as_input_is_not_waited_for(with_streams, monkeypatch, tmp_path, arguments):
    keyboard = SimpleNamespace(buffer=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(sys, "stdin", keyboard)
    assert with_streams(*arguments) == 2
    assert "got a terminal" in (tmp_path / "stderr").read_text()


def test_letters_a_stream_does_not_have_are_spelled_out(monkeypatch):
    written = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", written)
    terminal.say("no-\u03b5-file")
    written.flush()
    assert written.buffer.getvalue() == b"no-\\u03b5-file\n"


def test_printable_keeps_letters_and_lines():
    assert terminal.printable("\u03b5 \u2265 1\n<b>") == "\u03b5 \u2265 1\n<b>"
    assert terminal.printable("\x00\x7f\x9b\u2028\udcff") == r"\x00\x7f\x9b\u2028\udcff"
    assert terminal.one_line(" a\n\tb\r\n") == "a b"
    # Commands of CI jobs, where they would count; names of tests keep theirs.
    assert terminal.one_line("a ::error::b") == "a : :error::b"
    assert terminal.one_line("::group::") == ": :group::"
    assert terminal.one_line("x##[error] ##vso[x] ##") == "x# #[error] # #vso[x] ##"
    assert terminal.one_line("test_x.py::test_y") == "test_x.py::test_y"


def test_tables_line_up():
    text = terminal.as_table([("name", "n"), ("longer name", "10")])
    assert text == "name          n\nlonger name  10"
