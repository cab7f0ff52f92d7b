"""Draws a fault every few seconds and lets it happen."""

import random
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ops.soak.faults import FAULTS, Fault, Holds, Missed, Stage
from ops.soak.fleet import Fleet, Member
from ops.soak.host import Host
from ops.soak.observer import Observer
from ops.soak.workload import Workload

#: Seconds from the beginning of one fault to that of the next. Faults may overlap, but not on one target.
EVERY_S = (2.0, 6.0)


class Injector:
    """Strikes from a thread of its own until told to stop."""

    def __init__(
        self,
        host: Host,
        fleet: Fleet,
        observer: Observer,
        workload: Workload,
        rng: random.Random,
        faults: Sequence[Fault] = FAULTS,
    ) -> None:
        """:param faults: those to draw from."""
        self._faults = faults
        self._host = host
        self._fleet = fleet
        self._observer = observer
        self._workload = workload
        self._rng = rng
        self._lock = threading.Lock()
        self._held: set[Holds | Member] = set()
        self._stop = threading.Event()
        self._interrupted = threading.Event()
        # As many as there is to hold.
        self._strikes = ThreadPoolExecutor(len(fleet.workers) + len(Holds), thread_name_prefix="fault")
        self._thread = threading.Thread(target=self._inject, name="injector", daemon=True)
        #: Faults that did not come to pass, by kind.
        self.missed: Counter[str] = Counter()
        #: What kept a fault from being undone. There must be none.
        self.failures: list[str] = []

    def start(self) -> None:
        """Begin to strike."""
        self._thread.start()

    def stop(self, *, interrupt: bool = False) -> None:
        """Strike no more, and wait until every fault has been undone. Safe to repeat.

        :param interrupt: undo them now.
        """
        self._stop.set()
        if interrupt:
            self._interrupted.set()
        if self._thread.is_alive():
            self._thread.join()
        self._strikes.shutdown(wait=True)

    def _inject(self) -> None:
        while not self._stop.wait(self._rng.uniform(*EVERY_S)):
            self._draw(random.Random(self._rng.getrandbits(64)))

    def _draw(self, rng: random.Random) -> None:
        """Let a fault happen whose target no other fault holds, if there is one."""
        with self._lock:
            workers = [worker for worker in self._fleet.workers if worker not in self._held]
            possible = [
                fault
                for fault in self._faults
                if (workers if fault.holds is Holds.WORKER else fault.holds not in self._held)
            ]
            if not possible:
                return
            fault = rng.choices(possible, [fault.weight for fault in possible])[0]
            worker = rng.choice(workers or self._fleet.workers)
            held = worker if fault.holds is Holds.WORKER else fault.holds
            self._held.add(held)
        stage = Stage(
            self._host, self._fleet, self._observer, self._workload, rng, self._interrupted, fault.kind, worker
        )
        self._strikes.submit(self._strike, fault, stage, held)

    def _strike(self, fault: Fault, stage: Stage, held: Holds | Member) -> None:
        try:
            fault.do(stage)
        except Missed:
            self._miss(stage)
        except Exception as error:
            self.failures.append(f"{fault.kind}: {type(error).__name__}: {error}")
        finally:
            with self._lock:
                self._held.discard(held)

    def _miss(self, stage: Stage) -> None:
        with self._lock:
            self.missed[stage.kind] += 1
        if stage.recovery is not None and stage.recovery.over_at is None:
            self._observer.forget(stage.recovery)
