"""Conversations have the tokens of transformers; templates run without chance and with limits."""

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from probekit.data.examples import join_turns
from probekit.data.table import read_messages
from probekit.errors import CheckpointError, DataError
from probekit.model.text.chat import ChatTemplate
from probekit.model.text.tokenizer import Tokenizer
from tests.model.text.test_hub_tokenizer import CHAT_ML, byte_level, sentence_piece, write
from tests.stored import each_line

# In the manner of ChatML (Qwen), Llama 3 (strips turns, begins with BOS, has a date), Gemma (names
# of roles, refuses others), and Llama 2 (the turns of a pair in one line); and, below, of Qwen 3 (a
# namespace, a loop from the end) and Mistral (macros, lists of turns).
FOLDER = Path(__file__).with_name("templates")
TEMPLATES = {path.stem: path.read_text() for path in sorted(FOLDER.iterdir())}
SHAPES = {"chat_ml": CHAT_ML} | {n: TEMPLATES[n] for n in ("gemma", "llama_2", "llama_3")}
CONVERSATIONS = [
    ["The keys to the old cabinet"],
    ["  two  spaces and\ttabs\n\n", "Größe ✓ 東京 👩‍🚀 "],
    ["user", "assistant", "user\nuser"],
    ["Is it open?", "1234 doors were open.", "user", "The keys are here."],
]


@pytest.fixture(scope="module", params=[byte_level, sentence_piece], ids=lambda make: make.__name__)
def make(request):
    return request.param


@pytest.fixture(scope="module", params=SHAPES)
def folder(request, make, tmp_path_factory):
    template = SHAPES[request.param]
    if make is sentence_piece:  # its special tokens
        template = template.replace("<|begin|>", "<s>").replace("<|end|>", "</s>")
    return write(tmp_path_factory.mktemp("chat"), template, make)


def messages(turns):
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": turn} for n, turn in enumerate(turns)]


def their_ids(folder, turns):
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    # A template without `strftime_now` writes its own date.
    template = "{% set strftime_now = undefined %}" + reference.chat_template
    how = {"chat_template": template} if "strftime_now" in template[40:] else {}
    how |= {"add_generation_prompt": len(turns) % 2 == 1, "tokenize": True, "return_dict": True}
    found = reference.apply_chat_template(messages(turns), **how)
    return found["input_ids"]


@pytest.mark.parametrize("turns", CONVERSATIONS, ids=len)
def test_ids_equal_those_of_transformers(folder, turns):
    tokens = Tokenizer.from_pretrained(folder).encode_chat(*join_turns(turns))
    assert tokens.ids.tolist() == their_ids(folder, turns)


@pytest.mark.parametrize("turns", CONVERSATIONS, ids=len)
def test_each_turn_is_covered_by_its_tokens(folder, turns):
    tokenizer = Tokenizer.from_pretrained(folder)
    text, spans = join_turns(turns)
    tokens = tokenizer.encode_chat(text, spans)
    assert (np.diff(tokens.offsets[:, 0]) >= 0).all()
    for start, end, *_ in spans:
        first, last = tokens.offsets[:, 0], tokens.offsets[:, 1]
        own = (first >= start) & (last <= end) & (first < last)
        said = tokenizer.decode(tokens.ids[own])
        assert said.strip() == text[start:end].strip()
    outside = tokenizer.decode(tokens.ids[tokens.offsets[:, 0] == tokens.offsets[:, 1]])
    assert not any(word in outside for word in ("keys", "東", "doors", "open"))


def test_without_turns_all_is_said_by_the_user(folder):
    tokenizer = Tokenizer.from_pretrained(folder)
    text = "The keys\n\nto the cabinet"
    tokens = tokenizer.encode_chat(text)
    said_by_user = tokenizer.encode_chat(text, ((0, len(text), "user", ""),))
    assert tokens.ids.tolist() == said_by_user.ids.tolist() == their_ids(folder, [text])


# Before the text of the assistant, as Qwen 3 and gpt-oss write thoughts; after it, as calls of
# tools; in every message, as names. The last two read a message by its methods and by a filter.
KEYS = {
    "reasoning_content": "{% if m.reasoning_content is string %}<think>{{ m.reasoning_content }}"
    "</think>{% endif %}{{ m.content }}",
    "tool_calls": "{{ m.content }}{% for c in m['tool_calls'] %}{{ c | tojson }}{% endfor %}",
    "name": "{% if 'name' in m %}{{ m.get('name') }}: {% endif %}{{ m.content }}",
    "weight": "{{ [m] | map(attribute='weight') | first }}{{ m.content }}",
}
VALUES = {
    "reasoning_content": "The doors are open, so the keys",
    "tool_calls": [{"function": {"name": "open", "arguments": {"door": "ö"}}}],
    "name": "Ann",
    "weight": 0,
}


