"""A synthetic run folder, and a headless browser to test pages with."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

from probekit.errors import DataError
from probekit.provenance import digest
from probekit.report.pages.run_page import write_report
from probekit.results.judging import judge
from probekit.results.record import RESULT_FILES, pack_record
from probekit.results.scores import Scores
from probekit.results.table import DIFFERENCES, RESULTS, load_table, read_columns
from probekit.results.table import make_table as make_rows
from probekit.results.verdict import Verdict

LAYERS, HEADS = 4, 3
SITES = [
    "blocks.0.hook_resid_pre",
    *(f"blocks.{layer}.hook_resid_post" for layer in range(LAYERS)),
    "ln_final.hook_normalized",
]
TASK = [0.712, 0.801, 0.884, 0.941, 0.922, 0.915]
CONTROL = [0.552, 0.561, 0.549, 0.547, 0.553, 0.551]
RANDOM = [0.708, 0.731, 0.742, 0.736, 0.729, 0.722]
SHIFT = 8  # modifier bit of input events
PATIENCE = 30  # seconds until a page must be drawn
CHOSEN = "blocks.2.hook_resid_post last logistic task"
HOSTILE = "</script><b>%{x}</b>&amp;\u202e"


def row(site: str, target: str, value: float, **others) -> dict:
    """A row of results.csv; all rows share the numbers of fitted rows and groups."""
    layer = int(site.split(".")[1]) if site.startswith("blocks.") else None
    common = {
        "run": "plural", "model": "gpt2", "dataset": "english-ewt", "site": site, "layer": layer,
        "component": site.removeprefix(f"blocks.{layer}.").replace("hook_", ""), "head": None,
        "position": "last", "probe": "logistic",
        "target": target, "split": "test", "metric": "accuracy", "value": value,
        "ci_low": round(value - 0.02, 4), "ci_high": round(value + 0.02, 4), "chance": 0.5,
        "n_train": 3000, "n_test": 1039, "n_groups": 15, "C": 0.01 if site else None,
        "n_iter": 7 if site else None, "converged": True if site else None, "seed": 0,
        "view": "raw" if site else "", "null": "", "null_low": None, "null_high": None,
        "fold": None, "main_metric": "accuracy", "positive": "", "order": None,
    }  # fmt: skip
    return common | others


def make_table() -> pd.DataFrame:
    """The rows of a run over the residual stream, with all controls, baselines and metrics."""
    rows = []
    for site, task, control, untrained in zip(SITES, TASK, CONTROL, RANDOM, strict=True):
        rows += [
            row(site, "task", task - 0.01, split="validation", ci_low=None, ci_high=None),
            row(site, "task", task),
            row(site, "task", task - 0.02, metric="balanced_accuracy"),
            row(site, "task", task - 0.03, metric="macro_f1"),
            row(site, "task", min(task + 0.04, 0.99), metric="auroc"),
            row(site, "task", round(task - control, 4), metric="selectivity", chance=None),
            row(site, "control", control),
            row(site, "random_weights", untrained),
        ]
    rows += [row("", "majority", 0.5), row("", "word_identity", 0.71)]
    rows += [row("", "majority", 0.5, metric="balanced_accuracy")]
    return pd.DataFrame(rows)


def make_heads() -> pd.DataFrame:
    """The rows of a run over two heads of two layers, and of all four concatenated."""
    rows = [row("", "majority", 0.5), row("", "word_identity", 0.71)]
    for number, (layer, head) in enumerate([(1, 0), (1, 2), (3, 0), (3, 2)]):
        site, value = f"blocks.{layer}.attn.hook_z", 0.6 + 0.1 * number
        place = {"component": "attn.z", "head": head}
        rows += [
            row(site, "task", value - 0.01, split="validation", **place),
            row(site, "task", value, **place),
            row(site, "task", value - 0.55, metric="selectivity", chance=0.0, **place),
            row(site, "control", 0.55, **place),
            row(site, "random_weights", 0.52, **place),
        ]
    joined = {"layer": None, "component": "attn.z"}
    both = "blocks.1.attn.hook_z + blocks.3.attn.hook_z"
    rows += [row(both, "task", 0.98, **joined)]
    rows += [row(both, "task", 0.99, split="validation", **joined)]
    return pd.DataFrame(rows)


def make_sweep() -> pd.DataFrame:
    """The rows of a run over the residual stream at three offsets of a word."""
    table = make_table()
    drops = {"word:last-1": 0.3, "word:last": 0.0, "word:last+2": 0.1}
    parts = []
    for position, drop in drops.items():
        part = table.assign(position=position)
        part.loc[part["target"] == "task", "value"] -= drop
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def four_kinds():
    """Return rows of a run over four kinds of site; the best by cross-validation is an MLP's."""
    table = make_table()
    sited = table[table["site"].str.contains("resid_post")]
    others = [
        sited.assign(
            site=sited["site"].str.replace("hook_resid_post", name),
            value=sited["value"] + (0.02 if name == "hook_mlp_out" else -0.1),
        )
        for name in ("hook_attn_out", "hook_mlp_out", "attn.hook_z")
    ]
    return pd.concat([table, *others])


