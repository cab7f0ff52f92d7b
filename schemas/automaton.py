"""A label schema as an automaton over the bytes of its compact JSON, for schemas of a subset that needs no stack."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from schemas.grammar import FORMATS, cases_of
from schemas.jsontext import dump_json
from schemas.numerals import date, integer, number

#: States of one automaton. Label schemas have hundreds; more would cost a worker seconds and its GPU memory.
MAX_STATES = 50_000
#: Bounded texts of one automaton: each item of an array counts.
MAX_TEXTS = 1_000
_LIMITS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
QUOTE = ord('"')

Edges = dict[int, int]


class OutsideSubset(ValueError):
    """The label schema needs more than the automaton can say; the message is ``path: reason``."""


@dataclass(frozen=True)
class Text:
    """The characters of a bounded string: which bytes they may have is the same for every string."""

    low: int  #: characters at least
    high: int  #: characters at most
    after: int  #: the state after the closing quote


@dataclass
class Automaton:
    """States are numbers; an edge leads to a smaller one, so there are no loops but those inside a text.

    ``edges[state]`` maps a byte to the next state. A state in ``texts`` has no edges of its own.
    State 0 is the end: a whole label was read.
    """

    edges: list[Edges] = field(default_factory=lambda: [{}])
    texts: dict[int, Text] = field(default_factory=dict)
    #: States inside numbers and dates, which many tokens lead out of.
    numeric: set[int] = field(default_factory=set)
    start: int = 0


END = 0


def automaton_of(grammar_schema: dict[str, Any]) -> Automaton:
    """Build the automaton of a grammar schema (:func:`schemas.grammar.grammar_of`), whose root is an object.

    Its JSON is compact, its keys stand in the order of ``properties``, its text is UTF-8 with JSON's escapes. It leaves
    out what the product could not store or read back exactly: NUL, lone surrogates, numbers of more than 15 digits.

    :raises OutsideSubset: for a schema that has to go another way.
    """
    builder = _Builder()
    builder.automaton.start = builder.value(grammar_schema, "$", END)
    return builder.automaton


class _Builder:
    """Builds backwards: every part is given the state that follows it."""

    def __init__(self) -> None:
        self.automaton = Automaton()
        self._known: dict[frozenset[tuple[int, int]], int] = {}
        self._texts: dict[Text, int] = {}

    def state(self, edges: Edges, *, numeric: bool = False) -> int:
        """The state with these edges; equal ones are one."""
        key = frozenset(edges.items())
        if key not in self._known:
            self._known[key] = self._add(edges)
        if numeric:
            self.automaton.numeric.add(self._known[key])
        return self._known[key]

    def edges(self, state: int) -> Edges:
        """What leads out of a state that is no text."""
        return self.automaton.edges[state]

    def _add(self, edges: Edges) -> int:
        self.automaton.edges.append(edges)
        if len(self.automaton.edges) > MAX_STATES:
            raise OutsideSubset(f"$: more than {MAX_STATES} states: shorten its enums and arrays")
        return len(self.automaton.edges) - 1

    def literal(self, text: bytes, after: int) -> int:
        """The state before a fixed text."""
        for byte in reversed(text):
            after = self.state({byte: after})
        return after

    def choice(self, words: Iterable[tuple[bytes, int]], path: str) -> int:
        """The state before one of several texts, each with the state that follows it."""
        words = list(dict.fromkeys(words))
        if len(words) == 1:
            return self.literal(*words[0])
        common = 0
        while len({word[common : common + 1] for word, _ in words}) == 1 and len(words[0][0]) > common:
            common += 1
        by_byte: dict[int, list[tuple[bytes, int]]] = {}
        edges: Edges = {}
        for word, after in words:
            if len(word) > common:
                by_byte.setdefault(word[common], []).append((word[common + 1 :], after))
            else:
                edges = self.merged(edges, self.edges(after), path)
        edges = self.merged(edges, {byte: self.choice(rest, path) for byte, rest in by_byte.items()}, path)
        return self.literal(words[0][0][:common], self.state(edges))

    @staticmethod
    def merged(one: Edges, other: Edges, path: str) -> Edges:
        """The edges of two states as one's; raises :class:`OutsideSubset` where both begin alike."""
        if one.keys() & other.keys():
            raise OutsideSubset(f"{path}: alternatives that begin with the same characters")
        return one | other

    def value(self, schema: Any, path: str, after: int) -> int:
        """The state before a value of a schema."""
        if not isinstance(schema, dict):
            raise OutsideSubset(f"{path}: a schema that is true or false")
        if "const" in schema or "enum" in schema:
            values = [schema["const"]] if "const" in schema else schema["enum"]
            return self.choice([(dump_json(value).encode(), after) for value in values], path)
        cases = cases_of(schema)
        if cases:
            states = [self.value(case, f"{path}.{cases}[{n}]", after) for n, case in enumerate(schema[cases])]
        else:
            kinds = schema.get("type", [])
            kinds = kinds if isinstance(kinds, list) else [kinds]
            states = [
                self._kind(kind, schema, path, after) for kind in kinds if not (kind == "integer" and "number" in kinds)
            ]
        if not states:
            raise OutsideSubset(f"{path}: no type")
        if len(states) == 1:
            return states[0]
        edges: Edges = {}
        for state in states:
            edges = self.merged(edges, self.edges(state), path)
        return self.state(edges)

    def _kind(self, kind: str, schema: dict[str, Any], path: str, after: int) -> int:
        if kind == "object":
            return self._object(schema, path, after)
        if kind == "array":
            return self._array(schema, path, after)
        if kind == "string":
            return self._string(schema, path, after)
        if kind == "boolean":
            return self.choice([(b"true", after), (b"false", after)], path)
        if kind == "null":
            return self.literal(b"null", after)
        low, over, high, under = (schema.get(key) for key in _LIMITS)
        try:
            return (integer if kind == "integer" else number)(self, low, over, high, under, after)
        except ValueError as error:
            raise OutsideSubset(f"{path}: {error}") from None

    def _string(self, schema: dict[str, Any], path: str, after: int) -> int:
        form = schema.get("format")
        if form == "date":
            return self.state({QUOTE: date(self, self.literal(b'"', after))})
        if form in FORMATS:
            raise OutsideSubset(f"{path}: `format` {form!r}")
        if "pattern" in schema:
            raise OutsideSubset(f"{path}: `pattern`")
        if "maxLength" not in schema:
            raise OutsideSubset(f"{path}: a string without `maxLength`")
        text = Text(schema.get("minLength", 0), schema["maxLength"], after)
        if text not in self._texts:
            if len(self._texts) >= MAX_TEXTS:
                raise OutsideSubset(f"{path}: more than {MAX_TEXTS} strings, items of arrays counted")
            self._texts[text] = self._add({})
            self.automaton.texts[self._texts[text]] = text
        return self.state({QUOTE: self._texts[text]})

    def _object(self, schema: dict[str, Any], path: str, after: int) -> int:
        for key in ("minProperties", "maxProperties"):
            if key in schema:
                raise OutsideSubset(f"{path}: `{key}`")
        if "properties" not in schema:
            raise OutsideSubset(f"{path}: an object without `properties`")
        items = list(schema["properties"].items())
        required = set(schema.get("required", []))
        # What may follow, from the last field to the first: the fields up to the next required one, or the end.
        following: list[tuple[bytes, int]] = [(b"}", after)]
        for name, item in reversed(items):
            behind = self.choice([_with_comma(word) for word in following], path)
            field_ = (dump_json(name).encode() + b":", self.value(item, f"{path}.{name}", behind))
            following = [field_] if name in required else [field_, *following]
        return self.literal(b"{", self.choice(following, path))

    def _array(self, schema: dict[str, Any], path: str, after: int) -> int:
        if "prefixItems" in schema:
            raise OutsideSubset(f"{path}: `prefixItems`")
        item = schema.get("items")
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        if item is False:
            high = 0
        elif not isinstance(item, dict) or high is None:
            raise OutsideSubset(f"{path}: an array without `items` or `maxItems`")
        close: Edges = {ord("]"): after}
        behind = self.state(close)
        for count in range(high - 1, -1, -1):
            first = self.value(item, f"{path}.items", behind)
            entry = self.edges(first) if count == 0 else {ord(","): first}
            behind = self.state(entry | close if count >= low else entry)
        return self.state({ord("["): behind})


def _with_comma(word: tuple[bytes, int]) -> tuple[bytes, int]:
    return word if word[0] == b"}" else (b"," + word[0], word[1])
