"""Parquet, Arrow and Feather files, and data sets that Hugging Face's library saved to disk: a few rows at a time."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from producer.readers.base import Advance, Record, library
from producer.readers.file import CorpusFile
from producer.readers.plain import plain
from producer.records import Reject
from schemas.errors import UsageError
from schemas.jsontext import MAX_NESTING, nested_over
from schemas.outcomes import RejectCode
from schemas.printable import counted

#: Rows decoded at a time at most: more are no faster.
_BATCH_ROWS = 1024
#: Bytes read at a time of each column: without it a column of a whole row group is held.
_READ_BYTES = 1024 * 1024
#: Bytes decoded at a time: a batch of longer rows has fewer of them.
_BATCH_BYTES = 16 * 1024 * 1024


class _ArrowTable:
    """What Parquet and Arrow files have in common."""

    unit = "row"
    _kind = ""

    def __init__(self, file: CorpusFile, max_bytes: int) -> None:
        self._file = file
        self._max_bytes = max_bytes
        self._arrow = library("pyarrow", "pyarrow", f"{file.name}: {self._kind}")
        self.uri = file.uri
        self.size = file.size
        self.format = f"{self._kind.lower()}/1"
        with self._opened() as table:
            self.notes: tuple[str, ...] = (f"format: {self._kind}, {counted(len(table.schema.names), 'column')}",)

    def digest(self, advance: Advance) -> str:
        """As :meth:`Reader.digest`."""
        return self._file.digest(advance)

    def records(self, advance: Advance) -> Iterator[Record]:
        """As :meth:`Reader.records`."""
        position = 0
        with self._opened() as table:
            converters = {field.name: None if self._is_plain(field.type) else plain for field in table.schema}
            for batch in table.batches():
                for row in _rows(batch, converters):
                    yield Record(position, position + 1, self._content(row))
                    position += 1
                advance(min(self.size, self.size * position // max(1, table.rows)))

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        try:
            with self._file.on_disk() as path:
                yield self._open(path)
        except (self._arrow.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise UsageError(f"{self._file.name} is damaged {self._kind}: {_line(error)}") from None

    def _open(self, path: Path) -> Any:
        raise NotImplementedError

    def _is_plain(self, kind: Any) -> bool:
        types = self._arrow.types
        return any(
            test(kind)
            for test in (types.is_string, types.is_large_string, types.is_integer, types.is_boolean, types.is_null)
        )

    def _content(self, row: dict[str, Any]) -> dict[str, Any] | Reject:
        size = sum(len(value) for value in row.values() if isinstance(value, str))
        if size > self._max_bytes:
            reason = f"the row has over {self._max_bytes:,} characters (GLEANER_RECORD_MAX_BYTES)"
            return Reject.of(RejectCode.TOO_LARGE, reason, str(next(iter(row.values()))))
        if nested_over(row, MAX_NESTING):
            return Reject.of(RejectCode.INVALID_JSON, f"nested too deeply: over {MAX_NESTING} levels", "")
        return row


class _Parquet:
    def __init__(self, file: Any) -> None:
        self._file = file
        self.schema = file.schema_arrow
        self.rows = file.metadata.num_rows

    def batches(self) -> Iterator[Any]:
        meta = self._file.metadata
        bytes_a_row = max(
            (
                meta.row_group(n).total_byte_size // max(1, meta.row_group(n).num_rows)
                for n in range(meta.num_row_groups)
            ),
            default=1,
        )
        # Small batches also keep every column of text below the 2 GiB that its offsets can count.
        return self._file.iter_batches(  # type: ignore[no-any-return]
            batch_size=max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, bytes_a_row))), use_threads=False
        )


class ParquetReader(_ArrowTable):
    """Reads a Parquet file, row groups as a stream."""

    _kind = "Parquet"

    def _open(self, path: Path) -> _Parquet:
        parquet = library("pyarrow.parquet", "pyarrow", "Parquet")
        return _Parquet(parquet.ParquetFile(path, pre_buffer=False, buffer_size=_READ_BYTES))


class _Ipc:
    def __init__(self, reader: Any, rows: int, batches: Callable[[], Iterator[Any]]) -> None:
        self.schema = reader.schema
        self.rows = rows
        self._batches = batches

    def batches(self) -> Iterator[Any]:
        for batch in self._batches():
            # A batch may be the whole table; it is mapped, not read.
            rows = max(1, min(_BATCH_ROWS, batch.num_rows * _BATCH_BYTES // max(1, batch.nbytes)))
            for first in range(0, batch.num_rows, rows):
                yield batch.slice(first, rows)


class ArrowReader(_ArrowTable):
    """Reads an Arrow file, a Feather file or an Arrow stream."""

    _kind = "Arrow"

    def _open(self, path: Path) -> _Ipc:
        ipc = library("pyarrow.ipc", "pyarrow", "Arrow")
        source = self._arrow.memory_map(str(path))
        try:
            file = ipc.open_file(source)
        except self._arrow.ArrowInvalid:
            source.seek(0)
            stream = ipc.open_stream(source)
            return _Ipc(stream, 0, lambda: iter(stream))
        rows = file.num_record_batches and sum(file.get_batch(n).num_rows for n in range(file.num_record_batches))
        return _Ipc(file, rows, lambda: (file.get_batch(n) for n in range(file.num_record_batches)))


def _rows(batch: Any, converters: dict[str, Any]) -> Iterator[dict[str, Any]]:
    names = batch.schema.names
    columns = []
    for name, column in zip(names, batch.columns, strict=True):
        values = column.to_pylist()
        convert = converters[name]
        columns.append(values if convert is None else [convert(value) for value in values])
    for row in zip(*columns, strict=True):
        yield dict(zip(names, row, strict=True))


def saved_data_set(folder: Path) -> list[Path] | None:
    """The Arrow files of a data set that Hugging Face's library saved to this folder; None if it is no such folder.

    :raises UsageError: for one of several splits, and for one whose rows are only chosen by a list beside it.
    """
    if (folder / "dataset_dict.json").is_file():
        splits = ", ".join(str(path.parent) for path in sorted(folder.glob("*/state.json")))
        raise UsageError(f"{folder} holds several splits: give one of {splits or 'its folders'}")
    if not (folder / "state.json").is_file() or not (folder / "dataset_info.json").is_file():
        return None
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        names = [entry["filename"] for entry in state["_data_files"]]
        chosen = state.get("_indices_data_files")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{folder / 'state.json'} can't be read: {error!r}. Save the data set again.") from None
    if chosen:
        raise UsageError(f"{folder} holds a selection of rows: call flatten_indices() before save_to_disk()")
    return [folder / name for name in names]


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
