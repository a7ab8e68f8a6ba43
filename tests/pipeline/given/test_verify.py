"""`activations: {verify: MODEL}`: labels in record, page and comparison, of files and calls."""

import json
import re
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from probekit.analysis.identify import integers
from probekit.errors import ConfigError, DataError, MissingError
from probekit.experiment.loader import load_any_experiment
from probekit.model.families.table import load_model
from probekit.model.text.tokenizer import Tokenizer
from probekit.pipeline.compare.compare import compare
from probekit.pipeline.experiment.probe import _read_tokens, probe
from probekit.pipeline.experiment.run import run
from probekit.pipeline.experiment.validate import validate
from probekit.report.sentences.caveats import INVALIDATES, caveats
from probekit.results.record import load_record

FAST = {"C": [0.1], "folds": 2, "description": False, "permutations": 0, "control_draws": 0}
POST, PRE = "blocks.1.hook_resid_post", "blocks.1.hook_resid_pre"
YAML = """
name: mine
activations: {folder: acts, source: an engine, verify: mini%s}
data: {name: rows, format: csv, file: rows.csv, columns: {%s}}
probe: {C: [0.1], folds: 2, description: false, permutations: 0, control_draws: 0}
"""


verified = partial(probe, verify="mini", probe=FAST, page=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory, repository):
    """A folder with rows.csv, whose tokens begin with BOS, and the right activations of mini."""
    folder = tmp_path_factory.mktemp("verify")
    rows = pd.read_csv(repository / "data" / "subject_number.csv")[::37][:48].reset_index(drop=True)
    model, tokenizer = load_model("mini"), Tokenizer.from_pretrained("mini")
    ids = [tokenizer.encode(text, bos=True).ids.tolist() for text in rows["text"]]
    at = [len(one) - 1 - number % 2 for number, one in enumerate(ids)]
    sites, values = [POST, PRE, "blocks.1.hook_mlp_out"], {}
    with torch.inference_mode():
        for one, index in zip(ids, at, strict=True):
            _, cache = model.run_with_cache(torch.tensor([one]), sites, logits=False)
            for site in sites:
                values.setdefault(site, []).append(cache[site][0, index].numpy())
    arrays = {site: np.stack(of_site) for site, of_site in values.items()}
    text = {"ids": [" ".join(map(str, one)) for one in ids], "json": list(map(json.dumps, ids))}
    rows.assign(**text, at=at).to_csv(folder / "rows.csv", index=False)
    return folder, rows, ids, at, arrays


def written(folder, arrays, extra="", columns="label: label, ids: ids, position: at"):
    (folder / "acts").mkdir(exist_ok=True)
    for path in (folder / "acts").iterdir():
        path.unlink()
    for site, array in arrays.items():
        np.save(folder / "acts" / f"{site}.npy", array)
    (folder / "mine.yaml").write_text(YAML % (extra, columns))
    return load_any_experiment(folder / "mine.yaml")


@pytest.fixture(scope="module")
def right(place):
    folder, *_, arrays = place
    experiment = written(folder, {site: arrays[site] for site in (POST, PRE)})
    return run(experiment, out=folder / "runs", workers=1)


@pytest.fixture(scope="module")
def wrong(place):
    folder, *_, arrays = place
    swapped = {POST: arrays["blocks.1.hook_mlp_out"], PRE: arrays[PRE]}
    return run(written(folder, swapped), out=folder / "runs", workers=1)


def test_validate_finds_another_tensor(place):
    folder, *_, arrays = place
    for site, is_other in ((POST, True), ("blocks.1.hook_mlp_out", False)):
        experiment = written(folder, {site: arrays["blocks.1.hook_mlp_out"]})
        assert ("other-tensor" in {one.code for one in validate(experiment).findings}) == is_other


