"""Identification of activations of other libraries: which tensor of a network an array is.

A few rows are computed again from their tokens and compared with every tensor of the same width.
Differences are measured in standard deviations of a feature over the rows, so that the few huge
features that all layers of a deep network share do not hide which layer it is. The error that the
precision of an array explains is measured too: by a second pass in that precision, which also
rounds the residual stream as other libraries do.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from math import inf, nan, prod
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probekit.amounts import counted
from probekit.errors import ConfigError, DataError, check_ordered
from probekit.lazy_rows import as_array
from probekit.model.families.table import in_dtype, load_model
from probekit.model.network import Network
from probekit.model.passes.context import select_positions
from probekit.model.passes.inputs import pad
from probekit.model.passes.taps import Tap
from probekit.model.sites.catalogue import (
    DIFFERS,
    UNVERIFIED,
    VERIFIED,
    component_of,
    general_name,
    layer_of,
)
from probekit.model.text.tokenizer import Tokenizer

FINAL_NORM, LOGITS = "after the final norm", "logits"
# An array is a tensor if its error, that of its worst row and that of its worst feature are at most
# this many times those of a pass in its precision. Two passes that round independently differ by a
# factor of up to 2; another tensor by a factor of 10 or more.
FACTOR = 4.0
CLEARER = 2.0  # the error of every other tensor is at least this many times larger
FEWEST_TEXTS = 4  # that differ up to the position
_DIRECTED = 4.0  # times as concentrated as errors of a pass: an edit; right tensors are up to 3.5
_ALONG = 0.3  # part of the errors along one tensor: an edit, if those of a pass have not as much
_FEWEST_FEATURES = 16  # of a tensor whose errors can be concentrated
_PRECISIONS = (torch.float32, torch.float16, torch.bfloat16)  # from high to low
_EXPLAINED = 0.7  # a change explains an array if it leaves at most this part of the error
_NUMBERED = re.compile(r"(?:model\.|transformer\.)?(?:layers?|blocks?|h)?[._ ]?(\d{1,4})")
_EQUAL = 1e-4  # tensors with a smaller difference are equal by construction
_SMALLEST = 1e-5  # error that float32 explains even where its own pass has none
_TOKENS = 2048  # of a pass, unless a text is longer
_NUMBERS = 2**24  # compared at once
_SHIFTS = (-1, 0, 1)  # positions relative to that of a row
_NORMS = ("ln1", "ln1_post", "ln2", "ln2_post")  # in the order of their modules
_BEFORE_NORM = {"ln1_post": "hook_attn_out", "ln2_post": "hook_mlp_out"}
_SCALES = [f"blocks.{{l}}.{norm}.hook_scale" for norm in _BEFORE_NORM]
_STREAM, _PARTS = ("resid_pre", "resid_mid", "resid_post"), ("attn_out", "mlp_out")
_PADDED = (
    "only {} of {} rows, the longest, are those of {}, as in padded batches: with padding on the "
    "right, index -1 is padding; on the left, a model needs mask and positions without padding"
)
_DEFECTS = {  # by the components of the name and of the tensor
    **dict.fromkeys(product(_STREAM, _PARTS), "one residual connection is missing"),
    ("resid_post", "resid_mid"): "the output of the MLP is not added",
    ("resid_mid", "resid_pre"): "the output of attention is not added",
    ("resid_mid", "resid_post"): "the output of the MLP is added already",
    ("resid_pre", "resid_mid"): "the output of attention is added already",
}


@dataclass(frozen=True)
class Identified:
    """Identity of one array.

    Attributes:
        name: the given name.
        site: the tensor: a site such as `blocks.12.hook_mlp_out`, or words such as "after the final
            norm"; "" if none fits.
        sentence: what they are, what is wrong with them, and how certain it is.
        label: `verified as SITE`; `differs` if they are not the tensor of the name, or no tensor;
            `unverified` if the rows do not decide.
        error: root mean square difference from `site`, or from the nearest tensor, in standard
            deviations of each feature over the rows.
        expected: the error that the precision of the activations explains.
        runner_up: the nearest other tensor; "" if there is none.
        runner_up_error: its error.
        names: all names of the tensor `site`, as sites that are equal by construction have several.
    """

    name: str
    site: str
    sentence: str
    label: str
    error: float
    expected: float
    runner_up: str
    runner_up_error: float
    names: tuple[str, ...] = ()


class _Reading(NamedTuple):
    """Token ids of the drawn rows, the position of each, and how they differ from the given."""

    ids: list[list[int]]
    at: list[int]
    change: str = ""

    @property
    def n_texts(self) -> int:
        """Number of rows that differ up to their positions."""
        return len({tuple(ids[: at + 1]) for ids, at in zip(self.ids, self.at, strict=True)})


class _Stack(NamedTuple):
    """Tensors of one width by name, shape [n_tensors n_rows n_features]."""

    names: list[str]
    rows: Tensor


class _Precision(NamedTuple):
    """What a precision explains of the tensors of one width.

    Attributes:
        dtype: the precision.
        errors: differences of a pass in it, shape [n_tensors n_rows n_features].
        expected: their `_errors`, shape [n_tensors 3].
    """

    dtype: torch.dtype
    errors: Tensor
    expected: Tensor


@torch.inference_mode()
def identify(
    arrays: Mapping[str, Any],
    tokens: Sequence[Sequence[int]] | Sequence[str],
    model: Network | str | Path,
    *,
    positions: int | Sequence[int] = -1,
    n_rows: int = 32,
    seed: int = 0,
    numbers: Sequence[int] | None = None,
) -> dict[str, Identified]:
    """Return which tensor of a network each array of activations is.

    Up to `n_rows` rows are computed again, in float32, and compared with each site of the same
    width, with the outputs of norms, and with sums of sublayers. If none fits, they are compared at
    the neighbouring positions, with and without a beginning-of-text token, with rows in another
    order, times a constant, and plus one vector; a tensor that fits only so `differs`.

    A name that is a site must be that site. `layer_3`, and other names with only a number, must be
    the residual stream before or after block 3, counted alike for all arrays. Any other name is
    verified as the tensor that it is.

    Args:
        arrays: mapping from names to arrays of shape (n_rows, n_features) or (n_rows, n_heads,
            d_head), NumPy or torch, of any floating-point type.
        tokens: token ids of each row as the other library read them, beginning-of-text included if
            it had one; or the text of each row, for a model given by name.
        model: a network, or the name or folder of one.
        positions: index of the token of each row, or one for all; -1 is the last.
        n_rows: largest number of rows that are compared.
        seed: seed of the draw.
        numbers: number of each row in messages; None for their index.

    Raises:
        ConfigError: `arrays` is no mapping, there are texts but no tokenizer, or `n_rows` or
            `positions` is invalid.
        DataError: there are no rows, arrays and tokens have different numbers of rows, no tensor
            has the width of an array, a value is not a finite real number, or a position or an id
            does not exist.

    >>> model = load_model("mini")
    >>> texts = ["The keys to the cabinet", "A letter from the editors", "Two dogs", "It rained"]
    >>> ids = [Tokenizer.from_pretrained("mini").encode(text, bos=False).ids for text in texts]
    >>> sites = [("mlp_out", 2)]
    >>> caches = [model.run_with_cache(torch.tensor(one[None]), sites)[1] for one in ids]
    >>> rows = [cache["mlp_out", 2][0, -1] for cache in caches]
    >>> found = identify({"blocks.2.hook_resid_post": torch.stack(rows)}, texts, "mini")
    >>> found["blocks.2.hook_resid_post"].sentence.partition(";")[0]
    'blocks.2.hook_mlp_out, not hook_resid_post: one residual connection is missing'
    """
    network = model if isinstance(model, Network) else load_model(model)
    check_ordered("tokens", tokens)
    n = len(tokens)
    if not hasattr(arrays, "items"):
        raise ConfigError(
            f"arrays is of type {type(arrays).__name__}. Give a mapping from names to arrays."
        )
    if n < 1:
        raise DataError("There are no rows to compare. Give activations and tokens of some rows.")
    if n_rows < 1:
        raise ConfigError(f"n_rows is {n_rows}. Give the number of rows to compare, at least 1.")
    drawn = np.sort(np.random.default_rng(seed).permutation(n)[:n_rows])
    given = {str(name): _drawn(str(name), values, n, drawn) for name, values in arrays.items()}
    places = as_array(positions)
    if places.dtype.kind not in "iu" or places.shape not in ((), (n,)):
        raise ConfigError(
            f"positions are {positions!r:.60}, for {counted(n, 'row')}. Give an integer, or one "
            "for each row."
        )
    at = np.broadcast_to(places, (n,))[drawn].tolist()
    found: dict[str, Identified] = {}
    numbers = drawn.tolist() if numbers is None else [numbers[row] for row in drawn]
    for reading in _readings([tokens[row] for row in drawn], at, model, numbers):
        widths = {rows.shape[1] for rows in given.values()}
        with_heads = {general_name(name.partition("[")[0]) for name in given if "[" in name}
        tensors = _Tensors(network, reading, widths, with_heads)
        results = {name: _identified(name, rows, tensors) for name, rows in given.items()}
        found = max((found, results), key=_n_verified)
        if _n_verified(found) == len(given):
            break
    return _counted_alike(found)


def _counted_alike(found: Mapping[str, Identified]) -> dict[str, Identified]:
    """Return identities after a check that all numbers count streams before, or all after, blocks.

    Those that count as the fewer do `differ`; if as many count each way, all do.
    """
    ways = dict[str, str]()
    for name, one in found.items():
        number = _NUMBERED.fullmatch(name)
        if number is not None and one.label.startswith(VERIFIED):
            is_after = f"blocks.{number[1]}.hook_resid_post" in one.names
            ways[name] = "after" if is_after else "before"
    counts, checked = Counter(ways.values()), dict(found)
    for name, way in ways.items():
        other = next((other for other, its in ways.items() if its != way), "")
        if other and counts[way] <= counts[ways[other]]:
            text = f"{name} counts the streams {way} blocks, unlike {other}"
            sentence = f"{found[name].site}; {text}; {found[name].sentence.partition('; ')[2]}"
            checked[name] = replace(found[name], label=DIFFERS, sentence=sentence)
    return checked


def _n_verified(found: Mapping[str, Identified]) -> int:
    return sum(one.label.startswith(VERIFIED) for one in found.values()) if found else -1


def _drawn(name: str, values: Any, n: int, drawn: NDArray[np.int64]) -> Tensor:
    """Return the drawn rows of an array as float32, shape [n_rows n_features]."""
    values = values if isinstance(values, Tensor) else as_array(values)
    is_real = values.is_floating_point() if isinstance(values, Tensor) else values.dtype.kind == "f"
    if not is_real or values.ndim not in (2, 3):
        raise DataError(
            f"{name} has the shape {tuple(values.shape)} and numbers of type {values.dtype}. Give "
            "floating-point numbers, shape (n_rows, n_features) or (n_rows, n_heads, d_head)."
        )
    if len(values) != n:
        raise DataError(
            f"{name} has {counted(len(values), 'row')}, but there are tokens of {n:,}. Give the "
            "tokens of each row."
        )
    rows = values[torch.from_numpy(drawn)] if isinstance(values, Tensor) else values[drawn]
    rows = torch.as_tensor(rows).detach().to("cpu", torch.float32).flatten(1)
    # Of all rows, and of those drawn also after the conversion.
    is_finite = (torch if isinstance(values, Tensor) else np).isfinite
    axes = (1, 2)[: values.ndim - 1]
    starts = range(0, n, step := max(1, _NUMBERS // max(1, rows.shape[1])))
    flags = [is_finite(values[at : at + step]).all(axes).tolist() for at in starts]
    finite = np.concatenate(flags)
    finite[drawn] &= rows.isfinite().all(1).numpy()
    if not finite.all():
        raise DataError(
            f"{name} contains numbers that are NaN or infinite, first in row {finite.argmin()} "
            f"({counted(n - finite.sum(), 'such row')}). Compute it again."
        )
    return rows


def _readings(
    rows: Sequence[Any], at: Sequence[int], model: Network | str | Path, numbers: Sequence[int]
) -> Iterator[_Reading]:
    """Yield the token ids and positions of rows; those of texts without BOS, then with it.

    Raises:
        ConfigError: there are texts but no tokenizer.
        DataError: a position does not exist.
    """
    texts = [row for row in rows if isinstance(row, str)]
    if texts and (isinstance(model, Network) or len(texts) < len(rows)):
        raise ConfigError(
            "Texts need the tokenizer of a model. Give the name or folder of the model, or the "
            "token ids of each row."
        )
    if len(texts) == len(rows):
        tokenizer = Tokenizer.from_pretrained(cast(str, model))
        ids = [tokenizer.encode(text, bos=False).ids.tolist() for text in texts]
    else:
        ids = [integers(row, f"row {number}") for row, number in zip(rows, numbers, strict=True)]
    places = []
    for row, tokens, place in zip(numbers, ids, at, strict=True):
        index = place + (len(tokens) if place < 0 else 0)
        if not 0 <= index < len(tokens):
            raise DataError(
                f"Row {row} has no token at position {place}: it has "
                f"{counted(len(tokens), 'token')}."
            )
        places.append(index)
    yield (reading := _Reading(ids, places))
    if texts:
        with suppress(ConfigError):  # a vocabulary without BOS
            yield _with_bos(reading, tokenizer.bos_id, " with BOS")


def integers(value: Any, where: str, n: int | None = None) -> list[int]:
    """Return integers that are given as numbers, or as text with spaces or as a JSON list.

    Args:
        value: the integers.
        where: row, for the message.
        n: the number of integers; None for at least one.

    Raises:
        DataError: there are other values, such as fractions, or another number of them.

    >>> integers("464 8251", "row 0"), integers(np.int64(-1), "row 0", 1)
    ([464, 8251], [-1])
    """
    listed = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, str):
        text = value if value.strip().startswith("[") else f"[{','.join(value.split())}]"
        with suppress(ValueError, RecursionError):
            listed = json.loads(text)
    listed = listed if isinstance(listed, list | tuple) else [listed]
    numbers: list[Any] = [
        one.item() if isinstance(one, np.generic | Tensor) else one for one in listed
    ]
    if {*map(type, numbers)} != {int} or n not in (None, len(numbers)):
        what = (
            "is no index: give one integer" if n else "are not integers: give 464 8251, or a list"
        )
        raise DataError(f"{where}: {str(value)[:60]!r} {what}.")
    return numbers


def _with_bos(reading: _Reading, bos: int, change: str) -> _Reading:
    """Return rows with BOS before them."""
    return _Reading([[bos, *row] for row in reading.ids], [at + 1 for at in reading.at], change)


class TokenErrors(NamedTuple):
    """Errors of tokens at a site, in the units of `_errors`, and those that a precision explains.

    Attributes:
        errors: error of each token, shape [n_rows n_places].
        largest: largest error that the precision explains.
        median: median error that it explains.
    """

    errors: Tensor
    largest: float
    median: float

    @property
    def is_rounding(self) -> bool:
        """Whether all errors, and their median, are explained; not if one is NaN."""
        worst, median = self.errors.max().item(), self.errors.median().item()
        return worst <= FACTOR * self.largest and median <= FACTOR * self.median


@torch.inference_mode()
def compare_tokens(
    arrays: Mapping[str, Tensor],
    ids: Sequence[Sequence[int]],
    places: NDArray[np.int64],
    network: Network,
) -> dict[str, TokenErrors]:
    """Return the errors of tokens at each site, of the precision that explains them if one does.

    Args:
        arrays: activations by site, shape [n_rows n_places n_features].
        ids: token ids of each row.
        places: positions in each row, shape (n_rows, n_places); one may be repeated.
        network: the network, which computes them again.
    """
    widths = {array.shape[2] for array in arrays.values()}
    last = _Reading([list(one) for one in ids], places.max(1).tolist())
    tensors = _Tensors(network, last, widths, set(), only=list(arrays))
    computed = dict[torch.dtype | None, dict[str, Tensor]]()

    def at_sites(dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        if dtype not in computed:
            stacks = list(tensors.computed(last, torch.from_numpy(places), dtype))
            computed[dtype] = {
                name: torch.stack([place[width].rows[number] for place in stacks], 1)
                for width in widths
                for number, name in enumerate(stacks[0][width].names)
            }
        return computed[dtype]

    found, exact = dict[str, TokenErrors](), at_sites()
    for site, given in arrays.items():
        rows = exact[site].flatten(0, 1)[None]
        errors = _mean_squares(given.flatten(0, 1), rows)[0].sqrt().reshape(places.shape)
        for dtype in _PRECISIONS[_PRECISIONS.index(_dtype_of(given)) :]:
            usual = at_sites(dtype)[site].flatten(0, 1)
            usual = torch.where(usual.isfinite(), usual, rows[0])
            usual = _mean_squares(usual, rows)[0].sqrt().clamp(min=_SMALLEST)
            one = TokenErrors(errors, usual.max().item(), usual.median().item())
            found.setdefault(site, one)
            if one.is_rounding:
                found[site] = one
                break
    return found


class _Tensors:
    """The tensors of a network at some positions of texts, by name, computed when needed.

    Args:
        network: the network.
        reading: token ids and positions of the rows.
        widths: number of features of the tensors that are kept.
        with_heads: sites, by their name with `{l}`, with single heads that are kept even if they
            are computed only on request.
        only: sites that are kept; empty for all tensors.
    """

    def __init__(
        self,
        network: Network,
        reading: _Reading,
        widths: set[int],
        with_heads: set[str],
        only: Sequence[str] = (),
    ) -> None:
        self.network, self.reading, self.widths = network, reading, widths
        self.with_heads, self.only = with_heads, only
        self._exact = in_dtype(network, torch.promote_types(network.dtype, torch.float32))
        self._precisions: dict[torch.dtype, dict[int, _Precision]] = {}

    @cached_property
    def exact(self) -> dict[int, _Stack]:
        """The tensors of all rows by width."""
        (found,) = self.computed(self.reading, _moved(self.reading, (0,)))
        return found

    def precision(self, width: int, dtype: torch.dtype) -> _Precision:
        """Return the errors that a dtype explains at the tensors of a width, from a pass in it.

        The pass rounds the residual stream to the dtype too or, for float32, to 16 binary digits,
        so that its error is that of other libraries, which sum in another order. Where it
        overflows, the error is that of rounding the tensor; where this overflows too, there is
        none.
        """
        if dtype not in self._precisions:
            (computed,) = self.computed(self.reading, _moved(self.reading, (0,)), dtype)
            found = self._precisions[dtype] = dict[int, _Precision]()
            for size, (_, exact) in self.exact.items():
                rows = computed[size].rows
                for other in (_rounded(exact, dtype), exact):
                    rows = torch.where(rows.isfinite(), rows, other)
                expected = _errors(rows, exact).clamp(min=_SMALLEST)
                found[size] = _Precision(dtype, rows - exact, expected)
        return self._precisions[dtype][width]

    @cached_property
    def elsewhere(self) -> list[tuple[str, dict[int, _Stack], Tensor]]:
        """Tensors of other readings of the rows: what differs, tensors, and rows that have them."""
        found = []
        for reading in self._other_readings():
            ends = torch.tensor([len(ids) for ids in reading.ids])
            of_shifts = self.computed(reading, _moved(reading, _SHIFTS))
            for shift, of_shift in zip(_SHIFTS, of_shifts, strict=True):
                place = torch.tensor(reading.at) + shift
                exists = (place >= 0) & (place < ends)
                moved = f"one position {'earlier' if shift < 0 else 'later'} than stated"
                change = ", ".join(filter(None, (reading.change, moved if shift else "")))
                if change and 2 * int(exists.sum()) >= len(exists):
                    found.append((change, of_shift, exists))
        return found

    def _other_readings(self) -> Iterator[_Reading]:
        """Yield the rows as they are, without their first token if it is BOS, and with BOS."""
        ids, at = self.reading.ids, self.reading.at
        yield _Reading(ids, at)
        bos, first = self.network.config.bos_token_id, ids[0][0]
        has_bos = all(row[0] == first and len(row) > 1 for row in ids)
        if has_bos and (not isinstance(bos, int) or first == bos):  # any token, if bos is unknown
            change = "BOS missing: computed without the first token, positions are shifted by one"
            yield _Reading([row[1:] for row in ids], [place - 1 for place in at], change)
        if isinstance(bos, int) and max(map(len, ids)) < self.network.config.n_ctx:
            change = (
                "BOS added: computed with a token before the text, positions are shifted by one"
            )
            yield _with_bos(self.reading, bos, change)

    def computed(
        self, reading: _Reading, places: Tensor, dtype: torch.dtype | None = None
    ) -> Iterator[dict[int, _Stack]]:
        """Yield the tensors by width for each column of positions, shape [n_rows n_columns].

        Values at positions outside a text are those of another position.
        """
        network = self._exact
        if dtype not in (None, torch.float32):
            network = in_dtype(self.network, dtype)
        shapes = self.shapes
        names = [site for site in self.only or network.sites if general_name(site) in shapes]
        in_stream = {row.name for row in network.sites.rows if row.in_stream and dtype is not None}
        ends = (places.amax(1) + 1).clamp(min=1)  # later tokens change nothing
        order = ends.argsort()
        kept: dict[str, list[Tensor]] = {site: [] for site in names}

        def keep(at: Tensor, site: str, value: Tensor) -> Tensor:
            """Keep a tensor at some positions; return it, rounded if it is part of the stream."""
            general = general_name(site)
            if general in in_stream:
                value = _rounded(value, dtype)
            if site in kept:
                kept[site].append(select_positions(value, at.to(value.device)).flatten(2).cpu())
            return value

        passes: list[tuple[Tensor, Tensor, Tap, None]] = []
        for batch in torch.split(order, max(1, _TOKENS // int(ends.max()))):
            ids, mask = pad([np.array(reading.ids[row][: ends[row]]) for row in batch], "right")
            at = places[batch].clamp(0, ids.shape[1] - 1)
            passes.append((ids, mask, partial(keep, at), None))
        streams = [site for site in network.sites if general_name(site) in in_stream]
        requested = list(dict.fromkeys((*names, *streams)))
        if names:
            list(network.run_together(passes, requested))
        values = {site: torch.cat(parts)[order.argsort()].float() for site, parts in kept.items()}
        found: dict[str, Tensor] = {}
        for site, value in values.items():
            shape = shapes[general_name(site)]
            if prod(shape) in self.widths:
                found[site] = value
            if len(shape) == 2 and shape[1] in self.widths:
                axis = network.sites.describe(site).axes[2].removeprefix("n_").removesuffix("s")
                heads = value.reshape(*value.shape[:2], *shape).unbind(2)
                found |= {f"{site}[{axis}={head}]": one for head, one in enumerate(heads)}
        if network.config.d_model in self.widths and not self.only:
            found |= self._outside(values)
        for index in range(places.shape[1]):
            stacks: dict[int, _Stack] = {}
            for width in self.widths:
                names = [name for name, value in found.items() if value.shape[2] == width]
                if names:
                    rows = torch.stack([found[name][:, index] for name in names])
                    stacks[width] = _Stack(names, rows if dtype is None else _rounded(rows, dtype))
            yield stacks

    def _outside(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors that are no sites, but that other libraries return: norms and sums.

        Args:
            values: rows of the sites, shape [n_rows n_shifts n_features].
        """
        network, config, found = self.network, self.network.config, dict[str, Tensor]()
        # Sites of norms in the order of the forward pass, as their modules are.
        norms = [norm for norm in _NORMS if f"blocks.0.{norm}.hook_normalized" in values]
        for layer in range(config.n_layers):
            block = f"blocks.{layer}."
            with network.weights_of(block[:-1]):
                modules = network.norms_of(layer) if norms else ()
                for norm, module in zip(norms, modules, strict=True):
                    normalized = values[f"{block}{norm}.hook_normalized"]
                    after = normalized * module.gain.cpu().float()
                    if module.bias is not None:
                        after += module.bias.cpu().float()
                    found[f"{block}{norm} after gain and bias"] = after
                    if norm in _BEFORE_NORM:
                        before = normalized * values[f"{block}{norm}.hook_scale"]
                        found[f"{block}{_BEFORE_NORM[norm]} before its norm"] = before
            parts = [values.get(f"{block}hook_{one}") for one in (*_PARTS, "resid_pre")]
            attn, mlp, resid = parts
            if attn is None or mlp is None or resid is None:  # not proven
                continue
            found[f"{block}hook_attn_out + hook_mlp_out"] = attn + mlp
            found[f"{block}hook_resid_pre + hook_mlp_out"] = resid + mlp
            found[f"{block}hook_resid_pre + hook_attn_out"] = resid + attn
        last = values[f"blocks.{config.n_layers - 1}.hook_resid_post"]
        if not network.has_lens:
            return found
        normed = network.final_norm(last)
        found[FINAL_NORM] = normed.cpu().float()
        if config.d_vocab in self.widths:
            found[LOGITS] = network.unembed(normed.to(network.dtype)).cpu().float()
        return found

    @cached_property
    def shapes(self) -> dict[str, list[int]]:
        """Return the shape of a row at each site that is computed, by its name with `{l}`."""
        sizes, shapes = self.network.axis_sizes, dict[str, list[int]]()
        is_stream = self.network.config.d_model in self.widths
        for row in self.network.sites.rows:
            if row.axes[1] != "pos":  # patterns and scores
                continue
            shape = [sizes[axis] for axis in row.axes[2:]]
            has_heads = not row.on_request or row.name in self.with_heads
            is_head = shape[-1] in self.widths and has_heads
            # The scale of a norm after a sublayer gives the output of the sublayer.
            is_scale = is_stream and row.name in _SCALES
            if prod(shape) in self.widths or is_head or is_scale:
                shapes[row.name] = shape
        return shapes


