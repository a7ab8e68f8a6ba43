"""Pages of the reference, written from the tables of the package: keys, columns, sites, metrics.

The directive `reference-table` has one argument, a name in `TABLES`.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import isinf
from typing import Any

import click
from docutils import nodes
from pydantic import BaseModel
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import probekit
from probekit.cli.main import cli
from probekit.experiment.activations import ActivationExperiment
from probekit.experiment.schema import Experiment
from probekit.model.config import ModelConfig
from probekit.model.families.gemma import GemmaConfig
from probekit.model.families.gpt2 import GPT2Config
from probekit.model.families.llama import LlamaConfig
from probekit.model.families.mixtral import MixtralConfig
from probekit.model.families.neox import NeoXConfig
from probekit.model.families.olmo2 import OLMo2Config
from probekit.model.families.olmoe import OLMoEConfig
from probekit.model.families.opt import OPTConfig
from probekit.model.families.phi3 import Phi3Config
from probekit.model.families.qwen3_moe import Qwen3MoeConfig
from probekit.probes.score.metric_table import METRICS, SELECTING, Metric
from probekit.results.study import RIVAL_COLUMNS, STUDY_COLUMNS
from probekit.results.table import DIFFERENCES, RESULTS, SOURCES, TableColumn
from probekit.section import json_schema
from probekit.training.recipe import Recipe

Json = dict[str, Any]

INHERITED = ("get_metadata_routing", "model_config", "model_post_init")

REFERENCES = {"chance": "chance level", "chain": "linear chain", "label_counts": "label counts, 1"}


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    r"""Return a table in Markdown.

    >>> print(table(["a", "b"], [["1", "x|y"]]))
    | a | b |
    |---|---|
    | 1 | x\|y |
    """
    names = list(header)
    cells = ([cell.replace("|", r"\|") for cell in row] for row in [names, *rows])
    first, *others = (f"| {' | '.join(row)} |" for row in cells)
    return "\n".join([first, "|---" * len(names) + "|", *others])


def experiment_keys() -> str:
    """Return every key of an experiment file: type, default and description."""
    return "\n".join(_sections(json.loads(json_schema(Experiment, "experiment"))))


def activations_keys() -> str:
    """Return the section of an experiment on given activations that others do not have."""
    schema = json.loads(json_schema(ActivationExperiment, "activations"))
    section = _target(schema["properties"]["activations"], schema["$defs"])
    return "\n".join(_keys(section or {}, schema, "`activations`", "activations"))


def recipe_keys() -> str:
    """Return every key of a recipe for `probekit pretrain`."""
    return "\n".join(_sections(json.loads(json_schema(Recipe, "recipe"))))


def _sections(schema: Json) -> Iterator[str]:
    """Yield the keys of a file: first those outside of sections, then section by section."""
    definitions = schema.get("$defs", {})
    yield from _keys(schema, schema, "Keys of the file", "")
    waiting = [(name, _target(key, definitions)) for name, key in schema["properties"].items()]
    done: set[str] = set()
    while waiting:
        path, section = waiting.pop(0)
        if section is None or section["title"] in done:
            continue
        done.add(section["title"])
        yield from _keys(section, schema, f"`{path}`", path)
        waiting += [
            (f"{path}.{name}", _target(key, definitions))
            for name, key in section["properties"].items()
        ]


def _target(key: Json, definitions: Json) -> Json | None:
    """Return the section that a key contains, or that the items of its list are; else None."""
    for form in (key, key.get("items", {}), *key.get("anyOf", ())):
        name = form.get("$ref", "").rpartition("/")[2]
        if "properties" in definitions.get(name, {}):
            found: Json = definitions[name]
            return found
    return None


def _keys(section: Json, schema: Json, title: str, path: str) -> Iterator[str]:
    yield f"## {title}\n"
    if path:
        yield f"{section.get('description', '')}\n"
    for name, key in section["properties"].items():
        definitions = schema.get("$defs", {})
        inner = _target(key, definitions)
        needed = name in section.get("required", ())
        default = "required" if needed else _default_text(key, inner)
        text = key.get("description") or (inner or {}).get("description", "")
        examples = ", ".join(f"`{_yaml(item)}`" for item in key.get("examples", ()))
        facts = [_type_text(key, definitions), default]
        facts += [f"for example {examples}"] if examples else []
        yield f"`{name}` ({'; '.join(facts)})"
        yield f": {text[:1].upper()}{text[1:].rstrip('.')}.\n"


def _yaml(value: Any) -> str:
    """Return a value as it is written in YAML."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _default_text(key: Json, inner: Json | None) -> str:
    if inner is not None and isinstance(key.get("default"), dict):
        return "see below"
    if "default" not in key:
        return "optional"
    return f"default `{_yaml(key['default'])}`"