def with_keys(template, **keys):
    said = [{"role": "user", "content": "The doors"}, {"role": "assistant", "content": "The keys"}]
    turn = "<|im_start|>{{ m.role }}\n" + template + "<|im_end|>"
    body = "{% for m in messages %}" + turn + "{% endfor %}"
    return body, [said[0], said[1] | keys, said[0]]


@pytest.mark.parametrize("key", KEYS)
def test_further_keys_of_a_message_are_read_by_the_template(tmp_path, key):
    template, chat = with_keys(KEYS[key], **{key: VALUES[key]})
    folder = write(tmp_path, template)
    text, turns = read_messages("", chat)
    tokenizer = Tokenizer.from_pretrained(folder)
    tokens = tokenizer.encode_chat(text, turns)
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    theirs = reference.apply_chat_template(chat, tokenize=True, return_dict=True)["input_ids"]
    assert tokens.ids.tolist() == theirs
    without_keys = tokenizer.encode_chat(text, [(*turn[:3], "") for turn in turns])
    assert tokens.ids.tolist() != without_keys.ids.tolist()
    for start, end, *_ in turns:
        own = (tokens.offsets >= start).all(1) & (tokens.offsets <= end).all(1)
        own &= tokens.offsets[:, 0] < tokens.offsets[:, 1]
        assert tokenizer.decode(tokens.ids[own]) == text[start:end]


def test_keys_that_the_template_does_not_read_are_named(tmp_path):
    thought = {"reasoning_content": "Open <|end|>."}
    for content, keys, message in (
        ("{{ m.content }}", {"name": "Ann", "weight": 0}, "read name, weight of message 2"),
        ("{{ m.content }}{% if m.tool_calls is defined %}{% endif %}", thought, "special token"),
        ("{{ m.content }}{{ m.names }}", {"name": "Ann"}, "does not read name of message 2"),
        ("{{ dict(m).content }}", {"name": "Ann"}, "does not read name of message 2"),
    ):
        template, chat = with_keys(content, **keys)
        tokenizer = Tokenizer.from_pretrained(write(tmp_path, template))
        with pytest.raises(DataError, match=message):
            tokenizer.encode_chat(*read_messages("", chat))
        empty = [one | {"name": "", "tool_calls": [], "weight": None} for one in with_keys("")[1]]
        tokenizer.encode_chat(*read_messages("", empty))
        null = '{"tool_calls": null}'
        tokenizer.encode_chat("ab", [(0, 1, "user", ""), (1, 2, "assistant", null)])


@pytest.mark.parametrize("key", ["reasoning_content", "thinking", "reasoning"])
@pytest.mark.parametrize("value", ["why", ""])
@each_line("template")
def test_names_of_reasoning_are_filled_as_by_transformers(tmp_path, key, value, template):
    written, chat = with_keys(template, **{key: value})
    folder = write(tmp_path, written)
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    turns = [(0, 1, "user", ""), (1, 2, "assistant", json.dumps({key: value}))]
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", key: value}]
    ids = Tokenizer.from_pretrained(folder).encode_chat("ab", turns).ids.tolist()
    assert ids == reference.apply_chat_template(chat, return_dict=False)


@pytest.mark.parametrize("others", [[], ["chat_template.jinja"]])
def test_a_template_in_the_folder_of_additional_ones_is_read_first(tmp_path, others):
    folder = write(tmp_path, "{{ messages[0].content }}!")
    (folder / "additional_chat_templates").mkdir()
    for name in (*others, "additional_chat_templates/default.jinja"):
        (folder / name).write_text(f"{name[:3]} {{{{ messages[0].content }}}}")
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    expected = reference.apply_chat_template(messages(["The keys"]), return_dict=False)
    tokenizer = Tokenizer.from_pretrained(folder)
    assert tokenizer.encode_chat("The keys").ids.tolist() == expected
    tokenizer.save_pretrained(tmp_path / "copy")
    assert Tokenizer.from_pretrained(tmp_path / "copy").digest == tokenizer.digest


def test_two_texts_of_reasoning_are_not_dropped():
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{{ m.thinking }}{% endfor %}")
    others = ("", json.dumps({"reasoning": "a", "thinking": "b"}))
    with pytest.raises(DataError, match="does not read reasoning of message 2"):
        template.render(["x", "y"], others=others)


