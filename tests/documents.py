"""The pages for readers: README.md and docs/, their code blocks, links and commands."""

import re
from pathlib import Path

import pandas as pd

# A placeholder in a command, and the path that `make_workplace` puts there.
PLACEHOLDERS = ("RUN_A", "RUN_B", "RUN", "PROBE")


def pages(repository):
    """Return README.md and the pages of docs/."""
    return [repository / "README.md", *sorted((repository / "docs").rglob("*.md"))]


def blocks(text, language):
    """Return the contents of the code blocks in one language."""
    return re.findall(rf"^```{re.escape(language)}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(text):
    """Return the commands of the console blocks."""
    return [line for block in blocks(text, "console") for line in block.splitlines()]


def links(text):
    """Return targets of links and images that are no URL, and entries of tables of contents."""
    prose = re.sub(r"^```(?!\{toctree\}).*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    entries = [
        re.sub(r".*<(.*)>", r"\1", line) + ".md"
        for block in blocks(text, "{toctree}")
        for line in block.splitlines()
        if line and not line.startswith(":")
    ]
    cards = [f"{name}.md" for name in re.findall(r"^:link: (\S+)$", prose, re.MULTILINE)]
    found = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose))
    return [link for link in found if "://" not in link] + entries + cards


def anchors(text):
    """Return the anchors of the headings, as GitHub and MyST name them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


def write_data(folder: Path) -> None:
    """Write the table my_data.csv, which the experiment of the README reads."""
    rows = [
        {"sentence": f"The {size} {noun} was {end}", "size": size, "topic": noun}
        for noun in ("house", "door", "river", "garden", "letter", "table", "ship", "horse")
        for end in ("there", "here", "gone")
        for size in ("large", "little")
    ]
    pd.DataFrame(rows).to_csv(folder / "my_data.csv", index=False)
