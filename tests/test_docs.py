"""README and docs: examples run, links resolve, and what they name is there.

At night Sphinx builds all pages, and executes the notebooks of docs/lessons, as `make docs` does.
"""

import doctest
import importlib
import os
import re
import shlex
import subprocess
import sys
from contextlib import chdir
from functools import cached_property
from pathlib import Path

import click
import pandas as pd
import pytest
from ruamel.yaml import YAML

import probekit
from probekit.cli.main import cli, main
from probekit.cli.options import OutputFile
from probekit.experiment.loader import load_any, load_any_experiment, load_experiment
from probekit.experiment.schema import Experiment
from probekit.pipeline.experiment.run import run
from probekit.probes.score.metric_table import METRICS
from probekit.results.study import RIVAL_COLUMNS, STUDY_COLUMNS
from probekit.results.table import DIFFERENCES, RESULTS, SOURCES

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FILES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
PAGES = {page.relative_to(ROOT).as_posix(): page.read_text() for page in FILES}
README = PAGES["README.md"]
# Commands of this page write to a folder that several machines share.
OF_CLUSTERS = "docs/howto/cluster.md"


def blocks(text, language):
    """Return the contents of the code blocks in one language."""
    return re.findall(rf"^```{re.escape(language)}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(text):
    """Return the commands of the console blocks."""
    return [line for block in blocks(text, "console") for line in block.splitlines()]


WITH_COMMANDS = [name for name in PAGES if commands(PAGES[name]) and name != OF_CLUSTERS]
FIRST = commands(README)[1]  # probekit init
# Of a sentence, a table, a formula or a block.
ENDS = (".", "?", ":", ".)", "|", "$$", "```", ":::", ">", "](layer_curve.svg)")


@pytest.mark.parametrize("name", [n for n in PAGES if ">>> " in PAGES[n]])
def test_the_python_of_a_page_runs_with_the_output_shown(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path))
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.testfile(str(ROOT / name), module_relative=False, optionflags=options)
    assert result.attempted
    assert result.failed == 0


def test_the_python_of_the_page_on_transformer_lens_runs():
    name = "docs/howto/coming_from_transformer_lens.md"
    found = blocks(PAGES[name], "python")
    assert len(found) > 3
    names = {}
    for block in found:  # one after the other, as a reader would
        lines_before = PAGES[name][: PAGES[name].index(block)].count("\n")
        exec(compile("\n" * lines_before + block, name, "exec"), names)


@pytest.mark.parametrize("name", [n for n in PAGES if "from probekit" in PAGES[n]])
def test_every_import_of_a_page_finds_its_names(name):
    """The notebooks of docs/lessons run only at night."""
    pattern = r"^(?:>>> )?from (probekit\S*) import (.+)$"
    for module, names in re.findall(pattern, PAGES[name], re.MULTILINE):
        for one in names.split(", "):
            assert hasattr(importlib.import_module(module), one), f"{name}: {module}.{one}"


@pytest.mark.parametrize("name", [n for n in PAGES if "$$" in PAGES[n]])
def test_every_formula_of_a_page_can_be_drawn(name, monkeypatch):
    pytest.importorskip("sphinx", reason="needs the extra docs")
    monkeypatch.syspath_prepend(DOCS / "_ext")
    mathml = importlib.import_module("mathml")
    prose = re.sub(r"(?ms)^```.*?^```|`[^`\n]*`", "", PAGES[name])
    formulas = re.findall(r"\$\$.+?\$\$|\$[^$\n]+\$", prose, re.DOTALL)
    assert len(formulas) > 10
    for formula in formulas:
        assert mathml._mathml(formula.strip("$"))


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """The experiment of the README with its data and two runs; the path of each placeholder."""
    folder = tmp_path_factory.mktemp("workplace")
    rows = [
        {"sentence": f"The {size} {noun} was {end}", "size": size, "topic": noun}
        for noun in ("house", "door", "river", "garden", "letter", "table", "ship", "horse")
        for end in ("there", "here", "gone")
        for size in ("large", "little")
    ]
    pd.DataFrame(rows).to_csv(folder / "my_data.csv", index=False)
    with chdir(folder):
        cli(shlex.split(FIRST)[1:], standalone_mode=False)
    for name in ("experiments", "data"):
        (folder / name).symlink_to(ROOT / name)
    settings = folder / "my_question.yaml"
    other = ["tokens.position.at=mean", "model.random_weights=false", "probe.control_draws=0"]
    experiments = load_experiment(settings), load_experiment(settings, other)
    a, b = (
        run(one, out=folder / "runs", cache_root=folder / "cache", page=False).folder
        for one in experiments
    )
    probe = next((a / "probes").glob("*/logistic.safetensors")).with_suffix("")
    return folder, {"RUN_A": str(a), "RUN_B": str(b), "RUN": str(a), "PROBE": str(probe)}