def test_right_activations_are_verified_in_record_and_page(right):
    labels = {site: one["label"] for site, one in right.record["identities"].items()}
    assert labels == {site: f"verified as {site}" for site in (POST, PRE)}
    page = right.report.read_text()
    assert "Some rows of an engine were computed again and compared with every tensor" in page
    assert "2 verified" in page
    assert "other-tensor" not in page


def test_another_tensor_is_the_first_warning_and_stands_in_comparisons(right, wrong):
    assert wrong.record["identities"][POST]["label"] == "differs"
    assert wrong.record["identities"][PRE]["label"] == f"verified as {PRE}"
    record = load_record(wrong.folder / "run.json")
    first = caveats(record.verdict, record)[0]
    assert "blocks.1.hook_mlp_out, not hook_resid_post: one residual connection is" in first.message
    assert first.weight == INVALIDATES
    assert re.search("one residual connection is missing", wrong.report.read_text())
    compared = compare(right.folder, wrong.folder)
    assert compared.settings["activations"] == ("2 verified", "1 differs, 1 verified")
    words = f"other tensors than those of their names at {POST}."
    assert any(words in note for note in compared.notes)


@pytest.mark.parametrize(("columns", "extra"), [("ids: json", ""), ("text: text", ", bos: true")])
def test_ids_as_json_and_texts_are_read(place, columns, extra):
    folder, *_, arrays = place
    columns = f"label: label, position: at, {columns}"
    experiment = written(folder, {POST: arrays[POST]}, extra, columns)
    result = run(experiment, out=folder / "others", workers=1, page=False)
    assert result.record["identities"][POST]["label"] == f"verified as {POST}"


def test_a_forgotten_bos_is_found(place):
    folder, rows, _, at, arrays = place
    read = {"texts": rows["text"], "bos": False, "at": [index - 1 for index in at]}
    found = verified({POST: arrays[POST]}, rows["label"], out=folder / "python", **read)
    (one,) = found.record["identities"].values()
    assert one["label"] == "differs"
    assert "BOS added" in one["sentence"]
    findings = found.record["data"]["findings"]
    (warning,) = (one["message"] for one in findings if one["code"] == "other-tensor")
    assert "`bos` states whether texts were read with BOS" in warning


def test_a_retrained_model_of_the_same_path_is_compared_again(place):
    folder, rows, ids, at, arrays = place
    model = load_model("mini")
    labels = []
    for scale in (1.0, 2.0):
        model.blocks[0].mlp.c_fc.weight.mul_(scale)
        model.save_pretrained(folder / "model")
        read = {"ids": ids, "at": at, "verify": folder / "model"}
        found = verified({POST: arrays[POST]}, rows["label"], out=folder / "retrained", **read)
        labels.append(found.record["identities"][POST]["label"])
    assert labels == [f"verified as {POST}", "differs"]


def test_without_a_model_they_are_unverified(place):
    folder, rows, *_, arrays = place
    result = probe({POST: arrays[POST]}, rows["label"], probe=FAST, out=folder / "plain")
    assert result.record["identities"] == {POST: {"label": "unverified", "sentence": ""}}
    assert "are unverified: no row was computed again" in result.report.read_text()


def test_records_of_earlier_releases_have_no_identities(right, tmp_path):
    record = load_record(right.folder / "run.json")
    earlier = type(record).model_validate(record.model_dump(exclude={"identities"}))
    assert (earlier.identities, earlier.identity, earlier.other_tensors) == ({}, "", [])