def _type_text(key: Json, definitions: Json) -> str:
    """Return the type and the allowed values of a key.

    >>> _type_text({"type": "integer", "minimum": 2}, {})
    'integer, at least 2'
    """
    if "$ref" in key:
        inner = definitions[key["$ref"].rpartition("/")[2]]
        return "section" if "properties" in inner else _type_text(inner, definitions)
    if "anyOf" in key:
        return "; or ".join(_type_text(form, definitions) for form in key["anyOf"])
    if "const" in key:
        return f"`{_yaml(key['const'])}`"
    if "enum" in key:
        return "one of " + ", ".join(f"`{_yaml(value)}`" for value in key["enum"])
    if key.get("type") == "array":
        items = _type_text(key["items"], definitions) if "items" in key else "values"
        return f"list of {items}"
    return ", ".join([key.get("type", "any value"), *_limits(key)])


def _limits(key: Json) -> Iterator[str]:
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "more than",
        "maximum": "at most",
        "exclusiveMaximum": "less than",
    }
    for name, word in words.items():
        if name in key:
            yield f"{word} {key[name]:,}"
    if "pattern" in key:
        yield f"matching `{key['pattern']}`"


def _columns(columns: Iterable[TableColumn]) -> str:
    def values(column: TableColumn) -> str:
        names = ", ".join(f"`{name}`" for name in column.allowed)
        return f"one of {names}" if names else column.type

    return "\n".join(
        f"`{column.name}` ({values(column)})\n: {column.meaning[:1].upper()}{column.meaning[1:]}.\n"
        for column in columns
    )


def results_columns() -> str:
    """Return the columns of results.csv."""
    return _columns(RESULTS)


def differences_columns() -> str:
    """Return the columns of differences.csv."""
    return _columns(DIFFERENCES)


def study_columns() -> str:
    """Return the columns of study.csv."""
    return _columns(STUDY_COLUMNS)


def rival_columns() -> str:
    """Return the columns of study_rivals.csv."""
    return _columns(RIVAL_COLUMNS)


def sources_columns() -> str:
    """Return the columns of sources.csv."""
    return _columns(SOURCES)


def sites_of(config: ModelConfig) -> str:
    """Return the table of sites of a network."""
    return table(
        ["site", "axes", "formula"],
        (
            [
                f"`{site.name}`",
                " ".join(site.axes),
                f"`{site.formula}`" + ("; on request" if site.on_request else ""),
            ]
            for site in config.sites.rows
        ),
    )


NETWORKS = {
    "gpt2": GPT2Config(),
    "llama": LlamaConfig(),
    "qwen3": LlamaConfig(model_type="qwen3"),
    "gemma2": GemmaConfig(),
    "gemma3": GemmaConfig(model_type="gemma3_text", attn_logit_softcapping=None),
    "pythia": NeoXConfig(),
    "neox_in_sequence": NeoXConfig(use_parallel_residual=False),
    "olmo2": OLMo2Config(),
    "olmoe": OLMoEConfig(),
    "mixtral": MixtralConfig(),
    "qwen3_moe": Qwen3MoeConfig(mlp_only_layers=(0,)),
    "opt": OPTConfig(),
    "phi3": Phi3Config(),
}


def metrics() -> str:
    """Return the table of metrics."""

    def bounds(low: float, high: float) -> str:
        ends = [f"{end:g}".replace("inf", "∞").replace("-", "−") for end in (low, high)]
        return f"{'(' if isinf(low) else '['}{', '.join(ends)}{')' if isinf(high) else ']'}"

    return table(
        ["metric", "title", "better", "range", "reference", "selects"],
        (
            [
                f"`{metric.name}`",
                metric.title,
                "lower" if metric.lower_is_better or metric.kind == "p_value" else "higher",
                bounds(*metric.range),
                _reference(metric),
                "yes" if metric.name in SELECTING else "no",
            ]
            for metric in METRICS.values()
        ),
    )


