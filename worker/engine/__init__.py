"""Engines behind one Protocol: a resident vLLM, a server that speaks OpenAI's API, and a stub that answers at once."""

from schemas.errors import EngineUnavailable
from schemas.extras import install
from schemas.settings import Settings
from worker.engine.base import Engine


def create_engine(settings: Settings) -> Engine:
    """The engine that the settings name, not yet started.

    :raises EngineUnavailable: names the package that is missing.
    """
    if settings.engine == "stub":
        from worker.engine.stub import StubEngine  # noqa: PLC0415

        return StubEngine(settings)
    if settings.engine == "openai":
        try:
            from worker.engine.openai import OpenaiEngine  # noqa: PLC0415
        except ImportError as error:
            raise EngineUnavailable(f"the openai engine can't be imported ({error}): {install('openai')}") from None
        return OpenaiEngine(settings)
    # Only here: the import takes seconds and needs torch.
    from worker.engine.vllm import VllmEngine  # noqa: PLC0415

    return VllmEngine(settings)
