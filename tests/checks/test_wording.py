"""No text contradicts its status: every finding is rendered in every status it can have."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

import numpy as np
import pytest
from tests.replay.runs import records, training
from tests.report import samples

import askgauss as ag
from askgauss import report
from askgauss.auditors import auditor_types
from askgauss.checks.accountant import NEIGHBOUR_CHECKS, Neighbours
from askgauss.checks.gate import apply_gate, correlated_checks, transcript_checks
from askgauss.checks.registry import SUSPICIOUS, judged, made, registered
from askgauss.checks.score_shape import score_checks
from askgauss.figures.summary import RunSummary, tables_of
from askgauss.mechanisms.banded import BandedStrategy
from askgauss.recording.commitment import commit
from askgauss.recording.facts import (
    ClipCountFacts,
    GainFacts,
    HonestFacts,
    MixingFacts,
    NoiseRowFacts,
    ParticipationFacts,
    ProbeFacts,
    ProbeReading,
    ReuseFacts,
    RoundFacts,
    RowFacts,
    SettingFacts,
    StepFacts,
    WeightFacts,
)
from askgauss.recording.facts.run_facts import SeedProbe
from askgauss.results import Consequence, Status, Verdict
from askgauss.sampling import (
    CyclicPoisson,
    DrawnBatches,
    FixedSize,
    Poisson,
    SchemeSums,
    Shuffled,
)
from askgauss.simulation import (
    FAULTS,
    TREE_FAULTS,
    simulate_dpftrl,
    simulate_dpsgd,
    simulate_scores,
)

# What only a check that did not pass may say.
ACCUSING = re.compile(
    r"implies epsilon|beyond chance|[Ll]ook for|looks like|more than the noise explains|"
    r"in common\.|another distribution|no such extremes|times the claim, as of|without any noise|"
    r"rarely gives|less noise than|more noise than|must |is it |are released without"
)
# What only a check that passed, or was too small to matter, may say.
EXCUSING = re.compile(
    r"too small to matter|every (step|node) was released with noise|was finite|"
    r"full float precision|orthogonal by construction"
)
CLAIM = ag.PrivacyClaim(
    epsilon=2.0, delta=1e-5, noise_multiplier=1.6, sampling_rate=0.2, steps=40, clip_norm=1.0
)


# Checks that say something only where something is wrong.
ONLY_WRONG = {"known background", "watched coordinates", "recording", "frozen parameters"}
# Checks that say something of the claim or of the run, and are never wrong.
NEVER_WRONG = {"adjacency", "privacy unit", "rounds without a release"}
# Findings that auditors and replays make.
OF_OTHERS = {"noise", "sampling", "replay"}


def runs():
    """Sound and broken runs of every kind, small ones."""
    size = {"steps": 40, "sampling_rate": 0.2, "noise_multiplier": 1.6, "present": 40}
    for canaries in ("own coin", "data path", "spread"):
        yield simulate_dpsgd(**size, absent=60, seed=1, canaries=canaries)
    for fault in FAULTS.values():
        rate = size["sampling_rate"]
        if fault.expected_batch is not None:
            rate = min(1.0, fault.expected_batch / size["present"])
        yield simulate_dpsgd(**size | {"sampling_rate": rate}, absent=60, seed=2, fault=fault)


def drawn(scheme, declared, seed=3):
    """Batches of one scheme, held against another."""
    sums = SchemeSums(declared, records=400)
    for batch in scheme.draw(np.random.default_rng(seed), 400, 40):
        sums.add(batch)
        if sums.broken is not None:
            break
    return DrawnBatches.of(sums)


# What later parts of a run write down of it, sound and broken.
SOUND_WEIGHTS = WeightFacts(optimizer="SGD", places=20, steps=40)
SOUND_STEPS = StepFacts(
    share=0.1, steps=4, records=40, clipped=30, largest=1.0, off=1e-7, off_allowed=1e-5, off_step=1,
    divided=40, covered=4,
)  # fmt: skip
SOUND_PROBES = ProbeFacts(
    clients=8, with_nan="finite", zero="finite", heavy=ProbeReading(added=1.0, error=0.1),
    clipped=ProbeReading(added=1.0, error=1e-6, noise=1.0, values=900), clipped_size=1.5,
    clipped_way="spread over all arrays", clipped_tried=16,
    counted=ProbeReading(added=1.0, error=1e-6), spread=1.0, spread_error=0.05,
    norm_if_above=1.2, norm_if_below=0.8,
)  # fmt: skip
SOUND_HONEST = HonestFacts(rounds=9, groups=12, group="all clients", added=1.0, error=0.05)
MOVED = {"otherwise": 3, "first": 2, "tensor": "head.weight", "excess": 0.4}


def facts():
    """Every kind of fact that an integration adds, as it is and as it should not be."""
    for probe in (SeedProbe(tried=0), SeedProbe(tried=9, ways=("a", "b"))):
        yield {"seed_probe": probe}
    yield {"seed_probe": SeedProbe(tried=9, ways=("a",), found="key(0)")}
    seen = ReuseFacts(values=90_000, kept=9_000, share=1.0, equal=100, nearly=1_500)
    again = {"matches": 40, "first": (3, 0, 17), "again": (4, 1, 17)}
    for changes in (
        {}, {"share": 0.4}, {"coarse": True}, {"kept": 0}, again, again | {"moved": 40},
        {"equal": 900},
    ):  # fmt: skip
        yield {"reuse": replace(seen, **changes)}
    even = NoiseRowFacts(
        rows=40, absent=60, square=2400.0, least_square=50.0, most=2, most_square=70.0
    )
    for changes in (
        {}, {"rows": 1}, {"silent": 2, "first_silent": 3, "least_square": 0.0},
        {"least_square": 9.0}, {"most_square": 200.0},
    ):  # fmt: skip
        yield {"noise_rows": replace(even, **changes)}
    for along in (2.0, 9.0):
        yield {"gain": GainFacts(steps=40, along=along, norm=20.0)}
    yield {"gain": GainFacts(steps=2, norm=20.0)}
    yield {"weights": WeightFacts(unchecked="nothing of them is seen", unseen=True)}
    for changes in (
        {"loaded": 1, "loaded_first": 4, "loaded_excess": 0.5},
        {"loaded": 3, "loaded_first": 4, "loaded_excess": 20.0},
        {}, {"steps": 0}, {"unchecked": "an optimizer of its own"}, {"closures": 2},
        MOVED, MOVED | {"closures": 3, "regraded": 3}, MOVED | {"scaled": 3, "factor": 0.5},
        MOVED | {"regraded": 3}, {"between": 2, "between_first": 5, "between_tensor": "a"},
        {"declared": 4}, {"bare": ("a",)}, {"bare_moved": ("a", "b")}, {"tensors": 2},
        {"tensors": 2, "unmoved": ("a",)}, {"tensors": 2, "unmoved": ("a", "b")},
        {"tensors": 2, "unreached": ("a",)}, {"tensors": 2, "unreached": ("a", "b")},
    ):  # fmt: skip
        yield {"weights": replace(SOUND_WEIGHTS, **changes)}
    for changes in (
        {}, {"share": 0.0}, {"records": 0, "off_step": 0, "unchecked": "ghost clipping"},
        {"clipped": 0, "largest": 0.4}, {"largest": 3.0, "largest_step": 2, "largest_tensor": "a"},
        {"largest": 1.005}, {"off": 0.5, "off_tensor": "a"}, {"recomputed": True},
        {"recomputed": True, "norm_off": -0.4, "norm_step": 1, "norm_tensor": "bias"},
        {"recomputed": True, "norm_off": 0.4, "norm_step": 1, "norm_tensor": "bias"},
        {"uncovered": ("a",), "uncovered_step": 1}, {"covered": 0}, {"divided": 0},
        {"divisor_step": 3, "least_divisor": 0.9, "most_divisor": 1.2},
        {"divisor_step": 3, "uneven": 5}, {"precision": "bfloat16", "coarseness": 0.0117},
    ):  # fmt: skip
        yield {"witness": replace(SOUND_STEPS, **changes)}
    more = {"more": 40, "more_first": 1, "more_rows": 3200, "more_drawn": 1600}
    for changes in (
        {}, {"unseen": "no loader was shown"}, {"compared": 0, "undrawn": 40, "other": "Shuffled"},
        {"compared": 0, "undrawn": 40}, {"steps": 1, "compared": 0, "undrawn": 1},
        {"foreign": 3, "foreign_first": 2, "other": "RandomSampler"}, {"identified": 40},
        more | {"multiple": 4}, more | {"extra_least": 100, "extra_most": 100, "other": "A"},
        more | {"more": 7, "extra_least": 3, "extra_most": 90},
        {"fewer": 4, "fewer_first": 2, "fewer_rows": 20, "fewer_drawn": 40},
        {"doubled": 2, "doubled_first": 5}, {"again": 3, "again_first": 4},
        {"unused": 6, "unused_first": 2}, {"unused": 6, "unused_first": 2, "unused_empty": 6},
        {"unused": 6, "unused_first": 2, "unused_empty": 1}, {"unused": 40, "even": True},
    ):  # fmt: skip
        yield {"rows": replace(RowFacts(steps=40, compared=40), **changes)}
    looked = MixingFacts(forward=6, inputs=6, loss=6)
    for changes in (
        {}, {"loss": 0, "loss_unseen": "the loss has no second derivative"},
        {"inputs": 0, "loss": 0},
        {"forward": 0, "inputs": 0, "loss": 0}, {"forward_first": 1, "state_first": 2},
        {"inputs_first": 4}, {"loss_first": 1}, {"weights_first": 2},
    ):  # fmt: skip
        yield {"mixing": replace(looked, **changes)}
    yield {"ended": "no space left.", "frozen": (("a", 3, 2),), "weights": SOUND_WEIGHTS}
    for name in ("clip norm", "noise multiplier", "learning rate", "expected batch size"):
        for changes in (
            {}, {"changes": 9}, {"changes": 30, "turns": 20, "first": 2}, {"declared": 39},
            {"changes": 9, "scheduler": "ReduceLROnPlateau"}, {"changes": 39, "adapted": True},
        ):  # fmt: skip
            setting = SettingFacts(name=name, steps=40, **changes)
            yield {"settings": (setting,), "witness": SOUND_STEPS}
    for changes in (
        {}, {"with_nan": "nan", "zero": "nan"}, {"with_nan": "ValueError", "zero": "ValueError"},
        {"heavy": ProbeReading(added=7.0, error=0.1)}, {"heavy": None},
        {"clipped": ProbeReading(added=1.5, noise=6.0, values=900)}, {"overflowed": "9 clip norms"},
        {"counted": ProbeReading(added=2.0, error=1e-6)}, {"clipped": None, "counted": None},
        {"heavy_refused": "ValueError"}, {"spread": 2.0},
        {"norm_if_above": 0.8, "norm_if_below": 1.2},
        {"with_nan": "", "zero": "", "heavy": None, "spread": None, "norm_if_above": None,
         "unchecked": "probes=True"},
    ):  # fmt: skip
        probes = replace(SOUND_PROBES, **changes)
        for more in (
            {}, {"adaptive": True, "next_norms": (1.1, 0.9) * 20}, {"reported": 2.0},
            {"honest": replace(SOUND_HONEST, added=1.5)}, {"honest": SOUND_HONEST},
        ):  # fmt: skip
            yield {"rounds": RoundFacts(fewest=4, most=9, unreleased=2, probes=probes, **more)}
    poisson, fixed = Poisson(rate=0.2), FixedSize(batch=80, records=400)
    for declared in (poisson, fixed, Shuffled(batches=5), CyclicPoisson(rate=0.4, cycle=2)):
        for scheme in (declared, poisson, Poisson(rate=0.4), fixed):
            yield {"batches": drawn(scheme, declared), "scheme": declared, "records": 400}
        yield {"scheme": declared, "accounted_scheme": poisson}
    yield {"accounted": ((1.6, 0.2, 40),), "accounted_steps": 40, "outside": ()}
    yield {"accounted": ((6.0, 0.2, 40),), "accounted_steps": 40, "accounted_epsilon": 1.0}
    yield {
        "accounted": ((0.5, 0.2, 40),), "accounted_steps": 40, "accounted_epsilon": 30.0,
        "epsilon_reads": ((1e-5, 2.0, 10),), "outside": ("a",),
    }  # fmt: skip
    yield {
        "accounted": ((1.6, 0.2, 40),), "accounted_steps": 40, "accounted_epsilon": 2.4,
        "epsilon_reads": ((1e-5, 2.0, 40),), "outside": ("a", "b"), "outside_moved": ("a",),
    }  # fmt: skip
    counted = ClipCountFacts(
        releases=40, shown=40, read=40, square=40.0, deviation=5.0, noise_multiplier=1.6
    )
    for told in ((), ((1.6, 0.2, 40),), ((1.8, 0.2, 40),)):
        for changes in ({}, {"square": 0.0}, {"square": 4.0}, {"read": 0}):
            yield {"clip_count": replace(counted, **changes), "accounted": told}
    for claim in (CLAIM, replace(CLAIM, epsilon=1.0)):
        yield {"commitment": commit(seed=1, member=np.ones(4, dtype=bool), claim=claim)}


def trees():
    size = {"steps": 32, "noise_multiplier": 3.0, "present": 40, "absent": 80}
    yield simulate_dpftrl(**size, seed=1)
    yield simulate_dpftrl(**size, seed=1, restart_every=8)
    for fault in TREE_FAULTS.values():
        restart = 8 if fault.restarts else None
        yield simulate_dpftrl(**size, seed=2, restart_every=restart, fault=fault)
    run = strategy_run()
    yield run
    for most in (1, 3):
        took = ParticipationFacts(clients=9, most=most, closest=most - 1, limit=1, moved=9.0)
        facts = replace(run.facts, rounds=RoundFacts(probes=SOUND_PROBES, participation=took))
        yield run.with_facts(facts)


def strategy_run():
    """Rows of a banded strategy."""
    strategy = BandedStrategy.toeplitz([1.0, 0.5], 20)
    canaries = ag.DiracCanaries(present=40, absent=80, dimension=120, seed=1)
    recorder = ag.LinearRecorder(canaries, strategy, release="rows", noise_multiplier=4.0)
    noise = np.random.default_rng(3).normal(0.0, 4.0, (20, 120))
    for row in noise:
        recorder.sample()
        recorder.observe(row, background=np.zeros(120))
    return recorder.transcript()


def score_sets():
    draw = np.random.default_rng(0)
    for shape in (draw.standard_normal, lambda count: draw.standard_t(2, count)):
        for told in ({}, {"steps": 30, "sampling_rate": 0.3}, {"noise": "gaussian"}):
            yield ag.CanaryScores.from_groups(
                present=shape(300) + 1.0, absent=np.round(shape(400), 2), **told
            )


@functools.cache
def undecided():
    """Every finding as a check makes it, before the gate decides."""
    found = []
    for run in runs():
        for claim in (None, CLAIM):
            found += transcript_checks(run, claim)
        if run.finite and run.auditable:
            found += score_checks(run.scores(), run.canaries.planted)
    for run in trees():
        for epsilon in (1.0, 9.0):
            claim = ag.PrivacyClaim(epsilon=epsilon, delta=1e-5, noise_multiplier=4.0)
            found += correlated_checks(run, claim)
        found += correlated_checks(run, None)
    for scores in score_sets():
        found += score_checks(scores)
    sound = next(iter(runs()))
    for changes in facts():
        found += transcript_checks(sound.with_facts(replace(sound.facts, **changes)), CLAIM)
    silent = {"watch_values": np.zeros_like(sound.watch_values)}
    gram = np.eye(sound.kept.size)
    alike = {"gram": np.where(gram == 0.0, 0.9, gram)}
    sizes = np.random.default_rng(4).integers(60, 100, sound.number_of_steps).astype(float)
    sized = {"steps": replace(sound.steps, batch_size=sizes)}
    for changes in (silent, {"gram": gram}, alike, sized):
        found += transcript_checks(replace(sound, **changes), CLAIM)
    users = sound.with_facts(replace(sound.facts, unit="user"))
    for changes in ({}, {"adjacency": "replace"}, {"unit": "user"}):
        for run in (sound, users):
            seen = Neighbours(data=run, claim=replace(CLAIM, **changes), replaced=True)
            found += made(NEIGHBOUR_CHECKS, seen)
    return [*found, *methods_own(sound)]


def methods_own(run):
    """What methods say of their own evidence, and what a replay says of the run."""
    scores = simulate_scores(
        steps=40, sampling_rate=0.2, noise_multiplier=1.6, present=150, absent=150, seed=1
    )
    for method in auditor_types().values():
        data = run if method.reads == "transcript" else scores
        yield from audit_of(data, method())
    for adjacency in ("add-remove", "replace-one"):
        for train in (training(), training(divisor="batch")):
            told = ag.replay(train, records(), leave_out=17, adjacency=adjacency)
            yield from told.findings


def audit_of(data, method):
    return ag.audit(data, delta=1e-5, auditor=method, diagnostics=False).findings


def decided(finding, p_value, error):
    return apply_gate([replace(finding, p_value=p_value)], error)[0]


def every_status():
    """Each finding that a p-value decides, passed, noted and failed; facts as they are."""
    for finding in undecided():
        if finding.p_value is None:
            yield finding
            continue
        fails = finding.consequence in (Consequence.BREACH, Consequence.INVALIDATES)
        if finding.p_value > 0.0:  # a certainty can only fail
            yield decided(finding, 0.5, 0.0005)
            yield decided(finding, 0.5 * SUSPICIOUS, 1e-9)
        failed = decided(finding, 1e-12, 0.0005)
        assert failed.status is (Status.FAIL if fails else Status.WARN)
        yield failed


def test_there_are_findings_of_every_status():
    checks = {item.check for item in undecided()}
    assert len(checks) > 60
    assert {item.status for item in every_status()} == set(Status)


def test_every_check_is_rendered_as_made_and_as_failed():
    names = set(registered()) - OF_OTHERS
    assert len(names) > 60
    found = {}
    for finding in every_status():
        found.setdefault(finding.check, set()).add(finding.status)
    wrong = {Status.WARN, Status.FAIL}
    assert not {name for name in names if name not in found}
    assert not {name for name in names if not found[name] & {Status.PASS, Status.INFO}} - ONLY_WRONG
    assert not {name for name in names if not found[name] & wrong} - NEVER_WRONG


@pytest.mark.parametrize("status", [Status.PASS, Status.INFO, Status.WARN, Status.FAIL])
def test_no_text_contradicts_its_status(status):
    wrong = set()
    for finding in every_status():
        if finding.status is not status:
            continue
        said = f"{finding.summary} {finding.remedy}"
        if status in (Status.PASS, Status.INFO) and ACCUSING.search(said):
            wrong.add(str(finding))
        if status in (Status.WARN, Status.FAIL) and EXCUSING.search(said):
            wrong.add(str(finding))
        if status is Status.PASS:
            assert finding.remedy == ""
        if status is Status.INFO and finding.p_value is not None:
            assert "correct runs; audit another run" in finding.remedy
    assert not wrong


def test_a_difference_too_small_to_matter_is_called_so():
    tiny = judged(
        1e-9,
        "it is 1.001.",
        tolerable=True,
        consequence=Consequence.BREACH,
    )
    (finding,) = apply_gate([tiny], 0.0005)
    assert finding.status is Status.PASS
    assert finding.summary == "it is 1.001; the difference is too small to matter."


RESULTS = (
    samples.violation,
    samples.consistent,
    samples.inconclusive,
    samples.invalid,
    samples.no_claim,
    samples.no_noise,
    samples.counting,
)


@pytest.mark.parametrize("sample", RESULTS, ids=lambda sample: sample.__name__)
def test_every_output_agrees_with_its_verdict_and_carries_the_scope(sample):
    result = sample()
    told = replace(tables_of(result), run=RunSummary(notes=("taken on trust.",)))
    noted = replace(result, summary=told)
    outputs = {
        "text": str(noted),
        "markdown": report.markdown(noted),
        "junit": report.junit(noted),
        "html": report.render(noted),
        "card": noted._repr_html_(),
        "json": noted.to_json(),
    }
    for name, shown in outputs.items():
        assert "taken on trust" in shown, name
        for part in result.scope:
            assert part.name in shown, (name, part)
        if result.verdict is Verdict.INVALID:
            assert "lies somewhere on the bar" not in shown, name
    assert "NO VERDICT" in str(result) or result.verdict is not None
    if result.verdict is Verdict.INVALID:
        assert "no usable bound" in str(result)


@pytest.mark.parametrize(
    ("share", "words"), [(0.999, "99% of"), (2.76, "276% of"), (24643.84, "times the")]
)
def test_a_bound_far_above_its_claim_is_a_number_of_times(share, words):
    from askgauss._text import of_the_claim

    assert words in of_the_claim(8.0 * share, 8.0)