def four_probes():
    """Return rows of a run over the residual stream with four kinds of probe."""
    names = ("logistic", "lda", "svm", "mlp")
    return pd.concat([make_table().assign(probe=name) for name in names])


def causal_patterns(n: int, seed: int = 0) -> np.ndarray:
    """Causal patterns of shape (LAYERS, HEADS, n, n), sharper in deeper layers."""
    scores = np.random.default_rng(seed).normal(size=(LAYERS, HEADS, n, n))
    scores *= np.arange(1, LAYERS + 1)[:, None, None, None]
    scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


SHARED = {
    "plain": make_table,
    "kinds": four_kinds,
    "probes": four_probes,
    "heads": make_heads,
    "sweep": make_sweep,
}
TOKENS = ["The", " keys", " to", " the", " cabinet", " the", "\n", "\t", "<0xE2>"]
TOKENS += [" 👩‍👩‍👧", " שלום", HOSTILE]


def make_record() -> dict:
    """The run.json of the synthetic run."""
    text = "The keys to the cabinet were on the table."
    return {
        "verdict": judged(make_table()).model_dump(),
        "run": "plural",
        "key": "3f9a0c",
        "question": "Where does GPT-2 know that a noun is plural?",
        "created": "2025-01-01T12:00:00Z",
        "model": {
            "source": "gpt2", "n_layers": LAYERS, "n_heads": HEADS, "d_model": 48,
            "d_vocab": 50257, "n_ctx": 1024, "parameters": 124439808,
        },
        "data": {
            "name": "english-ewt",
            "n_examples": 2020,
            "n_rows": 4039,
            "labels": {"train": {"Plur": 1500, "Sing": 1500}, "test": {"Plur": 519, "Sing": 520}},
            "groups": {"train": 45, "test": 15},
            "examples": [
                {"text": text, "span": [4, 8], "label": "Plur", "split": "train"},
                {"text": "A dog barks.", "span": None, "label": "Sing", "split": "test"},
            ],
            "notes": ["3 rows longer than the context were skipped."],
            "findings": [
                {"level": "warning", "code": "duplicates", "message": "93 texts are in both."}
            ],
            "card": "# Nouns\n\nEvery <noun> of the treebank.",
        },
        "C_grid": [0.001, 0.01, 0.1],
        "attention": [
            {"text": "".join(TOKENS), "tokens": TOKENS},
            {"text": "Hi you", "tokens": ["Hi", " you"]},
        ],
        "norms": [
            {
                "site": site, "layer": None, "first_position_norm": 60.0 + 900 * i,
                "other_norm": 50.0, "n_texts": 64,
                "massive": [["", 64, 0, 0], [" the", 12 * i, 2, 9], ["\n", i, 5, 5]][: 3 * i],
            }
            for i, site in enumerate(SITES[:-1])
        ],
        "versions": {"python": "3.11.2", "torch": "2.13.0"},
        "digests": {"weights": "ab" * 32, "tokens": "cd" * 32},
        "seeds": {"probe": 0, "control": 0},
        "seconds": {"capture": 12.25, "probe": 4.5},
    }  # fmt: skip


def judged(table: pd.DataFrame, differences=(), grid=(0.001, 0.01, 0.1)) -> Verdict:
    """The verdict of a table, given rows of differences.csv."""
    numbers = [one.name for one in RESULTS if one.type == "number" and one.name in table]
    typed = table.astype(dict.fromkeys(numbers, float))
    return judge(Scores.of(typed), make_rows(differences, DIFFERENCES), grid)


