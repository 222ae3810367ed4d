"""``python -m museum list``, ``run NAME``, ``all --docs docs/museum.md``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from museum import page
from museum.catalogue import every
from museum.run import run_exhibit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run exhibits; 0 when each that ran did what its folder says, 10 when one did not.

    Outcomes are stored, so that ``all`` resumes where it stopped; ``run`` runs again.
    """
    parser = argparse.ArgumentParser(prog="museum", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="every exhibit in a line")
    some = commands.add_parser("run", help="run some of them, broken and mended")
    some.add_argument("names", nargs="+")
    whole = commands.add_parser("all", help="run all of them, and write the page")
    whole.add_argument("--docs", type=Path)
    given = parser.parse_args(arguments)
    exhibits = {item.name: item for item in every()}
    if given.command == "list":
        for item in exhibits.values():
            word = "live" if item.live else "mended"
            print(f"{item.name:34} {item.library:14} {word:6} {item.title}")
        return 0
    names = list(exhibits) if given.command == "all" else given.names
    unknown = [name for name in names if name not in exhibits]
    if unknown:
        print(f"No exhibit is called {unknown[0]!r}: see 'list'.", file=sys.stderr)
        return 2
    runs = []
    for name in names:
        runs.append(run_exhibit(exhibits[name], again=given.command == "run"))
        print(runs[-1].line, flush=True)
    if given.command == "all":
        print(page.summary(runs))
        if given.docs is not None:
            given.docs.write_text(page.render(runs), encoding="utf-8")
    # Not 1, which Python itself ends with when something else went wrong.
    return 0 if all(item.as_expected for item in runs if not item.skipped) else 10


if __name__ == "__main__":
    sys.exit(main())
