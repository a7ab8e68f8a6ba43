"""Files next to a vocabulary: ids equal those of transformers, or the key is refused by name."""

import json
import shutil

import pytest
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Encoder
from transformers import AutoTokenizer, GPT2Tokenizer, PreTrainedTokenizerFast

from probekit.errors import CheckpointError, DataError
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.sources import MINI
from tests.stored import each_row

TEXTS = ["The keys", " a  b\n", "Größe <new> <|endoftext|> <extra>x", "", "e\u0301 日本 👍🏽"]
MERGES = [tuple(line.split(" ")) for line in (MINI / "merges.txt").read_text().splitlines()[1:]]
IDS = json.loads((MINI / "vocab.json").read_text())
N_IDS = max(IDS.values()) + 1
FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


def of_merges(merges=MERGES, *added, space=False, processor=None):
    """A byte-level tokenizer with the vocabulary of mini."""
    made = Encoder(models.BPE(IDS, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    made.add_special_tokens(["<|endoftext|>"])
    made.add_tokens([*added])
    if processor is not None:
        made.post_processor = processor
    return made


def described(**change):
    """Settings that describe the token of mini."""
    token = {"content": "<|endoftext|>", "special": True, **FLAGS, **change}
    return {"added_tokens_decoder": {"0": token}}


def write(folder, encoder=None, **files):
    """Write a folder of GPT-2: mini's pair, a tokenizer.json, and other files by their stem."""
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(MINI / name, folder)
    if encoder is not None:
        encoder.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def template(before="", after=""):
    """The post-processor that puts tokens before and after a text."""
    tokens = [("<|endoftext|>", 0), ("<new>", N_IDS)]
    single = f"{before} $A {after}".strip()
    return processors.TemplateProcessing(single=single, special_tokens=tokens)


@each_row("encoder, settings")
def test_a_tokenizer_json_of_gpt2_is_read_as_by_transformers(tmp_path, encoder, settings):
    folder = write(tmp_path, encoder, tokenizer_config=settings)
    tokenizer = Tokenizer.from_pretrained(folder)
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    for text in TEXTS:
        expected = reference(text, split_special_tokens=True)["input_ids"]
        assert tokenizer.encode(text).ids.tolist() == expected
    tokenizer.save_pretrained(tmp_path / "saved")
    assert Tokenizer.from_pretrained(tmp_path / "saved").digest == tokenizer.digest


@pytest.mark.parametrize("change", [{flag: True} for flag in FLAGS] + [{"special": False}])
@pytest.mark.parametrize("of", ["tokenizer.json", "decoder", "key"])
def test_flags_of_added_tokens_are_those_of_transformers(tmp_path, change, of):
    """Of a token in tokenizer.json, of one that only the decoder has, and of a named one."""
    settings = described(**change)
    encoder = of_merges()
    if of != "tokenizer.json":
        encoder = Encoder.from_str(json.dumps(json.loads(encoder.to_str()) | {"added_tokens": []}))
    if of == "key":
        settings = {"bos_token": {"__type": "AddedToken", **settings["added_tokens_decoder"]["0"]}}
    folder = write(tmp_path, encoder, tokenizer_config=settings)
    both = Tokenizer, PreTrainedTokenizerFast
    tokenizer, reference = (one.from_pretrained(folder) for one in both)
    for text in ("a <|endoftext|> b", "x<|endoftext|>y", "<|endoftext|>"):
        for mode in ("tokens", "text"):
            read = tokenizer.encode(text, bos=False, special_tokens=mode)
            expected = reference(text, split_special_tokens=mode == "text")["input_ids"]
            assert read.ids.tolist() == expected


@pytest.mark.parametrize(
    "settings", [{}, dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<s>")]
)
def test_of_a_pair_only_named_tokens_are_special(tmp_path, settings):
    folder = write(tmp_path, tokenizer_config=settings)
    ids = IDS | {"<s>": N_IDS, "<t>": N_IDS + 1}
    (folder / "vocab.json").write_text(json.dumps(ids))
    tokenizer, reference = (one.from_pretrained(folder) for one in (Tokenizer, GPT2Tokenizer))
    for text in ("a <s> b", "x<t>y", "<|endoftext|>"):
        read = tokenizer.encode(text, bos=False, special_tokens="tokens").ids.tolist()
        assert read == reference(text)["input_ids"]


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
DIGITS = [{"type": "Digits", "individual_digits": True}, BYTES | {"use_regex": True}]
STEPS = {
    "own": {},
    "NFC": {"normalizer": {"type": "NFC"}},
    "NFKC": {"normalizer": {"type": "NFKC"}},
    "trimmed": {"pre_tokenizer": BYTES | {"trim_offsets": False}},
    "space": {"pre_tokenizer": BYTES | {"add_prefix_space": True}},
    "digits": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": DIGITS}},
}
CLASSES = ["GPT2Tokenizer", "GPTNeoXTokenizerFast", "Qwen2Tokenizer", "LlamaTokenizer", None]


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("model_type", ["gpt2", "llama", "qwen2", "phi3", "gemma3", "qwen3_moe"])
def test_ids_are_those_of_the_class_that_transformers_chooses(tmp_path, model_type, steps):
    encoder, n_read = json.loads(of_merges().to_str()) | STEPS[steps], 0
    for name in CLASSES:
        folder = write(tmp_path, tokenizer_config={"tokenizer_class": name} if name else {})
        (folder / "tokenizer.json").write_text(json.dumps(encoder))
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
        try:
            tokenizer = Tokenizer.from_pretrained(folder)
        except CheckpointError:
            continue
        n_read += 1
        reference = AutoTokenizer.from_pretrained(folder)
        for text in (*TEXTS, "1234 don't cafe\u0301"):
            expected = reference(text, split_special_tokens=True)["input_ids"]
            assert tokenizer.encode(text, bos=False).ids.tolist() == expected, (name, text)
    # Phi-3 always reads the file, and Llama does unless the class is another one.
    least = {"phi3": 5, "llama": 2}.get(model_type, 0)
    assert n_read >= max(least, steps in ("own", "trimmed") and model_type == "gpt2")


def test_a_class_that_builds_other_steps_is_named(tmp_path, refused):
    for name in ("GPTNeoXTokenizerFast", "OtherTokenizer"):
        folder = write(tmp_path, of_merges(), tokenizer_config={"tokenizer_class": name})
        (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
        refused(Tokenizer.from_pretrained, folder)


@pytest.mark.parametrize("adds", [True, False, None])
def test_a_pair_of_gpt2_has_the_tokens_that_settings_name(tmp_path, adds):
    """GPT-2 without tokenizer.json, with another token at the beginning."""
    bos = {"__type": "AddedToken", "content": "<s>", **FLAGS}
    settings = {"bos_token": bos, "eos_token": "</s>", "add_bos_token": adds}
    folder = write(tmp_path, tokenizer_config=settings)
    ids = IDS | {"<s>": N_IDS, "</s>": N_IDS + 1}
    (folder / "vocab.json").write_text(json.dumps(ids))
    tokenizer = Tokenizer.from_pretrained(folder)
    reference = GPT2Tokenizer.from_pretrained(folder)
    assert (tokenizer.bos_id, tokenizer.own_bos) == (N_IDS, bool(adds))
    assert tokenizer.ends_of_text == ("</s>",)
    expected = reference("The <s> keys", split_special_tokens=True)["input_ids"]
    assert tokenizer.encode("The <s> keys").ids.tolist() == expected
    tokenizer.save_pretrained(tmp_path / "saved")
    assert Tokenizer.from_pretrained(tmp_path / "saved").bos_id == N_IDS


@each_row("encoder, files")
def test_what_would_change_ids_is_refused_by_name(tmp_path, refused, encoder, files):
    refused(Tokenizer.from_pretrained, write(tmp_path, encoder, **files))


@each_row("processor, own")
def test_beginning_of_text_by_default_as_the_tokenizer_does(tmp_path, processor, own, refused):
    named = {"bos_token": "<|endoftext|>"}
    encoder = of_merges(MERGES, AddedToken("<new>", special=True), processor=processor)
    tokenizer = Tokenizer.from_pretrained(write(tmp_path, encoder, tokenizer_config=named))
    assert tokenizer.own_bos is own
    plain, begun = (tokenizer.encode("The keys", bos=bos).ids.tolist() for bos in (False, True))
    if own is None:
        refused(tokenizer.encode, "The keys")
        assert tokenizer.doubt_of_bos(True) == ""
    else:
        assert tokenizer.encode("The keys").ids.tolist() == (begun if own else plain)
        assert tokenizer.doubt_of_bos(own) == tokenizer.doubt_of_bos("auto") == ""
        assert tokenizer.doubt_of_bos(not own)


@pytest.mark.parametrize("bos", ["Auto", None, 2])
def test_another_choice_is_refused(refused, bos):
    refused(Tokenizer.from_pretrained("mini").encode, "The keys", bos=bos)


SPECIAL = ["<|endoftext|>x", "a<new> <new>", "<|endof", "Größe<new>"]


@pytest.mark.parametrize("source", ["pair", "tokenizer.json", "split"])
@pytest.mark.parametrize("text", [*TEXTS, *SPECIAL])
def test_special_tokens_that_are_written_out_are_characters_or_tokens(tmp_path, source, text):
    encoder = of_merges(MERGES, AddedToken("<new>", special=True))
    settings = {"bos_token": "<new>", "split_special_tokens": source == "split"}
    folder = write(tmp_path, encoder, tokenizer_config=settings)
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    if source == "pair":
        (folder / "tokenizer.json").unlink()
        (folder / "vocab.json").write_text(json.dumps(IDS | {"<new>": N_IDS}))
    tokenizer = Tokenizer.from_pretrained(folder)
    read = tokenizer.encode(text, bos=False, special_tokens="tokens")
    assert read.ids.tolist() == reference(text)["input_ids"]
    plain = tokenizer.encode(text, bos=False)
    assert plain.ids.tolist() == reference(text, split_special_tokens=True)["input_ids"]
    for tokens in (read, plain):
        covered = {place for first, end in tokens.offsets.tolist() for place in range(first, end)}
        assert covered == set(range(len(text)))
        names = zip(tokenizer.strings(tokens.ids), tokens.offsets.tolist(), strict=True)
        assert all(text[first:end] == name for name, (first, end) in names if "<0x" not in name)


def test_the_beginning_of_text_is_not_read_twice(tmp_path):
    encoder = of_merges(MERGES, AddedToken("<new>", special=True))
    folder = write(tmp_path, encoder, tokenizer_config={"bos_token": "<new>"})
    tokenizer, text = Tokenizer.from_pretrained(folder), "<new>Keys"
    with pytest.raises(DataError, match="'<new>Keys' begins with the beginning-of-text token"):
        tokenizer.encode(text, bos=True, special_tokens="tokens")
    bos = tokenizer.encode(text, bos=True, special_tokens="text").ids[0]
    own = tokenizer.encode(text, bos=False, special_tokens="tokens").ids.tolist()
    assert own == [bos, *tokenizer.encode("Keys", bos=False).ids.tolist()]


NFD = normalizers.NFD()


@pytest.mark.parametrize(
    ("normalizer", "text", "covered"),
    [
        (normalizers.NFC(), "cafe\u0301 e\u0301", ["c", "af", "e\u0301", " ", "e\u0301"]),
        (normalizers.NFC(), "e\u0301 \U0001f468\u0301", None),
        (normalizers.NFKC(), "ﬁ ½ e\u0301", None),
        (NFD, "café", None),
        (normalizers.Lowercase(), "The KEY \u0130", None),
        (normalizers.Strip(), "  The key  ", ["The", " key"]),
        (normalizers.Sequence([NFD, normalizers.StripAccents()]), "e\u0301a\u0301", None),
    ],
)
def test_characters_that_a_normalizer_joins_belong_to_their_token(
    tmp_path, normalizer, text, covered
):
    encoder = of_merges()
    encoder.normalizer = normalizer
    tokens = Tokenizer.from_pretrained(write(tmp_path, encoder)).encode(text)
    parts = [text[first:end] for first, end in tokens.offsets.tolist()]
    assert set("".join(parts)) >= set(text) - {" "}
    assert tokens.offsets[-1, 1] == len(text.rstrip())
    assert covered is None or list(dict.fromkeys(parts)) == list(dict.fromkeys(covered))
