"""The museum as a page: every figure on it comes from the runs."""

from __future__ import annotations

from typing import Any

from museum.catalogue import Release
from museum.run import ExhibitRun

_HEAD = """# The museum

Bugs that were really released, each run as a user would run it, audited, and set beside a twin that
is mended. Every release is installed by name and hash, without its dependencies, into a folder of
its own. Mechanisms marked *published* are of papers: written here from their descriptions, and from
nobody's package. `make museum` runs all of them and writes this page; `python -m museum list` and
`python -m museum run NAME` do it one by one, in a copy of the source repository.

*Claimed* is the epsilon that the library or its user states for the run, *bound* what the audit
shows at confidence 0.95, *true* what is known otherwise. *Finding* is the check that named the
bug; where a mechanism is audited as a whole, it is the event that told two inputs apart, and
*bound above the claim* means that no part was out of order by itself. A *warning* leaves the
verdict alone. *Seconds* are processor time of both runs, on one core. *Scores alone* is what the
paper's own auditor and jax_privacy's say of the scores of the very same broken run; where a
mechanism is audited by its outputs, or a run is replayed, there are no such scores.

"""

_COLUMNS = (
    *("exhibit", "library", "released", "what is wrong", "claimed", "bound", "true"),
    *("finding", "verdict", "twin", "seconds"),
)


def render(runs: list[ExhibitRun]) -> str:
    """The page."""
    shown = [item for item in runs if not item.skipped]
    parts = [
        _HEAD,
        f"{summary(runs)}\n\n",
        f"| {' | '.join(_COLUMNS)} |\n",
        f"|{'---|' * len(_COLUMNS)}\n",
        *(_row(item) for item in shown),
        *_not_shown(runs),
        *_unseen(shown),
        *_live(shown),
        "\n## Every exhibit\n",
        *(_section(item) for item in shown),
    ]
    return "".join(parts)


def summary(runs: list[ExhibitRun]) -> str:
    """How many were shown, found and clean, and in what time; a run that two share counts once."""
    shown = [item for item in runs if not item.skipped]
    found = sum(item.found for item in shown)
    clean = [item.outcomes["mended"]["verdict"] for item in shown if item.twin_clean]
    seconds = {run["run"]: run["seconds"] for item in shown for run in item.outcomes.values()}
    unseen = sum(not item.exhibit.finding for item in shown)
    released = sum(bool(item.exhibit.broken) for item in shown)
    return (
        f"{len(runs)} exhibits, {len(shown)} of them shown ({released} of released packages, "
        f"{len(shown) - released} published): {found} named by their finding, "
        f"{unseen} that no audit of ours sees, {len(clean)} of {len(shown)} twins clean "
        f"({clean.count('CONSISTENT')} of them consistent with their claim, "
        f"{clean.count('INCONCLUSIVE')} without an alarm and too small a run to say more), "
        f"{sum(seconds.values()) / 60.0:.1f} minutes of processor time in all."
    )


def _row(item: ExhibitRun) -> str:
    exhibit, broken, twin = item.exhibit, item.outcomes["broken"], item.outcomes["mended"]
    warned = exhibit.finding in broken["warnings"]
    finding = f"{exhibit.finding}{' (warning)' if warned else ''}" if item.found else "none"
    state = "live" if exhibit.live else "mended since" if exhibit.broken else "published"
    cells = (
        f"[{exhibit.name}](#{exhibit.name})",
        exhibit.library,
        f"{exhibit.broken[0].label}, {state}" if exhibit.broken else state,
        exhibit.title,
        *(_number(broken[name]) for name in ("claimed", "bound", "true")),
        finding,
        broken["verdict"],
        twin["verdict"],
        f"{item.seconds:.0f}",
    )
    return f"| {' | '.join(cells)} |\n"


def _not_shown(runs: list[ExhibitRun]) -> list[str]:
    skipped = [item for item in runs if item.skipped]
    if not skipped:
        return []
    head = "\n## Not shown, and not counted as found\n\n"
    return [
        head,
        *(
            f"- **{item.exhibit.name}** ({item.exhibit.library}, {item.exhibit.title}): "
            f"{item.skipped}.\n"
            for item in skipped
        ),
    ]


def _unseen(shown: list[ExhibitRun]) -> list[str]:
    unseen = [item.exhibit for item in shown if not item.exhibit.finding]
    if not unseen:
        return []
    return [
        "\n## What no audit of ours sees\n\n",
        *(
            f"- **{item.library}: {item.title}** ([{item.name}](#{item.name})): "
            f"{item.why_unseen.strip()}\n"
            for item in unseen
        ),
    ]


def _live(shown: list[ExhibitRun]) -> list[str]:
    live = [item.exhibit for item in shown if item.exhibit.live]
    if not live:
        return []
    return [
        "\n## Live bugs, for their maintainers\n\n"
        "Each is in the newest release looked at. `python -m museum run` is run in a copy of the "
        "source repository, after `make museum` or any other target has made its environment.\n",
        *(
            f"\n**{item.library} {item.broken[0].version}: {item.title}.** "
            f"{item.maintainer.strip()}\n"
            for item in live
        ),
    ]


def _section(item: ExhibitRun) -> str:
    exhibit, broken, twin = item.exhibit, item.outcomes["broken"], item.outcomes["mended"]
    lines = [
        f"\n### {exhibit.name}\n\n",
        f"{exhibit.wrong.strip()}\n\nDocumented: {exhibit.known.strip()}.\n\n",
        f"- broken ({_label(exhibit.broken)}): {_measured(broken)}\n",
        *(f"    - {name}: {said}\n" for name, said in broken["said"].items()),
        f"- twin ({_label(exhibit.mended)}; {exhibit.twin.strip()}): {_measured(twin)}\n",
    ]
    if broken["scores_only"]:
        lines.append(
            f"- scores alone: the paper's audit {broken['scores_only']}; "
            f"jax_privacy's {broken['peer']}\n"
        )
    return "".join(lines)


def _measured(outcome: dict[str, Any]) -> str:
    if outcome["bound"] is None:
        return str(outcome["verdict"])
    return (
        f"{outcome['verdict']}, epsilon at least {_number(outcome['bound'])} of a claimed "
        f"{_number(outcome['claimed'])}"
    )


def _label(releases: tuple[Release, ...]) -> str:
    """The release that is shown; what stands beside it only lets it be imported."""
    return releases[0].label if releases else "from its paper"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
