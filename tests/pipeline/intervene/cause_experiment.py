"""A small experiment with interventions, on the number of the nearest noun."""

from scripts.bundled.noun_pairs import noun_pairs
from tests.pipeline.texts import text_of

N_ROWS = 64  # four of each subject
YAML = text_of("nouns.yaml")


def write_experiment(folder, yaml=YAML, n_rows=N_ROWS):
    """Write the experiment and its rows; return the path of its file."""
    header, *lines = noun_pairs().csv().splitlines(keepends=True)
    rows = [line for number, line in enumerate(lines) if number // 4 % 4 == 0][:n_rows]
    (folder / "nouns.csv").write_text("".join([header, *rows]), encoding="utf-8")
    path = folder / "nouns.yaml"
    path.write_text(yaml, encoding="utf-8")
    return path
