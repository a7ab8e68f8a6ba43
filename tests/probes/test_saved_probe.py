"""Files of a saved probe: reproducible bytes, and detection of all damage."""

import json
import os
import socket
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pandas as pd
import pytest
import safetensors.numpy
import torch
from scipy.sparse import csr_array
from sklearn import linear_model
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.svm import SVC

from probekit.errors import DataError, MissingError, StoreError
from probekit.probes.aggregation import Aggregation
from probekit.probes.probe_files import HeldOutScore, ProbeFacts
from probekit.probes.saved_probe import SavedProbe
from probekit.provenance import digest, digest_json, pretty_json
from tests.probes.kinds import planted
from tests.stored import each_line


def made_facts(**others):
    """The metadata of a probe, with changes to the defaults."""
    facts = {"kind": "logistic", "scores_are_logits": True, "hyperparameters": {"C": 0.01}}
    facts |= {"sites": ("blocks.1.hook_resid_post",), "position": {"at": "last", "index": None}}
    facts |= {"model": "mini", "compute": "float32", "dtype": "float32", "bos": False, "seed": 0}
    facts |= {"weights": "ww", "tokenizer": "tt", "cache": "cc", "versions": {"probekit": "0.1.0"}}
    score = HeldOutScore(value=0.9, ci_low=0.85, ci_high=0.95, n=200)
    facts |= {"metrics": {"accuracy": score}, "created": "2025-01-01T00:00:00+00:00"}
    return ProbeFacts(**(facts | others))


def made_probe(n_classes=2, **facts):
    """A linear probe of seven features."""
    generator = np.random.default_rng(n_classes)
    n_rows = 1 if n_classes == 2 else n_classes
    layer = generator.normal(size=(n_rows, 7)), generator.normal(size=n_rows)
    return SavedProbe((layer,), tuple("abcd"[:n_classes]), made_facts(**facts))


@pytest.fixture
def stem(tmp_path):
    stem = tmp_path / "probes" / "blocks.1.hook_resid_post"
    made_probe(n_classes=3).save(stem)
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


W, B = np.ones((3, 7)), np.zeros(3)


def test_saving_what_was_loaded_gives_the_same_bytes(stem, tmp_path):
    again = tmp_path / "again.json"
    assert SavedProbe.load(stem).save(again) == again
    for old, new in zip(files(stem), files(tmp_path / "again"), strict=True):
        assert old.read_bytes() == new.read_bytes()


def test_either_file_and_the_stem_name_the_probe(stem):
    made = made_probe(n_classes=3)
    for path in (stem, *files(stem), str(stem)):
        loaded = SavedProbe.load(path)
        assert loaded.facts == made.facts
        assert loaded.classes == made.classes
        for ours, theirs in zip(loaded.layers, made.layers, strict=True):
            np.testing.assert_array_equal(ours[0], theirs[0])
            np.testing.assert_array_equal(ours[1], theirs[1])


def test_weights_that_are_not_contiguous_are_written_right(tmp_path):
    """PITFALL 15."""
    weight = np.arange(12.0).reshape(4, 3).T
    SavedProbe(((weight, np.zeros(3)),), ("a", "b", "c"), made_facts()).save(tmp_path / "p")
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


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[]", b"3", b"null", b"{", b'{"digest": 1}', b"[" * 100_000, b"\xff\xfe\x00"),
        b'{"digest": NaN, "format": 1}',
        b'{"digest": 1, "format": 1, "x": 1e999}',
        b'{"digest": 1, "format": 1, "x": "\\ud800"}',
    ],
)
def test_a_json_that_is_no_record_is_refused(stem, content):
    files(stem)[0].write_bytes(content)
    with pytest.raises(DataError, match="cannot be used: it is not the record of a probe"):
        SavedProbe.load(stem)


