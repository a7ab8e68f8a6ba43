"""The rules of the code's shape that are worth running."""

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from inspect import signature
from operator import attrgetter
from pathlib import Path

import pytest

import probekit
from probekit.chosen.registry import ANALYSES, doors
from probekit.experiment.schema import Experiment
from probekit.report.notebooks.run_result import RunResult
from tests.code_lines import FEATURES, code_lines, lines_of_packages, over_budget

PACKAGE = Path(probekit.__file__).parent

# A package imports from lower levels only, and never from a sibling on its own level.
LEVELS = (
    "accelerators amounts errors files hub lazy_rows memory products progress provenance section "
    "terminal workers",
    "model data",
    "activations analysis probes training",
    "interventions",
    "results",
    "experiment report",
    "pipeline",
    "cli",
)
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names.split()}
# The order of the folders inside a package, where it matters: each imports from those before it.
# Other modules of the package are above all of them.
FOLDERS = {
    "pipeline": "setup look engines capture measure intervene experiment compare",
    "report": "elements figures sentences causes attention pages notebooks",
}
# The floor of each file of an analysis of the chosen probe; other files are on that of `measure`.
FLOORS = {"registry": "results", "section": "experiment", "page": "report"}
# What other modules may call, by file, and the arguments.
DOORS = {
    "section": {
        "check": "settings experiment",
        "check_rows": "settings experiment dataset has_texts",
    },
    "measure": {
        "texts": "settings source",
        "tables": "settings chosen",
        "transferred": "sets X results spec site",
        "work": "sites fitted spec X penalty",
        "further_findings": "source",
        "identity": "source",
    },
    "page": {
        **dict.fromkeys(["answers", "screen", "figures", "sections", "curves"], "run"),
        **dict.fromkeys(["details", "examples"], "run"),
        "doubts": "v",
        "transferred_section": "rows places",
    },
}
TORCH_FREE = ("data", "probes", "results", "report", "experiment")
# These compute with torch; their inputs and outputs are NumPy arrays.
SOLVERS = (
    "probes/solve/",
    *(f"probes/kinds/{name}.py" for name in ("attention_pooled", "mlp", "structural")),
    "probes/exports/torch.py",
)


def modules():
    return [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem in LEVEL]


@cache
def nodes(path):
    """All nodes of the syntax tree of a file."""
    return list(ast.walk(ast.parse(path.read_text())))


def imports(path):
    """The modules that a file imports, those inside functions included."""
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "probekit":  # its modules
                yield from (f"probekit.{alias.name}" for alias in node.names)
            else:
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
    for_types = {
        id(node)
        for test in nodes(path)
        if isinstance(test, ast.If) and ast.unparse(test.test) == "TYPE_CHECKING"
        for node in ast.walk(test)
    }
    for node in nodes(path):
        if id(node) in for_types or not isinstance(node, ast.ImportFrom):
            continue
        for alias in node.names:
            inner = PACKAGE.parent.joinpath(*node.module.split("."), f"{alias.name}.py")
            name = f"{node.module}.{alias.name}" if inner.exists() else node.module
            if name.startswith("probekit."):
                yield name


def floor_of(parts):
    """The package that a module belongs to, given its path; of an analysis, that of its floor."""
    return FLOORS.get(parts[-1], "pipeline") if parts[0] == "chosen" else parts[0]


def test_imports_point_down():
    for path in modules():
        own = floor_of(path.relative_to(PACKAGE).with_suffix("").parts)
        name = str(path.relative_to(PACKAGE))
        is_torch_free = own in TORCH_FREE and not name.startswith(SOLVERS)
        for module in imports(path):
            parts = module.split(".")
            if parts[0] != "probekit":
                assert not (is_torch_free and parts[0] == "torch"), f"{path} imports torch"
            elif parts[1:]:
                other = floor_of(parts[1:])
                is_allowed = other == own or LEVEL[other] < LEVEL[own] or LEVEL[own] == 0
                assert is_allowed, f"{name}: {module}"
            else:
                assert own == "cli", f"{path} imports the top of the package"


