"""A label schema compiled for one vocabulary: for each state the tokens that may come, and where they lead."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from schemas.automaton import END, Automaton
from worker.decoder.text import BETWEEN, MODES, scan
from worker.decoder.vocabulary import LEAVES, Numbers, TokenList, Vocabulary

#: Tokens to the end where there is no way to it.
NEVER = 2**20
#: Label schemas of one engine at once; they are numbered from 0.
TABLES = 64
#: Characters left where nothing counts them.
UNBOUNDED = 2**30
#: Pairs of state and token that are looked at in one piece: bounds the memory of compiling.
_PIECE = 4_000_000


class Unspellable(ValueError):
    """The tokenizer has no tokens for a part of every label."""


class Place(NamedTuple):
    """Where a label stands: a state, and the characters of its string so far (0 outside a string)."""

    state: int
    chars: int


@dataclass(frozen=True)
class Tables:
    """A compiled label schema. Everything is numbers, so that it can live on a GPU.

    A state inside a string has a ``mode``; besides its own tokens, :class:`Vocabulary` says which ones stay inside:
    those lead to ``base[state] + mode``. A token of its own, at ``first[state]`` to ``first[state + 1]``, may come when
    ``chars + token_chars`` lies between ``low`` and ``high`` of the state, and when ``needs`` tokens are left behind
    it; it leads to the state ``target`` with ``target_chars`` characters.
    """

    mode: Numbers  #: by state: inside a string its mode, else -1
    base: Numbers  #: by state: the first state of its string
    low: Numbers
    high: Numbers
    closing: Numbers  #: by state: tokens to the end once its string may end (``low`` reached, no character begun)
    first: Numbers
    token: Numbers
    token_chars: Numbers
    target: Numbers
    target_chars: Numbers
    needs: Numbers
    start: int
    needed: int  #: the fewest tokens of a label, the one that ends it included


def compile_tables(automaton: Automaton, vocabulary: Vocabulary, end_tokens: list[int]) -> Tables:
    """Compile an automaton.

    :param end_tokens: any of them ends the output, and only a whole label.
    :raises Unspellable: when no sequence of tokens is a label.
    """
    return _Compiler(automaton, vocabulary, end_tokens).tables()


class _Edges(NamedTuple):
    """Tokens that lead somewhere; the fields are those of :class:`Tables`."""

    token: Numbers
    token_chars: Numbers
    target: Numbers
    target_chars: Numbers


#: Bytes inside numbers and dates.
_NUMERIC = frozenset(b"0123456789.eE+-")


class _Compiler:
    """Goes through the states from the end on: whatever a token leads to has been seen before."""

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary, end_tokens: list[int]) -> None:
        self._automaton, self._vocabulary, self._ends = automaton, vocabulary, end_tokens
        #: States of the tables by state of the automaton: a string has one for each mode.
        sizes = np.ones(len(automaton.edges), np.int64)
        sizes[list(automaton.texts)] = len(MODES)
        self._first = (np.cumsum(sizes) - sizes).astype(np.int64)
        self._count = int(sizes.sum())
        self._closing = np.full(self._count, NEVER, np.int64)
        self._tails: dict[int, tuple[Numbers, Numbers]] = {}
        self._leaving: dict[tuple[int, int], _Edges] = {}

    def tables(self) -> Tables:
        automaton = self._automaton
        mode = np.full(self._count, -1, np.int32)
        base = np.zeros(self._count, np.int32)
        low, high = np.zeros(self._count, np.int32), np.full(self._count, UNBOUNDED, np.int32)
        for state, text in automaton.texts.items():
            part = slice(self._first[state], self._first[state] + len(MODES))
            mode[part], base[part] = np.arange(len(MODES)), self._first[state]
            low[part], high[part] = text.low, text.high
        self._mode, self._low = mode, low
        numeric = self._numeric()
        columns: list[list[npt.NDArray[np.int64]]] = []
        lengths = np.zeros(self._count, np.int64)
        for state in range(len(automaton.edges)):
            at = int(self._first[state])
            if state == END:
                parts = [_edges([(token, END, 0) for token in self._ends])]
            elif state in automaton.texts:
                parts = [self._leave(state, n) for n in range(len(MODES))]
            elif state in automaton.numeric:
                parts = [_joined([*numeric.get(state, []), self._walk(state, without=_NUMERIC)])]
            else:
                parts = [self._walk(state)]
            for row, edges in enumerate(parts, at):
                needed = self._needed(edges) if state != END else np.zeros(len(self._ends), np.int64)
                kept = needed < NEVER
                columns.append([column[kept].astype(np.int64) for column in (*edges, needed)])
                lengths[row] = np.count_nonzero(kept)
                if row == at:
                    # Inside a string only what is open however many characters it has.
                    open_ = needed[edges.token_chars == 0]
                    self._closing[at : at + len(parts)] = 1 + open_.min(initial=NEVER)
        start = int(self._first[automaton.start])
        fewest = int(self._closing[start])
        if fewest >= NEVER:
            raise Unspellable("the tokenizer can't spell any label of it")
        token, token_chars, target, target_chars, needs = (
            np.concatenate([column[n] for column in columns]).astype(np.int32) for n in range(5)
        )
        return Tables(
            mode=mode,
            base=base,
            low=low,
            high=high,
            closing=np.minimum(self._closing, NEVER).astype(np.int32),
            first=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
            token=token,
            token_chars=token_chars,
            target=target,
            target_chars=target_chars,
            needs=needs,
            start=start,
            needed=fewest,
        )

    def _needed(self, edges: _Edges) -> npt.NDArray[np.int64]:
        """Tokens from each target to the end; a whole label needs the one that ends it."""
        target = edges.target
        short = self._low[target] - edges.target_chars
        return tokens_to_end(self._closing[target], self._mode[target], short, self._vocabulary)

    def _walk(self, state: int, tokens: TokenList | None = None, without: Collection[int] = ()) -> _Edges:
        """Tokens that can be read from a state outside strings.

        :param without: bytes that they don't begin with.
        """
        tokens = tokens or self._vocabulary.tokens
        texts, automaton = tokens.texts, self._automaton
        found: list[tuple[int, int, int]] = []
        waiting = [(state, b"", 0, len(texts))]
        while waiting:
            at, prefix, low, high = waiting.pop()
            if at in automaton.texts:
                found += self._inside(at, tokens, low, high, len(prefix))
                continue
            while low < high and texts[low] == prefix:
                found.append((low, int(self._first[at]), 0))
                low += 1
            if low == high:
                continue
            for byte, target in automaton.edges[at].items():
                if not prefix and byte in without:
                    continue
                longer = prefix + bytes([byte])
                first, last = tokens.beginning(longer, low, high)
                if first < last:
                    waiting.append((target, longer, first, last))
        return _edges(found, tokens.numbers)

    def _inside(self, state: int, tokens: TokenList, low: int, high: int, depth: int) -> list[tuple[int, int, int]]:
        """The same for tokens whose byte ``depth`` is the first one of a string."""
        text = self._automaton.texts[state]
        found = []
        for place, read in tokens.scans(low, high, depth):
            if read.chars > text.high:
                continue
            if read.end < 0:
                if self._vocabulary.to_close[read.mode] != LEAVES:
                    found.append((place, int(self._first[state]) + read.mode, read.chars))
            elif read.chars >= text.low:
                target = self._follow(text.after, tokens.texts[place], read.end)
                if target is not None:
                    found.append((place, *target))
        return found

    def _follow(self, state: int, data: bytes, position: int) -> Place | None:
        """Read the rest of a token from a state outside strings."""
        while position < len(data):
            if state in self._automaton.texts:
                text = self._automaton.texts[state]
                read = scan(data, BETWEEN, position)
                if read.chars > text.high or (read.end >= 0 and read.chars < text.low):
                    return None
                if read.end < 0:
                    return Place(int(self._first[state]) + read.mode, read.chars) if read.mode >= 0 else None
                state, position = text.after, read.end
            else:
                following = self._automaton.edges[state].get(data[position])
                if following is None:
                    return None
                state, position = following, position + 1
        return Place(int(self._first[state]), 0)

    def _leave(self, state: int, mode: int) -> _Edges:
        """Tokens that close a string, from a mode inside it."""
        after = self._automaton.texts[state].after
        leaving = self._vocabulary.leaving[mode]
        if (after, mode) not in self._leaving:
            targets, chars = self._tail_targets(after)
            kept = targets[leaving.tails] >= 0
            tails = leaving.tails[kept]
            self._leaving[after, mode] = _Edges(leaving.tokens[kept], leaving.chars[kept], targets[tails], chars[tails])
        return self._leaving[after, mode]

    def _tail_targets(self, after: int) -> tuple[Numbers, Numbers]:
        """Where each text behind a closing quote leads (-1: nowhere), and the characters there."""
        if after not in self._tails:
            tails = self._vocabulary.tails
            targets, chars = np.full(len(tails.texts), -1, np.int32), np.zeros(len(tails.texts), np.int32)
            edges = self._walk(after, tails)
            targets[edges.token], chars[edges.token] = edges.target, edges.target_chars
            self._tails[after] = targets, chars
        return self._tails[after]

    def _numeric(self) -> dict[int, list[_Edges]]:
        """The tokens of every state inside numbers, all states at once: each has many."""
        automaton = self._automaton
        states = np.array(sorted(automaton.numeric), np.int64)
        if not len(states):
            return {}
        tokens = self._vocabulary.numeric
        nowhere = len(automaton.edges)
        step = np.full((nowhere + 1, 256), nowhere, np.int32)
        for state, edges in enumerate(automaton.edges):
            step[state, list(edges)] = list(edges.values())
        is_text = np.zeros(nowhere + 1, bool)
        is_text[list(automaton.texts)] = True
        found: dict[int, list[_Edges]] = {}
        texts = tokens.texts
        lengths = np.array([len(text) for text in texts])
        for length in np.unique(lengths):
            group = np.flatnonzero(lengths == length)
            data = np.array([list(texts[n]) for n in group], np.uint8)
            piece = max(1, _PIECE // len(group))
            for part in (states[n : n + piece] for n in range(0, len(states), piece)):
                at = np.repeat(part[:, None], len(group), 1).astype(np.int32)
                alive = at < nowhere
                begun = np.zeros(at.shape, bool)
                for column in range(length):
                    begun |= is_text[at]
                    at = step[at, data[None, :, column]]
                alive = at < nowhere
                if not alive.any():
                    continue
                rows, columns = np.nonzero(alive)
                _gather(found, part[rows], tokens.numbers[group[columns]], self._first[at[rows, columns]])
                for row, column in zip(*np.nonzero(begun), strict=True):
                    target = self._follow(int(part[row]), texts[group[column]], 0)
                    if target is not None:
                        one = np.array([part[row]])
                        _gather(found, one, tokens.numbers[group[[column]]], np.array([target.state]), target.chars)
        return found


def tokens_to_end(
    closing: npt.NDArray[np.int64], mode: Numbers, short: Numbers, vocabulary: Vocabulary
) -> npt.NDArray[np.int64]:
    """Tokens to the end by the way that is always open: finish the character, fill the string up, close.

    :param short: characters that a string lacks.
    """
    begun = np.where(mode >= 0, vocabulary.to_close[np.maximum(mode, 0)].astype(np.int64), 0)
    missing = np.where(mode >= 0, np.maximum(short, 0), 0)
    total: npt.NDArray[np.int64] = closing + begun + -(-missing // vocabulary.fill)
    return np.minimum(total, NEVER)


def _edges(found: list[tuple[int, int, int]], numbers: Numbers | None = None) -> _Edges:
    """:param found: token, target and its characters. :param numbers: the tokens, where ``found`` has their places."""
    columns = np.array(found, np.int32).reshape(-1, 3)
    tokens = columns[:, 0] if numbers is None else numbers[columns[:, 0]]
    return _Edges(tokens, np.zeros(len(columns), np.int32), columns[:, 1], columns[:, 2])


def _joined(parts: list[_Edges]) -> _Edges:
    return _Edges(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _gather(
    found: dict[int, list[_Edges]],
    states: npt.NDArray[np.int64],
    tokens: Numbers,
    targets: npt.NDArray[np.int64],
    chars: int = 0,
) -> None:
    """Put tokens beside their states; the states are in order."""
    kept, starts = np.unique(states, return_index=True)
    for state, first, last in zip(kept.tolist(), starts, [*starts[1:], len(states)], strict=True):
        zeros = np.zeros(last - first, np.int32)
        edges = _Edges(tokens[first:last], zeros, targets[first:last].astype(np.int32), zeros + np.int32(chars))
        found.setdefault(state, []).append(edges)
