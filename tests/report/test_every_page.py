"""Every page: legible, labelled, reachable by keyboard, no console messages, 360 pixels wide."""

from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from probekit.model.families.gpt2 import GPT2
from probekit.pipeline.look.weights import write_weights_page
from probekit.report.attention.page import AttentionExplorer
from probekit.report.pages.attribution_page import attribution_page
from probekit.report.pages.causes_page import write_causes_page
from probekit.report.pages.compare_page import comparison_page, load_runs, runs_page
from probekit.report.pages.heads_page import heads_page
from probekit.report.pages.index_page import index_page
from probekit.report.pages.lens_page import lens_page
from probekit.report.pages.pair_page import pair_page
from probekit.report.pages.run_page import write_report
from probekit.report.pages.study_page import study_page
from probekit.report.pages.texts_page import texts_page
from probekit.report.pages.transfer_page import transfer_page
from probekit.results.network import AttentionPrompt, ScoredHeads
from tests.model.reference import TINY
from tests.report.conftest import (
    HOSTILE,
    TOKENS,
    causal_patterns,
    four_kinds,
    make_heads,
    make_record,
    make_sweep,
    seal_run,
    write_shown,
)
from tests.report.page_text import figures_of, text_of
from tests.report.pages.test_texts_page import make_facts, make_reading
from tests.report.pictures import (
    AUDIT,
    head_rows,
    lens_rows,
    make_comparison,
    make_transfer,
    patched_pair,
    training_rows,
)
from tests.report.test_analysis_pages import FACTS, KNOWN, attributed
from tests.results.causes.made_causes import every_table, write_causes
from tests.results.made_studies import failing, made_cells, write_study

PROMPT = AttentionPrompt("".join(TOKENS), tuple(TOKENS), causal_patterns(len(TOKENS)))
LENSES = pd.concat([lens_rows(), lens_rows(("A", " b"), prompt=2)])
OF_FACTS = {"model": "made", "facts": FACTS}


def runs_in(folder):
    """Two runs in a folder."""
    return [
        write_shown(folder / "runs" / "plural" / key, record=make_record() | {"key": key})
        for key in "ab"
    ]


def with_causes(folder):
    """A run over training with interventions."""
    run = write_causes(write_shown(folder / "run"), **every_table())
    training_rows().to_csv(run / "training.csv", index=False)
    return seal_run(run)


def index_of(folder):
    runs_in(folder)
    return index_page(folder / "runs")


def hostile_cells():
    """The cells of a study of two settings: one failed, others have warnings."""
    cells = failing(made_cells(8, settings=("mini", HOSTILE)), 3, HOSTILE)
    cells.loc[[4, 5], "caveats"] = [f"3 of 4 {HOSTILE}", f"2 of 4 {HOSTILE}\nAnother warning."]
    return cells.assign(repeated=cells["repeated"].mask(cells.index == 4, 0.5))


def weights_of(folder, **options):
    GPT2(TINY).save_pretrained(folder / "tiny")
    return write_weights_page(str(folder / "tiny"), folder / "page.html", **options)


# The page of each kind, or its path, written in a folder.
PAGES = {
    "report": lambda folder: write_report(write_shown(folder)),
    "report of facets": lambda folder: write_report(write_shown(folder, four_kinds())),
    "report of heads": lambda folder: write_report(write_shown(folder, make_heads())),
    "report of a sweep": lambda folder: write_report(write_shown(folder, make_sweep())),
    "report over training with causes": lambda folder: write_report(with_causes(folder)),
    "causes": lambda folder: write_causes_page(with_causes(folder)),
    "runs": lambda folder: runs_page(load_runs(runs_in(folder))),
    "index": index_of,
    "attention": lambda _: AttentionExplorer.of([PROMPT], "gpt2").page(),
    "lens": lambda _: lens_page(LENSES, **OF_FACTS).html(),
    "attribution": lambda _: attribution_page(attributed(), **OF_FACTS).html(),
    "heads": lambda _: heads_page(ScoredHeads(head_rows(), "a text", KNOWN), **OF_FACTS).html(),
    "pair": lambda _: pair_page(patched_pair(), **OF_FACTS).html(),
    "estimated pair": lambda _: pair_page(patched_pair(estimated=True), **OF_FACTS).html(),
    "weights": weights_of,
    "weight": lambda folder: weights_of(folder, tensor="h.0.attn.c_attn.weight"),
    "comparison": lambda _: comparison_page(make_comparison(HOSTILE)).html(),
    "study": lambda folder: study_page(write_study(folder, hostile_cells())).html(),
    "transfer": lambda _: transfer_page(make_transfer(HOSTILE)).html(),
    "texts": lambda _: texts_page([make_reading(tuple(TOKENS))], ("no", "yes"), make_facts()),
}
KINDS = tuple(PAGES)


