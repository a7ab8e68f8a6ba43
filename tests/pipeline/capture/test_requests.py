"""Experiments whose activations a serving engine has written: same tables, verified sites."""

import errno
import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import GPT2LMHeadModel

from probekit.activations.store import ActivationStore
from probekit.errors import ProbekitError, StoreError
from probekit.files import Disk
from probekit.model.families.table import load_model
from probekit.model.weights.sources import MINI
from probekit.pipeline.capture.captures import capture_only
from probekit.pipeline.capture.jobs import put_job
from probekit.pipeline.engines.table import prepare
from tests.activations.captures import files
from tests.model.families.configurations import rows
from tests.pipeline.planted import QUICK, QUICK_SITES
from tests.pipeline.serving import LAYERS, hidden_states, write_requests
from tests.pipeline.tiny_models import write_model

SITE = "blocks.3.hook_resid_post"
NO_ERRORS = dict.fromkeys(QUICK_SITES, (0.0, 0.0))
EXACT = "relative error of at most 64 rows: median 0 %, largest 0 %"


@pytest.fixture(scope="module")
def served(planted):
    """Token ids and hidden states of each text at `LAYERS`, in float32."""
    return hidden_states(planted.load(*QUICK, f"capture.sites={list(LAYERS)}"), planted.cache)


@pytest.fixture
def requests(served, tmp_path):
    """A folder with one file for each text."""
    return write_requests(tmp_path / "requests", served)


def load(planted, folder, *overrides):
    return planted.load(*QUICK, f"capture.requests={folder}", *overrides)


def imported(planted, tmp_path, folder, *overrides):
    experiment = load(planted, folder, *overrides)
    return capture_only(experiment, cache_root=tmp_path / "cache")["task"].store


def test_a_run_on_our_own_activations_has_the_same_tables(planted, own, requests):
    captured = planted.run(*QUICK)
    read = own.run(*QUICK, f"capture.requests={requests}")
    for name in ("results", "differences", "predictions"):
        path = f"{name}.csv"
        assert (read.folder / path).read_bytes() == (captured.folder / path).read_bytes()
    of_own, of_read = (run.record["digests"]["activations (task)"] for run in (captured, read))
    assert of_own != of_read  # by the digest of the files
    assert read.record["caches"] != captured.record["caches"]
    findings = {one["code"]: one["message"] for one in read.record["data"]["findings"]}
    labels = {site: one["label"] for site, one in read.record["identities"].items()}
    assert labels == {site: f"verified as {site}" for site in QUICK_SITES}
    page = (read.folder / "report.html").read_text()
    assert "2 verified" in page
    assert f"{SITE}; {EXACT}" in page
    assert findings["requests"].startswith("96 distinct texts of 96 requests in 96 files; not used")
    assert "left-out" not in findings  # its baselines do not request it


def test_the_own_confidence_is_left_out_with_a_warning(planted, requests):
    engine = prepare(load(planted, requests, "probe.baselines=[majority, output]"))
    (found,) = (one for one in engine.design.findings if one.code == "left-out")
    assert "requests have no logits" in found.message


def test_the_import_and_the_run_share_one_store(planted, requests, tmp_path, call):
    (tmp_path / "planted.yaml").write_bytes((planted.folder / "planted.yaml").read_bytes())
    (tmp_path / "rows.csv").write_bytes((planted.folder / "rows.csv").read_bytes())
    sites = ("--set", f"capture.sites={list(QUICK_SITES)}", "--cache", "caches")
    ended = call("cache", "import", "planted.yaml", requests, *sites)
    assert ended.code == 0
    assert "96 rows, 2 shards imported, 0 reused" in ended.stdout
    for site in QUICK_SITES:
        assert f"verified as {site}, {EXACT}\n" in ended.stdout
    again = call(
        "cache", "planted.yaml", *sites, "--set", "capture.requests=requests",
        "--set", "model.random_weights=false",
    )  # fmt: skip
    assert "0 shards computed, 2 reused" in again.stdout
    (place,) = (tmp_path / "caches").iterdir()
    (place / "errors.json").write_text("{}")  # damaged: the errors are unknown
    repeated = call("cache", "import", "planted.yaml", requests, *sites)
    assert repeated.stdout.endswith("".join(f"verified as {site}\n" for site in QUICK_SITES))


