"""The report of a run: one self-contained HTML page."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from probekit.amounts import date_text, percent
from probekit.chosen.page import Shown, of_analyses
from probekit.data.positions import MASSIVE
from probekit.files import inside, write_atomic
from probekit.report.attention import page as explorer
from probekit.report.causes.cause_words import cause_answer, cause_caveats, cause_detail
from probekit.report.elements import page
from probekit.report.elements.table import Cell, ResultTable
from probekit.report.elements.texts import MachinePaths, class_label, pieces
from probekit.report.pages import losses, parts
from probekit.report.pages.causes_page import cause_parts, causes_section, write_causes_page
from probekit.report.pages.further_figures import massive_words, norms_part, reliability_part
from probekit.report.pages.rise import rise
from probekit.report.sentences.answer import answer, identity_sentence, method, size_words
from probekit.report.sentences.caveats import INVALIDATES, Caveat, caveats
from probekit.report.sentences.tables import CHOSEN_MINUS, RULE, comparison_table, site_tables
from probekit.results import record as records
from probekit.results.causes import open_causes
from probekit.results.judging import reported_differences
from probekit.results.network import AttentionPrompt
from probekit.results.table import DIFFERENCES, metric_name, read_columns

C_OF_FOLDS = "C: – where the outer folds chose different values."
CHOSEN_MINUS_RULE = (
    "Chosen minus …: the reported score minus that of the row, with its 95 % interval. p is "
    "adjusted for the comparisons named in advance, or else for all comparisons."
)


def write_report(run_dir: Path) -> Path:
    """Write report.html into the folder of a run and return its path.

    The page of interventions without probes is causes.html. Pages are deterministic: the same
    folder gives the same bytes.

    Raises:
        MissingError: A file of the run is missing.
        DataError: A file of the run cannot be read, or was changed after the run.
        StoreError: The page cannot be written.
    """
    if records.has_causes_alone(run_dir):
        return write_causes_page(run_dir)
    records.check_finished(run_dir)
    path = run_dir / "report.html"
    write_atomic(path, report_page(run_dir))
    return path


def run_figures(run_dir: Path) -> list[page.FigurePart]:
    """Return all figures of a run's page, open and folded.

    Raises:
        MissingError: A file of the run is missing.
        DataError: A file of the run cannot be read, or was changed after the run.
    """
    if records.has_causes_alone(run_dir):
        return cause_parts(open_causes(run_dir))
    record = records.open_record(run_dir)
    run = Shown(run_dir, record)
    figures = [*cause_parts(open_causes(run_dir), run.scores.layers), *_result_figures(run)]
    return figures + ([norms_part(record.norms)] if record.norms else [])


def _result_figures(run: Shown) -> list[page.FigurePart]:
    """Return the figures of a run's probes, open and folded."""
    bins, v = run.rows("reliability.csv"), run.verdict
    reliable = [] if bins is None else [reliability_part(bins, run.scores, v)]
    figures = list(parts.result_parts(run.scores, v, run.record.control))
    # Those over training follow the first figure, the layer curve if there is one.
    figures[1:1] = losses.step_parts(losses.load_training(run.folder / "training.csv"), v)
    return [*of_analyses("screen", run), *figures, *reliable, *of_analyses("figures", run)]


