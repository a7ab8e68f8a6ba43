"""Every benchmark of this environment can be started."""

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from benchmarks import golden, known_circuits, networks
from benchmarks.claims.__main__ import PARTS
from benchmarks.claims.table import SECTIONS
from probekit.model.families.gpt2 import GPT2, GPT2Config
from probekit.model.text.tokenizer import Tokenizer

FOLDER = Path(__file__).parents[1] / "benchmarks"
IN_OTHER_ENVIRONMENTS = {"peers", "patching_peer"}  # of TransformerLens
NAMES = sorted({path.stem for path in FOLDER.glob("*.py")} - IN_OTHER_ENVIRONMENTS)


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_imported(name):
    assert import_module(f"benchmarks.{name}").__doc__


def test_every_part_of_the_claims_has_a_section_of_the_page():
    assert PARTS.keys() == SECTIONS.keys()


def test_the_page_of_networks_is_written_from_its_table():
    docs = FOLDER.parent / "docs"
    text = (docs / "networks.md").read_text()
    version = text.partition("transformers ")[2].partition(", from")[0].split()[-1]
    rows = networks.read(docs / "networks.csv")
    assert rows.keys() <= networks.CLASSES.keys()
    assert networks.page(rows, version) == text


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


def test_a_random_network_differs_from_the_literature(tmp_path, shared, capsys):
    config = GPT2Config(n_layer=2, n_head=3, n_embd=24, n_inner=40, n_positions=40)
    GPT2(config, seed=0).save_pretrained(tmp_path)
    Tokenizer.from_pretrained(shared / "tokenizer" / "gpt2").save_pretrained(tmp_path)
    assert known_circuits.main(["--model", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    assert all(line.startswith(("DIFFERS ", "ok ")) for line in lines[:-1])
    assert lines[0].startswith("DIFFERS mean logit difference: published 3.55; measured ")
    assert lines[-1].endswith("values differ.")


def test_missing_weights_are_not_passed_over_in_silence(tmp_path, capsys):
    assert known_circuits.main(["--model", str(tmp_path / "none")]) == 3
    assert capsys.readouterr().out.startswith("NOTHING IS CHECKED")