def test_an_import_without_a_folder_or_of_an_empty_one_is_refused(planted, call, tmp_path):
    ended = call("cache", "import", planted.folder / "planted.yaml")
    assert ended.code == 2
    assert "`capture.requests`" in ended.stderr
    (tmp_path / "empty").mkdir()
    ended = call("cache", "import", planted.folder / "planted.yaml", tmp_path / "empty")
    assert ended.code == 3
    assert f"FOLDER: {tmp_path / 'empty'} contains no .safetensors file" in ended.stderr
    assert "--set" not in ended.stderr


def test_existing_keys_do_not_change_and_imports_have_their_own(planted, tmp_path, requests):
    computed = capture_only(planted.load(*QUICK), cache_root=tmp_path / "own")["task"].store
    read = imported(planted, tmp_path, requests)
    assert "requests" not in computed.identity.to_json()
    assert read.identity.to_json() == computed.identity.to_json() | {"origin": read.identity.origin}
    assert read.identity.key != computed.identity.key
    assert read.errors() == NO_ERRORS
    for site in QUICK_SITES:
        assert (read.read(site) == computed.read(site)).all()


def in_small_shards(monkeypatch):
    monkeypatch.setattr("probekit.activations.records.SHARD_ROWS", 32)
    monkeypatch.setattr("probekit.activations.records.BATCH_TOKENS", {"cpu": 100})


def failing_after(n_files, error, monkeypatch):
    """Let the file system fail, or the process be killed, after some files are published."""
    publish, published = Disk.rename, []

    def rename(self, *names):
        if len(published) == n_files:
            raise error
        published.append(names)
        return publish(self, *names)

    monkeypatch.setattr(Disk, "rename", rename)


def commits(monkeypatch):
    """Site and number of each shard that is committed from now on."""
    commit, heard = ActivationStore._commit, []

    def note(self, record):
        heard.append((record.site, record.shard))
        return commit(self, record)

    monkeypatch.setattr(ActivationStore, "_commit", note)
    return heard


def test_a_killed_import_resumes(planted, tmp_path, requests, monkeypatch):
    in_small_shards(monkeypatch)
    whole = imported(planted, tmp_path / "whole", requests)
    assert len(whole.shards) > 2
    with monkeypatch.context() as patch:
        failing_after(5, KeyboardInterrupt, patch)
        with pytest.raises(KeyboardInterrupt):
            imported(planted, tmp_path, requests)
    (place,) = (tmp_path / "cache").iterdir()
    committed = {site: ActivationStore.open(place).records(site) for site in QUICK_SITES}
    assert 0 < sum(map(len, committed.values())) < 2 * len(whole.shards)
    heard = commits(monkeypatch)
    resumed = imported(planted, tmp_path, requests)
    assert not {(site, shard) for site, of in committed.items() for shard in of} & set(heard)
    assert files(resumed.folder) == files(whole.folder)


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("fault", ["another tensor", "another row", "NaN in the last shard"])
def test_only_shards_remain_of_an_import_of_wrong_files(
    planted, served, tmp_path, monkeypatch, fault
):
    in_small_shards(monkeypatch)
    right = imported(planted, tmp_path / "right", write_requests(tmp_path / "served", served))
    ids = prepare(planted.load(*QUICK)).texts.ids
    identified = np.linspace(0, len(ids) - 1, 32).astype(int)
    rows = right.shards[0 if fault == "another row" else -1]
    text = next(ids[row].tobytes() for row in rows if row not in identified)
    is_tensor = fault == "another tensor"
    files = []
    for one, states in served:
        wrong = states * torch.nan if fault == "NaN in the last shard" else states.flip(2)
        files.append((one, wrong if is_tensor or one.tobytes() == text else states))
    committed = commits(monkeypatch)
    message = refusal(planted, tmp_path, write_requests(tmp_path / "wrong", files))
    assert ("differs from the network's by" in message) == (fault == "another row")
    assert bool(committed) == (fault == "NaN in the last shard")
    assert len(list((tmp_path / "cache").iterdir())) == bool(committed)


