"""What a test costs, by where it stands: every test has one of these markers.

Programs that JAX has compiled once are kept for the rest of the run: small models train in less
time than it takes to compile them.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).parent

# The first that fits decides; a test that none fits is fast.
COSTS: dict[str, tuple[str, ...]] = {
    "browser": ("tests/report/test_browser.py",),
    "fuzz": ("tests/fuzz", "tests/test_extremes.py", "tests/cli/test_extremes.py"),
    "calibration": ("tests/calibration",),
    "process": (
        "tests/cli/test_action.py",
        "tests/cli/test_demo.py",
        "tests/cli/test_selftest.py",
        "tests/cli/test_terminal.py",
        "tests/cli/test_watch.py",
        "tests/integrations/test_flower.py",
        "tests/integrations/test_keras.py",
        "tests/integrations/test_opacus_ddp.py",
        "tests/integrations/test_opacus_resume.py",
        "tests/integrations/test_opacus_sharded.py",
        "tests/kills",
        "tests/paper/test_commands.py",
        "tests/paper/test_sweep.py",
        "tests/test_examples.py",
        "tests/test_journeys.py",
        "tests/test_live_copies.py",
        "tests/test_museum.py",
        "tests/test_pytest_plugin.py",
    ),
    "training": (
        "src/askgauss/integrations",
        "paper",
        "tests/auditors/test_against_jax_privacy.py",
        "tests/blackbox/test_membership_draws.py",
        "tests/blackbox/test_record_scores.py",
        "tests/faults",
        "tests/final/test_training.py",
        "tests/integrations",
        "tests/paper",
        "tests/sampling/test_against_jax_privacy.py",
        "tests/test_limits.py",
        "tests/test_seam.py",
    ),
}
# Fixtures that start a process or train, wherever the test stands.
_BY_FIXTURE = {"shell": "process"}

# Drawn inputs are the same in every run, and however busy the machine is no test fails for that.
# `pytest --hypothesis-profile=thorough` draws ten times as many.
_STEADY = hypothesis.settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("steady", _STEADY)
hypothesis.settings.register_profile("thorough", _STEADY, max_examples=300)
hypothesis.settings.load_profile("steady")

_COMPILED = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Give JAX, here and in processes that tests start, a folder for what it compiles."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # Workers share the folder of the process that started them.
    config.stash[_COMPILED] = tempfile.TemporaryDirectory(prefix="askgauss-jax-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = config.stash[_COMPILED].name
    # Small models train in less time than it takes to optimize their programs.
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what JAX compiled."""
    if _COMPILED in config.stash:
        config.stash[_COMPILED].cleanup()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import nothing that has no fast test where only those are wanted: frameworks take longest."""
    if config.option.markexpr == "fast" and _cost_of_place(collection_path) != "fast":
        return True
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test by what it costs."""
    for item in items:
        item.add_marker(_cost(item))


def _cost(item: pytest.Item) -> str:
    # A test that costs more than its neighbours says so itself.
    for cost in COSTS:
        if item.get_closest_marker(cost):
            return cost
    for fixture, cost in _BY_FIXTURE.items():
        if fixture in getattr(item, "fixturenames", ()):
            return cost
    return _cost_of_place(Path(item.path))


def _cost_of_place(place: Path) -> str:
    path = place.relative_to(ROOT).as_posix()
    for cost, places in COSTS.items():
        if any(path == place or path.startswith(f"{place}/") for place in places):
            return cost
    return "fast"
