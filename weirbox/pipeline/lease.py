"""A driver's heartbeat: renews its claim and watches its run's status, in its own thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from weirbox.domain.words import RunStatus
from weirbox.store import claims, queries
from weirbox.store.engine import Database, DatabaseTrouble, in_words

WATCH_S = 1.0
"""How often the run's status is looked at: how soon a cancelled run stops starting things."""

log = logging.getLogger(__name__)


class Lease:
    """Keeps a claim alive until it is stopped, lost, or its run has ended.

    It runs in a thread, so that a busy event loop cannot starve it. Trouble with the
    database is waited out: the lease simply runs on until it expires.
    """

    def __init__(
        self,
        database: Database,
        run_id: str,
        token: int,
        *,
        lease_s: float,
        lost: Callable[[], None],
        ended: Callable[[RunStatus], None],
    ) -> None:
        self._database, self._run_id, self._token = database, run_id, token
        self._lease_s = lease_s
        self._lost, self._ended = lost, ended
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="weirbox-lease", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the last beat."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        renewed, troubled = time.monotonic(), False
        step = min(WATCH_S, self._lease_s / 3)
        while not self._stop.wait(step):
            try:
                if time.monotonic() - renewed >= self._lease_s / 3:
                    with self._database.write() as connection:
                        held = claims.renew(connection, self._token, lease_s=self._lease_s)
                    renewed = time.monotonic()
                    if not held:
                        self._lost()
                        return
                with self._database.read() as connection:
                    status = queries.status_of(connection, self._run_id)
            except DatabaseTrouble as error:
                if not troubled:
                    log.warning("run %s: the database fails: %s", self._run_id, in_words(error))
                troubled = True
                continue
            if troubled:
                log.warning("run %s: the database is back", self._run_id)
                troubled = False
            if status.terminal:
                self._ended(status)
                return