@pytest.fixture(scope="module")
def page_of(tmp_path_factory):
    """A function that returns the path of a page of a kind, written once."""

    @cache
    def page_of(kind):
        folder = tmp_path_factory.mktemp("page")
        page = PAGES[kind](folder)
        if isinstance(page, Path):
            return page
        (folder / "page.html").write_text(page, "utf-8")
        return folder / "page.html"

    return page_of


# The stylesheet is the same for all pages: at night each is opened in the dark and at more widths.
IN_THE_DARK = [pytest.param(kind, True, marks=pytest.mark.nightly) for kind in KINDS[1:]]


@pytest.mark.parametrize(
    ("kind", "dark"), [*((kind, False) for kind in KINDS), ("report", True), *IN_THE_DARK]
)
def test_pages_are_accessible(browser, page_of, kind, dark):
    browser.open(page_of(kind), width=1400, dark=dark)
    browser.unfold()
    assert browser.evaluate(AUDIT) == []
    n_drawn = browser.evaluate("document.querySelectorAll('.drawing > .plot-container').length")
    assert n_drawn == len(figures_of(page_of(kind).read_text("utf-8")))
    # A wide map scrolls in a box of its own, which is as wide as the page.
    first = ".plot :is(.scroll, .main-svg)"
    right = f"document.querySelector('{first}')?.getBoundingClientRect().right ?? 0"
    for width in (1920, 1400, 700, 360) if dark else (1400, 360):
        browser.resize(width)
        browser.settle()
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        assert browser.evaluate(right) <= width
    assert browser.trouble == []


CHOOSE = """(() => {{
  const menu = document.querySelector(".choice select");
  menu.selectedIndex = {number};
  menu.dispatchEvent(new Event("change"));
  return menu.length;
}})()"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_colouring_is_legible_and_its_masked_cells_are_grey(browser, page_of, dark):
    browser.open(page_of("lens"), dark=dark)
    paper = "getComputedStyle(document.querySelector('.plot:has(.choice) .bglayer .bg')).fill"
    seen = []
    for number in range(browser.evaluate(CHOOSE.format(number=0))):
        browser.evaluate(CHOOSE.format(number=number))
        browser.settle(500)
        assert browser.evaluate(AUDIT) == []
        grey = "rgb(59, 67, 78)" if dark else "rgb(217, 221, 226)"
        seen.append(browser.evaluate(paper) == grey)
    assert seen == [False, True, False, False]
    assert browser.trouble == []


# The weights on pages of weights are random.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("weight")])
def test_the_text_of_a_page_is_the_stored_one(page_of, snapshot, kind):
    assert text_of(page_of(kind).read_text("utf-8")) == snapshot


@pytest.mark.parametrize("kind", KINDS)
def test_markup_in_the_texts_of_users_stays_text(page_of, kind):
    page = page_of(kind).read_text("utf-8")
    assert HOSTILE not in page
    assert "<b>%{x}" not in page


@pytest.mark.parametrize("kind", KINDS)
def test_lines_of_a_figure_differ_in_dash_or_marker(page_of, kind):
    for figure in figures_of(page_of(kind).read_text("utf-8")):
        looks = {
            trace["name"]: (
                trace.get("line", {}).get("dash", "solid"),
                str(trace.get("marker", {}).get("symbol")),
            )
            for trace in figure["data"]
            # Horizontal lines are identified by their labels.
            if trace.get("showlegend") is True and len(set(trace["y"])) > 1
        }
        assert len(set(looks.values())) == len(looks), looks


def test_the_audit_reports_known_faults(browser, tmp_path):
    page = tmp_path / "wrong.html"
    page.write_text(
        "<!doctype html><p style='color: #999'>faint</p><p>plain</p>"
        "<div role='img' aria-label='a curve'>x</div><a onclick='0'>dead</a>"
        "<button style='opacity: .3'>seen</button>"
        "<div role='img' aria-label='of 2 lines'><button>show</button></div>"
    )
    browser.open(page)
    faults = browser.evaluate(AUDIT)
    assert [fault.split(" ")[0] for fault in faults] == ["contrast"] * 2 + ["no"] * 2 + ["inside"]
