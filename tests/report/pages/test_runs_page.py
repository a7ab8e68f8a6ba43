"""Several runs on one page, and the index of a folder of runs."""

import json
import time

import pandas as pd
import pytest

from probekit.errors import ConfigError, DataError
from probekit.report.pages.index_page import find_runs, index_page
from probekit.report.pages.runs_page import load_runs, runs_figures, runs_page
from probekit.terminal import visible
from tests.report.conftest import seal_run


@pytest.fixture
def two(write_run, tmp_path, table, record, hostile):
    weaker = table.assign(value=table["value"] - 0.1)
    other = record | {"key": "b", "question": hostile}
    return [
        write_run(tmp_path / "plural" / "3f9a0c"),
        write_run(tmp_path / "plural" / "b", weaker, other),
    ]


def test_each_run_has_a_line_a_ring_and_a_row_of_the_map(two):
    curve, by_layer = runs_figures(load_runs(two))
    lines = [t for t in curve.figure["data"] if t["mode"] == "lines+markers"]
    assert len(lines) == 2
    rings = [t for t in curve.figure["data"] if t.get("marker", {}).get("symbol") == "circle-open"]
    assert [ring["y"] for ring in rings] == [[0.941], [pytest.approx(0.841)]]
    values = by_layer.figure["data"][0]["z"]
    assert values[0][3] == 0.941
    assert values[1][3] == pytest.approx(0.841)


def test_each_run_of_the_map_has_its_chosen_kind_and_position(two, table):
    sited = table[table["site"] != ""]
    others = [
        sited.assign(probe="mlp:64", value=sited["value"] - 0.3),
        sited.assign(position="first", value=sited["value"] - 0.4),
        table,
    ]
    seal_run(two[0], pd.concat(others))
    seal_run(two[1], table.assign(probe="svm"))
    _, by_layer = runs_figures(load_runs(two))
    cells = by_layer.figure["data"][0]
    assert [row[3] for row in cells["z"]] == [0.941, 0.941]
    kinds = ["logistic at last", "svm at last"]
    for row, kind in zip(cells["hovertext"], kinds, strict=True):
        assert all(f"<br>{kind}<br>" in text for text in row)
    assert "score: run 1 logistic at last; run 2 svm at last. " in by_layer.caption


def test_runs_without_cross_validation_have_a_map_of_their_first_kind(two, table):
    test = table[table["split"] == "test"]
    for folder in two:
        seal_run(folder, test)
    _, by_layer = runs_figures(load_runs(two))
    assert len(by_layer.figure["data"][0]["z"]) == 2
    assert "Probes: logistic at last. " in by_layer.caption


def test_the_caption_states_the_ends_of_the_colour_scale(two):
    _, by_layer = runs_figures(load_runs(two))
    assert "Colours range from 0.500 (chance) to 0.941; lower values" in by_layer.caption


@pytest.mark.parametrize(
    ("others", "configs", "names"),
    [
        ({"run": "verbs"}, ("", ""), ["plural", "verbs"]),
        ({}, ("seed: 0", "seed: 1"), ["seed 0", "seed 1"]),
        ({}, ("seed: 0\nC: [1]", "seed: 1\nC: [2]"), ["seed 0 · C [1]", "seed 1 · C [2]"]),
        ({}, ("", ""), ["run 1", "run 2"]),
    ],
    ids=["experiment", "setting", "settings", "equal"],
)
def test_runs_are_titled_by_what_differs(two, record, others, configs, names):
    for folder, config in zip(two, configs, strict=True):
        (folder / "config.yaml").write_text(f"name: plural\n{config}\n")
    seal_run(two[0])
    seal_run(two[1], record=record | {"key": "b"} | others)
    runs = load_runs(two)
    assert [run.name for run in runs] == names
    _, by_layer = runs_figures(runs)
    rows = by_layer.figure["layout"]["yaxis"]["ticktext"]
    assert rows == [name.replace(" · ", "<br>") for name in names]


def test_the_page_states_each_answer_in_one_line(two, table):
    for folder, seed in zip(two, (0, 1), strict=True):
        (folder / "config.yaml").write_text(f"name: plural\nprobe: {{seed: {seed}}}\n")
        tested = table.assign(metric="p_best", value=0.0002 if seed else 0.2)
        tested = tested[(tested["target"] == "task") & (tested["split"] == "test")]
        seal_run(folder, pd.concat([table, tested]))
    page = runs_page(load_runs(two))
    header = page.partition("<header>")[2].partition("</header>")[0].replace("\xa0", " ")
    assert (
        "<bdi>probe.seed 0</bdi></dt><dd><bdi>No evidence: 94 % [92, 96] of held-out rows at "
        "block 2, chance 50 %, p = 0.20, best of 6 sites in cross-validation." in header
    )
    assert (
        "<bdi>probe.seed 1</bdi></dt><dd><bdi>Best at block 2 (of 6 sites): 94 % [92, 96] of "
        "held-out rows, chance 50 %, p &lt; 0.001." in header
    )
    assert "3f9a0c" not in header


