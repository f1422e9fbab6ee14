"""Claims: a driver's fenced lease on trials, and what comes too late under one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import text

from tests.factories import column, judged, plan, scores, suite, summary, trials
from tests.results import decided, executed, paid, write
from weirbox.domain.words import TrialStage
from weirbox.store import base, claims
from weirbox.store.engine import Database
from weirbox.store.rows import Ticket
from weirbox.store.spending import ReserveRequest, Settlement, reserve, settle

LONG = 30.0
OVER = -1.0


def claim(
    database: Database, run_id: str, limit: int = 100, *, lease_s: float = LONG, who: str = "a"
) -> tuple[int, list[Ticket]]:
    """Open a claim and take trials."""
    with database.write() as connection:
        token = claims.open_claim(connection, run_id, driver=who, lease_s=lease_s)
        return token, claims.claim_trials(connection, run_id, token, limit)


def more(database: Database, run_id: str, token: int, limit: int = 100) -> list[Ticket]:
    """Take more trials under a claim."""
    with database.write() as connection:
        return claims.claim_trials(connection, run_id, token, limit)


def reap(database: Database, run_id: str) -> int:
    """Take back what has expired."""
    with database.write() as connection:
        return claims.reap_expired(connection, run_id)


# --- who has what ------------------------------------------------------------------


def test_a_later_claim_has_a_greater_token(shared_database: Database) -> None:
    run_id = plan(shared_database, suite(1))

    tokens = [claim(shared_database, run_id, 0)[0] for _ in range(3)]
    with shared_database.write() as connection:
        connection.execute(base.CLAIM.delete().where(base.CLAIM.c.token == tokens[-1]))
    tokens.append(claim(shared_database, run_id, 0)[0])

    assert sorted(set(tokens)) == tokens


def test_a_trial_is_claimed_once_in_the_order_of_the_plan(shared_database: Database) -> None:
    run_id = plan(shared_database, suite(5))

    _, first = claim(shared_database, run_id, 3)
    _, second = claim(shared_database, run_id, 3)
    _, third = claim(shared_database, run_id, 3)

    assert [[ticket.seq for ticket in taken] for taken in (first, second, third)] == [
        [0, 1, 2],
        [3, 4],
        [],
    ]


def test_a_claim_takes_trials_of_its_own_run_only(shared_database: Database) -> None:
    plan(shared_database, suite(3))
    run_id = plan(shared_database, suite(2))

    _, tickets = claim(shared_database, run_id)

    assert [ticket.run_id for ticket in tickets] == [run_id] * 2


def test_many_that_claim_at_once_share_no_trial(shared_database: Database) -> None:
    run_id = plan(shared_database, suite(120))

    def take_all(number: int) -> list[int]:
        token, tickets = claim(shared_database, run_id, 4)
        taken = [ticket.seq for ticket in tickets]
        while tickets:
            tickets = more(shared_database, run_id, token, 4)
            taken += [ticket.seq for ticket in tickets]
        return taken

    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(take_all, range(4)))

    assert sorted(seq for seqs in taken for seq in seqs) == list(range(120))


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_claim_in_progress_is_passed_over_rather_than_waited_for(database: Database) -> None:
    run_id = plan(database, suite(5))

    tokens = [claim(database, run_id, 0)[0] for _ in range(2)]

    with database.write() as one, database.write() as other:
        other.execute(text("SET LOCAL lock_timeout = '5s'"))  # rather than wait for ever
        first = claims.claim_trials(one, run_id, tokens[0], 2)
        second = claims.claim_trials(other, run_id, tokens[1], 5)

    assert [ticket.seq for ticket in first] == [0, 1]
    assert [ticket.seq for ticket in second] == [2, 3, 4]


# --- leases ------------------------------------------------------------------------


def test_a_lease_that_is_renewed_is_not_reaped(shared_database: Database) -> None:
    run_id = plan(shared_database, suite(2))
    token, _ = claim(shared_database, run_id, lease_s=OVER)

    with shared_database.write() as connection:
        assert claims.renew(connection, token, lease_s=LONG) is True

    assert reap(shared_database, run_id) == 0
    assert column(shared_database, run_id, "claim") == [token, token]


def test_a_lease_that_has_run_out_frees_its_trials_and_cannot_be_renewed(
    shared_database: Database,
) -> None:
    run_id = plan(shared_database, suite(3))
    old, _ = claim(shared_database, run_id, 2, lease_s=OVER)
    living, _ = claim(shared_database, run_id, 1)

    assert reap(shared_database, run_id) == 1

    assert column(shared_database, run_id, "claim") == [None, None, living]
    with shared_database.write() as connection:
        assert claims.renew(connection, old, lease_s=LONG) is False
    assert more(shared_database, run_id, old) == []
    assert reap(shared_database, run_id) == 0


def test_a_claim_is_given_back_once_with_all_it_holds(shared_database: Database) -> None:
    run_id = plan(shared_database, suite(3))
    token, tickets = claim(shared_database, run_id)
    with shared_database.write() as connection:
        assert reserve(connection, [ReserveRequest(tickets[0], 5)]) != [None]

    with shared_database.write() as connection:
        freed = [claims.release_claim(connection, token) for _ in range(2)]

    assert freed == [3, 0]
    assert summary(shared_database, run_id).reserved_usd == 0
    assert [ticket.seq for ticket in claim(shared_database, run_id)[1]] == [0, 1, 2]


def test_claims_of_one_run_are_not_reaped_for_another(shared_database: Database) -> None:
    run_id, other = plan(shared_database, suite(1)), plan(shared_database, suite(1))
    token, _ = claim(shared_database, run_id, lease_s=OVER)

    assert reap(shared_database, other) == 0

    assert column(shared_database, run_id, "claim") == [token]


# --- late writes -------------------------------------------------------------------


def test_what_comes_late_changes_nothing_but_what_was_spent(shared_database: Database) -> None:
    run_id = plan(shared_database, judged(1))
    _, [late] = claim(shared_database, run_id, lease_s=OVER)
    reap(shared_database, run_id)
    _, [current] = claim(shared_database, run_id)
    before = trials(shared_database, run_id)

    counted = write(shared_database, executed(late, error=None), executed(late))
    with shared_database.write() as connection:
        settle(connection, [Settlement(late, None, paid(0.25))])

    assert counted == [False, False]
    assert trials(shared_database, run_id) == before
    assert scores(shared_database, run_id) == {}
    assert (summary(shared_database, run_id).cost_usd, summary(shared_database, run_id).calls) == (
        0.25,
        1,
    )
    assert write(shared_database, executed(current)) == [True]


def test_a_late_driver_reserves_nothing_that_nobody_would_void(shared_database: Database) -> None:
    run_id = plan(shared_database, judged(1, budget={"usd": 1.0}))
    _, [late] = claim(shared_database, run_id, lease_s=OVER)
    reap(shared_database, run_id)

    with shared_database.write() as connection:
        assert reserve(connection, [ReserveRequest(late, 5)]) == [None]

    assert summary(shared_database, run_id).reserved_usd == 0


def test_a_result_for_a_stage_that_the_trial_has_left_changes_nothing(
    shared_database: Database,
) -> None:
    run_id = plan(shared_database, suite(1))
    _, [ticket] = claim(shared_database, run_id)
    write(shared_database, executed(ticket))
    write(shared_database, decided(replace(ticket, stage=TrialStage.JUDGE)))
    before = trials(shared_database, run_id)

    assert write(shared_database, executed(ticket)) == [False]

    assert trials(shared_database, run_id) == before
