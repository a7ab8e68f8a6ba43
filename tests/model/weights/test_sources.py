"""Models fetched from a hub, which here is a server on this machine."""

import json
import shutil
import socket
from dataclasses import replace

import pytest
import torch
from huggingface_hub import constants

from probekit.errors import CheckpointError, MissingError
from probekit.hub import is_hub_reachable
from probekit.model.families.gpt2 import GPT2
from probekit.model.families.neox import NeoX
from probekit.model.families.table import load_model
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.hub import find_model
from probekit.model.weights.sources import MINI
from probekit.model.weights.state_dict import digest_weights
from tests.model.families.configurations import CONFIGURATIONS
from tests.model.hub import COMMIT, GATED, connect, serving
from tests.model.reference import TINY, reference_model
from tests.stored import each_line


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Folder of a local hub with models as org/name, and the list of requests."""
    (tmp_path / "hub").mkdir()
    with serving(tmp_path / "hub") as (address, asked):
        connect(monkeypatch, address, tmp_path / "cache")
        yield tmp_path / "hub", asked


@pytest.fixture
def model(hub):
    """The folder of org/name with shards and mini's vocabulary."""
    folder = hub[0] / "org" / "name"
    reference_model(TINY, torch.float32).save_pretrained(folder, max_shard_size="20KB")
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(MINI / name, folder)
    return folder


def test_a_model_in_shards_is_fetched_whole_and_once(hub, model):
    _, asked = hub
    (model / "README.md").write_text("")
    expected = GPT2.from_pretrained(model).state_dict()
    loaded = GPT2.from_pretrained("org/name").state_dict()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)
    shards = {path.name for path in model.glob("*.safetensors")}
    assert len(shards) > 2
    assert shards <= set(asked)
    assert "README.md" not in asked
    fetched = len(asked)
    GPT2.from_pretrained(f"org/name@{COMMIT}")
    assert len(asked) == fetched


def test_opt_is_fetched_with_the_vocabulary_that_it_has(hub):
    [row] = [row for row in CONFIGURATIONS if row.name == "opt"]
    folder = hub[0] / "org" / "opt"
    larger = replace(row, settings=dict(row.settings) | {"vocab_size": 8192})
    larger.reference().save_pretrained(folder)
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(MINI / name, folder)
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<|endoftext|>"}')
    model = load_model("org/opt")
    tokenizer, mini = (Tokenizer.from_pretrained(name) for name in ("org/opt", "mini"))
    ids, own = (one.encode("The keys", bos=True).ids for one in (tokenizer, mini))
    assert ids.tolist() == own.tolist()
    assert model(torch.from_numpy(ids)[None]).shape == (1, len(ids), 8192)


def test_a_revision_has_its_own_weights_and_folder(hub, monkeypatch, refused):
    rows = {row.name: row for row in CONFIGURATIONS}
    for revision, name in (("", "neox"), ("@step1000", "neox in sequence")):
        folder = hub[0] / "org" / f"pythia{revision}"
        spread = 0.2 if revision else 0.25  # other weights
        replace(rows[name], spread=spread).reference().save_pretrained(folder)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            (folder / file).write_text("{}")
    main, early = load_model("org/pythia"), load_model("org/pythia", revision="step1000")
    assert main.config.use_parallel_residual
    assert not early.config.use_parallel_residual
    assert find_model("org/pythia") != find_model("org/pythia@step1000")
    assert digest_weights(main) != digest_weights(early)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    again = NeoX.from_pretrained("org/pythia", revision="step1000")
    for name, tensor in early.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
    refused(load_model, "org/pythia", revision="step2000")


@each_line("call")
def test_models_and_revisions_that_do_not_exist_are_reported(model, refused, call):
    refused(eval, call, globals() | {"model": model})


def test_a_flipped_bit_in_the_cache_is_found(model):
    folder = find_model("org/name")
    blob = max(folder.glob("*.safetensors"), key=lambda path: path.stat().st_size).resolve()
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"does not match the hub's digest\. Delete"):
        GPT2.from_pretrained("org/name")


def test_a_flipped_bit_in_the_name_of_a_commit_is_found(model, monkeypatch, refused):
    folder = find_model("org/name")
    (folder.parents[1] / "refs" / "main").write_bytes(b"\xb0" + b"0" * 39)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused(find_model, "org/name")


def test_another_architecture_is_named_before_its_weights_are_fetched(hub, model, refused):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))
    refused(GPT2.from_pretrained, "org/name")
    assert hub[1] == ["config.json"]


def test_a_model_without_weights_raises_an_error_with_the_file_names(model, refused):
    for path in model.glob("model*"):
        path.unlink()
    refused(GPT2.from_pretrained, "org/name")


@pytest.mark.parametrize("token", [None, "hf_abc"])
def test_a_gated_model_names_its_page(model, monkeypatch, token):
    (model / GATED).touch()
    monkeypatch.setattr("huggingface_hub.utils._headers.get_token", lambda: token)
    with pytest.raises(MissingError, match=r"'org/name' is gated: .* Request it on .*/org/name,"):
        GPT2.from_pretrained("org/name")


@pytest.fixture
def closed_port(monkeypatch):
    """The address of a port of this machine that nobody listens on, and that no proxy reaches.

    A test fails where the hub's client waits before it tries again.
    """
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail(f"waits {seconds} s"))
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_an_unreachable_hub_is_reported_without_retries(hub, monkeypatch, closed_port):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", closed_port)
    with pytest.raises(MissingError, match="hub could not be reached"):
        find_model("org/name")
    assert hub[1] == []


def test_a_cached_model_needs_no_hub(model, monkeypatch, closed_port):
    folder = find_model("org/name")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", closed_port)
    assert find_model("org/name") == folder


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_with_a_proxy_the_proxy_must_be_reachable(hub, monkeypatch, closed_port, scheme):
    address = constants.ENDPOINT.removeprefix("http://")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", closed_port)
    assert not is_hub_reachable()
    monkeypatch.setenv("http_proxy", scheme + address)
    assert is_hub_reachable()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert not is_hub_reachable()


def test_an_adapter_on_the_hub_is_refused(model):
    load_model("org/name")
    (model / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"has adapter_config.json: an adapter"):
        load_model("org/name")
