"""The labels that an engine's batch has under way, and what its next step may write: on the host, without a GPU."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from worker.decoder.tables import Place, Tables
from worker.decoder.vocabulary import Vocabulary
from worker.decoder.walk import Walk

#: A budget that no output meets.
NO_LIMIT = 2**30
Rows = npt.NDArray[np.int32]


class Batch(Protocol):
    """Labels under way, each in a slot. A step is a row of logits for some of them."""

    def add(self, number: int, tables: Tables) -> None:
        """Make a label schema known by its number."""

    def drop(self, number: int) -> None:
        """Forget a label schema that no slot has."""

    def start(self, slot: int, number: int, place: Place, position: int, end: int) -> None:
        """Put a label into a slot.

        :param position: of the last token that ``place`` takes into account, in prompt and output together.
        :param end: the position behind the last one that the output may have.
        """

    def apply(self, logits: Any, slots: Rows, positions: Any, tokens: Any) -> None:
        """Take the newest token of each row's label into account, and set the logits of what may not follow to minus
        infinity.

        A row whose position is before its label's is part of a prompt that is not read to its end: nothing is done.

        :param slots: by row, -1 for one that has no label here.
        :param positions: by row, of the token that made its logits. :param tokens: by row, that token.
        """


class HostBatch:
    """See :class:`Batch`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._walks: dict[int, Walk] = {}
        self._labels: dict[int, tuple[int, Place | None, int, int]] = {}

    def add(self, number: int, tables: Tables) -> None:
        self._walks[number] = Walk(tables, self._vocabulary)

    def drop(self, number: int) -> None:
        self._walks.pop(number, None)

    def start(self, slot: int, number: int, place: Place, position: int, end: int) -> None:
        self._labels[slot] = (number, place, position, end)

    def apply(self, logits: torch.Tensor, slots: Rows, positions: torch.Tensor, tokens: torch.Tensor) -> None:
        # In numpy, because torch would wake all its threads for each row.
        values = logits.numpy()
        read = zip(slots.tolist(), positions.tolist(), tokens.tolist(), strict=True)
        for row, (slot, position, token) in enumerate(read):
            if slot < 0:
                continue
            number, place, at, end = self._labels[slot]
            walk = self._walks[number]
            if position == at + 1 and place is not None:
                place = walk.step(place, token)
                self._labels[slot] = (number, place, position, end)
            elif position != at:
                continue
            if place is None:
                continue
            allowed = walk.allowed(place, end - 1 - position)
            # An engine pads its vocabulary.
            width = min(values.shape[1], len(allowed))
            np.putmask(values[row, :width], ~allowed[:width], -np.inf)
            values[row, width:] = -np.inf