@pytest.mark.parametrize("n_files", [1, 5])
def test_of_an_import_on_a_full_disk_only_shards_remain(
    planted, requests, tmp_path, monkeypatch, n_files
):
    in_small_shards(monkeypatch)
    with monkeypatch.context() as patch:
        failing_after(n_files, FULL, patch)
        assert "No space left" in refusal(planted, tmp_path, requests)
    assert len(list((tmp_path / "cache").iterdir())) == (n_files == 5)
    assert set(imported(planted, tmp_path, requests).sites) == set(QUICK_SITES)


def test_without_locks_a_failed_import_removes_nothing(planted, requests, tmp_path, monkeypatch):
    monkeypatch.setattr(Disk, "lock", lambda *_args, **_options: None)
    failing_after(1, FULL, monkeypatch)
    refusal(planted, tmp_path, requests)
    assert len(list((tmp_path / "cache").iterdir())) == 1  # another process may write it


def test_a_failed_import_keeps_stores_of_other_processes(planted, requests, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        failing_after(1, KeyboardInterrupt, patch)
        with pytest.raises(KeyboardInterrupt):
            imported(planted, tmp_path, requests)
    before = [files(place) for place in (tmp_path / "cache").iterdir()]
    assert len(before) == 1
    with monkeypatch.context() as patch:
        failing_after(0, FULL, patch)
        refusal(planted, tmp_path, requests)
    assert [files(place) for place in (tmp_path / "cache").iterdir()] == before

    def crew(job, work, *_):
        put_job(job, work)
        raise StoreError("All workers failed.")

    with pytest.raises(StoreError):
        capture_only(load(planted, requests), cache_root=tmp_path / "shared", crew=crew)
    assert len(list((tmp_path / "shared").iterdir())) == 1


def test_the_layers_of_the_files_may_be_in_any_order(planted, served, tmp_path):
    mixed = [(ids, states[:, [2, 0, 1]]) for ids, states in served]
    folder = write_requests(tmp_path / "mixed", mixed)
    layers = "{0: blocks.3.hook_resid_post, 1: blocks.0.hook_resid_pre}"
    stated = f"capture.requests={{folder: {folder}, layers: {layers}}}"
    read = imported(planted, tmp_path, folder)
    assert imported(planted, tmp_path, folder, stated).folder == read.folder
    assert read.errors() == NO_ERRORS
    # A complete store does not hide layers that are stated wrongly.
    stated = f"capture.requests={{folder: {folder}, layers: {{2: {SITE}}}}}"
    assert f"layer 2 is not {SITE}" in refusal(planted, tmp_path, folder, stated)


def refusal(planted, tmp_path, folder, *overrides):
    with pytest.raises(ProbekitError) as caught:
        imported(planted, tmp_path, folder, *overrides)
    return str(caught.value)


def test_names_of_layers_must_be_sites_and_are_compared(planted, requests, served, tmp_path):
    """A name without `blocks.` would else be verified as the tensor that the layer is."""
    stated = f"capture.requests={{folder: {requests}, layers: {{2: block.3.hook_resid_post}}}}"
    words = f"layer 2 has the name block.3.hook_resid_post, which is no site. Nearest: {SITE}"
    assert words in refusal(planted, tmp_path, requests, stated)
    folder = write_requests(tmp_path / "right", served, {"layer_ids": json.dumps(LAYERS)})
    assert imported(planted, tmp_path, folder).errors() == NO_ERRORS
    other = "blocks.2.hook_resid_post"
    for last, expected in (
        ("blocks.3.hook_resid_pst", f"is no site. Nearest: {SITE}"),
        (other, f"layer {other} is not {other}: blocks.3"),
    ):
        names = {"layer_ids": json.dumps([*LAYERS[:2], last])}
        assert expected in refusal(
            planted, tmp_path, write_requests(tmp_path / last, served, names)
        )


def test_hidden_states_of_another_width_name_their_file(planted, served, tmp_path):
    (ids, states), *others = served
    folder = write_requests(tmp_path / "wide", [(ids, states[..., :-1]), *others])
    message = refusal(planted, tmp_path, folder)
    d_model = states.shape[-1]
    assert f"hidden_states has shape {(*states.shape[:2], d_model - 1)}" in message
    assert f"d_model of the network is {d_model}." in message


def test_one_wrong_request_is_refused_if_its_row_is_compared(planted, served, tmp_path):
    first = prepare(planted.load(*QUICK)).texts.ids[0].tobytes()
    wrong = [(ids, x.flip(2) if ids.tobytes() == first else x) for ids, x in served]
    message = refusal(planted, tmp_path, write_requests(tmp_path / "wrong", wrong))
    assert f"only 31 of 32 rows are those of {SITE}" in message


def damaged(states, others, fault):
    """Hidden states with a fault in each second token; the last one is right."""
    wrong = states.clone()
    half = range(len(states) % 2, len(states) - 1, 2)
    for token in half:
        wrong[token] = {
            "zeros": torch.zeros_like(states[token]),
            "one number": torch.full_like(states[token], 0.25),
            "another prompt": others[min(token, len(others) - 1)],
            "a layer off": states[token].roll(1, 0),
            "infinite": states[token] / 0,
            "noise": states[token] + 0.03 * torch.randn(states[token].shape),
        }[fault]
    return wrong


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("zeros", "is 0 in all features at token"),
        ("one number", "is 0.25 in all features at token"),
        ("infinite", r"contains -?inf at token"),
        ("another prompt", r"token \d at blocks.*precision explains"),
        ("a layer off", r"token \d at blocks.*precision explains"),
        ("noise", r"token \d at blocks.*precision explains"),
    ],
)
def test_wrong_tokens_in_a_mean_are_refused(planted, served, tmp_path, fault, words):
    """The layers are identified by the last token of each row; all are compared."""
    torch.manual_seed(0)
    of_verb = [
        (ids, states, served[(n + 1) % len(served)][1]) for n, (ids, states) in enumerate(served)
    ]
    files = [(ids, damaged(states, others, fault)) for ids, states, others in of_verb]
    folder = write_requests(tmp_path / "wrong", files)
    mean = "tokens.position={at: mean}"
    assert re.search(words, refusal(planted, tmp_path, folder, mean))
    right = write_requests(tmp_path / "right", served)
    assert set(imported(planted, tmp_path, right, mean).sites) == set(QUICK_SITES)


