import pandas as pd
import pytest

from probekit.errors import DataError
from probekit.report.pages.run_page import write_report
from probekit.report.sentences.confidence import load_bins, reliability_caption


def bins():
    place = {"probe": "logistic", "site": "blocks.2.hook_resid_post", "position": "last"}
    return pd.DataFrame(
        [
            {
                **place,
                "head": None,
                "low": low,
                "high": low + 0.1,
                "n_rows": 20,
                "confidence": low + 0.05,
                "accuracy": low,
                "ci_low": low - 0.1,
                "ci_high": low + 0.1,
            }
            for low in (0.5, 0.9)
        ]
    )


def test_bins_are_read_with_the_name_of_their_probe(tmp_path):
    path = tmp_path / "reliability.csv"
    assert load_bins(path) is None
    bins().to_csv(path, index=False)
    assert load_bins(path)["series"].tolist() == ["logistic", "logistic"]
    bins().iloc[:0].to_csv(path, index=False)
    assert load_bins(path) is None


def test_bins_that_lack_a_column_are_refused(tmp_path):
    path = tmp_path / "reliability.csv"
    bins().drop(columns="confidence").to_csv(path, index=False)
    with pytest.raises(DataError, match="no column 'confidence'"):
        load_bins(path)


def test_the_caption_has_the_scores_of_the_same_probe_and_site(table):
    scored = table.replace({"metric": {"macro_f1": "brier", "auroc": "ece"}})
    text = reliability_caption(bins().assign(series="logistic"), scored)
    assert (
        "logistic at blocks.2.hook_resid_post: Brier score 0.911 [0.891, 0.931], calibration error "
        "0.981 [0.961, 1.001]." in text
    )


def test_the_page_has_the_figure_folded(make_run):
    run = make_run()
    bins().to_csv(run / "reliability.csv", index=False)
    assert "<summary>Confidence and accuracy</summary>" in write_report(run).read_text("utf-8")
