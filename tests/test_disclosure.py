"""What a published audit gives away: the attack that undoes the noise, on every document.

The attacker has the released weights after every step. From a transcript they get the private sums
at the canaries back, exactly; from what is published they must not get anything better than the
noise leaves. The strongest of them is told the seed as well, and fits their guess on the truth.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest

import askgauss as ag
from askgauss.evidence.attestation import evidence_pack
from askgauss.figures.run_figures import with_course
from askgauss.figures.summary import HEXAGONS, PIT_POINTS, Summary, hexagon_centres, summarise
from askgauss.monitor.feed import FEED_NAME, write_feed
from askgauss.publish.disclosure import publishable

SEED = 738_201_946_553
CLAIM = ag.PrivacyClaim(epsilon=8.0, delta=1e-5, noise_multiplier=1.5, clip_norm=1.0)


@dataclass(frozen=True, eq=False)
class Run:
    """A training run with canaries; what it released, and what it must hide."""

    canaries: ag.DiracCanaries
    released: np.ndarray  # by step and parameter, as the differences of the weights tell
    private: np.ndarray  # the other records' clean sums, by step and canary
    transcript: ag.Transcript

    @property
    def at_canaries(self) -> np.ndarray:
        return self.released[:, self.canaries.coordinates]


def _run(
    *,
    steps: int,
    count: int,
    tensors: tuple[int, ...] = (3000,),
    seed: int = SEED,
    monitor: ag.Monitor | None = None,
) -> Run:
    generator = np.random.default_rng(seed)
    canaries = ag.DiracCanaries(count=count, tensors=tensors, seed=seed)
    recorder = ag.Recorder(
        canaries, sampling_rate=0.1, clip_norm=1.0, noise_multiplier=1.5, monitor=monitor
    )
    released, private = [], []
    for _ in range(steps):
        clean = generator.normal(0.0, 0.5, sum(tensors))
        noisy = clean + generator.normal(0.0, 1.5, clean.size)
        planted = recorder.sample()
        noisy[canaries.coordinates[planted]] += 1.0
        there = canaries.coordinates
        recorder.observe(noisy[there], background=clean[there])
        released.append(noisy)
        private.append(clean[there])
    return Run(canaries, np.array(released), np.array(private), recorder.transcript())


@pytest.fixture(scope="module")
def monitor(tmp_path_factory):
    return ag.Monitor(claim=CLAIM, folder=tmp_path_factory.mktemp("watched"))


@pytest.fixture(scope="module")
def run(monitor):
    return _run(steps=120, count=400, tensors=(2900, 90, 10), monitor=monitor)


@pytest.fixture(scope="module")
def result(run, monitor):
    return with_course(ag.audit(run.transcript, claim=CLAIM), monitor.feed("finished"))


@pytest.fixture(scope="module")
def documents(result, run, monitor):
    scores = ag.audit(run.transcript.scores(), claim=CLAIM)
    methods = ["gaussian-shift", "one-run", "clopper-pearson"]
    compared = ag.compare(run.transcript.scores(), claim=CLAIM, auditors=methods)
    pack = evidence_pack(result, subjects={"model.safetensors": "0" * 64})
    write_feed(monitor._folder, monitor.feed("finished"))
    return {
        **pack,
        "watch.json": (monitor._folder / FEED_NAME).read_text(),
        "comparison": compared.to_json(),
        "comparison in words": str(compared),
        "json": result.to_json(),
        "html": result.to_html(),
        "markdown": result.to_markdown(),
        "junit": result.to_junit(),
        "text": str(result),
        "json of scores": scores.to_json(),
        "html of scores": scores.to_html(),
    }


def _numbers(text: str) -> np.ndarray:
    found = re.findall(r"-?\d+\.\d+(?:e[-+]?\d+)?", text)
    return np.array([float(item) for item in found])


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def test_the_attack_works_on_a_transcript_and_on_scores(run):
    """Why they are as private as the data: the sums come back as if there were no noise."""
    secret, noise = run.private.sum(axis=0), 1.5 * np.sqrt(120)
    released = run.at_canaries.sum(axis=0)
    assert _rms(released - secret) > 0.9 * noise
    # Scores of a transcript are its sums over the root of the number of steps.
    known = run.transcript.scores().score * np.sqrt(120)
    assert _rms(released - known - secret) < 1e-6 * noise


def test_nothing_published_names_a_canary(run, documents):
    """No seed, no coordinate list, and no number that is some canary's."""
    own = run.transcript.scores().score
    foreign = _run(steps=120, count=400, tensors=(2900, 90, 10), seed=SEED + 1)
    for name, text in documents.items():
        assert str(SEED) not in text, name
        assert "seed of the canaries" not in text, name
        numbers = np.abs(_numbers(text))
        numbers = numbers[numbers > 0.0]

        def matches(values, numbers=numbers):
            close = np.abs(np.abs(values)[:, None] / numbers - 1.0).min(axis=1)
            return int(np.count_nonzero(close < 2e-5))

        # As often as numbers of somebody else's run are met by chance.
        totals = own * np.sqrt(120)
        others = foreign.transcript.scores().score
        expected = max(matches(others), matches(others * np.sqrt(120)))
        assert max(matches(own), matches(totals)) <= 10 + 2 * expected, name


