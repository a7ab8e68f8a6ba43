"""The Python blocks of documents run."""

import re

import pytest


@pytest.mark.parametrize("name", ["coming_from_transformer_lens.md"])
def test_the_python_of_a_document_runs(repository, name):
    text = (repository / "docs" / name).read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) > 3
    # One after the other, as a reader would; blank lines keep the line numbers of the document.
    lines = ["\n" * text[: text.index(block)].count("\n") + block for block in blocks]
    names: dict[str, object] = {}
    for block in lines:
        exec(compile(block, name, "exec"), names)