def test_a_label_changed_by_hand_another_format_or_number_of_classes_are_refused(stem, refused):
    path = files(stem)[0]
    content = path.read_text()
    path.write_text(content.replace('"a"', '"z"'))
    refused(SavedProbe.load, stem)
    for change in ({"format": 2}, {"classes": ["a", "b"]}):
        path.write_text(content)
        rewrite(stem, lambda record, change=change: record.update(change))
        refused(SavedProbe.load, stem)


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"layers.0.weight": W},
        {"weight": W, "bias": B},
        {"layers.0.weight": W.astype(np.float32), "layers.0.bias": B},
        {"layers.0.weight": W * np.nan, "layers.0.bias": B},
        {"layers.0.weight": W.T.copy(), "layers.0.bias": B},
    ],
    ids=["none", "no bias", "other names", "float32", "NaN", "transposed"],
)
def test_tensors_that_are_no_probe_are_refused(stem, tensors, refused):
    content = safetensors.numpy.save(tensors)
    files(stem)[1].write_bytes(content)
    rewrite(stem, lambda record: record.update(tensors=digest([content])))
    refused(SavedProbe.load, stem)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda r: r["facts"].pop("weights"), "facts.weights: Field required"),
        (lambda r: r["facts"].update(extra=1), "facts.extra"),
        (lambda r: r["facts"].update(bos="no"), "facts.bos"),
        (lambda r: r.update(classes="abc"), "classes"),
        (lambda r: r.update(classes=[1, 2, 3]), "classes"),
    ],
)
def test_a_record_that_is_whole_but_wrong_is_refused_with_its_key(stem, change, key):
    rewrite(stem, change)
    with pytest.raises(DataError, match=key):
        SavedProbe.load(stem)


@each_line("path")
def test_a_path_without_a_probe_is_refused_with_what_is_in_it(stem, tmp_path, path, refused):
    probes = ("0a/probes/site/logistic", "0b/probes/+1/site/svm", "0b/probes/+1/site/lda")
    for name in (*probes, "0a/sites/last"):  # the last one is no probe
        file = tmp_path / "runs/one" / f"{name}.safetensors"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        if name in probes:
            file.with_suffix(".json").touch()
    (tmp_path / "runs/one/0a/probes/attention.safetensors").touch()  # nor is this one
    for name in ("empty", "runs/trained"):
        (tmp_path / name).mkdir()
    refused(SavedProbe.load, tmp_path / path)


def test_a_probe_without_tensors_is_refused(stem, refused):
    files(stem)[1].unlink()
    refused(SavedProbe.load, stem)
    with pytest.raises(MissingError, match="is a folder"):
        SavedProbe.load("/")


def test_a_file_that_cannot_be_written_raises_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Cannot write"):
        made_probe().save(tmp_path / "file" / "probe")


@pytest.mark.parametrize("classes", ["ab", "abc"])
def test_two_layers_are_a_network_with_relu_between(classes, refused):
    X, y = planted.three_classes(n_features=7, classes=classes)
    X = StandardScaler().fit_transform(X)
    network = MLPClassifier(5, max_iter=2000, random_state=0).fit(X, y)
    layers = tuple((w.T, b) for w, b in zip(network.coefs_, network.intercepts_, strict=True))
    saved = SavedProbe(layers, tuple(network.classes_), made_facts(kind="mlp"))
    found = np.exp(saved.log_probabilities(X))
    np.testing.assert_allclose(found, network.predict_proba(X), atol=1e-9)
    np.testing.assert_array_equal(saved.predict(X), network.predict(X))
    refused(getattr, saved, "directions")


def test_without_classes_the_score_is_the_answer(refused):
    saved = SavedProbe(((np.array([[2.0, 0.0]]), np.array([1.0])),), (), made_facts(kind="ridge"))
    assert saved.predict([[3.0, 9.0]]).tolist() == [7.0]
    assert saved.direction_names == ("value",)
    refused(saved.log_probabilities, [[3.0, 9.0]])


def test_scores_that_are_no_logits_give_no_probabilities(refused):
    saved = made_probe(kind="linear_svm", scores_are_logits=False)
    refused(saved.log_probabilities, np.zeros((1, 7)))


def test_directions_are_the_weights_and_of_length_one_if_wished():
    saved = made_probe(n_classes=3)
    assert saved.directions.shape == (3, 7)
    assert saved.directions.dtype == np.float64
    np.testing.assert_allclose(np.linalg.norm(saved.unit_directions, axis=1), 1)
    np.testing.assert_allclose(
        saved.unit_directions * np.linalg.norm(saved.directions, axis=1)[:, None], saved.directions
    )
    assert saved.direction_names == saved.classes
    assert made_probe(n_classes=2).direction_names == ("b",)


def test_a_saved_probe_is_immutable():
    with pytest.raises(ValueError, match="read-only"):
        made_probe().layers[0][0][0, 0] = 1


@pytest.mark.parametrize(
    "X",
    [
        np.zeros((2, 6)),
        np.zeros(7),
        np.where(np.eye(7) == 1, np.nan, 0.0)[2:],
        [[0, 0, 0, np.inf, 0, 0, 0]],
    ],
    ids=["width", "shape", "NaN", "infinity"],
)
def test_rows_that_are_none_of_the_site_are_refused(X, refused):
    refused(made_probe().scores, X)


