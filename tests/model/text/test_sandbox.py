"""Untrusted templates give the same text each time, and none takes long or much memory."""

import pytest

from probekit.errors import CheckpointError
from probekit.model.text.chat import ChatTemplate

# In the manner of Qwen 3 (a namespace, a loop from the end) and Mistral (macros, lists of turns).
QWEN_3 = """\
{%- set ns = namespace(found=false, last=messages|length - 1) %}
{%- for m in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if not ns.found and m.role == 'user' and not m.content.startswith('<tool_response>') %}
        {%- set ns.found = true %}{% set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- set content = m.content.split('</think>')[-1].lstrip('\\n') %}
    {{- '<|im_start|>' + m.role + '\\n' ~ content + '<|im_end|>' + '\\n' }}
    {%- if loop.last and loop.index0 == ns.last %}{{ '<think>' }}{% endif %}
{%- endfor %}
"""
MISTRAL = """\
{%- macro said(m, end) %}{{ "[%s] " % m["role"] }}{{ m["content"] }}{{ end }}{% endmacro %}
{%- if strftime_now is not defined and raise_exception is defined %}{{ bos_token }}{% endif %}
{%- set users = messages | selectattr("role", "equalto", "user") | list %}
{%- for m in messages if m["role"] in ["user", "assistant"] %}
    {%- if (m["role"] == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("Users and assistants take turns.") }}
    {%- endif %}
    {{- said(m, "</s>") }}
    {%- if m == users[-1] %}{{ {"n": users | length} | tojson }}{% endif %}
{%- endfor %}
"""


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (
            QWEN_3,
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n"
            "<|im_start|>user\nHu<|im_end|>\n<think>",
        ),
        (MISTRAL, '<s>[user] Hi</s>[assistant] Ho</s>[user] Hu</s>{"n": 2}'),
    ],
    ids=["Qwen 3", "Mistral"],
)
def test_published_templates_work(template, expected):
    chat = ChatTemplate(template, {"bos_token": "<s>"})
    assert chat.render(["Hi", "Ho", "Hu"])[0] == expected
    assert len(chat.render([f"Turn {n}" for n in range(200)])[1]) == 200
    assert chat.render(["word " * 100_000])[0].count("word") == 100_000


@pytest.mark.parametrize(
    "template",
    [
        "{{ [1, 2] | random }}",
        "{{ [[1, 2]] | map('random') }}",
        "{{ lipsum() }}",
        "{{ cycler(1) }}",
        # addresses in memory
        "{{ range }}",
        "{{ 'a'.upper ~ '' }}",
        "{{ '%s' % raise_exception }}",
        "{{ [range] | string }}",
        "{{ self }}",
    ],
)
def test_chance_is_refused(template):
    with pytest.raises(CheckpointError, match=r"^a\.jinja: .*(No filter|undefined|as a value)"):
        ChatTemplate(template, where="a.jinja").render(["Hi"])


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("'[%s] {\"a\": {}} 2024' % 'x'", '[x] {"a": {}} 2024'),
        ("'%-5s|' | format('x')", "x    |"),
        ("'{:>5} 100%% of {}'.format('x', 2024)", "    x 100%% of 2024"),
    ],
)
def test_formats_of_published_templates_work(expression, expected):
    chat = ChatTemplate("{{ " + expression + " }}{{ messages[0].content }}")
    assert chat.render(["Hi"])[0] == f"{expected}Hi"


def test_iterators_are_written_as_lists():
    chat = ChatTemplate("{{ messages | map(attribute='role') }}{{ messages[0].content }}")
    assert chat.render(["Hi"])[0] == "['user']Hi"


GROWING = "{%% set ns = namespace(x=%s) %%}{%% for i in range(99) %%}%s{%% endfor %%}{{ ns.x }}"


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(9999) recursive %}{{ loop(range(9999)) }}{% endfor %}",
        "{% macro m(x) %}{{ m(x) ~ m(x) }}{% endmacro %}{{ m(1) }}",
        "{% macro m(x) %}{% if x %}{{ m(x-1) ~ m(x-1) }}{% endif %}{% endmacro %}{{ m(40) }}",
        "{% for i in range(9999) %}" + "x" * 99_999 + "{% endfor %}",
        "{{ '%3000000000d' % 1 }}",
        "{{ '%3000000000d' | format(1) }}",
        "{{ '%*d' % (3000000000, 1) }}",
        "{{ '{:3000000000}'.format(1) }}",
        "{{ '{:{w[0]}}'.format(1, w=[3000000000]) }}",
        "{{ '{:{w}}'.format(1, w='3000000000000000') }}",
        "{{ '{a[}]:3000000000000000}'.format(a={'}': 1}) }}",
        "{{ '%(a\nb)3000000000000000d' % {'a\nb': 1} }}",
        "{{ ['%3000000000000000d'] | format(1) }}",
        "{{ ('%(' * 199999) % 1 }}",
        # from the right, and in characters to strip, Python searches without shortcuts
        "{% set s = 'a' * 4999999 %}{{ s.rfind('ab' + 'a' * 4199999) }}",
        "{% set s = 'a' * 4999999 %}{{ s.rsplit('ab' + 'a' * 4199999) }}",
        "{% set s = 'a' * 4999999 %}{{ s.strip('b' * 4999999 + 'a') }}",
        "{% set s = 'a' * 4999999 %}{{ s | trim('b' * 4999999 + 'a') }}",
        "{% set n = ('f' * 9199999) | int(0, 16) %}{% for i in range(9999) %}{% set m = -n %}"
        "{% endfor %}",
        "{{ 'a' * 10000000000 }}",
        "{{ 'a' * 10**10 }}",
        "{{ [1, 2] * 10000000000 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ 'a' | center(10000000000) }}",
        "{{ 'a'.center(10000000000) }}",
        "{{ 'a\nb' | indent(10000000000) }}",
        "{{ range(99999) | join('a' * 9999) }}",
        "{% set s = 'a' * 9999 %}{{ s.replace('a', s).replace('a', s) }}",
        "{% set s = 'a' * 999999 %}{% for i in range(99999) %}{{ s == s[::-1] }}{% endfor %}",
        "{{ [1] | batch(10000000000, 'a') }}",
        "{{ ('f' * 9999999) | int(0, 16) // 7 }}",
        GROWING % ("'a'", "{% set ns.x = ns.x ~ ns.x %}"),
        GROWING % ("'a'", "{% set ns.x = ns.x + ns.x %}"),
        GROWING % ("'a'", "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
        GROWING % ("1", "{% set ns.x = [ns.x, ns.x] %}"),
        GROWING % ("1", "{% set ns.x = {1: ns.x, 2: ns.x} %}"),
        GROWING % ("1", "{% set ns.x = namespace(a=ns.x, b=ns.x) %}"),
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
