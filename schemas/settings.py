"""One frozen :class:`Settings` a process, read from ``GLEANER_*`` variables and env files."""

import difflib
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings import SettingsError as NotJson

from schemas.env_files import ENV_FILES, ENV_PREFIX, SettingsError, given_variables

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


class Settings(BaseSettings):
    """Everything that can be set, with unit, default and the reason for the default."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_file=ENV_FILES,
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        allow_inf_nan=False,
    )

    # -- services ---------------------------------------------------------------------------------
    database_url: SecretStr = Field(
        SecretStr("postgresql://gleaner@127.0.0.1:5432/gleaner"),
        description="Postgres, as a URL. Default: the local server, no password.",
    )
    database_connect_timeout_s: int = Field(
        5, ge=1, le=3600, description="Seconds to wait for a connection. Short, so that a wrong host is said at once."
    )
    database_statement_timeout_s: int = Field(
        60,
        ge=0,
        le=2_000_000,
        description="Seconds one statement may take (0: no limit); loading and migrating are exempt. A chunk's "
        "statements take milliseconds: a minute means that the server is in trouble.",
    )
    database_prepare: bool = Field(
        True,
        description="Prepared statements. Turn off behind PgBouncer in transaction mode, which is for workers alone: "
        "`producer` holds locks by session and needs a direct connection.",
    )
    broker_url: SecretStr = Field(
        SecretStr("redis://127.0.0.1:6379/0"),
        description="Redis or Valkey, as a URL. Default: the local server.",
    )
    broker_key_prefix: str = Field(
        "gleaner:",
        pattern=r"^[!-~]*$",
        description="Put before every broker key, so that several systems can share one Redis.",
    )
    broker_connect_timeout_s: float = Field(
        5, gt=0, le=3600, description="Seconds to wait for a connection to the broker."
    )
    broker_visibility_timeout_s: int = Field(
        4 * 3600,
        ge=1,
        description="Seconds after which the broker delivers an unacknowledged message again. Far above the time of "
        "a chunk: leases in Postgres, not this, decide who works on what.",
    )

    # -- producer ---------------------------------------------------------------------------------
    chunk_size: int = Field(
        256,
        ge=1,
        le=100_000,
        description="Documents a chunk (one message). The engine's max_num_seqs: four chunks in flight "
        "keep it fed, and a lost worker repeats little.",
    )
    document_max_chars: int = Field(
        1_000_000,
        ge=1,
        description="Characters a document may have; longer records are rejected as too_large. About 250,000 tokens, "
        "beyond every context length in use.",
    )
    record_max_bytes: int = Field(
        16 * 1024 * 1024,
        ge=1024,
        le=255 * 1024 * 1024,
        description="Bytes a record may have in its file. Bounds memory when a file has no line ends; "
        "Postgres takes no jsonb of 256 MiB.",
    )
    fetch_timeout_s: float = Field(
        60,
        gt=0,
        le=3600,
        description="Seconds without a byte after which the connection that fetches a corpus by URL counts as lost. "
        "Servers under load pause for seconds: after a minute nothing comes any more.",
    )
    reconcile_s: float = Field(
        10,
        gt=0,
        description="Seconds between two passes of the reconciler. A pass reads only what is open, in milliseconds.",
    )
    gpu_hour_price: float | None = Field(
        None,
        ge=0,
        description="Price of one GPU for an hour, in any currency: estimates then say what a job costs. "
        "Not set, because nobody else can know it.",
    )

    # -- worker -----------------------------------------------------------------------------------
    worker_slots: int | None = Field(
        None,
        ge=1,
        le=64,
        description="Chunks in flight at once. Default: as many chunks of GLEANER_CHUNK_SIZE as hold 3 x max_num_seqs "
        "documents, at least 4: two steps' worth always wait while a chunk ends and the next is claimed.",
    )
    lease_s: int = Field(
        120,
        ge=3,
        le=86_400,
        description="Seconds a chunk stays with its worker without a sign of life. Renewed every third of it; "
        "longer than a pause for garbage collection or a slow commit, short enough for a fast takeover.",
    )
    write_batch_rows: int = Field(
        128, ge=1, le=10_000, description="Rows a write. Beyond about 100 the round trip no longer counts."
    )
    write_interval_s: float = Field(
        1.0, gt=0, description="Seconds after which finished rows are written though the batch is not full."
    )
    retry_s: float = Field(
        60,
        gt=0,
        description="Seconds for which a worker tries again when Postgres is in trouble, until it gives the chunk "
        "back. A restart or a failover takes less; a longer outage is waited for without chunks in hand.",
    )
    row_attempts: int = Field(
        3, ge=1, le=10, description="Tries for one row: a third try rarely mends what two could not."
    )
    chunk_attempts: int = Field(
        3,
        ge=1,
        description="Times a chunk may go wrong, by an error or by the end of its worker or engine, until it is "
        "quarantined: worked on with nothing else at the engine, and halved until the document at fault is found. "
        "Restarts and power cuts strike a chunk once or twice; a third time is likely its own doing.",
    )
    poison_limit: int = Field(
        10,
        ge=1,
        description="Documents of a job that turn out to be poison after which it is paused. Finding one ends some ten "
        "engines; more of them are likely the engine's fault, and a person should look.",
    )
    fair_share: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Share of claims that go to the oldest job whatever its priority, and to quarantined chunks before "
        "others, so that nothing waits for ever.",
    )
    stall_s: float = Field(
        300,
        gt=0,
        description="Seconds without an answer from the engine to a waiting request, or without taking a message "
        "while the queue holds some, after which a worker counts as stuck: /health turns red and the worker leaves to "
        "be started anew. A slow CPU needs minutes for its first long row.",
    )
    health_host: str = Field(
        "127.0.0.1", description="Address on which a worker tells its health. Loopback, because it asks no password."
    )
    health_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="Port for it. Default: the first free one from 9790, so that several workers share a host.",
    )
    memory_limit_gib: float | None = Field(
        None,
        gt=0,
        description="GiB of host memory (resident, this process and its children) above which a worker finishes its "
        "chunks and exits 75, to be started anew. Off by default, because models differ; set it to about twice what "
        "`worker check` shows: engines have leaked host memory on long runs.",
    )
    shutdown_s: float = Field(
        30,
        gt=0,
        description="Seconds a worker may take to write finished rows and give chunks back at SIGTERM.",
    )

    # -- engine -----------------------------------------------------------------------------------
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

    # -- local stack (written by ops.local, read by it and by `producer`) ---------------------------
    analyst_url: SecretStr | None = Field(None, description="Postgres as a read-only role, for the psql line.")
    flower_port: int = Field(5555, ge=1, le=65535, description="Flower's port on loopback.")
    flower_user: str = Field("gleaner", description="Flower's user.")
    flower_password: SecretStr | None = Field(None, description="Flower's password; generated by `make up`.")
    state_dir: Path = Field(Path(".gleaner"), description="Where the local stack keeps data, logs and passwords.")

    @property
    def engine_stall_s(self) -> float:
        """``stall_s``, and never less than a request to a server may take."""
        return max(self.stall_s, self.openai_timeout_s) if self.engine == "openai" else self.stall_s

    @field_validator("database_url", "analyst_url")
    @classmethod
    def _is_postgres(cls, url: SecretStr | None) -> SecretStr | None:
        # Said in our own words: libpq's quote what they could not read, and that may be the password.
        if url is None:
            return url
        if not url.get_secret_value().startswith(("postgresql://", "postgres://")):
            raise ValueError("it must begin with postgresql://")
        try:
            conninfo_to_dict(url.get_secret_value())
        except psycopg.Error:
            raise ValueError(_BAD_URL) from None
        return url

    @field_validator("broker_url")
    @classmethod
    def _is_redis(cls, url: SecretStr) -> SecretStr:
        try:
            parts = urlsplit(url.get_secret_value())
            sound = parts.scheme in ("redis", "rediss") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            sound = False
        if not sound or not re.fullmatch(r"/?\d*", parts.path) or parts.fragment:
            raise ValueError(_BAD_URL.replace("postgresql", "redis"))
        return url


#: For URLs that can't be read; never with what was given, which holds a password.
_BAD_URL = (
    "it is no URL of the form postgresql://user:password@host:port/name: in a password write each of : / ? # [ ] @ % "
    "as a percent sign and its code, as in %23 for #"
)


@dataclass(frozen=True)
class SettingFault:
    """What is wrong with a variable, and where it was given: an env file or ``the environment``."""

    name: str
    place: str
    message: str


class _SoundSettings(Settings):
    """Settings from what is passed alone."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def _unknown_names() -> list[SettingFault]:
    known = [name.upper() for name in Settings.model_fields]
    unknown = {}
    for given in given_variables():
        if given.setting not in Settings.model_fields:
            # Without the prefix, which would make every name look near.
            near = difflib.get_close_matches(given.setting.upper(), known, n=1)
            message = f"{given.name} is no setting" + (f": did you mean {ENV_PREFIX}{near[0]}?" if near else "")
            unknown[given.name] = SettingFault(given.name, given.place, message)
    return [fault for _, fault in sorted(unknown.items())]