@pytest.mark.parametrize("name", WITH_COMMANDS)
def test_every_command_of_a_page_runs(name, workplace, monkeypatch, capsys):
    folder, paths = workplace
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PROBEKIT_CACHE", str(folder / "cache"))
    for command in commands(PAGES[name]):
        if command in ("make quickstart", FIRST):  # a target in .ci/run; run by `workplace`
            continue
        words = [paths.get(word, word) for word in shlex.split(command)]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code in (0, None), f"{command}: {capsys.readouterr().err}"
    assert name != "README.md" or list(folder.glob("runs/my_question/*/report.html"))


@pytest.mark.parametrize("name", PAGES)
def test_every_command_and_option_exists(name):
    text = PAGES[name]
    for command in [*commands(text), *re.findall(r"`(probekit [^`\n]*)`", text)]:
        if command.startswith("probekit "):
            check_command(command)


def test_the_experiment_of_the_readme_is_that_of_init(workplace):
    block, file = blocks(README, "yaml")[0], workplace[0] / "my_question.yaml"
    assert set(block.splitlines()) <= set(file.read_text().splitlines())
    assert YAML(typ="safe").load(block) == YAML(typ="safe").load(file)


def check_command(command):
    """Fail if a command has a name or an option that probekit does not have."""
    group, words = cli, shlex.split(command)[1:]
    if words in (["--version"], ["--help"]):
        return
    while isinstance(group, click.Group) and words and words[0] in group.commands:
        group = group.commands[words.pop(0)]
    # `cache` without the name of a command captures.
    if group is cli.commands["cache"]:
        group = group.commands["capture"]
    assert group is not cli, command
    known = {option for one in group.params for option in (*one.opts, *one.secondary_opts)}
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert given <= known | {"--help"}, command


def test_an_unknown_option_is_noticed():
    with pytest.raises(AssertionError):
        check_command("probekit run FILE.yaml --colour")


def test_the_gallery_has_a_page_of_every_command_that_writes_one(monkeypatch):
    pytest.importorskip("sphinx", reason="needs the extra docs")
    monkeypatch.syspath_prepend(DOCS / "_ext")
    live_pages = importlib.import_module("live_pages")
    shown = {command.split()[0] for _, command, _ in live_pages.PAGES.values()}
    writing = {
        name
        for name, command in cli.commands.items()
        for parameter in command.params
        if isinstance(parameter.type, OutputFile) and ".html" in (parameter.type.endings or ".html")
    }
    assert shown >= writing | {"run", "intervene", "transfer"}
    for _, command, _ in live_pages.PAGES.values():
        check_command(f"probekit {command}")


