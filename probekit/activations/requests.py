"""Hidden states that a serving engine has written, as the activations of texts.

A .safetensors file has one request, or several with their names before those of the tensors. A
request has the ids of its tokens and their hidden states, as vLLM's `extract_hidden_states` writes
them, or under other names; see `ROLES`. A text is served by a request whose ids begin with those of
the text, never by order or file name. Later tokens, which the engine generated, are not used.

read_requests  all requests of a folder
Requests       the requests that serve some texts, and the rows of these
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from probekit.activations.forward import Batch, BatchRows, ranges, row_means
from probekit.activations.given.formats import natural, reading
from probekit.amounts import counted
from probekit.data.positions import IntArray, RowPlan
from probekit.errors import DataError, MissingError
from probekit.files import inside, state_of
from probekit.provenance import digest_file, digest_json

# What a request has: accepted names of its tensors, or of entries in the metadata of its file.
ROLES = {
    "ids": ("token_ids", "prompt_token_ids", "input_ids", "tokens"),
    "states": ("hidden_states", "hidden_state", "model.layers", "layers", "layer", "activations"),
    "start": ("start", "offset", "num_computed_tokens"),  # index of the first token with states
    "prompt": ("prompt_len", "prompt_length", "num_prompt_tokens", "prompt_tokens"),
    "request": ("request_id", "req_id"),
    "layers": ("layer_ids", "eagle_aux_hidden_state_layer_ids"),  # along the axis of layers
}
_ROLE_OF = {name: role for role, names in ROLES.items() for name in names}
# The name of a request, if the file has several; the name of a tensor; the number of a layer.
_KEY = re.compile(
    rf"(?:(?P<request>.+)[./:])??(?P<name>{'|'.join(map(re.escape, _ROLE_OF))})"
    r"(?:[._](?P<layer>\d+))?"
)
_DTYPES = {"F64", "F32", "F16", "BF16"}  # of hidden states
_PICKLE = "a pickle, which could run code: write it with safetensors.torch.save_file"
_OTHER_FILES = dict.fromkeys((".pt", ".bin", ".pkl"), _PICKLE)
_OTHER_FILES[".zst"] = "compressed: unpack it with `unzstd`"
_WRITE_AGAIN = "The file may be truncated, or still being written: let the engine write it again"


@dataclass(frozen=True, eq=False)
class RequestPart:
    """Hidden states of consecutive tokens of a request, in one file.

    Attributes:
        path: the file.
        place: file and request, for messages.
        state: values that differ after the file has changed.
        name: name of the request, as the file states it; "" if it does not.
        ids: ids of the tokens of the request, or of those with hidden states, shape (n_tokens,).
        start: index of the first token with hidden states; None if it is not stated.
        n_states: number of tokens with hidden states.
        n_prompt: number of tokens of the prompt; None if it is not stated.
        layers: key of the tensor and index along its axis of layers, if it has one, by layer.
    """

    path: Path
    place: str
    state: tuple[int, int, int]
    name: str
    ids: IntArray
    start: int | None
    n_states: int
    n_prompt: int | None
    layers: Mapping[str, tuple[str, int | None]]

    @property
    def tokens(self) -> range:
        """Indices of the tokens with hidden states; empty if it is unknown which ones they are.

        With fewer states than ids and without `start`, the first tokens may be missing, which were
        in a cache, or the last one, which was sampled and never read.
        """
        is_known = self.start is not None or self.n_states >= len(self.ids)
        start = self.start or 0
        return range(start, min(start + self.n_states, len(self.ids)) if is_known else start)

    def states(self, layer: str, positions: IntArray) -> Tensor:
        """Return the hidden states of tokens in float32, shape [position d_model].

        Raises:
            DataError: the file cannot be read or has changed, or a number is not finite.
        """
        if layer not in self.layers:
            raise DataError(
                f"{self.place} has no layer {layer}; it has {', '.join(self.layers)}. Write all "
                "requests with the same layers."
            )
        key, column = self.layers[layer]
        first = self.tokens.start
        low, high = int(positions.min()) - first, int(positions.max()) + 1 - first
        with reading(self.place, _WRITE_AGAIN):
            if state_of(self.path) != self.state:
                raise DataError(f"{self.path} changed while it was read. Run the command again.")
            with safe_open(self.path, framework="pt") as file:
                tensor = file.get_slice(key)
                if column is None and len(tensor.get_shape()) == 3:  # the first axis is the batch
                    block = tensor[:, low:high][0]
                elif column is None:
                    block = tensor[low:high]
                else:
                    block = tensor[low:high, column : column + 1].flatten(1)
        found: Tensor = block[torch.from_numpy(positions - first - low)].float()
        finite = found.isfinite().all(dim=1)
        if not finite.all():
            token = int(positions[int(finite.int().argmin())])
            raise DataError(
                f"{self.place}: the hidden states of layer {layer} are NaN or infinite, first at "
                f"token {token}. Let the engine write the request again, in bfloat16 or float32."
            )
        return found


@dataclass(frozen=True, eq=False)
class Request:
    """A request: the ids of its tokens, and the parts with their hidden states in order."""

    ids: IntArray
    parts: tuple[RequestPart, ...]

    @cached_property
    def key(self) -> bytes:
        """Bytes that sort as the ids do, so that requests with a common beginning are adjacent."""
        return sortable(self.ids)

    @property
    def n_states(self) -> int:
        """Number of tokens with hidden states."""
        return sum(len(part.tokens) for part in self.parts)

    def has(self, positions: IntArray) -> bool:
        """Return whether there are hidden states at all positions."""
        covered = [np.isin(positions, part.tokens) for part in self.parts]
        return bool(np.any(covered, axis=0).all())

    def states(self, layer: str, positions: IntArray) -> Tensor:
        """Return the hidden states at positions in float32, shape [position d_model]."""
        rows = torch.empty(0)
        for part in self.parts:
            own = np.isin(positions, part.tokens)
            if own.any():
                states = part.states(layer, positions[own])
                rows = rows if len(rows) else torch.empty(len(positions), states.shape[1])
                rows[torch.from_numpy(own)] = states
        return rows


@dataclass(frozen=True, eq=False)
class Requests:
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
        """Return the requests whose ids begin with those of a text, the shortest first."""
        key = sortable(ids)
        first = bisect_left(self.all, key, key=lambda one: one.key)
        stop = bisect_right(self.all, key + b"\xff" * 8, key=lambda one: one.key)
        return self.all[first:stop]

    def choose(self, tokens: Sequence[IntArray], plan: RowPlan) -> tuple[Requests, list[int]]:
        """Return the requests with those that serve texts, and the texts that none serves.

        Args:
            tokens: the ids of every text, each of shape (n_tokens,).
            plan: the positions that rows need of each text.
        """
        needed = defaultdict[bytes, set[int]](set)
        of_position = np.repeat(plan.example, np.diff(plan.offsets))
        for example, position in zip(of_position.tolist(), plan.positions.tolist(), strict=True):
            needed[tokens[example].tobytes()].add(position)
        chosen, unserved = dict[bytes, Request](), list[int]()
        for number, ids in enumerate(tokens):
            text = ids.tobytes()
            positions = np.array(sorted(needed[text]), dtype=np.int64)
            found = (one for one in self.of_text(ids) if one.has(positions))
            request = chosen.get(text) or next(found, None)
            if request is None:
                unserved.append(number)
            else:
                chosen[text] = request
        return replace(self, chosen=chosen), unserved

    def why_unserved(self, ids: IntArray) -> str:
        """Return sentences: why no request serves a text with these ids, and what to do."""
        for request in self.of_text(ids):
            part = request.parts[0]
            return (
                f"{part.place} has hidden states for {request.n_states or part.n_states} of its "
                f"{len(request.ids):,} tokens. An engine computes none for tokens in its prefix "
                "cache: turn it off (vLLM: `enable_prefix_caching=False`) and write the requests "
                "again. If other tokens are missing, store the index of the first token with "
                "hidden states as `start`."
            )
        for request in self.all:
            place, theirs = request.parts[0].place, request.ids
            if len(ids) > 1 and np.array_equal(theirs[: len(ids) - 1], ids[1:]):
                return (
                    f"{place} has its tokens without the first one, {ids[0]}: the engine read no "
                    "beginning-of-text token. Set `tokens.bos: false`, or let the engine add it."
                )
            if np.array_equal(theirs[1 : len(ids) + 1], ids):
                return (
                    f"{place} has its tokens after one more, {theirs[0]}: the engine added a "
                    "beginning-of-text token. Set `tokens.bos: true`, or let the engine add none."
                )
            if 1 < len(theirs) < len(ids) and np.array_equal(ids[-len(theirs) :], theirs):
                return (
                    f"{place} has only its last {len(theirs):,} of {len(ids):,} tokens: chunked "
                    "prefill writes each chunk alone. Turn it off (vLLM: "
                    "`enable_chunked_prefill=False`), or write each chunk with `request_id` and "
                    "the index of its first token, `start`."
                )
            if 1 < len(theirs) < len(ids) and np.array_equal(ids[: len(theirs)], theirs):
                return (
                    f"{place} has only its first {len(theirs):,} of {len(ids):,} tokens: the "
                    "engine truncated the text, or wrote a chunk of it. Write the whole request."
                )
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
    def digest(self) -> str:
        """One digest of the contents of all files with a chosen request."""
        files = {part.path for one in self.chosen.values() for part in one.parts}
        with reading(str(self.folder), _WRITE_AGAIN):
            return digest_json(sorted(map(digest_file, files)))

    def sample(
        self, tokens: Sequence[IntArray], plan: RowPlan, n_rows: int
    ) -> tuple[dict[str, Tensor], list[list[int]], list[int]]:
        """Return hidden states of evenly spaced rows by layer, with their ids and positions.

        A row is read at its last position: the first may be equal in all texts.

        Raises:
            DataError: a file cannot be read, or a number is not finite.
        """
        last = len(plan.example) - 1
        rows = np.unique(np.linspace(0, last, min(n_rows, last + 1)).astype(int))
        texts = [tokens[number] for number in plan.example[rows]]
        at = plan.positions[plan.offsets[rows + 1] - 1]
        requests = [self.chosen[ids.tobytes()] for ids in texts]
        layers = sorted(requests[0].parts[0].layers, key=natural)
        of_layer = {
            layer: torch.cat([one.states(layer, at[n : n + 1]) for n, one in enumerate(requests)])
            for layer in layers
        }
        return of_layer, [ids.tolist() for ids in texts], at.tolist()

    def run_batches(
        self, batches: Sequence[Batch], plan: RowPlan, sites: Sequence[str], dtype: str
    ) -> Iterator[BatchRows]:
        """Yield the rows of each batch, as `forward.run_batches` does; one file is open at a time.

        Raises:
            DataError: a file cannot be read or has changed, or a number is not finite.
        """
        for batch in batches:
            counts = plan.offsets[batch.rows + 1] - plan.offsets[batch.rows]
            has_means = bool((counts > 1).any())
            values: dict[str, list[Tensor]] = {site: [] for site in sites}
            for number in np.unique(batch.member):
                own = batch.member == number
                rows, n_of_row = batch.rows[own], counts[own]
                positions = plan.positions[ranges(plan.offsets[rows], n_of_row)]
                row = torch.from_numpy(np.repeat(np.arange(len(rows)), n_of_row))
                request = self.chosen[batch.sequences[number].tobytes()]
                for site in sites:
                    picked = request.states(self.layers[site], positions)
                    if has_means:
                        picked = row_means(picked, row, torch.from_numpy(n_of_row))
                    values[site].append(picked.to(getattr(torch, dtype)))
            yield BatchRows({site: (torch.cat(parts), None) for site, parts in values.items()})


def sortable(ids: IntArray) -> bytes:
    """Return bytes whose order is that of token ids.

    >>> sortable(np.array([1, 300])) < sortable(np.array([2]))
    True
    """
    return np.asarray(ids).astype(">i8").tobytes()


def read_requests(folder: Path) -> Requests:
    """Return the requests in a folder and its subfolders, or in one file; states are read later.

    Raises:
        MissingError: there is no folder, or no file with requests.
        DataError: a file cannot be read, has no request, or its parts do not state where they are.
    """
    paths = sorted(folder.rglob("*.safetensors")) if folder.is_dir() else [folder]
    if not paths or not paths[0].is_file():
        others = sorted(path for path in folder.rglob("*") if path.suffix in _OTHER_FILES)
        found = f" {others[0]} is {_OTHER_FILES[others[0].suffix]}." if others else ""
        raise MissingError(
            f"{folder} contains no .safetensors file of requests.{found} Give the folder in which "
            "the engine writes hidden states."
        )
    parts = [part for path in paths for part in _parts_of(path, folder)]
    groups = defaultdict[tuple[str, bytes], list[RequestPart]](list)
    first = dict[str, RequestPart]()  # by name, of requests whose parts do not state where they are
    for part in parts:
        if part.name and part.start is None:
            other = first.setdefault(part.name, part)
            if not np.array_equal(other.ids, part.ids):
                raise DataError(
                    f"{other.place} and {part.path} have parts of the request {part.name}, but not "
                    "the index of the first token of each. Chunked prefill writes a part for each "
                    "chunk: turn it off (vLLM: `enable_chunked_prefill=False`), or write the "
                    "index as `start`."
                )
        is_chunk = part.start is not None and part.n_states == len(part.ids)
        if is_chunk and part.start and not part.name:
            raise DataError(
                f"{part.place} has the tokens from {part.start} of a request that it does not "
                "name. Write its name as `request_id`, so that its chunks can be joined."
            )
        of_name = part.name if is_chunk else ""  # other parts have the ids of the whole request
        groups[of_name, b"" if of_name else part.ids.tobytes()].append(part)
    requests = [one for (name, _), group in groups.items() for one in _joined(name, group)]
    order = sorted(requests, key=lambda one: (one.key, -one.n_states, str(one.parts[0].path)))
    return Requests(folder, tuple(order))


def _joined(name: str, parts: Sequence[RequestPart]) -> Iterator[Request]:
    """Yield the requests of parts with a common name, or, without it, with the same ids."""
    if name:  # the chunks of one request
        chunks = sorted(parts, key=lambda part: part.start or 0)
        stop = 0
        for part in chunks:
            if part.start != stop:
                raise DataError(
                    f"{part.place}: its chunk begins at token {part.start}, but {stop} is expected "
                    "after the chunks before it. Write all chunks of the request again."
                )
            stop += part.n_states
        ids = np.concatenate([part.ids for part in chunks])
        yield Request(ids, tuple(replace(part, ids=ids) for part in chunks))
        return
    whole = [part for part in parts if len(part.tokens) == len(part.ids) or part.start is None]
    for part in whole:
        yield Request(part.ids, (part,))
    others = sorted((part for part in parts if part not in whole), key=lambda one: one.start or 0)
    if others:
        yield Request(others[0].ids, tuple(others))


def _parts_of(path: Path, folder: Path) -> Iterator[RequestPart]:
    """Yield the requests, or parts of requests, in a file.

    Raises:
        DataError: the file cannot be read, leads out of the folder, or has no request.
    """
    place = inside(path, folder if folder.is_dir() else None)
    with reading(str(path), _WRITE_AGAIN), safe_open(place, framework="pt") as file:
        metadata = file.metadata() or {}
        stated = {_ROLE_OF[name]: text for name, text in metadata.items() if name in _ROLE_OF}
        keys: dict[str, dict[str, dict[str | None, str]]] = {}  # by request, role and layer
        names = sorted(file.keys())  # it is not a mapping
        for key in names:
            match = _KEY.fullmatch(key)
            if match is not None:
                of_request = keys.setdefault(match["request"] or "", {})
                of_request.setdefault(_ROLE_OF[match["name"]], {})[match["layer"]] = key
        complete = {name: found for name, found in keys.items() if {"ids", "states"} <= set(found)}
        if not complete:
            accepted = "; ".join(
                f"{role}: {' or '.join(ROLES[role])}" for role in ("ids", "states")
            )
            raise DataError(
                f"{path} has no request, but the tensors {', '.join(names[:5])}. "
                f"Name those of a request {accepted}."
            )
        for name, found in sorted(complete.items()):
            numbers: dict[str, Any] = {} if name else dict(stated)
            numbers |= {
                role: file.get_tensor(found[role][None]).tolist()
                for role in ("start", "prompt", "layers")
                if None in found.get(role, {})
            }
            of_ids = file.get_tensor(found["ids"][None])
            ids = of_ids.flatten().numpy().astype(np.int64)
            layers, sizes, dtypes = dict[str, tuple[str, int | None]](), set[int](), set[str]()
            for layer, key in found["states"].items():
                shape, dtype = file.get_slice(key).get_shape(), file.get_slice(key).get_dtype()
                dtypes.add(dtype)
                has_batch_axis = of_ids.ndim == 2 and shape[:-1] == list(of_ids.shape)
                if layer is None and len(shape) == 3 and not has_batch_axis:
                    listed = numbers.get("layers", range(shape[1]))
                    listed = json.loads(listed) if isinstance(listed, str) else listed
                    layers |= {str(one): (key, n) for n, one in enumerate(listed)}
                    sizes.add(shape[0])
                elif len(shape) == 2 or (len(shape) == 3 and shape[0] == 1):
                    layers[layer or "0"] = (key, None)
                    sizes.add(shape[-2])
                else:
                    raise DataError(
                        f"{path}: {key} has shape {tuple(shape)}. Allowed: (n_tokens, n_layers, "
                        "d_model), or (n_tokens, d_model) for each layer."
                    )
            if len(sizes) != 1 or len(dtypes) != 1 or not dtypes <= _DTYPES:
                raise DataError(
                    f"{path}: its hidden states have {sorted(sizes)} tokens and types "
                    f"{sorted(dtypes)}. All layers of a request need the same floating-point type "
                    "and number of tokens."
                )
            (n_states,) = sizes
            start, prompt = (numbers.get(role) for role in ("start", "prompt"))
            has_prompt = prompt is not None or found["ids"][None].endswith("prompt_token_ids")
            if n_states > len(ids) and not has_prompt:
                raise DataError(
                    f"{path} has hidden states of {n_states:,} tokens, but {len(ids):,} ids. "
                    "Write the ids of all tokens, or those of the prompt as `prompt_token_ids`."
                )
            yield RequestPart(
                path=place,
                place=f"{path}: {name}" if name else str(path),
                state=state_of(place),
                name="" if name.isdecimal() else name or str(numbers.get("request", "")),
                ids=ids,
                start=None if start is None else int(start),
                n_states=n_states,
                n_prompt=None if prompt is None else int(prompt),
                layers=layers,
            )
