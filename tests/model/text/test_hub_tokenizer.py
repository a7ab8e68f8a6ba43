"""Tokenizers of tokenizer.json equal those of transformers, or their file is refused by key."""

import json
import shutil
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Encoder
from transformers import PreTrainedTokenizerFast

from probekit.errors import CheckpointError, ProbekitError
from probekit.model.text.hub_tokenizer import HubTokenizer
from probekit.model.text.tokenizer import Tokenizer
from tests.stored import each_row

CHAT_ML = (
    "{% for m in messages %}<|begin|>{{ m['role'] + '\n' + m['content'] + '<|end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)
TEXTS = [
    "The keys to the cabinet",
    " two  spaces and\ttabs\n\n",
    "Größe ✓ 東京 👩‍🚀",
    "1234567 don't",
    "</s> and <|end|> are text",
    "",
]


def stored(name):
    """A tokenizer of 330 tokens, trained by the library on two sentences."""
    return Encoder.from_file(str(Path(__file__).with_name("tokenizers") / f"{name}.json"))


def byte_level():
    """A tokenizer like that of Llama 3 and Qwen, with its end tokens."""
    return stored("byte_level"), "<|begin|>", "<|end|>"


def sentence_piece():
    """A tokenizer like that of Llama 2 and Mistral, with its end tokens."""
    return stored("sentence_piece"), "<s>", "</s>"


def write(folder, template, make=byte_level, **entries):
    encoder, bos, eos = make()
    made = PreTrainedTokenizerFast(tokenizer_object=encoder, bos_token=bos, eos_token=eos)
    made.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"chat_template": template} | entries
    path.write_text(json.dumps(settings))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


@pytest.fixture(scope="module", params=[byte_level, sentence_piece], ids=lambda make: make.__name__)
def folder(request, tmp_path_factory):
    return write(tmp_path_factory.mktemp("tokenizer"), None, request.param)


@pytest.fixture(scope="module")
def reference(folder):
    return PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return Tokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_the_reference(tokenizer, reference, text):
    expected = reference(text, split_special_tokens=True)["input_ids"]
    assert tokenizer.encode(text, bos=True).ids.tolist() == expected
    assert tokenizer.encode(text, bos=False).ids.tolist() == expected[1:]


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_cover_the_text(tokenizer, text):
    tokens = tokenizer.encode(text, bos=False)
    start = 0
    for first, end in tokens.offsets.tolist():
        assert first <= start <= end  # tokens with bytes of one character share it
        start = end
    assert start == len(text)
    assert tokenizer.decode(tokens.ids) in (text, f" {text}")  # SentencePiece begins with a space


def test_special_tokens_and_ends(tokenizer, reference):
    assert tokenizer.bos_id == reference.bos_token_id
    assert tokenizer.special[reference.eos_token] == reference.eos_token_id
    assert reference.eos_token in tokenizer.ends_of_text
    assert not set(tokenizer.ordinary_ids) & set(tokenizer.special.values())
    assert tokenizer.n_ids == len(reference)
    assert tokenizer.strings([tokenizer.bos_id]) == [reference.bos_token]


def test_ids_beyond_the_tokens_have_a_name_and_others_are_refused(tokenizer, refused):
    assert tokenizer.strings([tokenizer.n_ids]) == [f"<unused {tokenizer.n_ids}>"]
    refused(tokenizer.strings, [-1])
    refused(tokenizer.encode, "a\ud800", bos=False)