@pytest.mark.parametrize("package", FOLDERS)
def test_imports_point_down_inside_a_package_too(package):
    level = {name: number for number, name in enumerate(FOLDERS[package].split())}
    assert {one.parent.name for one in (PACKAGE / package).glob("*/__init__.py")} == set(level)
    for path in (PACKAGE / package).glob("*/*.py"):
        for module in own_imports(path):
            _, of_module, *inner = module.split(".")
            if of_module == package:
                assert level[inner[0]] <= level[path.parent.name], f"{path}: {module}"


def test_the_pipeline_imports_report_only_for_pages_figures_and_notebooks():
    folders = ("pages.", "attention.", "notebooks.", "figures.figure_files")
    written = tuple(f"probekit.report.{folder}" for folder in folders)
    for path in (PACKAGE / "pipeline").rglob("*.py"):
        for module in own_imports(path):
            assert not module.startswith("probekit.report.") or module.startswith(written), path


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
    homes = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for node in nodes(path)[0].body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                homes[node.name].add(str(path.relative_to(PACKAGE)))
    homes.pop("main")  # the entry point of each `python -m`
    for name in {name for names in DOORS.values() for name in names}:  # they count as one
        homes[name] = {one.partition("/")[0] if "chosen/" in one else one for one in homes[name]}
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


# Files that are read through a table, a door or from the command line need no second importer.
REGISTERED = (
    *("activations/derived", "activations/given/served/", "chosen/", "cli/"),
    *("model/families/", "probes/exports/"),
    *("probes/kinds/", "report/pages/"),
)
# Keys of experiments, attributes of results and documented columns, which users type; the verdict.
TYPED = (
    "experiment/activations.py",
    "experiment/schema.py",
    "report/notebooks/run_result.py",
    *(f"results/{name}.py" for name in ("comparison", "judging", "table")),
)


@pytest.fixture(scope="module")
def trees():
    """The syntax tree of each file of the package."""
    return {path.relative_to(PACKAGE).as_posix(): nodes(path)[0] for path in PACKAGE.rglob("*.py")}


def test_each_package_is_within_its_budget_and_the_rooms_of_features_exist():
    assert over_budget(lines_of_packages()) == []
    paths = (PACKAGE / (name if name[-1] == "/" else f"{name}.py") for name in FEATURES)
    assert [path for path in paths if not path.exists()] == []


def test_a_module_has_two_importers_or_a_hundred_lines(trees):
    names = {module_name(PACKAGE / file): file for file in trees}
    importers = defaultdict(set)
    for file, tree in trees.items():
        for node in ast.walk(tree):
            used = []
            if isinstance(node, ast.ImportFrom):
                used = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                used = [node.value.partition(":")[0]]  # "module:Name" of a table
            for name in used:
                importers[names.get(name)].add(file)
    found = {
        file
        for file in trees
        if not file.startswith(REGISTERED) and not file.endswith(("__init__.py", "__main__.py"))
        if len(importers[file]) < 2 and code_lines(PACKAGE / file) < 100
    }
    assert found == set()


def records(trees):
    """File, name and fields of each dataclass without methods."""
    for file, tree in trees.items():
        for node in tree.body:
            marks = [ast.unparse(one) for one in getattr(node, "decorator_list", ())]
            inner = {type(one) for one in getattr(node, "body", ())}
            if any(one.startswith("dataclass") for one in marks) and ast.FunctionDef not in inner:
                fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
                yield file, node.name, {one.target.id for one in fields}


def test_a_record_is_read_in_two_files(trees):
    """A file reads it by its name, or by a field that no other record has."""
    reads = defaultdict(set)
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                reads[node.attr].add(file)
            elif isinstance(node, ast.Name):
                reads[node.id].add(file)
    for path in PACKAGE.rglob("*.html"):
        for name in re.findall(r"\.(\w+)", path.read_text()):
            reads[name].add(path.name)
    found = list(records(trees))
    n_owners = Counter(field for *_, fields in found for field in fields)
    lonely = set()
    for file, name, fields in found:
        own = {field for field in fields if n_owners[field] == 1}
        if not (reads[name].union(*(reads[field] for field in own)) - {file}):
            lonely.add(name)
    assert lonely == set()