def report_page(run_dir: Path) -> str:
    """Return the page of a run as HTML.

    Raises:
        MissingError: A file of the run is missing.
        DataError: A file of the run cannot be read, or was changed after the run.
    """
    config = records.load_config(run_dir / "config.yaml")
    record = records.open_record(run_dir)
    causes = open_causes(run_dir)
    paths = MachinePaths.of_run(config, record.model.source)
    record = paths.hide_in(record)
    v, run = record.verdict, Shown(run_dir, record)
    answers = run_answers(run)
    answers += rise(run, is_asked=False) if len(answers) == 1 else ()
    of_causes = cause_parts(causes, run.scores.layers)
    figures = parts.with_choices([*of_causes[:1], *_result_figures(run)])
    shown = [part for part in figures if part.is_open]
    folded = [part for part in figures if not part.is_open]
    compared = comparison_table(v, record.control)
    first: list[page.Item] = [*shown[:1]]
    if compared:
        heading = page.Paragraph("Comparisons", kind="heading")
        first += [heading, compared, page.Paragraph(RULE, "note")]
    warnings = run_caveats(run)
    sections: list[page.Item] = []
    if first or warnings:  # the page shows the warnings in this section
        sections.append(page.PageSection("", first, "screen"))
    if causes is not None:
        sections.append(causes_section(run_dir, causes, of_causes[1:]))
    sections += [page.PageSection(part.title, [part]) for part in shown[1:]]
    sections += [*of_analyses("sections", run), *of_analyses("curves", run)]
    sections += _sites(run, paths)
    if folded:
        sections.append(page.PageSection("More figures", folded, "folds"))
    sections += [*of_analyses("details", run), *of_analyses("examples", run)]
    styles = ["report.css"]
    if record.attention:
        contents = {"attention": _attention(run_dir, record)}
        view = page.View("attention/explorer.html", contents, explorer.EXPLORER_SCRIPTS)
        sections.append(page.PageSection("Attention", [view]))
        styles += explorer.EXPLORER_STYLES
    if causes is not None:
        styles.append("causes.css")
    items = chain.from_iterable(one.items for one in sections if isinstance(one, page.PageSection))
    config_text = paths.hide(parts.file_text(run_dir / "config.yaml"))
    sections += [_data(record), _measured(record, config_text)]
    return page.Page(
        eyebrow=["probekit", record.run, record.model.source],
        title=record.question or record.run,
        answer="",
        sections=sections,
        details=[
            replace(one, text=page.unbroken(one.text), css=" ".join([css, one.css]).strip())
            for css, one in zip(chain(["answer"], repeat("finding")), answers, strict=False)
        ],
        caveats=warnings,
        aside=list(filter(None, [date_text(record.created), size_words(v)])),
        styles=styles,
        scripts=[one.scripts for one in items if isinstance(one, page.View) and one.scripts],
    ).html()


def run_answers(run: Shown) -> list[page.Paragraph]:
    """Return the sentences that answer a run's question; `bad` if they found nothing of use.

    The first ones are whether the data invalidate it, and those of its interventions, of analyses
    of the selected probe, and of the layers in question, if any. Remarks on the probe are last.
    """
    causes, v = open_causes(run.folder), run.verdict
    sentences = [page.Paragraph(words(causes)) for words in (cause_answer, cause_detail) if causes]
    is_valid = all(one.weight != INVALIDATES for one in caveats(v, run.record))
    if not is_valid and v.case in ("yes", "not better"):
        sentences.insert(0, page.Paragraph("Not valid as it stands: see the first warning.", "bad"))
    of_probe = page.Paragraph(answer(v, run.record.question), "" if is_valid else "bad")
    sentences += [*of_analyses("answers", run), *rise(run, is_asked=True), of_probe]
    return [*sentences, *of_analyses("remarks", run)]


def run_caveats(run: Shown) -> list[Caveat]:
    """Return the warnings of a run, those of its interventions included, most serious first."""
    causes = open_causes(run.folder)
    return caveats(run.verdict, run.record, () if causes is None else cause_caveats(causes))


def _sites(run: Shown, paths: MachinePaths) -> Iterator[page.PageSection]:
    """Yield one section with all sites, or none without a site."""
    v = run.verdict
    differences = read_columns(run.folder / "differences.csv", DIFFERENCES)
    tables = site_tables(run.scores, v, reported_differences(differences, v))
    if not tables:
        return
    best, *others = tables
    items: list[page.Item] = [best]
    if v.is_nested and any(column.name == "C" for column in best.headings):
        items.append(page.Paragraph(C_OF_FOLDS, "note"))
    if others:
        best_sites = f"The {len(best.rows):,} sites with the best cross-validated"
        items.append(page.Paragraph(f"{best_sites} {metric_name(v.metric)}, best first.", "note"))
    csv = paths.hide(parts.file_text(run.folder / "results.csv"))
    if any(column.name in CHOSEN_MINUS.values() for column in best.headings):
        items.append(page.Paragraph(CHOSEN_MINUS_RULE, "note"))
    name = f"{run.record.run}-{run.record.key}.csv"
    items.append(page.Files([("Save all numbers as CSV", name, csv)]))
    for more in others:
        n = len(more.rows)
        items.append(page.Fold("The other site" if n == 1 else f"The other {n:,} sites", [more]))
    yield page.PageSection("All sites", items)