@pytest.mark.parametrize("scale", [1, 1.02])
def test_logits_are_compared_where_the_files_have_them(planted, served, tmp_path, scale):
    model, folder = load_model("mini"), tmp_path / "requests"
    folder.mkdir()
    for number, (ids, states) in enumerate(served):
        tokens = torch.as_tensor(ids)
        logits = scale * model(tokens[None])[0]
        tensors = {"token_ids": tokens, "hidden_states": states.contiguous(), "logits": logits}
        save_file(tensors, folder / f"{number}.safetensors")
    if scale == 1:
        assert imported(planted, tmp_path, folder).errors() == NO_ERRORS
    else:
        words = "the logits are not the network's: logits; times 1.02"
        assert words in refusal(planted, tmp_path, folder)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_verified_with_its_error(planted, served, tmp_path, dtype):
    half = [(ids, states.to(getattr(torch, dtype))) for ids, states in served]
    errors = imported(planted, tmp_path, write_requests(tmp_path / "half", half)).errors()
    assert set(errors) == set(QUICK_SITES)
    for site, error in errors.items():
        median, largest = error
        assert 1e-5 < median < largest < 0.01, site


def test_texts_without_a_request_are_counted_and_may_be_skipped(planted, served, tmp_path):
    folder = write_requests(tmp_path / "some", served[:90])
    message = refusal(planted, tmp_path, folder)
    assert "planted.yaml" not in message
    assert f"6 of 96 texts have no hidden states in {folder}, the first is 'The " in message
    skip = f"capture.requests={{folder: {folder}, missing: skip}}"
    assert imported(planted, tmp_path, folder, skip).n_rows == 90
    notes = prepare(load(planted, folder, skip)).design.dataset.notes
    assert "skipped: 6 of 96 texts have no hidden states" in notes


