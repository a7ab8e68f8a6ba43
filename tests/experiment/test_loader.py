"""Experiment files: types are preserved, and each error names its line."""

import re
from pathlib import Path

import pytest

from probekit.errors import ConfigError, MissingError
from probekit.experiment.loader import dump_experiment, load_experiment
from probekit.experiment.schema import Experiment
from tests.experiment.files import GOOD, refusal

AT = (
    r"Nearest: last\. Allowed: all, assistant_last, first, index, last, mean, span, user_last, "
    r"word\."
)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("model:", "modle:", r"line 2: unknown key 'modle'. Nearest: model\."),
        ("  source:", "  sorce:", r"line 3: unknown key 'model.sorce'. Nearest: source\."),
        ("bos: false", "bos: no", r"line 9: tokens\.bos is 'no'"),
        (
            "  bos: false\n",
            "",
            r"line 8: the key 'tokens\.bos' is missing; whether to prepend the beginning-of-text",
        ),
        (
            "tokens:\n",
            "probe: {kinds: [{kind: attention_pooled}]}\ntokens:\n",
            r"attention_pooled computes a weighted mean .* `tokens\.position: {at: all}`",
        ),
        (
            "name: small\n",
            "",
            r"the key 'name' is missing; name of the experiment and of the folder of its runs",
        ),
        (
            "format: csv",
            "format: xls",
            r"line 6: data\.format is 'xls'\. Allowed: columns, c",
        ),
        ("{at: last}", "{at: lasd}", rf"line 10: tokens\.position\.at is 'lasd'\. {AT}$"),
        ("{at: last}", "{at: index}", r"line 10: `index` must be given for `at: index`"),
        ("{at: last}", "{at: word}", r"line 10: tokens\.position\.at is 'word', but data\.columns"),
        ("{at: last}", "\n    at: index", r"line 11: `index` must be given for `at: index`"),
        ("{at: last}", "\n    at: last\n    index: 3", r"line 12: `index` must be given"),
        ("{at: last}", "\n    at: first\n    pieces: mean", r"line 12: `pieces: mean` requires"),
        ("{at: last}", "\n    at: last\n    offset: 1", r"line 12: `offset` is counted from"),
        ("{at: last}", "{at: last}\n  sweep: [0]", r"line 11: `sweep` is counted from a span"),
        ("{at: last}", "\n    at: word\n    pieces: all\n  sweep: [0]", r"line 13: `sweep` r"),
        ("{at: last}", "{at: word, offset: 1}\n  sweep: [0]", r"line 11: give either `sweep` or"),
        ("{at: last}", "{at: word}\n  sweep: [1, 1]", r"line 11: `sweep` lists an offset twice"),
        ("{at: last}", "{at: word}\n  sweep: [a]", r"line 11: tokens\.sweep\.0 is 'a'\."),
        ("source: mini", "source: mini\ncapture: {view: norm}", r"line 4: capture\.view is 'norm'"),
        ("source: mini", "source: mini\ncapture:\n  concatenate: [a]", r"line 5: capture\.c.*list"),
        ("{at: last}", "\n    at: span", r"line 11: tokens\.position\.at is 'span'"),
        ("file: rows.csv", "file: rows.csv\n  columns:\n    end: e", r"line 9: `start` and `end`"),
        ("file: rows.csv", "train: a\n  test: b\n  columns:\n    split: s", r"line 10: `columns"),
        ("  file: rows.csv\n", "  train: a.csv\n", r"line 4: give either `file`, or both"),
        ("format: csv", "format: conllu\n  columns:\n    text: t", r"line 8: `columns\.text` is"),
        ("rows.csv", '"a\\0b"', r"line 7: the character '\\x00' is not allowed"),
        ("rows.csv", '"\\ud800"', r"line 7: the character '\\ud800' is not allowed"),
        ("name: small", "name: ../up", r"line 1: name is '\.\./up'"),
        ("name: small", "name: [a]", r"line 1: name is \['a'\]"),
        ("name: small", "name: small\nname: again", r"line 2: the key 'name' is given twice"),
        (
            "source: mini",
            "source: mini\nprobe:\n  kinds: [{k: [3]}]",
            r"line 5: the key 'probe\.kinds\.0\.kind' is missing; .*\. Allowed: .*, lda, logistic",
        ),
        (
            "source: mini",
            "source: mini\nprobe:\n  kinds: [{kind: mass_mean, k: 3}]",
            r"line 5: `k` is not an option of `kind: mass_mean`\. Its options: `covariance`; `k`",
        ),
        (
            "source: mini",
            "source: mini\nprobe:\n  folds: 3\n  C: [1, 1]",
            r"line 6: probe\.C\.1 is 1, which is already in the list\. Give each value once\.",
        ),
        (
            "source: mini",
            "source: mini\nprobe:\n  kinds:\n  - {kind: mass_mean}\n"
            "  - {kind: mass_mean, covariance: false}",
            r"line 7: probe\.kinds\.1 is \{'kind': 'mass_mean', .*, which is already in the list",
        ),
        ("name: small", "name: small\nseed: 3", r"line 2: unknown key 'seed'\..* Did you mean sp"),
        ("name: small", "name: [a", r"line \d+: the list begun with \["),
        ("name: small", "name: &x small\nquestion: *x", r"line 2: aliases \(\*x\)"),
        ("name: small", "name: !!python/object:os.system x", r"line 1: tags \(.*python/object"),
        ("name: small", "name: !x small", r"line 1: tags \(!x\)"),
        ("model:\n  source: mini", "model: mini", r"line 2: model is 'mini'"),
        ("source: mini", "source: mini\n  random_seed: 1.5", r"line 4: model\.random_seed is 1\.5"),
        ("source: mini", "source: mini\n  random_seed: '1'", r"line 4: model\.random_seed is '1'"),
        ("source: mini", "source: mini\nprobe: {C: []}", r"line 4: probe\.C is \[\]"),
        ("source: mini", "source: mini\nprobe: {C: [0.1, 0]}", r"line 4: probe\.C\.1 is 0\. "),
        ("source: mini", "source: mini\nsplit: {test: 1.0}", r"line 4: split\.test is 1\.0"),
        ("source: mini", "source: mini\nprobe: {folds: 1}", r"line 4: probe\.folds is 1"),
        (
            "source: mini",
            "source: mini\nprobe: {permutations: 19}",
            r"line 4: .*with 19 permutations no p-value is below 0\.05; give at least 20",
        ),
        ("source: mini", "source: mini\nprobe:\n  max_iter: 0", r"line 5: probe\.max_iter"),
    ],
)
def test_each_invalid_value_is_reported_with_its_line(write, old, new, message):
    text = GOOD.replace(old, new)
    assert text != GOOD
    path = write(text)
    answer = refusal(path)
    assert re.search(message, answer), answer
    assert str(path) in answer


