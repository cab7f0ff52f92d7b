"""The Celery worker: the engine in a step before consuming, the chunk task, and what stops them in order."""

import contextlib
import logging
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
from celery import Celery, bootsteps
from celery.exceptions import Reject, WorkerShutdown
from celery.platforms import EX_OK
from celery.signals import worker_ready
from celery.worker import state

from schemas.database import unavailable
from schemas.errors import GleanerError
from schemas.pool import open_pool
from schemas.queue import LABEL_CHUNK, ChunkMessage, create_app, queued_messages
from schemas.settings import Settings
from worker.chunk import ChunkRunner
from worker.endpoint import open_endpoint
from worker.engine import create_engine
from worker.flight import GiveBack, Progress
from worker.health import HealthWatch
from worker.lease import LeaseKeeper
from worker.leaving import leave_at_once
from worker.pulse import PulsedEngine
from worker.queue_watch import QueueWatch
from worker.signals import SIGNALLED, listen_for_signals
from worker.vitals import Vitals

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
        self.runner: ChunkRunner
        self.vitals: Vitals
        self._leases: LeaseKeeper | None = None
        #: What :meth:`close` stops, the last first.
        self._closing = contextlib.ExitStack()

    def start(self, count_queued: Callable[[], int]) -> None:
        """Tell the health, start the engine, then everything that a chunk needs.

        :param count_queued: asks the broker how many messages wait.
        :raises GleanerError: for an engine, a port or a database that can't be had.
        :raises WorkerShutdown: when the worker is told to stop while the engine loads.
        """
        listen_for_signals(self._stop, self._abort)
        engine = PulsedEngine(create_engine(self.settings))
        self.vitals = Vitals(self.settings, self.name, engine, self.stopping, self.draining)
        HealthWatch(
            self.settings, self.vitals, engine, self.stopping, self.draining, self._leave, self._leave_at_once
        ).start()
        endpoint = open_endpoint(self.settings, self.vitals)
        if endpoint is not None:
            self._closing.callback(endpoint.close)
        queue_watch = QueueWatch(count_queued, self.vitals)
        queue_watch.start()
        self._closing.callback(queue_watch.stop)
        self._closing.callback(engine.close)
        self._start_engine(engine)
        pool = open_pool(self.settings, f"worker {self.name}", self._slots + EXTRA_CONNECTIONS)
        self._closing.callback(pool.close)
        self._leases = LeaseKeeper(pool, self.settings, self.name)
        try:
            self._leases.start()
        except psycopg.Error as error:
            raise unavailable(self.settings, error) from None
        self._closing.callback(self._leases.stop)
        self.runner = ChunkRunner(self.settings, pool, engine, self._leases, self.name, self.stopping, self.draining)
        info = engine.info
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
            if state.should_stop is not None:
                raise WorkerShutdown(state.should_stop)
        if failure:
            raise failure[0]

    def _stop(self) -> None:
        """The first signal."""
        self.stopping.set()
        if state.should_stop is None:  # else it is stopping already, with an exit code of its own
            state.should_stop = EX_OK

    def _abort(self, signum: signal.Signals) -> None:
        """The second signal."""
        self._leave_at_once(SIGNALLED + signum, f"told once more to stop ({signum.name}): leaving at once")

    def _leave(self, exit_code: int) -> None:
        if state.should_stop is None:  # else it is stopping already, with an exit code of its own
            state.should_stop = exit_code

    def _leave_at_once(self, exit_code: int, words: str) -> None:
        leases = self._leases
        leave_at_once(exit_code, words, lambda: leases.free_all(words) if leases else None)

    def close(self) -> None:
        """Stop in the reverse order, within ``shutdown_s``. Safe after a failed start."""
        self.stopping.set()
        self._closing.close()


def create_worker_app(settings: Settings, runtime: Runtime) -> Celery:
    """The Celery app of a worker: :mod:`schemas.queue`'s with the chunk task and the engine's step."""
    app = create_app(settings)

    class EngineStep(bootsteps.StartStopStep):  # type: ignore[misc]
        """Starts the engine before the consumer: until it serves, no message is touched."""

        requires = ("celery.worker.components:Pool",)

        def start(self, worker: Any) -> None:
            try:
                runtime.start(partial(queued_messages, app, settings.model))
            except GleanerError as error:
                logger.critical("error: %s", error)
                runtime.close()
                raise WorkerShutdown(error.exit_code) from None

        def stop(self, worker: Any) -> None:
            if state.should_stop is None:  # told by a remote command, say: messages go back only if this is set
                state.should_stop = EX_OK
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
            with runtime.vitals.message():
                return runtime.runner.run(chunk.job_id, chunk.chunk_no, report)
        except GiveBack as error:
            logger.warning("%s given back: %s", chunk, error)
            raise Reject(str(error), requeue=True) from None  # the log has said why

    @worker_ready.connect(weak=False)  # type: ignore[untyped-decorator]
    def consume(**_: Any) -> None:
        runtime.vitals.consume()

    logging.getLogger("celery.app.trace").addFilter(_says_more_than_we_did)

    return app