def anchors(text):
    """Return the anchors of the headings, as GitHub and MyST name them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(name):
    """Sphinx checks the tables of contents, and that each page is in one."""
    page, prose = ROOT / name, re.sub(r"(?ms)^```.*?^```|`[^`\n]*`", "", PAGES[name])
    for link in re.findall(r"\]\((?!\w+://)([^)\s]+)\)", prose):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.is_file(), f"{name}: {link}"
        assert not anchor or anchor in anchors(target.read_text()), f"{name}: {link}"


@pytest.mark.parametrize("name", PAGES)
def test_the_last_sentence_of_every_section_is_complete(name):
    prose = re.sub(r"^(```|:::|---).*?^\1", "```", PAGES[name], flags=re.DOTALL | re.MULTILINE)
    for section in re.split(r"^#+ .*$", prose, flags=re.MULTILINE):
        *_, last = section.strip().splitlines() or [""]
        assert not last or last.endswith(ENDS), f"{name}: {last}"


@pytest.mark.parametrize("name", [name for name in PAGES if blocks(PAGES[name], "yaml")])
def test_every_yaml_block_is_valid(name, tmp_path):
    for block in blocks(PAGES[name], "yaml"):
        given = YAML(typ="safe").load(block)
        if "apiVersion" in given:  # of Kubernetes
            continue
        if "activations" in given:
            (tmp_path / "given.yaml").write_text(block)
            load_any_experiment(tmp_path / "given.yaml")
            continue
        if "over" in given:
            for file in ("tasks/a.csv", "other/verbs.csv"):
                (tmp_path / file).parent.mkdir(exist_ok=True)
                (tmp_path / file).write_text("prompt,target\nA cat,animal\n")
            (tmp_path / "published.csv").write_text("task,score\na,0.9\n")
            (tmp_path / "study.yaml").write_text(block)
            assert len(load_any(tmp_path / "study.yaml").cells) == 4
            continue
        assert given.keys() <= Experiment.model_fields.keys(), f"{name}: {block}"
        shipped = YAML(typ="safe").load((ROOT / "experiments" / "quickstart.yaml").read_text())
        if "tokens" in given and given["tokens"].get("position", {}).get("at") in ("word", "span"):
            given.setdefault("data", {"name": "a", "format": "conllu", "file": "a.conllu"})
        data = given.get("data", {})
        if data.get("train") or data.get("columns", {}).get("split"):
            del shipped["split"]
        if given.get("probe", {}).get("kinds", [{}])[0].get("kind") == "ridge_regression":
            given["probe"].setdefault("metric", "r2")
        YAML().dump(shipped | given, tmp_path / "block.yaml")
        load_experiment(tmp_path / "block.yaml")


def test_no_description_of_a_property_is_taken_for_its_type():
    """Sphinx reads the words before a colon in the first line as the type of the property."""
    for name in probekit.__all__:
        for member, value in getattr(getattr(probekit, name), "__dict__", {}).items():
            if isinstance(value, property | cached_property):
                assert ":" not in (value.__doc__ or "").partition("\n")[0], f"{name}.{member}"


def test_every_metric_is_explained():
    text = PAGES["docs/explanation/numbers.md"]
    assert [name for name in METRICS if f"`{name}`" not in text] == []


@pytest.mark.parametrize("columns", [RESULTS, DIFFERENCES, SOURCES, STUDY_COLUMNS, RIVAL_COLUMNS])
def test_every_column_has_a_meaning(columns):
    assert all(column.meaning and not column.meaning.endswith(".") for column in columns)


def test_the_readme_is_short_and_names_what_is_there():
    assert len(README.splitlines()) <= 150
    assert README.count(">>> ") >= 5
    folders = "probekit|docs|experiments|data|model|probes|report"
    for name in re.findall(rf"`((?:{folders})/[\w./]+)`", README):
        assert (ROOT / name).exists() or (ROOT / "probekit" / name).exists(), name
    listed = set(re.findall(r"^\| `(\w+\.yaml)` \|", README, re.MULTILINE))
    assert listed == {path.name for path in (ROOT / "experiments").glob("*.yaml")}
    named = re.findall(r"^\| `make (\w+)`", README, re.MULTILINE)
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(named) == {"check", "test", "nightly"} <= set(targets)
    assert commands(README)[0] == "make quickstart"
    last = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line[:1] != "#"]
    picture = ".venv/bin/python -m benchmarks.gallery --check"
    assert last[-3:] == ["make test", "make quickstart", picture]


def test_sphinx_builds_all_pages():
    pytest.importorskip("sphinx", reason="needs the extra docs")
    built = ROOT / "build" / "docs" / "html"
    options = ["-W", "-q", "-b", "html", "-D", "nb_execution_mode=cache"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, "docs", str(built)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names = (built / "reference" / "api.html").read_text()
    for name in set(probekit.__all__) - {"__version__"}:
        assert f'id="probekit.{name}"' in names or f".{name}" in names, name
    # Nothing is loaded from a network.
    for page in built.rglob("*.html"):
        text = page.read_text()
        assert not re.findall(r'<(?:script|img|iframe)[^>]*src="https?://', text), page
        assert not re.findall(r'<link[^>]*rel="stylesheet"[^>]*href="https?://', text), page
