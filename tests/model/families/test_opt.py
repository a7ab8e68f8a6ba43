"""OPT: the formula of each site, positions, the names of old checkpoints, and its tokenizer."""

import json
import shutil

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from probekit.errors import CheckpointError
from probekit.model.families.opt import OPTConfig
from probekit.model.families.table import config_of, from_transformers, load_model
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.sources import MINI
from tests.model.families.configurations import CONFIGURATIONS, by_day, rows

TOKENS = torch.tensor([[3, 14, 15, 92, 65, 35, 89]])


OPTS = [row for row in CONFIGURATIONS if row.model_type == "opt"]


@pytest.mark.parametrize("row", by_day(OPTS))
def test_sites_follow_their_formulas(row):
    theirs = row.reference(torch.float64)
    weights = theirs.model.decoder.state_dict()
    model = from_transformers(theirs)
    _, cache = model.run_with_cache(TOKENS)
    n_heads = model.config.n_heads

    def same(site, expected):
        torch.testing.assert_close(cache[site], expected, atol=1e-10, rtol=1e-10)

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(site, x, name):
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        same(f"{site}.hook_scale", scale)
        same(f"{site}.hook_normalized", centred / scale)
        return centred / scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    same("hook_embed", weights["embed_tokens.weight"][TOKENS])
    same("hook_pos_embed", weights["embed_positions.weight"][None, 2:9])
    resid = cache["hook_embed"] + cache["hook_pos_embed"]
    for layer in range(model.config.n_layers):
        block, own = f"blocks.{layer}", f"layers.{layer}"
        same(f"{block}.hook_resid_pre", resid)
        x = norm(f"{block}.ln1", resid, f"{own}.self_attn_layer_norm")
        for name in "qkv":
            heads = linear(x, f"{own}.self_attn.{name}_proj").unflatten(-1, (n_heads, -1))
            same(f"{block}.attn.hook_{name}", heads)
        q, k, v = (cache[f"{block}.attn.hook_{name}"].transpose(1, 2) for name in "qkv")
        hidden = torch.ones(7, 7, dtype=torch.bool).triu(1)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
        same(f"{block}.attn.hook_attn_scores", scores)
        same(f"{block}.attn.hook_pattern", scores.softmax(-1))
        same(f"{block}.attn.hook_z", (scores.softmax(-1) @ v).transpose(1, 2))
        z = cache[f"{block}.attn.hook_z"].flatten(2)
        same(f"{block}.hook_attn_out", linear(z, f"{own}.self_attn.out_proj"))
        resid = resid + cache[f"{block}.hook_attn_out"]
        same(f"{block}.hook_resid_mid", resid)
        x = norm(f"{block}.ln2", resid, f"{own}.final_layer_norm")
        same(f"{block}.mlp.hook_pre", linear(x, f"{own}.fc1"))
        same(f"{block}.mlp.hook_post", cache[f"{block}.mlp.hook_pre"].clamp(min=0))
        same(f"{block}.hook_mlp_out", linear(cache[f"{block}.mlp.hook_post"], f"{own}.fc2"))
        resid = resid + cache[f"{block}.hook_mlp_out"]
        same(f"{block}.hook_resid_post", resid)
    norm("ln_final", resid, "final_layer_norm")


def test_the_first_two_rows_of_positions_are_not_read():
    theirs = rows(["opt"])[0].reference()
    model = from_transformers(theirs)
    logits = model(TOKENS)
    model.get_parameter("decoder.embed_positions.weight")[:2] = torch.nan
    assert torch.equal(model(TOKENS), logits)
    assert model.position_embedding.shape == (160, 24)
    last = torch.ones(1, 160, dtype=torch.int64)  # the last position is read too
    torch.testing.assert_close(model(last), theirs(last).logits, atol=5e-5, rtol=0)


def test_checkpoints_of_the_body_alone_are_read(tmp_path):
    rows(["opt"])[0].reference().save_pretrained(tmp_path)
    expected, path = load_model(tmp_path)(TOKENS), tmp_path / "model.safetensors"
    tensors = {name.removeprefix("model."): one for name, one in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})
    assert torch.equal(load_model(tmp_path)(TOKENS), expected)


def test_a_config_survives_its_json_and_defaults_are_those_of_the_hub():
    assert config_of({"model_type": "opt"}) == OPTConfig()
    larger = config_of({"model_type": "opt", "ffn_dim": 8, "tie_word_embeddings": False})
    assert config_of(json.loads(json.dumps(larger.to_hub()))) == larger


def test_the_vocabulary_is_read_as_published(tmp_path):
    """OPT has no tokenizer.json: the files are those of GPT-2, with other ids and settings."""
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(MINI / name, tmp_path)
    token = {"__type": "AddedToken", "content": "<|endoftext|>"}
    settings = {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "bos_token": token}
    settings |= {"unk_token": token, "eos_token": token, "add_prefix_space": False}
    settings |= {"errors": "e", "pad_token": None}  # the first is a token, but not a special one
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text(json.dumps(OPTConfig(vocab_size=8192).to_hub()))
    own, gpt2 = Tokenizer.from_pretrained(tmp_path), Tokenizer.from_pretrained("mini")
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("The keys, été — it's 3 o'clock \n\n ok 你好", "a <|endoftext|> ## #version"):
        found, expected = own.encode(text, bos=True), gpt2.encode(text, bos=True)
        assert found.ids.tolist() == expected.ids.tolist()
        assert found.offsets.tolist() == expected.offsets.tolist()
        if "<|" not in text:  # which is a special token there
            assert theirs(text)["input_ids"] == found.ids.tolist()
    assert own.special == gpt2.special
    own.save_pretrained(tmp_path / "copy")
    assert Tokenizer.from_pretrained(tmp_path / "copy").encode("The").ids[0] == own.bos_id
    (tmp_path / "merges.txt").write_bytes((tmp_path / "merges.txt").read_bytes() + b"\xff a")
    with pytest.raises(CheckpointError, match="not UTF-8"):
        Tokenizer.from_pretrained(tmp_path)
