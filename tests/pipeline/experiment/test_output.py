"""Numbers of the output of an experiment are those at each of its positions, and of its answers."""

from functools import partial

import numpy as np
import pytest
import torch

from probekit import Tokenizer, load_model
from probekit.experiment.loader import load_experiment
from probekit.pipeline.capture.captures import capture_models
from probekit.pipeline.engines.table import prepare
from probekit.pipeline.setup.output import first_token
from probekit.terminal import SILENT
from tests.pipeline.texts import text_of

NOUNS = ("key", "dog", "house", "old house", "river", "hat", "small hat", "road")
ROWS = [(f"The {noun} was there", noun, verb) for noun in NOUNS for verb in ("was", "is")]


@pytest.fixture
def experiment(tmp_path):
    lines = ["text,label,start,end,right,wrong"]
    for text, noun, label in ROWS:
        start = text.index(noun)
        lines.append(f"{text},{label},{start},{start + len(noun)},{label},{noun}")
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    (tmp_path / "rows.yaml").write_text(text_of("features.yaml"))
    (tmp_path / "cache").mkdir()
    return lambda *overrides: load_experiment(tmp_path / "rows.yaml", overrides)


def opened(experiment, folder, *overrides):
    engine = prepare(experiment("model.random_weights=false", *overrides)).ready("cpu")
    return engine.open(partial(capture_models, cache_root=folder, watcher=SILENT))


SPANS = "data.columns={text: text, label: label, start: start, end: end, answers: [right, wrong]}"
AFTER = "tokens={bos: false, position: {at: word}, sweep: [0, 1]}"


def test_numbers_are_those_at_each_offset_of_a_sweep(experiment, tmp_path):
    engine = opened(experiment, tmp_path / "cache", SPANS, AFTER)
    model, tokenizer = load_model("mini"), Tokenizer.from_pretrained("mini")
    for position in range(2):
        found = engine.activations.outputs(position)
        for row, (text, noun, label) in enumerate(ROWS):
            ids = tokenizer.encode(text, bos=False).ids
            at = len(tokenizer.encode(text[: text.index(noun) + len(noun)], bos=False).ids) - 1
            with torch.no_grad():
                logits = model(torch.from_numpy(ids)[None])[0, at + position]
            log_p = logits.double().log_softmax(-1)
            assert found["next_log_probability"][row] == pytest.approx(
                float(log_p[ids[at + position + 1]]), abs=1e-5
            )
            one, other = (tokenizer.encode(f" {word}", bos=False).ids[0] for word in (label, noun))
            difference = float(logits[one] - logits[other])
            assert found["answer_difference"][row] == pytest.approx(difference, abs=1e-4)


def test_there_are_none_without_the_baseline(experiment, tmp_path):
    engine = opened(experiment, tmp_path / "cache", "probe.baselines=[majority]")
    assert engine.activations.outputs(0) is None
    assert not [one for one in engine.design.findings if one.code == "left-out"]


def test_answers_are_a_column_or_written_out_and_begin_with_different_tokens(experiment, refused):
    engine = prepare(experiment("data.columns.answers=[Yes, No]"))
    assert len(np.unique(engine.output.answers, axis=0)) == 1
    refused(prepare, experiment("data.columns.answers=[label, label]"))
    refused(prepare, experiment("data.columns.answers=[label, '']"))


@pytest.mark.parametrize(
    ("answer", "begins_line", "token"),
    [("yes", False, " yes"), ("yes", True, "yes"), (" yes", False, " yes"), (":)", False, ":")],
)
def test_the_first_token_of_a_word_has_the_space_before_it(answer, begins_line, token):
    tokenizer = Tokenizer.from_pretrained("mini")
    assert tokenizer.strings([first_token(tokenizer, answer, begins_line)]) == [token]
