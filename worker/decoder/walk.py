"""One label on its way through its tables: which tokens may come, and where one leads."""

import numpy as np
import numpy.typing as npt

from worker.decoder.tables import Place, Tables
from worker.decoder.vocabulary import LEAVES, Vocabulary


class Walk:
    """A compiled label schema in motion. Holds nothing of any one label."""

    def __init__(self, tables: Tables, vocabulary: Vocabulary) -> None:
        self.tables, self._vocabulary = tables, vocabulary
        self.start = Place(tables.start, 0)

    def allowed(self, place: Place, left: int) -> npt.NDArray[np.bool_]:
        """Which tokens may come next, by token.

        :param left: tokens that may still come, this one counted. With at least as many as the place needs, some may.
        """
        tables, vocabulary = self.tables, self._vocabulary
        state, chars = place
        mode, low, high = int(tables.mode[state]), int(tables.low[state]), int(tables.high[state])
        if mode < 0:
            allowed = np.zeros(vocabulary.size, bool)
        else:
            more = vocabulary.chars[mode]
            # More characters than can be counted in a token are no limit.
            allowed = (more <= min(high - chars, LEAVES - 1)) & (
                vocabulary.close[mode] <= left - 1 - int(tables.closing[state])
            )
            if chars < low:
                missing = np.maximum(low - chars - more.astype(np.int64), 0)
                filling = -(-missing // vocabulary.fill)
                allowed &= vocabulary.close[mode] + filling <= left - 1 - int(tables.closing[state])
        own = slice(tables.first[state], tables.first[state + 1])
        ended = chars + tables.token_chars[own]
        allowed[tables.token[own][(ended >= low) & (ended <= high) & (tables.needs[own] <= left - 1)]] = True
        return allowed

    def step(self, place: Place, token: int) -> Place | None:
        """Where a token leads; None where it could not come."""
        tables, vocabulary = self.tables, self._vocabulary
        state, chars = place
        mode = int(tables.mode[state])
        if mode >= 0 and token < vocabulary.size and vocabulary.chars[mode, token] != LEAVES:
            chars += int(vocabulary.chars[mode, token])
            return Place(int(tables.base[state] + vocabulary.modes[mode, token]), chars)
        first = int(tables.first[state])
        found = np.flatnonzero(tables.token[first : tables.first[state + 1]] == token)
        if not len(found):
            return None
        return Place(int(tables.target[first + found[0]]), int(tables.target_chars[first + found[0]]))
