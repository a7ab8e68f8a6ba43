"""The files of an untrusted folder are JSON objects in regular files, or refused by name."""

import os
from pathlib import Path

import pytest

from probekit.errors import CheckpointError, MissingError
from probekit.model.families.table import find_config
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.files import json_object, read_json
from tests.model.weights.test_digests import write_small_vocabulary


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"\xff", "not valid JSON: 'utf-8' codec"),
        ('{"a": 1}'.encode("utf-16"), "not valid JSON"),
        (b"[]", "must contain a JSON object, not a list"),
        (b"null", "not a NoneType"),
        (b"[" * 100_000, "not valid JSON: maximum recursion"),
        (b'{"a":' * 200 + b"1" + b"}" * 200, "more than 100 lists and objects"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON: Exceeds the limit"),
        (rb'{"a": "\ud800"}', "surrogates not allowed"),
        (rb'{"\uD800": 1}', "surrogates not allowed"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_json_object_is_refused(content, message):
    with pytest.raises(CheckpointError, match=rf"^a\.json .*{message}"):
        json_object(Path("a.json"), content)


def test_pairs_of_surrogates_and_depth_are_allowed():
    assert json_object(Path("a.json"), rb'{"a": "\ud83d\ude00", "b": [[[{}]]]}')["a"] == "😀"


@pytest.mark.timeout(60)  # a read of a named pipe never ends
@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "digests.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ],
)
def test_a_named_pipe_is_refused(name, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError, match=f"{name} is not a regular file"):
        Tokenizer.from_pretrained(tmp_path)
    if name == "config.json":
        with pytest.raises(CheckpointError, match=f"{name} is not a regular file"):
            find_config(tmp_path)


def test_a_device_and_a_folder_are_refused(tmp_path):
    (tmp_path / "config.json").symlink_to("/dev/null")
    (tmp_path / "tokenizer.json").mkdir()
    for name in ("config.json", "tokenizer.json"):
        with pytest.raises(CheckpointError, match=f"{name} is not a regular file"):
            read_json(tmp_path / name)
    with pytest.raises(MissingError, match="cannot be read: No such file"):
        read_json(tmp_path / "none.json")


def test_the_vocabulary_of_gpt2_has_the_same_reader(tmp_path):
    write_small_vocabulary(tmp_path)
    (tmp_path / "vocab.json").write_bytes(b'{"a": ' + b"9" * 5000 + b"}")
    with pytest.raises(CheckpointError, match=r"vocab\.json is not valid JSON"):
        Tokenizer.from_pretrained(tmp_path)