def test_all_errors_are_listed_together(write):
    path = write(GOOD.replace("source", "sauce").replace("bos: false", "bos: 1"))
    assert len(refusal(path).splitlines()) == 3  # unknown key, missing key, wrong type


def test_refused_tag_names_the_file_once(write):
    path = write(GOOD.replace("name: small", "name: !!python/object:os.system x"))
    tag = "tag:yaml.org,2002:python/object:os.system"
    assert refusal(path) == f"{path}, line 1: tags ({tag}) are not allowed."


@pytest.mark.parametrize(
    ("text", "line"), [("\ta: 1", 1), ("a:\n\tb: 1\n", 2), ("a:\n- b\n\t- c\n", 3)]
)
def test_tab_is_named_in_the_message(write, text, line):
    path = write(text)
    assert refusal(path) == f"{path}, line {line}: a tab; indent with spaces."


def test_yaml_syntax_errors_are_one_line(write):
    for text in ("a: 2024-13-45", "a: " + "1" * 5000, "\x00"):
        answer = refusal(write(text))
        assert "is not valid YAML" in answer
        assert answer.count("file.yaml") == 1
        assert len(answer.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "line", "held"),
    [
        ("", 1, "the file is empty"),
        ("# none\n", 1, "the file is empty"),
        ("# why\n\n- a\n", 3, "a list"),
        ("text\n", 1, "a value without a key"),
    ],
)
def test_file_without_keys_is_refused_with_an_example(write, text, line, held):
    path = write(text)
    answer = refusal(path)
    assert answer.startswith(f"{path}, line {line}: {held}. A file must have keys and values")
    assert "{name: ..., model: {source: mini}, data: {name: ..., " in answer


