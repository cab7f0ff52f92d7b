"""One frozen :class:`Settings` a process, read from ``GLEANER_*`` variables and env files."""

import difflib
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pydantic import ConfigDict, Field, SecretStr, ValidationError, field_validator

from schemas.engine_settings import EngineSettings
from schemas.env_files import ENV_FILES, ENV_PREFIX, Given, SettingsError, given_variables


class Settings(EngineSettings):
    """Everything that can be set, with unit, default and the reason for the default.

    Made here it holds what it is given alone; :func:`load_settings` reads the variables.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

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
        description="Prepared statements, and settings of our own for each connection. Turn off behind PgBouncer in "
        "transaction mode, which takes neither: statement_timeout and jit=off are then for ALTER ROLE to set. For "
        "workers alone: `producer` holds locks by connection and needs a direct one.",
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
    page_max_bytes: int = Field(
        8 * 1024 * 1024,
        ge=1,
        description="Bytes of documents that a chunk has in work at once; one document alone may be larger. The whole "
        "of a chunk of 256, up to 8,000 tokens each; longer ones follow when these are done. A page takes about 230 "
        "MiB while it is encoded, 1.2 GiB where two documents fill it, in each of GLEANER_WORKER_SLOTS.",
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
    row_max_tries: int = Field(
        3, ge=1, le=10, description="Tries for one row: a third try rarely mends what two could not."
    )
    chunk_max_failures: int = Field(
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


def _unknown_names(variables: list[Given]) -> list[SettingFault]:
    known = [name.upper() for name in Settings.model_fields]
    unknown = {}
    for given in variables:
        if given.setting not in Settings.model_fields:
            # Without the prefix, which would make every name look near.
            near = difflib.get_close_matches(given.setting.upper(), known, n=1)
            message = f"{given.name} is no setting" + (f": did you mean {ENV_PREFIX}{near[0]}?" if near else "")
            unknown[given.name] = SettingFault(given.name, given.place, message)
    return [fault for _, fault in sorted(unknown.items())]


#: pydantic's errors about bounds, by type, as what a number must be.
_BOUNDS = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
}


def problem(error: Any) -> str:
    """One of pydantic's errors in words for people."""
    if error["type"] in ("int_parsing", "int_from_float", "int_type"):
        return f"{error['input']!r} is not a whole number"
    if error["type"] in ("float_parsing", "float_type"):
        return f"{error['input']!r} is not a number"
    if error["type"] in _BOUNDS:
        return f"{error['input']!r} is not {_BOUNDS[error['type']].format(**error['ctx'])}"
    if error["type"] == "literal_error":
        return f"{error['input']!r} is none of {error['ctx']['expected']}"
    return str(error["msg"]).removeprefix("Value error, ")


def where_from(settings: Settings, field: str) -> str:
    """Where a setting is looked for, as the end of a remedy; nothing of one that was given."""
    if field in settings.model_fields_set:
        return ""
    return f": it is set in no variable, and not in {' or '.join(ENV_FILES)} of this folder"


def settings_and_faults() -> tuple[Settings, list[SettingFault]]:
    """The settings with whatever is wrong left at its default, and what is wrong: to be shown, not to work with."""
    variables = given_variables()
    faults = _unknown_names(variables)
    given = {one.setting: one for one in variables if one.setting in Settings.model_fields and one.value}
    values: dict[str, Any] = {}
    for field, one in given.items():
        try:
            is_json = Settings.model_fields[field].annotation == dict[str, Any]
            values[field] = json.loads(one.value) if is_json else one.value
        except ValueError as error:
            faults.append(_fault(field, one, f"not JSON: {error}"))
    while True:
        try:
            return Settings(**values), faults
        except ValidationError as error:
            for item in error.errors():
                field = str(item["loc"][0])
                faults.append(_fault(field, given[field], problem(item)))
                values.pop(field, None)


def _fault(field: str, given: Given, words: str) -> SettingFault:
    name = ENV_PREFIX + field.upper()
    return SettingFault(name, given.place, f"{name}: {words}")


@lru_cache(maxsize=1)
def load_settings() -> Settings:
    """Read the settings once a process.

    :raises SettingsError: names each bad or unknown variable and what it takes.
    """
    settings, faults = settings_and_faults()
    if faults:
        wrong = "; ".join(fault.message for fault in faults)
        raise SettingsError(wrong + ("" if wrong.endswith("?") else ".") + " `producer doctor` lists the settings.")
    return settings
