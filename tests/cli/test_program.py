"""How every command behaves: exit codes, errors in one line, options from a file, light imports."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import json
import lzma
import os
import shlex
import stat
import subprocess
import sys
import unicodedata
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import askgauss
from askgauss.cli import audit_commands, program
from askgauss.exceptions import InvalidArgumentError
from askgauss.files import atomic, codec
from tests.cli.conftest import ENVIRONMENT, PROGRAM

SOURCE = Path(askgauss.__file__).parent
HEAVY = {"numpy", "scipy", "torch", "opacus", "matplotlib", "sklearn", "jinja2", "dp_accounting"}
COMMANDS = (
    *("demo", "audit", "compare", "report", "diagnose", "simulate"),
    *("plan", "theory", "faults", "selftest", "version"),
)
CLAIM = ("--epsilon", "8", "--delta", "1e-5")


def _one_line(text):
    assert text.count("\n") == 1, text
    assert text.startswith("askgauss: "), text
    assert "Traceback" not in text
    return text


# Imports.

_IMPORTS = """
import contextlib, io, json, sys, types
sys.path.insert(0, {root!r})
heavy = lambda: sorted({heavy} & {{name.split(".")[0] for name in sys.modules}})

def call(*arguments):
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
        try:
            main(list(arguments))
        except SystemExit as leaving:
            assert leaving.code == 0, leaving.code

# With the package's own __init__ out of the way, whatever that imports.
package = types.ModuleType("askgauss")
package.__path__ = [{source!r}]
package.__version__ = "0"
sys.modules["askgauss"] = package
from askgauss.cli import main
for arguments in (["--help"], ["version"], ["audit", "--help"]):
    call(*arguments)
alone = heavy()
for name in [name for name in sys.modules if name.split(".")[0] == "askgauss"]:
    del sys.modules[name]