@pytest.mark.parametrize("text", ["", "- a\n", "text\n", "\x00", "a: 1\n---\nb: 2\n", "\ta: 1"])
def test_file_that_is_not_a_mapping_is_refused(write, text):
    assert "file.yaml" in refusal(write(text))


def test_alias_bombs_and_large_files_are_refused_before_parsing(write):
    bomb = "a: &a [x, x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]\n" for n in range(20)
    )
    assert "line 2: aliases" in refusal(write(bomb))
    assert "1,200,000 bytes" in refusal(write("#" * 1_200_000))
    assert "deeper than 20" in refusal(write("a: " + "[" * 10_000))


def test_strings_are_not_converted(write):
    path = write(GOOD.replace("rows.csv", "no").replace("name: rows", "name: 4-8"))
    experiment = load_experiment(path, ["data.columns.label=no", "question=1:30"])
    assert experiment.data.file == "no"
    assert experiment.data.columns.label == "no"
    assert experiment.question == "1:30"


def test_later_errors_name_the_line_of_the_value(write):
    path = write(GOOD + "attention:\n  texts:\n    - one\n    - two\n")
    experiment = load_experiment(path, ["model.source=gpt2"])
    for keys, place in {
        ("attention", "texts", 1): f"{path}, line 14: ",
        ("capture", "sites"): f"{path}, line 1: ",
        ("model", "source"): "--set model.source: ",
    }.items():
        message = f"^{re.escape(place)}it is not there$"
        with pytest.raises(MissingError, match=message), experiment.at(*keys):
            raise MissingError("it is not there")


def test_override_is_a_single_value(write):
    assert refusal(write(GOOD), ["probe.folds=3\nx: 4"]) == (
        "--set probe.folds: give one value on one line."
    )
    assert refusal(write(GOOD), ["prob.folds=3"]).startswith("--set: unknown key 'prob'")


def test_other_yaml_versions_are_refused(write):
    assert "a %YAML line is not allowed" in refusal(write("%YAML 1.1\n---\n" + GOOD))


def test_override_within_a_section_is_named_with_its_section(write):
    columns = GOOD.replace("rows.csv", "rows.csv\n  columns: {text: body}")
    experiment = load_experiment(write(columns), ["data.columns.label=lab"])
    message = r"line 8 or --set data\.columns\.label: no column"
    with pytest.raises(ConfigError, match=message), experiment.at("data", "columns"):
        raise ConfigError("no column")


def test_only_the_first_of_many_errors_are_listed(write):
    answer = refusal(write(GOOD + "".join(f"x{n}: 1\n" for n in range(5000))))
    assert answer.count("\n") == 20
    assert answer.endswith("... and 4,980 more.")
    items = ", ".join(map(str, range(20)))
    assert " more." not in refusal(write(GOOD), [f"capture.sites=[{items}]"])


def test_line_numbers_are_not_part_of_the_experiment(write):
    path = write(GOOD)
    moved = path.with_name("moved.yaml")
    moved.write_text("\n\n" + GOOD)
    assert load_experiment(path) == load_experiment(moved)
    unplaced = Experiment.model_validate(load_experiment(path).model_dump())
    with (
        pytest.raises(ConfigError, match=r"^model\.source: wrong$"),
        unplaced.at("model", "source"),
    ):
        raise ConfigError("wrong")


