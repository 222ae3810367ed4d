from __future__ import annotations

import dataclasses
import html.parser
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import askgauss as ag
from askgauss import report
from askgauss.comparison import compare
from askgauss.exceptions import FileFormatError
from askgauss.files import codec
from askgauss.scores import ScoreMetadata
from askgauss.simulation import FAULTS, simulate_dpsgd

from . import samples

LIMIT = 300_000
VOID = {"meta", "link", "br", "path", "use", "image", "stop"}


class Page(html.parser.HTMLParser):
    """What a page is made of, and that its tags close."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def pages():
    return {name: samples.page(name) for name in samples.ALL}


@pytest.mark.parametrize("name", samples.ALL)
def test_every_kind_of_result_makes_one_small_page_that_needs_nothing(pages, name):
    text = pages[name]
    assert len(text.encode()) < LIMIT
    page = Page(text)
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "iframe", "object", "embed", "form", "base"}
    for tag, attributes in page.tags:
        assert not any(key.startswith("on") for key in attributes), (tag, attributes)
        for key in ("src", "href", "xlink:href", "srcset", "action", "data"):
            target = attributes.get(key)
            assert target is None or target.startswith(("#", "data:")), (tag, target)
    # Beside the names of XML dialects no address is in the page, and no style asks for one.
    addresses = set(re.findall(r"https?://[^\s\"'<>)]+", text)) - {
        "http://www.w3.org/1999/xlink",
        "http://www.w3.org/2000/svg",
        "http://evil.example",  # as text, in the hostile page
        "http://evil.exa…",
    }
    assert addresses == set()
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)


@pytest.mark.parametrize("name", samples.ALL)
def test_ids_are_unique_and_references_meet_them(pages, name):
    page = Page(pages[name])
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r"url\(#([^)]+)\)", pages[name]))
    used |= {
        target[1:]
        for _, attributes in page.tags
        for key in ("href", "xlink:href")
        if (target := attributes.get(key) or "").startswith("#")
    }
    assert used <= set(ids)


@pytest.mark.parametrize("name", samples.ALL)
def test_figures_speak_to_those_who_cannot_see_them(pages, name):
    images = [attributes for tag, attributes in Page(pages[name]).tags if tag == "svg"]
    assert images
    for attributes in images:
        assert attributes["role"] == "img"
        assert attributes["aria-label"]
    assert pages[name].count("<title>") == len(images) + 1


@pytest.mark.parametrize("name", samples.ALL)
def test_every_section_shows_something_or_says_why_not(pages, name):
    shown = pages[name].count("<figure") - 1  # the axis
    missing = pages[name].count('class="missing"')
    assert shown + missing == 11
    for reason in re.findall(r'class="missing"><b>[^<]*:</b> ([^<]*)<', pages[name]):
        assert len(reason) > 10
        assert "\n" not in reason


def test_what_can_be_shown_is_shown(pages):
    assert pages["violation"].count('class="missing"') == 0
    assert pages["bare"].count("<figure") < 6


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("violation", "Violation"),
        ("consistent", "Consistent"),
        ("inconclusive", "Inconclusive"),
        ("invalid", "Invalid"),
        ("no_claim", "A bound, no verdict"),
    ],
)
def test_the_verdict_and_its_reason_come_first(pages, name, word):
    result = samples.ALL[name]()
    page = Page(pages[name])
    heading = page.text.index(word, page.text.index("askgauss audit report"))
    assert heading < 250
    reason = result.reason or "no claim was given"
    assert reason[1:] in page.text[: heading + 600]
    assert f'data-verdict="{result.verdict.value if result.verdict else "NONE"}"' in pages[name]


def test_numbers_on_the_page_are_those_of_the_result(pages):
    result = samples.violation()
    page = Page(pages["violation"])
    assert f"ε ≥ {result.epsilon_lower:.4g}" in page.text
    assert "ε = 6" in page.text
    scale = next(item for item in result.findings if item.check == "noise scale")
    assert f"{scale.measured:.4g}" in page.text
    assert scale.remedy in page.text
    for finding in result.findings:
        assert finding.check in page.text
        assert " ".join(finding.summary.split()) in page.text


def test_the_statement_says_what_must_be_said(pages):
    text = Page(pages["violation"]).text
    for words in (
        "(6, 1e-05)-differential privacy with respect to adding or removing one example",
        "Poisson sampling at rate 0.2",
        "120 steps",
        "drawn by the audit itself, not by the sampler of the training",
        "confidence 0.95",
        "Not tested: sampler (give the audit the private loader",
        "per-sample gradient (compare neighbouring datasets with replay()",
        "Outside any audit of one run: settings and metadata",
    ):
        assert words in text, words
    assert "no audit can prove a model private" in Page(pages["consistent"]).text


def test_a_bound_whose_assumptions_failed_is_not_sold(pages):
    text = Page(pages["invalid"]).text
    result = samples.invalid()
    assert "not valid" in text
    assert f"Its bound of {result.epsilon_lower:.4g} must not be used" in text
    assert result.distribution_free is not None
    assert f"ε ≥ {result.distribution_free.epsilon_lower:.4g}" in text


def test_every_part_of_the_training_is_shown_as_the_scope_has_it(pages):
    for name in ("violation", "consistent"):
        text, result = Page(pages[name]).text, getattr(samples, name)()
        words = {"fine": "✓ tested", "broken": "✕ violated", "not tested": "– not tested"}
        for part in result.scope:
            assert f"{part.name} {words[part.status]}" in text.replace("\xa0", " "), part
    assert "through the loader and clipping" not in Page(pages["violation"]).text


def test_hostile_texts_stay_texts(pages):
    text = pages["hostile"]
    assert "<script" not in text
    assert "alert(" in text  # it is shown, as text
    page = Page(text)
    assert "<script>alert" in page.text
    for sign in ("\x1b", "\u202e"):
        assert sign not in text
    assert "$\\frac{" in page.text


def test_the_page_of_a_result_read_back_is_the_same(pages):
    again = ag.AuditResult.from_json(samples.no_claim().to_json())
    assert report.render(again) == pages["no_claim"]


def test_other_auditors_stand_beside_on_the_axis():
    table = compare(
        samples.heavy_tails(),
        claim=samples.CLAIM,
        auditors=[ag.GaussianShift(), ag.OneRun(), ag.SubsampledGaussian()],
    )
    text = Page(report.render(samples.invalid(), table)).text
    assert text.count("gaussian-shift: at least") == 1
    row = next(row for row in table.rows if row.name == "one-run")
    assert f"one-run: at least {row.bound:.4g}" in text
    assert "subsampled-gaussian: does not apply" in text
    assert "shown for comparison only" in text


def test_a_million_canaries_make_no_larger_page():
    generator = np.random.default_rng(0)
    count = 1_000_000
    member = generator.random(count) < 0.5
    planted = generator.binomial(2500, 0.0819, count) / 50.0
    scores = ag.CanaryScores(
        score=2.6 * generator.standard_normal(count) + np.where(member, planted, 0.0),
        member=member,
        metadata=ScoreMetadata(steps=2500, sampling_rate=0.0819, noise_multiplier=2.6),
    )
    result = ag.audit(scores, claim=samples.CLAIM)
    assert len(result.to_json()) < 20_000
    assert len(report.render(result).encode()) < LIMIT


def test_thousands_of_tensors_and_notes_are_cut_short():

    from askgauss.figures.summary import summarise
    from askgauss.recording.recorder import Recorder

    canaries = ag.DiracCanaries(present=60, absent=60, tensors=[20] * 1000, seed=0)
    recorder = Recorder(canaries, sampling_rate=0.5, clip_norm=1.0)
    noise = np.random.default_rng(0)
    for _ in range(30):
        vector = noise.standard_normal(canaries.total_dimension)
        canaries.plant(vector, recorder.sample(), clip_norm=1.0)
        recorder.observe(canaries.project(vector), watch=vector[canaries.watch])
    transcript = recorder.transcript()
    facts = dataclasses.replace(
        transcript.facts,
        tensors=tuple(f"block.{index}." + "w" * 400 for index in range(1000)),
        notes=("n" * 10_000,) * 1000,
    )
    transcript = transcript.with_facts(facts)
    metadata = summarise(transcript).to_metadata()
    assert len(json.dumps(metadata)) < 50_000
    assert metadata["figures"]["tensors"]["of"] == 1000
    result = ag.audit(transcript, claim=samples.CLAIM)
    text = report.render(result)
    assert len(text.encode()) < LIMIT
    assert "24 of 1000 furthest from the rest" in text


def test_corrupt_tables_are_an_error_not_a_picture():
    content = json.loads(samples.violation().to_json())
    content["metadata"]["figures"]["scores"]["present_counts"] = "1 2 three"
    del content["digest"]
    text = json.dumps({**content, "digest": codec.digest(content)})
    with pytest.raises(FileFormatError, match="present_counts"):
        ag.AuditResult.from_json(text)


def test_files_are_written_whole(tmp_path):
    result = samples.bare()
    target = tmp_path / "audit.html"
    assert result.to_html(target) == target.read_text(encoding="utf-8")
    assert result.to_markdown(tmp_path / "a.md") == (tmp_path / "a.md").read_text()
    assert result.to_junit(tmp_path / "a.xml") == (tmp_path / "a.xml").read_text()
    with pytest.raises(OSError, match="No such"):
        result.to_markdown(tmp_path / "no such folder" / "a.md")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.md", "a.xml", "audit.html"]


def test_notebook_cards_bring_their_style_and_share_no_ids():
    cards = [samples.consistent()._repr_html_(), samples.violation()._repr_html_()]
    pages = [Page(card) for card in cards]
    for card, page in zip(cards, pages, strict=True):
        assert len(card) < 40_000
        assert "<script" not in card
        # Nothing in the style of a card reaches beyond it.
        style = re.search(r"<style>(.*?)</style>", card, re.DOTALL)[1]
        style = re.sub(r"@(media|page)[^{]*\{", "", style)
        for selector in re.findall(r"(?:^|[{}])\s*([^{}@;]+?)\s*\{", style):
            for part in selector.split(","):
                assert ".askgauss" in part, selector
        assert "measured" in page.text
    ids = [
        {attributes["id"] for _, attributes in page.tags if "id" in attributes} for page in pages
    ]
    assert ids[0]
    assert not ids[0] & ids[1]


def test_importing_the_report_loads_neither_matplotlib_nor_jinja():
    code = (
        "import sys, askgauss.report, askgauss.figures.leak_figures;"
        "print({'matplotlib', 'jinja2', 'scipy.stats'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_pages_of_threads_are_those_of_one():
    """And matplotlib is left as it was found, with what another thread set meanwhile."""
    import matplotlib as mpl

    original = dict(mpl.rcParams)
    try:
        mpl.rcParams["svg.hashsalt"] = "mine"
        before = dict(mpl.rcParams)
        results = [samples.violation(), samples.no_claim()]
        once = [result.to_html() for result in results]
        with ThreadPoolExecutor(8) as pool:
            drawn = pool.map(lambda index: results[index].to_html(), [0, 1] * 4)
            mpl.rcParams["animation.bitrate"] = 1234
            assert list(drawn) == once * 4
        assert dict(mpl.rcParams) == before | {"animation.bitrate": 1234}
    finally:
        mpl.rcParams.update(original)


def test_noise_of_another_shape_is_the_first_thing_drawn():
    """Laplace noise of this much is not taken for Gaussian in one run of 1e9."""
    run = simulate_dpsgd(
        steps=60, sampling_rate=0.2, noise_multiplier=1.5, present=60, absent=140, seed=0,
        fault=FAULTS["laplace-noise"],
    )  # fmt: skip
    result = ag.audit(run, claim=samples.CLAIM)
    assert result.verdict is ag.Verdict.INVALID
    page = report.render(result)
    assert "Shape of the noise" in page
    assert page.index('id="noise"') < page.index('id="scores"')
    sound = samples.page("violation")
    assert sound.index('id="noise"') > sound.index('id="scores"')