def test_bos_is_that_of_the_template(folder):
    tokenizer = Tokenizer.from_pretrained(folder)
    tokens = tokenizer.encode_chat("The keys")
    assert tokens.has_bos == (tokens.ids[0] == tokenizer.bos_id)
    assert tokenizer.encode("The keys", bos=True).has_bos
    assert not tokenizer.encode("The keys", bos=False).has_bos


def test_the_template_may_be_a_file_or_one_of_several(tmp_path):
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHAT_ML}]
    several = Tokenizer.from_pretrained(write(tmp_path, named))
    expected = several.encode_chat("The keys").ids.tolist()
    before = several.digest
    (tmp_path / "chat_template.jinja").write_text(CHAT_ML.replace("assistant", "model"))
    own_file = Tokenizer.from_pretrained(tmp_path)
    assert own_file.encode_chat("The keys").ids.tolist() != expected
    assert own_file.digest != before
    own_file.save_pretrained(tmp_path / "copy")
    (tmp_path / "copy/config.json").write_text('{"model_type": "llama"}')
    assert Tokenizer.from_pretrained(tmp_path / "copy").digest == own_file.digest


@pytest.mark.parametrize(
    ("template", "error", "message"),
    [
        ("{% if %}", CheckpointError, "the chat template is not valid"),
        ("{{ messages[7].content }}{{ 1 / 0 }}", CheckpointError, "the chat template failed"),
        ("{{ ''.__class__.__mro__ }}", CheckpointError, "unsafe|failed"),
        ("{{ raise_exception('No one.') }}", DataError, "refuses 'Keys': No one"),
        ("{{ messages[0].content | upper }}", DataError, "changes the text 'Keys'"),
        *((text, DataError, f"not write each of 1 turns once, but '{text}'") for text in ("", "x")),
        ("{{ messages[0].content * 2 }}", DataError, "does not write each of 1 turns once"),
    ],
)
def test_templates_that_cannot_be_used(template, error, message):
    with pytest.raises(error, match=message):
        ChatTemplate(template, where="tokenizer_config.json").render(["Keys"])


@pytest.mark.parametrize("name", ["qwen_3", "mistral"])
def test_published_templates_work(name, snapshot):
    chat = ChatTemplate(TEMPLATES[name], {"bos_token": "<s>"})
    assert chat.render(["Hi", "Ho", "Hu"])[0] == snapshot
    assert len(chat.render([f"Turn {n}" for n in range(200)])[1]) == 200
    assert chat.render(["word " * 100_000])[0].count("word") == 100_000


@each_line("template")
def test_chance_is_refused(template):
    with pytest.raises(CheckpointError, match=r"^a\.jinja: .*(No filter|undefined|as a value)"):
        ChatTemplate(template, where="a.jinja").render(["Hi"])


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("'[%s] {\"a\": {}} 2024' % 'x'", '[x] {"a": {}} 2024'),
        ("'%-5s|' | format('x')", "x    |"),
        ("'{:>5} 100%% of {}'.format('x', 2024)", "    x 100%% of 2024"),
        ("{'a': '<é>'} | tojson", '{"a": "<é>"}'),  # not escaped for HTML
        ("messages | map(attribute='role')", "['user']"),  # an iterator is written as a list
    ],
)
def test_formats_of_published_templates_work(expression, expected):
    chat = ChatTemplate("{{ " + expression + " }}{{ messages[0].content }}")
    assert chat.render(["Hi"]) == (f"{expected}Hi", [(len(expected), len(expected) + 2)])


ENDLESS = FOLDER.with_name("endless_templates.txt").read_text().splitlines()


@pytest.mark.parametrize(
    "template",
    [
        *(line for line in ENDLESS if not line.startswith("# ")),
        "{% for i in range(9999) %}" + "x" * 99_999 + "{% endfor %}",
        "{{ " + "(" * 9999,
        "{{ " + "1 + " * 9999 + "1 }}",
        "{{ " + "9" * 9999 + " }}",
        "{% for a in b %}" * 30 + "{% endfor %}" * 30,
        "x" * 999_999,
    ],
    ids=lambda template: template[:50],
)
def test_no_template_takes_long_or_much_memory(template):
    with pytest.raises(CheckpointError, match=r"^a\.jinja: the chat template .*[^ ]\.$"):
        ChatTemplate(template, where="a.jinja").render(["Hi"])
