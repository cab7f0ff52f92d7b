"""The decoder inside vLLM's worker process: mixed into its worker, reached by ``collective_rpc``.

Both of vLLM's model runners are served. The older one takes a batch-level logits processor; it is put into the runner
after the start and not named in the engine's arguments, because the runner then copies each sampled token to the host
before the next one, which costs the overlap of the two. The newer one refuses logits processors up to vLLM 0.31: there
the sampler is wrapped. Either way the tokens come from the runner's device tensors, and nothing waits for the host.
"""

import io
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm.v1.sample.logits_processor import LogitsProcessor

from worker.decoder.batch import Batch, HostBatch, Rows
from worker.decoder.slots import Slots
from worker.decoder.tables import Tables
from worker.decoder.vocabulary import read_vocabulary

#: Slots for each row of a step: ended requests keep theirs until all are taken.
_SLOTS_A_ROW = 4


def pack(tables: Tables) -> bytes:
    """Tables as bytes, for the way to another process."""
    stream = io.BytesIO()
    arrays = {field.name: np.asarray(getattr(tables, field.name)) for field in fields(Tables)}
    np.savez(stream, allow_pickle=False, **arrays)
    return stream.getvalue()


def unpack(packed: bytes) -> Tables:
    """The tables that :func:`pack` packed."""
    with np.load(io.BytesIO(packed)) as kept:
        arrays: dict[str, Any] = {field.name: kept[field.name] for field in fields(Tables)}
    return Tables(**arrays | {name: int(array) for name, array in arrays.items() if not array.ndim})


class DecoderExtension:
    """Methods of a vLLM worker (``worker_extension_cls``)."""

    model_runner: Any
    vllm_config: Any
    _decoder_slots: Slots | None = None

    def install_decoder(self, vocabulary_file: str) -> str:
        """Put the decoder into this worker's model runner; returns why it can't be, empty if it could."""
        try:
            return self._install_decoder(vocabulary_file)
        except Exception as error:
            # An engine whose inside looks otherwise still has its grammar backend.
            return f"{type(error).__name__}: {error}"

    def _install_decoder(self, vocabulary_file: str) -> str:
        runner, config = self.model_runner, self.vllm_config
        if config.speculative_config is not None:
            return "speculative decoding is on"
        if not Path(vocabulary_file).exists():
            return f"{vocabulary_file} is not on this worker's machine"
        vocabulary = read_vocabulary(Path(vocabulary_file))
        rows = config.scheduler_config.max_num_seqs
        batch: Batch
        if runner.device.type == "cuda":
            from worker.decoder.gpu import GpuBatch  # noqa: PLC0415

            batch = GpuBatch(vocabulary, runner.device, _SLOTS_A_ROW * rows, rows)
        else:
            batch = HostBatch(vocabulary)
        slots = Slots(batch, vocabulary, _SLOTS_A_ROW * rows, config.model_config.max_model_len)
        if hasattr(runner, "req_states"):
            # Only the last stage of a pipeline samples.
            if runner.sampler is not None:
                runner.sampler = _Sampler(runner.sampler, slots)
                _follow_requests(runner, slots)
        else:
            processors = runner.input_batch.logitsprocs
            processors.non_argmax_invariant.append(_Processor(runner, slots))
        self._decoder_slots = slots
        return ""

    def add_decoder_tables(self, number: int, packed: bytes) -> None:
        """Make a label schema known by its number."""
        assert self._decoder_slots is not None
        self._decoder_slots.add(number, unpack(packed))

    def drop_decoder_tables(self, number: int) -> None:
        """Forget a label schema that no request has."""
        assert self._decoder_slots is not None
        self._decoder_slots.drop(number)


class _Processor(LogitsProcessor):  # type: ignore[misc]
    """For the older model runner."""

    def __init__(self, runner: Any, slots: Slots) -> None:
        self._runner, self._slots = runner, slots
        self._before: set[str] = set()
        self._rows: Rows | None = None

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        if batch_update is None:
            return
        runner = self._runner
        requests = list(runner.input_batch.req_ids)
        for request in requests:
            # One that was away, after a preemption or for a step, has its output from the scheduler.
            if request not in self._before:
                state = runner.requests[request]
                self._slots.start(
                    request,
                    state.sampling_params,
                    state.num_prompt_tokens,
                    state.output_token_ids,
                    runner.requests.keys(),
                )
        self._before = set(requests)
        self._rows = self._slots.rows(requests)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if self._rows is not None and len(self._rows) == len(logits):
            runner = self._runner
            last = runner.query_start_loc.gpu[1 : len(logits) + 1] - 1
            self._slots.apply(logits, self._rows, runner.positions[last], runner.input_ids.gpu[last])
        return logits


class _Sampler:
    """For the newer model runner: its sampler, behind a mask."""

    def __init__(self, sampler: Any, slots: Slots) -> None:
        self._sampler, self._slots = sampler, slots

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def __call__(self, logits: torch.Tensor, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        rows = self._slots.rows(input_batch.req_ids)
        if rows is not None and len(rows) == len(logits):
            last = input_batch.logits_indices
            self._slots.apply(logits, rows, input_batch.positions[last], input_batch.input_ids[last])
        return self._sampler(logits, input_batch, *args, **kwargs)


def _follow_requests(runner: Any, slots: Slots) -> None:
    """Tell the slots of every request that the newer model runner takes up; a preempted one comes again."""
    add_requests = runner.add_requests

    def add_and_start(scheduler_output: Any) -> None:
        add_requests(scheduler_output)
        for request in scheduler_output.scheduled_new_reqs:
            prompt_tokens = len(request.prompt_token_ids)
            output = request.prefill_token_ids[prompt_tokens:]
            slots.start(
                request.req_id, request.sampling_params, prompt_tokens, output, runner.req_states.req_id_to_index
            )

    runner.add_requests = add_and_start
