"""What a driver needs of a plan, built once: the composition of the families."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from weirbox import compute, graders, harnesses, judges, rules, sinks, traces
from weirbox.domain.judging import (
    AnthropicProvider,
    JudgeSpec,
    OpenAIProvider,
    ProviderSpec,
    TierSpec,
)
from weirbox.domain.plan import Plan
from weirbox.domain.pulling import TraceSource
from weirbox.domain.score import Score
from weirbox.domain.seams import (
    Compute,
    Grader,
    Harness,
    JudgeRequest,
    Provider,
    ReadFile,
    ReadSecret,
    Rule,
    Sink,
    Workshop,
)
from weirbox.domain.words import Tier
from weirbox.errors import PreflightError, WeirboxError
from weirbox.functions import read_files
from weirbox.limiter import AdaptiveLimiter
from weirbox.store import queries
from weirbox.store.engine import Database

CLOSE_S = 30.0
"""How long a harness, provider, sink or compute may take to close."""

FREE_EXECUTE = 16
"""Executions at a time where no sandbox is needed."""


@dataclass(frozen=True)
class Kit:
    """The built families of one run."""

    run_id: str
    plan: Plan
    compute: Compute | None
    files: Mapping[str, str | bytes]
    harness: Harness
    compute_graders: tuple[Grader, ...]
    graders: tuple[Grader, ...]
    rules: tuple[Rule, ...]
    providers: Mapping[str, Provider]
    limiters: Mapping[str, AdaptiveLimiter]
    panel: judges.Panel
    trace_source: TraceSource | None
    sinks: tuple[Sink, ...]

    @property
    def execute_limit(self) -> int:
        """Trials in execution at a time."""
        declared = self.plan.suite.concurrency.execute
        if declared is not None:
            return declared
        return self.compute.capacity if self.compute is not None else FREE_EXECUTE

    @property
    def window(self) -> int:
        """Trials between the start of their execution and their verdict."""
        concurrency = self.plan.suite.concurrency
        return concurrency.window or 2 * (self.execute_limit + concurrency.judge)

    def in_order(self, scores: Iterable[Score]) -> tuple[Score, ...]:
        """Scores of a trial as it was judged: compute graders, graders, rules, judges."""
        return tuple(sorted(scores, key=lambda score: self._place(score.name)))

    def of_compute_graders(self, scores: Iterable[Score]) -> tuple[Score, ...]:
        """Those that were measured before compute was released, in order."""
        known = len(self.compute_graders)
        return tuple(s for s in self.in_order(scores) if self._place(s.name) < known)

    def check_of(self, name: str) -> str | None:
        """The check that gives a score of this name."""
        return check_of(name, self._checks)

    def _place(self, name: str) -> int:
        """Where a score's check stands."""
        check = self.check_of(name)
        return len(self._checks) if check is None else self._checks.index(check)

    @property
    def _checks(self) -> list[str]:
        suite, skipped = self.plan.suite, self.plan.skipped_judges
        checks = [check.name for check in (*self.compute_graders, *self.graders, *suite.rules)]
        return checks + sorted((judge.name for judge in suite.judges), key=skipped.__contains__)

    async def aclose(self) -> None:
        """Close everything; what fails to close, or hangs, does not keep the rest open."""
        closing = [self.harness.aclose()]
        closing += [provider.aclose() for provider in self.providers.values()]
        closing += [sink.aclose() for sink in self.sinks]
        if self.trace_source is not None:
            closing.append(self.trace_source.aclose())
        if self.compute is not None:
            closing.append(self.compute.aclose())
        within = (asyncio.wait_for(one, CLOSE_S) for one in closing)
        await asyncio.gather(*within, return_exceptions=True)


def check_of(name: str, checks: Collection[str]) -> str | None:
    """The check that gives a score of this name; one may give several, as ``check.key``."""
    if name in checks:
        return name
    return max((check for check in checks if name.startswith(f"{check}.")), key=len, default=None)


def build_kit(
    database: Database, run_id: str, *, read_secret: ReadSecret, plan: Plan | None = None
) -> Kit:
    """Build the families of a run from its frozen plan alone.

    Raises:
        PreflightError: When a part cannot be built, with its name and the reason.
    """
    if plan is None:
        plan = database.fetch(partial(queries.load_plan, run_id=run_id))
    workshop = Workshop(
        folder=plan.folder, read_file=_reader(database, plan), read_secret=read_secret
    )
    try:
        return assemble(plan, run_id, workshop)
    except WeirboxError as error:
        raise PreflightError(str(error)) from error


