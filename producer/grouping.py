"""Whether documents should be grouped: where prompts begin with the same metadata, the engine reads that once."""

import shlex
import string
from itertools import islice, pairwise

from producer.fields import PROBE_RECORDS
from producer.readers import Reader

#: Characters that prompts must have in common, beyond the system prompt, to be worth a word: a block of the prefix
#: cache holds 16 tokens or more, and what does not fill one is read anew.
SHARED_CHARS = 64
#: Documents with the same beginning, on average, from which on it pays.
DOCUMENTS_A_GROUP = 4


def grouping_hint(reader: Reader, template: str) -> str | None:
    """What to give as ``--group-by``, with the reason, in one line; None where it would not pay.

    Looks at a corpus's first records, and only where the template puts metadata before the document: it pays if few
    values are shared by many records that do not stand together yet.
    """
    parts = _before_text(template)
    if not parts:
        return None
    heads: list[list[str]] = []
    for record in islice(reader.records(lambda _: None), PROBE_RECORDS):
        if isinstance(record.content, dict):
            heads.append([f"{literal}{record.content.get(name)}" for literal, name in parts])
    for count in range(len(parts), 0, -1):
        starts = ["".join(head[:count]) for head in heads]
        if _pays(starts):
            names = [name for _, name in parts[:count]]
            options = " ".join(f"--group-by {shlex.quote(name)}" for name in names)
            return (
                f"prompts begin with {', '.join(map(repr, names))}, in {len(set(starts)):,} ways among the first "
                f"{len(starts):,} records: `{options}` of enqueue lets the engine read each once"
            )
    return None


def _before_text(template: str) -> list[tuple[str, str]]:
    """The metadata fields that stand before document and id in a template, each with the words before it."""
    found: list[tuple[str, str]] = []
    for literal, name, *_ in string.Formatter().parse(template):
        if name in (None, "text", "id"):
            break
        found.append((literal, str(name)))
    return found


def _pays(starts: list[str]) -> bool:
    distinct = len(set(starts))
    runs = 1 + sum(one != other for one, other in pairwise(starts))
    return (
        0 < DOCUMENTS_A_GROUP * distinct <= len(starts)
        and runs > 2 * distinct
        and sum(map(len, starts)) >= SHARED_CHARS * len(starts)
    )