def test_lines_are_named_by_the_titles_alone(two, table):
    """The kind is in the title, so that it is not repeated after it."""
    for folder, kind in zip(two, ("logistic", "svm"), strict=True):
        (folder / "config.yaml").write_text(f"name: plural\nprobe: {{kinds: [{{kind: {kind}}}]}}\n")
        seal_run(folder, table.assign(probe=kind))
    curve, _ = runs_figures(load_runs(two))
    lines = [trace["name"] for trace in curve.figure["data"] if trace["mode"] == "lines+markers"]
    assert lines == [f"task · probe.kinds [{{kind: {kind}}}]" for kind in ("logistic", "svm")]


def test_runs_without_a_common_kind_of_site_have_no_map(two, table):
    other = table.assign(site=table["site"].str.replace("hook_resid_post", "hook_mlp_out"))
    seal_run(two[1], other[other["site"].str.contains("mlp_out|^$")])
    assert [part.title for part in runs_figures(load_runs(two))] == ["Accuracy by layer and run"]


def test_the_page_fits_every_window_without_console_messages(browser, two, tmp_path):
    page = tmp_path / "runs.html"
    page.write_text(runs_page(load_runs(two)))
    assert page.read_text() == runs_page(load_runs(two))
    for width in (1400, 360):
        browser.open(page, width=width)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        if width == 1400:
            table = "document.querySelector('.scroll')"
            assert browser.evaluate(f"{table}.scrollWidth <= {table}.clientWidth")
    text = browser.evaluate("document.body.innerText")
    assert "<b>%{x}</b>" in text
    assert "0.841\n[" in text
    assert browser.trouble == []


def test_the_table_of_settings_lists_only_those_that_differ(
    browser, two, write_run, tmp_path, table, record, hostile
):
    digests = record["digests"] | {"weights": "ef" * 32}
    third = write_run(tmp_path / "third", table, record | {"key": "c", "digests": digests})
    config = "name: another\nprobe: {C: [0.001, 0.01, 0.1], seed: 3}\ntokens: {bos: %s}\n"
    (third / "config.yaml").write_text(config % json.dumps(hostile))
    seal_run(third)
    page = tmp_path / "runs.html"
    page.write_text(runs_page(load_runs([*two, third])))
    browser.open(page, width=360)
    cells = browser.evaluate(
        "[...document.querySelectorAll('[aria-label=\"Settings that differ\"] tbody tr')]"
        ".map(row => [...row.cells].map(cell => cell.textContent))"
    )
    assert sorted(cells) == [
        ["digest of weights", "abababababab", "abababababab", "efefefefefef"],
        ["probe.seed", "–", "–", "3"],
        ["tokens.bos", "–", "–", visible(hostile)],
    ]
    assert browser.trouble == []
    page.write_text(runs_page(load_runs(two)))
    assert "All settings, input digests and versions are equal" in page.read_text()


@pytest.mark.parametrize("text", ["a: [", "- 1", ""], ids=["cut", "list", "empty"])
def test_unreadable_settings_are_refused(two, text):
    (two[1] / "config.yaml").write_text(text)
    with pytest.raises(DataError, match=r"config\.yaml"):
        load_runs(two)


def test_duplicate_runs_and_different_metrics_are_refused(two, write_run, tmp_path, table, record):
    with pytest.raises(ConfigError, match="twice"):
        load_runs([two[0], two[0]])
    numbers = table[table["metric"] == "accuracy"].assign(metric="r2", main_metric="r2")
    with pytest.raises(DataError, match="r2"):
        load_runs([two[0], write_run(tmp_path / "numbers", numbers, record | {"key": "n"})])


def test_the_index_titles_runs_by_experiment_and_settings(two, tmp_path):
    for folder, seed in zip(two, (0, 1), strict=True):
        (folder / "config.yaml").write_text(f"name: plural\nprobe: {{seed: {seed}}}\n")
        seal_run(folder)
    page = index_page(tmp_path)
    assert page.count("<bdi>plural</bdi></a>") == 2
    assert all(f"<bdi>plural/{key}</bdi>" in page for key in ("3f9a0c", "b"))
    assert page.count("<p>Not tested against chance: 94 % [92, 96] of held-out rows ") == 1


def test_the_index_names_runs_by_their_state(two, tmp_path, table, record):
    going = tmp_path / "going" / "1"
    (going / "sites").mkdir(parents=True)
    for name in (".started", "sites/a.json", "sites/baselines.json"):
        (going / name).write_text("{}")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text("{")
    page = index_page(tmp_path)
    assert page.count('class="state finished"') == 2
    assert "1 site probed" in page
    assert 'class="state running"' in page
    assert 'class="state damaged"' in page
    assert "<b>%{x}" not in page
    assert 'class="state quiet"' in index_page(tmp_path, now=time.time() + 1000)


def test_links_out_of_the_folder_are_ignored(two, tmp_path):
    root = tmp_path / "served"
    root.mkdir()
    (root / "outside").symlink_to(two[0])
    assert find_runs(root) == []
    assert two[0] in find_runs(tmp_path)
