"""Every benchmark of this environment can be started."""

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from benchmarks import golden
from benchmarks.claims.__main__ import PARTS
from benchmarks.claims.table import SECTIONS

FOLDER = Path(__file__).parents[1] / "benchmarks"
IN_OTHER_ENVIRONMENTS = {"peers", "patching_peer"}  # of TransformerLens
NAMES = sorted({path.stem for path in FOLDER.glob("*.py")} - IN_OTHER_ENVIRONMENTS)


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_imported(name):
    module = import_module(f"benchmarks.{name}")
    assert module.__doc__


def test_every_part_of_the_claims_has_a_section_of_the_page():
    assert PARTS.keys() == SECTIONS.keys()


def _write_results(folder, high=0.9, key="0123456789ab", guess=1, word="Yes"):
    sites = folder / "runs" / key / "sites"
    sites.mkdir(parents=True)
    (sites.parent / "results.csv").write_text(f"site,ci_high\nembed,{high!r}\n")
    (sites.parent / "run.json").write_text(f'{{"key": "{key}", "best": {{"value": 0.5}}}}')
    save_file({"guess": np.array([0, guess])}, sites / "embed.safetensors")
    (sites.parent / "report.html").write_text(
        f"<style>b {{}}</style><p>{word}: 50 % in <b>{key}</b>.</p><script>{high}</script>"
    )
    return folder


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"key": "ba9876543210"}, ""),
        ({"high": 0.9 + 1e-12}, "row 1, ci_high: 0.9 -> 0.900000000001\n"),
        ({"guess": 0}, "embed, .guess[1]: 1 -> 0\n"),
        ({"word": "No"}, "'Yes:' -> 'No:'\n"),
    ],
)
def test_golden_finds_one_change_and_no_other(change, line, tmp_path, capsys):
    folders = [_write_results(tmp_path / "a"), _write_results(tmp_path / "b", **change)]
    found = golden.compare(folders, golden.TABLES) | golden.compare(folders, golden.WORDS)
    assert found is bool(line)
    lines = capsys.readouterr().out.splitlines(keepends=True)
    assert "".join(one.strip(" ") for one in lines if one.startswith("    ")) == line
