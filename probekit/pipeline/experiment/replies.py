"""Examples of replies that the network of an experiment generates: texts, labels and groups."""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from probekit.activations.local import default_root
from probekit.activations.records import Location
from probekit.activations.replies import Replies, generate_replies
from probekit.amounts import counted
from probekit.data.examples import Dataset, Example, Finding, Turn
from probekit.data.positions import IntArray
from probekit.errors import DataError
from probekit.experiment.data import ReplyLabelSection
from probekit.experiment.schema import Experiment
from probekit.model.generation import Continuation, Decoding
from probekit.model.network import Network
from probekit.model.text.tokenizer import Tokenizer
from probekit.terminal import SILENT, Watcher

REPLIES = "replies.jsonl"  # of a run: all replies, also those without a label
SECONDS_TO_MATCH = 10.0  # of a reply; ordinary expressions need less than a millisecond
_BETWEEN = "\n\n"  # prompt and reply of a conversation, as other turns


def experiment_replies(
    experiment: Experiment,
    model: Network,
    tokenizer: Tokenizer,
    prompts: Sequence[IntArray],
    sites: Sequence[str],
    *,
    cache_root: Location | None = None,
    only_stored: bool = False,
    watcher: Watcher = SILENT,
) -> Replies:
    """Return the replies of the network of an experiment to the ids of prompts, with their rows.

    Raises:
        DataError: the logits are not finite.
        NotGeneratedError: replies are missing, and `only_stored` is true.
        StoreError: the cache is damaged, or cannot be written.
    """
    settings = experiment.capture.generate
    assert settings is not None
    sampling = settings.model_dump(exclude={"samples", "stop"})
    decoding = Decoding(num_samples=settings.samples, **sampling)
    return generate_replies(
        model,
        tokenizer,
        prompts,
        decoding,
        settings.stop,
        sites=sites,
        dtype=experiment.capture.dtype,
        root=default_root() if cache_root is None else cache_root,
        only_stored=only_stored,
        watcher=watcher,
    )


