import json
import re

import numpy as np
import pandas as pd
import pytest
from plotly.offline import get_plotlyjs
from safetensors.numpy import save_file

from probekit.errors import DataError, MissingError
from probekit.report.pages.run_page import write_report
from tests.report.conftest import difference, seal_run


def report(run):
    return write_report(run).read_text("utf-8")


def without_plotly(page):
    return page.replace(get_plotlyjs(), "")


@pytest.fixture(scope="module")
def page(write_run, tmp_path_factory):
    """The page of the whole synthetic run."""
    return report(write_run(tmp_path_factory.mktemp("whole") / "run"))


@pytest.fixture
def accuracy(table):
    """The rows of one metric, whose page has one figure."""
    return table[table["metric"] == "accuracy"]


def test_the_same_folder_gives_the_same_bytes(make_run):
    run = make_run()
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first
    assert {path.name for path in run.iterdir()} == {
        "results.csv",
        "run.json",
        "config.yaml",
        "differences.csv",
        "attention.safetensors",
        "report.html",
    }


def test_plotly_is_inside_exactly_once_and_nothing_is_asked_of_a_network(page):
    assert page.count(get_plotlyjs()) == 1
    rest = without_plotly(page)
    assert not re.search(r"""(src|href|action)\s*=\s*["']?(?!data:|#)[^"' >]""", rest)
    assert not re.search(r"@import|url\(|https?://", rest)
    assert "default-src 'none'" in rest


def test_every_number_of_the_run_is_on_the_page(page, record):
    for value in ("0.941", "[0.921, 0.961]", "0.547", "0.394", "0.736"):
        assert re.search(rf">{re.escape(value)} ?<", page)
    for text in (
        "n = 1,039 test rows in 15 groups",
        "1 Jan 2025",
        *record["digests"].values(),
        "2.13.0",
        "12.25",
        "124439808",
    ):
        assert text in page
    assert page.count('<figure class="plot">') == 6  # five metrics and the norms
    assert 'role="group" aria-label="accuracy by layer. task: embed 0.712' in page
    assert "The <mark>keys</mark> to the cabinet" in page
    assert "C: [0.001, 0.01, 0.1]  # &lt;b&gt;tuned&lt;/b&gt;" in page


def test_what_a_run_lacks_has_no_section(make_run, accuracy, record):
    record |= {"attention": [], "norms": [], "versions": {}}
    page = without_plotly(report(make_run(accuracy, record)))
    for title in ("Attention", "Norm of position 0", "Selectivity", "More figures", "Versions"):
        assert title not in page
    assert 'id="attention"' not in page


def test_a_run_of_baselines_alone_still_has_its_page(make_run, table):
    page = without_plotly(report(make_run(table[table["site"] == ""])))
    assert "No answer: no site has a test score." in page
    assert "by layer" not in page
    assert "All sites" not in page


@pytest.mark.parametrize("mark", ["\u202e", "\u200f", "\u2066", "\x9b"])
def test_controls_that_reverse_a_line_are_shown_as_code_points(make_run, accuracy, record, mark):
    label = f"a{mark}b"
    record["question"] = record["run"] = record["data"]["name"] = label
    record["data"]["labels"] = {"train": {label: 3, "x": 2}, "test": {label: 1, "x": 2}}
    record["data"]["examples"] = [{"text": label, "span": [0, 1], "label": label, "split": "t"}]
    record["data"]["notes"] = [label]
    record["data"]["findings"] = [{"level": "warning", "code": "rare-labels", "message": label}]
    page = without_plotly(report(make_run(accuracy, record)))
    assert mark not in page
    assert page.count(f"a&lt;U+{ord(mark):04X}&gt;b") > 5


def test_what_a_user_wrote_is_text(make_run, accuracy, record, hostile):
    record["question"] = record["run"] = record["data"]["name"] = hostile
    record["data"]["labels"] = {"train": {hostile: 3}, "test": {hostile: 1}}
    record["data"]["examples"] = [{"text": hostile, "span": [0, 9], "label": hostile, "split": "t"}]
    record["data"]["notes"] = [hostile]
    page = without_plotly(report(make_run(accuracy.assign(dataset=hostile), record)))
    assert "<b>" not in page
    assert "%{x}</b>" not in page
    # One end tag each for: figures, attention data, plotly, and the two modules.
    assert page.count("</script>") == page.count("<script")


def test_warnings_of_the_run_and_of_the_numbers_stand_together(make_run, accuracy, record):
    page = report(make_run(accuracy.assign(C=0.1), record))
    assert "C is 0.1 at the chosen site, the largest" in page
    box = re.search(r"<aside.*?</aside>", page, re.DOTALL)[0]
    assert "<li>93 texts are in both.</li>" in box
    assert page.count("93 texts are in both.") == 2  # in the data checks, too


def test_the_data_card_stands_folded_where_there_is_one(page, make_run, accuracy, record):
    card = '<pre tabindex="0"># Nouns\n\nEvery &lt;noun&gt; of the treebank.</pre>'
    assert card in page
    record["data"]["card"] = None
    assert "Data card" not in report(make_run(accuracy, record))


@pytest.mark.parametrize(
    "name", ["results.csv", "run.json", "config.yaml", "attention.safetensors"]
)
def test_a_missing_file_is_named(make_run, name):
    run = make_run()
    (run / name).unlink()
    with pytest.raises((MissingError, DataError), match=name.replace(".", r"\.")):
        write_report(run)
    assert not (run / "report.html").exists()


