"""The label specs that this worker lately served: read once, proven once by the canary, shared by all its chunks."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future

from schemas.database import queries
from schemas.label_spec import LabelSpec
from schemas.pool import Pool
from schemas.settings import Settings
from schemas.user_turn import UserTurn
from worker.canary import prove_grammar
from worker.check import LabelCheck
from worker.engine.base import Engine
from worker.row import RowRules

#: Label specs kept: one a job lately served.
SPECS = 64

#: What every document of a label spec goes through.
Prepared = tuple[RowRules, UserTurn]


class Specs:
    """Label specs by id. Safe to ask from several threads: those that ask while one is proven wait for its end.

    What failed is tried again when it is asked for again.
    """

    def __init__(self, settings: Settings, pool: Pool, engine: Engine) -> None:
        self._settings = settings
        self._pool = pool
        self._engine = engine
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Future[Prepared]] = OrderedDict()

    def get(self, label_spec_id: int, look: Callable[[], None]) -> Prepared:
        """A label spec, after its canary.

        :param look: called while the canary is out; raises to end the wait.
        :raises CanaryFailed: the engine does not keep to it; in every thread that waited for the same canary.
        """
        with self._lock:
            kept = self._kept.get(label_spec_id)
            mine = kept is None
            if kept is None:
                kept = self._kept[label_spec_id] = Future()
                if len(self._kept) > SPECS:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(label_spec_id)
        if mine:
            self._fill(label_spec_id, kept, look)
        return kept.result()

    def _fill(self, label_spec_id: int, kept: "Future[Prepared]", look: Callable[[], None]) -> None:
        try:
            prepared = self._load(label_spec_id)
            prove_grammar(self._engine, prepared[0], look)
        except BaseException as error:
            with self._lock:
                self._kept.pop(label_spec_id, None)
            kept.set_exception(error)
        else:
            kept.set_result(prepared)

    def _load(self, label_spec_id: int) -> Prepared:
        with self._pool.connection() as connection:
            row = queries.label_spec_by_id(connection, label_spec_id=label_spec_id)
        return prepared(
            LabelSpec.model_validate({key: row[key] for key in LabelSpec.model_fields}), self._settings, self._engine
        )


def prepared(spec: LabelSpec, settings: Settings, engine: Engine) -> Prepared:
    """What the documents of a label spec go through on this engine."""
    rules = RowRules(
        spec=spec,
        check=LabelCheck(spec),
        max_model_len=engine.info.max_model_len,
        max_tries=settings.row_max_tries,
        seed=settings.seed,
    )
    return rules, UserTurn(spec)
