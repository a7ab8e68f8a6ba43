"""GPT-2's tokenizer compared with the reference, and its vocabulary files."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Reference
from tokenizers import decoders, models, pre_tokenizers

from probekit.model.text.byte_pairs import read_vocabulary
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.sources import MINI
from tests.stored import each_line

CABINET = "The keys to the old cabinet"
MERGES = (MINI / "merges.txt").read_text().splitlines()
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


def edit_vocabulary(folder, change=len, merges=MERGES):
    """Write the vocabulary of mini with changes into a folder, and return it."""
    ids = json.loads((MINI / "vocab.json").read_text())
    change(ids)
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "merges.txt").write_text("\n".join(merges) + "\n")
    return ids, merges


def check_equal(tokenizer, reference, text):
    expected = reference.encode(text)
    tokens = tokenizer.encode(text, bos=False)
    assert tokens.ids.tolist() == expected.ids
    assert tokens.offsets.tolist() == [list(span) for span in expected.offsets]
    assert tokenizer.decode(tokens.ids) == text


@pytest.fixture(scope="session")
def gpt2(shared):
    return Tokenizer.from_pretrained(shared / "tokenizer/gpt2")


@pytest.fixture(scope="session")
def gpt2_reference(shared):
    return reference(*(shared / "tokenizer/gpt2" / n for n in ("encoder.json", "vocab.bpe")))


@pytest.fixture(scope="session", params=["mini", "gpt2"])
def either(request):
    return [request.getfixturevalue(request.param + end) for end in ("", "_reference")]


@settings(max_examples=300, deadline=None)
@given(text=hostile_texts())
@example(text="".join(HOSTILE))
def test_ids_and_offsets_equal_the_reference(either, text):
    check_equal(*either, text)


def test_gpt2_vocabulary_gives_the_published_ids(gpt2):
    assert gpt2.encode("Hello world!", bos=True).ids.tolist() == [50256, 15496, 995, 0]


def test_all_three_layouts_give_the_same_tokens(mini, mini_reference, tmp_path):
    for name in ("openai", "single"):
        (tmp_path / name).mkdir()
    shutil.copy(MINI / "vocab.json", tmp_path / "openai/encoder.json")
    shutil.copy(MINI / "merges.txt", tmp_path / "openai/vocab.bpe")
    assert Tokenizer.from_pretrained(tmp_path / "openai").digest == mini.digest
    mini_reference.save(str(tmp_path / "single/tokenizer.json"))
    check_equal(Tokenizer.from_pretrained(tmp_path / "single"), mini_reference, "".join(HOSTILE))


def test_a_changed_vocabulary_in_the_same_folder_is_read_again(tmp_path, mini):
    ids, lines = edit_vocabulary(tmp_path)
    first = Tokenizer.from_pretrained(tmp_path).encode("keys", bos=False).ids
    made = {line.replace(" ", "") for line in lines[:200]}
    few = {token: n for token, n in ids.items() if len(token) == 1 or token in made or n == 0}
    (tmp_path / "merges.txt").write_text("\n".join(lines[:200]) + "\n")
    (tmp_path / "vocab.json").write_text(json.dumps(few))
    second = Tokenizer.from_pretrained(tmp_path)
    assert len(second.encode("keys", bos=False).ids) > len(first)
    assert second.digest != mini.digest


def test_ids_need_not_follow_the_merges(tmp_path, mini):
    """tiktoken takes ids for priorities: a vocabulary numbered otherwise must still merge alike."""
    numbers = np.random.default_rng(0).permutation(mini.n_ids).tolist()
    edit_vocabulary(tmp_path, lambda ids: ids.update(zip(list(ids), numbers, strict=True)))
    other = Tokenizer.from_pretrained(tmp_path)
    text = "The keys to the old cabinet are upon the table."
    expected = mini.strings(mini.encode(text, bos=False).ids)
    assert other.strings(other.encode(text, bos=False).ids) == expected


def test_bos_is_the_first_token_and_covers_nothing(mini):
    plain, begun = mini.encode("A key", bos=False), mini.encode("A key", bos=True)
    assert begun.ids.tolist() == [mini.bos_id, *plain.ids]
    assert begun.offsets.tolist() == [[0, 0], *plain.offsets.tolist()]
    assert mini.encode("A key").ids.tolist() == plain.ids.tolist()  # GPT-2's tokenizer adds none


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
    assert all("<0x" in piece for piece in gpt2.strings(ids))


BROKEN = ["#version: 0.2", "t h", "broken"]


@pytest.mark.parametrize(
    ("change", "merges"),
    [
        (lambda ids: ids.pop("!"), MERGES),
        (lambda ids: ids.pop("Ġthe"), MERGES),
        (lambda ids: ids.update({"!": ids["a"]}), MERGES),
        (lambda ids: ids.update({"!": "7"}), MERGES),
        (len, MERGES[:3000]),
        (len, [MERGES[0], *MERGES[:0:-1]]),
        (len, BROKEN),
    ],
    ids=["no byte", "no product", "one id twice", "no number", "cut", "reversed", "broken"],
)
def test_damaged_vocabularies_are_refused(tmp_path, refused, change, merges):
    edit_vocabulary(tmp_path, change, merges)
    refused(read_vocabulary, tmp_path)


def test_the_padding_side_is_needed_only_where_texts_differ_in_length(mini):
    for texts in (["one"], ["The key", "The keys"]):
        alone = mini.batch(texts, bos=True)
        assert bool(alone.mask.all())
        assert alone.ids.tolist() == mini.batch(texts, bos=True, side="left").ids.tolist()


@pytest.mark.parametrize("bos", [False, True])
def test_positions_of_parts(mini, bos):
    text = CABINET
    strings = mini.str_tokens(text, bos=bos)
    assert strings[-2:] == [" cabin", "et"]
    assert mini.position_of(text, "The", bos=bos) == strings.index("The") == bos
    assert mini.position_of(text, " to", bos=bos) == strings.index(" to")
    assert mini.position_of(text, " cabinet", bos=bos) == len(strings) - 1
    assert mini.position_of(text, " cabinet", bos=bos, piece="first") == len(strings) - 2
    assert mini.position_of(text, text, bos=bos, piece="first") == bos


@each_line("call")
def test_what_has_no_tokens_is_refused(mini, refused, call, tmp_path):
    refused(eval, call, globals() | {"mini": mini, "tmp_path": tmp_path})


def test_bos_without_such_a_token_is_refused(tmp_path, refused):
    edit_vocabulary(tmp_path, lambda ids: ids.pop("<|endoftext|>"))
    refused(getattr, Tokenizer.from_pretrained(tmp_path), "bos_id")


@pytest.mark.parametrize("text", ["The keys", "Größe ✓ 東京 👩‍🚀", " a\n\nb", "x\0y"])
def test_decoded_tokens_have_the_characters_of_encoded_ones(mini, text):
    tokens = mini.encode(text, bos=False)
    decoded = mini.decode_tokens(tokens.ids.tolist())
    assert decoded.offsets.tolist() == tokens.offsets.tolist()
    assert decoded.ids.tolist() == tokens.ids.tolist()


def test_tokens_that_end_within_a_character_cover_the_mark_that_replaces_it(mini):
    first = mini.encode("東", bos=False).ids[:1].tolist()
    assert mini.decode(first) == "\ufffd"
    assert mini.decode_tokens(first).offsets.tolist() == [[0, 1]]
    assert mini.decode_tokens([]).offsets.shape == (0, 2)
