"""A finished run is recognised only if nothing that its results depend on has changed."""

import json
import os
import shutil

import pytest

from probekit.experiment.schema import Experiment
from probekit.model.weights.sources import MINI
from probekit.pipeline.experiment.finished import find_finished, inputs_digest

YAML = """
name: a
model: {source: ./model}
data: {name: rows, format: csv, file: rows.csv, card: card.md}
tokens: {bos: false, position: {at: last}}
"""


@pytest.fixture
def digest(tmp_path):
    """A function that returns the digest of the inputs of an experiment in a folder."""
    shutil.copytree(MINI, tmp_path / "model")
    (tmp_path / "rows.csv").write_text("text,label\na,b\n")
    (tmp_path / "card.md").write_text("Rows.")
    (tmp_path / "a.yaml").write_text(YAML)
    return lambda device="cpu": inputs_digest(Experiment.from_file(tmp_path / "a.yaml"), device)


def test_every_input_changes_the_digest(digest, tmp_path):
    first = digest()
    assert first == digest("cpu:0") != digest("cuda")
    for name, text in {
        "rows.csv": "text,label\na,c\n",
        "card.md": "Other rows.",
        "model/config.json": (MINI / "config.json").read_text() + " ",
        "a.yaml": YAML.replace("bos: false", "bos: true"),
    }.items():
        path = tmp_path / name
        before = path.read_text()
        path.write_text(text)
        assert digest() != first, name
        path.write_text(before)
    weights = tmp_path / "model" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert digest() != first
    weights.write_bytes(content)
    (tmp_path / "model" / "vocab.json").rename(tmp_path / "model" / "other.json")
    assert digest() != first
    (tmp_path / "model" / "other.json").rename(tmp_path / "model" / "vocab.json")
    assert digest() == first


def test_inputs_that_are_no_files_have_no_digest(digest, tmp_path):
    (tmp_path / "rows.csv").unlink()
    assert digest() is None
    if hasattr(os, "mkfifo"):  # reading one would never end
        os.mkfifo(tmp_path / "rows.csv")
        assert digest() is None


def test_damaged_records_are_not_found(tmp_path):
    for name, text in {"a": "[" * 200_000, "b": "{", "c": json.dumps({"inputs": "x"})}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    assert find_finished(tmp_path, "x") is None
