"""Replies that a network generates, and the activations of all their tokens, in the same passes.

    <caches>/replies-<key>/00000/replies.json   replies to the prompts of a part; written first
    <caches>/replies-<key>/00000/               store of all tokens of these prompts and replies

A part is one batch, and the same prompts are always in the same batches: an interrupted generation
that is resumed returns the same bits as an uninterrupted one. Each token is read once, after those
before it, whose keys and values are kept. A pass over the whole text differs from that by rounding
only. The captures of an experiment copy the rows that they need from the parts.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from probekit.activations import records
from probekit.activations.capture import StoredRows
from probekit.activations.forward import Batch
from probekit.activations.local import Files, join
from probekit.activations.records import FloatArray, Identity, Location, identity_of
from probekit.activations.store import ActivationStore, files_at
from probekit.amounts import counted
from probekit.data.positions import IntArray, RowPlan
from probekit.errors import DamagedError, MissingError, StoreError
from probekit.model.generation import Continuation, Decoding, StopStrings, continuations, new_tokens
from probekit.model.network import Network
from probekit.model.passes.inputs import pad
from probekit.model.text.tokenizer import Tokenizer
from probekit.provenance import digest_json, seal, unseal
from probekit.terminal import SILENT, Watcher

VERSION = 1  # of the generation: raise it if the same prompts get other replies


class NotGeneratedError(MissingError):
    """Some replies are not stored yet, and may not be generated."""


@dataclass(frozen=True, eq=False)
class Replies(StoredRows):
    """Replies to prompts, and the stored rows of all tokens of prompts and replies.

    Attributes:
        key: digest of everything that the replies depend on.
        of_prompt: replies to each prompt, by the bytes of its ids in int64.
        stores: store of each part.
    """

    key: str
    of_prompt: Mapping[bytes, list[Continuation]]
    stores: tuple[ActivationStore, ...]

    @property
    def origin(self) -> str:
        """`replies`, and the digest of everything that they depend on."""
        return f"replies {self.key}"

    def to(self, prompt: IntArray) -> list[Continuation]:
        """Return the replies to a prompt, given its ids of shape (n_tokens,)."""
        return self.of_prompt[_bytes(prompt)]

    @cached_property
    def _starts(self) -> IntArray:
        """Number of the first row of each part among the rows of all parts, then their number."""
        return np.cumsum([0, *(store.n_rows for store in self.stores)])

    @cached_property
    def _first_row(self) -> Mapping[bytes, int]:
        """Number of the first row of each finished text, by the bytes of its ids."""
        found, number = dict[bytes, int](), 0
        for prompt, replies in self.of_prompt.items():  # in the order of the rows
            for reply in replies:
                text = prompt + _bytes(reply.ids)
                found.setdefault(text, number)
                number += len(text) // 8
        return found

    def read(self, site: str, rows: IntArray) -> FloatArray:
        """Return rows of a site, shape (n_rows, ...), by their numbers in all parts together."""
        part_of_row = np.searchsorted(self._starts, rows, side="right") - 1
        parts, order = list[FloatArray](), list[IntArray]()
        for part in np.unique(part_of_row).tolist():
            order.append(np.flatnonzero(part_of_row == part))
            parts.append(self.stores[part].read(site, rows[order[-1]] - self._starts[part]))
        return np.concatenate(parts)[np.argsort(np.concatenate(order))]

    def of_tokens(
        self, batch: Batch, text: IntArray, places: IntArray, plan: RowPlan, sites: Sequence[str]
    ) -> list[Tensor]:
        """Return the rows of tokens of finished texts; arguments as in `StoredRows.of_tokens`."""
        first_row = np.array([self._first_row[_bytes(ids)] for ids in batch.sequences])
        rows = first_row[text] + plan.positions[places]  # one row for each position of a text
        return [torch.from_numpy(self.read(site, rows)) for site in sites]


def _bytes(ids: Sequence[int] | IntArray) -> bytes:
    return np.asarray(ids, np.int64).tobytes()


def generate_replies(  # noqa: PLR0913  # one call, whose options have defaults
    model: Network,
    tokenizer: Tokenizer,
    prompts: Sequence[IntArray],
    decoding: Decoding,
    stop: Sequence[str] | None,
    *,
    sites: Sequence[str],
    dtype: str,
    root: Location,
    only_stored: bool = False,
    watcher: Watcher = SILENT,
) -> Replies:
    """Return the replies to prompts, with rows at some sites; parts that are stored are reused.

    Args:
        model: the network.
        tokenizer: its tokenizer.
        prompts: the ids of each prompt, shape (n_tokens,); equal ones have the same replies.
        decoding: decoding parameters; its stopping criterion is not used.
        stop: strings that end a reply; None means the tokenizer's ends of text.
        sites: full names of sites with a pos axis.
        dtype: dtype on disk, a key of `CODES`.
        root: folder or URL that contains caches.
        only_stored: whether replies are only read, and not generated.
        watcher: receives progress in prompts.

    Raises:
        ConfigError: a stop string is empty.
        DataError: a prompt exceeds the context together with the new tokens, or the logits are not
            finite.
        NotGeneratedError: replies or rows are not stored, and `only_stored` is true.
        StoreError: a stored file is damaged, the network generates other replies than the stored
            ones, the store cannot be written, or a value is not finite.
    """
    strings = tokenizer.ends_of_text if stop is None else tuple(stop)
    # Longest first, so that memory peaks at the start; then by content.
    distinct = sorted(set(map(_bytes, prompts)), key=lambda ids: (-len(ids), ids))
    sequences = [np.frombuffer(ids, dtype=np.int64).copy() for ids in distinct]
    n = np.arange(len(sequences) + 1)
    last_tokens = RowPlan(n[:-1], np.array([len(ids) - 1 for ids in sequences]), n)
    identity = identity_of(model, tokenizer.digest, sequences, last_tokens, dtype)
    settings = asdict(replace(decoding, stop=None)) | {"stop": list(strings)}
    made_of = {"version": VERSION, "prompts": identity.to_json(), "decoding": settings}
    key = digest_json(made_of)[:24]
    identity = replace(identity, origin=f"replies {key}")
    folder = join(root, f"replies-{key}")
    stopping = StopStrings(tokenizer, strings)
    of_prompt, stores, start = dict[bytes, list[Continuation]](), list[ActivationStore](), 0
    while start < len(sequences):
        watcher.progress("generate", start, len(sequences))
        n_tokens = decoding.num_samples * (len(sequences[start]) + decoding.max_new_tokens)
        part = slice(start, start + max(1, records.batch_tokens(model.device.type) // n_tokens))
        files = files_at(join(folder, f"{len(stores):05d}"))
        replies = _stored(files, sites)
        if replies is None and only_stored:
            raise NotGeneratedError(
                f"The network will reply to {counted(len(prompts), 'prompt')}, "
                f"{counted(decoding.num_samples, 'time')} each with up to "
                f"{counted(decoding.max_new_tokens, 'token')}. The labels of replies are counted "
                "when `probekit run` has generated them."
            )
        if replies is None:
            files.begin()
            with files.lock(watcher.tell):
                # Another process may have generated them meanwhile.
                replies = _stored(files, sites) or _generate(
                    files, identity, model, sequences[part], decoding, stopping, sites
                )
        stores.append(ActivationStore.open(files))
        of_prompt |= zip(distinct[part], replies, strict=True)
        start = part.stop
    watcher.progress("generate", len(sequences), len(sequences))
    return Replies(key, of_prompt, tuple(stores))


def _stored(files: Files, sites: Sequence[str]) -> list[list[Continuation]] | None:
    """Return the stored replies to each prompt of a part; None if they, or rows, are missing.

    Raises:
        StoreError: a file is damaged.
    """
    replies = _read(files)
    if replies is None or files.size(records.SPEC) is None:
        return None
    store = ActivationStore.open(files)
    return None if any(store.missing(site) for site in sites) else replies


def _read(files: Files) -> list[list[Continuation]] | None:
    """Return the stored replies to each prompt of a part; None without them."""
    if files.size(records.REPLIES) is None:
        return None
    try:
        content = unseal(
            files.read(records.REPLIES),
            f"{files.place}/{records.REPLIES}",
            records.FORMAT_OF_REPLIES,
        )
    except DamagedError as error:
        raise DamagedError(f"{error} Delete the folder to generate again.") from error
    return [
        [Continuation(one["text"], tuple(one["ids"]), one["stopped_by"]) for one in of_prompt]
        for of_prompt in content["replies"]
    ]


def _generate(
    files: Files,
    identity: Identity,
    model: Network,
    prompts: Sequence[IntArray],
    decoding: Decoding,
    stopping: StopStrings,
    sites: Sequence[str],
) -> list[list[Continuation]]:
    """Generate and store the replies to each prompt of a part, and their rows at some sites.

    Prompts are in one batch, longest first; `identity` is that of all parts.
    """
    files.sweep()
    ids, mask = pad(prompts, "left")
    passes = defaultdict[str, list[Tensor]](list)

    def keep(site: str, value: Tensor) -> Tensor:
        """Keep a copy of the new positions, as a tap that changes nothing."""
        passes[site].append(value.float().to("cpu", getattr(torch, identity.dtype), copy=True))
        return value

    # One more step, and the end of a row one step after its stop string: so the last token of
    # each reply is read, too.
    longer = replace(
        decoding, max_new_tokens=decoding.max_new_tokens + 1, stop=lambda new: stopping(new[:-1])
    )
    tap = keep if sites else None
    with torch.inference_mode(), torch.autocast(model.device.type, enabled=False):
        steps = list(new_tokens(model, ids, longer, mask=mask, tap=tap, sites=sites or None))
    replies = continuations(steps, stopping, decoding)
    listed = [[asdict(reply) for reply in of_prompt] for of_prompt in replies]
    sealed = seal({"replies": listed}, records.FORMAT_OF_REPLIES)
    if not files.create(records.REPLIES, sealed) and _read(files) != replies:
        raise StoreError(
            f"The network generates other replies than those in {files.place}, as another device "
            f"may. Delete the folder {files.place} to use the new ones."
        )
    texts = [
        np.concatenate([prompt, np.array(reply.ids, dtype=np.int64)])
        for prompt, of_prompt in zip(prompts, replies, strict=True)
        for reply in of_prompt
    ]
    lengths = np.array([len(text) for text in texts])
    positions = np.concatenate([np.arange(length) for length in lengths])
    example = np.repeat(np.arange(len(texts)), lengths)
    plan = RowPlan(example, positions, np.arange(len(positions) + 1))
    identity = replace(identity, **records.digests_of_rows(texts, plan))
    store = ActivationStore.create(files, identity, plan, [np.arange(len(positions))])
    # Prompts are padded on the left, so that replies begin at the same place.
    n_padding = ids.shape[1] - np.array([len(one) for one in prompts])
    starts = np.repeat(n_padding, decoding.num_samples)
    for site in store.missing_sites(sites, 0):
        values = torch.cat(passes.pop(site), dim=1)  # [row pos ...]
        of_texts = [
            values[row, first : first + length]
            for row, (first, length) in enumerate(zip(starts, lengths, strict=True))
        ]
        rows = torch.cat(of_texts)
        store.commit(site, 0, (rows.float() if rows.dtype == torch.bfloat16 else rows).numpy())
    store.seal()
    return replies
