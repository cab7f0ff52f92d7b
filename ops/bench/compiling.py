"""How long the decoder takes to prepare a vocabulary and to compile label schemas for it.

    python -m ops.bench.compiling FILE [--tokens 150000]

FILE is a model's ``tokenizer.json``, or a ``tekken.json``, which lists its tokens as bytes. ``--tokens`` joins tokens
of it until there are as many. On a GPU it also says what 50 label schemas take of its memory.
"""

import argparse
import base64
import json
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

from schemas.automaton import automaton_of
from schemas.label_spec import builtin_names, load_label_spec
from schemas.settings import Settings
from worker.decoder.tables import Tables, compile_tables
from worker.decoder.vocabulary import Vocabulary, prepare, read_vocabulary, token_bytes, write_vocabulary
from worker.engine.profiles import sequences_a_step

#: Times that each label schema is compiled; the slowest counts.
RUNS = 3
#: Label schemas whose GPU memory is read.
ON_GPU = 50
_WHOLE = {"type": "integer", "minimum": -(2**53 - 1), "maximum": 2**53 - 1}
_DAY = {"type": "string", "format": "date"}


def _label(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def _text(high: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": high}


#: Label schemas that are made of one costly thing each.
SCHEMAS: dict[str, dict[str, Any]] = {
    "10 unlimited integers": _label(**{f"field_{n}": _WHOLE for n in range(10)}),
    "10 numbers from 0 to 1": _label(
        **{f"field_{n}": {"type": "number", "minimum": 0, "maximum": 1} for n in range(10)}
    ),
    "3 dates": _label(**{f"day_{n}": _DAY for n in range(3)}),
    "an enum of 500": _label(kind={"enum": [f"value_{7919 * n % 10007}" for n in range(500)]}),
    "16 texts in a list": _label(tags={"type": "array", "items": _text(40), "maxItems": 16}),
    "22 fields of all kinds": _label(
        **{f"text_{n}": _text(256) for n in range(12)},
        **{f"flag_{n}": {"type": "boolean"} for n in range(8)},
        count=_WHOLE,
        nested=_label(a=_text(30), b={"anyOf": [{"type": "number"}, {"type": "null"}]}),
    ),
}


def tokens_of(file: Path, count: int) -> dict[int, bytes]:
    """The bytes of a tokenizer's tokens, made up to ``count`` by joining two and two."""
    content = json.loads(file.read_text())
    if "model" in content:
        from tokenizers import Tokenizer  # noqa: PLC0415

        found = token_bytes(Tokenizer.from_file(str(file)))
    else:
        found = {number: base64.b64decode(token["token_bytes"]) for number, token in enumerate(content["vocab"])}
    texts = list(found.values())
    known, number = set(texts), max(found) + 1
    for one, other in product(texts[1000:], texts[1000:1100]):
        if len(found) >= count:
            break
        if one + other not in known:
            known.add(one + other)
            found[number] = one + other
            number += 1
    return found


def gpu_memory(vocabulary: Vocabulary, tables: list[Tables], rows: int) -> int | None:
    """Bytes that PyTorch takes from the GPU for a decoder with these label schemas; None without a GPU.

    :param rows: sequences of a step.
    """
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available():
        return None
    from worker.decoder.gpu import GpuBatch  # noqa: PLC0415

    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    batch = GpuBatch(vocabulary, torch.device("cuda"), 4 * rows, rows)
    for number, compiled in enumerate(tables):
        batch.add(number, compiled)
    return int(torch.cuda.memory_reserved() - before)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--tokens", type=int, default=150_000)
    arguments = parser.parse_args()
    found = tokens_of(arguments.file, arguments.tokens)
    started = time.perf_counter()
    size = max(found) + 2
    vocabulary = prepare(found, size)
    print(f"{len(found):,} tokens, prepared in {time.perf_counter() - started:.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "vocabulary.npz"
        write_vocabulary(vocabulary, file)
        started = time.perf_counter()
        read_vocabulary(file)
        print(f"{file.stat().st_size / 2**20:.1f} MiB on disk, read in {time.perf_counter() - started:.2f} s")
    arrays = vocabulary.chars.nbytes + vocabulary.modes.nbytes + vocabulary.close.nbytes
    print(f"{arrays / 2**20:.1f} MiB of arrays for the GPU")
    builtin = {name: json.loads(load_label_spec(name)[0].schema_text) for name in builtin_names()}
    largest: Tables | None = None
    for name, schema in (builtin | SCHEMAS).items():
        times = []
        for _ in range(RUNS):
            started = time.perf_counter()
            tables = compile_tables(automaton_of(schema), vocabulary, [size - 1])
            times.append(time.perf_counter() - started)
        print(f"{name}: {1000 * max(times):.0f} ms, {len(tables.mode)} states, {len(tables.token):,} tokens")
        if largest is None or len(tables.token) > len(largest.token):
            largest = tables
    assert largest is not None
    taken = gpu_memory(vocabulary, [largest] * ON_GPU, sequences_a_step(Settings()))
    if taken is not None:
        print(f"{taken / 2**20:.1f} MiB of the GPU for {ON_GPU} of the largest")


if __name__ == "__main__":
    main()
