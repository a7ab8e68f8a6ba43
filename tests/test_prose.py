"""The text of the package, its documents and its tests has no words that must be decoded."""

import ast
import re
from itertools import groupby
from pathlib import Path

import probekit
from tests.stored import each_line, each_row

PACKAGE = Path(probekit.__file__).parent

REFUSED = Path(__file__).with_name("refused_words.txt").read_text("utf-8").splitlines()
PATTERNS = {
    re.compile(rf"\b(?:{words.replace(' ', chr(92) + 's+')})\b", re.IGNORECASE): plain
    for words, plain in (line.split("  ->  ") for line in REFUSED if not line.startswith("#"))
}
ANY = re.compile("|".join(pattern.pattern for pattern in PATTERNS), re.IGNORECASE)
PAGES = ("*.md", "data/*.md", "experiments/*.yaml", "Makefile", "pyproject.toml")
TEMPLATES = (".html", ".js", ".css", ".md")
COMMENT = re.compile(r"(?:^|\s)#\s(.*)$")


def documents(repository):
    """Yield the files that contain text for readers."""
    for folder in (PACKAGE, *(repository / name for name in ("benchmarks", "docs", "tests"))):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", *TEMPLATES) and path != Path(__file__):
                yield path
    for pattern in PAGES:
        yield from sorted(repository.glob(pattern))


def passages(path):
    """Yield the passages of prose in a file, each with the number of its first line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield 1, text
        return
    yield from comments(text.splitlines())
    yield from strings(ast.parse(text))


def comments(lines):
    """Yield comments; those on consecutive lines are one passage."""
    found = [
        (number, match[1])
        for number, line in enumerate(lines, 1)
        if (match := COMMENT.search(line))
    ]
    numbered = enumerate(found)
    for _, block in groupby(numbered, key=lambda item: item[1][0] - item[0]):
        numbers, texts = zip(*(comment for _, comment in block), strict=True)
        yield numbers[0], "\n".join(texts)


def strings(tree):
    """Yield docstrings and string literals of several words; f-strings without their values."""
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and " " in node.value:
                yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            text = "".join(parts)
            if " " in text:
                yield node.lineno, text
            nodes += [part for part in node.values if not isinstance(part, ast.Constant)]
        else:
            nodes += ast.iter_child_nodes(node)


def refused(text):
    """Yield the refused words of a text: line within the text, words and plain replacement."""
    text = re.sub(r"`[^`\n]*`", "``", text)  # names in the code are no prose
    for pattern, plain in PATTERNS.items() if ANY.search(text) else ():
        for match in pattern.finditer(text):
            yield text.count("\n", 0, match.start()), match[0], plain


def test_readers_need_not_decode_words(repository):
    faults = [
        f"{path.relative_to(repository)}:{first + line}: {words!r}: write {plain}"
        for path in documents(repository)
        for first, text in passages(path)
        for line, words, plain in refused(text)
    ]
    assert not faults, "\n".join(["", *faults])


@each_row("text")
def test_stilted_sentences_are_refused(text):
    assert list(refused(text))


@each_line("text")
def test_plain_sentences_are_not_refused(text):
    assert not list(refused(text))
