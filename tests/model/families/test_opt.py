"""OPT: the formula of each site, positions, the names of old checkpoints, and its tokenizer."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from probekit.errors import CheckpointError
from probekit.model.families.from_transformers import from_transformers
from probekit.model.families.opt import OPTConfig
from probekit.model.families.table import load_model
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.sources import MINI
from tests.model.families.configurations import rows

TOKENS = torch.tensor([[3, 14, 15, 92, 65, 35, 89]])


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