import askgauss
package = heavy()
from askgauss.cli import main
call("--help")
with_help = heavy()
import numpy
print(json.dumps([alone, package, with_help, heavy()]))
"""


@pytest.mark.process
def test_help_and_version_import_nothing_heavy():
    code = _IMPORTS.format(root=str(SOURCE.parent), source=str(SOURCE), heavy=HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    alone, package, with_help, end = json.loads(done.stdout.splitlines()[-1])
    assert alone == []
    assert with_help == package
    assert "numpy" in end  # the test can fail


# Usage.


def test_help_lists_every_command(run):
    result = run("--help")
    assert result.exit_code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in result.stdout
    assert run().stdout == result.stdout
    # In groups, and nothing is cut at the width of a terminal.
    for panel in ("First steps:", "Audit:", "Evidence:", "During training:"):
        assert f"\n{panel}\n" in result.stdout
    assert "..." not in result.stdout.partition("First steps:")[2]
    assert "..." not in run("simulate", "--help").stdout.partition("Commands:")[2]


def test_version(run):
    assert run("version").stdout.startswith(f"askgauss {askgauss.__version__}\npython 3.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["audti"], ["audti", "'audit'", "askgauss --help"]),
        (["audit", "x", "--epsilom", "8"], ["--epsilom", "askgauss audit --help"]),
        (["audit"], ["FILE|RUN", "askgauss audit --help"]),
        (["audit", "x", "--epsilon", "eight"], ["--epsilon", "number", "askgauss audit --help"]),
        (["simulate", "dpftrl", "--release", "leaves"], ["--release", "'nodes'"]),
    ],
)
def test_wrong_usage_is_one_line_and_2(run, arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    line = _one_line(result.stderr)
    for word in words:
        assert word in line


def test_completion_knows_commands_and_auditors(run):
    environment = {"_ASKGAUSS_COMPLETE": "complete_bash"}
    for words, position, wanted in (
        ("askgauss sel", 1, "selftest"),
        ("askgauss audit x --auditor gaussian-sh", 4, "gaussian-shift"),
        ("askgauss simulate dpsgd --fault half-n", 4, "half-noise"),
    ):
        done = run(env=environment | {"COMP_WORDS": words, "COMP_CWORD": str(position)})
        assert wanted in done.stdout.split(), words


# Errors.


def test_an_error_of_ours_is_one_line(run, correct):
    result = run("audit", correct, "--epsilon", "-1", "--delta", "1e-5")
    assert result.exit_code == 2
    assert "epsilon > 0" in _one_line(result.stderr)


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (InvalidArgumentError("two\nlines \x1b[31m"), 2, "two lines \\x1b[31m"),
        (ZeroDivisionError("oops"), 2, "bug"),
        (MemoryError(), 2, "memory"),
        (OSError(errno.ENOSPC, "No space left on device", "x.npz"), 2, "'x.npz'"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
@pytest.mark.parametrize("debug", [False, True])
def test_whatever_happens_the_exit_code_is_not_that_of_a_verdict(
    run, correct, monkeypatch, error, code, word, debug
):
    def fail(source, *_):
        raise error

    monkeypatch.setattr(audit_commands, "read_input", fail)
    result = run("audit", correct, *CLAIM, *(["--debug"] if debug else []))
    assert result.exit_code == code
    assert word in result.stderr
    assert ("Traceback" in result.stderr) == debug
    if not debug:
        _one_line(result.stderr)


def test_debug_may_stand_before_the_command(run):
    result = run("--debug", "audit", "/no/such/file", *CLAIM)
    assert result.exit_code == 2
    assert "Traceback" in result.stderr


def test_operating_system_errors_name_the_next_step():
    error = OSError(errno.EACCES, "Permission denied")
    assert program.explain_os_error(error).startswith("Permission denied. Check its permissions")
    assert program.explain_os_error(OSError("odd")) == "odd."


@pytest.mark.process
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_ends_quietly(unbuffered):
    arguments = ["simulate", "dpsgd", "--steps", "100", "--present", "200", "--absent", "200"]
    with subprocess.Popen(
        [*PROGRAM, *arguments],
        # Unbuffered, a write may end half way without an error.
        env=ENVIRONMENT | {"PYTHONUNBUFFERED": unbuffered},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout.read(10).startswith(b"PK")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(600) == 141


@pytest.mark.process
def test_help_into_a_closed_pipe_ends_quietly():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*PROGRAM, "--help"], env=ENVIRONMENT, stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == b""


needs_full = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="needs a device that is always full"
)


@needs_full
@pytest.mark.parametrize(
    "arguments",
    [
        ["audit", "{file}", *CLAIM, "--json", "-"],
        ["simulate", "dpsgd", "--steps", "5", "--present", "9", "--absent", "9"],
        ["version"],
    ],
)
def test_a_full_disk_behind_stdout(with_streams, correct, arguments, tmp_path):
    arguments = [item.format(file=correct) for item in arguments]
    assert with_streams(*arguments, stdout="/dev/full") == 2
    assert "The disk is full" in _one_line((tmp_path / "stderr").read_text())


@needs_full
@pytest.mark.parametrize("stderr", [None, "closed", "/dev/full"])
@pytest.mark.parametrize("stdout", ["closed", "/dev/full", "read-only"])
@pytest.mark.parametrize("command", ["leaky", "leaky --json", "help"])
def test_an_answer_nobody_could_read_is_2(with_streams, leaky, tmp_path, command, stdout, stderr):
    """Neither 0, which would be consistent, nor Python's own 1, which would be a violation."""
    arguments = {
        "leaky": ["audit", leaky, *CLAIM],
        "leaky --json": ["audit", leaky, *CLAIM, "--json", tmp_path / "result.json"],
        "help": ["--help"],
    }[command]
    assert with_streams(*arguments, stdout=stdout, stderr=stderr) == 2
    if stderr is None:
        _one_line((tmp_path / "stderr").read_text())


