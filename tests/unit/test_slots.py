"""Chunks in flight: enough documents that the engine's queue never drains, whatever the chunk's size."""

import pytest

from schemas.settings import Settings
from worker.cli.start import MAX_SLOTS, slots_for


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ({}, 4),  # 4 x 256
        ({"chunk_size": 64}, 12),
        ({"chunk_size": 64, "max_num_seqs": 512}, 24),
        ({"chunk_size": 16, "engine_profile": "cpu"}, 4),
        ({"chunk_size": 16, "engine": "openai", "openai_concurrency": 32}, 6),
        ({"chunk_size": 1}, MAX_SLOTS),
    ],
)
def test_slots_hold_three_steps_of_documents(settings: dict[str, object], slots: int) -> None:
    assert slots_for(Settings(**settings)) == slots  # type: ignore[arg-type]
