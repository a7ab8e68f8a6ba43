"""Chat templates: the text of a conversation, with the place of each turn in it."""

import inspect
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from itertools import cycle
from string import Formatter
from typing import Any

from jinja2 import Template, Undefined, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from probekit.errors import CheckpointError, DataError

ROLES = ("user", "assistant")  # in turn
_REASONING = ("reasoning_content", "thinking", "reasoning")  # names of what a model thinks


class _Message(dict[str, Any]):
    """A message for a template; `_unread` are its keys that the template has not read yet."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        super().__init__(entries)
        self._unread = {key for key, value in entries.items() if value not in ("", [], {}, None)}
        # As transformers does: the first name is the usual one, and `thinking` that of gpt-oss.
        for said in [entries[key] for key in _REASONING if entries.get(key) is not None][:1]:
            self.update({"thinking": said, **entries, "reasoning_content": said})

    def _read(self, key: str) -> None:
        """Note that the template reads a key, and with it the same text under another name."""
        entries, names = dict(self), _REASONING if key in _REASONING else (key,)
        self._unread -= {one for one in names if entries.get(one) == entries.get(key)}

    def __getitem__(self, key: str) -> Any:
        self._read(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or the default without it."""
        self._read(key)
        return super().get(key, default)


class ChatTemplate:
    """A chat template of the hub: a Jinja template of messages.

    Templates are code from a repository, so they run in a sandbox, without chance and with limits
    of time and memory. They cannot read the date: some would write today's into every text, and
    tomorrow's activations would differ. Such templates have a fixed date to fall back on, which is
    used.

    Args:
        template: text of the template.
        special: names and texts of the special tokens that it may write, such as `bos_token`.
        where: the file, for messages.

    >>> template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    >>> template.render(["Hi", "Hello"])
    ('<user>Hi<assistant>Hello', [(6, 8), (19, 24)])

    Raises:
        CheckpointError: the template is not valid.
    """

    def __init__(
        self, template: str, special: Mapping[str, str] | None = None, where: object = "template"
    ) -> None:
        self._special, self._where = dict(special or {}), where
        self._sandbox = Sandbox()
        try:
            self._template = self._sandbox.compiled(template)
        except Exception as error:  # Jinja and Python's compiler have errors of many classes
            raise CheckpointError(f"{where}: the chat template is not valid: {error}.") from error

    def render(
        self, turns: Sequence[str], roles: Sequence[str] = ROLES, others: Sequence[str] = ("",)
    ) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of a conversation, with the place of each turn.

        A place is the first and one past the last character of a turn. A template may strip a turn;
        the place is then that of the stripped text.

        Args:
            turns: the texts of the turns, at least one. After a turn of the user the text ends
                where the assistant's begins.
            roles: the role of each turn, repeated.
            others: JSON of the other keys of each message, "" for none; repeated.

        Raises:
            CheckpointError: the template cannot be computed, or not within the limits.
            DataError: the template refuses the turns, changes their text, or does not read a key.
        """
        text = self._text(turns, roles, others)
        # A render of marks in place of the turns shows what the template writes around each turn.
        # `parts[n]` is the text after turn n, up to the next turn or the end.
        marks = [f"\ue000{number}\ue001" for number in range(len(turns))]
        before, *parts = re.split("|".join(marks), self._text(marks, roles, others))
        if len(parts) != len(turns):
            raise DataError(
                f"{self._where}: the chat template does not write each of {len(turns)} turns once, "
                f"but {text[:60]!r}. Use another template, or give fewer turns"
                f"{', or none of the system' if 'system' in roles else ''}."
            )
        start, places = len(before), []
        for turn, after in zip(turns, parts, strict=True):
            written = [one for one in (turn, turn.strip()) if text.startswith(one + after, start)]
            if not written or not text.startswith(before):
                raise DataError(
                    f"{self._where}: the chat template changes the text {turn[:60]!r}, so that its "
                    "tokens cannot be found. Write the text as the template does."
                )
            places.append((start, start + len(written[0])))
            start += len(written[0] + after)
        return text, places

    def _text(self, turns: Sequence[str], roles: Sequence[str], others: Sequence[str]) -> str:
        """Return the text that the template writes for turns."""
        messages = [
            _Message({"role": role, "content": turn, **json.loads(other or "{}")})
            for role, turn, other in zip(cycle(roles), turns, cycle(others), strict=False)
        ]
        self._sandbox.begin([*turns, *others])
        try:
            # After a turn of the user, the template also writes the beginning of the assistant's.
            ends_with_user = messages[-1]["role"] == "user"
            options = {"tools": None, "documents": None, "add_generation_prompt": ends_with_user}
            text = self._template.render(messages=messages, **options, **self._special)
        except _RefusedError as error:
            raise DataError(
                f"{self._where}: the chat template refuses {turns[0][:60]!r}: {error}."
            ) from error
        except Exception as error:  # a template can raise any error
            raise CheckpointError(
                f"{self._where}: the chat template failed at {turns[0][:60]!r}: {error}."
            ) from error
        for number, message in enumerate(messages, start=1):
            if unread := sorted(message._unread - {"role", "content"}):
                raise DataError(
                    f"{self._where}: the chat template does not read {', '.join(unread)} of "
                    f"message {number}. Write into content what the model should read, or remove "
                    "the keys."
                )
        return text


class _RefusedError(Exception):
    """A template refuses the messages."""


def _refuse(message: str) -> None:
    """Raise the error for messages that a template refuses: its function `raise_exception`."""
    raise _RefusedError(message.rstrip("."))


class _Generation(Extension):
    """The block `generation`, which marks what the assistant writes, and adds no text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """Return the contents of the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


MAX_TEMPLATE = 200_000  # characters; published ones have at most about 20,000
BUDGET = 3 * 10**7  # characters that a render without messages may read
_STEP = 1000  # cost of a step, in characters; more in longer templates, which can write more
_ITEM = 100  # cost of an item of a list

# All that templates of the hub use; none depends on chance, on the date, or on addresses in memory.
_FILTERS = (
    "abs capitalize count d default dictsort e escape first float format groupby indent int items "
    "join last length list lower map max min reject rejectattr replace reverse safe select "
    "selectattr sort string title trim truncate unique upper"
)
# They may get a function, which has no size, so that nothing is paid for them.
_TESTS_OF_FUNCTIONS = {"callable", "defined", "none", "undefined"}
_GLOBALS = "dict namespace range"
_METHODS = (
    "capitalize center changed copy count cycle endswith find format get index isalnum isalpha "
    "isdecimal isdigit islower isnumeric isspace istitle isupper items join keys ljust lower "
    "lstrip partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit "
    "rstrip split splitlines startswith strip title upper values zfill"
)
# The length of the result, or the time, is at most the product of the sizes of the operands, not
# their sum: Python searches from the right, and strips, without the shortcuts of its `find`.
_PRODUCTS = (
    "* % format format_map indent join lstrip replace rfind rindex rpartition rsplit rstrip strip "
    "tojson trim"
)
# A width of three digits, or one that is an operand, in a format with % or in a field of braces.
_WIDE = re.compile(r"[%)][-+ #.\d]*(\d{3}|\*)")
_WIDE_FIELD = re.compile(r"\d{3}|\{")


class Sandbox(ImmutableSandboxedEnvironment):
    """A Jinja environment whose templates are deterministic and limited in time and memory.

    Jinja's own sandbox keeps a template from files and from the interpreter, but not from chance,
    and not from filling the memory or running for ever. Here a template may use what is listed
    above, and each render has a budget: every step of a loop, call, filter, operator, comparison
    and output costs the size of what it reads, or more if its result can be longer, before it is
    computed.

    >>> sandbox = Sandbox()
    >>> sandbox.compiled("{{ 'ab' * n }}").render(n=2)
    'abab'
    >>> sandbox.compiled("{{ 'ab' * n }}").render(n=10**12)
    Traceback (most recent call last):
        ...
    ValueError: its loops or texts are too long
    """

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=(loopcontrols, _Generation),
            finalize=self._measured,
        )
        self._budget, self._step = math.inf, _STEP
        # Templates of the hub expect plain JSON; Jinja's own filter escapes HTML.
        to_json = partial(json.dumps, ensure_ascii=False)
        listed = {name: self.filters[name] for name in _FILTERS.split()} | {"tojson": to_json}
        self.filters = {name: self._limited(name, entry) for name, entry in listed.items()}
        # Names that `_Measuring` puts into the tree of a template.
        self.filters |= {"_measured": self._measured, "_steps": self._steps}
        others = self.tests.keys() - _TESTS_OF_FUNCTIONS
        self.tests |= {name: self._limited(name, self.tests[name]) for name in others}
        self.globals = {name: self.globals[name] for name in _GLOBALS.split()}
        self.globals["raise_exception"] = _refuse

    def compiled(self, text: str) -> Template:
        """Return a template.

        Raises:
            Exception: it is too long, or Jinja or Python cannot compile it; of any class.
        """
        if len(text) > MAX_TEMPLATE:
            raise ValueError(f"it has {len(text):,} characters. Allowed: {MAX_TEMPLATE:,}")
        self._step = max(_STEP, len(text))
        tree = _Measuring().visit(self.parse(text))
        tree.set_environment(self)
        self.begin(())  # Jinja computes constant expressions already when it compiles
        return self.from_string(tree)

    def begin(self, messages: Sequence[str]) -> None:
        """Begin a render of messages: give it its budget, which grows with them.

        The budget is in characters. Each message adds 1,000 steps of `_STEP` characters to it, and
        each character of a message adds one such step.
        """
        self._budget = BUDGET + _STEP * sum(_STEP + len(message) for message in messages)

    def _spend(self, cost: float) -> None:
        """Pay for a step, and `cost` characters more; raises ValueError if the budget is spent."""
        self._budget -= self._step + cost
        if self._budget < 0:
            raise ValueError("its loops or texts are too long")

    def _spend_on(self, operation: str, *operands: Any) -> None:
        """Pay for an operation: the sum of the sizes of its operands, or their product.

        `operation` is an operator, or the name of a filter, test, method or function. "format" is
        the method `str.format`. A power and a format with a wide field raise ValueError.
        """
        if operation == "**":
            raise ValueError("it computes a power")
        text = operands[0] if operands else None
        is_percent, is_braces = operation == "%", operation.startswith("format")
        # After a number, % is the remainder.
        is_product = operation in _PRODUCTS.split() and not (is_percent and isinstance(text, int))
        sizes = [_size(operand, self._budget) for operand in operands]
        self._spend(math.prod(sizes) if is_product else sum(sizes))
        # A wide field can make a text of any length, so it costs more than any budget.
        if (is_percent and _WIDE.search(str(text))) or (is_braces and _has_wide_field(str(text))):
            self._spend(math.inf)

    def _limited(self, name: str, function: Any) -> Callable[..., Any]:
        """Return a filter or test that pays for its operands and returns no iterator."""
        # Some have Jinja's context or environment as their first argument.
        first = 1 if hasattr(function, "jinja_pass_arg") else 0
        # The filter `format` is Python's %; `_spend_on` takes "format" for `str.format`.
        operation = "%" if name == "format" else name

        @wraps(function)
        def limited(*args: Any, **options: Any) -> Any:
            self._spend_on(operation, *args[first:], *options.values())
            result = function(*args, **options)
            # The text of an iterator would be its address, so it becomes a list. The result is paid
            # for, too: "1e300" | int makes a long number of a short text.
            return self._measured(list(result) if isinstance(result, Iterator) else result)

        return limited

    def _measured(self, value: Any) -> Any:
        """Return a value unchanged after paying for its size."""
        self._spend_on("", value)
        return value

    def _steps(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """Yield the items of a loop; each of its steps is paid for."""
        for item in iterable:
            self._spend(0)
            yield item

    def call(self, context: Context, function: Any, /, *args: Any, **options: Any) -> Any:
        """Return the result of a call in a template."""
        # A method also pays for the value that it belongs to. Jinja wraps the method `format`.
        owner = getattr(getattr(function, "__wrapped__", function), "__self__", None)
        own = [] if owner is None else [owner]
        self._spend_on(getattr(function, "__name__", ""), *own, *args, *options.values())
        return super().call(context, function, *args, **options)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Return the result of an operator in a template."""
        self._spend_on(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may read an attribute."""
        is_listed = attr in _METHODS.split() or not inspect.isroutine(value)
        return is_listed and super().is_safe_attribute(obj, attr, value)


class _Measuring(NodeTransformer):
    """Passes what the environment cannot intercept through filters that pay for it."""

    def visit(self, node: Any, *args: Any, **options: Any) -> Any:
        """Return the node, or the filter that it passes through."""
        self.generic_visit(node, *args, **options)
        if isinstance(node, nodes.For):
            node.iter = _filtered(node.iter, "_steps")
        elif isinstance(node, nodes.Compare):
            node.expr = _filtered(node.expr, "_measured")
            for operand in node.ops:
                operand.expr = _filtered(operand.expr, "_measured")
        elif isinstance(node, nodes.Concat):
            # a ~ b becomes [a, b] | join.
            return _filtered(nodes.List(node.nodes, lineno=node.lineno), "join")
        # A new list, dict, tuple or slice of one is paid for when it is made.
        is_value = isinstance(node, nodes.List | nodes.Dict)
        is_value |= isinstance(node, nodes.Tuple) and node.ctx == "load"
        is_value |= isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        return _filtered(node, "_measured") if is_value else node


def _filtered(node: Any, name: str) -> nodes.Filter:
    """Return a filter without arguments that is applied to a node."""
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _has_wide_field(text: str) -> bool:
    """Return whether a field of a format with braces has a width of three digits or an operand.

    >>> [_has_wide_field(text) for text in ("{:2} 1000", "{:900}", "{:{w}}", "{a[}]:900}")]
    [False, True, True, True]
    """
    return any(_WIDE_FIELD.search(spec or "") for _, _, spec, _ in Formatter().parse(text))


def _size(value: Any, most: float) -> float:
    """Return the number of characters of a text, the magnitude of an integer, or the sum of a list.

    Each item of a list, key and value of a mapping counts `_ITEM` in addition. A range counts its
    length and both ends, and all other values nothing. The result is at least 1, and incomplete
    above `most`.

    Raises:
        TypeError: the value has no text that is always the same.
    """
    total, rest = 0.0, [value]
    while rest and total <= most:
        item = rest.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, int):
            total += min(abs(item), 10**30)  # 10**30 is above any budget and fits into a float
        elif isinstance(item, range):
            total += len(item) + abs(item.start) + abs(item.stop)
        elif isinstance(item, Namespace):
            rest.append(object.__getattribute__(item, "_Namespace__attrs"))
        elif isinstance(item, Collection):
            parts = [*item.keys(), *item.values()] if isinstance(item, Mapping) else [*item]
            total += _ITEM * len(parts)
            rest += parts
        elif not isinstance(item, float | Undefined | Macro | LoopContext | None):
            raise TypeError(f"it uses a {type(item).__name__} as a value")
    return max(1.0, total)