def difference(b: str, value=0.2, reach=0.05, p=0.002, p_adjusted=None, score=0.5, a=CHOSEN):
    """A row of differences.csv, from the selected probe of the synthetic run."""
    return {
        "a": a, "b": b, "metric": "accuracy", "value_a": score + value, "value_b": score,
        "difference": value, "ci_low": value - reach, "ci_high": value + reach,
        "p": p, "p_adjusted": p if p_adjusted is None else p_adjusted,
        "adjusted_low": value - 1.5 * reach, "adjusted_high": value + 1.5 * reach,
        "n_test": 1039, "n_groups": 15,
    }  # fmt: skip


def write_shown(folder: Path, table=None, record: dict | None = None, differences=()) -> Path:
    """Write the files that a page reads into a folder, and return the folder."""
    table = make_table() if table is None else table
    record = make_record() if record is None else record
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(
        "name: plural\nprobe:\n  C: [0.001, 0.01, 0.1]  # <b>tuned</b>\n"
    )
    make_rows(differences, DIFFERENCES).to_csv(folder / "differences.csv", index=False)
    lengths = [len(prompt["tokens"]) for prompt in record["attention"]]
    patterns = {str(i): causal_patterns(n, seed=i) for i, n in enumerate(lengths)}
    if patterns:
        save_file(patterns, folder / "attention.safetensors")
    return seal_run(folder, table, record)


def seal_run(folder: Path, table: pd.DataFrame | None = None, record: dict | None = None) -> Path:
    """Write run.json with verdict and digests of the files in the folder, and return the folder.

    Args:
        folder: the folder of the run.
        table: its results, written before; None if they are written already.
        record: contents of run.json; None for those that it has.
    """
    if table is not None:
        table.to_csv(folder / "results.csv", index=False)
    if record is None:
        record = json.loads((folder / "run.json").read_bytes())
    content = {name: value for name, value in record.items() if name not in ("format", "seal")}
    with suppress(DataError):  # files that tests have damaged keep the verdict of the whole ones
        table = load_table(folder / "results.csv")
        differences = read_columns(folder / "differences.csv", DIFFERENCES)
        content["verdict"] = judge(Scores.of(table), differences, content["C_grid"]).model_dump()
    files = {name: folder / name for name in RESULT_FILES if (folder / name).exists()}
    content["files"] = {name: digest([path.read_bytes()]) for name, path in files.items()}
    (folder / "run.json").write_bytes(pack_record(content))
    return folder


@pytest.fixture(scope="session")
def report_of(tmp_path_factory) -> Callable[[str], Path]:
    """A function that returns a page of a table in `SHARED`, written once for all tests."""

    @cache
    def report_of(name: str) -> Path:
        return write_report(write_shown(tmp_path_factory.mktemp("report") / "run", SHARED[name]()))

    return report_of


@pytest.fixture
def page(report_of) -> Path:
    """The page of the synthetic run."""
    return report_of("plain")


@pytest.fixture
def table() -> pd.DataFrame:
    """The table of the synthetic run; tests may change it."""
    return make_table()


@pytest.fixture
def record() -> dict:
    """The run.json of the synthetic run; tests may change it."""
    return make_record()


@pytest.fixture
def make_run(tmp_path) -> Callable[..., Path]:
    """`write_shown` with a temporary folder of the test."""
    return partial(write_shown, tmp_path / "run")


@pytest.fixture
def hostile() -> str:
    """Text that breaks a page if it is not escaped."""
    return HOSTILE


# Whether the scripts of the page have drawn it.
DRAWN = (
    "document.readyState === 'complete' && location.protocol !== 'about:' && "
    "[...document.querySelectorAll('.plot')].every("
    "plot => plot.closest('details') || plot.querySelector('.main-svg')) && "
    "[...document.querySelectorAll('#attention')]"
    ".every(explorer => explorer.getAttribute('aria-busy') === 'false')"
)