@needs_full
@pytest.mark.parametrize("stderr", ["closed", "/dev/full", "read-only"])
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["audit", "/no/such/file", *CLAIM], 2),
        (["--debug", "audit", "/no/such/file", *CLAIM], 2),
        (["audti"], 2),
        (["audit"], 2),
        (["audit", "{leaky}", *CLAIM], 1),
        (["audit", "{correct}", *CLAIM], 0),
    ],
)
def test_a_stderr_that_cannot_be_written_changes_no_exit_code(
    with_streams, leaky, correct, stderr, arguments, code
):
    arguments = [item.format(leaky=leaky, correct=correct) for item in arguments]
    assert with_streams(*arguments, stderr=stderr) == code


@pytest.mark.skipif(
    not (Path("/bin/sh").exists() and Path("/dev/full").exists()),
    reason="needs a shell, and a device that is always full",
)
@pytest.mark.process
@pytest.mark.parametrize(
    ("redirections", "code"),
    [(">&- 2>/dev/full", 2), (">/dev/full 2>&-", 2), ("2>&-", 1), ("<&-", 1)],
)
def test_streams_as_only_a_shell_leaves_them(leaky, tmp_path, redirections, code):
    """In a process of its own, whose last flush is Python's: the same exit codes.

    The number of a closed stream goes to the next file opened, and what is meant for the stream
    would go into that.
    """
    target = tmp_path / "result.json"
    command = shlex.join([*PROGRAM, *map(str, ("audit", leaky, *CLAIM, "--json", target))])
    done = subprocess.run(
        ["/bin/sh", "-c", f"{command} {redirections}"], env=ENVIRONMENT, capture_output=True
    )
    assert done.returncode == code
    if code == 1:
        assert askgauss.AuditResult.from_json(target.read_bytes()).verdict is not None


def test_a_closed_stdin_is_said(with_streams, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdin", None)
    assert with_streams("audit", "-", *CLAIM) == 2
    said = _one_line((tmp_path / "stderr").read_text())
    assert "standard input, which is closed" in said


@pytest.mark.parametrize("error", [SystemExit(1), SystemExit("gone"), RecursionError("deep")])
def test_a_library_that_leaves_is_no_violation(run, correct, monkeypatch, error):
    def leave(source, *_):
        raise error

    monkeypatch.setattr(audit_commands, "read_input", leave)
    result = run("audit", correct, *CLAIM)
    assert result.exit_code == 2
    assert f"Unexpected {type(error).__name__}" in _one_line(result.stderr)


# Text from files.

EVIL = (
    "w\n::error file=x::CONSISTENT\rCONSISTENT: fine\u2028 ::warning::x ##[error]y \x1b[2J"
    "##vso[task.complete]\x9b\u202e\x85CONSISTENT: all is well"
)


def _forged(text):
    """Lines that begin as if they were a verdict or a command to whoever runs the CI job."""
    return [
        line
        for line in text.splitlines()
        if line.startswith("CONSISTENT")
        or line.strip().startswith("::")
        or "##[" in line
        or "##vso[" in line
    ]


@pytest.fixture(scope="session")
def evil(tmp_path_factory):
    """A leaky run whose one tensor and notes have names made to be printed; as run and result."""
    folder = tmp_path_factory.mktemp("evil")
    fair = askgauss.simulate_dpsgd(
        steps=100, sampling_rate=0.2, noise_multiplier=0.71, present=300, absent=300, seed=1
    )
    facts = replace(fair.facts, tensors=(EVIL,), notes=(EVIL,), noise_multiplier=1.45)
    run = replace(fair, facts=facts)
    run.save(folder / "run.npz")
    claim = askgauss.PrivacyClaim(epsilon=8, delta=1e-5, noise_multiplier=1.45)
    result = askgauss.audit(run, claim=claim)
    findings = tuple(
        replace(item, check=EVIL, summary=f"{EVIL} {'x' * 90} {EVIL}", remedy=EVIL)
        for item in result.findings
    )
    replace(result, findings=findings, reason=EVIL).to_json(folder / "result.json")
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ["audit", "run.npz", *CLAIM],
        ["diagnose", "run.npz", *CLAIM, "--noise-multiplier", "1.45"],
        ["compare", "run.npz", *CLAIM],
        *(["report", "result.json", *form] for form in
          ([], ["--markdown", "-"], ["--junit", "-"], ["--html", "-"], ["--json", "-"])),
        ["audit", f"no {EVIL} file", *CLAIM],
    ],
)  # fmt: skip
def test_names_in_files_forge_no_lines(run, evil, arguments, monkeypatch):
    monkeypatch.chdir(evil)
    done = run(*arguments)
    shown = done.stdout + done.stderr
    assert len(shown) > 40
    # JSON is data: a program reads it, and every line begins with a quote or a bracket.
    assert _forged(shown.replace("##", "") if "--json" in arguments else shown) == []
    control = {item for item in shown if unicodedata.category(item) in ("Cc", "Cf", "Zl", "Zp")}
    assert control <= {"\n"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_device_is_written_to_and_never_replaced(run, correct):
    result = run("audit", correct, *CLAIM, "--json", "/dev/full")
    assert result.exit_code == 2
    assert "Cannot write '/dev/full': No space left" in _one_line(result.stderr)
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)  # noqa: PTH116
    assert run("audit", correct, *CLAIM, "--json", os.devnull).exit_code == 0
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)  # noqa: PTH116


