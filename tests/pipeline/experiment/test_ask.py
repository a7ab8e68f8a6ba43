"""Probes read the end of a question after each text, and apply it to new texts."""

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from probekit import SavedProbe, Tokenizer, apply_over, load_model
from probekit.data.readers import read_dataset
from probekit.experiment.loader import load_experiment
from probekit.pipeline.engines.table import prepare
from probekit.pipeline.look.apply import apply_probe
from probekit.results.table import only
from tests.model.families.configurations import rows
from tests.model.text.test_chat import messages
from tests.model.text.test_hub_tokenizer import CHAT_ML
from tests.pipeline.planted import QUICK, QUICK_SITES
from tests.pipeline.texts import text_of
from tests.pipeline.tiny_models import write_model

QUESTION = "Was it {a} or {b}? It was"
ASK = f"tokens={{bos: false, ask: '{QUESTION}', answers: [red, black], balance: true}}"
BASELINES = "probe.baselines=[majority, bag_of_words, output]"


@pytest.fixture(scope="module")
def asked(planted):
    """A finished run with a question, its texts by id, and its saved probe."""
    result = planted.run(*QUICK, ASK, BASELINES)
    dataset = read_dataset(planted.folder / "rows.csv", format="csv")
    own = {example.id: example.text for example in dataset.examples}
    probe = SavedProbe.load(result.folder / "probes" / QUICK_SITES[1] / "logistic")
    return result, own, probe


def test_rows_have_the_question_and_whether_its_answers_are_swapped(asked):
    result, own, _ = asked
    found = result.predictions
    for row in found.itertuples():
        pair = ("black", "red") if row.swapped == "yes" else ("red", "black")
        question = QUESTION.replace("{a}", pair[0]).replace("{b}", pair[1])
        assert row.text == f"{own[row.id]}\n\n{question}"
    assert set(found["swapped"]) == {"yes", "no"}
    page = (result.folder / "report.html").read_text()
    assert "Each text of planted is followed by the question" in page


def test_a_saved_probe_asks_new_texts_the_same_question(planted, asked, call):
    result, own, probe = asked
    found = result.predictions.head(6)
    texts = [own[one] for one in found["id"]]
    readings = apply_probe(probe, texts)
    assert [one.text for one in readings] == found["text"].tolist()
    expected = found["score_red"] - found["score_black"]  # of the second of two classes
    np.testing.assert_allclose([one.answer.score for one in readings], expected, atol=1e-4)
    path = result.folder / "probes" / QUICK_SITES[1] / "logistic"
    over = apply_over(path, ["mini"], cache_root=planted.cache)  # the command `apply --over`
    scores = only(result.table, site=QUICK_SITES[1], target="task", split="test", metric="auroc")
    assert over.rows["auroc"][0] == pytest.approx(scores["value"].item(), abs=1e-12)
    options = [one for text in texts for one in ("--text", text)]
    assert call("apply", path, *options, "--out", "answers.csv").code == 0
    np.testing.assert_allclose(pd.read_csv("answers.csv")["score"], expected, atol=1e-4)


def test_the_difference_of_logits_is_that_of_the_answers_in_the_question(planted, asked):
    engine = prepare(planted.load(*QUICK, ASK, BASELINES))
    tokenizer, model = Tokenizer.from_pretrained("mini"), load_model("mini")
    first = {word: tokenizer.encode(f" {word}", bos=False).ids[0] for word in ("red", "black")}
    stored = engine.reopened(asked[0].record["caches"]).activations.outputs(0)
    for row in range(12):
        example = engine.design.dataset.examples[row]
        with torch.no_grad():
            ids = torch.from_numpy(tokenizer.encode(example.text, bos=False).ids)
            logits = model(ids[None])[0, -1]
        difference = float(logits[first["red"]] - logits[first["black"]])
        sign = -1 if example.text.endswith("black or red? It was") else 1
        assert stored["answer_difference"][row] == pytest.approx(sign * difference, abs=1e-4)


def test_another_question_has_another_cache_and_answers_need_different_tokens(
    planted, own, refused
):
    ask = "tokens={bos: false, ask: 'Which colour?', answers: [red, black]}"
    identities = [
        prepare(planted.load(*QUICK, *more)).identity()
        for more in ((), (ask,), (ask.replace("Which", "What"),))
    ]
    assert len({str(one) for one in identities}) == 3
    same = ask.replace("[red, black]", "[reddish, reddest]")
    refused(prepare, own.load(*QUICK, BASELINES, same))


def test_a_chat_ends_where_the_assistant_answers(tmp_path):
    folder = write_model(tmp_path / "model", *rows(["llama3"]), CHAT_ML)
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    questions = [f"Is key {n} red?" for n in range(24)]
    table = pd.DataFrame({"question": questions, "answer": "It is.", "label": ["a", "b"] * 12})
    table.to_csv(tmp_path / "questions.csv", index=False)
    for reply in (", reply: answer", ""):
        yaml = text_of("chat.yaml").replace("SOURCE", str(folder)).replace(", reply: answer", reply)
        yaml = yaml.replace("position: {at: POSITION}", "ask: Sure?, answers: [Yes, No]")
        (tmp_path / "chat.yaml").write_text(yaml)
        prepared = prepare(load_experiment(tmp_path / "chat.yaml"))
        for n, question in enumerate(questions):
            turns = [question, "It is.", "Sure?"] if reply else [f"{question}\n\nSure?"]
            whole = reference.apply_chat_template(messages(turns), add_generation_prompt=True)
            assert prepared.texts.ids[n].tolist() == whole["input_ids"]
            assert prepared.texts.plan.positions[n] == len(whole["input_ids"]) - 1