def test_a_saved_tokenizer_is_the_same(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    again = HubTokenizer.from_folder(tmp_path)
    assert again.digest == tokenizer.digest
    assert (again.encode(TEXTS[2], bos=True).ids == tokenizer.encode(TEXTS[2], bos=True).ids).all()


def test_a_model_without_bos_refuses_it(folder, tmp_path, refused):
    """Qwen: config.json has a bos_token_id, but the tokenizer has no such token."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    settings = json.loads((copy / "tokenizer_config.json").read_text()) | {"bos_token": None}
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer.from_pretrained(copy)
    refused(tokenizer.encode, "The keys", bos=True)
    assert len(tokenizer.encode("The keys", bos=False).ids)


def test_what_cannot_be_read_is_refused(folder, tmp_path, refused):
    shutil.copy(folder / "config.json", tmp_path)
    refused(Tokenizer.from_pretrained, tmp_path)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"] = {"type": "Unigram", "vocab": [], "unk_id": None}
    for text in (json.dumps(content), "{"):
        (tmp_path / "tokenizer.json").write_text(text)
        refused(Tokenizer.from_pretrained, tmp_path)


CONFIG = {"bos_token_id": 0, "eos_token_id": [1]}


@pytest.fixture(scope="module", params=[byte_level, sentence_piece], ids=lambda make: make.__name__)
def contents(request):
    """The files of a tokenizer."""
    made, bos, eos = request.param()
    encoder = json.loads(made.to_str())
    settings = {"bos_token": bos, "eos_token": {"content": eos}, "chat_template": CHAT_ML}
    files = {"tokenizer.json": encoder, "tokenizer_config.json": settings, "config.json": CONFIG}
    return files | {"generation_config.json": {"eos_token_id": 1}}


def use(contents):
    """Read a tokenizer, and use all that reads its files."""
    files = {name: json.dumps(content).encode() for name, content in contents.items()}
    tokenizer = HubTokenizer(files)
    _ = tokenizer.digest, tokenizer.special, tokenizer.ends_of_text, tokenizer.n_ids
    tokens = tokenizer.encode("The keys é 😀", bos=False)
    tokenizer.strings(tokens.ids)
    tokenizer.encode_chat("The keys")
    return tokenizer


def damaged(contents, name, keys, value):
    """The files with another value of an entry."""
    contents = deepcopy(contents)
    *outer, last = keys
    place = contents[name]
    for key in outer:
        place = place[key]
    place[last] = value
    return contents


def test_the_files_can_be_used(contents):
    assert use(contents).ends_of_text[0] in ("<|end|>", "</s>")


@pytest.mark.parametrize("ids", [0, [1, 0]])
def test_ends_of_a_turn_are_those_of_generation_config_too(contents, tmp_path, ids):
    """Phi 3 and Gemma 2 list the token at the end of a turn there only."""
    found = use(contents | {"generation_config.json": {"eos_token_id": ids}})
    assert found.strings([0])[0] not in use(contents).ends_of_text
    assert found.ends_of_text[-1] == found.strings([0])[0]
    found.save_pretrained(tmp_path)
    assert HubTokenizer.from_folder(tmp_path).ends_of_text[-1] == found.ends_of_text[-1]


def test_tokens_drawn_at_random_are_refused(contents):
    use(damaged(contents, "tokenizer.json", ["model", "dropout"], 0.0))
    with pytest.raises(CheckpointError, match=r"^tokenizer\.json: dropout .* Set it to null"):
        use(damaged(contents, "tokenizer.json", ["model", "dropout"], 0.5))


@each_row("name, keys, value")
def test_the_message_has_file_and_key(contents, name, keys, value):
    with pytest.raises(CheckpointError, match=rf"^{name}\b.*\b({'|'.join(keys)})\b"):
        use(damaged(contents, name, keys, value))


def test_a_pattern_that_the_library_cannot_match(contents):
    splitter = {"type": "Split", "pattern": {"Regex": "(?=(a+)+b)"}, "behavior": "Isolated"}
    files = damaged(contents, "tokenizer.json", ["pre_tokenizer"], splitter | {"invert": False})
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
        use(damaged(contents, "tokenizer.json", [key], step))


def test_a_token_that_only_looks_like_a_byte(contents):
    vocabulary = contents["tokenizer.json"]["model"]["vocab"]
    files = damaged(contents, "tokenizer.json", ["model", "vocab", "<0xZZ>"], len(vocabulary))
    assert use(files).strings([len(vocabulary)]) == ["<0xZZ>"]


VALUES = [None, True, -1, 10**30, 10**400, 1e308, "", "x", "\ud800", [], [None], {}, {"a": [{}]}]


def places(value, keys=()):
    """Yield the keys of all entries inside a value, at most three in each list or object."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(inner)[: 3 if keys else None]:
        yield (*keys, key)
        if isinstance(item, dict | list):
            yield from places(item, (*keys, key))


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
            use(damaged(contents, *pairs[number]))
        except ProbekitError:
            n_refused += 1
    assert n_refused > 100
