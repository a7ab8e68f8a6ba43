"""Wrong values in the files of a tokenizer are errors of ours, with the file and the key."""

import json
from copy import deepcopy

import numpy as np
import pytest

from probekit.errors import CheckpointError, ProbekitError
from probekit.model.text.hub_tokenizer import HubTokenizer
from tests.model.text.test_chat import CHAT_ML
from tests.model.text.test_hub_tokenizer import byte_level, sentence_piece

SETTINGS = {"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}, "chat_template": CHAT_ML}
CONFIG = {"bos_token_id": 0, "eos_token_id": [1]}


@pytest.fixture(scope="module", params=[byte_level, sentence_piece], ids=lambda make: make.__name__)
def contents(request):
    """The three files of a tokenizer."""
    encoder = json.loads(request.param()[0].to_str())
    return {"tokenizer.json": encoder, "tokenizer_config.json": SETTINGS, "config.json": CONFIG}


def use(contents):
    """Read a tokenizer, and use all that reads its files."""
    files = {name: json.dumps(content).encode() for name, content in contents.items()}
    tokenizer = HubTokenizer(files)
    _ = tokenizer.digest, tokenizer.special, tokenizer.ends_of_text, tokenizer.n_ids
    tokens = tokenizer.encode("The keys é 😀", bos=False)
    tokenizer.strings(tokens.ids)
    tokenizer.encode_chat("The keys")
    return tokenizer


def changed(contents, name, keys, value):
    """The files with another value of an entry."""
    contents = deepcopy(contents)
    *outer, last = keys
    place = contents[name]
    for key in outer:
        place = place[key]
    place[last] = value
    return contents


def test_the_files_can_be_used(contents):
    assert use(contents).ends_of_text[0] == "<|end|>"


@pytest.mark.parametrize(
    ("name", "keys", "value"),
    [
        *(("tokenizer_config.json", ["bos_token"], bos) for bos in (5, [], [{}], {"content": 7})),
        ("tokenizer_config.json", ["eos_token"], {}),
        ("tokenizer_config.json", ["chat_template"], [None]),
        ("tokenizer_config.json", ["chat_template"], [{"name": "default", "template": 5}]),
        ("config.json", ["eos_token_id"], -1),
        ("config.json", ["eos_token_id"], [10**30]),
        ("config.json", ["bos_token_id"], True),
        *(("tokenizer.json", ["decoder"], decoder) for decoder in ([], "x", 5)),
        *(("tokenizer.json", ["model"], model) for model in ("BPE", None, [])),
        ("tokenizer.json", ["model", "vocab"], {}),
        ("tokenizer.json", ["model", "vocab"], ["x"]),
        ("tokenizer.json", ["model", "continuing_subword_prefix"], "BPE"),  # the library panics
        ("tokenizer.json", ["added_tokens"], 5),
    ],
)
def test_the_message_has_file_and_key(contents, name, keys, value):
    with pytest.raises(CheckpointError, match=rf"^{name}\b.*\b({'|'.join(keys)})\b"):
        use(changed(contents, name, keys, value))


def test_a_pattern_that_the_library_cannot_match(contents):
    splitter = {"type": "Split", "pattern": {"Regex": "(?=(a+)+b)"}, "behavior": "Isolated"}
    files = changed(contents, "tokenizer.json", ["pre_tokenizer"], splitter | {"invert": False})
    with pytest.raises(CheckpointError, match=r"^tokenizer\.json cannot tokenize the text 'aaa"):
        use(files).encode("a" * 30 + "c", bos=False)


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


@pytest.mark.parametrize(
    ("key", "step"),
    [
        ("normalizer", {"type": "Sequence", "normalizers": [DOUBLE] * 40}),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "ByteLevel"}] * 40}),
        ("normalizer", {"type": "Prepend", "prepend": "a" * 10**6}),
        ("normalizer", DOUBLE | {"content": "a" * 10**6}),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [BYTES] * 40}),
        # its first four bytes say how much the library allocates
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "/////wAAAAA="}),
    ],
)
def test_a_step_that_would_fill_the_memory(contents, key, step):
    """The library aborts the process, so this test has no weaker form of failing."""
    with pytest.raises(CheckpointError, match=r"^tokenizer\.json.*(longer than 100|Precompiled)"):
        use(changed(contents, "tokenizer.json", [key], step))


def test_a_token_that_only_looks_like_a_byte(contents):
    vocabulary = contents["tokenizer.json"]["model"]["vocab"]
    files = changed(contents, "tokenizer.json", ["model", "vocab", "<0xZZ>"], len(vocabulary))
    assert use(files).strings([len(vocabulary)]) == ["<0xZZ>"]


VALUES = [None, True, -1, 10**30, 10**400, 1e308, "", "x", "\ud800", [], [None], {}, {"a": [{}]}]


def places(value, keys=()):
    """Return the keys of all entries inside a value, at most three in each list or object."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    few = [(key, item) for number, (key, item) in enumerate(inner) if keys == () or number < 3]
    nested = [
        one
        for key, item in few
        if isinstance(item, dict | list)
        for one in places(item, (*keys, key))
    ]
    return [*((*keys, key) for key, _ in few), *nested]


def test_any_wrong_value_is_an_error_of_ours(contents):
    """A sample of all entries, each replaced by values of other types and by extremes."""
    rng = np.random.default_rng(0)
    pairs = [
        (name, keys, value)
        for name, content in contents.items()
        for keys in places(content)
        for value in VALUES
    ]
    n_refused = 0
    for number in rng.permutation(len(pairs))[:300]:
        try:
            use(changed(contents, *pairs[number]))
        except ProbekitError:
            n_refused += 1
    assert n_refused > 100