def problem(error: Any) -> str:
    """One of pydantic's errors in words for people."""
    if error["type"] in ("int_parsing", "int_from_float", "int_type"):
        return f"{error['input']!r} is not a whole number"
    if error["type"] in ("float_parsing", "float_type"):
        return f"{error['input']!r} is not a number"
    return str(error["msg"]).removeprefix("Value error, ")


def settings_and_faults() -> tuple[Settings, list[SettingFault]]:
    """The settings with whatever is wrong left at its default, and what is wrong: to be shown, not to work with."""
    faults = _unknown_names()
    given = {one.setting: one for one in given_variables() if one.setting in Settings.model_fields and one.value}
    values: dict[str, Any] = {}
    for field, one in given.items():
        values[field] = one.value
        if Settings.model_fields[field].annotation == dict[str, Any]:
            try:
                values[field] = json.loads(one.value)
            except ValueError as error:
                del values[field]
                faults.append(SettingFault(ENV_PREFIX + field.upper(), one.place, _not_json(field, error)))
    while True:
        try:
            return _SoundSettings(**values), faults
        except ValidationError as error:
            for item in error.errors():
                field = str(item["loc"][0])
                name = ENV_PREFIX + field.upper()
                faults.append(SettingFault(name, given[field].place, f"{name}: {problem(item)}"))
                values.pop(field, None)


def _not_json(field: str, cause: BaseException | None) -> str:
    return f"{ENV_PREFIX}{field.upper()}: not JSON: {cause}"


@lru_cache(maxsize=1)
def load_settings() -> Settings:
    """Read the settings once a process.

    :raises SettingsError: names each bad or unknown variable and what it takes.
    """
    unknown = "; ".join(fault.message for fault in _unknown_names())
    if unknown:
        raise SettingsError(unknown + ("" if unknown.endswith("?") else ".") + " `producer doctor` lists the settings.")
    try:
        return Settings()
    except NotJson as error:
        field = next((name for name in Settings.model_fields if f'"{name}"' in str(error)), "")
        raise SettingsError(_not_json(field, error.__cause__)) from None
    except ValidationError as error:
        problems = [
            f"{ENV_PREFIX}{'.'.join(str(part) for part in e['loc']).upper()}: {problem(e)}" for e in error.errors()
        ]
        raise SettingsError("; ".join(problems)) from None