def test_a_missing_pattern_is_named(make_run, accuracy, record):
    run = make_run(accuracy, record)
    record["attention"].append(record["attention"][0])
    seal_run(run, record=record)
    with pytest.raises(DataError, match="no tensor 2"):
        write_report(run)


def test_scores_of_heads_are_shown_where_the_run_kept_them(
    page, make_run, accuracy, make_patterns, record
):
    run = make_run(accuracy, record)
    assert '"entropy": [[' not in page
    patterns = {str(i): make_patterns(len(p["tokens"])) for i, p in enumerate(record["attention"])}
    scores = {f"{i}.entropy": np.full((4, 3), 0.25 + i, np.float32) for i in range(2)}
    save_file(patterns | scores, run / "attention.safetensors")
    seal_run(run)
    text = report(run)
    assert '"entropy": [[0.25, 0.25, 0.25]' in text
    assert '"entropy": [[1.25, 1.25, 1.25]' in text


def test_a_record_that_lacks_a_key_is_refused_with_the_key(make_run, record):
    del record["model"]["source"]
    record["data"]["n_rows"] = "many"
    with pytest.raises(DataError, match=r"model\.source: .*data\.n_rows: "):
        write_report(make_run(record=record))
    run = make_run()
    (run / "run.json").write_text("{")
    with pytest.raises(DataError, match="the file: Invalid JSON"):
        write_report(run)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("results.csv", b""),
        ("results.csv", b'a,b\n"c'),
        ("results.csv", b"\xff\xfe"),
        ("attention.safetensors", b"\x08"),
        ("config.yaml", b"\xff\xfe"),
        ("run.json", b"\xff\xfe"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(make_run, name, content):
    run = make_run()
    (run / name).write_bytes(content)
    with pytest.raises(DataError, match=name.replace(".", r"\.")):
        write_report(run)


@pytest.mark.parametrize("change", ["seal", "verdict"])
def test_a_record_without_digest_or_verdict_is_refused(make_run, change):
    path = make_run() / "run.json"
    content = json.loads(path.read_bytes())
    del content[change]
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"run\.json is damaged.* again"):
        report(path.parent)


def test_the_folder_above_the_runs_is_answered_with_their_names(make_run):
    run = make_run()
    with pytest.raises(MissingError, match=f"It contains runs; give one of them: {run.name}"):
        write_report(run.parent)


def test_heads_have_maps_instead_of_lines(make_run, heads):
    page = without_plotly(report(make_run(heads)))
    assert re.findall(r"<h2>(\w+ by [^<]*)", page) == ["Accuracy by layer and head · attn.z"]
    assert "<summary>Selectivity by layer and head · attn.z</summary>" in page
    assert page.count('<figure class="plot">') == 3  # those and the norms


def test_a_run_over_heads_and_the_residual_stream_has_both(make_run, heads, table):
    both = pd.concat([heads, table[table["site"] != ""]], ignore_index=True)
    page = without_plotly(report(make_run(both)))
    assert "<h2>Accuracy by layer</h2>" in page
    assert "<h2><bdi>Accuracy by layer and head · attn.z</bdi></h2>" in page


def test_a_sweep_has_a_map_and_the_curve_at_the_span(make_run, sweep):
    page = without_plotly(report(make_run(sweep)))
    assert "<h2>Accuracy by layer</h2>" in page
    assert "<h2><bdi>Accuracy by layer and position · residual stream</bdi></h2>" in page
    assert "<summary>Macro F1 by layer and position · residual stream</summary>" in page


def test_what_is_too_much_for_the_table_of_sites_is_folded(make_run, heads):
    site = heads[heads["head"] == 2]
    many = [site.assign(head=float(head)) for head in range(20)]
    page = without_plotly(report(make_run(pd.concat(many, ignore_index=True))))
    assert "The 20 sites with the best cross-validated accuracy" in page
    assert "<summary>The other 20 sites</summary>" in page


@pytest.mark.parametrize(
    ("value", "p", "is_red"), [(-0.2, 0.001, True), (0.1, 0.6, False), (0.2, 0.001, False)]
)
def test_only_a_significantly_worse_score_is_red(make_run, accuracy, value, p, is_red):
    page = report(make_run(accuracy, differences=[difference("majority", value, 0.15, p)]))
    assert ('<td class="bad">' in page) is is_red
    assert ("not significant" in page) is (p > 0.05)


def test_values_are_not_broken_into_two_lines(page):
    assert "difference [95\xa0%]" in page
    answer = re.search('<p class="answer">(.*?)</p>', page).group(1)
    assert re.search(r"chance 50(\.0)?\xa0%", answer)
    assert not re.search(r"\d %", answer)


def test_the_header_links_to_the_warnings_in_narrow_windows(browser, make_run, accuracy):
    browser.open(write_report(make_run(accuracy)), width=400)
    link = "document.querySelector('header a[href=\"#warnings\"]')"
    n = browser.evaluate("document.querySelectorAll('.warnings li').length")
    assert browser.evaluate(f"{link}.textContent").startswith(f"{n} warning")
    assert browser.evaluate(f"{link}.getBoundingClientRect().bottom") < 200
    browser.evaluate(f"{link}.click()")
    browser.settle()
    assert (
        -1
        < browser.evaluate("document.querySelector('.warnings').getBoundingClientRect().top")
        < 900
    )
    browser.resize(1400)
    assert browser.evaluate(f"getComputedStyle({link}).display") == "none"