def _listed(text: str, secret: np.ndarray, released: np.ndarray) -> float:
    """How much of the noise hides the secret from whoever reads a document as a list of scores.

    Wherever as many numbers stand in a row as there are canaries, in the text or in the coordinates
    of a figure (also every second or third of them, as points have them), they are taken for the
    canaries' noise in order, and fitted to the truth. The best of all places counts.
    """
    table = np.column_stack([np.ones(secret.size), released])
    rest = secret - table @ np.linalg.lstsq(table, secret, rcond=None)[0]
    found = re.findall(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?", text)
    numbers = np.array([float(item) for item in found if len(item) < 300])
    numbers = np.clip(numbers, -1e6, 1e6)
    best = 0.0
    for stride in (1, 2, 3):
        for start in range(stride):
            some = numbers[start::stride]
            if some.size < rest.size:
                continue
            windows = np.lib.stride_tricks.sliding_window_view(some, rest.size)
            # In blocks: a page of figures has a hundred thousand coordinates.
            for at in range(0, len(windows), 4096):
                block = windows[at : at + 4096]
                block = block - block.mean(axis=1, keepdims=True)
                along = released - released.mean()
                along = along / np.linalg.norm(along)
                block = block - np.outer(block @ along, along)
                norms = np.linalg.norm(block, axis=1)
                fit = np.abs(block @ rest)[norms > 1e-9] / norms[norms > 1e-9]
                best = max(best, float(fit.max(initial=0.0)) / float(np.linalg.norm(rest)))
    return float(np.sqrt(max(1.0 - best**2, 0.0)))


def test_no_document_lists_what_the_noise_hides(run, documents):
    """The attack that undoes the noise, on every document as it is given away.

    Of a hundred thousand places the best has a correlation of about 4.5 / sqrt(200) = 0.32 by
    chance, which leaves 0.95. To leave 0.88 it takes one that chance gives in one of 1e11 places.
    """
    absent = ~run.transcript.member
    secret, released = run.private.sum(axis=0), run.at_canaries.sum(axis=0)
    for name, text in documents.items():
        for which in (np.ones_like(absent), absent, ~absent):
            assert _listed(text, secret[which], released[which]) > 0.88, name
    # The attack itself works: on a list of scores, in a table or in the points of a figure.
    score = run.transcript.scores().score
    told = json.dumps([float(f"{item:.3g}") for item in score])
    assert _listed(told, secret, released) < 0.3
    points = " ".join(f"{index:.1f},{200 - 10 * item:.1f}" for index, item in enumerate(score))
    assert _listed(f"<path d='M {points}'/>", secret, released) < 0.3


def test_evidence_and_tables_have_no_cell_of_few_canaries(run, result):
    content = json.loads(result.to_json())
    assert "seed" not in content["metadata"]["run"] or content["metadata"]["run"]["seed"] is None
    steps = run.transcript.number_of_steps
    for stratum in content["evidence"]["strata"]:
        observed = stratum["planted"]["count"] + stratum["other"]["count"]
        assert observed >= 30 * steps, stratum["tensor"]


@pytest.mark.parametrize("scheduled", [False, True])
def test_no_difference_of_groups_is_a_handful(scheduled):
    """All less the tensors that are told leaves nobody, or many; a bias may be one place."""
    small = 0
    for seed in range(SEED, SEED + 12):
        canaries = ag.DiracCanaries(present=100, absent=300, tensors=(2000, 2000, 10), seed=seed)
        generator = np.random.default_rng(seed)
        recorder = ag.Recorder(canaries, sampling_rate=0.3, clip_norm=1.0, noise_multiplier=1.5)
        for step in range(50):
            noise = 1.5 * (1.0 + 0.01 * step) if scheduled else 1.5
            seen = generator.normal(0.0, noise, 400)
            seen[recorder.sample()] += 1.0
            recorder.observe(seen, background=np.zeros(400), noise_multiplier=noise)
        small += 0 < np.count_nonzero(canaries.tensor == 2) < 30
        evidence = json.loads(ag.audit(recorder.transcript(), claim=CLAIM).to_json())["evidence"]
        whole, *parts = evidence["strata"]
        assert len(parts) == 2
        for kind in ("planted", "other"):
            left = whole[kind]["count"] - sum(part[kind]["count"] for part in parts)
            assert left == 0 or left >= 30
        if scheduled:
            every, *others = (item["count"] for item in evidence["weighted"])
            assert every - sum(others) == 0 or every - sum(others) >= 30 * 50
    assert small >= 6  # the case is met


def test_a_result_of_a_handful_stays_with_the_data(tmp_path):
    """The mean and the squares of two scores are both of them: it is private, and says so."""
    few = _run(steps=40, count=50, seed=SEED)
    keep = np.flatnonzero(few.transcript.member)[:2], np.flatnonzero(~few.transcript.member)[:2]
    score = few.transcript.scores().score
    scores = ag.CanaryScores.from_groups(
        present=score[keep[0]], absent=score[keep[1]], noise="gaussian", background="known"
    )
    result = ag.audit(scores, claim=CLAIM)
    told = result.evidence.absent
    half = np.sqrt(told.sum_of_squares / 2.0)
    np.testing.assert_allclose([told.mean - half, told.mean + half], np.sort(score[keep[1]]))
    assert result.private
    for name, write in (("a.json", result.to_json), ("a.html", result.to_html)):
        write(tmp_path / name)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    for text in (str(result), result.to_html(), result.to_markdown(), result.to_junit()):
        assert "Keep this result with the training data" in " ".join(text.split())
    assert ag.AuditResult.load(tmp_path / "a.json").private
    with pytest.raises(ag.exceptions.InvalidArgumentError, match="30 of each"):
        evidence_pack(result, subjects={"model.safetensors": "0" * 64})
    assert not ag.audit(_run(steps=40, count=100).transcript, claim=CLAIM).private


# --- an attacker who knows the seed as well ----------------------------------------------------


def _left(secret: np.ndarray, released: np.ndarray, guess: np.ndarray) -> float:
    """How much of the noise still hides the secret: 1 where the guess adds nothing.

    The guess and what was released are fitted to the truth, so this flatters the attacker.
    """

    def misfit(*columns):
        table = np.column_stack([np.ones(secret.size), *(item.ravel() for item in columns)])
        fitted = table @ np.linalg.lstsq(table, secret.ravel(), rcond=None)[0]
        return _rms(secret.ravel() - fitted)

    return misfit(released, guess) / misfit(released)


def _by_index(summary: Summary, released: np.ndarray) -> np.ndarray:
    """Noise guessed from the picture by index: within each column, in the order of the weights."""
    density, columns = summary.scores.density, HEXAGONS[0]
    x, y = hexagon_centres()
    density = density if density.size else np.zeros(x.size)  # of few canaries there is no picture
    place = np.rint(x * columns * 2.0).astype(int)
    own = np.clip((np.arange(released.size) + 0.5) * (2 * columns) / released.size, 0, 2 * columns)
    guess = np.zeros(released.size)
    for start in range(0, 2 * columns, 2):
        mine = np.flatnonzero((own >= start) & (own < start + 2))
        cells = (place >= start) & (place < start + 2) & (density > 0.0)
        if not mine.size or not cells.any():
            continue
        levels = np.sort(np.repeat(y[cells], np.maximum(1, np.rint(density[cells])).astype(int)))
        ranks = np.argsort(np.argsort(released[mine]))
        guess[mine] = np.interp(
            (ranks + 0.5) / mine.size, (np.arange(levels.size) + 0.5) / levels.size, levels
        )
    return guess


def _by_nearest_cell(summary: Summary, released: np.ndarray) -> np.ndarray:
    """Noise guessed from the picture by index where canaries are few: the cell they lie nearest."""
    x, y = hexagon_centres()
    own = (np.arange(released.size) + 0.5) / released.size
    distance = (x[None, :] - own[:, None]) * HEXAGONS[0]
    if not summary.scores.density.size:
        return np.zeros(released.size)
    weight = summary.scores.density * np.exp(-4.0 * distance**2)
    return (weight @ y) / weight.sum(axis=1)


def _by_rank(summary: Summary, released: np.ndarray) -> np.ndarray:
    """Noise guessed from the distribution of the scores, in the order of the weights."""
    at = (np.arange(PIT_POINTS) + 0.5) / PIT_POINTS
    pit = summary.scores.absent_pit
    cumulative = np.maximum.accumulate(at + (pit if pit.size else 0.0))
    ranks = np.argsort(np.argsort(released))
    level = np.interp((ranks + 0.5) / ranks.size, cumulative, at)
    from scipy.special import ndtri

    return ndtri(np.clip(level, 1e-3, 1.0 - 1e-3))


def _by_histogram(summary: Summary, released: np.ndarray) -> np.ndarray:
    """Noise guessed from the histogram of absent scores: who has which, by trying exchanges."""
    scores, steps, count = summary.scores, 60, released.size
    edges = np.linspace(scores.low, scores.high, scores.absent_counts.size + 1)
    below = np.concatenate(([0.0], np.cumsum(scores.absent_counts)))
    noise = np.interp((np.arange(count) + 0.5) / count * below[-1], below, edges)
    noise -= noise.mean()
    noise *= np.sqrt(scores.absent.sum_of_squares / (noise**2).sum())
    noise = np.sqrt(steps) * (noise + scores.absent.mean)[np.argsort(np.argsort(released))]
    generator, total, taken = np.random.default_rng(0), np.zeros(count), 0
    pairs = generator.integers(count, size=(300 * count, 2))
    chances = np.log(generator.random(len(pairs)))
    for turn, ((first, second), chance) in enumerate(zip(pairs, chances, strict=True)):
        gain = (released[first] - released[second]) * (noise[second] - noise[first])
        if chance < gain / (0.25 * steps):
            noise[first], noise[second] = noise[second], noise[first]
        if turn > 60 * count and turn % count == 0:
            total, taken = total + noise, taken + 1
    return total / taken


def test_small_tensors_do_not_make_a_run_of_ordinary_size_private():
    """Two present canaries of a small tensor, planted often, stand beside another tensor's."""
    canaries = ag.DiracCanaries(present=153, absent=737, tensors=[1280, 64, 128, 2], seed=3)
    recorder = ag.Recorder(canaries, sampling_rate=0.1, clip_norm=1.0, noise_multiplier=1.0)
    rng = np.random.default_rng(4)
    for _ in range(230):
        noisy = rng.normal(size=canaries.size)
        noisy[recorder.sample()] += 1.0
        recorder.observe(noisy, background=0.0)
    claim = ag.PrivacyClaim(epsilon=10.7, delta=1e-5)
    assert not ag.audit(recorder.transcript(), claim=claim).private


def test_histograms_help_nobody_who_knows_the_seed():
    """Where a bin has one canary in it, the picture is a list of their noise."""
    parts: dict[str, list[list[np.ndarray]]] = {"counted": [], "published": []}
    for index in range(16):
        run = _run(steps=60, count=60, seed=SEED + index)
        absent = ~run.transcript.member
        secret, released = (item.sum(axis=0)[absent] for item in (run.private, run.at_canaries))
        exact = summarise(run.transcript)
        for name, summary in (("counted", exact), ("published", publishable(exact))):
            parts[name].append([secret, released, _by_histogram(summary, released)])
    left = {
        name: _left(*(np.concatenate(column) for column in zip(*columns, strict=True)))
        for name, columns in parts.items()
    }
    assert left["published"] > 0.95
    assert left["counted"] < 0.93  # the attack itself works


def test_the_sign_of_a_zero_is_not_told(run, result):
    """The sign of a cosine that is told to be zero says on which side of it the truth lies."""
    cosines = json.loads(result.to_json())["metadata"]["figures"]["gram"]["cosines"]
    assert "-0" not in cosines.split()
    assert "-0.0" not in cosines.split()


def _by_cosines(summary: Summary, released: np.ndarray) -> np.ndarray:
    """Noise guessed from the Gram matrix: its vectors, turned to lie along the weights."""
    gram = summary.gram
    matrix = np.eye(gram.size)
    upper = np.triu_indices(gram.size, 1)
    matrix[upper] = gram.cosines / 100.0
    matrix.T[upper] = matrix[upper]
    values, vectors = np.linalg.eigh(matrix)
    steps = len(released)
    kept = min(steps, gram.size)
    points = vectors[:, -kept:] * np.sqrt(np.clip(values[-kept:], 0.0, None))
    left, _, right = np.linalg.svd(points.T @ released.T, full_matrices=False)
    turned = (points @ left @ right).T
    return turned * (turned * released).sum(axis=0)


@pytest.mark.parametrize(("count", "runs"), [(20, 20), (200, 4), (2000, 1)])
def test_tables_of_scores_help_nobody_who_knows_the_seed(count, runs):
    """Over the absent canaries of several runs, whose scores are noise alone."""
    cases = [_run(steps=60, count=count, seed=SEED + index) for index in range(runs)]

    def left(attack, prepare):
        parts = []
        for run in cases:
            absent = ~run.transcript.member
            released = run.at_canaries.sum(axis=0)
            guess = attack(prepare(summarise(run.transcript)), released)
            parts.append([item[absent] for item in (run.private.sum(axis=0), released, guess)])
        return _left(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    assert left(_by_index, publishable) > 0.95
    assert left(_by_rank, publishable) > 0.95
    assert left(_by_nearest_cell, publishable) > 0.95
    if count == 20:
        assert left(_by_nearest_cell, lambda summary: summary) < 0.9  # the attack itself works


@pytest.mark.parametrize("steps", [12, 48, 200])
def test_cosines_help_nobody_who_knows_the_seed(steps):
    run = _run(steps=steps, count=200)
    kept = run.transcript.kept_values.shape[1]
    which = np.unique(np.linspace(0, kept - 1, min(kept, 64)).astype(int))
    values = run.transcript.kept_values[:, which] - run.transcript.kept_planted[:, which]
    whole = summarise(run.transcript)
    # Which canaries were kept is part of what the seed tells; here it is found by looking.
    released, secret = _kept(run, values)
    told, published = (
        _left(secret, released, _by_cosines(item, released)) for item in (whole, publishable(whole))
    )
    assert published > 0.95
    if steps <= 48:
        assert told < 0.75  # what stood before: the attack itself works


def _kept(run: Run, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What was released about the canaries behind these values, plantings taken out, and the
    secret there."""
    noise = run.at_canaries - run.private
    columns = []
    for column in values.T:
        miss = np.minimum(np.abs(noise - column[:, None]), np.abs(noise - 1.0 - column[:, None]))
        columns.append(int(miss.sum(axis=0).argmin()))
    secret = run.private[:, columns]
    return secret + values, secret


def test_a_scale_says_no_more_than_its_error():
    """One record more or less moves a scale by far less than the grid it is published on."""
    run = _run(steps=120, count=400, tensors=(2900, 90, 10))
    exact = summarise(run.transcript)
    rough = publishable(exact)
    for part in ("noise", "tensors"):
        before, after = getattr(exact, part), getattr(rough, part)
        error = np.log(before.high / before.low) / (2.0 * 2.5758)
        moved = np.abs(np.log(after.scale / before.scale))
        assert (moved <= 0.5 * error + 1e-9).all()
        grid = np.log(after.scale) / error
        np.testing.assert_allclose(grid, np.rint(grid), atol=1e-6)
        assert ((after.low < after.scale) & (after.scale < after.high)).all()


def test_what_is_published_counts_every_canary_and_shows_what_is_broken(run):
    exact = summarise(run.transcript)
    rough = publishable(exact)
    for name in ("present_counts", "absent_counts", "density"):
        before, after = getattr(exact.scores, name), getattr(rough.scores, name)
        assert after.sum() == pytest.approx(before.sum())
    # Noise that two canaries share stands out as before.
    twin = replace(exact.gram, cosines=np.full(exact.gram.cosines.size, 97.0))
    assert publishable(replace(exact, gram=twin)).gram.cosines.min() >= 95.0


def test_without_the_seed_the_canaries_are_a_mask():
    """Of a mean over unknown coordinates their choice hides as much as the noise did.

    One record more shifts the mean of the noise at the canaries, which a result tells exactly.
    Whoever knows everything else but not where the canaries are sees that shift through the spread
    of means over all choices of as many coordinates.
    """
    generator = np.random.default_rng(3)
    dimension, count = 3000, 300
    noise = generator.normal(0.0, 1.0, dimension)
    means = [noise[generator.permutation(dimension)[:count]].mean() for _ in range(4000)]
    left = np.std(means) / (1.0 / np.sqrt(count))
    assert left == pytest.approx(np.sqrt(1.0 - count / dimension), rel=0.05)
