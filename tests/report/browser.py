"""A real browser for the report: Debian's chromium, driven over its own protocol."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
PROGRAMS = "chromium", "chromedriver"


def require_browser() -> tuple[str, str]:
    """Paths of chromium and its driver; installed if missing and allowed, else the test is skipped.

    In CI (``CI=true``) a missing browser is a failure: there the report must be looked at.
    """
    problem = ""
    if not all(map(shutil.which, PROGRAMS)):
        problem = _install()
    try:
        import selenium  # noqa: F401
    except ImportError:
        problem = problem or "the Python package selenium is not installed"
    found = tuple(shutil.which(name) for name in PROGRAMS)
    if not problem and all(found):
        return found[0] or "", found[1] or ""
    reason = f"NO BROWSER, the report was not looked at: {problem or 'chromium not found'}"
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def _install() -> str:
    """Install the browser where that is possible; what went wrong, or nothing."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or not shutil.which("apt-get"):
        return "chromium and chromedriver are missing, and only root may apt-get install them"
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "--no-install-recommends", "chromium", "chromium-driver"]
    for command in (["apt-get", "update"], install):
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode:
            return f"{' '.join(command)} failed: {done.stderr[-300:]}"
    return ""


@contextmanager
def browser(*, width: int = 1280, height: int = 900) -> Iterator[object]:
    """A browser with an empty profile that logs its console and every request it makes."""
    chromium, driver = require_browser()
    from selenium import webdriver
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.chrome.service import Service

    with tempfile.TemporaryDirectory(prefix="askgauss-browser-") as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        try:
            window = webdriver.Chrome(options=options, service=Service(driver))
        except WebDriverException as error:
            pytest.skip(f"the browser did not start, the report was not looked at: {error.msg}")
        try:
            window.set_page_load_timeout(120)
            yield window
        finally:
            window.quit()


def emulate(window: object, *, scheme: str, width: int, height: int = 900, media: str = "") -> None:
    """Prefer a colour scheme, at the width of some device."""
    window.execute_cdp_cmd(  # type: ignore[attr-defined]
        "Emulation.setEmulatedMedia",
        {"media": media, "features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    window.execute_cdp_cmd(  # type: ignore[attr-defined]
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )


def open_file(window: object, path: Path) -> None:
    """Show a local file."""
    window.get(path.resolve().as_uri())  # type: ignore[attr-defined]
