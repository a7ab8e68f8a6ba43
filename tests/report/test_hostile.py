"""Pages made from hostile strings, in a browser: markup is shown as text and never executed."""

import json
from dataclasses import replace
from urllib.parse import quote

import numpy as np
import pytest
from safetensors.numpy import save_file

from probekit.pipeline.look.weights import write_weights_page
from probekit.report.pages.compare_page import comparison_page, load_runs, runs_page
from probekit.report.pages.transfer_page import transfer_page
from tests.cli.test_view import serving
from tests.report.conftest import SITES, make_record, make_table, seal_run, write_shown
from tests.report.pictures import PLACES, make_comparison, make_transfer

MARKUP = """</script><img src=x onerror="window.owned = 1">%{x}'"`--><b>${owned=1}{{owned}}"""
EVIL = f"{MARKUP}\x1b[2J\u202e\x9b"
WITH_NUL = f"{EVIL}\0"  # where the format allows it: JSON
FILE_NAME = EVIL.replace("/", "_")

# Signs that a string was parsed as markup or executed as a script.
HARM = """[
  window.owned !== undefined && "ran",
  document.querySelector("img[src=x], [onerror]") && "made an element",
  document.title.includes("owned") && !document.title.includes("<img") && "cut the title",
].filter(Boolean)"""
SHOWN = f"document.body.textContent.split({json.dumps(MARKUP)}).length - 1"


@pytest.fixture
def check(browser):
    """A function that opens a page and all its sections, and counts how often it shows MARKUP."""

    def check(page):
        browser.open(page)
        browser.unfold()
        assert browser.evaluate(HARM) == []
        assert browser.trouble == []
        return browser.evaluate(SHOWN)

    return check


def written(folder, page):
    (folder / f"{FILE_NAME[:60]}.html").write_text(page, "utf-8")
    return folder / f"{FILE_NAME[:60]}.html"


def test_comparison(check, tmp_path):
    made = make_comparison(WITH_NUL)
    rows = made.rows.replace({"mass_mean": EVIL, PLACES[2]: EVIL})
    rows.loc[0, ["position_a", "view_a"]] = EVIL
    page = comparison_page(replace(made, rows=rows, settings={EVIL: (EVIL, WITH_NUL)})).html()
    assert check(written(tmp_path, page)) >= 10


def test_transfer(check, tmp_path):
    made = make_transfer(WITH_NUL)
    names = {"third": EVIL, "logistic": EVIL, PLACES[2]: EVIL}
    tables = {"scores": made.scores.replace(names), "cosines": made.cosines.replace(names)}
    tables |= {"names": (*made.names[:2], EVIL), "model": EVIL, "chosen": (PLACES[1], EVIL)}
    assert check(written(tmp_path, transfer_page(replace(made, **tables)).html())) >= 10


@pytest.mark.parametrize("tensor", [None, f"h.1.{WITH_NUL}.weight"], ids=["all", "one"])
def test_weights(check, tmp_path, tensor):
    """Tensor names are JSON strings, which may contain any character; file names nearly any."""
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    source = tmp_path / f"{FILE_NAME}.safetensors"
    save_file({f"h.{layer}.{WITH_NUL}.weight": values for layer in range(3)}, source)
    assert check(write_weights_page(str(source), tmp_path / "weights.html", tensor=tensor)) >= 1


def hostile_run(folder):
    """A run whose names, labels, question, texts, notes and settings are all hostile."""
    record = make_record()
    counts = {EVIL: 3, WITH_NUL: 4, "Sing": 5}
    record["data"] |= {
        "labels": {"train": counts, "test": counts},
        "notes": [WITH_NUL],
        "groups": {EVIL: 3},
        "examples": [{"text": WITH_NUL, "span": [2, 9], "label": EVIL, "split": EVIL}],
        "findings": [{"level": "warning", "code": EVIL, "message": WITH_NUL}],
        **dict.fromkeys(("name", "card"), WITH_NUL),
    }
    record["model"] |= {"source": EVIL}
    record["attention"][0] = {"text": EVIL, "tokens": [EVIL, WITH_NUL]}
    record |= dict.fromkeys(("run", "key", "created"), EVIL)
    record |= {key: {EVIL: EVIL} for key in ("versions", "digests", "seeds")}
    record |= {"question": WITH_NUL, "seconds": {EVIL: 1.0}, "files": {}}
    names = {"dataset": EVIL, "run": EVIL, "model": EVIL, "position": EVIL, "probe": EVIL}
    run = write_shown(folder, make_table().assign(**names).replace({SITES[-1]: EVIL}), record)
    (run / "config.yaml").write_text(f"name: plural\nprobe: {{C: {json.dumps(EVIL)}}}\n")
    return seal_run(run)


def test_several_runs(check, tmp_path):
    runs = [hostile_run(tmp_path / "a"), write_shown(tmp_path / "b")]
    assert check(written(tmp_path, runs_page(load_runs(runs)))) >= 10


def test_view(check, tmp_path):
    """The index, the page of a run, and the error of a damaged run, from the server."""
    hostile_run(tmp_path / "runs" / FILE_NAME)
    damaged = write_shown(tmp_path / "runs" / f"damaged {FILE_NAME}")
    table = make_table()
    table.loc[3, "target"] = MARKUP
    seal_run(damaged, table)
    with serving(tmp_path / "runs") as server:
        root = f"http://127.0.0.1:{server.server_port}/"
        assert check(root) >= 3
        assert check(f"{root}run/{quote(FILE_NAME)}/report.html") >= 10
