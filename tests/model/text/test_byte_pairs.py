"""GPT-2's tokenizer compared with the reference, and its vocabulary files."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Reference
from tokenizers import decoders, models, pre_tokenizers

from probekit.errors import CheckpointError, ConfigError, DataError, MissingError
from probekit.model.text.byte_pairs import read_vocabulary
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.sources import MINI

HOSTILE = [
    "",
    " ",
    "\u00a0\u00a0x",
    "a\r\nb\r\n\r\n  c",
    "e\u0301 \u0301\u0301",
    "👩‍👩‍👧‍👦👍🏽🇩🇪",
    "日本語のテキスト、中文。한국어",
    "\u202eעברית\u202c العربية",
    "<|endoftext|> is plain text here",
    "I'll they'RE we've it's 'S",
    "x" * 300,
    "\x00\x07\ufeff\U0010ffff",
    "3.14159  ½²  Ⅷ",
]


def reference(vocabulary, merges):
    """The tokenizers library on the same files; special tokens are plain text in both."""
    reference = Reference(models.BPE.from_file(str(vocabulary), str(merges)))
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    reference.decoder = decoders.ByteLevel()
    return reference


def hostile_texts():
    characters = st.characters(exclude_categories=["Cs"])
    pieces = st.one_of(st.text(characters, max_size=12), st.sampled_from(HOSTILE))
    return st.lists(pieces, max_size=5).map("".join)


@pytest.fixture(scope="session")
def mini():
    return Tokenizer.from_pretrained("mini")


@pytest.fixture(scope="session")
def mini_reference():
    return reference(MINI / "vocab.json", MINI / "merges.txt")


def check_equal(tokenizer, reference, text):
    expected = reference.encode(text)
    tokens = tokenizer.encode(text, bos=False)
    assert tokens.ids.tolist() == expected.ids
    assert tokens.offsets.tolist() == [list(span) for span in expected.offsets]
    assert tokenizer.decode(tokens.ids) == text


@settings(max_examples=300, deadline=None)
@given(text=hostile_texts())
@example(text="".join(HOSTILE))
def test_ids_and_offsets_equal_the_reference(mini, mini_reference, text):
    check_equal(mini, mini_reference, text)


@pytest.fixture(scope="session")
def gpt2_folder(shared):
    return shared / "tokenizer" / "gpt2"


@pytest.fixture(scope="session")
def gpt2(gpt2_folder):
    return Tokenizer.from_pretrained(gpt2_folder)


@pytest.fixture(scope="session")
def gpt2_reference(gpt2_folder):
    return reference(gpt2_folder / "encoder.json", gpt2_folder / "vocab.bpe")


@settings(max_examples=300, deadline=None)
@given(text=hostile_texts())
@example(text="".join(HOSTILE))
def test_gpt2_vocabulary_equals_the_reference(gpt2, gpt2_reference, text):
    check_equal(gpt2, gpt2_reference, text)


def test_gpt2_vocabulary_gives_the_published_ids(gpt2):
    assert gpt2.encode("Hello world!", bos=True).ids.tolist() == [50256, 15496, 995, 0]


def test_all_three_layouts_give_the_same_tokenizer(mini, mini_reference, tmp_path):
    openai = tmp_path / "openai"
    openai.mkdir()
    shutil.copy(MINI / "vocab.json", openai / "encoder.json")
    shutil.copy(MINI / "merges.txt", openai / "vocab.bpe")
    single = tmp_path / "single"
    single.mkdir()
    mini_reference.save(str(single / "tokenizer.json"))
    for folder in (openai, single):
        assert Tokenizer.from_pretrained(folder).digest == mini.digest


def test_a_changed_vocabulary_in_the_same_folder_is_read_again(tmp_path, mini):
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(MINI / name, tmp_path / name)
    first = Tokenizer.from_pretrained(tmp_path).encode("keys", bos=False).ids
    lines = (tmp_path / "merges.txt").read_text().splitlines()[:200]
    (tmp_path / "merges.txt").write_text("\n".join(lines) + "\n")
    made = {line.replace(" ", "") for line in lines}
    ids = json.loads((tmp_path / "vocab.json").read_text())
    few = {token: n for token, n in ids.items() if len(token) == 1 or token in made or n == 0}
    (tmp_path / "vocab.json").write_text(json.dumps(few))
    second = Tokenizer.from_pretrained(tmp_path)
    assert len(second.encode("keys", bos=False).ids) > len(first)
    assert second.digest != mini.digest


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda lines: lines[:3000],
            r"has [\d,]+ tokens that no merge produces, .*\. The merges are incomplete",
        ),
        (lambda lines: [lines[0], *lines[:0:-1]], "comes before the merges that produce"),
    ],
    ids=["truncated", "reversed"],
)
def test_incomplete_or_unordered_merges_are_refused(tmp_path, damage, message):
    shutil.copy(MINI / "vocab.json", tmp_path)
    lines = (MINI / "merges.txt").read_text().splitlines()
    (tmp_path / "merges.txt").write_text("\n".join(damage(lines)) + "\n")
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.from_pretrained(tmp_path)


def test_ids_need_not_follow_the_merges(tmp_path, mini):
    """tiktoken takes ids for priorities: a vocabulary numbered otherwise must still merge alike."""
    ids = json.loads((MINI / "vocab.json").read_text())
    shuffled = dict(zip(ids, np.random.default_rng(0).permutation(len(ids)).tolist(), strict=True))
    (tmp_path / "vocab.json").write_text(json.dumps(shuffled))
    shutil.copy(MINI / "merges.txt", tmp_path)
    other = Tokenizer.from_pretrained(tmp_path)
    text = "The keys to the old cabinet are upon the table."
    expected = mini.strings(mini.encode(text, bos=False).ids)
    assert other.strings(other.encode(text, bos=False).ids) == expected


def test_bos_is_the_first_token_and_covers_nothing(mini):
    plain, begun = mini.encode("A key", bos=False), mini.encode("A key", bos=True)
    assert begun.ids.tolist() == [mini.bos_id, *plain.ids]
    assert begun.offsets.tolist() == [[0, 0], *plain.offsets.tolist()]
    with pytest.raises(TypeError):
        mini.encode("A key")


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_batch_carries_its_mask(mini, side):
    texts = ["The <|endoftext|> of it", "", "Go"]
    batch = mini.batch(texts, bos=True, side=side)
    for row, text in enumerate(texts):
        tokens, keep = mini.encode(text, bos=True), batch.mask[row]
        assert batch.ids[row][keep].tolist() == tokens.ids.tolist()
        assert batch.offsets[row][keep].tolist() == tokens.offsets.tolist()
        at_end = keep[-1] if side == "left" else keep[0]
        assert at_end


def test_invalid_utf8_is_written_as_bytes(gpt2):
    ids = gpt2.encode("👍", bos=False).ids
    assert len(ids) > 1
    shown = gpt2.strings(ids)
    assert all("<0x" in piece for piece in shown)


def test_a_lone_surrogate_is_refused(mini):
    with pytest.raises(DataError, match="Character 1"):
        mini.encode("a\ud800", bos=False)


def test_texts_must_be_strings(mini):
    with pytest.raises(DataError, match="must be a str, not NoneType"):
        mini.batch(["one", None], bos=False, side="right")


def test_a_folder_without_vocabulary_raises_an_error_with_the_formats(tmp_path):
    with pytest.raises(MissingError, match=r"vocab\.json \+ merges\.txt, or encoder\.json"):
        read_vocabulary(tmp_path)


def edit_vocabulary(folder, change):
    ids = json.loads((MINI / "vocab.json").read_text())
    change(ids)
    (folder / "vocab.json").write_text(json.dumps(ids))
    shutil.copy(MINI / "merges.txt", folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ids: ids.pop("!"), "lacks 1 of the 256 single bytes, the first is 0x21"),
        (lambda ids: ids.pop("Ġthe"), "first is 'Ġthe'"),
        (lambda ids: ids.update({"!": ids["a"]}), "same id to several"),
        (lambda ids: ids.update({"!": "7"}), "integer ids"),
    ],
)
def test_damaged_vocabularies_are_refused(tmp_path, change, message):
    edit_vocabulary(tmp_path, change)
    with pytest.raises(CheckpointError, match=message):
        read_vocabulary(tmp_path)


@pytest.mark.parametrize("special", [True, False])
def test_added_tokens_must_be_special(tmp_path, mini_reference, special):
    path = tmp_path / "tokenizer.json"
    mini_reference.save(str(path))
    content = json.loads(path.read_text())
    number = len(content["model"]["vocab"])
    content["added_tokens"].append({"id": number, "content": "PAD", "special": special})
    path.write_text(json.dumps(content))
    if special:
        assert read_vocabulary(tmp_path).special["PAD"] == number
    else:
        with pytest.raises(CheckpointError, match="matched before the merges"):
            read_vocabulary(tmp_path)


def test_a_malformed_merge_is_named_by_line(tmp_path):
    shutil.copy(MINI / "vocab.json", tmp_path)
    (tmp_path / "merges.txt").write_text("#version: 0.2\nt h\nbroken\n")
    with pytest.raises(CheckpointError, match=r"line 3.*'broken'"):
        read_vocabulary(tmp_path)


def test_bos_without_such_a_token_is_refused(tmp_path):
    edit_vocabulary(tmp_path, lambda ids: ids.pop("<|endoftext|>"))
    with pytest.raises(ConfigError, match="Set bos to false"):
        _ = Tokenizer.from_pretrained(tmp_path).bos_id


def test_the_padding_side_is_needed_only_where_texts_differ_in_length(mini):
    for texts in (["one"], ["The key", "The keys"]):
        alone = mini.batch(texts, bos=True)
        assert bool(alone.mask.all())
        assert alone.ids.tolist() == mini.batch(texts, bos=True, side="left").ids.tolist()
    with pytest.raises(ConfigError, match=r'1 to 4 tokens.*side="left"'):
        mini.batch(["The", "The keys to the"], bos=False)


def test_tokens_of_a_text_as_strings(mini):
    assert mini.str_tokens("The keys to") == ["The", " keys", " to"]
    assert mini.str_tokens("The keys", bos=True) == ["<|endoftext|>", "The", " keys"]


@pytest.mark.parametrize("bos", [False, True])
def test_positions_of_parts(mini, bos):
    text = "The keys to the old cabinet"
    strings = mini.str_tokens(text, bos=bos)
    assert strings[-2:] == [" cabin", "et"]
    assert mini.position_of(text, "The", bos=bos) == strings.index("The") == bos
    assert mini.position_of(text, " to", bos=bos) == strings.index(" to")
    assert mini.position_of(text, " cabinet", bos=bos) == len(strings) - 1
    assert mini.position_of(text, " cabinet", bos=bos, piece="first") == len(strings) - 2
    assert mini.position_of(text, text, bos=bos, piece="first") == bos


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (" door", r"' door' is not in 'The keys"),
        (" keyss", r"Nearest: ' keys'"),
        ("keys", "begins inside the token ' keys'.*with the space"),
        (" ke", "ends inside the token ' keys'"),
        ("he", r"occurs 2 times .* characters 1, 13"),
    ],
)
def test_positions_of_other_parts_are_refused(mini, part, message):
    with pytest.raises(DataError, match=message):
        mini.position_of("The keys to the old cabinet", part, bos=False)
    for no_part in ("", 5):
        with pytest.raises(DataError, match=f"at least one character, not {no_part!r}"):
            mini.position_of("The keys", no_part, bos=False)
    with pytest.raises(ConfigError, match="Unknown piece 'middle'"):
        mini.position_of("The", "The", bos=False, piece="middle")


def test_real_text_equals_the_reference(gpt2, gpt2_reference, shared):
    lines = (shared / "datasets/sentence_polarity/rt-polarity.pos").read_bytes().split(b"\n")
    for line in lines[:500]:
        check_equal(gpt2, gpt2_reference, line.decode("latin-1"))
