"""A driver's claim, and the trials it takes under it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from weirbox.domain.words import TrialStage
from weirbox.pipeline.identity import this_driver
from weirbox.pipeline.stages import Item
from weirbox.store import claims, queries
from weirbox.store.engine import Connection, Database
from weirbox.store.rows import Ticket, unpack_case


@dataclass(frozen=True)
class Claim:
    """One driver's claim on trials of a run; safe to lose, since every result is fenced."""

    database: Database
    run_id: str
    token: int

    @classmethod
    def begin(
        cls, database: Database, run_id: str, *, lease_s: float, dispatch: int | None
    ) -> Claim:
        """Open a claim for this process."""
        opening = partial(
            claims.open_claim,
            run_id=run_id,
            driver=this_driver(),
            lease_s=lease_s,
            dispatch=dispatch,
        )
        return cls(database, run_id, database.persist(opening))

    def take(self, most: int) -> list[Item]:
        """Take up to `most` free trials, those of expired claims among them."""

        def claim(connection: Connection) -> list[Ticket]:
            claims.reap_expired(connection, self.run_id)
            return claims.claim_trials(connection, self.run_id, self.token, most)

        tickets = self.database.persist(claim)
        digests = [ticket.case_digest for ticket in tickets]
        bodies = self.database.fetch(partial(queries.payloads, digests=digests))
        return [
            Item(
                ticket=ticket,
                case=unpack_case(bodies[ticket.case_digest]),
                resumed=ticket.stage is not TrialStage.EXECUTE,
            )
            for ticket in tickets
        ]

    def give_back(self, *, wait: bool) -> None:
        """Free what is still held; safe to run twice.

        Args:
            wait: Whether to wait out trouble with the database: who ends because of it has
                done so, and the lease runs out by itself.
        """
        if wait:
            self.database.persist(partial(claims.release_claim, token=self.token))
        else:
            with self.database.write() as connection:
                claims.release_claim(connection, self.token)