def _reference(metric: Metric) -> str:
    """Return the name of the level that a metric is compared with; "none" if it has no level."""
    has_level = metric.name in SELECTING or metric.reference != "chance"
    return REFERENCES[metric.reference] if has_level else "none"


def commands() -> str:
    """Return every command with its arguments and options."""
    return "\n".join(_commands(cli, "probekit"))


def _commands(group: click.Group, path: str) -> Iterator[str]:
    for name, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path} {name}")
            continue
        context = click.Context(command, info_name=f"{path} {name}")
        usage = command.get_usage(context).removeprefix("Usage: ")
        yield f"## `{path} {name}`\n"
        yield f"```text\n{usage}\n```\n"
        yield f"{command.get_short_help_str(500)}\n"
        for parameter in command.get_params(context):
            record = parameter.get_help_record(context)
            if record is None or record[0] == "--help" or not record[1]:
                continue
            yield f"`{record[0]}`"
            yield f": {record[1]}\n"


def api_names() -> dict[str, tuple[str, ...]]:
    """Return the public names of each part of the API page; every name of `__all__` once."""
    listed = {name for names in API.values() for name in names}
    rest = tuple(sorted(set(probekit.__all__) - listed - {"__version__"}))
    return API | ({"Others": rest} if rest else {})


API = {
    "Experiments": (
        *("run", "validate", "probe", "Experiment", "RunResult", "StudyResult", "open_run"),
        "pretrain",
    ),
    "Probes": ("LinearProbe", "SavedProbe", "apply_probe", "apply_over"),
    "Model and tokens": (
        "load_model",
        "from_transformers",
        "verify_model",
        "GPT2",
        "GPT2Config",
        "Tokenizer",
        "TokenBatch",
    ),
    "Generation": ("generate", "StopStrings", "KeyValueCache"),
    "Activations": ("ActivationCache", "Recording", "ActivationStore", "identify"),
    "Attention": ("explore_attention", "attention_figure"),
    "Interventions": (
        *("intervene", "run_edited", "patch", "AnswerMeasure", "causal_test", "CauseData"),
    ),
}


def api() -> str:
    """Return the autodoc directives of all public names."""
    lines: list[str] = []
    for title, names in api_names().items():
        lines.append(f"## {title}\n")
        for name in names:
            is_class = isinstance(getattr(probekit, name), type)
            lines.append(f"### `{name}`\n")
            lines.append("```{eval-rst}")
            lines.append(f".. auto{'class' if is_class else 'function'}:: probekit.{name}")
            lines.append("```\n")
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {
    function.__name__: function
    for function in (
        activations_keys,
        api,
        commands,
        differences_columns,
        experiment_keys,
        metrics,
        recipe_keys,
        results_columns,
        study_columns,
        rival_columns,
        sources_columns,
    )
} | {f"sites_of_{name}": partial(sites_of, config) for name, config in NETWORKS.items()}


class ReferenceTable(SphinxDirective):
    """Inserts one of `TABLES`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the table."""
        text = TABLES[self.arguments[0]]()
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def _skip_inherited(_app: Sphinx, _what: str, name: str, *_: Any) -> bool | None:
    """Leave out methods that scikit-learn and pydantic add to every class."""
    added = name.endswith("_request") or name in INHERITED
    return True if added else None


def _dashes(_app: Sphinx, document: nodes.document, _name: str) -> None:
    """Replace the two hyphens that Sphinx writes between a parameter and its description."""
    for text in list(document.findall(nodes.Text)):
        if text.astext() == " -- ":
            text.parent.replace(text, nodes.Text(" – "))


def _short_signature(
    _app: Sphinx, _what: str, _name: str, found: object, *_: Any
) -> tuple[str, str] | None:
    """Leave out the defaults of settings; the reference of the YAML keys has them."""
    return ("(...)", "") if isinstance(found, type) and issubclass(found, BaseModel) else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive."""
    app.connect("autodoc-skip-member", _skip_inherited)
    app.connect("doctree-resolved", _dashes)
    app.connect("autodoc-process-signature", _short_signature)
    app.add_directive("reference-table", ReferenceTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
