"""The report in a real browser: what a reader sees, hears and prints."""

from __future__ import annotations

import base64
import json
import re

import pytest

from . import samples
from .browser import browser, emulate, open_file

NAMES = "violation", "consistent", "invalid", "hostile"
SCHEMES = "light", "dark"

# Every text a reader can see, its colour, and the colour of the ground it stands on.
TEXTS = """
const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const known = {};
function parts(color) {
  if (!(color in known)) {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    known[color] = Array.from(canvas.getImageData(0, 0, 1, 1).data);
  }
  return known[color];
}
function ground(element) {
  for (let item = element; item; item = item.parentElement) {
    const color = getComputedStyle(item).backgroundColor;
    if (parts(color)[3] === 255) return color;
  }
  return 'rgb(255, 255, 255)';
}
const found = [];
for (const element of document.querySelectorAll('body *')) {
  const own = Array.from(element.childNodes)
    .filter(node => node.nodeType === 3 && node.textContent.trim());
  if (!own.length || ['STYLE', 'TITLE', 'title'].includes(element.tagName)) continue;
  const box = element.getBoundingClientRect();
  if (!box.width || !box.height) continue;
  const style = getComputedStyle(element);
  const svg = element.namespaceURI.includes('svg');
  found.push([own[0].textContent.trim().slice(0, 40), parts(svg ? style.fill : style.color),
    parts(ground(element)), parseFloat(style.fontSize), style.opacity]);
}
return found;
"""

