"""Preparation of rows: positions, words and the split."""

import numpy as np
import pytest

from probekit.experiment.loader import load_experiment
from probekit.pipeline.engines.table import prepare
from probekit.pipeline.setup.design import last_word
from tests.pipeline.texts import text_of

TABLE = text_of("rows.yaml")
SPLIT = "columns: {split: side}"


@pytest.fixture
def trees(tmp_path):
    """Sentences of three words; the nouns are key, cabinet and dog, and key and house in test."""
    for name in ("train.conllu", "test.conllu", "trees.yaml"):
        (tmp_path / name).write_text(text_of(name))
    return load_experiment(tmp_path / "trees.yaml")


def test_word_position_is_the_last_piece(trees):
    prepared = prepare(trees)
    design, texts = prepared.design, prepared.texts
    assert design.positions[0].types.tolist()[:3] == ["the", "key", "perambulated"]
    assert design.labels.tolist()[:3] == ["DET", "NOUN", "VERB"]
    assert (len(design.splits[0].train), len(design.splits[0].test)) == (9, 6)
    for row, example in enumerate(texts.plan.example):
        tokens = texts.tokens[example]
        (at,) = texts.plan.positions[texts.plan.offsets[row] : texts.plan.offsets[row + 1]]
        assert tokens.offsets[at, 1] == design.dataset.examples[example].span[1]
    assert len(texts.tokens[2].ids) > 5  # BOS, and a long word of several pieces


def test_neighbours_are_the_words_next_to_a_word_in_its_text(trees, tmp_path):
    neighbours = prepare(trees).design.positions[0].neighbours
    assert neighbours.tolist()[:3] == [["", "key"], ["the", "perambulated"], ["key", ""]]
    # Words without the label are no rows, but are neighbours.
    for name in ("train.conllu", "test.conllu"):
        text = text_of(name).replace("VERB\t_\t_", "VERB\t_\tKind=a")
        (tmp_path / name).write_text(text.replace("DET\t_\t_", "DET\t_\tKind=b"))
    some = load_experiment(tmp_path / "trees.yaml", ["data.columns.label=FEATS:Kind"])
    assert prepare(some).design.positions[0].neighbours.tolist()[:2] == [["", "key"], ["key", ""]]


