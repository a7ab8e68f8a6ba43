"""Models fetched from a hub, which here is a server on this machine."""

import json
import shutil

import pytest
import torch

from probekit.errors import CheckpointError, MissingError
from probekit.model.gpt2 import GPT2
from probekit.model.weights.sources import MINI, find_model
from tests.model.hub import COMMIT, serving
from tests.model.reference import TINY, reference_model


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The folder of a hub whose models stand under org/name, and the list of what was fetched."""
    (tmp_path / "hub").mkdir()
    with serving(tmp_path / "hub") as (address, asked):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            address + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
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
    expected = GPT2.from_pretrained(model).state_dict()
    loaded = GPT2.from_pretrained("org/name").state_dict()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)
    shards = {path.name for path in model.glob("*.safetensors")}
    assert len(shards) > 2
    assert shards <= set(asked)
    assert "generation_config.json" not in asked
    fetched = len(asked)
    GPT2.from_pretrained(f"org/name@{COMMIT}")
    assert len(asked) == fetched


def test_a_flipped_bit_in_the_cache_is_found(model):
    folder = find_model("org/name")
    blob = max(folder.glob("*.safetensors"), key=lambda path: path.stat().st_size).resolve()
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"not the file that the hub gave\. Delete"):
        GPT2.from_pretrained("org/name")


def test_another_architecture_is_named_before_its_weights_are_fetched(hub, model):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))
    with pytest.raises(CheckpointError, match="model_type is 'llama'"):
        GPT2.from_pretrained("org/name")
    assert hub[1] == ["config.json"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("org/nothing", "The hub has no model 'org/nothing'"),
        ("org/name@v9", "has no revision 'v9'"),
    ],
)
def test_what_the_hub_has_not_is_said(model, source, message):
    with pytest.raises(MissingError, match=message):
        GPT2.from_pretrained(source)


def test_a_model_without_weights_says_which_files_are_looked_for(model):
    for path in model.glob("model*"):
        path.unlink()
    with pytest.raises(MissingError, match=r"has no model\.safetensors or .*pytorch_model\.bin"):
        GPT2.from_pretrained("org/name")