def _moved(reading: _Reading, shifts: Sequence[int]) -> Tensor:
    """Return the positions of all rows, moved by each shift, shape [n_rows n_shifts]."""
    return torch.tensor(reading.at)[:, None] + torch.tensor(shifts)


def _rounded(value: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return a tensor rounded to half precision or, for float32, to 16 binary digits."""
    if dtype != torch.float32:
        return value.to(dtype).to(value.dtype)
    split = value * 257
    return split - (split - value)


def _errors(given: Tensor, rows: Tensor) -> Tensor:
    """Return the errors of arrays from tensors: of all numbers, the worst row, the worst feature.

    An error is the root mean square of differences in units of the standard deviation of a feature
    over the rows. The unit is at least a hundredth of the mean of the feature and a tenth of the
    median unit of all features that are not 0 in all rows: features that hardly vary decide
    nothing, such as neurons that never fire.

    Args:
        given: the arrays, shape [n_tensors n_rows n_features], or one array for all tensors.
        rows: the tensors, shape [n_tensors n_rows n_features].

    Returns:
        Errors, shape [n_tensors 3].
    """
    by_row, by_feature = _mean_squares(given, rows)
    return torch.stack([by_row.mean(1), by_row.amax(1), by_feature.amax(1)], 1).sqrt()


def _mean_squares(given: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean `_squares`, shape [n_tensors n_rows] and [n_tensors n_features]."""
    by_row, by_feature, step = [], [], max(1, _NUMBERS // rows[0].numel())
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        squares = _squares(given if given.ndim == 2 else given[part], rows[part])
        by_row.append(squares.mean(2))
        by_feature.append(squares.mean(1))
    return torch.cat(by_row), torch.cat(by_feature)


def _squares(given: Tensor, rows: Tensor) -> Tensor:
    """Return squared differences in the units of `_errors`, shape [n_tensors n_rows n_features]."""
    unit = torch.maximum(rows.std(1, keepdim=True), 0.01 * rows.mean(1, keepdim=True).abs())
    varying = unit.masked_fill(unit == 0, nan).nanmedian(2, keepdim=True).values
    least = 0.1 * varying.nan_to_num()
    unit = torch.maximum(unit, least).clamp(min=torch.finfo(unit.dtype).tiny)
    return ((given - rows) / unit).square()


def _is_rounding(errors: Tensor, usual: Tensor, tensors: Tensor) -> bool:
    """Return whether errors are like those of rounding, which are in many directions.

    A vector that is added to all rows or to some, as in steering, gives errors in one or few
    directions; a factor, or a part of another tensor, gives errors along a tensor. How concentrated
    errors are is the sum of squares of the eigenvalues of their Gram matrix, over the square of
    their sum: 1 for one direction. It is compared with that of independent errors and of a pass in
    the precision, whose errors in the first token reach all rows through attention.

    Args:
        errors: what the array differs by from the tensor, shape [n_rows n_features].
        usual: errors of a pass in the precision at the tensor, of that shape.
        tensors: the tensors of the width, shape [n_tensors n_rows n_features].
    """
    n_rows, n_features = errors.shape
    squares = usual.square().mean(0)  # of each feature, and uncertain if the rows are few
    typical = squares[squares > 0].median() if bool(squares.any()) else torch.ones(())
    weight = ((n_rows + 8) / (n_rows * squares / typical + 8)).sqrt()
    lengths = (n_rows * tensors.var(1, correction=0) @ weight.square()).sqrt()

    def concentrated(errors: Tensor) -> Tensor:
        """Return the sum of squares over the square of the sum, and the part along a tensor."""
        scaled = errors * weight
        gram, centred = scaled @ scaled.T, scaled - scaled.mean(0)
        along = tensors.flatten(1) @ (centred * weight).flatten() / (lengths * centred.norm())
        share = gram.square().sum() / gram.trace().square()
        return torch.stack([share, along.nan_to_num(0, 0, 0).square().max()]).nan_to_num(0)

    least = torch.tensor([_DIRECTED * (1 / n_rows + 1 / n_features), _ALONG])
    limit = torch.maximum(least, _DIRECTED * concentrated(usual))
    return bool((concentrated(errors) <= limit).all())


def _fits(
    given: Tensor, rows: Tensor, index: int, error: float, precision: _Precision, drawn: Tensor
) -> bool:
    """Return whether an array differs from a tensor only by rounding, if its error is small enough.

    Args:
        given: the array, shape [n_rows n_features].
        rows: the tensors, shape [n_tensors n_rows n_features].
        index: number of the tensor.
        error: error of the array from it.
        precision: a precision: that of the array, or one in which it may have been computed.
        drawn: which of the rows of `precision` these are, shape [n_drawn].
    """
    tensor, usual = rows[index], precision.expected[index, 0].item()
    if not bool(tensor.to(precision.dtype).isfinite().all()):
        return False  # what the precision cannot hold was never stored
    is_small = 2 * error < usual
    if _dtype_of(given) != precision.dtype:
        is_small = False  # rounding is in all rows and features
        squares = _squares(given, tensor[None])[0]
        by_feature = squares.mean(0)[tensor.std(0) > 0]  # neurons that never fire have none
        if not len(by_feature):
            return False
        least = torch.minimum(squares.mean(1).min(), by_feature.quantile(0.1)).sqrt()
        if least <= 0.1 * usual:
            return False
    if is_small or given.shape[1] < _FEWEST_FEATURES:
        return True
    return _is_rounding(given - tensor, precision.errors[index][drawn], rows)


def _dtype_of(rows: Tensor) -> torch.dtype:
    """Return the dtype that holds all numbers: bfloat16, float16 or else float32.

    >>> _dtype_of(torch.tensor([1.5])), _dtype_of(torch.tensor([1.001]).half().float())
    (torch.bfloat16, torch.float16)
    """
    exact = (dtype for dtype in _PRECISIONS[::-1] if torch.equal(rows.to(dtype).float(), rows))
    return next(exact)


def _claims(name: str, network: Network) -> list[str]:
    """Return the sites that a name may mean; none if it is the name of no site."""
    # Also a site that the network does not have, such as one of a block after the last.
    is_site = name.startswith(("blocks.", "hook_", "ln_final.")) or name == LOGITS
    if is_site or name.partition("[")[0] in network.sites:
        return [name]
    if (layer := _NUMBERED.fullmatch(name)) is None:
        return []
    after, before = f"blocks.{layer[1]}.hook_resid_post", f"blocks.{layer[1]}.hook_resid_pre"
    return [after, before, f"blocks.{int(layer[1]) - 1}.hook_resid_post"]


def _identified(name: str, given: Tensor, tensors: _Tensors) -> Identified:
    """Return which of the tensors the rows of an array are."""
    width, config = given.shape[1], tensors.network.config
    claims, problem = _claims(name, tensors.network), ""
    if claims and "[neuron=" in name:
        problem = f"one feature is too few: give all features of {name.partition('[')[0]}"
    elif width not in tensors.exact:
        raise DataError(
            f"{name} has {counted(width, 'feature')}, but no tensor of this {config.TITLE} has: "
            f"d_model is {config.d_model:,}, d_mlp {config.d_mlp:,}, d_head {config.d_head:,}. "
            "Name the model that computed the activations."
        )
    elif (n := tensors.reading.n_texts) < FEWEST_TEXTS:
        problem = f"{counted(n, 'different text')} up to the position: give {FEWEST_TEXTS} or more"
    elif bool((given == given[0]).all()):
        problem = "all compared rows are equal: give rows of different texts"
    if problem:
        return Identified(name, "", problem, UNVERIFIED, inf, inf, "", inf)
    names, rows = tensors.exact[width]
    errors, dtype, every = _errors(given, rows), _dtype_of(given), torch.ones(len(given)).bool()
    nearest = int(errors[:, 0].argmin())
    # Numbers may have been computed in a lower precision, or be sums of parts in it.
    precisions = list[_Precision]()
    fits, error = False, errors[nearest, 0].item()
    for lower in _PRECISIONS[_PRECISIONS.index(dtype) :]:
        if not fits:
            precisions.append(one := tensors.precision(width, lower))
            is_near = bool((errors[nearest] <= FACTOR * one.expected[nearest]).all())
            fits = is_near and _fits(given, rows, nearest, error, one, every)
    used = precisions[-1 if fits else 0]
    usual = used.expected[nearest, 0].item()
    is_same = _errors(rows[nearest], rows)[:, 0] <= _EQUAL
    same = tuple(one for one, is_one in zip(names, is_same, strict=True) if is_one)
    site = min(same, key=lambda one: _rank(one, claims))
    others = errors[:, 0].masked_fill(is_same, inf)
    second = others.min().item()
    runner_up = names[int(others.argmin())] if second < inf else ""
    precision, errors_of = (str(one).removeprefix("torch.") for one in (dtype, used.dtype))
    if used.dtype != dtype:
        precision += f" numbers with errors like those of {errors_of}"
    is_usual = error <= FACTOR * usual
    relation = "as expected of" if is_usual else f"{error / usual:,.0f} times that of"
    facts = [f"{precision}: relative error {_percent(error)}, {relation} its precision"]
    facts[0] += f" (about {_percent(usual)})"
    facts += [f"runner-up {runner_up} with {_percent(second)}"] if runner_up else []

    def result(label: str, site: str, *text: str) -> Identified:
        sentence = "; ".join([*text, *facts])
        others = same if site in same else ()
        return Identified(name, site, sentence, label, error, usual, runner_up, second, others)

    if fits and second < CLEARER * error:
        return result(
            UNVERIFIED, site, f"{site} or {runner_up}, which are too similar to distinguish"
        )
    if fits and (not claims or site in claims):
        return result(f"{VERIFIED} {site}", site, site + tensors.reading.change)
    if fits:
        return result(DIFFERS, site, _contrast(name, site, claims) + tensors.reading.change)
    changed, site, text = _explained(name, given, tensors, precisions, claims)
    if site:
        error, facts = changed, [f"{precision}: relative error {_percent(changed)}"]
    edited = ", but its difference is no rounding" if is_usual else ""
    return result(DIFFERS, site, text or f"matches no tensor; nearest: {names[nearest]}{edited}")


def _explained(
    name: str,
    given: Tensor,
    tensors: _Tensors,
    precisions: Sequence[_Precision],
    claims: Sequence[str],
) -> tuple[float, str, str]:
    """Return error, tensor and description of an array that matches no tensor.

    The tensor is "" if only some rows or features are one, the description if not even these are.
    """
    names, rows = tensors.exact[given.shape[1]]
    most, tried = _EXPLAINED * _errors(given, rows)[:, 0].min().item(), []
    for changes, drawn, changed in _changed(given, tensors):
        some = given[drawn]
        errors = _errors(some, changed)
        for one in precisions:
            near = (errors <= FACTOR * one.expected).all(1) & (errors[:, 0] <= most)
            for index in near.nonzero()[:, 0].tolist():
                error = errors[index, 0].item()
                if _fits(some, changed, index, error, one, drawn):
                    tried.append((error, names[index], changes[index]))
    if tried:
        best = min(tried)[0]
        close = [one for one in tried if one[0] <= 1.25 * best + _SMALLEST]
        error, site, change = min(close, key=lambda one: _rank(one[1], claims))
        text = _contrast(name, site, claims) if claims and site not in claims else site
        return error, site, f"{text}; {change}"
    share, text, at = 0.25, "", torch.tensor(tensors.reading.at)
    for index, (unit, squares) in enumerate(
        zip(("rows", "features"), _mean_squares(given, rows), strict=True), start=1
    ):
        fitting = squares.sqrt() <= FACTOR * precisions[0].expected[:, index : index + 1]
        n, best = fitting.shape[1], int(fitting.sum(1).argmax())
        fits, most = fitting[best], int(fitting[best].sum())
        if share < most / n < 1:
            share, text = most / n, f"only {most} of {n} {unit} are those of {names[best]}"
        # Of a padded batch, only the longest texts have the numbers of a text alone.
        if unit == "rows" and 0 < most < n and (at[fits, None] > at[~fits]).float().mean() > 0.8:
            return inf, "", _PADDED.format(most, n, names[best])
    return inf, "", text


def _changed(given: Tensor, tensors: _Tensors) -> Iterator[tuple[list[str], Tensor, Tensor]]:
    """Yield tensors that a library may return by mistake: all of the width, changed alike.

    Each is a description of the error for each tensor, which rows of the array may have it, shape
    [n_rows], and what they should be, shape [n_tensors n_drawn n_features].
    """
    width = given.shape[1]
    names, rows = tensors.exact[width]
    every = torch.ones(len(given)).bool()
    for change, stacks, exists in tensors.elsewhere:
        yield [change] * len(names), exists, stacks[width].rows[:, exists]
    factors = (given * rows).sum((1, 2)) / rows.square().sum((1, 2))
    yield [f"times {factor:.6g}" for factor in factors], every, factors[:, None, None] * rows
    if tensors.network.config.norm_is_centred:
        text = "minus its mean over the features, as by center_writing_weights of TransformerLens"
        yield [text] * len(names), every, rows - rows.mean(2, keepdim=True)
    added = (given - rows).mean(1, keepdim=True)
    text = (
        "plus the same vector in every row, as by steering, or by a bias that is folded or left out"
    )
    yield [text] * len(names), every, rows + added
    order = torch.cdist(given[None], rows).argmin(2)
    ordered = rows.gather(1, order[:, :, None].expand_as(rows))
    yield ["rows in another order"] * len(names), every, ordered


def _rank(name: str, claims: Sequence[str]) -> tuple[bool, bool, bool]:
    """Return a key that is lowest for names that are like one of the claims."""
    components, layers = map(component_of, claims), map(layer_of, claims)
    return name not in claims, component_of(name) not in components, layer_of(name) not in layers


def _contrast(name: str, site: str, claims: Sequence[str]) -> str:
    """Return the tensor that an array is, and how it differs from that of its name.

    >>> _contrast("blocks.1.hook_z", "blocks.2.hook_z", ["blocks.1.hook_z"])
    'blocks.2.hook_z, not blocks.1.hook_z: one layer later than its name'
    """
    layer, claimed = layer_of(site), [layer_of(one) for one in claims]
    defects = [_DEFECTS.get((component_of(one), component_of(site)), "") for one in claims[:1]]
    shifts = [
        layer - other
        for one, other in zip(claims, claimed, strict=True)
        if layer is not None and other is not None and component_of(one) == component_of(site)
    ]
    if shifts:
        shift = min(shifts, key=abs)
        number = "one layer" if abs(shift) == 1 else f"{abs(shift)} layers"
        defects = [f"{number} {'later' if shift > 0 else 'earlier'} than its name"]
    if claims == [name] and layer is not None and layer == claimed[0]:
        name = name.partition(".")[2].partition(".")[2]  # without the block
    return f"{site}, not {name}" + "".join(f": {defect}" for defect in defects if defect)


def _percent(error: float) -> str:
    """Return an error in percent, with two digits.

    >>> _percent(1.404), _percent(0.00412), _percent(1e-7)
    ('140 %', '0.41 %', 'below 0.0001 %')
    """
    if error < 1e-6:
        return "below 0.0001 %"
    return f"{100 * error:.0f} %" if error >= 1 else f"{100 * error:.2g} %"
