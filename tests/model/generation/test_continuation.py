"""Continuations: stop strings, streams, batches of prompts."""

from itertools import chain

import pytest

from probekit.errors import ConfigError, DataError
from probekit.model.families.gpt2 import GPT2
from probekit.model.generation import (
    Continuation,
    Decoding,
    StopStrings,
    continue_texts,
    stream_text,
)
from probekit.model.text.tokenizer import END_OF_TEXT, Tokenizer

PROMPTS = ["She said that", "The old man", "In"]
DRAWN = {"temperature": 0.9, "top_p": 0.95, "num_samples": 2, "seed": 1}


@pytest.fixture(scope="module")
def model():
    return GPT2.from_pretrained("mini")


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_pretrained("mini")


@pytest.mark.parametrize("options", [{}, DRAWN], ids=["greedy", "drawn"])
def test_prompts_in_a_batch_get_the_continuations_of_single_prompts(model, tokenizer, options):
    how = Decoding(12, **options)
    together = continue_texts(model, tokenizer, PROMPTS, how, bos=False)
    for prompt, samples in zip(PROMPTS, together, strict=True):
        assert continue_texts(model, tokenizer, [prompt], how, bos=False) == [samples]
        assert all(len(sample.ids) == 12 for sample in samples)
    if options:
        assert all(first != second for first, second in together)


@pytest.mark.parametrize("options", [{}, DRAWN], ids=["greedy", "drawn"])
def test_a_text_ends_before_its_stop_string(model, tokenizer, options):
    how = Decoding(40, **options)
    whole = continue_texts(model, tokenizer, PROMPTS, how, bos=False)
    stop = whole[1][0].text[7:10]  # three characters within one of them
    stopped = continue_texts(model, tokenizer, PROMPTS, how, bos=False, stop=["\0", stop])
    assert stopped[1][0].stopped
    for before, after in zip(chain(*whole), chain(*stopped), strict=True):
        assert after.text == before.text.partition(stop)[0]
        assert after.stopped == (stop in before.text)
        assert after.ids == before.ids[: len(after.ids)]
        if after.stopped:
            assert stop in tokenizer.decode(after.ids)
            assert stop not in tokenizer.decode(after.ids[:-1])


@pytest.mark.parametrize("stop", [[], [" of"], ["old", "n of his"], [" great deal of "]])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.6, "seed": 2}], ids=["greedy", "drawn"])
def test_a_stream_is_the_text_in_pieces(model, tokenizer, stop, options):
    how = Decoding(60, **options)
    [[whole]] = continue_texts(model, tokenizer, PROMPTS[1:2], how, bos=False, stop=stop)
    pieces = list(stream_text(model, tokenizer, PROMPTS[1], how, bos=False, stop=stop))
    assert "".join(pieces) == whole.text
    assert all(pieces)
    assert len(pieces) > 1


def test_an_incomplete_character_is_held_back(tokenizer, monkeypatch):
    """At a high temperature bytes that are no text come up too; they are shown once."""
    ids = tokenizer.encode("Größe ✓ ✓", bos=False).ids.tolist()
    halves = [n for n in range(len(ids)) if "\ufffd" in tokenizer.decode(ids[: n + 1])]
    assert halves, "the text must be cut within a character"
    pieces = list(_stream_of(tokenizer, ids, monkeypatch, stop=[]))
    assert "".join(pieces) == "Größe ✓ ✓"
    assert not any("\ufffd" in piece for piece in pieces)
    cut_off = list(_stream_of(tokenizer, ids[: halves[0] + 1], monkeypatch, stop=[]))
    assert "".join(cut_off) == tokenizer.decode(ids[: halves[0] + 1])


def test_the_end_of_a_text_in_the_model_s_own_word_ends_it(tokenizer, monkeypatch):
    ids = [*tokenizer.encode("So it ends", bos=False).ids.tolist(), tokenizer.bos_id, 5, 6]
    pieces = list(_stream_of(tokenizer, ids, monkeypatch, stop=[END_OF_TEXT]))
    assert "".join(pieces) == "So it ends"


def _stream_of(tokenizer, ids, monkeypatch, stop):
    """Stream of a model whose chosen tokens are replaced by these."""
    says = iter(ids)
    monkeypatch.setattr(
        Decoding, "choose", lambda self, logits, draws: logits[:, 0].long() * 0 + next(says)
    )
    model = GPT2.from_pretrained("mini")
    return stream_text(model, tokenizer, "x", Decoding(len(ids)), bos=False, stop=stop)


def test_a_stop_string_is_found_across_tokens_and_bytes(tokenizer):
    stop = StopStrings(tokenizer, ["öß", "end"])
    ids = tokenizer.encode("Größe", bos=False).ids.tolist()
    assert [stop(ids[: n + 1]) for n in range(len(ids))].count(True) >= 1
    assert stop.cut("the bend, Größe") == "the b"
    assert stop.n_final("a be") == 3
    assert stop.n_final("a bend") == 3
    assert not StopStrings(tokenizer, [])(ids)


def test_beginning_of_text_lets_a_prompt_be_empty(model, tokenizer):
    [[only]] = continue_texts(model, tokenizer, [""], Decoding(5), bos=True)
    assert isinstance(only, Continuation)
    assert len(only.ids) == 5


@pytest.mark.parametrize(
    ("prompts", "options", "error", "message"),
    [
        ([""], {}, DataError, "The prompt is empty.*bos"),
        (["a", ""], {}, DataError, "Prompt 2 is empty"),
        (["a"], {"stop": [""]}, ConfigError, "non-empty"),
        (["a"], {"stop": "end"}, ConfigError, "a list of non-empty strings"),
        (["a b" * 200], {}, DataError, "do not fit the context of 256: shorten the prompt"),
        (["a b" * 100], {}, DataError, "request at most 57 new ones"),
        ([], {}, DataError, "at least one text"),
    ],
)
def test_invalid_prompts_and_stop_strings_are_refused(
    model, tokenizer, prompts, options, error, message
):
    with pytest.raises(error, match=message):
        continue_texts(model, tokenizer, prompts, Decoding(60), bos=False, **options)