@pytest.fixture
def table(tmp_path):
    """A function that prepares the rows of a table."""

    def table(lines, *overrides, yaml=TABLE):
        (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
        (tmp_path / "rows.yaml").write_text(yaml)
        return prepare(load_experiment(tmp_path / "rows.yaml", overrides)).design

    return table


KEYS = ["text,label,side", "The key,a,train", "The dog,b,train", "A key,a,test"]


def test_position_all_gives_one_row_per_token_without_bos(table):
    tokens = table(KEYS, "tokens.position.at=all")
    for design in (tokens, table(KEYS, "tokens.position.at=all", "tokens.bos=true")):
        assert design.positions[0].types.tolist() == ["The", " key", "The", " dog", "A", " key"]
        assert design.labels.tolist() == ["a", "a", "b", "b", "a", "a"]
    # Neighbours of tokens are tokens, and whole texts have none.
    assert tokens.positions[0].neighbours.tolist()[:2] == [["", " key"], ["The", ""]]
    assert table(KEYS).positions[0].neighbours is None


def test_position_0_does_not_affect_scaling_by_default(tmp_path, trees):
    assert prepare(trees).design.positions[0].typical.all()  # BOS is at position 0
    overrides = ["tokens.bos=false", "tokens.position.skip_first=false"]
    bare, counted = (load_experiment(tmp_path / "trees.yaml", overrides[:n]) for n in (1, 2))
    assert prepare(bare).design.positions[0].typical.tolist() == 5 * [False, True, True]
    assert prepare(counted).design.positions[0].typical is None
    assert counted.tokens.position.text == "word:last+first"


def test_rows_without_a_group_are_separate_groups_across_files(table, tmp_path):
    rows = ["text,label", "The key,a", "The dog,b"]
    (tmp_path / "test.csv").write_text("\n".join(rows))
    yaml = TABLE.replace("file: rows.csv, " + SPLIT, "train: rows.csv, test: test.csv")
    assert len(np.unique(table(rows, yaml=yaml).groups)) == 4


def test_split_column_determines_the_split(table):
    design = table([KEYS[0], *(line.replace(",", ".,", 1) for line in KEYS[1:])])
    assert design.splits[0].test.tolist() == [2]
    assert design.positions[0].types.tolist() == ["key", "dog", "key"]  # excludes the full stop


def test_duplicates_are_removed_from_test_and_counted(table):
    rows = ["One.,y,train", "Two.,n,train", "One.,y,test", "Six.,n,test", "Ten.,y,test"]
    kept, new = (table([KEYS[0], *rows], *more) for more in ((), ("split.drop_repeated=true",)))
    assert len(kept.splits[0].test) == 3
    assert [new.dataset.examples[n].text for n in new.examples[0].test] == ["Six.", "Ten."]
    assert new.splits[0].train.tolist() == kept.splits[0].train.tolist()
    assert new.splits[0].test.tolist() == [3, 4]
    assert any(note.startswith("removed from test: 1 example") for note in new.dataset.notes)


def test_duplicates_of_one_side_are_removed_on_request(table):
    rows = ["One.,y,train", "Two.,n,train", "Two.,n,train", "Six.,n,test", "Six.,n,test"]
    rows += ["One.,y,test", "Ten.,y,test"]
    design = table([KEYS[0], *rows], "split.drop_repeated=all")
    texts = [[design.dataset.examples[n].text for n in side] for side in design.examples[0]]
    assert texts == [["One.", "Two."], ["Six.", "Ten."]]
    assert "removed: 2 examples whose text occurs before" in design.dataset.notes


def words_of(design):
    return [
        {w.strip().casefold() for w in design.positions[0].types[rows]}
        for rows in (design.splits[0].train, design.splits[0].test)
    ]


def test_shared_words_are_removed_and_the_loss_is_reported(trees, tmp_path):
    train, test = words_of(prepare(trees).design)
    assert train & test == {"the", "key", "perambulated"}
    overrides = ["split.word_disjoint=true", "split.test=0.5"]
    design = prepare(load_experiment(tmp_path / "trees.yaml", overrides)).design
    train, test = words_of(design)
    assert train | test == {"the", "key", "perambulated", "cabinet", "dog", "house"}
    assert not train & test
    n_train, n_test = 9 - len(design.splits[0].train), 6 - len(design.splits[0].test)
    assert n_train + n_test > 0
    note = f"{n_train} of 9 training rows and {n_test} of 6 test rows were removed"
    assert design.dataset.notes[-1].startswith(note)
    assert set(design.examples[0].train) == set(design.example[design.splits[0].train])
    assert set(design.examples[0].test) == set(design.example[design.splits[0].test])


def test_groups_with_a_common_word_are_split_together(table):
    nouns = ["key", "Key", "dog", "cat", "Cat", "ship", "road", "hat"]
    rows = ["text,label", *(f"The {noun},{label}" for noun in nouns for label in "ab")]
    plain = TABLE.replace(f", {SPLIT}", "")
    for seed in range(5):
        overrides = ["split.word_disjoint=true", f"split.seed={seed}", "split.test=0.4"]
        design = table(rows, *overrides, yaml=plain)
        train, test = words_of(design)
        assert not train & test
        assert len(design.splits[0].train) + len(design.splits[0].test) == 16
        assert design.dataset.notes[-1].startswith("0 of")


def test_rows_that_cannot_be_split_are_reported_with_their_key(table, refused):
    rows = [f"Text {n} ends.,{'ab'[n % 2]},g{n}" for n in range(8)] + ["Text 8.,rare,g8"] * 2
    yaml = TABLE.replace("{split: side}", "{group: group}") + "split: {folds: 3}\n"
    refused(table, ["text,label,group", *rows], yaml=yaml)  # a label in one group
    rows = ["The key,a,train", "A key,b,train", "Our key,a,test", "My key,b,test"]
    refused(table, [KEYS[0], *rows], yaml=TABLE + "split: {word_disjoint: true}\n")
    refused(table, [KEYS[0], f"{'The ' * 300}key,a,train"], "tokens.too_long=skip")


def test_last_word_excludes_punctuation():
    texts = ("Oslo.", "it's", "so, ...", "", "...", "cafe\u0301!", "भाषा।", "U.S.")
    words = ["Oslo", "it's", "so", None, None, "cafe\u0301", "भाषा", "U.S"]
    assert list(map(last_word, texts)) == words
