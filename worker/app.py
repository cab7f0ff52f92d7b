"""The Celery worker: the engine in a step before consuming, the chunk task, and what stops them in order."""

import contextlib
import logging
import threading
from typing import Any

import psycopg
from celery import Celery, bootsteps
from celery.exceptions import Reject, WorkerShutdown
from celery.signals import worker_shutting_down
from celery.worker import state

from schemas.database import Pool, open_pool, unavailable
from schemas.errors import GleanerError
from schemas.queue import LABEL_CHUNK, ChunkMessage, create_app
from schemas.settings import Settings
from worker.chunk import ChunkRunner
from worker.engine import create_engine
from worker.flight import GiveBack, Progress
from worker.health import EXIT_ENGINE_LOST, HealthWatch
from worker.lease import LeaseKeeper
from worker.pulse import PulsedEngine

logger = logging.getLogger(__name__)

#: Connections beside one a slot: the lease keeper's.
EXTRA_CONNECTIONS = 1


def _says_more_than_we_did(record: logging.LogRecord) -> bool:
    """False for Celery's word, with a traceback, on each chunk that was given back: we have said why."""
    return not (record.exc_info and isinstance(record.exc_info[1], Reject))


class Runtime:
    """What lives as long as the worker: engine, connections, leases, health."""

    def __init__(self, settings: Settings, name: str, slots: int) -> None:
        """:param slots: chunks in flight at once."""
        self.settings = settings
        self.name = name
        self._slots = slots
        #: Give chunks back now.
        self.stopping = threading.Event()
        #: Claim no more chunks, finish those in flight.
        self.draining = threading.Event()
        #: Told by a signal to stop, and not by a second one to stop at once.
        self.told_to_stop = False
        self.runner: ChunkRunner
        self._engine: PulsedEngine | None = None
        self._pool: Pool | None = None
        self._leases: LeaseKeeper | None = None
        self._health: HealthWatch | None = None

    def start(self) -> None:
        """Start the engine, then everything that a chunk needs.

        :raises GleanerError: for an engine or a database that can't be had.
        :raises WorkerShutdown: when the worker is told to stop while the engine loads.
        """
        self._engine = PulsedEngine(create_engine(self.settings))
        self._start_engine(self._engine)
        self._pool = open_pool(self.settings, f"worker {self.name}", self._slots + EXTRA_CONNECTIONS)
        self._leases = LeaseKeeper(self._pool, self.settings, self.name)
        try:
            self._leases.start()
        except psycopg.Error as error:
            raise unavailable(self.settings, error) from None
        self.runner = ChunkRunner(
            self.settings, self._pool, self._engine, self._leases, self.name, self.stopping, self.draining
        )
        self._health = HealthWatch(self.settings, self._engine, self.stopping, self._leave)
        self._health.start()
        info = self._engine.info
        logger.info(
            "engine %s %s serves %s, context %d tokens, %d sequences a step",
            info.engine, info.version, info.model, info.max_model_len, info.max_num_seqs,
        )  # fmt: skip

    def _start_engine(self, engine: PulsedEngine) -> None:
        failure: list[BaseException] = []

        def load() -> None:
            try:
                engine.start()
            except BaseException as error:
                failure.append(error)

        # In a thread, so that a signal to stop is not deaf for the minutes that a large model takes.
        thread = threading.Thread(target=load, name="engine-start", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(timeout=0.2)
            if state.should_stop is not None or state.should_terminate is not None:
                raise WorkerShutdown(0)
        if failure:
            raise failure[0]

    def _leave(self, exit_code: int) -> None:
        # A dead engine finishes nothing.
        (self.stopping if exit_code == EXIT_ENGINE_LOST else self.draining).set()
        if state.should_stop is None:  # else it is stopping already, with an exit code of its own
            state.should_stop = exit_code

    def close(self) -> None:
        """Stop in the reverse order. Safe after a failed start."""
        if self._leases is not None:
            self._leases.stop()
        if self._pool is not None:
            self._pool.close()
        if self._engine is not None:
            self._engine.close()
        if self._health is not None:  # last: it bounds the time that the others take
            self._health.stop()


def create_worker_app(settings: Settings, runtime: Runtime) -> Celery:
    """The Celery app of a worker: :mod:`schemas.queue`'s with the chunk task and the engine's step."""
    app = create_app(settings)

    class EngineStep(bootsteps.StartStopStep):  # type: ignore[misc]
        """Starts the engine before the consumer: until it serves, no message is touched."""

        requires = ("celery.worker.components:Pool",)

        def start(self, worker: Any) -> None:
            try:
                runtime.start()
            except GleanerError as error:
                logger.critical("error: %s", error)
                runtime.close()
                raise WorkerShutdown(error.exit_code) from None

        def stop(self, worker: Any) -> None:
            if not runtime.draining.is_set():
                runtime.stopping.set()
            # Steps stop in reverse order: the consumer is gone, the pool's threads still need the engine.
            worker.pool.stop()
            runtime.close()

    app.steps["worker"].add(EngineStep)

    @app.task(name=LABEL_CHUNK, bind=True)  # type: ignore[untyped-decorator]
    def label_chunk(self: Any, **message: Any) -> str:
        chunk = ChunkMessage.model_validate(message)

        def report(progress: Progress) -> None:
            # Only for people who watch: a broker that is away must not end the chunk.
            with contextlib.suppress(Exception):
                self.send_event("task-progress", result=str(progress))

        try:
            return runtime.runner.run(chunk.job_id, chunk.chunk_no, report)
        except GiveBack as error:
            logger.warning("%s given back: %s", chunk, error)
            raise Reject(str(error), requeue=True) from None  # the log has said why

    @worker_shutting_down.connect(weak=False)  # type: ignore[untyped-decorator]
    def stop_claiming(how: str, **_: Any) -> None:
        runtime.told_to_stop = how == "Warm"
        runtime.stopping.set()

    logging.getLogger("celery.app.trace").addFilter(_says_more_than_we_did)

    return app
