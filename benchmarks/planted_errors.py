"""Errors planted in a copy of the package, and the test that notices each.

    python -m benchmarks.planted_errors [NAME ...]

Each error replaces one passage of one file. The script copies package, tests and data to a
temporary folder, and runs all named tests there, which must pass. Then it plants one error at a
time, runs its test, and prints the outcome: `failed` for a test that fails, `error` for one that
stops with an exception, `MISSED` for one that passes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
COPIED = ("probekit", "tests", "benchmarks", "data", "experiments", "pyproject.toml")
PASSED, FAILED = 0, 1  # exit codes of pytest
OUTCOMES = {PASSED: "MISSED", FAILED: "failed"}


@dataclass(frozen=True)
class PlantedError:
    """An error and the test that notices it.

    Attributes:
        name: what the code does wrong.
        file: file in the package.
        old: passage of the file, which occurs once.
        new: the passage with the error.
        test: test that fails, as pytest names it.
    """

    name: str
    file: str
    old: str
    new: str
    test: str


ERRORS = (
    PlantedError(
        "the interval of *detects* over folds lacks its factor",
        "interventions/verdicts.py",
        "resamples = resamples_of(groups, widening)",
        "resamples = resamples_of(groups)",
        "tests/interventions/test_causes.py::test_over_folds_intervals_are_wider_by_the_factor",
    ),
    PlantedError(
        "the interval of a difference is narrower than its test",
        "probes/score/differences.py",
        "for alpha in (LEVEL, LEVEL / len(parts))",
        "for alpha in (2 * LEVEL, LEVEL / len(parts))",
        "tests/probes/score/test_rare_classes.py::"
        "test_intervals_exclude_0_exactly_if_their_p_value_is_below_the_level",
    ),
    PlantedError(
        "degrees of freedom of a class count the groups of all classes",
        "probes/score/intervals.py",
        "n_units, n_rows = float(spread.n_effective[part]), int(spread.n_rows[part])",
        "n_units, n_rows = resamples.n_effective, int(spread.n_rows[part])",
        "tests/probes/score/test_rare_classes.py::"
        "test_the_limits_of_a_class_are_those_of_its_own_groups",
    ),
    PlantedError(
        "the penalty of a fit is halved",
        "probes/solve/solver.py",
        "np.minimum(1 / (C * totals), LARGEST_PENALTY)",
        "np.minimum(1 / (2 * C * totals), LARGEST_PENALTY)",
        "tests/probes/solve/test_solver.py::test_objective_is_as_low_as_a_tight_reference",
    ),
    PlantedError(
        "the penalty of a fit from products is halved",
        "probes/solve/solver.py",
        "C = np.maximum(largest[:, 0] * [task.C for task in tasks], LEAST_C)",
        "C = np.maximum(2 * largest[:, 0] * [task.C for task in tasks], LEAST_C)",
        "tests/probes/solve/test_solver.py::"
        "test_fits_of_hard_problems_are_as_low_as_a_tight_reference",
    ),
    PlantedError(
        "fits from products take the scales of the site for those of their share",
        "probes/solve/kernel.py",
        "        return (dual @ rows).mul_(self.squared_units[:, None]) @ rows.T\n",
        "        return (dual @ rows) @ rows.T\n",
        "tests/probes/solve/test_solver.py::"
        "test_fits_of_hard_problems_are_as_low_as_a_tight_reference",
    ),
    PlantedError(
        "the bound of the excess of a fit is a thousandth of it",
        "probes/solve/kernel.py",
        "gap = ratio * (error * scores(error)).sum(dim=(1, 2)) / (2 * C[:, 0, 0])",
        "gap = ratio * (error * scores(error)).sum(dim=(1, 2)) / (2e3 * C[:, 0, 0])",
        "tests/probes/solve/test_kernel.py::test_the_excess_of_a_fit_is_at_most_its_bound",
    ),
    PlantedError(
        "folds ignore the groups",
        "probes/data.py",
        "return fold_of_group[group_of_row]",
        "return np.arange(len(labels)) % folds",
        "tests/probes/test_data.py::test_no_group_is_on_both_sides_and_no_fold_is_empty",
    ),
    PlantedError(
        "the split ignores the groups",
        "data/splits.py",
        "split = _split(chosen[counts.group_of_row])",
        "split = _split(np.arange(len(counts.group_of_row)) % 4 == 0)",
        "tests/data/test_splits.py::test_groups_stay_whole_and_every_label_has_its_share",
    ),
    PlantedError(
        "control labels are drawn for each row",
        "probes/controls.py",
        "names, type_of_row = np.unique(types, return_inverse=True)",
        "names = type_of_row = np.arange(len(types))",
        "tests/probes/controls/test_control_task.py"
        "::test_labels_are_per_type_and_depend_on_no_other_row",
    ),
    PlantedError(
        "the chance level comes from test labels",
        "probes/split.py",
        "chance = uninformed(column[self.scored.train], predictions)",
        "chance = uninformed(column[self.scored.test], predictions)",
        "tests/probes/test_prober.py"
        "::test_control_labels_and_chance_come_from_the_training_labels_alone",
    ),
    PlantedError(
        "activations have the name of the next layer",
        "model/network.py",
        'tap.within(f"blocks.{layer}")',
        'tap.within(f"blocks.{(layer + 1) % len(blocks)}")',
        "tests/model/families/test_gpt2.py::test_every_site_equals_the_reference",
    ),
    PlantedError(
        "stored rows have the name of the next site",
        "activations/forward.py",
        "            yield BatchRows(dict(values[number]))",
        "            names, rows = list(values[number]), values[number].values()\n"
        "            moved = dict(zip([*names[1:], names[0]], rows, strict=True))\n"
        "            yield BatchRows(moved)",
        "tests/activations/test_capture.py::test_every_row_is_what_one_forward_pass_gives",
    ),
    PlantedError(
        "attention ignores the mask",
        "model/passes/context.py",
        "causal(n_new, n_keys, tokens.device) & (mask[:, None, None, :] | itself)",
        "causal(n_new, n_keys, tokens.device)[None, None]",
        "tests/model/families/test_gpt2.py::test_every_site_equals_the_reference",
    ),
    PlantedError(
        "positions count the padding",
        "model/passes/context.py",
        "positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, n_before:]",
        "positions = torch.arange(n_before, n_keys).expand_as(tokens)",
        "tests/model/families/test_gpt2.py::test_positions_are_counted_from_the_mask",
    ),
    PlantedError(
        "the last token is taken from the left",
        "data/positions.py",
        'elif pick == "last":\n        first = stop - 1',
        'elif pick == "last":\n        stop = first + 1',
        "tests/data/test_positions.py::test_each_rule_reads_its_tokens",
    ),
    PlantedError(
        "features are ranked on all rows",
        "probes/fitters.py",
        "paths = []\n            for fold in folds:",
        "paths = []\n"
        '            if self.spec.kind == "k_sparse":\n'
        "                from probekit.probes.kinds.k_sparse import best_features\n"
        '                k = dict(self.spec.options)["k"]\n'
        "                X = X * np.isin(np.arange(X.shape[1]), best_features(X, column, k))\n"
        "            for fold in folds:",
        "tests/probes/test_fitters.py"
        "::test_held_out_rows_neither_rank_nor_scale_the_features_of_their_fold",
    ),
    PlantedError(
        "features are scaled with all rows",
        "probes/solve/design.py",
        "units=torch.where(spread > 0, 1 / spread, 0.0),",
        "units=torch.ones(len(stacked), rows.raw.shape[1], dtype=dtype, device=device),",
        "tests/probes/test_fitters.py"
        "::test_held_out_rows_neither_rank_nor_scale_the_features_of_their_fold",
    ),
    PlantedError(
        "rows of position 0 are used for scaling",
        "pipeline/setup/design.py",
        "typical = plan.positions[plan.offsets[:-1]] > 0 if position.skip_first else None",
        "typical = None",
        "tests/pipeline/experiment/test_prepare.py"
        "::test_position_0_does_not_affect_scaling_by_default",
    ),
    PlantedError(
        "labels are exchanged by rows",
        "probes/score/exchange.py",
        "np.unique(self.groups, return_inverse=True)[1]",
        "np.arange(len(self.groups))",
        "tests/probes/score/test_exchange.py"
        "::test_the_statistic_equals_brute_force_over_all_arrangements",
    ),
    PlantedError(
        "the jackknife leaves out rows",
        "probes/score/metrics.py",
        "names, group_of_row = np.unique(groups, return_inverse=True)\n        unit",
        "names = group_of_row = np.arange(len(groups))\n        unit",
        "tests/test_pitfalls.py"
        "::test_pitfall_25_intervals_are_those_of_groups_and_differences_are_paired",
    ),
    PlantedError(
        "the jackknife variance lacks the factor G - 1",
        "probes/score/intervals.py",
        "return float((n_units - 1) * values[1:].var())",
        "return float(values[1:].var())",
        "tests/probes/score/test_intervals.py::test_the_variance_of_a_mean_is_the_usual_one",
    ),
    PlantedError(
        "a verdict forgets the rivals",
        "results/verdict.py",
        'return "not better" if self.doubts else "yes"',
        'return "yes"',
        "tests/results/test_verdict.py::test_verdicts_are_those_that_are_stored",
    ),
    PlantedError(
        "an association alone makes a probe better than a constant guess",
        "results/verdict.py",
        "if self.is_constant and not (smallest > 0 or largest < 0):",
        "if False:",
        "tests/results/test_verdict.py::test_verdicts_are_those_that_are_stored",
    ),
    PlantedError(
        "a source reads the rows of the first position",
        "pipeline/engines/network.py",
        "np.arange(position, store.n_rows, len(",
        "np.arange(0, store.n_rows, len(",
        "tests/pipeline/experiment/test_features.py::test_only_rows_of_the_position_are_read",
    ),
    PlantedError(
        "a source returns the site that it read last",
        "pipeline/engines/network.py",
        "if last is not None and last[0] == (site, position):",
        "if last is not None:",
        "tests/pipeline/experiment/test_features.py"
        "::test_concatenated_features_are_in_forward_order",
    ),
    PlantedError(
        "the key of a run ignores the version constants",
        "pipeline/measure/record.py",
        '"parts": PART_VERSIONS, ',
        "",
        "tests/pipeline/experiment/test_resuming.py::test_changed_code_or_sizes_reuse_no_result",
    ),
    PlantedError(
        "the key of a run ignores the code",
        "pipeline/measure/record.py",
        ', "sources": digest_sources()',
        "",
        "tests/pipeline/experiment/test_resuming.py"
        "::test_a_refactoring_reuses_activations_and_no_result",
    ),
    PlantedError(
        "a cache of another version of the network is used",
        "activations/records.py",
        "network=model.VERSION,",
        "network=1,",
        "tests/activations/test_records.py::test_the_versions_of_the_numbers_are_part_of_the_key",
    ),
    PlantedError(
        "numbers of GPT-2 change under the same version",
        "model/families/gpt2.py",
        "self.ln_2 = LayerNorm(config.n_embd, config.layer_norm_epsilon, bias=config.bias)",
        "self.ln_2 = LayerNorm(config.n_embd, 1e-3, bias=config.bias)",
        "tests/test_golden.py::test_numbers_are_those_of_the_version",
    ),
)


def plant(error: PlantedError, root: Path) -> str:
    """Plant an error in the package below `root` and return the original text of the file."""
    path = root / "probekit" / error.file
    text = path.read_text()
    if text.count(error.old) != 1:
        raise ValueError(f"{error.file} contains {error.old!r} {text.count(error.old)} times.")
    path.write_text(text.replace(error.old, error.new))
    return text


def outcome(error: PlantedError, root: Path) -> str:
    """Plant an error, run its test, restore the file, and return the outcome of the test."""
    original = plant(error, root)
    try:
        return OUTCOMES.get(run_tests([error.test], root), "error")
    finally:
        (root / "probekit" / error.file).write_text(original)


def run_tests(tests: Sequence[str], root: Path) -> int:
    """Return the exit code of pytest."""
    # Bytecode is not written: a file may change twice within the resolution of its date.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, check=False
    ).returncode


def copy_repository(root: Path) -> None:
    """Copy the package, the tests and what they read."""
    for name in COPIED:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, root / name)


def main(names: Sequence[str]) -> int:
    """Print a row for each error; return 1 if one of them is not noticed by its test."""
    errors = [error for error in ERRORS if not names or error.name in names]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        copy_repository(root)
        if run_tests(sorted({error.test for error in errors}), root) != PASSED:
            print("Some of the tests fail without an error.")
            return 1
        n_missed = 0
        for error in errors:
            found = outcome(error, root)
            n_missed += found == "MISSED"
            print(f"{error.name} ({error.file})\n    {found}: {error.test}", flush=True)
    print(f"{len(errors)} errors, {n_missed} missed.")
    return int(n_missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