W4, B1, B2 = np.ones((1, 4)), np.zeros(1), np.zeros(2)


@each_line("call")
def test_what_is_no_probe_is_refused(call, refused):
    def probe(*layers, classes="ab"):
        return SavedProbe(layers, tuple(classes), made_facts())

    refused(eval, call, globals() | {"probe": probe})


def test_what_fits_is_let_through_and_what_differs_is_listed(refused):
    saved = made_probe()
    facts = saved.facts
    saved.check_fits(site=facts.site, width=7, weights=facts.weights, tokenizer=facts.tokenizer)
    saved.check_fits()
    refused(saved.check_fits, site="blocks.2.hook_resid_post", width=768, weights="other")
    saved.check_fits(n_heads=12, layer_norm_epsilon=1e-5)  # not known of this probe
    newer = made_probe(n_heads=4, layer_norm_epsilon=1e-5)
    newer.check_fits(n_heads=4, layer_norm_epsilon=1e-5)
    refused(newer.check_fits, n_heads=12)


@pytest.mark.parametrize(
    ("rule", "n_columns"), [("rolling:2", 1), ("multimax", 4), ("attention", 2)]
)
def test_an_aggregated_probe_scores_the_tokens_of_a_text(tmp_path, rule, n_columns):
    generator = np.random.default_rng(0)
    layer = generator.normal(size=(n_columns, 7)), generator.normal(size=n_columns)
    rule_of = Aggregation(rule=rule, bias=[0.5], weight=[[-2.0]], unit=3.0)
    facts = made_facts(aggregation=rule_of)
    probe = SavedProbe((layer,), ("a", "b"), facts)
    loaded = SavedProbe.load(probe.save(tmp_path / "probe"))
    assert loaded.facts.aggregation == rule_of
    X = generator.normal(size=(5, 7))
    running = rule_of.running(X @ layer[0].T + layer[1])
    np.testing.assert_allclose(loaded.scores(X), running[:, 0])
    np.testing.assert_allclose(loaded.scores(X[:3]), running[:3, 0])


