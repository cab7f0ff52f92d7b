"""The decoder once more, slowly: one token after another, one byte after another, nothing prepared."""

import json
from functools import cache
from typing import Any, NamedTuple

from schemas.automaton import END, Automaton
from worker.decoder.text import BETWEEN, MODES, QUOTE, STEPS

NEVER = 2**20


class Spot(NamedTuple):
    """A state of the automaton; inside a string the mode and the characters so far."""

    state: int
    mode: int = BETWEEN
    chars: int = 0


class Reference:
    """Says which tokens may come, by the definition."""

    def __init__(self, automaton: Automaton, tokens: dict[int, bytes], end_token: int, fill: int) -> None:
        self._automaton, self._tokens, self._end_token, self._fill = automaton, tokens, end_token, fill
        self.start = Spot(automaton.start)
        self._to_end = cache(self.__to_end)
        self._to_close = cache(self.__to_close)

    def read(self, spot: Spot, data: bytes) -> Spot | None:
        """Where some bytes lead."""
        for byte in data:
            state, mode, chars = spot
            text = self._automaton.texts.get(state)
            if text is None:
                if byte not in self._automaton.edges[state]:
                    return None
                spot = Spot(self._automaton.edges[state][byte])
            elif mode == BETWEEN and byte == QUOTE:
                if chars < text.low:
                    return None
                spot = Spot(text.after)
            else:
                if byte not in STEPS[mode]:
                    return None
                spot = Spot(state, STEPS[mode][byte], chars + (mode == BETWEEN))
                if spot.chars > text.high:
                    return None
        return spot

    def allowed(self, spot: Spot, left: int) -> set[int]:
        """Tokens that may come when so many may still come, themselves counted."""
        found = {self._end_token} if spot.state == END and left >= 1 else set()
        for token, data in self._tokens.items():
            target = self.read(spot, data)
            if target is not None and self._to_end(target) <= left - 1:
                found.add(token)
        return found

    def to_end(self, spot: Spot) -> int:
        """Tokens to the end by the way that is always open: finish the character, fill the string, close it."""
        return self._to_end(spot)

    def __to_end(self, spot: Spot) -> int:
        text = self._automaton.texts.get(spot.state)
        if spot.state == END:
            return 1
        if text is None:
            targets = [self.read(spot, data) for data in self._tokens.values()]
            return min([1 + self._to_end(target) for target in targets if target is not None], default=NEVER)
        closing = [
            self.read(Spot(spot.state, BETWEEN, text.low), data) for data in self._tokens.values() if data[:1] == b'"'
        ]
        closed = min([1 + self._to_end(target) for target in closing if target is not None], default=NEVER)
        missing = max(0, text.low - spot.chars)
        return min(NEVER, closed + self._to_close(spot.mode) + -(-missing // self._fill))

    def __to_close(self, mode: int) -> int:
        """Fewest tokens back to between two characters, none of which begins another."""
        reached, steps = {mode}, 0
        while BETWEEN not in reached:
            steps += 1
            if steps > len(MODES):
                return NEVER
            reached |= {
                end for start in reached for data in self._tokens.values() if (end := _inside(start, data)) >= 0
            }
        return steps


def _inside(mode: int, data: bytes) -> int:
    """The mode where bytes lead that begin no character; -1 if there is none."""
    for byte in data:
        if mode == BETWEEN or byte not in STEPS[mode]:
            return -1
        mode = STEPS[mode][byte]
    return mode


def label_of(tokens: list[int], found: dict[int, bytes]) -> Any:
    """The label that tokens write."""
    return json.loads(b"".join(found[token] for token in tokens))
