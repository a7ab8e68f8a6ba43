"""`probekit patch`: tables, files, errors."""

from pathlib import Path

import pandas as pd
import pytest

TEXTS = ("--clean", "The key to the old door", "--corrupt", "The keys to the old door")
ANSWERS = ("--answer", " is", "--wrong", " are")


def patch(call, *others, texts=TEXTS, answers=ANSWERS):
    return call("patch", "--model", "mini", *texts, *answers, *others)


def test_patch_prints_the_strongest_effects_and_writes_the_rows(call):
    site = ("--site", "blocks.*.hook_resid_mid")
    code, out, err = patch(call, *site, "--heads", "--top", 3, "--out", "rows.csv")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0] == "Logit of ␣is minus logit of ␣are:"
    assert lines[1].startswith("clean")
    assert lines[1].rstrip().endswith("The key to the old door")
    assert lines[-1] == "rows.csv"
    assert "One pair of texts has no confidence intervals" in lines[-2]
    rows = pd.read_csv("rows.csv")
    assert set(rows["site"].str.partition("[")[0]) == {
        *(f"blocks.{layer}.hook_resid_mid" for layer in range(6)),
        *(f"blocks.{layer}.attn.hook_z" for layer in range(6)),
    }
    header = lines.index(next(line for line in lines if line.startswith("patch ")))
    strongest = rows.loc[rows["position"].notna(), "effect"].abs().nlargest(3).tolist()
    shown = [float(line.split()[-2].replace("−", "-")) for line in lines[header + 1 : header + 4]]
    assert [abs(x) for x in shown] == pytest.approx(strongest, abs=0.006)
    assert lines[header + 4].strip() == ""


def test_estimates_are_shown_beside_effects(call):
    site = ("--site", "blocks.2.hook_resid_post")
    code, out, err = patch(call, *site, "--attribution", "--top", 2, "--out", "page.html")
    assert code == 0, err
    assert "estimated effect" in out
    assert "Among the verified patches" in out
    assert "Estimated and verified effects" in Path("page.html").read_text("utf-8")


def test_notes_go_to_stderr(call):
    answers = ("--answer", "is", "--wrong", " are")
    code, _, err = patch(call, "--site", "blocks.2.hook_resid_post", answers=answers)
    assert code == 0, err
    assert "note: “is” has no leading space" in err
