"""An experiment on conversations reads the tokens of the turns, from YAML to a saved probe."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from probekit import SavedProbe, run
from probekit.activations.store import ActivationStore
from probekit.experiment.loader import load_experiment
from probekit.pipeline.experiment.prepare import prepare
from probekit.pipeline.look.apply import apply_probe
from tests.model.families.configurations import rows
from tests.model.text.test_chat import messages
from tests.model.text.test_hub_tokenizer import CHAT_ML
from tests.pipeline.texts import text_of
from tests.pipeline.tiny_models import write_model

N_ROWS = 24
YAML = text_of("chat.yaml")
CAUSES = text_of("chat_causes.yaml")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"), *rows(["llama3"]), CHAT_ML)


def question(n, k):
    return f"Are the {5 + n % 5}{5 + k} keys here?"  # digits without a merge


QUESTIONS = [question(n, n // 5) for n in range(N_ROWS)]
ANSWERS = [f"{'Yes' if n % 2 else 'No'}, in box {n}." for n in range(N_ROWS)]


def write_experiment(folder, source, at, yaml=YAML):
    lines = [
        f'"{QUESTIONS[n]}","{question(n + 1, n // 5)}","{ANSWERS[n]}",{"yes" if n % 2 else "no"}'
        for n in range(N_ROWS)
    ]
    (folder / "questions.csv").write_text("\n".join(["question,other,answer,label", *lines]))
    path = folder / "chat.yaml"
    path.write_text(yaml.replace("SOURCE", str(source)).replace("POSITION", at))
    return path


def expected_position(reference, at, n):
    """Index of the last token of a turn, by the length of the conversation up to its end."""
    turns = [QUESTIONS[n], ANSWERS[n]][: 1 if at == "user_last" else 2]
    marked = messages(turns)
    text = reference.apply_chat_template(marked, tokenize=False)
    until = text[: text.rindex(turns[-1]) + len(turns[-1])]
    return len(reference(until, add_special_tokens=False)["input_ids"]) - 1


@pytest.mark.parametrize("at", ["user_last", "assistant_last"])
def test_the_last_token_of_a_turn_is_read(model, tmp_path, at):
    has_reply = at == "assistant_last"
    yaml = YAML if has_reply else YAML.replace("reply: answer, ", "")
    prepared = prepare(load_experiment(write_experiment(tmp_path, model, at, yaml)))
    reference = PreTrainedTokenizerFast.from_pretrained(model)
    for n in range(N_ROWS):
        turns = [QUESTIONS[n], ANSWERS[n]][: 1 + has_reply]
        whole = reference.apply_chat_template(messages(turns), add_generation_prompt=not has_reply)
        assert prepared.ids[n].tolist() == whole["input_ids"]
        assert prepared.plan.positions[n] == expected_position(reference, at, n)
    last = {"user_last": "here", "assistant_last": None}[at]
    assert last is None or set(prepared.positions[0].types) == {last}


def test_a_run_has_the_activations_of_transformers_and_its_interventions(model, tmp_path):
    yaml = YAML.replace("  columns", "  pairs: other\n  columns") + CAUSES
    path = write_experiment(tmp_path, model, "assistant_last", yaml)
    result = run(path, out=tmp_path / "runs", progress=False, page=False)
    assert (result.folder / "causes/effects.csv").is_file()  # users' turns are replaced
    assert {"task", "random_weights", "bag_of_words"} <= {*result.table["target"]}
    reference = PreTrainedTokenizerFast.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model)
    prepared = prepare(load_experiment(path))
    record = result.record
    assert record["attention"][0]["tokens"][0] == "<|begin|>"
    states = ActivationStore.open(Path(record["caches"]["task"])).read("blocks.0.hook_resid_post")
    for n in (0, 7):
        ids = reference.apply_chat_template(
            messages([QUESTIONS[n], ANSWERS[n]]), return_tensors="pt", return_dict=True
        )["input_ids"]
        with torch.inference_mode():
            hidden = network(ids, output_hidden_states=True).hidden_states[1][0]
        expected = hidden[prepared.plan.positions[n]].numpy()
        np.testing.assert_allclose(states[n], expected, atol=1e-5)


def test_a_probe_of_the_users_turn_reads_new_texts(model, tmp_path, refused):
    yaml = YAML.replace("reply: answer, ", "")
    path = write_experiment(tmp_path, model, "user_last", yaml)
    result = run(path, out=tmp_path / "runs", progress=False, page=False)
    (saved, *_) = sorted(result.folder.glob("probes/**/*.safetensors"))
    probe = SavedProbe.load(saved)
    assert probe.facts.chat
    (reading,) = apply_probe(probe, QUESTIONS[5])
    at = expected_position(PreTrainedTokenizerFast.from_pretrained(model), "user_last", 5)
    assert reading.answer == reading.answers[at - 1]  # without <|begin|>, which is BOS here
    assert reading.tokens[at - 1] == "?"
    refused(apply_probe, probe, ["Here?", ""])


def test_a_model_without_a_template_and_the_row_of_a_special_token_are_named(
    model, tmp_path, refused
):
    refused(lambda: prepare(load_experiment(write_experiment(tmp_path, "mini", "assistant_last"))))
    path, table = write_experiment(tmp_path, model, "assistant_last"), tmp_path / "questions.csv"
    table.write_text(table.read_text().replace("the 77 keys", "the <|end|> keys"))
    refused(lambda: prepare(load_experiment(path)))
