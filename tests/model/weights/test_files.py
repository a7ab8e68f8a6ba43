"""Files of a model folder are those that were saved together, or are refused by name."""

import hashlib
import json
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from probekit.errors import CheckpointError
from probekit.model.families.gpt2 import GPT2, WEIGHTS, GPT2Config
from probekit.model.families.table import find_config
from probekit.model.text.byte_pairs import read_vocabulary
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.checkpoint import file_checks, open_checkpoint
from probekit.model.weights.files import json_object, read_json, read_verified
from probekit.model.weights.sources import MINI
from tests.damage import cut, flipped
from tests.model.reference import TINY
from tests.stored import each_line

FILES = ("config.json", "merges.txt", "model.safetensors", "vocab.json")
UNVERIFIED = "nothing: it has no digest"


def write_small_vocabulary(folder):
    """Write the vocabulary of mini with its first merges only, so that it is quick to read."""
    ids = json.loads((MINI / "vocab.json").read_text())
    merges = (MINI / "merges.txt").read_text().split("\n")[:40]
    made = {"".join(line.split(" ")) for line in merges if not line.startswith("#")}
    kept = {t: i for t, i in ids.items() if len(t) == 1 or t in made or t == "<|endoftext|>"}
    (folder / "vocab.json").write_text(json.dumps(kept, ensure_ascii=False))
    (folder / "merges.txt").write_text("\n".join(merges))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder that a model and a tokenizer were saved into."""
    small = tmp_path_factory.mktemp("vocabulary")
    write_small_vocabulary(small)
    folder = tmp_path_factory.mktemp("saved")
    GPT2(TINY, seed=0).save_pretrained(folder)
    Tokenizer.from_pretrained(small).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


def load(folder):
    GPT2.from_pretrained(folder)
    Tokenizer.from_pretrained(folder)


READ = dict.fromkeys(("config.json", "digests.json"), GPT2Config.from_folder)
READ |= dict.fromkeys(("merges.txt", "vocab.json"), read_vocabulary)
READ["model.safetensors"] = partial(open_checkpoint, names=WEIGHTS)


@pytest.mark.parametrize("name", READ)
def test_a_changed_or_cut_file_is_refused(folder, name):
    content = (folder / name).read_bytes()
    for damaged in (*flipped(content, 100), *cut(content, 20), content + b" " * (name in FILES)):
        if damaged == content:
            continue
        (folder / name).write_bytes(damaged)
        with pytest.raises(CheckpointError, match=name):
            READ[name](folder)


def swap_ids(ids):
    ids["!"], ids["#"] = ids["#"], ids["!"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.json", lambda config: config.update(n_head=1)),
        ("config.json", lambda config: config.update(layer_norm_epsilon=1e-6)),
        ("vocab.json", swap_ids),
    ],
    ids=["heads", "epsilon", "two ids"],
)
def test_an_edit_that_fits_the_weights_is_refused_until_the_digests_are_deleted(
    folder, refused, name, change
):
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))
    refused(load, folder)
    (folder / "digests.json").unlink()
    load(folder)


@pytest.mark.parametrize("name", [*FILES, "digests.json"])
def test_a_file_of_another_model_is_refused(folder, tmp_path, refused, name):
    other = tmp_path / "other"
    GPT2(replace(TINY, layer_norm_epsilon=0.1), seed=1).save_pretrained(other)
    Tokenizer.from_pretrained("mini").save_pretrained(other)
    assert (other / name).read_bytes() != (folder / name).read_bytes()
    shutil.copy(other / name, folder)
    refused(load, folder)
    if name == "config.json":  # the first file that is written, so as left by a killed writer
        GPT2(TINY, seed=1).save_pretrained(folder)
        load(folder)


def test_what_was_compared_is_said(folder):
    assert file_checks(folder) == dict.fromkeys(FILES, "digests.json")
    (folder / "digests.json").unlink()  # as in folders that an older release has saved
    load(folder)
    assert file_checks(folder) == dict.fromkeys(FILES, UNVERIFIED) | {
        "model.safetensors": "checksum in the file"
    }


def test_a_vocabulary_that_was_copied_into_the_folder_is_not_said_to_be_verified(tmp_path):
    GPT2(TINY, seed=0).save_pretrained(tmp_path)
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(MINI / name, tmp_path)
    load(tmp_path)
    copied = dict.fromkeys(("merges.txt", "vocab.json"), UNVERIFIED)
    assert file_checks(tmp_path) == dict.fromkeys(FILES, "digests.json") | copied


def test_a_tokenizer_comes_back_as_it_was(tmp_path):
    mini = Tokenizer.from_pretrained("mini")
    mini.save_pretrained(tmp_path)
    assert Tokenizer.from_pretrained(tmp_path).digest == mini.digest
    for name in ("vocab.json", "merges.txt"):
        assert (tmp_path / name).read_bytes() == (MINI / name).read_bytes()


def test_a_vocabulary_that_would_not_be_read_is_not_saved(folder, tmp_path, refused):
    (tmp_path / "openai").mkdir()
    for name, other in (("vocab.json", "encoder.json"), ("merges.txt", "vocab.bpe")):
        shutil.copy(folder / name, tmp_path / "openai" / other)
    before = (folder / "digests.json").read_bytes()
    refused(Tokenizer.from_pretrained(tmp_path / "openai").save_pretrained, folder)
    assert (folder / "digests.json").read_bytes() == before


@pytest.mark.parametrize("content", ["[]", "{}", '{"files": []}', "null", '{"files": "x"}'])
def test_digests_of_another_form_are_refused(folder, content):
    (folder / "digests.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"digests\.json is damaged"):
        load(folder)


@pytest.mark.parametrize("algorithm", ["git", "sha256"])
def test_every_file_of_the_hub_s_cache_is_compared_with_its_name(tmp_path, algorithm):
    content = (MINI / "config.json").read_bytes()
    prefix = b"blob %d\0" % len(content)
    git, sha256 = hashlib.sha1(prefix + content), hashlib.sha256(content)
    name = (git if algorithm == "git" else sha256).hexdigest()
    blob, path = tmp_path / "blobs" / name, tmp_path / "config.json"
    blob.parent.mkdir()
    blob.write_bytes(content)
    path.symlink_to(blob)
    assert read_verified(path) == content
    assert GPT2Config.from_folder(tmp_path).n_layer == 6
    for damaged in (*flipped(content, 100), *cut(content, 20)):
        if damaged != content:
            blob.write_bytes(damaged)
            with pytest.raises(CheckpointError, match=r"config\.json.*does not match the hub's di"):
                GPT2Config.from_folder(tmp_path)


@each_line("content")
def test_what_is_no_json_object_is_refused(content, refused):
    refused(json_object, Path("a.json"), eval(content))


def test_pairs_of_surrogates_and_depth_are_allowed():
    assert json_object(Path("a.json"), rb'{"a": "\ud83d\ude00", "b": [[[{}]]]}')["a"] == "😀"


@pytest.mark.timeout(60)  # a read of a named pipe never ends
@pytest.mark.parametrize(
    "name",
    [
        *("config.json", "digests.json", "tokenizer.json", "tokenizer_config.json"),
        "chat_template.jinja",
    ],
)
def test_a_named_pipe_is_refused(name, tmp_path, refused):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    for read in (Tokenizer.from_pretrained, find_config)[: 1 + (name == "config.json")]:
        refused(read, tmp_path)


def test_a_device_a_folder_and_no_file_are_refused(tmp_path, refused):
    (tmp_path / "config.json").symlink_to("/dev/null")
    (tmp_path / "tokenizer.json").mkdir()
    for name in ("config.json", "tokenizer.json", "none.json"):
        refused(read_json, tmp_path / name)


def test_the_vocabulary_of_gpt2_has_the_same_reader(tmp_path):
    write_small_vocabulary(tmp_path)
    (tmp_path / "vocab.json").write_bytes(b'{"a": ' + b"9" * 5000 + b"}")
    with pytest.raises(CheckpointError, match=r"vocab\.json is not valid JSON"):
        Tokenizer.from_pretrained(tmp_path)
    write_small_vocabulary(tmp_path)
    (tmp_path / "merges.txt").write_bytes((tmp_path / "merges.txt").read_bytes() + b"\n\xff a")
    with pytest.raises(CheckpointError, match=r"merges\.txt is not UTF-8"):
        Tokenizer.from_pretrained(tmp_path)
