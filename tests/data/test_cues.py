"""Words and spans are dropped from texts, whose other spans move with their words."""

import numpy as np

from probekit.chosen.leakage.measure import cue_pattern, dropped_ranges, without
from tests.stored import each_row

TEXT = "Did he not, ever since, DID NOT she write: notes?"


def test_phrases_of_a_file_match_whole_words_in_any_case(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("# negations\n\nnot\n did  not \nc++\n")
    pattern = cue_pattern(path)
    assert [TEXT[slice(*match.span())] for match in pattern.finditer(TEXT)] == ["not", "DID NOT"]
    assert [match.group() for match in pattern.finditer("a c++ cc++ notes")] == ["c++"]


@each_row("text, words, left")
def test_no_double_space_is_left_and_the_span_keeps_its_characters(text, words, left):
    dropped = [(text.index(word), text.index(word) + len(word)) for word in words]
    start = text.index("key")
    assert without(text, dropped, None) == (left, None)
    found, span = without(text, dropped, (start, start + 3))
    assert (found, found[slice(*span)]) == (left, "key")


def test_as_many_words_are_drawn_as_the_cues_have():
    cues, read = [(7, 10), (24, 31)], (TEXT.index("write"), len(TEXT))  # "not" and "DID NOT"
    variants = dropped_ranges(TEXT, cues, read, 50, np.random.default_rng(0))
    assert variants[0] == cues
    drawn = [{TEXT[slice(*one)] for one in variant} for variant in variants[1:]]
    assert len(drawn) == 50
    assert {len(words) for words in drawn} == {3}
    assert set.union(*drawn) == {"Did", "he", "ever", "since", "she"}
    # A cue at the probed characters, or more words of cues than others.
    assert not dropped_ranges(TEXT, cues, (8, 9), 5, np.random.default_rng(0))
    assert not dropped_ranges(TEXT, cues, (0, 20), 5, np.random.default_rng(0))
