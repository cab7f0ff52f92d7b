"""What the engines are set by: part of :class:`schemas.settings.Settings`."""

from typing import Any, Literal

from pydantic import BaseModel, Field, SecretStr

#: Kinds of node that the engine has defaults for: see ``worker.engine.profiles``.
EngineProfile = Literal["h200", "h100", "a100-80g", "a100-40g", "dgx-spark", "cpu", "default"]
#: Tokens of prompt and output together, by profile, where the model allows more and no setting says less.
LONGEST_CONTEXT: dict[EngineProfile, int] = {
    # One sequence of a model with 128k tokens of context would ask for all that 40 GB leave beside the weights, and
    # vLLM refuses to start if it is more.
    "a100-40g": 32768,
    # A prompt of 131,072 tokens has reset the machine (NVIDIA/dgx-spark-playbooks#97). Longer documents go by the job's
    # over-long policy.
    "dgx-spark": 16384,
    # A small model on a CPU: enough for an abstract, and a prompt stays under a second.
    "cpu": 4096,
}


class EngineSettings(BaseModel):
    """The engine, its model, and what each of ``vllm``, ``openai`` and ``stub`` takes of its own."""

    engine: Literal["vllm", "openai", "stub"] = Field(
        "vllm", description="What labels: vllm, openai (any server with an OpenAI-compatible API), or stub (tests)."
    )
    engine_profile: EngineProfile = Field(
        "default",
        description="A node's set of engine defaults, by its GPU; `cpu` for the CPU build of vLLM. "
        "A setting of your own wins over it.",
    )
    model: str = Field(
        "smollm2-135m-instruct",
        min_length=1,
        max_length=200,
        pattern=r"^[A-Za-z0-9._/:@+-]+$",
        description="The model's name: recorded on jobs, and the name of its queue.",
    )
    model_path: str | None = Field(
        None, description="Folder or hub id that the engine loads. Default: the model's name."
    )
    model_revision: str | None = Field(None, description="Revision on the hub. Pin it in production.")
    max_num_seqs: int | None = Field(None, ge=1, description="Sequences a step. Profile's, else 256.")
    max_num_batched_tokens: int | None = Field(None, ge=1, description="Tokens a step. Profile's, else 8192.")
    max_model_len: int | None = Field(
        None, ge=64, description="Tokens of prompt and output together. Profile's, else the model's."
    )
    gpu_memory_utilization: float | None = Field(
        None, gt=0, le=1, description="Share of the GPU's memory. Profile's, else 0.90."
    )
    tensor_parallel_size: int = Field(1, ge=1, description="GPUs for one model. More only if it fits no one GPU.")
    quantization: str | None = Field(
        None, description="How the weights are quantized, as vLLM names it. Default: what the model says of itself."
    )
    kv_cache_dtype: str | None = Field(
        None,
        description="Number format of the KV cache, as vLLM names it. Default: the model's own. fp8 holds twice the "
        "sequences at some loss of accuracy.",
    )
    reasoning_parser: str | None = Field(
        None,
        description="vLLM's parser for the model's thinking. Needed only if the model thinks, which labelling in bulk "
        "does not pay for.",
    )
    structured_output: Literal["auto", "xgrammar"] = Field(
        "auto",
        description="What holds the vllm engine's output to the label schema: auto (the decoder for schemas of its "
        "subset, which is faster and cuts no row; xgrammar for others) or xgrammar for all.",
    )
    trust_remote_code: bool = Field(
        False, description="Whether a model may bring code that runs on the worker. Only for models that you trust."
    )
    allow_known_bad: bool = Field(
        False,
        description="Start though engine version, device and settings are a combination known to fail or to label "
        "wrongly: a warning instead of an error.",
    )
    engine_args: dict[str, Any] = Field(
        default_factory=dict, description="More vLLM engine arguments, as JSON; they win over the profile."
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=lambda: {"enable_thinking": False},
        description="For the chat template, as JSON. Thinking is off: bulk labelling pays for every token.",
    )
    seed: int = Field(0, ge=0, description="Sampling seed of a row's first try; each further try adds one.")
    openai_base_url: SecretStr | None = Field(
        None,
        description="Address of an OpenAI-compatible server, as http://host:8000/v1. Kept secret, because it may hold "
        "a password.",
    )
    openai_api_key: SecretStr | None = Field(
        None, description="Key for that server. Without one `none` is sent: servers of one's own mostly ask for no key."
    )
    openai_concurrency: int = Field(
        512,
        ge=1,
        le=900,
        description="Requests at the server at once. Twice the 256 sequences a step of a vLLM server, so that its "
        "queue never drains; the client keeps 1000 connections at most.",
    )
    openai_timeout_s: float = Field(
        600,
        gt=0,
        description="Seconds for one request, its time in the server's queue included: behind 512 others on a slow "
        "server that is minutes.",
    )
    openai_lost_after_s: float = Field(
        180,
        gt=0,
        description="Seconds for which the server may be away, at start and later, until it counts as gone. A vLLM "
        "server with compiled kernels restarts in 20 to 105 s.",
    )
    openai_control_tokens: Literal["reject", "keep"] = Field(
        "reject",
        description="A document with text such as <|im_end|>: reject its row, or keep it as it is. Rejected, because "
        "the server's tokenizer can take such text for the end of a turn, and the document then speaks as the system.",
    )
    openai_extra_body: dict[str, Any] = Field(
        default_factory=dict,
        description="More fields for the body of each request, as JSON. For what one kind of server wants.",
    )
    stub_rows_per_s: float = Field(
        0,
        ge=0,
        description="The stub engine's speed (0: at once). Tests set it to hit a chunk in the middle.",
    )
    stub_dies_after_rows: int = Field(
        0,
        ge=0,
        description="Requests after which the stub engine is gone (0: never). Tests set it; a job's canary counts.",
    )
    stub_hangs_after_rows: int = Field(
        0,
        ge=0,
        description="Requests after which the stub engine answers no more (0: never). Tests set it; canaries count.",
    )
    stub_poison: str | None = Field(
        None,
        min_length=1,
        description="Text in a document at which the stub engine dies, see GLEANER_STUB_POISON_KILLS. Tests set it.",
    )
    stub_poison_kills: Literal["engine", "process"] = Field(
        "engine", description="What such a document takes down: the engine, or the whole worker by SIGKILL."
    )