def _data(record: records.RunRecord) -> page.PageSection:
    """Return the section on the data set."""
    data = record.data
    # Those of replies and questions are above the others.
    findings = [one for one in data.findings if one.code not in ("replies", "ask")]
    items: list[page.Item] = [
        page.Paragraph(f"{data.name}: {data.n_examples:,} examples, {data.n_rows:,} rows."),
        *(page.Paragraph(one.message) for one in data.findings if one not in findings),
        page.Fold("Counts by label and split", [_counts(record)]),
    ]
    checks = [Cell(f"`{one.code}` {one.message}", lead=one.level) for one in findings]
    # A note that a check repeats is left out.
    notes = [one for one in data.notes if not any(one in check.text for check in checks)]
    if checks or notes:
        items.append(page.Fold("Data checks and notes", [page.Texts([*checks, *notes])]))
    if data.examples:
        values = {"rows": data.examples, "label_text": class_label, "pieces": pieces}
        items.append(page.Fold("Examples", [page.View("examples.html", values)]))
    if data.card:
        items.append(page.Fold("Data card", [page.Paragraph(data.card, kind="source")], css="card"))
    return page.PageSection("Data", items)


def _counts(record: records.RunRecord) -> ResultTable:
    """Return the table of rows by label (down) and split (across), with sums and groups below."""
    splits, groups = record.data.labels, record.data.groups
    labels = dict.fromkeys(chain.from_iterable(splits.values()))
    rows = [
        (class_label(label), *(f"{counts.get(label, 0):,}" for counts in splits.values()))
        for label in labels
    ]
    sums = ("rows", *(f"{sum(counts.values()):,}" for counts in splits.values()))
    of_groups = ("groups", *(f"{groups[one]:,}" if one in groups else "–" for one in splits))
    title, columns = "Counts by label and split", ("label", *splits)
    return ResultTable(title, columns, rows, css="narrow", foot=[sums, of_groups])


def _measured(record: records.RunRecord, config: str) -> page.PageSection:
    """Return the section on method, configuration and provenance."""
    paragraphs = [page.Paragraph(paragraph) for paragraph in method(record.verdict)]
    items: list[page.Item] = [page.Fold("Choice of sites, intervals and p-values", paragraphs)]
    if record.identities:
        items.insert(0, page.Paragraph(identity_sentence(record)))
        sentences = {site: one.sentence or one.label for site, one in record.identities.items()}
        if any(one.sentence for one in record.identities.values()):
            items.insert(1, page.Fold("Tensors of the activations", page.pairs_of({"": sentences})))
    if record.model.computed_by:
        items.insert(0, page.Paragraph(f"Network computed by {record.model.computed_by}."))
    if record.norms:
        figure = norms_part(record.norms)
        massive = {one.site: text for one in record.norms if (text := massive_words(one))}
        title = f"Massive activations: tokens above {MASSIVE:g} times the median norm"
        items.append(
            page.Fold(figure.title, [figure, *page.pairs_of({title: massive})], css="norms")
        )
    items.append(page.Fold("Full configuration", [page.Paragraph(config, kind="source")]))
    model = record.model.model_dump(exclude_none=True)
    errors, checks = model.pop("relative_errors", {}), model.pop("compared_with")
    facts = {
        "Run": {"run": record.run, "key": record.key, "created": record.created},
        "Model": model,
        "Files of the model, verified with": checks,
        "Median error relative to float32": {n: percent(x, 2) for n, x in errors.items()},
        "Versions": record.versions,
        "Digests": record.digests,
        "Seeds": record.seeds,
        "Seconds": {step: f"{seconds:,.2f}" for step, seconds in record.seconds.items()},
    }
    provenance = "Provenance: model, versions, digests, seeds and times"
    items.append(page.Fold(provenance, page.pairs_of(facts)))
    return page.PageSection("How it was measured", items)


def _attention(run_dir: Path, record: records.RunRecord) -> dict[str, Any]:
    """Return the contents of the explorer of attention patterns.

    Head scores are included if they are saved. Weights are quantised to fewer levels if the page
    would be too large; it may be too large even with the fewest.

    Raises:
        DataError: The file of patterns cannot be read.
    """
    path = run_dir / "attention.safetensors"
    with records.reading_run_file(path):
        tensors = load_file(inside(path))
    prompts = []
    for number, one in enumerate(record.attention):
        scores = {s: tensors[k] for s in explorer.SCORE_NAMES if (k := f"{number}.{s}") in tensors}
        patterns, tokens, layers = tensors[str(number)], tuple(one.tokens), tuple(one.layers)
        # With sinks or without: the run checked the sums of rows before it wrote them.
        prompts.append(AttentionPrompt(one.text, tokens, patterns, layers, (), scores, True))
    return explorer.attention_data(
        prompts, record.model.source, explorer.choose_reduction(prompts, strict=False)
    )