def test_a_disk_that_fills_up_leaves_nothing_behind(run, correct, tmp_path, monkeypatch):
    target = tmp_path / "result.json"
    target.write_text("before")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = run("audit", correct, *CLAIM, "--json", target)
    assert result.exit_code == 2
    assert "The disk is full" in _one_line(result.stderr)
    assert "CONSISTENT" in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    assert target.read_text() == "before"


@pytest.mark.parametrize("place", ["missing/out.json", "."])
def test_output_that_cannot_be_written(run, correct, tmp_path, place):
    result = run("audit", correct, *CLAIM, "--json", tmp_path / place)
    assert result.exit_code == 2
    assert "Cannot write" in _one_line(result.stderr)
    assert list(tmp_path.iterdir()) == []


# Options from a file.


def _config(tmp_path, text):
    path = tmp_path / "options.toml"
    path.write_text(text)
    return path


def test_a_file_gives_what_the_command_line_does_not(run, scores, tmp_path):
    path = _config(tmp_path, "epsilon = 8\ndelta = 1e-5\nconfidence = 0.9\njson = '-'")
    content = json.loads(run("audit", scores, "--config", path).stdout)
    assert content["confidence"] == 0.9
    assert content["claim"]["epsilon"] == 8.0
    content = json.loads(run("audit", scores, "--config", path, "--confidence", "0.8").stdout)
    assert content["confidence"] == 0.8
    content = json.loads(run("--config", path, "audit", scores).stdout)
    assert content["confidence"] == 0.9


def test_one_file_may_serve_several_commands(run, scores, tmp_path):
    path = _config(
        tmp_path,
        "[audit]\nepsilon = 8\ndelta = 1e-5\ngate-error = 0.01\njson = '-'\n"
        "[simulate.dpsgd]\nsteps = 7\npresent = 9\nabsent = 9\n"
        "[compare]\nauditor = ['gaussian-shift', 'one-run']\ndelta = 1e-5\njson = '-'",
    )
    content = json.loads(run("audit", scores, "--config", path).stdout)
    assert content["gate_error"] == 0.01
    target = tmp_path / "run.npz"
    assert run("simulate", "dpsgd", "--config", path, "-o", target).exit_code == 0
    assert askgauss.Transcript.load(target).number_of_steps == 7
    rows = json.loads(run("compare", scores, "--config", path).stdout)["rows"]
    assert [row["name"] for row in rows] == ["gaussian-shift", "one-run"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epsilom = 8", ["'epsilom'", "nearest is 'epsilon'"]),
        ("gate_error = 0.1", ["'gate_error'", "nearest is 'gate-error'"]),
        ("source = 'x'", ["'source'", "nearest is"]),
        ("[audti]\nepsilon = 8", ["'audti'", "nearest is 'audit'"]),
        ("[audit]\nepsilom = 8", ["'epsilom'", "nearest is 'epsilon'"]),
        ("epsilon = 8\ndelta = 1e-5\nsteps = 7.5", ["--steps", "integer"]),
        ("epsilon = 2020-01-01", ["epsilon", "date"]),
        ("epsilon = = 8", ["as TOML"]),
        (f"steps = {'9' * 5000}", ["as TOML"]),
        ("[audit]\nepsilon = {a = 1}", ["epsilon", "dict"]),
    ],
)
def test_a_wrong_file_is_one_line_and_2(run, scores, tmp_path, text, words):
    result = run("audit", scores, "--config", _config(tmp_path, text))
    assert result.exit_code == 2
    line = _one_line(result.stderr)
    for word in words:
        assert word in line


