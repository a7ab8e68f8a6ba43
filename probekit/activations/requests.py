"""Hidden states that a serving engine or another library has written, as the activations of texts.

A file, of one of the formats in `given/served`, has one request, or several: as a batch, or with
their names before those of the tensors. A request has the ids of its tokens and their hidden
states, as vLLM's `extract_hidden_states` writes them, or under other names; see `ROLES`.

A text is served by a request whose ids begin with those of the text, never by order or file name.
Later tokens, which the engine generated, are not used.

read_requests  all requests of a folder
Requests       the requests that serve some texts, and the rows of these
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.capture import StoredRows
from probekit.activations.forward import Batch
from probekit.activations.given.checks import unusable
from probekit.activations.given.formats import natural, reading
from probekit.activations.given.given import is_known
from probekit.activations.given.served.table import (
    contents_of,
    how_to_convert,
    open_tensors,
    served_files,
)
from probekit.amounts import counted, percent
from probekit.data.positions import IntArray, RowPlan
from probekit.errors import DataError, MissingError
from probekit.files import inside, state_of
from probekit.provenance import digest_file, digest_json

# What a request has: accepted names of its tensors, or of entries in the metadata of its file.
ROLES = {
    "ids": ("token_ids", "prompt_token_ids", "input_ids", "tokens", "inp_tokens"),
    "states": (
        *("hidden_states", "hidden_state", "model.layers", "layers", "layer", "activations"),
        *("transformer.h", "gpt_neox.layers", "model.decoder.layers", "l_out"),
    ),
    "mask": ("attention_mask",),  # 0 at padding
    "start": ("start", "offset", "num_computed_tokens"),  # index of the first token with states
    "prompt": ("prompt_len", "prompt_length", "num_prompt_tokens", "prompt_tokens"),
    "request": ("request_id", "req_id"),
    "layers": ("layer_ids", "eagle_aux_hidden_state_layer_ids"),  # along the axis of layers
    # Of each token with states; compared, never probed.
    "logits": ("logits", "prompt_logits", "result_output"),
}
_ROLE_OF = {name: role for role, names in ROLES.items() for name in names}
# The name of a request, if the file has several; the name of a tensor; the number of a layer, whose
# output it may be; or the name of a site.
_KEY = re.compile(
    rf"(?:(?P<request>.+)[./:])??(?:(?P<name>{'|'.join(map(re.escape, _ROLE_OF))})"
    r"(?:[._-]0*(?P<layer>\d+)(?:\.output(?:\.0)?)?)?|(?P<site>(?:blocks\.\d+\.)?hook_\w+))"
)
_Layers = Mapping[str, tuple[str, slice | None]]  # key and part of its second axis, by layer
_DTYPES = {"F64", "F32", "F16", "BF16"}  # of hidden states
# Largest relative error of a token, and of the median token, that rounding to bfloat16 explains.
_ANOTHER_ROW, _MEDIAN = 0.5, 1 / 16
_PLACES = 16  # most tokens of a row that are computed again
_WRITE_AGAIN = "The file may be truncated, or still being written: let the engine write it again"

# Why a request with the ids of a text does not serve it; or, by the index in the text of the first
# id that they share, why a request with other ids does not.
_REASONS: dict[str | int, str] = {
    "cache": "has hidden states for {n:,} of its {n_ids:,} tokens. An engine computes none for "
    "tokens in its prefix cache: turn it off (vLLM: `enable_prefix_caching=False`) and write the "
    "requests again. If other tokens are missing, store the index of the first token with hidden "
    "states as `start`.",
    "last": "has hidden states for {n:,} of its {n_ids:,} tokens, and all others lack one too, "
    "probably that of the last token, which was sampled and never read. Store 0, the index of the "
    "first token with hidden states, as `start`; or turn off the prefix cache if it lacks this.",
    "known": "has no hidden states of token {missing:,} of its {n_ids:,} tokens. Let the engine "
    "write those of all tokens of the text.",
    "swapped": "has hidden states of {n:,} tokens and about as many layers as ids, {n_ids:,}, like "
    "all others: its axes are probably swapped. Write (n_tokens, n_layers, d_model).",
    1: "has the tokens of the text without the first one, {first}: the engine read no "
    "beginning-of-text token. Set `tokens.bos: false`, or let the engine add it.",
    -1: "has the tokens of the text after one more, {added}: the engine added a beginning-of-text "
    "token. Set `tokens.bos: true`, or let the engine add none.",
    0: "has only the first {n:,} of {n_ids:,} tokens: the engine truncated the text, or wrote a "
    "chunk of it. Write the whole request.",
    "chunk": "has only the last {n:,} of {n_ids:,} tokens: chunked prefill writes each chunk "
    "alone. Turn it off (vLLM: `enable_chunked_prefill=False`), or write each chunk with "
    "`request_id` and the index of its first token, `start`.",
}


@dataclass(frozen=True, eq=False, slots=True)  # there may be millions
class RequestPart:
    """Hidden states of consecutive tokens of a request, in one file.

    Attributes:
        path: the file.
        entry: name before those of its tensors; "" in a file of one request.
        state: values that differ after the file has changed.
        name: name of the request, as the file states it; "" if it does not.
        ids: ids of the tokens of the request, or of those with hidden states, shape (n_tokens,).
        tokens: indices, in the request, of the tokens with hidden states. Empty if unknown: with
            fewer states than ids and without `start`, the first tokens may be missing, which were
            in a cache, or the last one, which was sampled and never read.
        n_states: number of hidden states; more than `ids` if these are those of the prompt.
        n_prompt: number of tokens of the prompt; None if it is not stated.
        layers: key of the tensor, and its part of the second axis if that has layers, by layer.
        row: index along the axis of the batch; 0 without.
        padding: number of positions before its first token.
    """

    path: str
    entry: str
    state: tuple[tuple[int, int, int], ...]
    name: str
    ids: IntArray
    tokens: range
    n_states: int
    n_prompt: int | None
    layers: _Layers
    row: int = 0
    padding: int = 0

    @property
    def place(self) -> str:
        """File and request, for messages."""
        return f"{self.path}: {self.entry}" if self.entry else self.path

    def states(self, layers: Sequence[str], positions: IntArray) -> list[Tensor]:
        """Return the hidden states of tokens in float32, shape [position d_model] for each layer.

        Raises:
            DataError: the file cannot be read or has changed, or a row is no hidden state.
        """
        absent = [layer for layer in layers if layer not in self.layers]
        if absent:
            raise DataError(
                f"{self.place} has no layer {absent[0]}; it has {', '.join(self.layers)}. Write "
                "all requests with the same layers."
            )
        first, found = self.tokens.start - self.padding, list[Tensor]()
        low, high = int(positions.min()) - first, int(positions.max()) + 1 - first
        at = torch.from_numpy(positions - first - low)
        with reading(self.place, _WRITE_AGAIN):
            with open_tensors(Path(self.path)) as file:
                for layer in layers:
                    key, column = self.layers[layer]
                    tensor = file.get_slice(key)
                    if column is None and len(tensor.get_shape()) == 3:  # the first is the batch
                        block = tensor[self.row : self.row + 1, low:high][0]
                    elif column is None:
                        block = tensor[low:high]
                    else:
                        block = tensor[low:high, column].flatten(1)
                    block = block.float()
                    if (wrong := unusable(block.numpy())) is not None:  # also between the positions
                        raise DataError(
                            f"{self.place}: layer {layer} {wrong[2]} at token "
                            f"{first + low + wrong[0]} ({wrong[1]:,} such of {len(block):,}). Let "
                            "the engine write the request again, in bfloat16 or float32."
                        )
                    found.append(block[at])
            if tuple(map(state_of, contents_of(Path(self.path)))) != self.state:
                raise DataError(f"{self.path} changed while it was read. Run the command again.")
        return found


@dataclass(frozen=True, eq=False, slots=True)
class Request:
    """A request: the parts with its hidden states, in order, each with all ids."""

    parts: tuple[RequestPart, ...]

    @property
    def ids(self) -> IntArray:
        """Ids of its tokens, shape (n_tokens,)."""
        return self.parts[0].ids

    @property
    def key(self) -> bytes:
        """Bytes that sort as the ids do, so that requests with a common beginning are adjacent."""
        return sortable(self.ids)

    @property
    def n_states(self) -> int:
        """Number of tokens with hidden states."""
        return sum(len(part.tokens) for part in self.parts)

    def has(self, positions: Iterable[int]) -> bool:
        """Return whether there are hidden states at all positions."""
        return all(any(one in part.tokens for part in self.parts) for one in positions)

    def states(self, layers: Sequence[str], positions: IntArray) -> list[Tensor]:
        """Return the hidden states at positions in float32, [position d_model] for each layer."""
        rows: list[Tensor] = []
        for part in self.parts:
            own = np.isin(positions, part.tokens)
            if own.any():
                states = part.states(layers, positions[own])
                rows = rows or [torch.empty(len(positions), one.shape[1]) for one in states]
                for of_layer, values in zip(rows, states, strict=True):
                    of_layer[torch.from_numpy(own)] = values
        return rows


@dataclass(frozen=True, eq=False)
class Requests(StoredRows):
    """The requests in a folder, and those that serve some texts.

    Attributes:
        folder: the folder of the files.
        all: all requests, sorted by their ids.
        chosen: the request that serves each text, by the bytes of its ids; see `choose`.
        layers: the layer of each site, after they were identified.
    """

    folder: Path
    all: tuple[Request, ...]
    chosen: Mapping[bytes, Request] = field(default_factory=dict)
    layers: Mapping[str, str] = field(default_factory=dict)

    def of_text(self, ids: IntArray) -> Sequence[Request]:
        """Return the requests whose ids begin with those of a text, in the order of their ids."""
        key = sortable(ids)
        first = bisect_left(self.all, key, key=lambda one: one.key)
        stop = bisect_right(self.all, key + b"\xff" * 8, key=lambda one: one.key)
        return self.all[first:stop]

    def choose(self, tokens: Sequence[IntArray], plan: RowPlan) -> Requests:
        """Return the requests with those that serve texts; a text that none serves is left out.

        Args:
            tokens: the ids of every text, each of shape (n_tokens,).
            plan: the positions that rows need of each text.
        """
        needed = defaultdict[bytes, set[int]](set)
        of_position = np.repeat(plan.example, np.diff(plan.offsets))
        for example, position in zip(of_position.tolist(), plan.positions.tolist(), strict=True):
            needed[tokens[example].tobytes()].add(position)
        chosen = dict[bytes, Request]()
        for text, ids in {ids.tobytes(): ids for ids in tokens}.items():
            found = next((one for one in self.of_text(ids) if one.has(needed[text])), None)
            if found is not None:
                chosen[text] = found
        return replace(self, chosen=chosen)

    def why_unserved(self, ids: IntArray) -> str:
        """Return sentences: why no request serves a text with these ids, and what to do."""
        for request in self.of_text(ids)[:1]:
            others, n_ids = [one.parts[0] for one in self.all], len(request.ids)
            missing = [token for token in range(n_ids) if not request.has([token])]
            reason = "known" if 0 not in missing else "cache"
            if request.n_states == 0:
                sizes = {(len(one.layers), len(one.ids)) for one in others}
                n_states = {one.n_states for one in others}
                # A network has one number of layers; tokens differ between requests.
                if all(n == m for n, m in sizes) or len(dict(sizes)) > 1 == len(n_states):
                    reason = "swapped"
                elif len(others) > 1 and all(one.n_states == len(one.ids) - 1 for one in others):
                    reason = "last"  # a cache seldom lacks one token of every request
            n = request.n_states or request.parts[0].n_states
            why = _REASONS[reason].format(n=n, n_ids=n_ids, missing=missing[0])
            return f"{request.parts[0].place} {why}"
        for request in self.all:
            for offset in (1, -1, len(ids) - len(request.ids), 0):
                own, theirs = ids[max(offset, 0) :], request.ids[max(-offset, 0) :]
                n = len(own) if offset else len(theirs)
                if n > 1 and offset >= -1 and np.array_equal(own[:n], theirs[:n]):
                    why = _REASONS.get(offset, _REASONS["chunk"]).format(
                        n=n, n_ids=len(ids), first=ids[0], added=request.ids[0]
                    )
                    return f"{request.parts[0].place} {why}"
        return (
            "No request begins with its tokens. Send all texts to the engine as the model reads "
            "them, or set `capture.requests.missing: skip`."
        )

    @property
    def described(self) -> str:
        """A sentence on how many requests and tokens are used."""
        longest = dict[Request, int]()
        for text, request in self.chosen.items():
            longest[request] = max(longest.get(request, 0), len(text) // 8)
        generated = sum(
            max(len(one.ids), one.parts[0].n_states) - (one.parts[0].n_prompt or length)
            for one, length in longest.items()
        )
        files = {part.path for one in longest for part in one.parts}
        return (
            f"{counted(len(self.chosen), 'distinct text')} of {counted(len(longest), 'request')} "
            f"in {counted(len(files), 'file')}; not used: {counted(generated, 'later token')} of "
            f"these requests, and {counted(len(self.all) - len(longest), 'other request')}."
        )

    @cached_property
    def origin(self) -> str:
        """`requests`, and one digest of the contents of all files with a chosen request."""
        paths = {Path(part.path) for one in self.chosen.values() for part in one.parts}
        files = [file for path in paths for file in contents_of(path)]
        with reading(str(self.folder), _WRITE_AGAIN):
            return f"requests {digest_json(sorted(map(digest_file, files)))}"

    def sample(
        self, tokens: Sequence[IntArray], plan: RowPlan, n_rows: int
    ) -> tuple[dict[str, Tensor], list[list[int]], IntArray]:
        """Return hidden states of tokens of evenly spaced rows by layer, ids and positions.

        Hidden states have the shape [row place d_model] and positions (n_rows, n_places): some of a
        row, drawn at random, and its last one in the last column: the first may be equal in all
        texts. Of a row with fewer positions, some are repeated.

        Raises:
            DataError: a file cannot be read, or a row is no hidden state.
        """
        last, draw = len(plan.example) - 1, np.random.default_rng(0)
        rows = np.unique(np.linspace(0, last, min(n_rows, last + 1)).astype(int))
        texts = [tokens[number] for number in plan.example[rows]]
        own = [plan.positions[slice(*plan.offsets[row : row + 2])] for row in rows]
        n_places = min(_PLACES, max(map(len, own)))
        at = np.stack([
            np.append(np.resize(draw.permutation(one[:-1] if len(one) > 1 else one), n_places - 1),
                      one[-1])
            for one in own
        ])  # fmt: skip
        requests = [self.chosen[ids.tobytes()] for ids in texts]
        layers = sorted(requests[0].parts[0].layers, key=natural)
        of_row = [one.states(layers, at[n]) for n, one in enumerate(requests)]
        of_layer = dict(zip(layers, map(torch.stack, zip(*of_row, strict=True)), strict=True))
        return of_layer, [ids.tolist() for ids in texts], at

    def of_tokens(
        self, batch: Batch, text: IntArray, places: IntArray, plan: RowPlan, sites: Sequence[str]
    ) -> list[Tensor]:
        """Return the hidden states of tokens at each site; arguments as in `StoredRows.of_tokens`.

        One file is open at a time. `text` ascends, so that the parts are in the order of tokens.

        Raises:
            DataError: a file cannot be read or has changed, or a number is not finite.
        """
        parts, layers = list[list[Tensor]](), [self.layers[site] for site in sites]
        for number in np.unique(text):
            request = self.chosen[batch.sequences[number].tobytes()]
            parts.append(request.states(layers, plan.positions[places[text == number]]))
        return list(map(torch.cat, zip(*parts, strict=True)))

    def check(self, errors: Mapping[str, Any], tokens: RowPlan, rows: IntArray) -> None:
        """Check that tokens differ from those of the network by rounding alone."""
        for site, error in errors.items():
            if not (error.max() <= _ANOTHER_ROW and np.median(error) <= _MEDIAN):  # also NaN
                place = rows[error.argmax()]
                raise DataError(
                    f"{self.folder}: token {tokens.positions[place]} of text "
                    f"{tokens.example[place]} at {site} differs from the network's by "
                    f"{percent(error.max())} of its norm; the median error is "
                    f"{percent(np.median(error))}. Let the engine write its requests again."
                )


def sortable(ids: IntArray) -> bytes:
    """Return bytes whose order is that of token ids.

    >>> sortable(np.array([1, 300])) < sortable(np.array([2]))
    True
    """
    return np.asarray(ids).astype(">i8").tobytes()


def read_requests(folder: Path, d_model: int) -> Requests:
    """Return the requests in a folder and its subfolders, or in one file; states are read later.

    Args:
        folder: folder of files, or one file.
        d_model: number of features of each hidden state.

    Raises:
        MissingError: there is no folder, or no file with requests.
        ConfigError: the package that reads a format is not installed.
        DataError: a file cannot be read, is still being written, has no request, has hidden states
            of another width, or lacks a chunk of a request.
    """
    with reading(str(folder), _WRITE_AGAIN):
        paths = served_files(folder)
    if not paths:
        raise MissingError(
            f"{folder} contains no .safetensors file of requests, nor one of another format that "
            f"is read.{how_to_convert(folder)} Give the folder in which the engine writes hidden "
            "states."
        )
    shared = dict[str, _Layers]()  # usually one for all
    parts = [part for path in paths for part in _parts_of(path, folder, d_model, shared)]
    names = {part.name for part in parts if part.tokens.stop > len(part.ids)}  # of later chunks
    chunks = defaultdict[str, list[RequestPart]](list)
    wholes = defaultdict[bytes, list[RequestPart]](list)
    for part in parts:
        if part.name in names and len(part.tokens) == len(part.ids):
            chunks[part.name].append(part)
        else:
            wholes[part.ids.tobytes()].append(part)
    for of_name in chunks.values():  # each has its own ids
        stop, ordered = 0, sorted(of_name, key=lambda part: part.tokens.start)
        for part in ordered:
            if part.tokens.start != stop:
                raise DataError(
                    f"{part.place}: its chunk begins at token {part.tokens.start}, but {stop} is "
                    "expected after the chunks before it. Write all chunks of the request again."
                )
            stop = part.tokens.stop
        ids = np.concatenate([part.ids for part in ordered])
        wholes[ids.tobytes()] += [replace(part, ids=ids) for part in ordered]
    requests = list[Request]()
    for of_ids in wholes.values():  # parts with all ids of the request
        some = tuple(part for part in of_ids if 0 < len(part.tokens) < len(part.ids))
        requests += [Request((part,)) for part in of_ids if part not in some]
        requests += [Request(some)] if some else []
    requests.sort(key=lambda one: (one.key, -one.n_states, one.parts[0].path))
    return Requests(folder, tuple(requests))


def _parts_of(
    path: Path, folder: Path, d_model: int, shared: dict[str, _Layers]
) -> Iterator[RequestPart]:
    """Yield the requests, or parts of requests, in a file; equal mappings of layers are shared.

    Raises:
        DataError: the file cannot be read, leads out of the folder, or has no request.
    """
    inside(path, folder if folder.is_dir() else None)
    with reading(str(path), _WRITE_AGAIN):
        state = tuple(map(state_of, contents_of(path)))  # before its header is read
    with reading(str(path), _WRITE_AGAIN), open_tensors(path) as file:
        metadata = (file.metadata() or {}).items()
        stated = {_ROLE_OF[name]: text for name, text in metadata if name in _ROLE_OF}
        names = sorted(file.keys())  # it is not a mapping
        complete = {
            name: found
            for name, found in _keys_of(path, names).items()
            if None in found.get("ids", {}) and "states" in found
        }
        if not complete:
            ids_or, states_or = (" or ".join(ROLES[role]) for role in ("ids", "states"))
            raise DataError(
                f"{path} has no request, but the tensors {', '.join(names[:5])}. "
                f"Name those of a request ids: {ids_or}; states: {states_or}."
            )
        for name, found in sorted(complete.items()):
            of_all = ("layers",) if name else ROLES  # entries of the metadata that are its own
            numbers: dict[str, Any] = {role: stated[role] for role in stated if role in of_all} | {
                role: file.get_tensor(found[role][None]).tolist()
                for role in ("start", "prompt", "layers")
                if None in found.get(role, {})
            }
            label = f"{path}: {name}" if name else str(path)
            stated_start, n_prompt = (_count(label, one, numbers) for one in ("start", "prompt"))
            of_ids = file.get_tensor(found["ids"][None])
            if of_ids.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8):
                raise DataError(f"{label}: {found['ids'][None]} is {of_ids.dtype}. Write integers.")
            mask_key = found.get("mask", {}).get(None)
            rows = _unpadded(label, of_ids, file.get_tensor(mask_key) if mask_key else None)
            shape, listed = list(of_ids.shape), numbers.get("layers")
            layers, n_states = _layers_of(file, label, found["states"], shape, d_model, listed)
            if key := found.get("logits", {}).get(None):
                if file.get_slice(key).get_shape()[-2:-1] != [n_states]:
                    raise DataError(
                        f"{label}: {key} has shape {tuple(file.get_slice(key).get_shape())}. Write "
                        f"(n_tokens, d_vocab), as of the {n_states:,} hidden states, or no logits."
                    )
                layers["logits"] = (key, None)
            for row, (ids, padding) in enumerate(rows):
                one = RequestPart(
                    path=str(path),
                    entry=name if len(rows) == 1 else "/".join(filter(None, (name, str(row)))),
                    state=state,
                    name="" if name.isdecimal() else name or str(numbers.get("request", "")),
                    ids=ids,
                    tokens=range(0),
                    n_states=n_states if mask_key is None else min(n_states - padding, len(ids)),
                    n_prompt=n_prompt,
                    layers=shared.setdefault(str(layers), layers),
                    row=row,
                    padding=padding,
                )
                has_prompt = found["ids"][None].endswith("prompt_token_ids")
                yield _placed(one, stated_start, has_prompt)


def _placed(part: RequestPart, stated: int | None, has_prompt: bool) -> RequestPart:
    """Return a part of a request with the tokens of its hidden states.

    Args:
        part: the part, without its tokens.
        stated: index of the first token with hidden states; None if the file does not state it.
        has_prompt: whether the ids are those of the prompt alone.

    Raises:
        DataError: there are too many hidden states, or they are of a request without a name.
    """
    start, n, n_ids, label = stated or 0, part.n_states, len(part.ids), part.place
    is_chunk = start > 0 and n == n_ids  # has its own ids only
    if is_chunk and not part.name:
        raise DataError(
            f"{label} has the tokens from {start} of a request that it does not name. Write its "
            "name as `request_id`, so that its chunks can be joined."
        )
    if start + n > n_ids and not (is_chunk or has_prompt or part.n_prompt == n_ids):
        raise DataError(
            f"{label} has hidden states of {n:,} tokens from token {start:,}, but {n_ids:,} ids. "
            "Write the ids of all tokens, or those of the prompt as `prompt_token_ids`, and the "
            "axes as (n_tokens, n_layers, d_model)."
        )
    stop = start + n if stated is not None or n >= n_ids else start
    return replace(part, tokens=range(start, stop if is_chunk else min(stop, n_ids)))


def _unpadded(label: str, of_ids: Tensor, mask: Tensor | None) -> list[tuple[IntArray, int]]:
    """Return the ids of each request of a batch, and the number of padded positions before them.

    Raises:
        DataError: the mask is not that of the ids, or has gaps, or ids of padding have none.
    """
    rows = of_ids.reshape(-1, of_ids.shape[-1]).numpy().astype(np.int64)
    if mask is None:
        if (rows < 0).any():
            raise DataError(
                f"{label}: its ids have negative numbers. If they are padding, write the "
                "attention_mask of the batch, too."
            )
        return [(ids, 0) for ids in rows]
    found = list[tuple[IntArray, int]]()
    kept = mask.reshape(-1, mask.shape[-1]).float().numpy()
    for row, ids in enumerate(rows):
        at = np.flatnonzero(kept[row]) if mask.shape == of_ids.shape else rows[:0, 0]
        is_plain = len(at) > 0 and np.array_equal(kept[row, at[0] : at[-1] + 1], np.ones(len(at)))
        if not is_plain:
            raise DataError(
                f"{label}: its attention_mask of shape {tuple(mask.shape)} has padding between "
                f"tokens, or no token, or is not that of ids of shape {tuple(of_ids.shape)}. Write "
                "1 for all tokens of a request, which are next to each other, and 0 for padding."
            )
        found.append((ids[at], int(at[0])))
    return found


def _keys_of(path: Path, names: Sequence[str]) -> dict[str, dict[str, dict[str | None, str]]]:
    """Return the names of tensors of a file, by request, role and layer.

    Raises:
        DataError: two tensors of a request have the same role.
    """
    keys: dict[str, dict[str, dict[str | None, str]]] = {}
    for key in names:
        match = _KEY.fullmatch(key)
        if match is None or (match["site"] and not is_known(match["site"])):
            continue
        role = "states" if match["site"] else _ROLE_OF[match["name"]]
        layer = match["site"] or match["layer"]
        of_role = keys.setdefault(match["request"] or "", {}).setdefault(role, {})
        if layer in of_role or (of_role and None in (layer, *of_role)):
            other = of_role.get(layer, next(iter(of_role.values())))
            raise DataError(
                f"{path}: {other} and {key} have the same role in a request. Write one of them."
            )
        of_role[layer] = key
    return keys


def _count(label: str, role: str, stated: Mapping[str, Any]) -> int | None:
    """Return a number in the metadata of a file or in a tensor; None if it is not stated."""
    number = re.fullmatch(r"\[?(\d+)\]?", str(stated.get(role, 0)))
    if number is None:
        name = " or ".join(ROLES[role])
        raise DataError(f"{label}: {name} is {stated[role]!r}. Write one number, at least 0.")
    return int(number[1]) if role in stated else None


def _layers_of(
    file: Any,
    label: str,
    states: Mapping[str | None, str],
    of_ids: list[int],
    d_model: int,
    listed: Any,
) -> tuple[dict[str, tuple[str, slice | None]], int]:
    """Return key and part of each layer of a request, and the number of its hidden states.

    Tensors with the names of sites that are as wide as the residual stream are layers, others not.

    Args:
        file: the open file.
        label: file and request, for messages.
        states: keys of the hidden states by layer, or one key without a layer for all.
        of_ids: shape of the ids. Hidden states have a batch axis if the ids have one.
        d_model: number of features of each hidden state.
        listed: names of the layers along their axis, as the file states them; None for 0, 1, ...

    Raises:
        DataError: a shape or dtype is not one of hidden states, or other layers are listed.
    """
    layers, sizes, dtypes = dict[str, tuple[str, slice | None]](), set[int](), set[str]()
    for layer, key in states.items():
        shape = file.get_slice(key).get_shape()
        if layer is not None and "hook_" in layer and shape[-2:] != [of_ids[-1], d_model]:
            continue  # of heads or neurons
        dtypes.add(file.get_slice(key).get_dtype())
        n_batch, wide = of_ids[0] if len(of_ids) == 2 else 1, shape[-1] // max(1, d_model)
        has_batch_axis = len(of_ids) == 2 and shape[:-1] == of_ids
        if n_batch > 1 and not has_batch_axis:
            raise DataError(
                f"{label}: {key} has shape {tuple(shape)}, but the ids are of {n_batch:,} requests "
                f"of {of_ids[1]:,} tokens. Write (n_requests, n_tokens, d_model)."
            )
        is_wide = layer is None and len(shape) == 2 and wide > 1  # layers next to each other
        has_layers = layer is None and len(shape) == 3 and not has_batch_axis
        is_layer = len(shape) == 2 or has_batch_axis or (len(shape) == 3 and shape[0] == 1)
        if not (has_layers or is_layer) or shape[-1] != d_model * (wide if is_wide else 1):
            raise DataError(
                f"{label}: {key} has shape {tuple(shape)}; d_model of the network is {d_model}. "
                "Allowed: (n_tokens, n_layers, d_model), or (n_tokens, d_model) for each layer."
            )
        sizes.add(shape[0] if has_layers else shape[-2])
        if not (has_layers or is_wide):
            layers[layer or "0"] = (key, None)
            continue
        n_layers, width = (wide, d_model) if is_wide else (shape[1], 1)
        with suppress(ValueError, RecursionError):
            listed = json.loads(listed) if isinstance(listed, str) else listed
        listed = list(range(n_layers)) if listed is None else listed
        is_named = isinstance(listed, list) and {*map(type, listed)} <= {int, str}
        names = list(map(str, listed)) if is_named else []
        if not len(set(names)) == len(names) == n_layers:
            raise DataError(
                f"{label}: {key} has shape {tuple(shape)}, thus {counted(n_layers, 'layer')}, but "
                f"{' or '.join(ROLES['layers'])} is {listed!r}. List the name of each layer, and "
                "write the axes as (n_tokens, n_layers, d_model)."
            )
        layers |= {name: (key, slice(n * width, (n + 1) * width)) for n, name in enumerate(names)}
    if len(sizes) != 1 or len(dtypes) != 1 or not dtypes <= _DTYPES:
        raise DataError(
            f"{label}: its hidden states have {sorted(sizes)} tokens and types {sorted(dtypes)}. "
            "All layers of a request need the same floating-point type and number of tokens."
        )
    return layers, sizes.pop()
