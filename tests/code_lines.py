"""Code lines of the package and their budget; `make check` prints the sums.

A code line has a token that is no comment, blank or docstring. A package may exceed its budget by
1 %, and by at least 10 lines; a budget is raised only by a commit that explains why. The core is
what is in none of the `ROOMS`: it may become better, but not longer.
"""

import ast
import sys
import tokenize
from collections import Counter
from io import StringIO
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "probekit"
BUDGETS = {
    "report": 8055,
    "pipeline": 7790,
    "probes": 7815,
    "model": 8610,
    "activations": 3796,
    "cli": 2350,
    "chosen": 3788,
    "interventions": 1785,
    "experiment": 1935,
    "data": 2156,
    "results": 2225,
    "training": 769,
    "analysis": 1094,
    "": 1810,  # the files at the top
    "core": 20790,  # of all packages
}
# The rooms of features: folders, and files without their ending.
ROOMS = """
chosen/ report/pages/further_figures report/pages/rise probes/score/description_length
interventions/ pipeline/intervene/ report/causes/ report/pages/causes_page report/pages/pair_page
experiment/interventions results/causes results/cause_verdict
analysis/ pipeline/look/ report/pages/lens_page report/pages/heads_page results/network cli/pictures
report/pages/attribution_page report/pages/weights_page report/figures/maps report/elements/tokens
model/families/gemma model/families/llama model/families/neox model/families/olmo2 cli/models
model/families/olmoe model/families/opt model/families/phi3 model/families/rotary model/text/chat
model/families/mixtral model/families/qwen3_moe
model/families/from_transformers model/text/hub_tokenizer model/weights/other_formats
model/proven/ model/transformer_lens model/weights/hub hub accelerators
model/generation report/pages/texts_page cli/texts cli/view_server cli/around_runs
pipeline/compare/ report/pages/transfer_page report/pages/compare_page results/comparison
report/sentences/comparisons probes/score/unpaired
experiment/study pipeline/experiment/run_study report/pages/study_page results/study
training/ pipeline/pretrain report/pages/losses
activations/given/ pipeline/engines/given pipeline/experiment/probe experiment/activations
activations/requests pipeline/engines/requests activations/replies pipeline/engines/replies
experiment/replies experiment/example data/frames
pipeline/experiment/ray_workers pipeline/experiment/run_job pipeline/capture/jobs workers
pipeline/experiment/plan pipeline/experiment/validate pipeline/selftest
probes/kinds/aggregated probes/kinds/attention_pooled probes/kinds/class_means probes/kinds/k_sparse
probes/kinds/mlp probes/kinds/structural probes/kinds/svm probes/kinds/trees probes/aggregation
probes/foreign probes/kinds/left_out probes/exports/ report/pages/doses_page
activations/upkeep activations/object_store cli/caches
activations/outputs activations/derived pipeline/setup/output
experiment/ask report/pages/over_page
report/notebooks/ report/pages/index_page report/figures/figure_files report/elements/static
"""
FEATURES = ROOMS.split()
NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
HAVE_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(path):
    """Return the number of code lines of a file."""
    text = path.read_text()
    lines = set()
    for token in tokenize.generate_tokens(StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, HAVE_DOCSTRINGS) and ast.get_docstring(node) is not None:
            lines.difference_update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def lines_of_packages():
    """Return the code lines of each package, of the files at the top under "", and of the core."""
    lines = Counter()
    for path in PACKAGE.rglob("*.py"):
        name, n = path.relative_to(PACKAGE).with_suffix("").as_posix(), code_lines(path)
        lines[name.rpartition("/")[0].partition("/")[0]] += n
        if not any(name == one or (one[-1] == "/" and name.startswith(one)) for one in FEATURES):
            lines["core"] += n
    return lines


def over_budget(lines):
    """Return a line for each package that exceeds its budget by more than is allowed."""
    most = {name: budget + max(10, budget // 100) for name, budget in BUDGETS.items()}
    return [
        f"probekit/{name}: {n:,} code lines, at most {most[name]:,}"
        for name, n in lines.items()
        if n > most[name]
    ]


if __name__ == "__main__":
    found = lines_of_packages()
    core = found["core"]
    total, budget = sum(found.values()) - core, sum(BUDGETS.values()) - BUDGETS["core"]
    sys.stdout.write(f"probekit: {total:,} code lines, budget {budget:,}; core {core:,}\n")
    sys.exit("\n".join(over_budget(found)) or 0)
