"""How a document can end: outcomes of rows, reasons, and the errors that carry what to do next."""

from enum import StrEnum


class Outcome(StrEnum):
    """The outcome of one document in one job. Every document of a job ends in exactly one row."""

    OK = "ok"  #: the label passed validation
    TRUNCATED = "truncated"  #: the output hit its token limit
    INVALID = "invalid"  #: the output failed validation after all tries
    REJECTED = "rejected"  #: the document can't be prompted
    FAILED = "failed"  #: the engine failed after all tries
    CANCELLED = "cancelled"  #: the job was cancelled first


class Reason(StrEnum):
    """Why a row is not ``ok``."""

    EMPTY = "empty"  #: rejected: nothing but white space
    OVER_LONG = "over_long"  #: rejected: prompt and output do not fit the model's context
    MISSING_FIELD = "missing_field"  #: rejected: the prompt template names a field that the document lacks
    REFUSED = "refused"  #: rejected: the engine refused the prompt; invalid: the model refused to answer
    OUTPUT_LIMIT = "output_limit"  #: truncated
    NOT_JSON = "not_json"  #: invalid: the output is no JSON, or holds NaN or Infinity
    SCHEMA_MISMATCH = "schema_mismatch"  #: invalid: a value breaks the label schema
    BAD_CHARACTERS = "bad_characters"  #: invalid: NUL or a lone surrogate, which Postgres can't store
    ENGINE_ERROR = "engine_error"  #: failed: the engine failed on this request each time
    POISON = "poison"  #: failed: worked on alone, it took its chunk, the engine or the worker down
    CANCELLED = "cancelled"  #: cancelled


class RejectCode(StrEnum):
    """Why an input record could not become a document."""

    INVALID_JSON = "invalid_json"
    INVALID_CSV = "invalid_csv"  #: quotes that do not match
    NOT_AN_OBJECT = "not_an_object"
    WRONG_COLUMNS = "wrong_columns"  #: a row of a CSV file has more or fewer cells than its table
    MISSING_ID = "missing_id"  #: only in corpora that were loaded before ids were made from content
    MISSING_TEXT = "missing_text"
    TEXT_NOT_STRING = "text_not_string"
    EMPTY = "empty"  #: the text is nothing but white space
    DUPLICATE_ID = "duplicate_id"
    TOO_LARGE = "too_large"
    BAD_ENCODING = "bad_encoding"


class DocumentFlag(StrEnum):
    """What was changed in a document so that Postgres and the model can take it, or made for it."""

    NUL_REPLACED = "nul_replaced"
    SURROGATE_REPLACED = "surrogate_replaced"
    C1_REPLACED = "c1_replaced"  #: control characters U+0080 to U+009F: what Windows-1252 has there, else U+FFFD
    ID_MADE = "id_made"  #: the record had no id, though others have: this one is made from its content


class OverLong(StrEnum):
    """What becomes of a document whose prompt does not fit the model's context. Part of the label spec."""

    REJECT = "reject"  #: a row without a label
    TRUNCATE_TAIL = "truncate-tail"  #: the end is left out
    TRUNCATE_HEAD = "truncate-head"  #: the beginning is left out
    TRUNCATE_MIDDLE = "truncate-middle"  #: the middle is left out
    SPLIT = "split"  #: parts are labelled apart and their labels merged


class RowFinal(Exception):
    """This row ends here: the same input would end the same way again."""

    def __init__(self, outcome: Outcome, code: Reason, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.code = code
        self.reason = reason


class RequestFailed(Exception):
    """The engine failed on this request; the row may be tried again."""


class EngineLost(Exception):
    """The engine is gone: give chunks back and leave, so that the supervisor starts a new worker."""


class CanaryFailed(Exception):
    """The engine does not keep to the label schema, or thinks aloud: nothing of this job is labelled with it."""


class Withdrawn(Exception):
    """The chunk's job was cancelled: keep what is finished, give the chunk back, and forget its message."""


class LeaseLost(Exception):
    """Another worker holds this chunk now: stop, and write nothing more for it."""
