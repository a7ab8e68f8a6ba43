"""Code lines of the package and their budget; `make check` prints the sums.

A code line has a token that is no comment, blank or docstring. A package may exceed its budget by
1 %, and by at least 10 lines; a budget is raised only by a commit that explains why.
"""

import ast
import sys
import tokenize
from collections import Counter
from io import StringIO
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "probekit"
BUDGETS = {
    "chosen": 2000,
    "report": 8324,
    "pipeline": 8315,
    "probes": 6875,
    "model": 5464,
    "activations": 3403,
    "cli": 2206,
    "interventions": 1872,
    "experiment": 2445,
    "data": 2201,
    "results": 2130,
    "training": 859,
    "analysis": 1061,
    "": 1788,  # the files at the top
}
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
    """Return the code lines of each package, and of the files at the top under an empty name."""
    lines = Counter()
    for path in PACKAGE.rglob("*.py"):
        lines["/".join(path.relative_to(PACKAGE).parts[:-1][:1])] += code_lines(path)
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
    budget = sum(BUDGETS.values())
    sys.stdout.write(f"probekit: {sum(found.values()):,} code lines, budget {budget:,}\n")
    sys.exit("\n".join(over_budget(found)) or 0)
