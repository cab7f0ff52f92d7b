"""The same as :mod:`worker.decoder.batch` on a GPU: three launches a step, and no word back to the host."""

from dataclasses import fields

import numpy as np
import torch
import triton
import triton.language as tl

from worker.decoder.batch import Rows
from worker.decoder.tables import TABLES, Place, Tables
from worker.decoder.vocabulary import LEAVES, Vocabulary

#: What a slot holds: number, state, chars, position, end.
_SLOT = 5
#: What a row's mask is made of: whether there is one, mode, characters left, characters missing, tokens left.
_ROW = 5
_ARRAYS = [field.name for field in fields(Tables) if field.name not in ("start", "needed")]
#: Entries that a state's list is read by, and logits that one program masks.
_CHUNK, _BLOCK = 256, 4096


class GpuBatch:
    """See :class:`worker.decoder.batch.Batch`."""

    def __init__(self, vocabulary: Vocabulary, device: torch.device, slots: int, rows: int) -> None:
        """:param rows: of one step at most."""
        self._device, self._size, self._fill = device, vocabulary.size, vocabulary.fill
        self._chars, self._modes, self._close = (
            torch.from_numpy(array).contiguous().to(device)
            for array in (vocabulary.chars, vocabulary.modes, vocabulary.close)
        )
        self._pointers = torch.zeros((TABLES, len(_ARRAYS)), dtype=torch.int64, device=device)
        self._tables: dict[int, list[torch.Tensor]] = {}
        self._slots = torch.full((slots, _SLOT), -1, dtype=torch.int32, device=device)
        self._started: list[tuple[int, ...]] = []
        self._words = -(-self._size // 32)
        self._bits = torch.zeros((rows, self._words), dtype=torch.int32, device=device)
        self._rows = torch.zeros((rows, _ROW), dtype=torch.int32, device=device)

        for dtype in (torch.float32, torch.bfloat16):
            self._warm_up(dtype)

    def _warm_up(self, dtype: torch.dtype) -> None:
        """Compile the kernels now, and not while requests wait."""
        nothing = torch.zeros(2, dtype=torch.int32, device=self._device)
        logits = torch.zeros((2, self._size), dtype=dtype, device=self._device)
        self.apply(logits, np.full(2, -1, np.int32), nothing.long(), nothing)

    def add(self, number: int, tables: Tables) -> None:
        arrays = [torch.from_numpy(getattr(tables, name)).to(self._device) for name in _ARRAYS]
        self._tables[number] = arrays
        pointers = torch.tensor([array.data_ptr() for array in arrays], dtype=torch.int64)
        self._pointers[number] = pointers.to(self._device)

    def drop(self, number: int) -> None:
        self._tables.pop(number, None)

    def start(self, slot: int, number: int, place: Place, position: int, end: int) -> None:
        self._started.append((slot, number, *place, position, end))

    def apply(self, logits: torch.Tensor, slots: Rows, positions: torch.Tensor, tokens: torch.Tensor) -> None:
        self._flush()
        count = len(slots)
        row_slots = self._upload(slots)
        bits = self._bits[:count]
        bits.zero_()
        _advance[(count,)](
            self._slots, row_slots, positions, tokens, self._pointers, self._chars, self._modes, bits, self._rows,
            self._size, self._words,
            ARRAYS=len(_ARRAYS), SLOT=_SLOT, ROW=_ROW, CHUNK=_CHUNK, LEAVES=LEAVES,
        )  # fmt: skip
        width = logits.shape[1]
        _mask[(count, triton.cdiv(width, _BLOCK))](
            logits, logits.stride(0), width, self._rows, bits, self._chars, self._close, self._size, self._words,
            self._fill,
            ROW=_ROW, BLOCK=_BLOCK, LEAVES=LEAVES,
        )  # fmt: skip

    def _flush(self) -> None:
        """Write the labels that began since the last step into their slots; the last one of a slot counts."""
        if self._started:
            newest = {slot: (slot, *rest) for slot, *rest in self._started}
            self._started = []
            missing = max(newest) + 1 - len(self._slots)
            if missing > 0:
                # Requests that wait after a preemption keep theirs.
                more = torch.full((missing + len(self._slots), _SLOT), -1, dtype=torch.int32, device=self._device)
                self._slots = torch.cat([self._slots, more])
            values = self._upload(np.array(list(newest.values()), np.int32))
            self._slots.index_copy_(0, values[:, 0].long(), values[:, 1:])

    def _upload(self, values: Rows) -> torch.Tensor:
        host = torch.from_numpy(values)
        if self._device.type == "cuda":
            # Else the host would wait for all the work that the GPU has queued.
            host = host.pin_memory()
        return host.to(self._device, non_blocking=True)


@triton.jit  # type: ignore[untyped-decorator]
def _array(pointers, number, index, ARRAYS: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(pointers + number * ARRAYS + index).to(tl.pointer_type(tl.int32))


@triton.jit  # type: ignore[untyped-decorator]
def _advance(  # type: ignore[no-untyped-def]  # noqa: PLR0915
    slots, row_slots, positions, tokens, pointers, chars_of, modes_of, bits, rows, size, words,
    ARRAYS: tl.constexpr, SLOT: tl.constexpr, ROW: tl.constexpr, CHUNK: tl.constexpr, LEAVES: tl.constexpr,
):  # fmt: skip
    """One program a row: read its token, write where its label stands now, and the bits of its state's own tokens."""
    row = tl.program_id(0)
    slot = tl.load(row_slots + row)
    out = rows + row * ROW
    tl.store(out, 0)
    if slot >= 0:
        own = slots + slot * SLOT
        number = tl.load(own).to(tl.int64)
        state = tl.load(own + 1)
        chars = tl.load(own + 2)
        at = tl.load(own + 3)
        end = tl.load(own + 4)
        position = tl.load(positions + row).to(tl.int32)
        mode_of = _array(pointers, number, 0, ARRAYS)
        base_of = _array(pointers, number, 1, ARRAYS)
        low_of = _array(pointers, number, 2, ARRAYS)
        high_of = _array(pointers, number, 3, ARRAYS)
        closing_of = _array(pointers, number, 4, ARRAYS)
        first_of = _array(pointers, number, 5, ARRAYS)
        token_of = _array(pointers, number, 6, ARRAYS)
        token_chars_of = _array(pointers, number, 7, ARRAYS)
        target_of = _array(pointers, number, 8, ARRAYS)
        target_chars_of = _array(pointers, number, 9, ARRAYS)
        needs_of = _array(pointers, number, 10, ARRAYS)
        if (position == at + 1) & (state >= 0):
            token = tl.load(tokens + row).to(tl.int32)
            mode = tl.load(mode_of + state)
            place = tl.maximum(mode, 0).to(tl.int64) * size + token
            known = (mode >= 0) & (token < size)
            more = tl.load(chars_of + place, mask=known, other=LEAVES).to(tl.int32)
            inside = tl.load(modes_of + place, mask=known, other=0).to(tl.int32)
            first = tl.load(first_of + state)
            last = tl.load(first_of + state + 1)
            found = -1
            for start in range(first, last, CHUNK):
                index = start + tl.arange(0, CHUNK)
                entry = tl.load(token_of + index, mask=index < last, other=-1)
                found = tl.maximum(found, tl.max(tl.where(entry == token, index, -1), 0))
            target = tl.load(target_of + found, mask=found >= 0, other=-1)
            target_chars = tl.load(target_chars_of + found, mask=found >= 0, other=0)
            stays = more != LEAVES
            state = tl.where(stays, tl.load(base_of + state) + inside, target)
            chars = tl.where(stays, chars + more, target_chars)
            at = position
            tl.store(own + 1, state)
            tl.store(own + 2, chars)
            tl.store(own + 3, at)
        if (position == at) & (state >= 0):
            low = tl.load(low_of + state)
            high = tl.load(high_of + state)
            left = end - 1 - position
            tl.store(out, 1)
            tl.store(out + 1, tl.load(mode_of + state))
            tl.store(out + 2, tl.minimum(high - chars, LEAVES - 1))
            tl.store(out + 3, low - chars)
            tl.store(out + 4, left - 1 - tl.load(closing_of + state))
            first = tl.load(first_of + state)
            last = tl.load(first_of + state + 1)
            for start in range(first, last, CHUNK):
                index = start + tl.arange(0, CHUNK)
                listed = index < last
                entry = tl.load(token_of + index, mask=listed, other=0)
                ended = chars + tl.load(token_chars_of + index, mask=listed, other=0)
                needs = tl.load(needs_of + index, mask=listed, other=0)
                admitted = listed & (ended >= low) & (ended <= high) & (needs <= left - 1)
                tl.atomic_or(bits + row * words + entry // 32, 1 << (entry % 32), mask=admitted)


@triton.jit  # type: ignore[untyped-decorator]
def _mask(  # type: ignore[no-untyped-def]
    logits, stride, width, rows, bits, chars_of, close_of, size, words, fill,
    ROW: tl.constexpr, BLOCK: tl.constexpr, LEAVES: tl.constexpr,
):  # fmt: skip
    """One program a row and block of its logits."""
    row = tl.program_id(0)
    own = rows + row * ROW
    if tl.load(own) > 0:
        mode = tl.load(own + 1)
        token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        known = token < size
        word = tl.load(bits + row * words + token // 32, mask=known, other=0)
        allowed = ((word >> (token % 32)) & 1) != 0
        if mode >= 0:
            room = tl.load(own + 2)
            missing = tl.load(own + 3)
            left = tl.load(own + 4)
            place = mode.to(tl.int64) * size + token
            more = tl.load(chars_of + place, mask=known, other=LEAVES).to(tl.int32)
            close = tl.load(close_of + place, mask=known, other=0).to(tl.int32)
            filling = (tl.maximum(missing - more, 0) + fill - 1) // fill
            allowed = allowed | ((more <= room) & (close + filling <= left))
        tl.store(logits + row.to(tl.int64) * stride + token, -float("inf"), mask=(token < width) & (allowed == 0))
