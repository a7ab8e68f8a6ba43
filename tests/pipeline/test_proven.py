"""Networks that transformers computes: from an experiment to its page, and in commands."""

import re

import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoModelForCausalLM, GPTJConfig, GPTJForCausalLM, GraniteMoeConfig
from transformers import Qwen3_5TextConfig as Hybrid

from probekit import load_model, run, validate
from probekit.errors import DataError, UnknownNameError
from probekit.experiment.loader import load_any_experiment
from probekit.model.weights.sources import MINI
from probekit.pipeline.capture.captures import capture_only
from tests.pipeline.intervene.cause_experiment import write_experiment
from tests.pipeline.planted import QUICK, Planted
from tests.pipeline.serving import hidden_states, write_requests
from tests.pipeline.test_families import COMMANDS
from tests.pipeline.texts import text_of

SIZES = {
    "vocab_size": 8192,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
CONFIGS = {
    "mixture": lambda: GraniteMoeConfig(**SIZES, num_local_experts=4),
    "hybrid": lambda: Hybrid(
        **SIZES,
        head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
    ),
}
AT_NIGHT = ["mixture", pytest.param("hybrid", marks=pytest.mark.nightly)]


@pytest.fixture(scope="module", autouse=True)
def _proofs(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROBEKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", params=AT_NIGHT)
def folder(request, tmp_path_factory):
    """A model in a folder, with the vocabulary of the shipped one."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(CONFIGS[request.param]()).save_pretrained(folder)
    vocabulary = (str(MINI / name) for name in ("vocab.json", "merges.txt"))
    ByteLevelBPETokenizer(*vocabulary).save(str(folder / "tokenizer.json"))
    return folder


def test_an_experiment_with_interventions_has_its_page(folder, tmp_path):
    path = write_experiment(tmp_path, text_of("proven.yaml").replace("SOURCE", str(folder)))
    result = run(path, out=tmp_path / "runs", progress=False)
    network = load_model(folder)
    assert {"task", "random weights"} <= {*result.table["target"].str.replace("_", " ")}
    heads = result.table[result.table["head"].notna()]
    assert set(heads["site"].str.partition("[")[0]) == set(network.sites.expand("*.hook_z"))
    assert (result.folder / "causes" / "effects.csv").exists()
    page = (result.folder / "report.html").read_text(encoding="utf-8")
    assert "Network computed by transformers" in page
    assert f"{len(network.sites)} sites proven" in page
    assert "untrained weights drawn by the same version" in page
    again = run(path, out=tmp_path / "runs", progress=False)
    assert again.folder == result.folder


def test_of_the_default_sites_those_that_are_proven_are_probed(folder, tmp_path):
    yaml = text_of("proven.yaml").replace("SOURCE", str(folder))
    lines = [one for one in yaml.splitlines() if not one.startswith("capture:")]
    report = validate(load_any_experiment(write_experiment(tmp_path, "\n".join(lines))))
    assert report.n_sites == load_model(folder).config.n_layers + 1  # no site of the final norm


def test_sites_that_are_not_proven_are_refused_before_the_run(folder, tmp_path):
    yaml = text_of("proven.yaml").replace("SOURCE", str(folder))
    yaml = yaml.replace("blocks.*.hook_resid_post", "blocks.*.ln1.hook_scale")
    with pytest.raises(UnknownNameError, match=r"line 11: No site matches 'blocks.*.ln1"):
        run(write_experiment(tmp_path, yaml), out=tmp_path / "runs", progress=False)


def test_texts_whose_patterns_are_not_proven_are_refused_before_the_run(tmp_path):
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 256}
    GPTJForCausalLM(GPTJConfig(**SIZES | sizes)).save_pretrained(tmp_path / "model")
    vocabulary = (str(MINI / name) for name in ("vocab.json", "merges.txt"))
    ByteLevelBPETokenizer(*vocabulary).save(str(tmp_path / "model" / "tokenizer.json"))
    yaml = text_of("proven.yaml").replace("SOURCE", str(tmp_path / "model"))
    yaml = re.sub(r"(?s)capture:.*?\n|interventions:.*", "", yaml)
    with pytest.raises(UnknownNameError, match=r"line 12: Site .*hook_pattern. is not proven"):
        validate(load_any_experiment(write_experiment(tmp_path, yaml)))


def test_commands_on_a_model(folder, call, tmp_path):
    text = "The keys to the old cabinet are here."
    for command in COMMANDS:
        words = command.format(model=folder, folder=tmp_path).split()
        if words[0] == "attribution" and "Qwen3_5" in load_model(folder).config.TITLE:
            continue  # a gate follows its heads
        found = call(*words, text) if words[-1].startswith("--") else call(*words)
        assert found.code == 0, f"{command}: {found.stderr}"
        if words[0] in ("sites", "verify"):
            assert "sites proven" in found.stdout


def test_requests_of_a_network_without_a_family_are_verified(folder, tmp_path):
    """The engine that proves itself computes the rows that are compared."""
    planted = Planted(tmp_path)
    sites = [f"blocks.{layer}.hook_resid_post" for layer in (0, 1)]
    how = (*QUICK, f"model.source={folder}", f"capture.sites={sites}")
    files = hidden_states(planted.load(*how), planted.cache, sites)

    def imported(name, requests):
        place = write_requests(tmp_path / name, requests)
        settings = (*how, f"capture.requests={place}", "tokens.position={at: mean}")
        return capture_only(planted.load(*settings), cache_root=tmp_path / f"{name} cache")["task"]

    right = imported("right", [(ids, states.bfloat16()) for ids, states in files]).store
    assert set(right.sites) == set(sites)
    for _, states in files:
        states[:-1] = states[:-1].roll(1, 1)  # another layer, except at the last token
    with pytest.raises(DataError, match=r"blocks\.\d\.hook_resid_post is not the network's"):
        imported("wrong", files)
