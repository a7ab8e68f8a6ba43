"""Write the bundled data sets and prompts: `python -m scripts.bundled data`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from scripts import prompts
from scripts.bundled.capitals import capitals
from scripts.bundled.noun_pairs import noun_pairs
from scripts.bundled.previous_token import previous_token
from scripts.bundled.sentiment import sentiment
from scripts.bundled.study import study_tasks
from scripts.bundled.subject_number import subject_number

GENERATORS = (subject_number, capitals, previous_token, sentiment, noun_pairs)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write each data set and its card to a folder, which is the first of `arguments`."""
    parser = argparse.ArgumentParser(prog="python -m scripts.bundled", description=__doc__)
    parser.add_argument("folder", type=Path, help="Folder for <name>.csv and <name>.md")
    folder = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    for generate in GENERATORS:
        bundled = generate()
        (folder / f"{bundled.name}.csv").write_text(bundled.csv(), encoding="utf-8", newline="")
        (folder / f"{bundled.name}.md").write_text(bundled.card(), encoding="utf-8", newline="")
    (folder / "study").mkdir(exist_ok=True)
    for name, content in study_tasks().items():
        (folder / "study" / f"{name}.csv").write_text(content, encoding="utf-8", newline="")
    for name in prompts.GENERATORS:
        prompts.main([name, str(folder / f"{name}.csv")])


if __name__ == "__main__":
    main()
