"""Every mistake in a file is reported with file, line and key, and the nearest name."""

import re

import pytest
from pydantic import BaseModel, ValidationError

from probekit.experiment.document import Document, explain, find_faults
from probekit.experiment.loader import load_any_experiment, load_experiment, load_recipe
from probekit.experiment.schema import Experiment
from tests.experiment.files import GIVEN, GOOD, RECIPE, refusal, refused_recipe
from tests.pipeline.intervene.cause_experiment import YAML as CAUSES

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = "  format: csv\n  file: rows.csv\n"
HUB = f"  hub: {{name: org/name, revision: {COMMIT}}}\n"
TOKENS = "tokens:\n  bos: false\n  position: {at: last}\n"
ABLATE = "{do: ablate, with: zero, sites: blocks.0.hook_mlp_out}"
USER_LAST = "tokens: {chat: true, position: {at: user_last}}\n"
AT = "Allowed: all, assistant_last, first, index, last, mean, span, user_last, word."

# Replaced text ("" appends lines), its replacement, line, and a fragment of the message.
OF_YAML = [
    ("name: small", "name small", 1, "`name small` is not `key: value`"),
    ("name: small\n", "# why\n\nname small\n\n# more: x\n", 3, "`name small` is not `key: value`"),
    ("bos: false", "bos false # not: this", 9, "`bos false` is not `key: value`"),
    ("  position: {at: last}\n", "  position\n", 10, "`position` is not `key: value`"),
    ("name: small", "name:small", 1, "`name:small` is not `key: value`"),
    ("", "probe:\n  kinds:\n  - kind mlp\n    hidden: 3\n", 13, "`kind mlp` is not `key: value`"),
    ("name: small", "name: small: x", 1, "mapping values are not allowed here. Indent with spaces"),
    ("name: small", "\tname: small", 1, r"found character '\t'"),
    ("name: small", "name: [a", 2, "expected ',' or ']'"),
    ("name: small", "name: small\nname: again", 2, 'found duplicate key "name"'),
    ("name: small", "name: &x small\nquestion: *x", 2, "aliases (*x) are not allowed"),
    ("", "capture: {sites: [*.hook_z]}\n", 11, "aliases (*.hook_z) are not allowed"),
    ("", "capture: {sites: [*, b]}\n", 11, "such as *, # or a colon, in quotes"),
    ("name: small", "name: !!python/object:os.system x", 1, "tags (tag:yaml.org,2002:python/"),
    ("name: small", "name: !x small", 1, "tags (!x) are not allowed"),
    ("name: small", "name: " + "[" * 10_000, 1, "nested deeper than 20 levels"),
    ("name: small", "%YAML 1.1\n---\nname: small", 2, "a %YAML line is not allowed"),
    ("", "---\na: b\n", 11, "but found another document"),
    ("rows.csv", '"a\\0b"', 7, r"data.file: the text contains '\x00', which is not allowed"),
    ("rows.csv", '"\\ud800"', 7, r"data.file: the text contains '\ud800'"),
]
OF_TYPES = [
    ("model:", "modle:", 2, "unknown key 'modle'. Nearest: model."),
    ("  source:", "  sorce:", 3, "unknown key 'model.sorce'. Nearest: source."),
    ("  bos: false\n", "", 8, "the key 'tokens.bos' is missing; whether to prepend the beginning"),
    ("name: small\n", "", 1, "the key 'name' is missing; name of the experiment and of the folder"),
    ("  position: {at: last}\n", "", 8, "'tokens.position' is missing; a section with keys: at,"),
    ("model:\n  source: mini", "model: mini", 2, "It must be a section with keys: source, path,"),
    ("{at: last}", "last", 10, "tokens.position is 'last'. It must be a section with keys: at, p"),
    ("{at: last}", "{at: lasd}", 10, f"tokens.position.at is 'lasd'. Nearest: last. {AT}"),
    ("format: csv", "format: xls", 6, "data.format is 'xls'. Allowed: columns, conllu, csv"),
    ("", "capture: {dtype: 16}\n", 11, "capture.dtype is 16. Allowed: float16, float32."),
    ("bos: false", "bos: no", 9, "tokens.bos is 'no'. It must be true or false."),
    ("bos: false", "bos:", 9, "tokens.bos is null (empty). It must be true or"),
    ("name: small", "name: [a]", 1, "name is ['a']. It must be text"),
    ("name: small", "name: my question", 1, "name is 'my question'. The text should match"),
    ("name: small", f"name: {'a' * 81}", 1, "The text should have at most 80 characters."),
    ("name: small", "name: aux", 1, "name is 'aux', which Windows reserves; try 'my_aux'"),
    ("name: small", "name: a.", 1, "name is 'a.', and Windows removes a dot"),
    ("rows.csv", "3", 7, "data.file is 3. It must be text (a number needs quotes)."),
    ("rows.csv", "https://a.org/x", 7, "data.file: `file` is a URL (https://a.org/x); download"),
    ("source: mini", "source: ''", 3, "The text should have at least 1 character."),
    ("", "probe: {folds: 2.5}\n", 11, "probe.folds is 2.5. It must be an integer."),
    ("", "probe:\n  folds: 1\n", 12, "probe.folds is 1. It must be at least 2."),
    ("", "probe: {permutations: 1000000001}\n", 11, "must be at most 1000000."),
    ("", "split: {test: half}\n", 11, "split.test is 'half'. It must be a number."),
    ("", "split: {test: 0.0}\n", 11, "split.test is 0.0. It must be greater than 0."),
    ("", "split: {test: .nan}\n", 11, "split.test is nan. It must be a finite number."),
    ("", "probe: {seed: -1}\n", 11, "probe.seed is -1. It must be at least 0."),
    ("", "probe: {C: 1}\n", 11, "probe.C is 1. It must be a list: [..., ...]."),
    ("", "probe: {C: []}\n", 11, "probe.C is []. The list should have at least 1 item"),
    ("", "probe: {C: [0.1, 0]}\n", 11, "probe.C.1 is 0. It must be at least 0.0000000001"),
    ("", "probe: {C: [.inf]}\n", 11, "probe.C.0 is inf. It must be a finite number."),
    ("", "probe:\n  folds: 3\n  C: [1, 1]\n", 13, "probe.C.1: 1.0 is in the list twice."),
    ("", "capture: {sites: [a, a]}\n", 11, "capture.sites.1: 'a' is in the list twice."),
    ("", "capture:\n  concatenate: [a]\n", 12, "capture.concatenate.0 is 'a'. It must be a list"),
    ("", "probe: {kinds: [{kind: mlp, hidden: 1000000000}]}\n", 11, "at most 65536"),
    ("", "probe: {kinds: [{kind: logistik}]}\n", 11, "'logistik'. Nearest: logistic"),
    ("", "probe: {kinds: [{kind: k_sparse, k: [0]}]}\n", 11, "must be at least 1"),
    ("", "probe: {kinds: [{kind: k_sparse, k: 4}]}\n", 11, "k is 4. It must be a list"),
    ("", "probe: {kinds: [{kind: k_sparse, k: []}]}\n", 11, "at least 1"),
    ("", "probe: {kinds: [{kind: k_sparse, kk: 1}]}\n", 11, "unknown key"),
]
OF_RULES = [
    ("{at: last}", "{at: index}", 10, "`index` must be given for `at: index`, and only then"),
    ("{at: last}", "\n    at: last\n    index: 3", 12, "tokens.position.index: `index` must be"),
    ("{at: last}", "\n    at: first\n    pieces: mean", 12, "`pieces: mean` requires `at: word`"),
    ("{at: last}", "\n    at: last\n    offset: 1", 12, "`offset` is counted from a span, word"),
    ("{at: last}", "{at: last}\n  sweep: [0]", 11, "`sweep` is counted from a span"),
    ("{at: last}", "{at: word, pieces: all}\n  sweep: [0]", 11, "`sweep` requires one row per"),
    ("{at: last}", "{at: word, offset: 1}\n  sweep: [0]", 11, "give either `sweep` or"),
    ("{at: last}", "{at: word}\n  sweep: [1, 1]", 11, "tokens.sweep.1: 1 is in the list twice"),
    ("{at: last}", "\n    at: span", 11, "tokens.position.at is 'span', but data.columns has no"),
    ("", "probe: {kinds: [{kind: attention_pooled}]}\n", 11, "`tokens.position: {at: all}`"),
    ("", "probe:\n  kinds: [{k: [3]}]\n", 12, "the key 'probe.kinds.0.kind' is missing; name of"),
    (
        "",
        "probe:\n  kinds: [{kind: mass_mean, k: 3}]\n",
        12,
        "`k` is not an option of `kind: mass_mean`. Its options: `covariance`; it is for k_sparse",
    ),
    (
        "",
        "probe:\n  kinds:\n  - {kind: mass_mean}\n  - {kind: mass_mean, covariance: false}\n",
        14,
        "probe.kinds.1: ['mass_mean'] is in the list twice",
    ),
    ("", "probe: {permutations: 19}\n", 11, "with 19 permutations no p-value is below 0.05; give"),
    ("", "probe: {learning_steps: 1}\n", 11, "a learning curve has at least 2 steps"),
    ("", "split: {folds: 2, word_disjoint: true}\n", 11, "cannot be combined with `word_disjo"),
    ("source: mini", "source: a/b@main\n  checkpoints: [1]", 4, "model.checkpoints: "),
    ("", f"interventions: [{ABLATE}]\n", 11, "`interventions` require `measure`"),
    ("", "measure: [kl]\n", 11, "`measure` is for `interventions`"),
    ("bos: false", "bos: true\n  chat: true", 9, "`chat: true` excludes `bos: true`"),
    ("bos: false", "chat: false", 8, "the key 'tokens.bos' is missing"),
    ("bos: false", "chat: true\n  too_long: truncate", 10, "excludes `too_long: truncate`"),
    ("rows.csv", "rows.csv\n  columns: {reply: r}", 8, "reply requires `tokens.chat: true`"),
    ("{at: last}", "{at: user_last}", 10, "`at: user_last` requires `tokens.chat: true`"),
    (TOKENS, "tokens: {chat: true, position: {at: assistant_last}}\n", 8, "requires `data.columns"),
    (TOKENS, f"  columns: {{reply: r}}\n{USER_LAST}", 9, "before the reply, which baselines would"),
]
OF_DATA = [
    ("  format: csv\n", "", 4, "the key 'data.format' is missing; format of the files"),
    ("  file: rows.csv\n", "", 4, "data: give either `file`, or both `train` and `test`."),
    ("format: csv", "format: memory", 7, "data.file: the format is memory, which has no files"),
    (FILES, "  format: hub\n", 4, "`format: hub` requires the section `hub`"),
    (FILES, FILES + HUB, 8, "data.hub: the section hub excludes the format csv"),
    (FILES, "  hub: {}\n", 6, "the key 'data.hub.name' is missing; name on the hub, or a folder"),
    (FILES, "  hub: {name: org/name}\n", 6, "`revision` is missing. It must be the hash of a "),
    (FILES, HUB.replace(COMMIT, "main"), 6, "data.hub.revision: `revision` is main. It must"),
    (FILES, HUB.replace("org/name", "https://huggingface.co/a/b"), 6, "not a URL"),
    (FILES, HUB.replace("}", ", train: train}"), 6, "give either `split`, or both `train`"),
    (FILES, HUB.replace("}", ", train: a, test: a}"), 6, "`train` and `test` are the same split"),
    ("file: rows.csv", "file: rows.csv\n  columns:\n    end: e", 9, "`start` and `end` must be"),
    ("file: rows.csv", "train: a\n  test: b\n  columns:\n    split: s", 10, "a single table"),
    ("format: csv", "format: conllu\n  columns:\n    text: t", 8, "`columns.text` is for tables"),
    ("format: csv", "format: columns\n  columns: {id: 3}", 7, "has text, label, group"),
    ("format: csv", "format: conllu\n  pairs: p", 7, "`pairs` names a column of a table"),
    ("file: rows.csv", "file: rows.csv\n  columns: {text: true}", 8, "columns.text is true. It m"),
]
OF_CAUSES = [
    ("from: counterfactual, ", "", "`do: patch` requires `from`"),
    ("with: mean", "with: median", "interventions.1.with is 'median'. Nearest: mean"),
    ("with: mean", "with: mean, by: [-1, 1]", "`by` is not a key of `do: ablate`; it is for s"),
    ("rank: 1", "rank: 2", "rank is 2"),
    ("by: [-2, 2]", "by: [2]", "The list should have at least 2 items"),
    ("by: [-2, 2]", "by: [0, 2]", "a dose is at least 0.01 or at most -0.01"),
    ("by: [-2, 2]", "by: [2, 2]", "2.0 is in the list twice"),
    ("at: [probed, all]", "at: [all, all]", "'all' is in the list twice"),
    ("along: mean_difference, by", "along: prob, by", "'prob'. Nearest: probe. Allowed: leace"),
    ("along: mean_difference, by", "along: 1, by", "along is 1. It must be a list"),
    ("draws: 59}", "draws: 39}", "draws is 39. It must be at least 59"),
    ("  pairs: nearest_flipped\n", "", "`do: swap` require `data.pairs`"),
    (", wrong: nearest_other", "", "`logit_difference` requires `wrong`"),
    ("logit_difference: {answer: nearest_verb, wrong: nearest_other}", "kl", "needs `answer`"),
    ("logit_difference:", "accuracy:", "measure with a direction"),
    ("at: [probed, all]", "at: [first]", "at.0 is 'first'"),
    ("along: mean_difference, by", "at: each, by", "`at: each` is for patch and ablate"),
]
OF_RECIPES = [
    ("steps: 10", "steps: 0", 4, "training.steps is 0. It must be at least 1."),
    ("n_head: 2", "n_head: 3", 3, "n_head=3 does not divide n_embd=16"),
    ("batch: 4", "batch: 4, accumulate: 3", 4, "accumulate (3) does not divide batch (4)"),
    ("batch: 4", "batch: 4, warm_up: 11", 4, "warm_up and decay_steps add up to more than steps"),
    ("batch: 4", "batch: 4, betas: [0.9, 1.0]", 4, "must be less than 1"),
    ("{source: books}", "{source: ''}", 2, "corpus.source"),
    ("", "repeats: {share: [0.5, 0.1]}\n", 5, "the maximum is 16"),
    ("", "repeats: {period: [9, 3]}\n", 5, "period is [shortest, longest]"),
    ("", "checkpoints: {at: [11]}\n", 5, "after the last step, 10"),
]
OF_GIVEN = [
    ("", "tokens: {bos: false}\n", 4, "the sections `tokens` and `activations` exclude each other"),
    ("", "split: {drop_repeated: true}\n", 4, "split.drop_repeated: `drop_repeated` compares "),
    ("", "probe: {kinds: [{kind: attention_pooled}]}\n", 4, "reads the tokens of whole texts"),
    ("format: csv, ", "", 3, "data.file: `file` requires `format`"),
    ("file: rows.csv", "file: https://a.org/x", 3, "`file` is a URL"),
    ("activations:", "activation:", 2, "unknown key 'activation'. Nearest: activations."),
]


