"""``make fuzz``: many damaged files over every reader, with little memory, and a summary.

Each subject is worked on in a process of its own, which may map a gigabyte more than it starts with
and whose death is a failure with the number of the input that brought it about.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from tests.fuzz import engine, subjects
from tests.fuzz.subjects import Subject

# Subjects are made once: a fork has them, and its own limit.
fork = multiprocessing.get_context("fork")


def work(
    subject: Subject, count: int, changes: int, folder: Path, log: Path | None, answer: Connection
) -> None:
    """One subject, in this process."""

    def note(failure: str) -> None:
        if log is not None:
            with log.open("a", encoding="utf-8", errors="backslashreplace") as stream:
                stream.write(f"{failure}\n")

    engine.limit_memory(1 << 30)
    place = folder / "number"
    outcomes = [engine.fuzz(subject, range(count), keep=place.write_text, note=note)]
    if changes and subject.protected:
        place.write_text("of single bytes")
        outcomes.append(engine.every_byte(subject, changes, note=note))
    answer.send((outcomes, engine.peak_memory()))


def main() -> int:
    """All subjects, one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="inputs over all subjects")
    parser.add_argument(
        "--every-byte", type=int, default=1, help="ways to change each byte, up to 9"
    )
    parser.add_argument("--part", default="1/1", help="every so manieth subject: 1/4, 2/4, ...")
    parser.add_argument("--only", default="", help="subjects whose name contains this")
    parser.add_argument("--log", type=Path, help="a file to which each failure is added at once")
    arguments = parser.parse_args()
    inputs, single, failed, most, started = 0, 0, 0, 0.0, time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = subjects.make(folder)
        each = -(-arguments.count // len(found))
        first, step = map(int, arguments.part.split("/"))
        chosen = [item for item in found[first - 1 :: step] if arguments.only in item.name]
        for subject in chosen:
            ours, theirs = fork.Pipe(duplex=False)
            given = (subject, each, arguments.every_byte, folder, arguments.log, theirs)
            process = fork.Process(target=work, args=given)
            process.start()
            theirs.close()
            try:
                outcomes, memory = ours.recv()
            except EOFError:
                number = (folder / "number").read_text()
                print(f"  FAILED {subject.name}: the process died at input {number}")
                failed += 1
                continue
            finally:
                process.join()
            most = max(most, memory)
            for outcome in outcomes:
                inputs += 0 if outcome.single else outcome.inputs
                single += outcome.inputs if outcome.single else 0
                failed += len(outcome.failures)
                print(f"{outcome}; {memory:.2f} GB", flush=True)
                for failure in outcome.failures[:5]:
                    print("  FAILED", failure)
    print(
        f"{inputs} damaged inputs and {single} single-byte changes over {len(chosen)} subjects in "
        f"{(time.monotonic() - started) / 60:.0f} minutes, at most {most:.2f} GB: "
        f"{failed} failures"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