def test_what_stands_in_the_table_of_a_group_is_for_its_commands(run, tmp_path):
    config = _config(tmp_path, "[simulate]\ndpsgd = 3")
    result = run("simulate", "dpsgd", "--config", config)
    assert result.exit_code == 2
    assert "name of an option, got 'dpsgd'" in _one_line(result.stderr)
    path = tmp_path / "run.npz"
    config = _config(tmp_path, "[simulate]\npresent = 7\nabsent = 9\n[simulate.dpsgd]\nsteps = 3")
    assert run("simulate", "dpsgd", "--config", config, "-o", path).exit_code == 0
    run_of_three = askgauss.Transcript.load(path)
    assert (run_of_three.number_of_steps, run_of_three.member.size) == (3, 16)


def test_a_missing_file_of_options(run, scores):
    result = run("audit", scores, "--config", "/no/such.toml")
    assert result.exit_code == 2
    assert "'/no/such.toml'" in _one_line(result.stderr)


def test_every_option_of_every_command_can_stand_in_a_file(tmp_path):
    import typer

    from askgauss.cli import app
    from askgauss.cli.program import _parameter

    def commands(command):
        return (
            [leaf for inner in command.commands.values() for leaf in commands(inner)]
            if hasattr(command, "commands")
            else [command]
        )

    checked = 0
    for command in commands(typer.main.get_command(app)):
        for parameter in command.params:
            if parameter.param_type_name == "option":
                name = next(item for item in parameter.opts if item.startswith("--"))
                assert _parameter(command, name[2:], tmp_path) == parameter.name
                checked += 1
    assert checked > 60


# --- the hook before a commit --------------------------------------------------------------------


def _flipped(content, place):
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.fixture
def kept(tmp_path):
    """A transcript, scores, a step store and a result, as bytes."""
    canaries = askgauss.DiracCanaries(present=40, absent=40, dimension=100, seed=0)
    store = tmp_path / "steps.bin"
    recorder = askgauss.Recorder(canaries, sampling_rate=0.2, noise_multiplier=1.0, store=store)
    generator = np.random.default_rng(0)
    for _ in range(20):
        values = generator.normal(size=80)
        values[recorder.sample()] += 1.0
        recorder.observe(values, background=0.0)
    transcript = recorder.transcript()
    transcript.save(tmp_path / "transcript.npz")
    transcript.scores().save(tmp_path / "scores.npz")
    claim = askgauss.PrivacyClaim(epsilon=8.0, delta=1e-5)
    askgauss.audit(transcript, claim=claim).to_json(tmp_path / "result.json")
    return {path.name: path.read_bytes() for path in tmp_path.iterdir()}


