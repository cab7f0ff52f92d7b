"""The decoder's kernels against the same on the host: on a GPU, else in Triton's interpreter (TRITON_INTERPRET=1)."""

import os
import random
from itertools import islice, product

import pytest

from schemas.automaton import automaton_of

torch = pytest.importorskip("torch", reason="comes with the engine: make setup ENGINE=vllm")
pytest.importorskip("triton", reason="comes with vLLM for CUDA")
if not torch.cuda.is_available() and not os.environ.get("TRITON_INTERPRET"):
    pytest.skip("neither a GPU nor TRITON_INTERPRET=1", allow_module_level=True)

import numpy as np  # noqa: E402
from tokenizers_made import KINDS, made  # noqa: E402

from worker.decoder.tables import Place, compile_tables  # noqa: E402
from worker.decoder.vocabulary import prepare  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SCHEMAS = [
    {
        "type": "object",
        "properties": {
            "kind": {"type": "string", "enum": ["x", "yé", "yö"]},
            "text": {"type": "string", "minLength": 3, "maxLength": 9},
            "whole": {"type": "integer", "minimum": -5, "maximum": 1200},
            "list": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
            "day": {"type": "string", "format": "date"},
            "part": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        },
        "required": ["kind", "text"],
    },
    {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "note": {"type": "string", "maxLength": 400}},
        "required": ["ok", "note"],
    },
]
ROWS, STEPS = 6, 60
#: Triton's interpreter's own.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:triton")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gpu_masks_what_the_host_masks(kind, dtype):
    from worker.decoder.batch import HostBatch
    from worker.decoder.gpu import GpuBatch

    _, vocabulary, _, end = made(kind)
    host = HostBatch(vocabulary)
    gpu = GpuBatch(vocabulary, DEVICE, 2, ROWS)
    tables = [compile_tables(automaton_of(schema), vocabulary, [end]) for schema in SCHEMAS]
    for number, compiled in enumerate(tables):
        host.add(number, compiled)
        gpu.add(number, compiled)
    chance = random.Random(1)
    torch.manual_seed(1)
    newest: dict[int, tuple[int, int]] = {}

    def begin(slot: int) -> None:
        number = chance.randrange(len(tables))
        budget = tables[number].needed + chance.choice([0, 1, 3, 10, 60])
        for batch in (host, gpu):
            batch.start(slot, number, Place(tables[number].start, 0), 10, 11 + budget)
        newest[slot] = (10, 0)

    for slot in range(ROWS - 1):
        begin(slot)
    ended = 0
    for step in range(STEPS):
        # One row belongs to a request without a label schema, and now and then one is still reading its prompt.
        slots = np.array(chance.sample([*range(ROWS - 1), -1], ROWS), np.int32)
        positions, tokens = (
            list(column) for column in zip(*(newest.get(slot, (3, 0)) for slot in slots.tolist()), strict=True)
        )
        reading = step % 7 == 3
        if reading:
            positions[0] = 2
        expected = torch.randn(ROWS, vocabulary.size + 5)
        masked = expected.to(dtype).to(DEVICE)
        expected = masked.float().cpu()
        host.apply(expected, slots, torch.tensor(positions), torch.tensor(tokens))
        gpu.apply(masked, slots, torch.tensor(positions, device=DEVICE), torch.tensor(tokens, device=DEVICE))
        assert torch.equal(masked.float().cpu(), expected), step
        for row, slot in enumerate(slots.tolist()):
            if slot < 0 or (reading and row == 0):
                continue
            token = int(expected[row].argmax())
            assert expected[row, token] > -torch.inf
            if token == end:
                ended += 1
                begin(slot)
            else:
                newest[slot] = (positions[row] + 1, token)
    assert ended


@pytest.mark.skipif(not torch.cuda.is_available(), reason="reads a GPU's memory")
def test_fifty_label_schemas_take_little_of_the_gpu():
    from worker.decoder.gpu import GpuBatch

    *_, found, end = made("byte level")
    texts = list(found.values())
    pairs = islice(product(texts, texts), 150_000 - len(texts))
    many = found | dict(enumerate((one + other for one, other in pairs), max(found) + 1))
    vocabulary = prepare(many, max(many) + 1)
    fields = {f"text_{n}": {"type": "string", "maxLength": 256} for n in range(16)}
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    tables = compile_tables(automaton_of(schema), vocabulary, [end])
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    batch = GpuBatch(vocabulary, DEVICE, 1024, 256)
    for number in range(50):
        batch.add(number, tables)
    # Issued by the allocator, not computed from the arrays: what another process can no longer have.
    assert 0 < torch.cuda.memory_reserved() - before < 256 * 2**20
