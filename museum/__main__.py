"""``python -m museum list``, ``run NAME``, ``all --docs docs/museum.md``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from museum import page, tour
from museum.exhibits import every


def main() -> int:
    """Show exhibits; 0 when each that was shown did what its folder says, 10 when one did not.

    Outcomes are kept, so that ``all`` goes on where it stopped; ``run`` runs again.
    """
    parser = argparse.ArgumentParser(prog="museum", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="every exhibit in a line")
    run = commands.add_parser("run", help="run some of them, broken and mended")
    run.add_argument("names", nargs="+")
    whole = commands.add_parser("all", help="run all of them, and write the page")
    whole.add_argument("--docs", type=Path)
    given = parser.parse_args()
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
    tours = []
    for name in names:
        shown = tour.show(exhibits[name], again=given.command == "run")
        print(shown.line, flush=True)
        tours.append(shown)
    if given.command == "all":
        print(page.summary(tours))
        if given.docs is not None:
            given.docs.write_text(page.render(tours), encoding="utf-8")
    # Not 1, which Python itself ends with when something else went wrong.
    return 0 if all(item.as_expected for item in tours if item.skipped == "") else 10


if __name__ == "__main__":
    sys.exit(main())