# Every figure: its size, what is drawn in it, and texts that leave it.
FIGURES = """
return Array.from(document.querySelectorAll('figure svg')).map(svg => {
  const box = svg.getBoundingClientRect();
  const marks = Array.from(svg.querySelectorAll('path, use, image')).filter(item => {
    const mark = item.getBoundingClientRect();
    const style = getComputedStyle(item);
    const seen = style.opacity > 0 && (item.tagName === 'image'
      || style.fill !== 'none' || style.stroke !== 'none');
    return seen && mark.width + mark.height > 0 && item.closest('defs') === null;
  }).length;
  const outside = Array.from(svg.querySelectorAll('text')).filter(item => {
    const text = item.getBoundingClientRect();
    return text.left < box.left - 8 || text.right > box.right + 8
      || text.top < box.top - 4 || text.bottom > box.bottom + 4;
  }).map(item => item.textContent);
  return [svg.getAttribute('aria-label'), box.width, box.height, marks, outside,
    svg.querySelectorAll('text').length];
});
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    target = tmp_path_factory.mktemp("reports")
    for name in NAMES:
        (target / f"{name}.html").write_text(samples.page(name), encoding="utf-8")
    return target


@pytest.fixture(scope="module")
def window():
    with browser() as opened:
        yield opened


def show(window, folder, name, *, scheme="light", width=1280):
    emulate(window, scheme=scheme, width=width)
    open_file(window, folder / f"{name}.html")


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_complained_about_and_nothing_fetched(window, folder, name):
    for kind in ("browser", "performance"):
        window.get_log(kind)
    show(window, folder, name)
    assert window.get_log("browser") == []
    # Only what this page asked for: the browser's own start page may still be loading its parts.
    requests = [
        message["params"]["request"]["url"]
        for entry in window.get_log("performance")
        if (message := json.loads(entry["message"])["message"])["method"]
        == "Network.requestWillBeSent"
        and message["params"]["documentURL"].startswith("file:")
    ]
    assert requests
    assert all(url.startswith(("file:", "data:")) for url in requests)
    assert sum(url.startswith("file:") for url in requests) == 1


@pytest.mark.parametrize("width", [1280, 375])
@pytest.mark.parametrize("name", NAMES)
def test_every_figure_is_there_to_be_seen(window, folder, name, width):
    show(window, folder, name, width=width)
    figures = window.execute_script(FIGURES)
    expected = 11 if name == "violation" else 3
    assert len(figures) >= expected
    for label, wide, high, marks, outside, texts in figures:
        assert wide > 250, label
        assert high > 50, label
        assert marks >= 2, label
        assert texts >= 3, label
        assert outside == [], label


@pytest.mark.parametrize("name", NAMES)
def test_figures_can_be_read_on_a_phone(window, folder, name):
    show(window, folder, name, width=390)
    sizes = window.execute_script(
        """
        return Array.from(document.querySelectorAll('figure svg text')).map(item => {
          const svg = item.ownerSVGElement;
          const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
          const first = svg.closest('figure').classList.contains('axis');
          return [item.textContent, scale * parseFloat(getComputedStyle(item).fontSize), first];
        });
        """
    )
    assert sizes
    for label, size, first in sizes:
        assert size >= (10.0 if first else 9.0), label


def luminance(color):
    channels = [value / 255 for value in color[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first, second):
    bright, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_contrast_is_computed_as_the_guidelines_have_it():
    assert contrast((255, 255, 255), (0, 0, 0)) == pytest.approx(21.0)
    assert contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", [*NAMES[:3], "inconclusive"])
def test_all_text_can_be_read(window, folder, name, scheme):
    if name == "inconclusive":  # only its colours are of interest
        page = (folder / "violation.html").read_text(encoding="utf-8")
        page = page.replace('data-verdict="VIOLATION"', 'data-verdict="INCONCLUSIVE"')
        (folder / "inconclusive.html").write_text(page, encoding="utf-8")
    show(window, folder, name, scheme=scheme)
    texts = window.execute_script(TEXTS)
    assert len(texts) > 100
    for text, color, ground, size, opacity in texts:
        assert color[3] == 255, text
        assert opacity == "1", text
        assert contrast(color, ground) >= 4.5, (text, color, ground)
        assert size >= 8.5, text


def test_both_colour_schemes_are_honoured(window, folder):
    grounds = {}
    for scheme in SCHEMES:
        show(window, folder, "violation", scheme=scheme)
        texts = window.execute_script(TEXTS)
        grounds[scheme] = {tuple(ground) for _, _, ground, _, _ in texts}
    assert min(luminance(ground) for ground in grounds["light"]) > 0.7
    assert max(luminance(ground) for ground in grounds["dark"]) < 0.05


def test_paper_is_white_whatever_the_screen(window, folder):
    emulate(window, scheme="dark", width=700, media="print")
    open_file(window, folder / "violation.html")
    for text, color, ground, _, _ in window.execute_script(TEXTS):
        assert luminance(ground) > 0.7, text
        assert contrast(color, ground) >= 4.5, text


@pytest.mark.parametrize("width", [320, 375, 768, 1280])
@pytest.mark.parametrize("name", NAMES)
def test_no_page_scrolls_sideways(window, folder, name, width):
    show(window, folder, name, width=width)
    wide = window.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width


def test_the_verdict_and_the_axis_are_on_the_first_screen(window, folder):
    show(window, folder, "violation")
    for selector in ("h1", ".facts", "figure.axis svg", "#summary h3"):
        bottom = window.execute_script(
            "return document.querySelector(arguments[0]).getBoundingClientRect().bottom", selector
        )
        assert 0 < bottom < 900, selector


def test_the_keyboard_reaches_everything(window, folder):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    show(window, folder, "violation")
    wanted = window.execute_script("return document.querySelectorAll('a[href], summary').length")
    reached = []
    for _ in range(wanted):
        ActionChains(window).send_keys(Keys.TAB).perform()
        reached.append(
            window.execute_script(
                "const e = document.activeElement;"
                "return [e.tagName, e.textContent, getComputedStyle(e).outlineStyle]"
            )
        )
    assert [tag for tag, _, _ in reached] == ["A"] * (wanted - 1) + ["SUMMARY"]
    assert all(outline != "none" for _, _, outline in reached)
    is_open = "return document.querySelector('details').open"
    assert window.execute_script(is_open) is False
    ActionChains(window).send_keys(Keys.ENTER).perform()
    assert window.execute_script(is_open) is True


def test_links_lead_to_sections(window, folder):
    show(window, folder, "violation")
    places = window.execute_script(
        "return Array.from(document.querySelectorAll('nav a')).map(a =>"
        " document.querySelector(a.getAttribute('href')).tagName)"
    )
    assert len(places) >= 7
    assert set(places) == {"SECTION"}


def test_headings_and_tables_are_marked_up_as_such(window, folder):
    show(window, folder, "violation")
    levels = window.execute_script(
        "return Array.from(document.querySelectorAll('h1,h2,h3')).map(h => +h.tagName[1])"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    loose = window.execute_script("return document.querySelectorAll('th:not([scope])').length")
    assert loose == 0


@pytest.mark.parametrize("name", ["violation", "consistent"])
def test_it_prints(window, folder, name):
    show(window, folder, name)
    made = window.execute_cdp_cmd(
        "Page.printToPDF", {"printBackground": True, "paperWidth": 8.27, "paperHeight": 11.69}
    )
    content = base64.b64decode(made["data"])
    assert content.startswith(b"%PDF")
    pages = len(re.findall(rb"/Type\s*/Page[^s]", content))
    assert 3 <= pages <= 12