def fitted(n_classes, *, scaled=True):
    """A fitted classifier of scikit-learn on seven features of very different scales, and rows."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(90, 7)) * np.logspace(-1, 2, 7) + 5
    y = np.array(["no", "yes", "perhaps"])[np.arange(90) % n_classes]
    X[np.arange(90), np.arange(90) % n_classes] += 3
    steps = [StandardScaler()] if scaled else []
    return make_pipeline(*steps, LogisticRegression(C=0.3, max_iter=5000)).fit(X, y), X


PLACE = {"site": "blocks.1.hook_resid_post", "model": "mini"}


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("scaled", [True, False])
def test_a_classifier_of_scikit_learn_predicts_the_same(n_classes, scaled, tmp_path):
    model, X = fitted(n_classes, scaled=scaled)
    probe = SavedProbe.from_sklearn(model, **PLACE, rows=X)
    assert probe.predict(X).tolist() == model.predict(X).tolist()
    np.testing.assert_allclose(probe.scores(X), model.decision_function(X), rtol=1e-9, atol=1e-9)
    logs = model.predict_log_proba(X)
    np.testing.assert_allclose(probe.log_probabilities(X), logs, rtol=1e-7, atol=1e-9)
    loaded = SavedProbe.load(probe.save(tmp_path / "probe"))
    assert loaded.facts == probe.facts
    spread = (X @ probe.unit_directions.T).std(axis=0)
    np.testing.assert_allclose(loaded.facts.projection_sd, spread)
    assert "fitted by another tool" in loaded.facts.untested


SCALERS = [StandardScaler(with_mean=m, with_std=s) for m in (True, False) for s in (True, False)]
LINEAR = [make_pipeline(scaler, LogisticRegression(max_iter=5000)) for scaler in SCALERS]


@pytest.mark.parametrize(
    "model", [*LINEAR, Ridge(), RidgeClassifier(), RidgeClassifier(fit_intercept=False)], ids=str
)
def test_every_linear_model_predicts_the_same(model):
    X = np.random.default_rng(2).normal(size=(60, 4)) * [1, 2, 3, 4] + 5
    model.fit(X, X @ np.arange(4.0) if isinstance(model, Ridge) else np.digitize(X[:, 0], [4, 6]))
    probe, scores = SavedProbe.from_sklearn(model, **PLACE), model.predict(X)
    if not isinstance(model, Ridge):
        assert probe.predict(X).tolist() == scores.astype(str).tolist()
        scores = model.decision_function(X)
    np.testing.assert_allclose(probe.scores(X), scores, rtol=1e-9, atol=1e-9)


def fitted_ridge(n_labels, intercept=None, **options):
    """A ridge classifier, of one label with three classes or of several labels, and its rows."""
    X = np.random.default_rng(3).normal(size=(60, 5))
    y = np.digitize(X[:, 0], [-0.5, 0.5]) if n_labels == 1 else (X[:, :n_labels] > 0).astype(int)
    model = RidgeClassifier(**options).fit(X, y)
    if intercept is not None:
        model.intercept_ = np.array(intercept)
    return model, X


def two_arrays(size=None):
    """The first bytes of a file with two arrays, which `np.load` reads as the first one."""
    path = Path("direction.npy")
    with path.open("wb") as file:
        np.save(file, np.ones(2))
        np.save(file, np.zeros(2))
    path.write_bytes(path.read_bytes()[:size])
    return path


def npy(header):
    """A .npy file with this text as its header."""
    length = len(header).to_bytes(2, "little")
    Path("x.npy").write_bytes(b"\x93NUMPY\x01\x00" + length + header.encode())
    return Path("x.npy")


def saved(array, save=np.save):
    with Path("x.npy").open("wb") as file:
        save(file, array)
    return Path("x.npy")


def probe_of(direction=(1.0, 2.0), **options):
    return SavedProbe.from_arrays(direction, **PLACE | options)


def at(**position):
    return probe_of(position=position)


def in_steps(*steps):
    steps = [(str(number), step) for number, step in enumerate(steps)]
    return SavedProbe.from_sklearn(Pipeline(steps), **PLACE)


MASKED = np.ma.masked_array([1.0, 2.0], mask=[False, True])
SHAPE = "{'descr': '<f8', 'fortran_order': False, 'shape': %s}\n"
ROWS_OF_SKLEARN = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
FITTED = LogisticRegression().fit(*ROWS_OF_SKLEARN)
OTHERS = {"pd": pd, "PCA": PCA, "SVC": SVC, "MinMaxScaler": MinMaxScaler}  # used by the calls


@each_line("call")
def test_what_is_no_probe_or_would_be_read_in_part_is_refused(call, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    refused(eval, call, globals() | OTHERS)


def test_a_header_that_ends_early_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="EOF in multi-line statement"):
        probe_of(npy(SHAPE % ("[" * 100)))


def test_a_position_may_have_its_defaults_and_an_index_is_stored_as_an_integer():
    position = {"at": "last", "index": None, "share": None, "pieces": "last", "offset": 0}
    assert at(**position).facts.at == "last"
    for index in (3, 3.0):
        assert str(at(at="index", index=index).facts.position["index"]) == "3"
    assert at(share=0.5).facts.position == {"at": "share", "share": 0.5}


def test_a_direction_and_a_threshold_are_read_from_npy_files(tmp_path):
    np.save(tmp_path / "direction.npy", np.array([3, 4], np.float16))
    how = dict(PLACE, classes=("no", "yes"))
    probe = SavedProbe.from_arrays(tmp_path / "direction.npy", threshold=2.0, **how)
    assert probe.predict([[1, 0], [0, 0.4]]).tolist() == ["yes", "no"]
    same = SavedProbe.from_arrays(str(tmp_path / "direction.npy"), -2.0, **how)
    assert same.scores([[1, 0]]).tolist() == probe.scores([[1, 0]]).tolist() == [1.0]


def test_tensors_of_torch_are_read():
    direction = torch.tensor([3.0, 4.0], dtype=torch.bfloat16, requires_grad=True)
    rows = torch.tensor([[0.0, 0.0], [10.0, 0.0]], dtype=torch.bfloat16)
    probe = SavedProbe.from_arrays(direction, rows=rows, **PLACE)
    assert probe.directions.tolist() == [[3.0, 4.0]]
    np.testing.assert_allclose(probe.facts.projection_sd, [3.0])


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))  # its file remains


@pytest.mark.parametrize("ending", ["npy", "skops"])
@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (os.mkfifo, "named pipe"),
        (make_socket, "a socket"),
        (os.mkdir, "a folder, not a file"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
        (lambda path: path.symlink_to("/dev/zero"), "a device"),
    ],
)
def test_only_regular_files_are_read(tmp_path, monkeypatch, ending, make, problem):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    make(path := Path(f"x.{ending}"))
    read = SavedProbe.from_sklearn if ending == "skops" else SavedProbe.from_arrays
    with pytest.raises(DataError, match=problem):
        read(path, **PLACE)


@pytest.mark.parametrize("kind", ["LogisticRegression", "SGDClassifier", "Perceptron"])
def test_sparse_weights_are_those_of_the_dense_model(kind):
    model = getattr(linear_model, kind)()
    dense = SavedProbe.from_sklearn(model.fit(*ROWS_OF_SKLEARN), **PLACE)
    sparse = SavedProbe.from_sklearn(model.sparsify(), **PLACE)
    np.testing.assert_array_equal(sparse.directions, dense.directions)


def test_scores_of_tensors_and_sparse_rows_are_those_of_arrays():
    probe = SavedProbe.from_arrays([1.0, 2.0], **PLACE)
    rows = torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16, requires_grad=True)
    for given in (rows, rows.float(), csr_array([[1.0, 2.0]])):
        assert probe.scores(given).tolist() == [5.0]
    for wrong in (None, [[1.0], [1.0, 2.0]], np.ones((1, 2), complex)):
        with pytest.raises(DataError, match="cannot be read as an array"):
            probe.scores(wrong)


@pytest.mark.parametrize("row", [[1e308, 1e308], [1e308, -1e308]])
def test_scores_that_overflow_are_refused(row):
    probe = SavedProbe.from_arrays([9.0, 9.0], **PLACE)
    for apply in (probe.scores, probe.predict, probe.outputs):
        with pytest.raises(DataError, match=r"1 of 2 rows have scores beyond the range .* row 1"):
            apply([[1.0, 1.0], row])


def test_a_scaler_of_another_width_is_refused():
    scaler = StandardScaler().fit(ROWS_OF_SKLEARN[0])
    scaler.scale_ = scaler.scale_[:1]
    with pytest.raises(DataError, match="A StandardScaler lacks numbers of features"):
        SavedProbe.from_sklearn(Pipeline([("a", scaler), ("b", FITTED)]), **PLACE)


def test_a_probe_of_another_tool_may_read_a_head():
    for site in ("blocks.1.attn.hook_z[head=2]", "blocks.10.attn.hook_k[kv_head=0]"):
        assert probe_of(site=site).facts.site == site


@pytest.mark.parametrize("name", ["probe.joblib", "probe.pkl"])
def test_pickles_are_never_opened(name, tmp_path, refused):
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'touch unpickled'\ntR.")
    refused(SavedProbe.from_sklearn, tmp_path / name, **PLACE)


def test_a_skops_file_is_read_if_all_of_its_types_are_safe(tmp_path, refused, monkeypatch):
    io = pytest.importorskip("skops.io", reason="skops is not there: pip install -e '.[skops]'")
    model, X = fitted(3)
    io.dump(model, tmp_path / "probe.skops")
    probe = SavedProbe.from_sklearn(tmp_path / "probe.skops", **PLACE)
    np.testing.assert_allclose(probe.scores(X), model.decision_function(X), rtol=1e-9, atol=1e-9)
    for kind in ("SGDClassifier", "Perceptron", "RidgeClassifier", "RidgeClassifierCV"):
        linear = getattr(linear_model, kind)().fit(X, X[:, 0] > 5)
        io.dump(linear, tmp_path / "linear.skops")
        probe = SavedProbe.from_sklearn(tmp_path / "linear.skops", **PLACE)
        np.testing.assert_allclose(probe.scores(X), linear.decision_function(X), rtol=1e-9)
    io.dump([json.JSONEncoder()], tmp_path / "json.skops")
    refused(SavedProbe.from_sklearn, tmp_path / "json.skops", **PLACE)
    (tmp_path / "zip.skops").write_bytes(b"PK")
    refused(SavedProbe.from_sklearn, tmp_path / "zip.skops", **PLACE)
    monkeypatch.setattr("probekit.probes.foreign._MOST_BYTES", 2**20)
    with ZipFile(tmp_path / "deep.skops", "w") as archive:
        archive.writestr("schema.json", "[" * 100_000)
    with pytest.raises(DataError, match="cannot be read: maximum recursion"):
        SavedProbe.from_sklearn(tmp_path / "deep.skops", **PLACE)
    with ZipFile(tmp_path / "large.skops", "w", ZIP_DEFLATED) as archive:
        archive.writestr("schema.json", bytes(2**20 + 1))
    refused(SavedProbe.from_sklearn, tmp_path / "large.skops", **PLACE)


def test_log_probabilities_are_sound_far_from_zero():
    logs = made_probe(n_classes=3).log_probabilities(1e6 * np.ones((2, 7)))
    assert np.isfinite(logs).all()
    np.testing.assert_allclose(np.exp(logs).sum(axis=1), 1)