@pytest.mark.parametrize("name", ["transcript.npz", "scores.npz", "steps.bin"])
def test_the_hook_refuses_what_is_private_however_damaged(run, kept, name, tmp_path):
    whole = kept[name]
    places = [0, 1, whole.index(b"askgauss"), whole.rindex(b"askgauss")]
    for content in (
        whole,
        whole[: len(whole) // 2],
        whole[: 9 * len(whole) // 10],
        *(_flipped(whole, place) for place in places),
    ):
        path = tmp_path / "odd.npz"
        path.write_bytes(content)
        assert run("check-results", "--refuse-private", path).exit_code == 2


def _zipped(content):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("run/kept", content)
    return stream.getvalue()


@pytest.mark.parametrize("name", ["transcript.npz", "scores.npz", "steps.bin"])
def test_the_hook_looks_into_packed_files(run, kept, name, tmp_path):
    path, whole = tmp_path / "kept.gz", kept[name]
    packed = [gzip.compress, bz2.compress, lzma.compress, lambda c: gzip.compress(c)[:-300]]
    packed += [lambda c: gzip.compress(bz2.compress(c)), _zipped]
    for pack in packed:
        path.write_bytes(pack(whole))
        assert run("check-results", "--refuse-private", path).exit_code == 2
    for pack in (gzip.compress, lzma.compress, _zipped):
        path.write_bytes(pack(kept["result.json"]))
        assert run("check-results", "--refuse-private", path).exit_code == 0


def test_the_hook_lets_through_what_is_no_file_of_ours(run, kept, tmp_path):
    np.savez(tmp_path / "weights.npz", layer=np.ones(3))
    (tmp_path / "model.bin").write_bytes(bytes(1000))
    (tmp_path / "page.md").write_text('Transcripts have kind "askgauss-transcript".')
    for name in ("weights.npz", "model.bin", "page.md", "result.json"):
        assert run("check-results", "--refuse-private", tmp_path / name).exit_code == 0, name
    (tmp_path / "audit-npm.json").write_text('{"kind": "report", "digest": "sha256:0"}')
    for name in ("audit-npm.json", "result.json", "model.bin"):
        assert run("check-results", tmp_path / name).exit_code == 0, name


def test_the_hook_refuses_results_that_are_not_whole(run, kept, tmp_path):
    whole = kept["result.json"]
    path = tmp_path / "result.json"
    for content in (
        b"",
        whole[:5],
        whole[: len(whole) // 2],
        bytes(len(whole)),
        whole.decode().encode("utf-16"),
        _flipped(whole, whole.index(b"askgauss-result")),
    ):
        path.write_bytes(content)
        assert run("check-results", path).exit_code == 2, content[:40]
    elsewhere = tmp_path / "kept.json"
    for content in (whole[:-20], _flipped(whole, whole.index(b"askgauss-result") + 3)):
        elsewhere.write_bytes(content)
        assert run("check-results", elsewhere).exit_code == 2
    # Blanks behind a result hide what follows them from whoever reads a document's worth.
    path.write_bytes(whole + b" " * atomic.DOCUMENT_BYTES + b"{}")
    assert run("check-results", path).exit_code == 2


def test_the_hook_refuses_replays_and_descriptions_of_demos(run, tmp_path):
    """Neither says of itself that it is private, and older ones never will."""

    def train(data, replay):
        for batch in replay.batches(rate=0.5):
            replay.public("sum", float(data[batch].sum()))

    askgauss.replay(train, np.arange(20.0), leave_out=3, steps=2).to_json(tmp_path / "replay.json")
    described = codec.dumps("askgauss-run", 2, {"seed": 3})
    (tmp_path / "run.json").write_text(described)
    for name in ("replay.json", "run.json"):
        assert run("check-results", "--refuse-private", tmp_path / name).exit_code == 2, name


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_whatever_tells_of_few_canaries_is_for_its_owner(run, tmp_path):
    few = askgauss.simulate_dpsgd(
        steps=20, sampling_rate=0.1, noise_multiplier=1.0, present=20, absent=50, seed=0
    )
    few.save(tmp_path / "few.npz")
    claim = ("--epsilon", "8", "--delta", "1e-5")
    told = [
        run("diagnose", tmp_path / "few.npz", *claim, "--json", tmp_path / "findings.json"),
        run("compare", tmp_path / "few.npz", *claim, "--json", tmp_path / "table.json",
            "--markdown", tmp_path / "table.md", "--auditor", "gaussian-shift"),
    ]  # fmt: skip
    assert all("with the training data" in answer.stdout for answer in told)
    for name in ("findings.json", "table.json", "table.md"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600, name
    for name in ("findings.json", "table.json"):
        assert run("check-results", "--refuse-private", tmp_path / name).exit_code == 2, name