@pytest.mark.parametrize(
    ("good", "refused", "mistake"),
    [
        *((GOOD, refusal, one) for one in (*OF_YAML, *OF_TYPES, *OF_RULES, *OF_DATA)),
        *((CAUSES, refusal, (old, new, None, text)) for old, new, text in OF_CAUSES),
        *((RECIPE, refused_recipe, one) for one in OF_RECIPES),
        *((GIVEN, refusal, one) for one in OF_GIVEN),
    ],
)
def test_a_mistake_is_reported_with_file_and_line(write, good, refused, mistake):
    old, new, line, fragment = mistake
    assert old in good
    path = write(good.replace(old, new) if old else good + new)
    answer = refused(path)
    assert answer.startswith(f"{path}, line {line or ''}")
    assert not line or f"line {line}" in answer
    assert fragment in answer


@pytest.mark.parametrize(
    ("text", "line", "fragment"),
    [
        (b"", 1, "the file has no keys. Write `key: value` lines"),
        (b"text\n", 1, "the file has no keys"),
        (b"a: &a [x, x]\nb: [*a, *a]\n", 2, "aliases (*a) are not allowed"),
        (b"a: 1\nb: caf\xe9\n", 2, "the byte 0xe9 is not UTF-8 text. Save the file as UTF-8."),
        (b"a: " + b"1" * 5000, None, "is not valid YAML"),
        (b"\x00", None, "is not valid YAML"),
        (b"#" * 1_200_000, None, "has 1,200,000 bytes"),
    ],
)
def test_a_file_that_has_no_keys_is_refused_in_one_line(tmp_path, text, line, fragment):
    assert "is not a file" in refusal(tmp_path)
    path = tmp_path / "file.yaml"
    path.write_bytes(text)
    answer = refusal(path)
    assert answer.startswith(f"{path}, line {line}: " if line else f"{path} ")
    assert fragment in answer
    assert (answer.count("\n"), answer.count(str(path))) == (0, 1)


