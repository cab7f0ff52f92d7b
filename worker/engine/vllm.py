"""A resident vLLM engine: one AsyncLLM on a loop of its own, fed from any thread."""

import contextlib
import logging
import os
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from schemas.engine_settings import LONGEST_CONTEXT
from schemas.errors import EngineUnavailable
from schemas.extras import install
from schemas.outcomes import EngineLost, Outcome, Reason, RequestFailed, RowFinal
from schemas.settings import Settings
from worker.decoder import ARGUMENT
from worker.engine.base import DECODER, EngineInfo, Generation, Prompt, Request
from worker.engine.chat import ChatTokenizer
from worker.engine.combinations import require_good
from worker.engine.decoding import Compiled, Decoders
from worker.engine.loop import LoopThread
from worker.engine.profiles import COMMON, PROFILES

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds the engine's own shutdown may take; it takes about five.
CLOSE_TIMEOUT_S = 20.0

#: What vLLM mixes into its workers, by name: the decoder.
DECODER_EXTENSION = "worker.decoder.extension.DecoderExtension"
#: Settings that are engine arguments of the same name; unset ones are left to the profile.
_ARGUMENTS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "gpu_memory_utilization",
    "quantization",
    "kv_cache_dtype",
    "reasoning_parser",
)


def engine_arguments(settings: Settings) -> dict[str, Any]:
    """Arguments for vLLM: common ones, then the profile's, then each that was set, then ``engine_args``."""
    arguments = {**COMMON, **PROFILES[settings.engine_profile].arguments}
    given = {name: getattr(settings, name) for name in _ARGUMENTS}
    arguments |= {name: value for name, value in given.items() if value is not None}
    arguments |= {
        "model": settings.model_path or settings.model,
        "served_model_name": settings.model,
        "revision": settings.model_revision,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "trust_remote_code": settings.trust_remote_code,
        "seed": settings.seed,
    }
    if settings.structured_output == "auto":
        arguments["worker_extension_cls"] = DECODER_EXTENSION
    return arguments | settings.engine_args