def test_overrides_are_parsed_and_named_in_messages(write):
    path = write(GOOD)
    assert load_experiment(path, ["probe.C=[1, 0.1]"]).probe.C == (1.0, 0.1)
    assert load_experiment(path, ["probe.folds=3", "probe.seed=2"]).probe.seed == 2
    assert refusal(path, ["probe.fold=3"]) == "--set: unknown key 'probe.fold'. Nearest: folds."
    assert refusal(path, ["tokens.position.at=lats"]) == (
        "--set: tokens.position.at is 'lats'. Nearest: last. "
        "Allowed: all, assistant_last, first, index, last, mean, span, user_last, word."
    )
    assert refusal(path, ["tokens.position.at=word"]).startswith("--set: tokens.position.at is")
    assert refusal(path, ["tokens.position.index=3"]).startswith(
        "--set tokens.position.index: `index` must be given"
    )
    assert refusal(path, ["tokens.position={at: lats}"]).startswith(
        "--set: tokens.position.at is 'lats'"
    )
    assert refusal(path, ["probe.C=[1, 1]"]).startswith(
        "--set: probe.C.1 is 1, which is already in"
    )
    assert "section.key=value" in refusal(path, ["probe.folds"])
    assert "not a section" in refusal(path, ["name.x=1"])
    assert "--set name" in refusal(path, ["name=[a"])


def test_written_experiment_loads_as_the_same(write, tmp_path):
    experiment = load_experiment(write(GOOD), ["question=Does it know?"])
    again = tmp_path / "again.yaml"
    again.write_text(dump_experiment(experiment))
    assert load_experiment(again) == experiment
    assert "folds: 5" in again.read_text()
    assert "pieces: last" in again.read_text()  # a default, although `at` is not `word`


def test_pieces_may_be_set_with_position_word(write):
    columns = ["data.columns.start=s", "data.columns.end=e", "tokens.position.at=word"]
    experiment = load_experiment(write(GOOD), [*columns, "tokens.position.pieces=mean"])
    assert experiment.tokens.position.text == "word:mean"


def test_missing_file_and_folder_have_different_messages(tmp_path):
    with pytest.raises(MissingError, match=str(tmp_path / "none.yaml")):
        load_experiment(tmp_path / "none.yaml")
    assert "is not a file" in refusal(tmp_path)


def test_binary_files_are_refused(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"name: caf\xe9\n")
    assert "not UTF-8" in refusal(path)


def shipped():
    folder = Path(__file__).parents[2] / "experiments"
    return sorted(p for p in folder.glob("*.yaml") if not p.name.startswith("pretrain_"))


@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.stem)
def test_included_experiments_load_and_name_their_schema(path):
    assert load_experiment(path).name == path.stem
    first = path.read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=experiment.schema.json"


def test_intervals_have_no_number_of_resamples(write):
    with pytest.raises(ConfigError, match=r"line \d+: unknown key 'probe.bootstrap'"):
        load_experiment(write(GOOD + "probe: {bootstrap: 1000}\n"))


@pytest.mark.parametrize(("kind", "option"), [("mlp", "hidden"), ("structural_depth", "rank")])
def test_a_layer_that_exceeds_the_memory_is_refused(write, kind, option):
    text = f"probe: {{kinds: [{{kind: {kind}, {option}: 1000000000}}]}}\n"
    with pytest.raises(ConfigError, match=rf"{option} is 1000000000. It must be at most 65,536"):
        load_experiment(write(GOOD + text))


def test_a_site_that_is_given_twice_is_refused(write):
    text = "capture: {sites: [hook_embed, hook_embed]}\n"
    with pytest.raises(ConfigError, match=r"capture\.sites\.1 is 'hook_embed', which is already"):
        load_experiment(write(GOOD + text))


def test_no_example_is_a_placeholder(write):
    with pytest.raises(ConfigError, match=r"such as \[The keys to the cabinet\]"):
        load_experiment(write(GOOD + "attention: {texts: 3}\n"))
