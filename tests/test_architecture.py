"""The rules of the code's shape that are worth running."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import probekit

PACKAGE = Path(probekit.__file__).parent

# A package imports from lower levels only, and never from a sibling on its own level.
LEVELS = (
    {
        "amounts",
        "errors",
        "files",
        "hub",
        "provenance",
        "section",
        "workers",
        "products",
        "progress",
        "terminal",
    },
    {"model", "data"},
    {"activations", "analysis", "probes", "training"},
    {"interventions"},
    {"results"},
    {"experiment", "report"},
    {"pipeline"},
    {"cli"},
)
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
TORCH_FREE = ("data", "probes", "results", "report", "experiment")
SOLVER = "probes/solve/"  # computes with torch; its inputs and outputs are NumPy arrays


def modules():
    return [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem in LEVEL]


def imports(path):
    """The modules that a file imports, those inside functions included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def own_imports(path):
    """The modules of the package that a file imports; those for type checkers alone are left out.

    `from package import module` imports the module.
    """
    tree = ast.parse(path.read_text())
    for_types = {
        id(node)
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and ast.unparse(test.test) == "TYPE_CHECKING"
        for node in ast.walk(test)
    }
    for node in ast.walk(tree):
        if id(node) in for_types or not isinstance(node, ast.ImportFrom):
            continue
        for alias in node.names:
            inner = PACKAGE.parent.joinpath(*node.module.split("."), f"{alias.name}.py")
            name = f"{node.module}.{alias.name}" if inner.exists() else node.module
            if name.startswith("probekit."):
                yield name


def package_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path):
    own = package_of(path)
    name = str(path.relative_to(PACKAGE))
    is_torch_free = own in TORCH_FREE and not name.startswith(SOLVER)
    for module in imports(path):
        parts = module.split(".")
        if parts[0] != "probekit":
            assert not (is_torch_free and parts[0] == "torch"), f"{path} imports torch"
        elif parts[1:]:
            lower = LEVEL[parts[1]] < LEVEL[own]
            siblings_at_the_bottom = LEVEL[own] == 0
            assert parts[1] == own or lower or siblings_at_the_bottom, f"{path} imports {module}"
        else:
            assert own == "cli", f"{path} imports the top of the package"


def test_the_pipeline_imports_report_only_for_pages_and_notebooks():
    pages = ("probekit.report.pages.", "probekit.report.attention.", "probekit.report.notebooks.")
    for path in (PACKAGE / "pipeline").rglob("*.py"):
        for module in own_imports(path):
            assert not module.startswith("probekit.report.") or module.startswith(pages), path


def test_sub_packages_have_empty_inits():
    for path in PACKAGE.rglob("__init__.py"):
        if path.parent != PACKAGE:
            assert not path.read_text(), path


def test_no_two_modules_import_each_other():
    """Cycles are refused inside packages too, whether an import is at the top or in a function."""
    graph = {module_name(path): set(own_imports(path)) for path in PACKAGE.rglob("*.py")}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


def test_a_public_name_has_one_meaning():
    homes = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(PACKAGE)))
    homes.pop("main")  # the entry point of each `python -m`
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_public_names_are_there_and_documented():
    for name in probekit.__all__:
        assert getattr(probekit, name) is not None
        if name != "__version__":
            assert getattr(probekit, name).__doc__, name


def test_the_docstring_of_the_package_lists_the_public_names():
    listed = re.findall(r"^    (\w+) {2,}\S", probekit.__doc__, re.MULTILINE)
    assert sorted(listed) == sorted(probekit.__all__) == dir(probekit)


def test_the_command_line_starts_without_anything_heavy():
    code = (
        "import sys, probekit.cli.main; "
        "print(sorted({'torch', 'numpy', 'pandas', 'sklearn', 'plotly', 'pydantic'}"
        " & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_no_machine_path_stands_in_the_repository(repository):
    files = subprocess.run(
        ["git", "ls-files", "*.py", "*.yaml", "*.toml", "*.md", "*.txt", "*.json", "Makefile"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    for name in files:
        if "merges" not in name and "vocab" not in name:
            text = (repository / name).read_text(encoding="utf-8")
            assert not re.search(r"(?<![\w.])/(home|root|work|Users)/\w", text), name


def test_figures_are_drawn_without_torch():
    """Importing it takes longer than most figures do."""
    code = (
        "import sys, probekit.report.figures.layer_curve, probekit.report.maps.maps; "
        "print('torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


# Both write numbers, or texts that this repository made itself.
OWN_CSV = ("files.py", "training/run_files.py")


def names_used(path):
    """The attributes and imported names of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            yield f"{ast.unparse(node.value)}.{node.attr}"
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_strangers_texts_leave_by_one_door():
    """One writer of CSVs, one reader of a run's, and one console: what they do holds for all."""
    for path in modules():
        name, used = path.relative_to(PACKAGE).as_posix(), set(names_used(path))
        if name not in OWN_CSV:
            writers = {
                one for one in used if one.endswith((".to_csv", "csv.writer", ".DictWriter"))
            }
            assert not writers, name
            assert "pd.read_csv" not in used, name
        if name != "progress.py":
            assert not {"rich.console.Console", "rich.print", "click.secho"} & used, name
