"""Every number that a command takes, at its extremes: an answer or a sentence, and soon."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import signal
import sys
import typing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import askgauss as ag
from askgauss.cli import app
from askgauss.monitor import write_feed
from tests.monitor.runs import watched

# Spelled out, as a script may do it: more than a float holds.
HUGE = "1" + "0" * 400
VALUES = (
    *("nan", "inf", "-inf", "-1", "0", "5e-324", "1e-300", "1e-160", "1e160", "1e200", "1e300"),
    *(str(10**9), str(10**18), str(10**20), HUGE, ""),
)
# Of each option so many are tried, always the same ones, and all of them of what failed once.
SHARE = 1
SECONDS = 30
BYTES = 1 << 30
# A number that is none, where a measurement would stand.
NO_NUMBER = re.compile(r"(?<![\w.])(nan|-?inf)(?!\w)", re.IGNORECASE)

CLAIM = "--epsilon 8 --delta 1e-5"
# A small call of every command that takes numbers; what is tried comes on top.
CALLS = {
    "demo": ("{new} --steps 2 --hidden 2 --batches 2 --backend numpy",),
    "audit": (f"{{run}} {CLAIM}", f"{{scores}} {CLAIM}"),
    "compare": (f"{{scores}} {CLAIM}",),
    "diagnose": (f"{{run}} {CLAIM}",),
    "watch": ("{watched} --once",),
    "verify": ("{result} {run}",),
    "replay": ("{training}:train --leave-out 3 --steps 2", "{training}:train --replace 3"),
    "plan": (
        "",
        "--find power",
        "--find alternative",
        "--monitor --steps 10 --present 10 --absent 20 --fault noise=0.5",
    ),
    "theory": ("--steps 100",),
    "selftest": ("--audits 2 --present 20 --absent 20 --steps 10",),
    "simulate dpsgd": ("--steps 3 --present 5 --absent 5 -o {new}",),
    "simulate dpftrl": ("--steps 4 --present 5 --absent 5 -o {new}",),
    "simulate federated": (
        "--rounds 2 --clients 3 --dimension 30 --present 5 --absent 5 -o {new}",
    ),
    "faults run": ("half-noise --steps 10 --present 10 --absent 10",),
}
FAULTS = ("noise", "contribution", "rate", "period")
# What did not end, or ended in a bug report.
ONCE = (
    ("theory", "--noise-multiplier", "1e200"),
    ("theory", "--noise-multiplier", "1e-100"),
    ("theory", "--noise-multiplier", "1e-20"),
    ("theory", "--clip-norm", "1e-100"),
    ("theory", "--tail", "1e160"),
    ("theory", "--steps", str(10**9)),
    ("theory", "--steps", HUGE),
    ("theory", "--sampling-rate", "5e-324"),
    ("watch", "--interval", "1e300"),
    ("replay", "--steps", str(10**20)),
    ("plan", "--delta", "0.9999999999999999"),
    ("plan", "--epsilon", "1e300"),
    ("plan", "--alternative", "1e300"),
    ("plan", "--steps", HUGE),
    ("audit", "--steps", HUGE),
    ("simulate dpsgd", "--steps", str(10**20)),
    ("simulate dpsgd", "--present", str(10**9)),
    ("simulate federated", "--dimension", str(10**18)),
    ("selftest", "--audits", str(10**9)),
)

TRAINING = """
import numpy as np

data = np.random.default_rng(0).normal(size=(20, 3))

def train(data, replay):
    for batch in replay.batches(rate=0.3):
        rows = np.clip(data[batch], -0.5, 0.5)
        noise = replay.generator().normal(size=3)
        replay.release(rows.sum(axis=0), noise=noise, clip_norm=1.0)
