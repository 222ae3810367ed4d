"""Says what the fixed runs answer otherwise than before: ``python -m tests.snapshots [names]``."""

from __future__ import annotations

import argparse
import time

from tests.snapshots import written
from tests.snapshots.cases import cases


def main() -> None:
    """Make every run, show words and numbers that differ apart, and keep them if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="runs to make; all if none is named")
    parser.add_argument("--write", action="store_true", help="keep what the runs answer now")
    options = parser.parse_args()
    chosen = [case for case in cases() if not options.names or case.name in options.names]
    words = written.load_words()
    numbers_differ, words_differ, used = 0, 0, dict[str, str]()
    for case in chosen:
        started = time.process_time()
        now = case.taken()
        used |= now.words
        known = (written.FOLDER / f"{case.name}.json").exists()
        kept = written.load(case.name) if known else written.Snapshot()
        numbers = written.other_numbers(kept, now, case.tolerance) if known else ["new"]
        said = written.other_words(kept, now, words) if known else []
        numbers_differ += bool(numbers)
        words_differ += bool(said)
        print(f"{case.name} ({time.process_time() - started:.1f} s)")
        for line in [f"  number  {item}" for item in numbers] + [f"  word    {s}" for s in said]:
            print(line)
        if options.write:
            written.save(case.name, now)
    if options.write:
        # Of runs that were not made, the sentences are still theirs.
        written.save_words(used if not options.names else words | used)
    print(f"{len(chosen)} runs: numbers differ in {numbers_differ}, words in {words_differ}")


if __name__ == "__main__":
    main()
