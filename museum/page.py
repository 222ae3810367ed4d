"""The museum as a page: every figure on it comes from the runs."""

from __future__ import annotations

from museum.exhibits import Release
from museum.tour import Shown

_HEAD = """# The museum

Bugs that were really released, each run as a user of the library would run it, audited, and set
beside a twin that is mended. Every release is installed by name and hash, without its dependencies.
A *finding* is what the audit named; *the paper's audit* and *jax_privacy's* read nothing but the
scores of the same run.

"""


_COLUMNS = (
    *("exhibit", "library", "released", "what is wrong", "claimed", "true"),
    *("finding", "verdict", "twin", "seconds"),
)


def render(tours: list[Shown]) -> str:
    """The page."""
    shown = [item for item in tours if not item.skipped]
    skipped = [item for item in tours if item.skipped]
    found = [item for item in shown if item.found]
    clean = [item for item in shown if item.twin_clean]
    seconds = sum(item.seconds for item in shown)
    parts = [
        _HEAD,
        f"{len(tours)} exhibits, {len(shown)} of them shown: {len(found)} named by their finding, "
        f"{len(clean)} of {len(shown)} twins clean, {seconds / 60.0:.1f} minutes in all.\n\n",
        f"| {' | '.join(_COLUMNS)} |\n",
        f"|{'---|' * len(_COLUMNS)}\n",
        *(_row(item) for item in shown),
    ]
    if skipped:
        parts += [
            "\n## Not shown\n\n",
            *(f"- {item.exhibit.name}: {item.skipped}\n" for item in skipped),
        ]
    unseen = [item for item in shown if not item.exhibit.finding]
    if unseen:
        parts += ["\n## What no audit of ours sees\n\n"]
        parts += [f"- **{item.exhibit.title}**: {item.exhibit.why_unseen}\n" for item in unseen]
    live = [item for item in shown if item.exhibit.live and item.exhibit.maintainer]
    if live:
        parts += ["\n## Live bugs, for their maintainers\n"]
        for exhibit in (item.exhibit for item in live):
            parts.append(f"\n### {exhibit.library}: {exhibit.title}\n\n")
            parts.append(f"{exhibit.maintainer.strip()}\n")
    parts += ["\n## Every exhibit\n", *(_section(item) for item in shown)]
    return "".join(parts)


def _row(item: Shown) -> str:
    exhibit, broken, twin = item.exhibit, item.outcomes["broken"], item.outcomes["mended"]
    cells = (
        f"[{exhibit.name}](#{exhibit.name})",
        exhibit.library,
        f"{_label(exhibit.broken)}, {'live' if exhibit.live else 'mended since'}",
        exhibit.title,
        _number(broken["claimed"]),
        _number(broken["true"]),
        exhibit.finding if item.found else "none",
        broken["verdict"],
        f"{twin['verdict']}",
        f"{item.seconds:.0f}",
    )
    return f"| {' | '.join(cells)} |\n"


def _section(item: Shown) -> str:
    exhibit, broken, twin = item.exhibit, item.outcomes["broken"], item.outcomes["mended"]
    lines = [
        f"\n### {exhibit.name}\n\n",
        f"{exhibit.wrong.strip()}\n\nDocumented: {exhibit.known.strip()}\n\n",
        f"- broken ({_label(exhibit.broken)}): {broken['verdict']}, bound "
        f"{_number(broken['bound'])} of a claimed {_number(broken['claimed'])}",
        f"; {', '.join(broken['findings'])}: {broken['said']}\n" if broken["findings"] else "\n",
        f"- twin ({_label(exhibit.mended)}; {exhibit.twin.strip()}): {twin['verdict']}, bound "
        f"{_number(twin['bound'])} of a claimed {_number(twin['claimed'])}\n",
    ]
    if broken["scores_only"]:
        lines.append(
            f"- scores alone: the paper's audit {broken['scores_only']}; "
            f"jax_privacy's {broken['peer']}\n"
        )
    return "".join(lines)


def _label(releases: tuple[Release, ...]) -> str:
    return ", ".join(item.label for item in releases) or "packages of this project"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
