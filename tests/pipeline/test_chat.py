"""An experiment on conversations reads the tokens of the turns, from YAML to a saved probe."""

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from probekit import SavedProbe, run
from probekit.activations.store import ActivationStore
from probekit.errors import DataError
from probekit.experiment.loader import load_experiment
from probekit.pipeline.engines.table import How, prepare
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
    text = reference.apply_chat_template(messages(turns), tokenize=False)
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
        assert prepared.texts.ids[n].tolist() == whole["input_ids"]
        assert prepared.texts.plan.positions[n] == expected_position(reference, at, n)
    assert has_reply or set(prepared.design.positions[0].types) == {"here"}


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
        expected = hidden[prepared.texts.plan.positions[n]].numpy()
        np.testing.assert_allclose(states[n], expected, atol=1e-5)


def test_a_probe_of_the_users_turn_reads_new_texts(model, tmp_path, refused):
    yaml = YAML.replace("reply: answer, ", "").replace("sites: [", "sites: [hook_embed, ")
    path = write_experiment(tmp_path, model, "user_last", yaml)
    result = run(path, out=tmp_path / "runs", progress=False, page=False)
    # All rows read "?", whose embedding is constant.
    assert "constant-features" not in [one["code"] for one in result.record["data"]["findings"]]
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


def conversation(n, *, has_system=True, ends_with_user=True):
    said = [("user", QUESTIONS[n]), ("assistant", ANSWERS[n]), ("user", question(n, 3))]
    said = said[: 3 if ends_with_user else 2]
    return [
        {"role": role, "content": content, "name": None}  # empty keys are not read
        for role, content in [*[("system", f"Be brief {n}.")][:has_system], *said]
    ]


def write_conversations(folder, source, at, **turns):
    chats = [conversation(n, **turns) for n in range(N_ROWS)]
    rows = [{"chat": chat, "label": "yes" if n % 2 else "no"} for n, chat in enumerate(chats)]
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    columns = "{text: question, reply: answer, label: label}"
    path = folder / "chat.yaml"
    yaml = YAML.replace("SOURCE", str(source)).replace("POSITION", at).replace("csv", "jsonl")
    path.write_text(yaml.replace(columns, "{messages: chat, label: label}"))
    return path, chats


@pytest.mark.parametrize("has_system", [False, True])
@pytest.mark.parametrize("at", ["user_last", "assistant_last"])
def test_conversations_are_written_as_by_transformers(model, tmp_path, at, has_system):
    is_user = at == "user_last"
    turns = {"has_system": has_system, "ends_with_user": is_user}
    path, chats = write_conversations(tmp_path, model, at, **turns)
    prepared = prepare(load_experiment(path))
    reference = PreTrainedTokenizerFast.from_pretrained(model)
    for n in range(N_ROWS):
        whole = reference.apply_chat_template(chats[n], add_generation_prompt=is_user)
        assert prepared.texts.ids[n].tolist() == whole["input_ids"]
        start, end, *_ = prepared.design.dataset.examples[n].turns[-1]
        assert prepared.design.dataset.examples[n].text[start:end] == chats[n][-1]["content"]


def test_conversations_that_cannot_be_read_are_refused(model, tmp_path, refused):
    path, _ = write_conversations(tmp_path, model, "assistant_last")
    refused(lambda: prepare(load_experiment(path)))
    table = tmp_path / "questions.jsonl"
    text = table.read_text()
    for old, new in (
        ('"role": "user"', '"role": "assistant"'),
        ('"role": "system"', '"role": "tool"'),
        ('"content": "Be brief 0."', '"content": " "'),
        ('"content": "Be brief 0."', '"text": "Be brief 0."'),
        ('"content": "Be brief 0."', '"content": [{"type": "text", "text": "Be brief."}]'),
    ):
        table.write_text(text.replace(old, new, 1))
        refused(lambda: prepare(load_experiment(path)))
    # Keys that the template does not read.
    path, _ = write_conversations(tmp_path, model, "user_last")
    keys = ', "reasoning_content": "so", "weight": 1, "tool_calls": [{"id": 1}]'
    table.write_text(text.replace('"Be brief 3."', '"Be brief 3."' + keys))
    with pytest.raises(DataError, match=r"jsonl:4: .* reasoning_content, tool_calls, weight of me"):
        prepare(load_experiment(path))


def test_a_template_that_takes_no_message_of_the_system_is_named(tmp_path, refused):
    template = CHAT_ML.replace(
        "{% for m",
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
        "{% endif %}{% for m",
        1,
    )
    source = write_model(tmp_path / "model", *rows(["llama3"]), template)
    path, _ = write_conversations(tmp_path, source, "user_last")
    refused(lambda: prepare(load_experiment(path)))


def test_a_prompt_is_the_users_turn_on_the_command_line(model, call):
    chat = ["--model", str(model), "--chat"]
    prompt = ["generate", *chat, "--prompt", QUESTIONS[0], "--max-new-tokens", "5"]
    ended = call(*prompt)
    assert ended.stdout.startswith(f"{QUESTIONS[0]}\n\n"), ended
    assert call(*prompt, "--stream").stdout == ended.stdout
    # The last token of the template is the line break after the name of the assistant.
    plain = call("lens", *chat[:2], "--text", QUESTIONS[0])
    assert call("lens", *chat, "--text", QUESTIONS[0]).stdout != plain.stdout
    assert "beginning-of-text" in call("lens", *chat, "--bos", "--text", "Hi").stderr


def test_a_run_on_replies_of_a_chat_model_is_complete(model, tmp_path):
    """Replies have tokens that a user's turn may not have, such as marks of the template."""
    path, chats = write_conversations(tmp_path, model, "reply")
    generate = "generate: {max_new_tokens: 8, seed: 3}"
    capture = f"\ncapture: {{sites: [blocks.0.hook_resid_post], {generate}}}"
    text = re.sub("\ncapture: .*", capture, path.read_text())
    path.write_text(text.replace("tokens: {", "tokens: {too_long: skip, "))
    cache = tmp_path / "cache"
    result = run(path, out=tmp_path / "runs", cache_root=cache, progress=False)
    assert (result.folder / "report.html").is_file()
    lines = (result.folder / "replies.jsonl").read_text().splitlines()
    replies = [json.loads(line) for line in lines]
    assert len(replies) == N_ROWS
    assert any("<|" in one["reply"] for one in replies)
    assert set(result.table["position"]) >= {"reply"}
    # A reply follows the beginning of the assistant's turn, and its tokens are kept.
    source = prepare(load_experiment(path), How(replies="generated", cache_root=cache))
    reference = PreTrainedTokenizerFast.from_pretrained(model)
    templated = partial(reference.apply_chat_template, add_generation_prompt=True)
    prompts = {chat[0]["content"]: templated(chat)["input_ids"] for chat in chats}
    assert len(source.design.dataset) >= N_ROWS - 2
    for example, ids in zip(source.design.dataset.examples, source.texts.ids, strict=True):
        prompt = prompts[example.text[slice(*example.turns[0][:2])]]
        assert ids.tolist() == [*prompt, *example.reply_ids]
        roles = " ".join(turn.role for turn in example.turns)
        assert roles == "system user assistant user assistant"
