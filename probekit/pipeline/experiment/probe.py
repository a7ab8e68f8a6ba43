"""Probing of activations that another library has computed, in one call.

Labels, groups and tokens are texts, numbers, arrays, tensors or columns of tables.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from numbers import Real
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from probekit.accelerators import check_device
from probekit.activations.given.given import Position, open_activations
from probekit.activations.local import default_root
from probekit.data.examples import Dataset, Example, RowExamples, StringArray, check_field
from probekit.data.frames import memory_table, plain_cells, plain_texts, tables_in
from probekit.errors import ConfigError, DataError, check_ordered, path_of
from probekit.experiment.activations import ActivationExperiment, resolve_activations
from probekit.experiment.document import Document
from probekit.files import as_store_error
from probekit.pipeline.engines.given import ReadTokens, given_engine
from probekit.pipeline.experiment.steps import run_source
from probekit.pipeline.setup.output import check_length, output_columns
from probekit.progress import shown_progress
from probekit.provenance import digest_file, digest_json
from probekit.report.notebooks.run_result import RunResult
from probekit.terminal import Watcher
from probekit.workers import check_workers

_REGRESSION = 'probe={"kinds": [{"kind": "ridge_regression"}]}'


def probe(  # noqa: PLR0913  # one call, whose options have defaults
    activations: Any,
    labels: Iterable[Any],
    *,
    groups: Iterable[Any] | None = None,
    tokens: Iterable[Any] | None = None,
    confounds: Any = None,
    columns: Any = None,
    split: Mapping[str, Any] | Iterable[str] | None = None,
    probe: Mapping[str, Any] | None = None,
    sites: Sequence[str] = ("*",),
    position: Position | None = None,
    verify: str | Path | Any = None,
    texts: Sequence[str] | None = None,
    bos: bool | None = None,
    ids: Sequence[Sequence[int]] | None = None,
    at: int | Sequence[int] = -1,
    outputs: Mapping[str, Iterable[Any]] | None = None,
    positive: str | None = None,
    name: str = "activations",
    question: str | None = None,
    source: str = "given activations",
    out: Path | str = "runs",
    device: str = "cpu",
    workers: int | None = None,
    watcher: Watcher | None = None,
    progress: bool = True,
    page: bool = True,
) -> RunResult:
    """Probe activations that another library has computed, and return the results.

    Folds, intervals, tests, tables and page are those of `run`. Networks with random weights are
    left out, and without `texts` the baselines that read these; the page states it. An interrupted
    call resumes: finished sites are saved, and reused if activations, labels, texts and settings
    are the same.

    Args:
        activations: mapping from names of sites or layers to arrays of shape (n_rows, n_features),
            NumPy or torch on any device; or the cache of TransformerLens; or the path of a folder
            of .npy, .safetensors, .parquet or .zarr arrays, which are read one site at a time.
        labels: label of each row: text, integer, or with `kind: ridge_regression` any number.
        groups: name of the group of each row. A group is never split between train and test. None
            makes each row its own group.
        tokens: word or token of each row, for the control task and the word-identity baseline.
        confounds: data frame, or mapping from names to columns, that may explain the label: numbers
            or categories of each row. The page shows what the probe adds to them.
        columns: data frame, or list of dicts, of further columns of the rows: the page warns of
            those that predict the label.
        split: the section `split` of an experiment, such as `{"folds": 5}`; or "train" or "test"
            for each row.
        probe: the section `probe` of an experiment, such as `{"kinds": [{"kind": "lda"}]}`.
        sites: names or globs of the sites to probe.
        position: for arrays of shape (n_rows, n_positions, n_features): index of the position, the
            same for all rows or one for each.
        verify: name or folder of the model that computed the activations, or with `ids` the network
            itself, which is saved in the folder of caches. Some rows are computed again, and the
            record and the page state which tensor each array is; see `identify`.
        texts: the text that the model read for each row, for the baselines that read texts, the
            errors on the page, and `verify`.
        bos: if `verify` reads `texts`: whether the model read a beginning-of-text token before
            each.
        ids: for `verify`, in place of `texts`: the token ids that the model read for each row.
        at: for `verify`: index of the token of each row, or one for all; -1 is the last.
        outputs: numbers of the model's output at each row, such as the entropy of the next token,
            for the baseline `output`: a data frame, or a mapping from names to columns.
        positive: label that the metrics of one class refer to.
        name: name of the experiment and of the folder of its runs.
        question: research question, shown in the report.
        source: name of the model that computed the activations, shown in the report.
        out: results folder; the run is written to `<out>/<name>/<key>`.
        device: device that probes are fitted on.
        workers: number of sites probed in parallel; None for one per core, or fewer if memory is
            short.
        watcher: receives progress; None shows it in the notebook, on the terminal or on stderr.
        progress: False shows no progress, unless a watcher is given.
        page: whether to write report.html.

    Raises:
        ConfigError: an option is invalid; the message names the nearest one.
        DataError: the activations or labels cannot be used; the message names the site and the row.

    >>> import numpy as np, tempfile
    >>> rng = np.random.default_rng(0)
    >>> number = rng.integers(2, size=120)
    >>> layers = {n: rng.normal(size=(120, 4)) + 2 * n * number[:, None] for n in range(3)}
    >>> options = {"description": False, "C": [0.1], "folds": 2}
    >>> out = tempfile.mkdtemp()
    >>> result = probe(layers, number, probe=options, out=out, page=False, progress=False)
    >>> result.best.site, round(result.best.value, 1)
    ('layer_2', 1.0)
    """
    known = {} if confounds is None else _columns_of(confounds)
    arrays = activations if isinstance(activations, dict) else {}
    by_row: dict[str, Any] = {"labels": labels, "groups": groups, "tokens": tokens, "split": split}
    by_row |= {"position": position, "texts": texts, "ids": ids, "at": at, "outputs": outputs}
    by_row |= {f"activations[{key!r}]": one for key, one in arrays.items()}
    by_row |= {f"confounds[{key!r}]": one for key, one in known.items()} | {"columns": columns}
    # Rows are read by position, so that columns with an index must be in the same order.
    indexes = {key: column.index for key, column in by_row.items() if hasattr(column, "iloc")}
    for key, index in indexes.items():
        first, order = next(iter(indexes.items()))
        is_other = len(index) == len(order) and not index.equals(order)
        if is_other and index.isin(order).all():
            raise DataError(
                f"{key} and {first} have the same index in different orders, but rows are read in "
                f"the order in which they stand. Sort one like the other: x.loc[y.index]."
            )
    folder = str(Path(activations).absolute()) if isinstance(activations, str | Path) else None
    path = None if verify is None else _path_of_network(verify, ids)
    of_arrays = {"folder": folder, "source": source, "sites": sites, "bos": bos, "verify": path}
    of_data = {"name": name, "positive": None if positive is None else str(positive)}
    values: dict[str, Any] = {"name": name, "question": question, "activations": of_arrays}
    values |= {"data": of_data, "split": split if isinstance(split, Mapping) else {}}
    values |= {"probe": {} if probe is None else probe, "confounds": list(known) or None}
    experiment = Document(values).settings(ActivationExperiment, resolve_activations)
    sides = None if split is None or isinstance(split, Mapping) else plain_texts("split", split)
    words = None if tokens is None else plain_texts("tokens", tokens)
    if words is not None:  # those of white space are quoted and escaped as in Python
        words = np.array([one if one.strip() else repr(one) for one in words], dtype=object)
    truth = label_texts(labels, reads_classes=experiment.probe.reads == "classes")
    names = None if groups is None else plain_texts("groups", groups, distinct=True)
    read_texts = None if texts is None else plain_texts("texts", texts)
    given_columns = {"groups": names, "tokens": words, "split": sides, "texts": read_texts}
    for key, entries in given_columns.items():
        if entries is not None:
            check_length(key, entries, len(truth))
    checked = (("text", words), ("text", read_texts), ("label", truth), ("group", names))
    for field, column in checked:
        cells = [] if column is None else column.tolist()
        for value in dict.fromkeys(cells):
            try:
                check_field(field, value)
            except DataError as error:
                raise DataError(f"row {cells.index(value)}: {error}") from error
    row_texts = words if read_texts is None else read_texts
    examples = _with_cells(
        RowExamples(np.arange(len(truth)), truth, names, row_texts, sides), known
    )
    dataset = Dataset(
        name, examples, has_groups=names is not None, tables=_tables_of(columns, len(truth))
    )

    read = None
    if path is not None:
        read = _read_tokens(path, len(truth), texts, bos, ids, at)
    results_folder = path_of("out", out)
    check_workers(workers)
    check_device(device)
    with shown_progress(watcher, progress=progress) as shown:
        given = open_activations(activations, sites=experiment.activations.sites, position=position)
        engine = given_engine(
            experiment, dataset, words, given, read, outputs=output_columns(outputs, len(truth)),
            has_texts=read_texts is not None,
        )  # fmt: skip
        return run_source(
            engine, out=results_folder, device=device, workers=workers, watcher=shown, page=page
        )


def _path_of_network(verify: Any, ids: Any) -> str:
    """Return name or folder of a network; one in memory is saved, by its files.

    Raises:
        ConfigError: it is no network, or is in memory and has no `ids`, as it has no tokenizer.
        StoreError: it cannot be written into the default folder of caches.
    """
    if not hasattr(verify, "save_pretrained"):
        path_of("verify", verify, "Save the network with `save_pretrained`, and give its folder.")
        return str(verify)
    if ids is None:
        raise ConfigError("A network in memory has no tokenizer: give `ids`, or its folder.")
    root = Path(str(default_root())) / "networks"
    with as_store_error("write", root):
        root.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=root) as folder:
            verify.save_pretrained(folder)
            files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
            place = root / digest_json({path.name: digest_file(path) for path in files})[:24]
            if not place.exists():
                shutil.copytree(folder, place)
    return str(place)


def _read_tokens(
    model: str,
    n_rows: int,
    texts: Sequence[str] | None,
    bos: bool | None,
    ids: Sequence[Sequence[int]] | None,
    at: int | Sequence[int],
) -> ReadTokens:
    """Return the tokens of the rows that are computed again; arguments as in `probe`."""
    if texts is None and ids is None:
        raise ConfigError("`verify` needs what the model read: give `texts` or `ids`.")
    if (ids is None) != (bos is not None):
        raise ConfigError(
            "`bos` is required if `verify` reads `texts`, and only then: it states whether the "
            "model read a beginning-of-text token before each text. Token ids show it."
        )
    columns: dict[str, Any] = {"texts": texts if ids is None else None, "ids": ids}
    columns["at"] = [at] * n_rows if isinstance(at, Real) else at
    given = {name: column for name, column in columns.items() if column is not None}
    for name, column in given.items():
        check_ordered(name, column)
        check_length(name, column, n_rows)
    lists = {name: list(column) for name, column in given.items()}  # without the index of a table
    return ReadTokens.drawn(model, bos, lists.get("texts"), lists.get("ids", []), lists["at"])


def _tables_of(columns: Any, n_rows: int) -> tuple[Any, ...]:
    """Return a function that reads a table of further columns, or none."""
    tables = () if columns is None else tables_in(columns)
    for one in tables:
        check_length("columns", one.rows, n_rows)
    return tuple(partial(memory_table, one) for one in tables)


def _columns_of(confounds: Any) -> dict[str, Any]:
    """Return the columns of a data frame or a mapping, by name."""
    names = getattr(confounds, "columns", confounds)
    if names is confounds and not isinstance(confounds, Mapping):
        raise ConfigError(
            f"confounds is of type {type(confounds).__name__}. Pass a data frame, or a mapping "
            "from names to columns."
        )
    if len(set(map(str, names))) < len(list(names)):
        raise ConfigError(f"confounds has two columns of one name: {list(names)}. Rename one.")
    return {str(name): confounds[name] for name in names}


def _with_cells(examples: RowExamples, columns: Mapping[str, Any]) -> Sequence[Example]:
    """Return the examples with the cells of further columns as their values."""
    if not columns:
        return examples
    cells = {name: plain_texts(f"confounds[{name!r}]", one) for name, one in columns.items()}
    for name, of_column in cells.items():
        check_length(f"confounds[{name!r}]", of_column, len(examples))
    rows = zip(examples, *cells.values(), strict=True)
    return tuple(
        replace(one, values=tuple(zip(cells, map(str, values), strict=True)))
        for one, *values in rows
    )


def label_texts(labels: Iterable[Any], *, reads_classes: bool) -> StringArray:
    """Return the labels as texts, shape (n_rows,).

    >>> label_texts(np.array([0, 1]), reads_classes=True).tolist()
    ['0', '1']

    Raises:
        ConfigError: the labels are not a list or an array.
        DataError: a label is missing, or is a float where classes are needed, or labels of
            different types would be confused, such as 1 and "1".
    """
    cells = plain_cells("labels", labels)
    if reads_classes and float in set(map(type, cells)):
        row = next(row for row, label in enumerate(cells) if isinstance(label, float))
        raise DataError(
            f"labels[{row}] is the number {cells[row]}, but the kinds of probe read classes. For "
            f"regression give {_REGRESSION}; for classes convert the labels to integers or texts."
        )
    return plain_texts("labels", cells, distinct=reads_classes)
