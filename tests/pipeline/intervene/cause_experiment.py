"""A small experiment with interventions, on the number of the nearest noun."""

from scripts.bundled.noun_pairs import noun_pairs

N_ROWS = 64  # four of each subject
YAML = """\
name: nouns
model: {source: mini, random_weights: 0}
data:
  name: nouns
  format: csv
  file: nouns.csv
  columns: {text: text, label: nearest, group: group}
  pairs: nearest_flipped
tokens: {bos: false, position: {at: last}}
split: {test: 0.5}
capture: {sites: [blocks.1.hook_resid_post, ln_final.hook_normalized]}
probe: {C: [0.01], folds: 2, permutations: 0, control_draws: 0, baselines: [majority]}
interventions:
  - {do: patch, from: counterfactual, sites: blocks.*.hook_resid_post, at: [probed, all]}
  - {do: ablate, with: mean, sites: "blocks.5.attn.hook_z[head=*]"}
  - {do: erase, along: mean_difference, sites: blocks.1.hook_resid_post, draws: 59}
  - {do: swap, along: mean_difference, rank: 1, sites: blocks.1.hook_resid_post, draws: 59}
  - {do: steer, along: mean_difference, by: [-2, 2], sites: blocks.1.hook_resid_post, draws: 59}
measure:
  - logit_difference: {answer: nearest_verb, wrong: nearest_other}
  - kl
"""


def write_experiment(folder, yaml=YAML, n_rows=N_ROWS):
    """Write the experiment and its rows; return the path of its file."""
    header, *lines = noun_pairs().csv().splitlines(keepends=True)
    rows = [line for number, line in enumerate(lines) if number // 4 % 4 == 0][:n_rows]
    (folder / "nouns.csv").write_text("".join([header, *rows]), encoding="utf-8")
    path = folder / "nouns.yaml"
    path.write_text(yaml, encoding="utf-8")
    return path