class VllmEngine:
    """See :class:`worker.engine.base.Engine`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop = LoopThread("engine-loop")
        self._numbers = count()
        self._llm: Any = None
        self._chat: ChatTokenizer
        self._decoders: Decoders | None = None
        self._info: EngineInfo
        self._closed = False

    def start(self) -> None:
        path = Path(self._settings.model_path or "")
        for name, value in self._environment(path.is_dir()).items():
            os.environ.setdefault(name, value)
        try:
            from vllm import __version__ as version  # noqa: PLC0415
        except ImportError as error:
            raise EngineUnavailable(
                f"the vllm engine can't be imported ({error}). For a GPU: {install('vllm')}; for a CPU: "
                "make setup ENGINE=vllm; or set GLEANER_ENGINE=stub to try everything but the model."
            ) from None
        arguments = engine_arguments(self._settings)
        for combination in require_good(self._settings, arguments, version, _device()):
            logger.warning("started in spite of a known fault: %s", combination)
        self._loop.start()
        try:
            self.run(self._build(arguments, version))
        except Exception as error:
            raise EngineUnavailable(
                f"vLLM could not start {self._settings.model_path or self._settings.model}: {_cause(error)}"
            ) from error

    def _environment(self, local_model: bool) -> dict[str, str]:
        return {
            # A forked engine core would inherit Celery's threads and a CUDA context that it can't use.
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
            "VLLM_LOGGING_LEVEL": "WARNING",
            # Its own default is stdout, which belongs to the answers of `worker check --json`.
            "VLLM_LOGGING_STREAM": "ext://sys.stderr",
            "VLLM_NO_USAGE_STATS": "1",
            # Its kernels are compiled at the first start, for more than a minute and with nvcc, and no label at
            # temperature 0 uses them: vLLM has its own for top_p.
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            # Batches are tokenized by the Rust library's own threads, and nothing forks after them.
            "TOKENIZERS_PARALLELISM": "true",
            **({"HF_HUB_OFFLINE": "1"} if local_model else {}),
            **PROFILES[self._settings.engine_profile].environment,
        }

    async def _build(self, arguments: dict[str, Any], version: str) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415
        from vllm.usage.usage_lib import UsageContext  # noqa: PLC0415
        from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415

        engine_args = AsyncEngineArgs(**arguments)
        # As an argument it would refuse every model with a shorter context.
        longest = LONGEST_CONTEXT.get(self._settings.engine_profile)
        if longest is not None and engine_args.max_model_len is None:
            engine_args.max_model_len = min(longest, engine_args.create_model_config().max_model_len)
        self._llm = AsyncLLM.from_engine_args(engine_args, usage_context=UsageContext.LLM_CLASS)
        tokenizer = self._llm.get_tokenizer()
        self._chat = ChatTokenizer(tokenizer, self._settings.chat_template_kwargs)
        config = self._llm.vllm_config
        # The decoder knows no thinking before a label.
        if arguments.get("worker_extension_cls") == DECODER_EXTENSION and not arguments.get("reasoning_parser"):
            self._decoders = await Decoders.install(tokenizer.backend_tokenizer, self._end_tokens(), self._call_workers)
        self._info = EngineInfo(
            engine="vllm",
            version=version,
            model=self._settings.model,
            model_path=arguments["model"],
            revision=arguments["revision"],
            max_model_len=config.model_config.max_model_len,
            max_num_seqs=config.scheduler_config.max_num_seqs,
            structured_backend=_backend(arguments, self._decoders is not None),
            arguments={
                **{name: value for name, value in arguments.items() if name not in ("model", "revision")},
                "chat_template_kwargs": self._settings.chat_template_kwargs,
            },
        )

    def _end_tokens(self) -> list[int]:
        """The tokens at which vLLM ends an output by itself."""
        given = self._llm.vllm_config.model_config.try_get_generation_config().get("eos_token_id")
        ends = given if isinstance(given, list) else [given]
        return sorted({end for end in (*ends, self._llm.get_tokenizer().eos_token_id) if end is not None})

    async def _call_workers(self, method: str, *arguments: Any) -> list[Any]:
        return list(await self._llm.collective_rpc(method, args=arguments))

    @property
    def llm(self) -> Any:
        """The AsyncLLM itself, for measurements that ask it for what no label needs."""
        return self._llm

    @property
    def info(self) -> EngineInfo:
        return self._info

    def encode(self, system_prompt: str, user_texts: Sequence[str]) -> list[Prompt]:
        return [Prompt(len(tokens), tokens) for tokens in self._chat.encode(system_prompt, user_texts)]

    def offsets(self, text: str) -> list[int]:
        return self._chat.offsets(text)

    def submit(self, request: Request) -> Future[Generation]:
        return self._loop.submit(self.generate(request))

    async def generate(self, request: Request) -> Generation:
        """:meth:`submit` for those who are on the engine's loop already."""
        from vllm import exceptions  # noqa: PLC0415
        from vllm.inputs.engine import tokens_input  # noqa: PLC0415
        from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams  # noqa: PLC0415
        from vllm.v1.engine.exceptions import EngineDeadError  # noqa: PLC0415

        final = None
        decoder = await self._decoder(request)
        try:
            parameters = SamplingParams(
                max_tokens=request.max_tokens,
                temperature=request.temperature,
                top_p=request.top_p,
                seed=request.seed,
                structured_outputs=None
                if decoder or not request.schema_text
                else StructuredOutputsParams(json=request.schema_text),
                extra_args={ARGUMENT: decoder.number} if decoder else None,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            stream = self._llm.generate(
                tokens_input(list(request.prompt.tokens)), parameters, request_id=str(next(self._numbers))
            )
            async for output in stream:
                final = output
        except EngineDeadError as error:
            raise EngineLost(str(error)) from None
        # vLLM 0.26 raises ValueError for what later versions have a class for.
        except (getattr(exceptions, "VLLMClientError", ValueError), ValueError) as error:
            # Said before the request reaches the core: the same prompt would be refused again.
            raise RowFinal(Outcome.REJECTED, Reason.REFUSED, _cause(error)) from None
        except Exception as error:
            if self.lost:
                raise EngineLost(str(error)) from None
            raise RequestFailed(_cause(error)) from error
        finally:
            if decoder:
                decoder.requests -= 1
        if final is None:
            raise RequestFailed("the engine ended the request without an output")
        completion = final.outputs[0]
        if completion.finish_reason in (None, "abort", "error"):
            raise RequestFailed(f"the engine ended the request: {completion.finish_reason}")
        return Generation(
            text=completion.text,
            finish_reason=completion.finish_reason,
            prompt_tokens=request.prompt.size,
            output_tokens=len(completion.token_ids),
            cached_tokens=final.num_cached_tokens or 0,
        )

    async def _decoder(self, request: Request) -> Compiled | None:
        """What the decoder has for a request, counted as under way; None if the grammar backend takes it."""
        if self._decoders is None or not request.schema_text:
            return None
        decoder = await self._decoders.get(request.schema_text)
        if decoder is None or request.max_tokens < decoder.tables.needed:
            return None
        decoder.requests += 1
        return decoder

    @property
    def lost(self) -> bool:
        return self._llm is not None and not self._closed and bool(self._llm.errored)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._llm is not None:
            with contextlib.suppress(TimeoutError):
                self.run(self._shut_down(), timeout=CLOSE_TIMEOUT_S)
            # Now, not when the interpreter takes its modules apart: vLLM shuts down once more as it is collected.
            self._llm = None
        self._loop.close(CLOSE_TIMEOUT_S)

    async def _shut_down(self) -> None:
        self._llm.shutdown()

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the engine's loop and wait for it, from another thread."""
        return self._loop.run(work, timeout)


def _backend(arguments: dict[str, Any], decoder: bool) -> str:
    backend = str(arguments["structured_outputs_config"]["backend"])
    return f"{DECODER}, else {backend}" if decoder else backend


def _device() -> str:
    """The GPU's name as the driver says it; empty where there is none."""
    from vllm.platforms import current_platform  # noqa: PLC0415

    return str(current_platform.get_device_name()) if current_platform.is_cuda() else ""


def _cause(error: BaseException) -> str:
    """One line: the innermost cause, which names the setting; what wraps it only says that starting failed."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
