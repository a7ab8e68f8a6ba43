"""Files of a saved probe: reproducible bytes, and detection of all damage."""

import json

import numpy as np
import pytest
import safetensors.numpy

from probekit.errors import DataError, MissingError, StoreError
from probekit.probes.saved.saved_probe import SavedProbe
from probekit.provenance import digest, digest_json, pretty_json


@pytest.fixture
def stem(tmp_path, make_probe):
    stem = tmp_path / "probes" / "blocks.1.hook_resid_post"
    make_probe(n_classes=3).save(stem)
    return stem


def files(stem):
    return [stem.with_name(stem.name + suffix) for suffix in (".json", ".safetensors")]


def rewrite(stem, change):
    """Change the JSON and update its digest."""
    path = files(stem)[0]
    record = json.loads(path.read_text())
    del record["digest"]
    change(record)
    path.write_text(pretty_json({"digest": digest_json(record)} | record))


def put_tensors(stem, tensors):
    content = safetensors.numpy.save(tensors)
    files(stem)[1].write_bytes(content)
    rewrite(stem, lambda record: record.update(tensors=digest([content])))


def test_saving_what_was_loaded_gives_the_same_bytes(stem, tmp_path):
    again = tmp_path / "again.json"
    assert SavedProbe.load(stem).save(again) == again
    for old, new in zip(files(stem), files(tmp_path / "again"), strict=True):
        assert old.read_bytes() == new.read_bytes()


def test_either_file_and_the_stem_name_the_probe(stem, make_probe):
    made = make_probe(n_classes=3)
    for path in (stem, *files(stem), str(stem)):
        loaded = SavedProbe.load(path)
        assert loaded.facts == made.facts
        assert loaded.classes == made.classes
        for ours, theirs in zip(loaded.layers, made.layers, strict=True):
            np.testing.assert_array_equal(ours[0], theirs[0])
            np.testing.assert_array_equal(ours[1], theirs[1])


def test_weights_that_are_not_contiguous_are_written_right(tmp_path, make_facts):
    """PITFALL 15."""
    weight = np.arange(12.0).reshape(4, 3).T
    SavedProbe(((weight, np.zeros(3)),), ("a", "b", "c"), make_facts()).save(tmp_path / "p")
    np.testing.assert_array_equal(SavedProbe.load(tmp_path / "p").directions, weight)


@pytest.mark.parametrize("which", [0, 1])
def test_every_truncated_or_changed_file_is_refused(stem, which):
    path = files(stem)[which]
    whole = path.read_bytes()
    for cut in (0, 1, 8, len(whole) // 2, len(whole) - 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match="cannot be used"):
            SavedProbe.load(stem)
    for place in (0, len(whole) // 3, len(whole) - 3):
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(DataError, match=str(path)):
            SavedProbe.load(stem)


def test_a_label_changed_by_hand_is_detected(stem):
    path = files(stem)[0]
    path.write_text(path.read_text().replace('"a"', '"z"'))
    with pytest.raises(DataError, match="changed after it was written"):
        SavedProbe.load(stem)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "3",
        "null",
        "{",
        '{"digest": 1}',
        "[" * 100_000,
        '{"digest": NaN, "format": 1}',
        '{"digest": 1, "format": 1, "x": 1e999}',
        '{"digest": 1, "format": 1, "x": "\\ud800"}',
    ],
)
def test_a_json_that_is_no_record_is_refused(stem, content):
    files(stem)[0].write_text(content)
    with pytest.raises(DataError, match="not the record of a probe"):
        SavedProbe.load(stem)


def test_a_file_that_is_no_text_is_refused(stem):
    files(stem)[0].write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be used"):
        SavedProbe.load(stem)


def test_another_format_is_rejected_with_both_versions(stem):
    rewrite(stem, lambda record: record.update(format=2))
    with pytest.raises(DataError, match="format 2, but this version of probekit reads format 1"):
        SavedProbe.load(stem)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["facts"].pop("weights"), "facts.weights: Field required"),
        (lambda r: r["facts"].update(extra=1), "facts.extra"),
        (lambda r: r["facts"].update(bos="no"), "facts.bos"),
        (lambda r: r.update(classes=["a", "b"]), "3 scores do not match 2 classes"),
        (lambda r: r.update(classes="abc"), "classes"),
        (lambda r: r.update(classes=[1, 2, 3]), "classes"),
    ],
)
def test_a_record_that_is_whole_but_wrong_is_refused(stem, change, message):
    rewrite(stem, change)
    with pytest.raises(DataError, match=message):
        SavedProbe.load(stem)


W, B = np.ones((3, 7)), np.zeros(3)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "do not form a probe"),
        ({"layers.0.weight": W}, "instead of float64 layers"),
        ({"weight": W, "bias": B}, "instead of float64 layers"),
        ({"layers.0.weight": W.astype(np.float32), "layers.0.bias": B}, "float32"),
        ({"layers.0.weight": W * np.nan, "layers.0.bias": B}, "NaN"),
        ({"layers.0.weight": W.T.copy(), "layers.0.bias": B}, "do not form a probe"),
    ],
)
def test_tensors_that_are_no_probe_are_refused(stem, tensors, message):
    put_tensors(stem, tensors)
    with pytest.raises(DataError, match=message):
        SavedProbe.load(stem)


def test_a_file_that_is_not_there_is_named(stem, tmp_path):
    with pytest.raises(MissingError, match=r"nothing\.json"):
        SavedProbe.load(tmp_path / "nothing")
    with pytest.raises(MissingError, match=r"folder.*: blocks\.1\.hook_resid_post\."):
        SavedProbe.load(stem.parent)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(MissingError, match="It contains no probe"):
        SavedProbe.load(empty)
    files(stem)[1].unlink()
    with pytest.raises(MissingError, match="safetensors"):
        SavedProbe.load(stem)
    with pytest.raises(MissingError, match="is a folder"):
        SavedProbe.load("/")


def test_a_file_that_cannot_be_written_raises_an_error(tmp_path, make_probe):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Cannot write"):
        make_probe().save(tmp_path / "file" / "probe")


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        (
            "runs",
            r"It contains runs\. .* RUN/probes/SITE/KIND or RUN/probes/final: one/0a, one/0b\.$",
        ),
        ("runs/one", r"It contains runs\. .*: 0a, 0b\.$"),
        (
            "runs/one/0a",
            r"It is the folder of a run\. Give one of its probes: probes/site/logistic\.$",
        ),
        ("runs/one/0b", r"Give one of its probes: probes/\+1/site/lda, probes/\+1/site/svm\.$"),
        ("runs/one/0a/probes", r"Give one of its probes: site/logistic\.$"),
        ("runs/one/0a/probes/site", r"Give one of its probes: logistic\.$"),
        ("runs/trained", r"It contains no probe\.$"),
    ],
)
def test_a_folder_above_probes_names_what_is_in_it(tmp_path, folder, message):
    for name in ("0a/probes/site/logistic", "0b/probes/+1/site/svm", "0b/probes/+1/site/lda"):
        path = tmp_path / "runs/one" / f"{name}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "runs/trained").mkdir()
    with pytest.raises(MissingError, match=message):
        SavedProbe.load(tmp_path / folder)