def assemble(plan: Plan, run_id: str, workshop: Workshop) -> Kit:
    """Build the families of a plan in a workshop of the caller's.

    Raises:
        WeirboxError: When a part cannot be built.
    """
    suite = plan.suite
    built = [graders.build(spec, workshop) for spec in suite.graders]
    harness = harnesses.build(suite.harness, workshop, compute_spec=suite.compute)
    needs_compute = harness.needs_compute or any(grader.needs_compute for grader in built)
    present = [judge for judge in suite.judges if judge.name not in plan.skipped_judges]
    used = {tier.provider for j in present for tier in (j.primary, j.escalation) if tier}
    providers = {
        name: judges.build(name, spec, workshop)
        for name, spec in suite.providers.items()
        if name in used
    }
    limiters = account_limiters({name: suite.providers[name] for name in providers})
    return Kit(
        run_id=run_id,
        plan=plan,
        compute=compute.build(suite.compute.kind) if needs_compute else None,
        files=read_files(suite.compute.files, workshop),
        harness=harness,
        compute_graders=tuple(grader for grader in built if grader.needs_compute),
        graders=tuple(grader for grader in built if not grader.needs_compute),
        rules=tuple(rules.build(spec, workshop) for spec in suite.rules),
        providers=providers,
        limiters=limiters,
        panel=judges.Panel(present, plan.prompts, providers, suite.routing, limiters),
        trace_source=None if suite.trace is None else traces.build(suite.trace, workshop),
        sinks=tuple(sinks.build(spec, workshop.read_secret) for spec in suite.sinks),
    )


def account_limiters(specs: Mapping[str, ProviderSpec]) -> dict[str, AdaptiveLimiter]:
    """A limiter for each provider; those that name one account share the strictest.

    An account is told by where requests go and by the secret they carry: what one
    provider's requests are throttled for, another's of the same account are too.
    """
    named: dict[object, list[str]] = defaultdict(list)
    for name, spec in specs.items():
        if isinstance(spec, AnthropicProvider | OpenAIProvider):
            named[spec.kind, spec.base_url, spec.secret].append(name)
        else:
            named[name].append(name)
    limiters: dict[str, AdaptiveLimiter] = {}
    for names in named.values():
        shared = AdaptiveLimiter(min(specs[name].concurrency for name in names))
        limiters.update(dict.fromkeys(names, shared))
    return limiters


def _reader(database: Database, plan: Plan) -> ReadFile:
    digests = {file.path: file.digest for file in plan.files}

    def read(path: str) -> bytes:
        if path not in digests:
            raise PreflightError(f"the plan holds no file {path!r}")
        with database.read() as connection:
            return queries.payload(connection, digests[path])

    return read


def preflight(kit: Kit) -> None:
    """Check once what would otherwise fail once per case.

    Raises:
        PreflightError: Naming every judge whose provider, price or secret is missing.
    """
    problems = preflight_problems(kit)
    if problems:
        raise PreflightError("; ".join(problems))


def preflight_problems(kit: Kit) -> list[str]:
    """One sentence for every provider, price or secret that a judge of the kit lacks."""
    suite = kit.plan.suite
    problems: dict[str, None] = {}
    for judge in suite.judges:
        if judge.name in kit.plan.skipped_judges:
            continue
        for tier in (judge.primary, judge.escalation):
            if tier is None:
                continue
            provider = kit.providers[tier.provider]
            problem = provider.preflight(tier.model)
            if problem is None and _unpriced(kit, judge, tier):
                problem = (
                    f"model {tier.model!r} has no known price, and the budget is in dollars: "
                    f"set providers.{tier.provider}.prices, or budget.allow_unpriced"
                )
            if problem is not None:
                problems[f"judge {judge.name!r}: {problem}"] = None
    return list(problems)


def _unpriced(kit: Kit, judge: JudgeSpec, tier: TierSpec) -> bool:
    budget = kit.plan.suite.budget
    if budget.usd is None or budget.allow_unpriced:
        return False
    question = JudgeRequest(
        check=judge.name,
        case_id="",
        trial=1,
        tier=Tier.PRIMARY,
        model=tier.model,
        system="",
        user="",
        rubric=kit.plan.prompts[judge.name].rubric,
        reply_schema={},
        max_tokens=tier.max_tokens,
    )
    return kit.providers[tier.provider].bound_usd(question) is None
