"""Engines behind one Protocol: a resident vLLM, and a stub that answers at once."""

from schemas.settings import Settings
from worker.engine.base import Engine


def create_engine(settings: Settings) -> Engine:
    """The engine that the settings name, not yet started."""
    if settings.engine == "stub":
        from worker.engine.stub import StubEngine  # noqa: PLC0415

        return StubEngine(settings)
    # Only here: the import takes seconds and needs torch.
    from worker.engine.vllm import VllmEngine  # noqa: PLC0415

    return VllmEngine(settings)