"""


def commands(program=app, before=()):
    """Every command of the program, by its words, with the function behind it."""
    for command in program.registered_commands:
        name = command.name or command.callback.__name__.replace("_", "-")
        yield " ".join((*before, name)), command.callback
    for group in program.registered_groups:
        inner = group.typer_instance
        yield from commands(inner, (*before, inner.info.name))


def kinds(hint):
    """The plain types in a hint, such as int and NoneType in int | None."""
    inner = typing.get_args(hint)
    return set().union(*map(kinds, inner)) if inner else {hint}


def numbers(function):
    """The options of a command that take numbers."""
    hints = typing.get_type_hints(function)
    return [
        f"--{name.replace('_', '-')}"
        for name, hint in hints.items()
        if name != "return" and kinds(hint) & {int, float}
    ]


NUMBERS = {name: found for name, function in commands() if (found := numbers(function))}


def without(words, option):
    """The words of a call but for one option and its value."""
    if option not in words:
        return words
    place = words.index(option)
    return [*words[:place], *words[place + 2 :]]


@contextlib.contextmanager
def bounded():
    """Let what follows have so much processor time and memory, where the system can tell."""
    if sys.platform != "linux":
        yield
        return
    import resource

    def enough(*_):
        raise TimeoutError(f"more than {SECONDS} s of processor time")

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    now = pages * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGVTALRM, enough)
    resource.setrlimit(resource.RLIMIT_AS, (now + BYTES, hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGVTALRM, before)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Small files of every kind; none of them is written to again."""
    folder = tmp_path_factory.mktemp("extremes")
    transcript = ag.simulate_dpsgd(
        steps=10, sampling_rate=0.2, noise_multiplier=1.45, present=40, absent=40, seed=1
    )
    transcript.save(folder / "run.npz")
    transcript.scores().save(folder / "scores.npz")
    claim = ag.PrivacyClaim(epsilon=8.0, delta=1e-5)
    (folder / "result.json").write_text(ag.audit(transcript, claim=claim).to_json())
    (folder / "mine.py").write_text(TRAINING)
    monitor = watched(np.random.default_rng(0), steps=5, planned=5, own_coin=True)
    write_feed(folder, replace(monitor.feed(), status="finished"))
    return {
        "run": folder / "run.npz",
        "scores": folder / "scores.npz",
        "result": folder / "result.json",
        "training": folder / "mine.py",
        "watched": folder,
    }


@pytest.fixture
def tried(run, places, tmp_path, monkeypatch):
    """Call a command with a number, and say what is wrong with its answer."""
    monkeypatch.chdir(tmp_path)
    fresh = itertools.count()

    def call(command, words, option, value):
        new = tmp_path / str(next(fresh))
        given = [word.format(new=new, **places) for word in words]
        with bounded():
            done = run(*command.split(), *given, f"{option}={value}")
        told = f"{command} {' '.join(words)} {option}={value:.40}: {done.exit_code} "
        if done.exit_code not in (0, 1, 2, 3) or not isinstance(
            done.exception, (SystemExit, type(None))
        ):
            return told + repr(done.exception)
        for word in ("Unexpected", "Out of memory", "Warning:", "Traceback"):
            if word in done.stderr:
                return told + done.stderr
        if done.exit_code == 2 and (done.stderr.count("\n") != 1 or len(done.stderr) > 800):
            return told + done.stderr
        return told + done.stdout if NO_NUMBER.search(done.stdout) else ""

    return call


def test_every_command_that_takes_numbers_is_called():
    assert set(NUMBERS) == set(CALLS)
    assert {"--noise-multiplier", "--tail", "--steps"} <= set(NUMBERS["theory"])


@pytest.mark.parametrize("command", sorted(CALLS))
def test_numbers_at_their_extremes(tried, command):
    draw = random.Random(command)
    wrong = []
    for option in NUMBERS[command]:
        for value in draw.sample(VALUES, SHARE):
            words = draw.choice(CALLS[command]).split()
            wrong.append(tried(command, without(words, option), option, value))
    assert not "\n".join(filter(None, wrong))


@pytest.mark.parametrize(("command", "option", "value"), ONCE)
def test_what_failed_once(tried, command, option, value):
    words = CALLS[command][0].split()
    assert not tried(command, without(words, option), option, value)


@pytest.mark.parametrize("name", FAULTS)
def test_sizes_of_faults(tried, name):
    words = without(CALLS["plan"][-1].split(), "--fault")
    values = (*random.Random(name).sample(VALUES, 1), "0.9999999999")
    wrong = [tried("plan", words, "--fault", f"{name}={value}") for value in values]
    assert not "\n".join(filter(None, wrong))


def test_a_fault_too_slight_for_any_monitor_needs_no_rehearsal(run):
    done = run("plan", "--monitor", "--fault", "noise=0.9999999999")
    assert done.exit_code == 0
    assert re.search(r"noise=0\.9999999999\s+never\s+never", done.stdout)
