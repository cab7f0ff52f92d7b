"""Small tokenizers of three kinds, trained on the spot, and the demo's own where it is converted."""

import os
from functools import cache
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from worker.decoder.vocabulary import Vocabulary, prepare, token_bytes

END = "<|end|>"
#: Labels and prose: tokens then cross from one part of a label into the next.
_CORPUS = [
    '{"kind":"library","ok":true,"note":"A small tool, with a \\"quote\\".","tags":["red","green"]}',
    '{"kind":"game","ok":false,"note":"Fönt für Größen 日本語 😀","tags":[],"n":12,"x":0.25,"d":"2024-02-29"}',
    '{"a":"","b":null,"c":-17,"day":"1999-12-31","name":"red"},{"a":"b","c":["x","y"]}',
    "The quick brown fox jumps over the lazy dog. 0 1 2 3 10 100 2024 3.14 1e-5",
    "naïve café, blå bær, 東京 \\u00e5 \\n \\\\",
] * 8
_LETTERS = [chr(code) for code in range(0x20, 0x7F)] + list("öüßé日本語😀")


def _byte_level() -> Tokenizer:
    made = Tokenizer(models.BPE())
    # No split by kind of character: its tokens run across quotes, letters and digits.
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=16,
        special_tokens=[END],
        show_progress=False,
    )
    made.train_from_iterator(_CORPUS, trainer)
    return made


def _byte_fallback() -> Tokenizer:
    """As Llama 2's: words after a mark for spaces, bytes for what has no token."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never", split=False)
    trained.train_from_iterator(
        _CORPUS, trainers.BpeTrainer(vocab_size=400, max_token_length=12, show_progress=False, limit_alphabet=70)
    )
    texts = [END, *(f"<0x{byte:02X}>" for byte in range(256))]
    texts += [text for text in trained.get_vocab() if text not in texts]
    texts += [char for char in "a▁" if char not in texts]
    made = Tokenizer(models.BPE({text: n for n, text in enumerate(texts)}, [], byte_fallback=True))
    made.add_special_tokens([AddedToken(END, special=True)])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return made


def _unigram() -> Tokenizer:
    """As T5's: whole characters only, so that some text has no tokens at all."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never")
    made.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="never")
    trainer = trainers.UnigramTrainer(
        vocab_size=260, special_tokens=[END], show_progress=False, initial_alphabet=_LETTERS, unk_token=None
    )
    made.train_from_iterator(_CORPUS, trainer)
    return made


KINDS = {"byte level": _byte_level, "byte fallback": _byte_fallback, "unigram": _unigram}


@cache
def made(kind: str) -> tuple[Tokenizer, Vocabulary, dict[int, bytes], int]:
    """A tokenizer with its vocabulary, the bytes of its tokens and the token that ends an output."""
    tokenizer = KINDS[kind]()
    found = token_bytes(tokenizer)
    return tokenizer, prepare(found, tokenizer.get_vocab_size()), found, tokenizer.token_to_id(END)


def demo_tokenizer() -> Tokenizer:
    """The demo model's; the test is skipped where it was not converted."""
    cache_folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    files = sorted(Path(cache_folder).glob("gleaner/models/*/tokenizer.json"))
    if not files:
        pytest.skip("the demo's model is not converted: python -m ops.demo_model")
    return Tokenizer.from_file(str(files[0]))