def test_negatives_of_a_monitor_are_read_from_requests_too(planted, own, requests):
    monitor = ("data.positive=red", "monitor.negatives=mixed.csv")
    (own.folder / "mixed.csv").write_text("text,group\n" + "".join(
        f"A {noun} was,{noun}\n" for noun in map(str, range(400))
    ))  # fmt: skip
    with pytest.raises(ProbekitError, match="400 of 400 texts have no hidden states"):
        own.run(*QUICK, f"capture.requests={requests}", *monitor)


def test_workers_read_requests_too(planted, requests, tmp_path):
    def crew(job, work, _missing, _on_rows):
        opened = job.open(work.store.folder)
        opened.compute(opened.missing_sites())

    experiment = load(planted, requests)
    shared = capture_only(experiment, cache_root=tmp_path / "shared", crew=crew)["task"].store
    assert files(shared.folder) == files(imported(planted, tmp_path, requests).folder)


def test_hidden_states_of_transformers_are_read(planted, tmp_path):
    """Its last hidden states come after the final norm, which is no site: it is left out."""
    model = GPT2LMHeadModel.from_pretrained(MINI, dtype=torch.float32).eval()
    folder, experiment = tmp_path / "transformers", planted.load(*QUICK)
    folder.mkdir()
    of_text = {ids.tobytes(): ids for ids in prepare(experiment).texts.ids}
    for number, ids in enumerate(of_text.values()):
        tokens = torch.from_numpy(ids)
        with torch.no_grad():
            states = model(tokens[None], output_hidden_states=True).hidden_states
        tensors = {f"hidden_states.{n}": one.contiguous() for n, one in enumerate(states)}
        save_file({"input_ids": tokens} | tensors, folder / f"{number}.safetensors")
    read = imported(planted, tmp_path, folder)
    assert set(read.sites) == set(QUICK_SITES)
    assert max(largest for _, largest in read.errors().values()) < 1e-5
    last = f"blocks.{model.config.n_layer - 1}.hook_resid_post"
    message = refusal(planted, tmp_path, folder, f"capture.sites=[{last}]")
    assert f"no layer in {folder} is {last}:\n  layer 0: blocks.0.hook_resid_pre" in message
    assert "\n  layer 1: blocks.0.hook_resid_post" in message


def test_a_site_with_several_names_is_read_by_each(planted, tmp_path):
    """Without position embeddings the embedding is the residual stream before the first block."""
    source, site = write_model(tmp_path / "model", *rows(["llama3"])), QUICK_SITES[0]
    settings = (f"model.source={source}", f"capture.sites=[{site}]")
    states = hidden_states(planted.load(*QUICK, *settings), planted.cache, [site])
    read = imported(planted, tmp_path, write_requests(tmp_path / "requests", states), *settings)
    assert read.errors() == {site: (0.0, 0.0)}


def test_the_right_shape_of_another_tensor_is_refused(planted, served, tmp_path):
    """Hidden states with an error that others make, and what the refusal calls them."""
    model, mlp = load_model("mini"), []
    for ids, _ in served:
        _, cache = model.run_with_cache(torch.as_tensor(ids)[None], ["blocks.3.hook_mlp_out"])
        mlp.append((ids, cache["blocks.3.hook_mlp_out"][0][:, None]))
    wrong = {
        "one residual connection is missing": mlp,
        "one position earlier": [(ids, states[:, 2:].roll(1, 0)) for ids, states in served],
        "blocks.0.hook_resid_post": [(ids, states[:, 1:2]) for ids, states in served],
        "no tensor": [(ids, torch.randn_like(states[:, 2:])) for ids, states in served],
        "all compared rows are equal": [
            (ids, served[0][1][:1, 2:].expand(len(ids), 1, -1)) for ids, _ in served
        ],
    }
    for number, (sentence, requests) in enumerate(wrong.items()):
        folder = write_requests(tmp_path / f"planted-{number}", requests)
        stated = f"capture.requests={{folder: {folder}, layers: {{0: {SITE}}}}}"
        message = refusal(planted, tmp_path, folder, f"capture.sites=[{SITE}]", stated)
        assert f"layer 0 is not {SITE}: " in message
        assert sentence in message
        message = refusal(planted, tmp_path, folder, f"capture.sites=[{SITE}]")
        assert f"no layer in {folder} is {SITE}:" in message
