"""The page of a run: its text is the stored one, hostile texts stay texts, damage is named."""

import re
import zlib

import numpy as np
import pandas as pd
import pytest
from plotly.offline import get_plotlyjs
from safetensors.numpy import save_file

from probekit.chosen.stack.page import cascade_figure, cascade_table
from probekit.errors import DataError
from probekit.report.elements import page as elements
from probekit.report.notebooks.run_result import RunResult
from probekit.report.pages.run_page import write_report
from tests.report.conftest import (
    causal_patterns,
    difference,
    make_heads,
    make_record,
    make_table,
    seal_run,
    write_shown,
)
from tests.report.page_text import packed_texts, text_of
from tests.report.sentences.cases import BEST, BINS, NESTED, with_metric
from tests.stored import changed

TABLE, HEADS = make_table(), make_heads()
ACCURACY = TABLE[TABLE["metric"] == "accuracy"]
ONE_HEAD = HEADS[HEADS["head"] == 2]
MLPS = [
    TABLE[TABLE["site"] == BEST[0]].assign(
        site=f"blocks.{layer}.hook_mlp_out", value=lambda rows: rows["value"] - 0.2
    )
    for layer in range(40)
]
BARE = {"attention": [], "norms": [], "versions": {}}
COLUMNS = "fpr setting passed_1 passed_2 cost tpr test_fpr n_positive n_negative"
CASCADE = pd.DataFrame(
    [
        (0.01, "words only", 0, 0, 0, 0.2, 0.01, 50, 60),
        (0.01, "all sites only", 1, 1, 1, 0.6, 0.02, 50, 60),
        (0.05, "words only", 0, 0, 0, 0.4, 0.05, 50, 60),
        (0.05, "words, 20 % to blocks.1.hook_resid_post", 0.2, 0, 0.1, 0.7, 0.06, 50, 60),
        (0.05, "all sites only", 1, 1, 1, 0.9, 0.04, 50, 60),
    ],
    columns=COLUMNS.split(),
)
LABELS = {"train": {f"c{n}": 10 for n in range(60)}, "test": {}}


def report(run):
    return write_report(run).read_text("utf-8")