@pytest.mark.parametrize(
    ("text", "load", "fragment"),
    [
        (RECIPE, load_experiment, "line 2: this is a pretraining recipe. Read it with `probekit p"),
        (RECIPE, load_any_experiment, "line 2: this is a pretraining recipe"),
        (GIVEN, load_experiment, "line 2: this is an experiment on given activations"),
        (GOOD, load_recipe, "line 8: this is an experiment on texts. Read it with `probekit run "),
    ],
)
def test_a_file_of_another_kind_is_refused_with_its_command(write, text, load, fragment):
    assert fragment in refusal(write(text), load=load)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("probe.fold=3", "--set: unknown key 'probe.fold'. Nearest: folds."),
        ("tokens.position.at=lats", f"--set: tokens.position.at is 'lats'. Nearest: last. {AT}"),
        ("tokens.position.index=3", "--set: tokens.position.index: `index` must be given"),
        ("probe.C=[1, 1]", "--set: probe.C.1: 1.0 is in the list twice."),
        ("probe.folds=", "--set probe.folds=: write it as section.key=value, or section.key=null"),
        ("probe.C.0=1", "--set probe.C.0=1: a list can only be set as a whole: --set 'probe.C"),
        ("probe.kinds[0].kind=lda", "--set 'probe.kinds=[...]'"),
        ("name.x=1", "--set name.x=1: 'name' is a value, not a section."),
        ("name=[a", "--set name, line 1: expected ',' or ']'"),
        ("probe.folds=3\nx: 4", "--set probe.folds: give one value on one line."),
        ("model.source=~nobody.at.all/x", "--set: model.source is '~nobody.at.all/x', which is no"),
        (f"data.root={'x' * 300}", "which is not a valid path"),
    ],
)
def test_a_mistake_in_an_override_names_the_override(write, override, message):
    answer = refusal(write(GOOD), [override])
    assert answer.startswith("--set")
    assert message in answer


