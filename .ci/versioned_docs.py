"""The documentation of this version in a folder of its own, beside those of earlier ones.

``python .ci/versioned_docs.py SITE`` builds SITE/0.2.0, lists it in SITE/versions.json, which the
pages' menu of versions reads, and lets SITE/index.html lead to the newest. Versions that are there
stay as they are; the same one is built anew.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_INDEX = """<!doctype html>
<meta charset="utf-8">
<title>askgauss</title>
<meta http-equiv="refresh" content="0; url={newest}/">
<p>The documentation of <a href="{newest}/">askgauss {newest}</a>.</p>
<ul>{others}</ul>
"""


def order(version: str) -> tuple[int, ...]:
    """What versions are sorted by: 0.10.0 comes after 0.9.1."""
    return tuple(int(part) if part.isdigit() else -1 for part in version.split("."))


def listed(site: Path, version: str) -> list[dict[str, object]]:
    """The versions there are, this one among them, the newest first."""
    path = site / "versions.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    names = {str(item["version"]) for item in known} | {version}
    there = sorted((name for name in names if (site / name).is_dir()), key=order, reverse=True)
    return [
        {"version": name, "title": name, "aliases": ["latest"] if name == there[0] else []}
        for name in there
    ]


def publish(site: Path, version: str) -> None:
    """List what was built, and let the front page lead to the newest."""
    versions = listed(site, version)
    (site / "versions.json").write_text(json.dumps(versions, indent=2) + "\n", encoding="utf-8")
    names = [str(item["version"]) for item in versions]
    others = "".join(f'<li><a href="{name}/">{name}</a></li>' for name in names)
    page = _INDEX.format(newest=names[0], others=others)
    (site / "index.html").write_text(page, encoding="utf-8")
    print(f"{site}: {', '.join(names)}")


def main(site: Path) -> None:
    """Build this version, and list it."""
    sys.path.insert(0, str(ROOT / "src"))
    from askgauss import __version__

    built = site / __version__
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(built)]
    subprocess.run(command, cwd=ROOT, check=True)
    publish(site, __version__)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "site").resolve())
