"""A notebook that is executed, converted to HTML and opened in a browser."""

import re
import site
import sys
from pathlib import Path

import pandas as pd
import pytest

from probekit.report.notebooks.run_result import PLOTLY_TYPE

nbclient = pytest.importorskip("nbclient")
nbconvert = pytest.importorskip("nbconvert")
nbformat = pytest.importorskip("nbformat")
pytestmark = pytest.mark.nightly

YAML = """
name: sizes
question: Can the size be decoded?
model: {source: mini}
data: {name: sizes, format: csv, file: sizes.csv, columns: {group: noun}}
tokens: {bos: false, position: {at: last}}
capture: {sites: ["blocks.[45].hook_resid_post"]}
probe: {C: [0.01, 1], folds: 2, baselines: [majority], permutations: 100}
"""
CELLS = (
    "import probekit\nresult = probekit.run('sizes.yaml')",
    "result",
    "print(result)",
    "result.table.head(2)",
    "result.figure('confusion matrix')",
    "quiet = probekit.run('sizes.yaml', progress=False)",
    "model = probekit.GPT2.from_pretrained('mini')\n"
    "tokenizer = probekit.Tokenizer.from_pretrained('mini')\n"
    "explorer = probekit.explore_attention(model, tokenizer, 'The keys', bos=False)\n"
    "explorer.save('page.html')\n"
    "explorer",
)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """The executed notebook, and its folder."""
    folder = tmp_path_factory.mktemp("notebook")
    rows = [
        {"text": f"The {size} {noun} was {end} {size}", "label": size, "noun": noun}
        for noun in ("house", "door", "river", "garden", "letter", "table", "ship", "horse")
        for end in ("there", "here")
        for size in ("large", "little")
    ]
    pd.DataFrame(rows).to_csv(folder / "sizes.csv", index=False)
    (folder / "sizes.yaml").write_text(YAML)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROBEKIT_CACHE", str(folder / "cache"))
        # Settings of the user must not change the test.
        for name in ("JUPYTER_CONFIG_DIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, str(folder / name))
        notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, CELLS)])
        resources = {"metadata": {"path": str(folder)}}
        nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
    return notebook, folder


def outputs(notebook, number):
    """The data of the outputs of a cell; nothing was written to stderr."""
    found = notebook.cells[number].outputs
    assert all(one.get("name") != "stderr" for one in found), found
    return [dict(one["data"]) for one in found if "data" in one]


def test_a_run_shows_its_progress_as_one_line(notebook):
    (progress,) = outputs(notebook[0], 0)
    assert re.fullmatch(r"capture 32 of 32, .*probe 2 of 2, .*; \d+ s", progress["text/plain"])
    assert "<progress" not in progress["text/html"]
    assert outputs(notebook[0], 5) == []


def test_each_output_has_a_short_text_and_html(notebook):
    result, curve = outputs(notebook[0], 1)
    assert result["text/plain"] == notebook[0].cells[2].outputs[0]["text"].rstrip("\n")
    assert "Can the size be decoded?" in result["text/plain"]
    (figure,) = outputs(notebook[0], 4)
    for one in (curve, figure):
        assert set(one) - {"image/png"} == {PLOTLY_TYPE, "text/plain"}
    (explorer,) = outputs(notebook[0], 6)
    assert len(explorer["text/plain"]) < 200
    assert (notebook[1] / "page.html").is_file()
    assert sum(len(str(output)) for cell in notebook[0].cells for output in cell.outputs) < 400_000


def test_the_conversion_to_html_needs_no_network(notebook, browser, monkeypatch):
    # A tree may use the packages of another environment, whose prefix Jupyter does not search.
    shares = {Path(nbconvert.__file__).parents[4], Path(sys.prefix), Path(site.getuserbase())}
    monkeypatch.setenv("JUPYTER_PATH", ":".join(str(one / "share/jupyter") for one in shares))
    page, _ = nbconvert.HTMLExporter().from_notebook_node(notebook[0])
    page = re.sub(r'<script src="https://[^>]*></script>', "", page)  # of nbconvert itself
    path = notebook[1] / "notebook.html"
    path.write_text(page, "utf-8")
    browser.open(path)
    browser.settle(1500)
    assert "Can the size be decoded?" in browser.evaluate("document.body.innerText")
    n_pictures = sum(
        "image/png" in one.get("data", {}) for cell in notebook[0].cells for one in cell.outputs
    )
    seen = browser.evaluate("document.querySelectorAll('img[src^=\"data:image/png\"]').length")
    assert seen == n_pictures
    assert browser.evaluate("document.querySelectorAll('iframe[srcdoc]').length") == 1
    assert [one for one in browser.trouble if "mathjax" not in one.lower()] == []