def forwards(function):
    """Whether a function only calls another one with its own arguments."""
    body = function.body[ast.get_docstring(function) is not None :]
    if function.decorator_list or len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr):
        return False
    call, a = body[0].value, function.args
    own = [one.arg for one in (*a.posonlyargs, *a.args, a.vararg, *a.kwonlyargs, a.kwarg) if one]
    if not own or not isinstance(call, ast.Call):
        return False
    called = ast.unparse(call.func)
    given = [ast.unparse(one).lstrip("*") for one in call.args]
    given += [ast.unparse(one.value) for one in call.keywords]
    is_name = called.replace(".", "").isidentifier()
    return is_name and given == own and called.partition(".")[0] not in own


def test_no_function_only_forwards_its_arguments(trees):
    """Methods are left out, since an interface may require them."""
    functions = [
        node for tree in trees.values() for node in tree.body if isinstance(node, ast.FunctionDef)
    ]
    assert {one.name for one in functions if forwards(one)} == {"load_experiment"}


def test_no_other_module_names_an_analysis(trees):
    """Neither its modules, its files and its texts, nor its section."""
    own = ((*one.tables, one.texts, one.name * (one.key == one.name)) for one in ANALYSES)
    # A transfer between data sets writes cosines, too.
    names = {name for of_one in own for name in of_one} - {"", "cosines.csv"}
    folders = tuple(f"probekit.chosen.{one.name}" for one in ANALYSES)
    found = set()
    for file, tree in trees.items():
        if not file.startswith(("chosen/", *TYPED)):
            for node in ast.walk(tree):
                said = getattr(node, "attr", getattr(node, "value", None))
                module = getattr(node, "module", None) or ""
                is_inside = module.startswith(folders)
                if is_inside or (isinstance(said, str) and said in names):
                    found.add(file)
    assert found == set()


def test_every_analysis_is_typed_for_users():
    for analysis in filter(attrgetter("key"), ANALYSES):
        for file in analysis.tables:
            assert isinstance(vars(RunResult)[Path(file).stem], cached_property)
        if analysis.key == analysis.name:
            annotation = Experiment.model_fields[analysis.name].annotation
            assert annotation.__args__[0].__module__ == f"probekit.chosen.{analysis.name}.section"


def test_the_doors_of_the_analyses_have_the_same_arguments():
    for file, names in DOORS.items():
        for name, arguments in names.items():
            found = {" ".join(signature(door).parameters) for _, door in doors(file, name)}
            assert {one.replace("_settings", "settings") for one in found} == {arguments}


def test_public_names_are_documented_and_in_the_docstring_of_the_package():
    for name in probekit.__all__:
        assert getattr(probekit, name).__doc__, name
    listed = re.findall(r"^    (\w+) {2,}\S", probekit.__doc__, re.MULTILINE)
    assert sorted(listed) == sorted(probekit.__all__) == dir(probekit)


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("probekit.cli.main", {"torch", "numpy", "pandas", "sklearn", "plotly", "pydantic"}),
        ("probekit.report.figures.layer_curve, probekit.report.figures.maps", {"torch"}),
    ],
)
def test_the_command_line_and_figures_start_without_what_is_heavy(modules, heavy):
    code = f"import sys, {modules}; print({heavy} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


def test_mypy_finds_nothing(repository):
    command = [sys.executable, "-m", "mypy"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stdout + done.stderr


def test_no_machine_path_stands_in_the_repository(repository):
    command = ["git", "ls-files", "*.py", "*.yaml", "*.toml", "*.md", "*.txt", "*.json", "Makefile"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    for name in done.stdout.split():
        if "merges" not in name and "vocab" not in name:
            text = (repository / name).read_text(encoding="utf-8")
            assert not re.search(r"(?<![\w.])/(home|root|work|Users)/\w", text), name


# Both write numbers, or texts that this repository made itself.
OWN_CSV = ("files.py", "training/run_files.py")


def names_used(path):
    """The attributes and imported names of a file."""
    for node in nodes(path):
        if isinstance(node, ast.Attribute):
            yield f"{ast.unparse(node.value)}.{node.attr}"
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_strangers_texts_leave_by_one_door():
    """One writer of CSVs, one reader of a run's, and one console: what they do holds for all."""
    for path in modules():
        name, used = path.relative_to(PACKAGE).as_posix(), set(names_used(path))
        if name not in OWN_CSV:
            of_tables = (".to_csv", "csv.writer", ".DictWriter", "pd.read_csv")
            assert not [one for one in used if one.endswith(of_tables)], name
        if name != "progress.py":
            assert not {"rich.console.Console", "rich.print", "click.secho"} & used, name