def test_faults_are_explained(place):
    folder, rows, ids, _, arrays = place
    one, out = {POST: arrays[POST]}, folder / "faults"
    for options, error, words in (
        ({}, ConfigError, "give `texts` or `ids`"),
        ({"texts": rows["text"]}, ConfigError, "`bos` is required if `verify` reads `texts`"),
        ({"ids": ids[1:]}, DataError, "ids has 47 entries, but labels has 48"),
        ({"ids": ["a b"] * 48}, DataError, "row .: 'a b' are not integers"),
        ({"ids": ids, "at": [*[-1] * 46, -99, -1]}, DataError, "Row 46 has no token at position"),
        ({"ids": [[99999]] * 48}, DataError, "vocabulary has ids"),
        ({"ids": ids, "verify": "mimi"}, MissingError, "mini"),
        ({"ids": ids, "verify": torch.nn.Linear(2, 2)}, ConfigError, "Linear.*`save_pretrained`"),
        ({"ids": ids, "verify": 3}, ConfigError, "verify is 3, of type int"),
    ):
        with pytest.raises(error, match=words):
            verified(one, rows["label"], out=out, **options)
    with pytest.raises(DataError, match="255 features, but no tensor of this GPT-2"):
        verified({POST: arrays[POST][:, 1:]}, rows["label"], ids=ids, out=out)
    with pytest.raises(ConfigError, match="No column 'nowhere'"):
        validate(written(folder, one, columns="label: label, ids: nowhere"))


def test_a_network_in_memory_is_compared(place, tmp_path, monkeypatch):
    _, rows, ids, at, arrays = place
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path / "caches"))
    read = {"ids": ids, "at": at, "out": tmp_path}
    for _ in range(2):
        found = verified({POST: arrays[POST]}, rows["label"], verify=load_model("mini"), **read)
        assert found.record["identities"][POST]["label"] == f"verified as {POST}"
    assert len([*(tmp_path / "caches" / "networks").iterdir()]) == 1
    texts = {"texts": rows["text"], "bos": True}
    with pytest.raises(ConfigError, match="has no tokenizer: give `ids`"):
        verified({POST: arrays[POST]}, rows["label"], verify=load_model("mini"), **texts)


def test_ids_that_would_be_cut_are_refused():
    arrays = (np.array([1.0, 2.0]), np.ma.masked_array([1, 2], mask=[False, True]))
    texts = ("3.7 4", "[3.7, 4]", "\u0663", "1_0", "[" * 100_000, "[" * 900 + "1" + "]" * 900)
    for ids in ([3.7, 4], [True, 1], [[1, 2], [3, 4]], *arrays, *texts):
        with pytest.raises(DataError, match=r"row 0: .* are not integers"):
            integers(ids, "row 0")


@pytest.mark.parametrize("ids", ["5 -1", " [5, -1]", [5, -1], (np.int64(5), -1), np.array([5, -1])])
def test_integers_are_read_from_numbers_and_text(ids):
    assert integers(ids, "row 0") == integers(torch.tensor([5, -1]), "row 0") == [5, -1]


@pytest.mark.parametrize("at", [0.5, [0.5] * 48, [[0, 1]] * 48, ["3 4"] * 48, True])
def test_an_index_is_one_integer(place, at, tmp_path):
    _, rows, ids, _, arrays = place
    with pytest.raises(DataError, match=r"row .* is no index"):
        verified(arrays, rows["label"], ids=ids, at=at, out=tmp_path)


def test_the_order_of_a_set_is_not_used(place, tmp_path):
    _, rows, ids, at, arrays = place
    for name, options in {
        "texts": {"texts": set(rows["text"]), "bos": True},
        "ids": {"ids": {tuple(one) for one in ids}},
        "at": {"ids": ids, "at": set(at)},
        "sites": {"sites": {"*", POST}, "verify": None},
        "C": {"probe": {"C": {0.1, 1.0}}, "verify": None},
        "baselines": {"probe": {"baselines": frozenset({"majority"})}, "verify": None},
    }.items():
        with pytest.raises(ConfigError, match=f"{name} is (of type|a) set"):
            verified(arrays, rows["label"], out=tmp_path, **options)


def test_rows_of_a_table_are_read_in_their_order(place):
    _, _, ids, at, _ = place
    turned = pd.Series(ids, index=range(len(ids) - 1, -1, -1))
    read = _read_tokens("mini", len(ids), None, None, turned, pd.Series(at, index=turned.index))
    assert read.ids == [ids[row] for row in read.rows]
    assert read.at == [at[row] for row in read.rows]
