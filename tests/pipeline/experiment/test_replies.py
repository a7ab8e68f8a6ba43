"""Runs on replies that the network generates: rows, labels, groups, baselines and resumption."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from probekit.data.examples import Dataset, Example
from probekit.errors import DataError
from probekit.experiment.loader import load_experiment
from probekit.model.generation import Continuation
from probekit.pipeline.capture.captures import capture_only
from probekit.pipeline.capture.jobs import lay_out
from probekit.pipeline.engines import replies
from probekit.pipeline.engines.replies import REPLIES, label_of, replied
from probekit.pipeline.engines.table import How, prepare
from probekit.pipeline.experiment.run import run
from probekit.pipeline.experiment.validate import validate
from probekit.pipeline.measure.probing import make_probers
from probekit.pipeline.measure.record import findings
from probekit.results.record import NO_CONTROL
from probekit.results.table import only
from probekit.terminal import SILENT
from tests.pipeline.scale import Heard
from tests.pipeline.texts import text_of

NOUNS = ["man", "woman", "king", "queen", "captain", "doctor", "brother", "sister", "lady", "lord"]
NOUNS += ["child", "horse"]
VERBS = ["said", "thought", "went", "came"]
PROMPTS = [f"The {noun} {verb} that" for noun in NOUNS for verb in VERBS]


def write(folder, rows=PROMPTS):
    prompts = pd.DataFrame({"text": rows, "answer": "he", "label": "a"})
    prompts.to_csv(folder / "prompts.csv", index=False)
    (folder / "replies.yaml").write_text(text_of("replies.yaml"))
    return folder / "replies.yaml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replies")
    return write(folder).parent


def load(folder, *overrides):
    return load_experiment(folder / "replies.yaml", overrides)


@pytest.fixture(scope="module")
def finished(folder):
    """The finished run of the experiment."""
    return run(load(folder), out=folder / "runs", cache_root=folder / "cache", progress=False)


def generating(folder):
    return How(replies="generated", cache_root=folder / "cache")


@pytest.fixture(scope="module")
def source(folder, finished):
    return prepare(load(folder), generating(folder))


def score(table, share, **row):
    columns = {"position": f"share:{share}", "split": "test", "metric": "accuracy"} | row
    return only(table, **columns)["value"].item()


def test_the_answer_is_decodable_where_it_was_given(finished):
    """The label is that of the last word: known at the end of a reply, and not before."""
    site = {"site": "blocks.4.hook_resid_post", "target": "task"}
    start, middle, end = (score(finished.table, share, **site) for share in ("0", "0.5", "1"))
    majority = score(finished.table, "1", target="majority")
    assert end > majority + 0.15
    assert max(start, middle) < majority + 0.08
    # A bag of the words that were read by then scores no more.
    assert score(finished.table, "0.5", target="bag_of_words") < majority + 0.08


def test_baselines_read_no_more_than_the_network(source):
    rows = source.design
    for position, share in enumerate((0, 0.5, 1)):
        texts, replies = rows.texts_at(position)
        for row in range(0, len(rows.example), 7):
            example = rows.dataset.examples[rows.example[row]]
            prompt = example.text[: example.turns[0][1]]
            tokens = source.texts.tokenizer.decode_tokens(example.reply_ids)
            reply, offsets = example.text[len(prompt) :], tokens.offsets.tolist()
            # Spaces alone do not count.
            ends = [end for start, end in offsets if reply[start:end].strip()]
            assert texts[row] == prompt + replies[row]
            expected = [0, ends[(len(ends) + 1) // 2 - 1], ends[-1]][position]
            assert len(replies[row]) == expected, share
    [data, *_] = rows.data(1, None, rows.splits)
    for found, expected in zip((data.texts, data.replies), rows.texts_at(1), strict=True):
        assert found.tolist() == expected.tolist()


def test_rows_equal_those_of_an_ordinary_pass(folder, source):
    opened = source.open(lambda one: capture_only(load(folder), cache_root=folder / "cache"))
    texts, model = source.texts, source.models("task")
    for position in range(3):
        for site in texts.selections:
            X = opened.activations.block(site, position)
            for row in range(0, len(texts.example), 29):
                number = row * 3 + position
                ids = texts.ids[texts.example[row]]
                _, cache = model.run_with_cache(torch.from_numpy(ids)[None], [site.text])
                token = texts.plan.positions[texts.plan.offsets[number]]
                expected = cache[site.text][0, token].numpy()
                error = np.linalg.norm(X[np.array([row])][0] - expected)
                assert error <= 1e-5 * np.linalg.norm(expected)


def test_samples_of_a_prompt_are_one_group(source):
    rows = source.design
    groups = {one.text[: one.turns[0][1]]: one.group for one in rows.dataset.examples}
    assert len(set(groups.values())) == len(PROMPTS)
    assert all(groups[one.text[: one.turns[0][1]]] == one.group for one in rows.dataset.examples)
    assert not set(rows.groups[rows.splits[0].train]) & set(rows.groups[rows.splits[0].test])


def test_all_replies_are_kept_with_the_run(finished, source):
    lines = [json.loads(line) for line in (finished.folder / REPLIES).read_text().splitlines()]
    assert len(lines) == 3 * len(PROMPTS)
    assert [line["prompt"] for line in lines[::3]] == PROMPTS
    labels = {one.id: one.label for one in source.design.dataset.examples}
    assert {line["id"]: line["label"] for line in lines if line["label"]} == labels
    for line, example in zip(lines, source.design.dataset.examples, strict=False):
        assert line["prompt"] + line["reply"] == example.text
        assert source.texts.tokenizer.decode(line["ids"]) == line["reply"]


def test_the_finding_counts_labels(finished, source, snapshot):
    [finding] = [one for one in source.design.findings if one.code == "replies"]
    assert finding.message == snapshot
    assert finding.message in [one["message"] for one in finished.record["data"]["findings"]]


def test_a_missing_control_task_is_one_finding(folder, source):
    experiment = load(folder, "probe.control_draws=2")
    found = findings(source.design, make_probers(experiment, source.design))
    [message] = [one.message for one in found if one.code == NO_CONTROL]
    assert "at share:1; 3 of 3 positions have no control task" in message


def test_untrained_networks_read_the_finished_texts(folder, finished):
    captured = capture_only(load(folder), cache_root=folder / "cache")
    assert captured["task"].store.identity.origin
    assert not captured["random_weights_0"].store.identity.origin
    assert captured["random_weights_0"].computed == 0


def stopping(step, n):
    """A watcher that stops a run in a step, at its n-th report."""

    def stop(_):
        if [one for one, *_ in heard.steps].count(step) == n:
            raise KeyboardInterrupt

    heard = Heard(stop)
    return heard


def test_a_killed_run_resumes_with_the_same_replies_and_tables(tmp_path, finished):
    write(tmp_path)
    options = {"out": tmp_path / "runs", "cache_root": tmp_path / "cache"}
    for step, n in (("generate", 2), ("capture", 1), ("probe", 2)):
        with pytest.raises(KeyboardInterrupt):
            run(load(tmp_path), watcher=stopping(step, n), **options)
    resumed = run(load(tmp_path), watcher=SILENT, **options)
    assert resumed.folder.name == finished.folder.name
    for name in (REPLIES, "results.csv", "differences.csv", "predictions.csv"):
        assert (resumed.folder / name).read_bytes() == (finished.folder / name).read_bytes()


def test_sampling_is_part_of_the_identity(folder, finished):
    origins = {
        prepare(load(folder, change), generating(folder)).identity()["origin"]
        for change in ("name=replies", "capture.generate.seed=2", "capture.generate.top_k=40")
    }
    assert len(origins) == 3


MISTAKES = ["data.label_of_reply.match=.", "data.label_of_reply.match=QQQ"]
MISTAKES += ["tokens.position={between: [QQQ, '']}", "capture.generate.max_new_tokens=256"]


@pytest.mark.parametrize("override", [*MISTAKES, "capture.generate.stop=[' ']"])
def test_replies_that_cannot_be_probed_are_refused(folder, tmp_path, refused, override):
    write(tmp_path)
    refused(prepare, load(tmp_path, override), generating(folder))


def test_a_prompt_that_leaves_no_room_is_refused(tmp_path, refused):
    write(tmp_path, [*PROMPTS, "so " * 250])
    refused(prepare, load(tmp_path), generating(tmp_path))
    kept = prepare(load(tmp_path, "tokens.too_long=skip"), generating(tmp_path)).design
    assert len(kept.dataset) == 3 * len(PROMPTS)


def test_other_processes_do_not_generate(tmp_path, refused):
    write(tmp_path)
    refused(lay_out, load(tmp_path), cache_root=tmp_path)


def test_validate_counts_replies_once_they_are_generated(folder, snapshot, monkeypatch, tmp_path):
    monkeypatch.setattr(replies, "default_root", lambda: tmp_path)
    assert repr(validate(load(folder))) == snapshot
    monkeypatch.setattr(replies, "default_root", lambda: folder / "cache")
    [finding] = [one for one in validate(load(folder)).findings if one.code == "replies"]
    assert "144 replies to 48 prompts" in finding.message
    assert validate(load(folder)).n_rows == 3 * 144


def reply(text, n=0):
    return Continuation(text, (n,), None)


@pytest.mark.parametrize(
    ("rule", "labels"),
    [
        ({"match": "yes"}, ["yes", "no", "yes", "no"]),
        ({"match": "yes", "other": r"\bno\b"}, ["yes", "no", None, None]),
        ({"equals": "answer"}, ["no", "no", "no", "yes"]),
        ({"match": r"\w+ ?$", "equals": "answer"}, ["no", "no", "no", "yes"]),
        ({"match": r"(\w+), ", "equals": "answer"}, [None, None, "no", None]),
    ],
    ids=str,
)
def test_rules_label_replies(folder, rule, labels):
    settings = load(folder, f"data.label_of_reply={json.dumps(rule)}").data.label_of_reply
    texts = [" yes", " no", " yes, no", " he "]
    assert [label_of(settings, text, {"answer": "he"}) for text in texts] == labels


@pytest.mark.parametrize(
    "rule", [{"match": "(a+)+$"}, {"match": "(a|a)*$"}, {"match": "b", "other": "(a|aa)+$"}]
)
def test_an_expression_that_takes_for_ever_is_ended(folder, monkeypatch, rule):
    monkeypatch.setattr(replies, "SECONDS_TO_MATCH", 0.2)
    settings = load(folder, f"data.label_of_reply={json.dumps(rule)}").data.label_of_reply
    with pytest.raises(DataError, match=r"was not matched with a reply in 0\.2 s"):
        label_of(settings, "a" * 50 + "!", {})
    assert label_of(settings, "aaa", {}) is not None  # and the limit is removed


def test_replies_without_text_or_label_are_left_out_and_counted(folder):
    experiment = load(folder, 'data.label_of_reply={"match": "yes", "other": "no"}')
    prompts = Dataset("x", tuple(Example(f"p{n}", "x", f"g{n % 2}", f"r{n}") for n in range(4)))
    texts = [["yes", "yes"], ["no", " "], ["maybe", "no yes"], ["no", "no"]]
    pairs = [[reply(one) for one in pair] for pair in texts]
    dataset, lines, [finding, *_] = replied(experiment, prompts, pairs)
    kept = ("r0 sample 1", "r0 sample 2", "r1 sample 1", "r3 sample 1", "r3 sample 2")
    assert tuple(one.id for one in dataset.examples) == kept
    assert len(lines.splitlines()) == 8
    assert finding.message == (
        "8 replies to 4 prompts (up to 10 tokens, temperature 1, seed 1): 3 no, 2 yes; 1 empty "
        "left out; 2 without a label left out; 8 ended by max_new_tokens (3 no, 2 yes)."
    )


@pytest.mark.parametrize(
    ("rule", "position", "is_warned"),
    [
        ({"match": "so"}, "{share: [0, 1]}", True),
        ({"match": "so"}, "{share: [0]}", False),
        ({"match": r"\w+", "equals": "answer"}, "{share: [0, 1]}", False),
    ],
    ids=str,
)
def test_labels_that_words_of_the_reply_define_are_warned_of(folder, rule, position, is_warned):
    overrides = [f"data.label_of_reply={json.dumps(rule)}", f"tokens.position={position}"]
    example = Example("p", "x", "g", "r", values=(("answer", "so"),))
    texts = [[reply("so"), reply("it")]]
    *_, found = replied(load(folder, *overrides), Dataset("x", (example,)), texts)
    assert ("label-from-reply" in [one.code for one in found]) == is_warned


def test_equal_prompts_are_one_group(folder):
    rows = enumerate(("p", "p "))  # a template may strip spaces
    prompts = Dataset("x", tuple(Example(text, "x", f"row {n}", f"row {n}") for n, text in rows))
    texts = [["longer", "so"], ["it", "is"]]
    pairs = [[reply(one) for one in pair] for pair in texts]
    dataset, *_ = replied(load(folder), prompts, pairs)
    assert set(dataset.groups) == {"row 0"}


def test_a_missing_column_is_found_before_the_generation(folder, monkeypatch):
    monkeypatch.setattr(replies, "generate_replies", lambda *_, **__: pytest.fail("generated"))
    with pytest.raises(DataError, match="no column 'answers'"):
        prepare(load(folder, "data.label_of_reply={equals: answers}"), generating(folder))