class Browser:
    """Headless Chromium, controlled over pipes without a driver or port.

    Console messages, exceptions and network requests of a page are collected in `trouble`.
    """

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
        flags += "--disable-background-networking --disable-component-update --disable-sync "
        flags += "--disable-features=BackForwardCache"  # Back loads a page again
        # Chromium reads its commands from descriptor 3 and answers on 4.
        command = f'exec 3<&{to_browser} 4>&{from_browser}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", command, "bash", program, *flags.split(), "--remote-debugging-pipe",
             f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_browser, from_browser), stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._count, self._session = b"", 0, None
        self._opened: set[str] = set()
        self.trouble: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters) -> dict:
        """Send a command and return its result; events received meanwhile are recorded."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._receive()
            if reply.get("id") == self._count:
                assert "error" not in reply, reply
                return reply["result"]
            self._note(reply)

    def _receive(self) -> dict:
        while b"\0" not in self._buffer:
            part = os.read(self._in, 1 << 20)
            assert part, "the browser has closed the pipe"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict) -> None:
        parameters = event.get("params", {})
        if event["method"] == "Network.requestWillBeSent":
            url = parameters["request"]["url"]
            if not url.startswith(("file:", "data:", "blob:")) and url not in self._opened:
                self.trouble.append(f"request: {url}")
        elif event["method"] in (
            "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded",
        ):  # fmt: skip
            self.trouble.append(json.dumps(parameters))

    def open(self, page: Path | str, *, width: int = 1400, dark: bool = False) -> None:
        """Open a page in a window of this width and wait until its scripts have drawn it.

        The page is a file or a URL. Requests to a server count as trouble, except for pages that
        were opened with this method.
        """
        self.trouble.clear()
        url = page if isinstance(page, str) else page.as_uri()
        self._opened.add(url)
        self.resize(width)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="screen", features=[scheme])
        self.call("Page.navigate", url=url)
        self._wait(DRAWN)

    def reload(self) -> None:
        """Load the page again and wait until its scripts have drawn it."""
        self.evaluate("window.isOld = true")
        self.call("Page.reload")
        # Without a promise, which would end with the old page.
        while self.call("Runtime.evaluate", expression="window.isOld")["result"].get("value"):
            time.sleep(0.05)
        self._wait(DRAWN)

    def back(self) -> None:
        """Go back to the page before this one, and wait until its scripts have drawn it."""
        self.evaluate("setTimeout(() => history.back())")  # which ends this page
        time.sleep(0.5)
        self._wait(DRAWN)

    def unfold(self) -> None:
        """Open all folded parts of the page and wait until their figures are drawn."""
        self.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        self._wait(
            "[...document.querySelectorAll('.plot')].every(plot => plot.querySelector('.main-svg'))"
        )

    def _wait(self, drawn: str) -> None:
        is_drawn = self.evaluate(
            f"new Promise(done => {{ const end = Date.now() + {1000 * PATIENCE};"
            f"const wait = () => {drawn} ? done(true) : "
            "Date.now() > end ? done(false) : setTimeout(wait, 20); wait(); })"
        )
        assert is_drawn, f"not drawn after {PATIENCE} seconds: {self.trouble}"
        self.settle()

    def resize(self, width: int) -> None:
        """Change the width of the window."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def settle(self, milliseconds: int = 250) -> None:
        """Wait until the page has redrawn."""
        self.evaluate(f"new Promise(done => setTimeout(done, {milliseconds}))")

    def evaluate(self, expression: str):
        """Return the JSON value of a JavaScript expression in the page."""
        result = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, modifiers=SHIFT * shift)

    def hover(self, x: float, y: float, *, shift: bool = False) -> None:
        """Move the pointer to a point in the window."""
        self._mouse("mouseMoved", x, y, modifiers=SHIFT * shift)

    def click(self, x: float, y: float, *, shift: bool = False) -> None:
        """Click at a point in the window."""
        self.hover(x, y, shift=shift)
        for kind in ("mousePressed", "mouseReleased"):
            self._mouse(kind, x, y, button="left", clickCount=1, modifiers=SHIFT * shift)

    def _mouse(self, kind: str, x: float, y: float, **others) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **others)

    def middle(self, element: str) -> tuple[float, float]:
        """Scroll to an element, given as a JavaScript expression, and return its centre."""
        x, y = self.evaluate(
            f"(() => {{ const found = {element}; found.scrollIntoView({{ block: 'center' }});"
            "const box = found.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        return x, y

    def download_to(self, folder: Path) -> None:
        """Allow pages to save files into this folder."""
        self.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    def close(self) -> None:
        """Close the browser."""
        self.call("Browser.close")
        self._process.wait(timeout=10)
        os.close(self._out)
        os.close(self._in)


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Iterator[Browser]:
    """A running browser; tests are skipped with a message if none is installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip(f"none of {', '.join(names)} is installed to open the pages with")
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


def altered(table: pd.DataFrame, where: str, **values) -> pd.DataFrame:
    """Return a table with other values in the rows that a query selects."""
    selected = table.eval(where)
    return table.assign(**{name: table[name].mask(selected, new) for name, new in values.items()})
