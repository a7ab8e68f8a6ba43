"""YAML syntax errors name the wrong line and show how to write it."""

import pytest

from probekit.errors import ConfigError
from probekit.experiment.parsing import parse_yaml, read_yaml


def refusal(text):
    with pytest.raises(ConfigError) as error:
        parse_yaml(text, "f")
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "line", "written"),
    [
        (
            "name tense\nmodel: a\n",
            1,
            "`name tense` has no colon after its key; write `name: tense`",
        ),
        ("# why\n\nname tense\n\n# more: x\nmodel: a\n", 3, "write `name: tense`"),
        ("a: b\nname tense\n", 2, "write `name: tense`"),
        ("a: b\nname tense # not: this\nc: d\n", 2, "`name tense` has no colon"),
        ("a:\n  b: c\n  bos false\n  f: g\n", 3, "write `bos: false`"),
        ("a:\n  - kind mlp\n    hidden: 3\n", 2, "write `kind: mlp`"),
        ("a: b\nname\n", 2, "write `name: ...`"),
        ("name:tense\nb: c\n", 1, "no space after its colon; write `name: tense`"),
        ("a: b\nname:tense\n", 2, "no space after its colon; write `name: tense`"),
    ],
)
def test_key_without_a_colon_is_reported_with_its_line(text, line, written):
    answer = refusal(text)
    assert answer.startswith(f"f, line {line}: `")
    assert written in answer


@pytest.mark.parametrize(
    ("text", "line"), [("a: b: c\n", 1), ("a:\n  b: t\n  q: x: y\n", 3), ("a: t\n   on: x\n", 2)]
)
def test_second_colon_is_named_in_the_message(text, line):
    assert (
        refusal(text)
        == f"f, line {line}: a second colon; put text that contains a colon in quotes."
    )


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("a: [*.hook_z]", '"*.hook_z"'),
        ("a: [*.hook_z[head=*], b]", '"*.hook_z[head=*]"'),
        ("a: [*.hook_z[head=0,3]]", '"*.hook_z[head=0,3]"'),
        ("a:\n- *resid # all", '"*resid"'),
        ("a: [*, b]", '"*"'),
        ("- *", '"*"'),
    ],
)
def test_unquoted_glob_is_shown_with_quotes(text, quoted):
    assert refusal(text).endswith(f"text that begins with * needs quotes: {quoted}.")


@pytest.mark.parametrize(
    ("content", "line", "column", "letter"),
    [(b"\xe9: 1", 1, 1, "é"), (b"a: 1\nb: caf\xe9\n", 2, 7, "é"), (b"a: \x93x\x94", 1, 4, "\\x93")],
)
def test_byte_of_another_encoding_has_line_and_column(tmp_path, content, line, column, letter):
    path = tmp_path / "latin.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        read_yaml(path)
    assert f"latin.yaml, line {line}, column {column}: the byte 0x" in str(error.value)
    assert f"(in Latin-1 it is '{letter}')" in str(error.value)
    assert "iconv -f LATIN1 -t UTF-8 latin.yaml" in str(error.value)