def replied(
    experiment: Experiment, prompts: Dataset, replies: Sequence[Sequence[Continuation]]
) -> tuple[Dataset, str, tuple[Finding, ...]]:
    """Return an example for each reply with a text and a label, all replies as lines, and findings.

    All replies to a prompt, also to equal ones, have the same group. Lines are JSON. The findings
    are the numbers by label, and a warning if words of the replies define the label.

    Raises:
        DataError: no reply has a text and a label, or all of them have the same one, by the rule.
    """
    rule, settings = experiment.data.label_of_reply, experiment.capture.generate
    assert settings is not None
    examples, lines = list[Example](), list[str]()
    left_out, cut = Counter[str](), Counter[str | None]()  # `cut`: by label
    group_of: dict[str, str] = {}  # by prompt, unless the data assign groups
    gap = _BETWEEN if experiment.tokens.chat else ""
    for prompt, of_prompt in zip(prompts.examples, replies, strict=True):
        start, cells = len(prompt.text) + len(gap), dict(prompt.values)
        for number, reply in enumerate(of_prompt, start=1):
            id = prompt.id if len(of_prompt) == 1 else f"{prompt.id} sample {number}"
            label = prompt.label if rule is None else label_of(rule, reply.text, cells)
            if not reply.text.strip():
                label = None
                left_out["empty"] += 1
            elif label is None:
                left_out["without a label"] += 1
            else:
                before = prompt.turns or (Turn(0, len(prompt.text), "user"),)
                turn = Turn(start, start + len(reply.text), "assistant")
                group = group_of.setdefault(prompt.text.strip(), prompt.group)  # as templates do
                example = replace(
                    prompt,
                    text=f"{prompt.text}{gap}{reply.text}",
                    label=label,
                    group=prompt.group if experiment.data.columns.group else group,
                    id=id,
                    turns=(*before, turn),
                    reply_ids=reply.ids,
                )
                examples.append(example)
            cut[label] += reply.stopped_by is None
            line = {
                "id": id,
                "prompt": prompt.text,
                "reply": reply.text,
                "label": label,
                "stopped_by": reply.stopped_by,
                "ids": reply.ids,
            }
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    counts = Counter(example.label for example in examples)
    sampling = f"up to {counted(settings.max_new_tokens, 'token')}, temperature "
    sampling += f"{settings.temperature:g}, seed {settings.seed}"
    for name, value in (("top_p", settings.top_p), ("top_k", settings.top_k)):
        sampling += "" if value is None else f", {name} {value}"
    named = "reply" if len(lines) == 1 else "replies"
    message = f"{len(lines):,} {named} to {counted(len(prompts), 'prompt')} ({sampling})"
    if experiment.probe.reads == "classes":
        message += f": {', '.join(f'{counts[label]:,} {label}' for label in sorted(counts))}"
    message += "".join(f"; {n:,} {why} left out" for why, n in left_out.items())
    # By label, because a reply that ends too early mostly has the second one.
    by_label = ", ".join(f"{cut[label]:,} {label}" for label in sorted(counts))
    message += f"; {cut.total():,} ended by max_new_tokens"
    message += f" ({by_label})." if rule is not None and cut.total() else "."
    if rule is not None and len(counts) < 2:
        with experiment.at("data", "label_of_reply"):
            raise DataError(
                f"the replies need two labels, but there are {message} Change the rule or the "
                "prompts, or generate more `samples`."
            )
    if not examples:
        raise DataError(f"No reply has a text: {message} Allow more tokens, or other stop strings.")
    found = [Finding("info", "replies", message)]
    is_read = any(
        one.at != "user_last" and one.share != (0,) for one in experiment.tokens.positions
    )
    if rule is not None and rule.equals is None and is_read:
        warning = (
            "`label_of_reply` computes the label from the reply: at later tokens, probes and "
            "baselines read the words that define it. Compare scores with those of baselines at "
            "the same position, or with share 0, where no word of the reply is read."
        )
        found.append(Finding("warning", "label-from-reply", warning))
    dataset = replace(prompts, examples=tuple(examples), has_groups=True)
    return dataset, "".join(lines), tuple(found)


@contextmanager
def _time_limit(expression: str) -> Iterator[None]:
    """Raise DataError if the block, which matches an expression, takes `SECONDS_TO_MATCH` seconds.

    Only on Unix and in the main thread: Python allows it nowhere else. There, Ctrl-C ends a search.
    """

    def stop(*_: object) -> None:
        raise DataError(
            f"`data.label_of_reply`: {expression} was not matched with a reply in "
            f"{SECONDS_TO_MATCH:g} s. A repetition within a repetition, such as (a+)+, can take "
            "for ever; write a simpler expression."
        )

    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS_TO_MATCH)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def label_of(rule: ReplyLabelSection, reply: str, cells: Mapping[str, str]) -> str | None:
    r"""Return the label of a reply by a rule; None if the reply has neither label.

    Args:
        rule: the rule.
        reply: text of the reply.
        cells: cells of the data by column, among them the one that the rule names.

    Raises:
        DataError: a regular expression takes too long.

    >>> rule = ReplyLabelSection(match=r"Answer: (\w+)", equals="answer")
    >>> [label_of(rule, text, {"answer": "7"}) for text in ("Answer: 7", "Answer: 8", "Hm.")]
    ['yes', 'no', None]
    """
    first, second = rule.labels
    with _time_limit(f"{rule.match} or {rule.other}"):
        matches = [] if rule.match is None else list(re.finditer(rule.match, reply))
        is_other = rule.other is not None and re.search(rule.other, reply) is not None
    if rule.equals is not None:
        if rule.match is not None:
            if not matches:
                return None
            reply = matches[-1][1 if matches[-1].re.groups else 0] or ""
        return first if reply.strip() == cells[rule.equals].strip() else second
    if rule.other is None:
        return first if matches else second
    if bool(matches) == is_other:
        return None
    return first if matches else second