def page_of(folder, table=TABLE, differences=(), bins=(), data=(), **record):
    """The page of a run with other results, or other parts of its record."""
    whole = make_record()
    whole |= {"data": whole["data"] | dict(data), **record}
    write_shown(folder, table, whole, differences)
    if len(bins):
        bins.to_csv(folder / "reliability.csv", index=False)
        seal_run(folder)
    return report(folder).replace(get_plotlyjs(), "")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of the whole synthetic run."""
    return page_of(tmp_path_factory.mktemp("whole") / "run")


# Pages over heads, positions and kinds of site are in test_every_page.py.
VARIANTS = {
    "what a run lacks has no section": {"table": ACCURACY} | BARE,
    "baselines alone": {"table": TABLE[TABLE["site"] == ""]},
    "warnings of the numbers and of the run are together": {"table": TABLE.assign(C=0.1)},
    "no data card": {"data": {"card": None}},
    "heads and the residual stream have both": {
        "table": pd.concat([HEADS, TABLE[TABLE["site"] != ""]], ignore_index=True)
    },
    "many sites are folded": {
        "table": pd.concat([ONE_HEAD.assign(head=float(n)) for n in range(20)], ignore_index=True)
    },
    "a worse score is red": {"differences": [difference("majority", -0.2, 0.15, 0.001)]},
    "a score that is not significant is not": {
        "differences": [difference("majority", 0.1, 0.15, 0.6)]
    },
    "a better score is not": {"differences": [difference("majority", 0.2, 0.15, 0.001)]},
    "the control and the metric are those of the run": {
        "table": with_metric(pd.concat([TABLE, *MLPS]), "r2"),
        "control_by": "group",
    },
    "outer folds held rows out": {"table": NESTED[NESTED["metric"] == "accuracy"]},
    "a reliability diagram": {"bins": BINS},
    "too many classes for a confusion matrix": {"data": {"labels": LABELS}},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_text_changes_with_the_results(page, snapshot, tmp_path, name):
    assert changed(text_of(page), text_of(page_of(tmp_path / "run", **VARIANTS[name]))) == snapshot


def test_the_same_folder_gives_the_same_bytes(make_run):
    run = make_run()
    before = {path.name for path in run.iterdir()}
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first
    assert {path.name for path in run.iterdir()} - before == {"report.html"}


def test_plotly_is_inside_exactly_once_and_nothing_is_asked_of_a_network(report_of, page):
    texts = packed_texts(report_of("plain").read_text("utf-8"))
    assert sum(text == get_plotlyjs() for text in texts) == 1
    assert not re.search(r"""(src|href|action)\s*=\s*["']?(?!data:|#)[^"' >]""", page)
    assert not re.search(r"@import|url\((?!#)|https?://", page)
    assert "default-src 'none'" in page


def test_the_compressed_library_is_kept_and_compressed_again_if_it_is_damaged(
    tmp_path, monkeypatch
):
    def script():
        return elements._plotly_js.__wrapped__()  # as in another process

    monkeypatch.setattr(elements, "user_cache_path", lambda _: tmp_path)
    first = script()
    (kept,) = tmp_path.glob("pages/*")
    content = kept.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(elements.deflate, "zlib_compress", pytest.fail)
        assert script() == first
    for damaged in (content[:-1], zlib.compress(b"another library")):
        kept.write_bytes(damaged)
        assert script() == first
    monkeypatch.setattr(elements, "user_cache_path", lambda _: kept)  # a file: it cannot be kept
    assert script() == first


def hostile_page(folder, label):
    """The page of a run in which all that a user writes is this text."""
    data = {
        "name": label,
        "labels": {"train": {label: 3, "x": 2}, "test": {label: 1, "x": 2}},
        "examples": [{"text": label, "span": [0, 1], "label": label, "split": "t"}],
        "notes": [label],
        "findings": [{"level": "warning", "code": "rare-labels", "message": label}],
    }
    return page_of(folder, ACCURACY.assign(dataset=label), data=data, question=label, run=label)


@pytest.mark.parametrize("mark", ["\u202e", "\u200f", "\u2066", "\x9b"])
def test_what_a_user_wrote_is_text_and_marks_of_direction_are_code_points(tmp_path, mark):
    page = hostile_page(tmp_path / "run", f"a{mark}b</script><b>%{{x}}</b>")
    assert page.count(f"a&lt;U+{ord(mark):04X}&gt;b&lt;/script&gt;") > 5
    for markup in (mark, "<b>", "%{x}</b>"):
        assert markup not in page
    assert page.count("</script>") == page.count("<script")


def test_a_record_with_damaged_keys_is_refused_with_the_keys(make_run, record):
    del record["model"]["source"]
    record["data"]["n_rows"] = "many"
    with pytest.raises(DataError, match=r"model\.source: .*data\.n_rows: "):
        write_report(make_run(record=record))


def test_the_folder_above_the_runs_is_named(make_run, refused):
    refused(write_report, make_run().parent)


def test_scores_of_heads_are_shown_where_the_run_kept_them(page, make_run, record):
    record["attention"][1]["layers"] = [1, 2, 5, 9]  # the others have no attention
    run = make_run(ACCURACY, record)
    assert '"entropy": [[' not in "".join(packed_texts(page))
    tensors = {f"{i}.entropy": np.full((4, 3), 0.25 + i, np.float32) for i in range(2)}
    for number, prompt in enumerate(record["attention"]):
        tensors[str(number)] = causal_patterns(len(prompt["tokens"]))
    save_file(tensors, run / "attention.safetensors")
    text = "".join(packed_texts(report(seal_run(run))))
    assert '"entropy": [[0.25, 0.25, 0.25]' in text
    assert '"entropy": [[1.25, 1.25, 1.25]' in text
    assert text.count('"layers": [1, 2, 5, 9]') == text.count('"layers": [0, 1, 2, 3]') == 1


def test_a_cascade_has_a_figure_and_a_table(page, make_run):
    rows = CASCADE.assign(tpr_low=0.1, tpr_high=0.95, test_fpr_low=0.01, test_fpr_high=0.1)
    folder = make_run()
    rows.to_csv(folder / "cascade.csv", index=False)
    seal_run(folder)
    assert RunResult(folder).cascade["setting"].tolist() == rows["setting"].tolist()
    shown = text_of(report(folder))
    assert "Cascade" not in text_of(page)
    assert "Cascade of words, one site and all sites" in shown
    setting = "words, 20 % to blocks.1.hook_resid_post"
    assert setting in shown
    figure = cascade_figure(rows)
    assert [(line.name, line.x, line.y) for line in figure.data[:2]] == [
        ("FPR 1 %", (0, 1), (0.2, 0.6)),
        ("FPR 5 %", (0, 0.1, 1), (0.4, 0.7, 0.9)),
    ]
    assert [note.text for note in figure.layout.annotations[:2]] == ["words", "all sites"]
    assert cascade_table(rows).rows[3][:3] == (setting, "5 %", "10 %")


def test_values_are_not_broken_into_two_lines(page):
    assert "difference [95\xa0%]" in page
    answer = re.search('<p class="answer">(.*?)</p>', page).group(1)
    assert re.search(r"chance 50(\.0)?\xa0%", answer)
    assert not re.search(r"\d %", answer)


def test_the_header_links_to_the_warnings(browser, report_of):
    browser.open(report_of("plain"), width=400)
    link = "document.querySelector('header a[href=\"#warnings\"]')"
    n = browser.evaluate("document.querySelectorAll('.warnings li').length")
    assert browser.evaluate(f"{link}.textContent").startswith(f"{n} warning")
    assert browser.evaluate(f"{link}.getBoundingClientRect().bottom") < 200
    browser.evaluate(f"{link}.click()")
    browser.settle()
    top = browser.evaluate("document.querySelector('.warnings').getBoundingClientRect().top")
    assert -1 < top < 900
    browser.resize(1400)
    assert browser.evaluate(f"getComputedStyle({link}).display") == "inline"