def test_independent_mistakes_are_all_reported_and_their_consequences_are_not(write):
    path = write(GOOD.replace("source", "sauce").replace("bos: false", "bos: 1"))
    assert len(refusal(path).splitlines()) == 3  # unknown key, missing key, wrong type
    answer = refusal(write(GOOD), ["probe.C=[0, x]"])
    assert [line.split(" is ")[0] for line in answer.splitlines()] == [
        "--set: probe.C.0",
        "--set: probe.C.1",
    ]


def test_only_the_first_of_many_mistakes_are_listed(write):
    answer = refusal(write(GOOD + "".join(f"x{n}: 1\n" for n in range(5000))))
    assert answer.count("\n") == 20
    assert answer.endswith("... and 4,980 more.")
    items = ", ".join(map(str, range(20)))
    assert " more." not in refusal(write(GOOD), [f"capture.sites=[{items}]"])


def test_names_similar_to_reserved_ones_are_allowed(write):
    for name in ("auxiliary", "com", "console", "a.nul", "v1.2"):
        assert load_experiment(write(GOOD), [f"name={name}"]).name == name


# Terms of Python and pydantic that do not occur in YAML files.
JARGON = re.compile(
    r"Input should|Field required|instance|dictionar|[Tt]uple|None|True|False|valid"
)
WRONG = [None, "", "?", 3, -1, 0.5, float("nan"), True, [], [{}], [0], {}, {"x": 1}, "x" * 100]


def all_keys(section=Experiment, above=()):
    for key, field in section.model_fields.items():
        yield (*above, key)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from all_keys(field.annotation, (*above, key))


@pytest.mark.parametrize("keys", list(all_keys()), ids=".".join)
def test_messages_contain_no_python_terms(write, keys):
    refused = 0
    for value in WRONG:
        section = values = load_experiment(write(GOOD)).model_dump()
        for key in keys[:-1]:
            section[key] = section = {**(section[key] or {})}
        section[keys[-1]] = value
        try:
            Experiment.model_validate(Document(values).values())
        except ValidationError as error:
            for place, text in (explain(fault, Experiment) for fault in find_faults(error)):
                refused += 1
                assert not JARGON.search(text.replace("FEATS:Name", "")), text
                assert place
                assert text.endswith(".")
    assert refused
