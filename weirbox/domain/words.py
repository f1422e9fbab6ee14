"""The closed sets of the vocabulary, value by value."""

from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    """The four stages, in order."""

    EXECUTE = "execute"
    JUDGE = "judge"
    EXPORT = "export"
    FINALIZE = "finalize"


class TrialStage(StrEnum):
    """The stage a trial has to go through next; `DONE` when none is left."""

    EXECUTE = "execute"
    JUDGE = "judge"
    EXPORT = "export"
    DONE = "done"


class RunKind(StrEnum):
    """What part of a dataset a run covers."""

    FULL = "full"  # every current case
    PREVIEW = "preview"  # a deterministic sample
    DELTA = "delta"  # an explicit list, or the cases added since a run


class RunStatus(StrEnum):
    """Where a run stands; the last four are terminal."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"

    @property
    def terminal(self) -> bool:
        """Whether no further change of status is possible."""
        return self not in (RunStatus.PENDING, RunStatus.RUNNING)

    @property
    def ended_early(self) -> bool:
        """Whether it ended before all its trials had gone through their stages."""
        return self in (RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.SUPERSEDED)


class ScoreState(StrEnum):
    """What became of a score, or of a trial as a whole."""

    SCORED = "scored"  # measured: there is a value
    UNSCORED = "unscored"  # tried, nothing usable came out
    ERRORED = "errored"  # our side or a provider's broke
    SKIPPED = "skipped"  # a policy decided not to measure
    PENDING = "pending"  # not there yet


class Reason(StrEnum):
    """Why a score is not `scored`: a closed set."""

    PARSE_ERROR = "parse_error"  # the reply or record could not be read
    EMPTY = "empty"  # the reply or output was empty
    REFUSAL = "refusal"  # the model declined
    TRUNCATED = "truncated"  # cut at the token limit
    OFF_MENU = "off_menu"  # a word that is not among the choices
    OUT_OF_RANGE = "out_of_range"  # a number outside the declared scale
    AMBIGUOUS = "ambiguous"  # two answers that disagree
    MISSING_EVIDENCE = "missing_evidence"  # the trace or output it needs is absent
    MISSING_SECRET = "missing_secret"
    BUDGET = "budget"  # the run's budget is exhausted
    TIMEOUT = "timeout"
    PROVIDER_ERROR = "provider_error"  # the judge's provider failed after retries
    QUOTA = "quota"  # the provider's quota or credit is spent
    GRADER_ERROR = "grader_error"  # a grader, rule or python judge raised
    INVALID_RUN = "invalid_run"  # the tests could not be run at all
    STAGE_ERROR = "stage_error"  # the execution failed, so there was nothing to measure
    POLICY_SKIP = "policy_skip"  # routing decided that no judge is needed
    NO_JUDGE = "no_judge"  # the suite's judge is not available


class Verdict(StrEnum):
    """Pass, fail, or none when nothing pass-bearing was measured."""

    PASS = "pass"
    FAIL = "fail"
    NONE = "none"


class Judgement(StrEnum):
    """What one judge may say of one check."""

    PASS = "pass"
    FAIL = "fail"
    UNCERTAIN = "uncertain"


class Disposition(StrEnum):
    """What is to be done with a trial's record."""

    CLEAN = "clean"
    REVIEW = "review"
    QUARANTINED = "quarantined"


class Authority(StrEnum):
    """How much a pass-bearing score weighs; only the highest present decides."""

    GROUND_TRUTH = "ground_truth"  # tests and state
    OBJECTIVE = "objective"  # graders that compare with a reference
    JUDGE = "judge"
    OTHER = "other"


class Source(StrEnum):
    """Who made a score."""

    GRADER = "grader"
    RULE = "rule"
    JUDGE = "judge"


class RuleOutcome(StrEnum):
    """What a rule says of a record."""

    PASS = "pass"
    REVIEW = "review"
    FAIL = "fail"


class Tier(StrEnum):
    """The tiers of judges."""

    PRIMARY = "primary"
    ESCALATION = "escalation"


class ProposedAction(StrEnum):
    """What a proposal suggests; nothing is ever applied automatically."""

    CORRECT = "correct"
    MERGE = "merge"
    REJECT = "reject"
    RERUN = "re-run"
    REVIEW = "review"


class ExportStatus(StrEnum):
    """What became of sending one trial to one sink."""

    SUCCEEDED = "succeeded"
    PARTIAL = "partial"
    FAILED = "failed"


class ProbeState(StrEnum):
    """What became of asking a platform whether it can be used."""

    OK = "ok"  # it answers, and takes the credentials
    AUTH = "auth"  # it refuses the credentials, or one of them is missing
    UNREACHABLE = "unreachable"  # nothing answers there in time
    ERROR = "error"  # it answers something else than such a platform would


class AlertKind(StrEnum):
    """What a person should know of a run; `weirbox.pipeline.alerting` has the thresholds."""

    REVIEW_RATE = "review_rate"  # many of the judged trials need a person
    QUARANTINE_RATE = "quarantine_rate"  # many of the judged trials are not to be used
    PROVIDER_FAILURES = "provider_failures"  # many judges' scores are missing for them
    BUDGET_EXHAUSTED = "budget_exhausted"  # scores are missing that it did not reach
    STALLED = "stalled"  # nothing changes any more
    REGRESSION = "regression"  # the pass rate fell since the run before


class EventKind(StrEnum):
    """The kinds of a trace's events."""

    MESSAGE = "message"
    LLM_CALL = "llm_call"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    ERROR = "error"
    LOG = "log"


class Correlate(StrEnum):
    """How a trial's trace is found at the platform it was sent to."""

    ID = "id"  # the harness is given a trace id
    TAG = "tag"  # an attribute carries the correlation id


class Collect(StrEnum):
    """When a trial's trace is pulled."""

    JOB = "job"  # in the execute stage, once compute is released
    CONTROL_PLANE = "control-plane"  # in the judge stage, by a reference


class PullState(StrEnum):
    """How much of a trace a platform has."""

    ABSENT = "absent"  # nothing yet
    PARTIAL = "partial"  # spans without their root or parents
    COMPLETE = "complete"


class FailedStage(StrEnum):
    """Where something failed that is to be tried again."""

    COLLECT = "collect"  # the trace could not be pulled; such a trial is executed again
    JUDGE = "judge"
    EXPORT = "export"


class Fault(StrEnum):
    """Whose fault an error is."""

    INFRA = "infra"  # machines, networks, providers, sinks, weirbox itself
    CONFIG = "config"  # something the suite names is malformed or not there
    HARNESS = "harness"  # the system under test cannot be driven
    AGENT = "agent"  # the system under test ran, and failed


class ErrorKind(StrEnum):
    """Why a stage of a trial failed; `weirbox.domain.policy` says what follows."""

    PARSE = "parse"  # the record itself is malformed
    PROVISION = "provision"  # compute could not be had
    COMPUTE_LOST = "compute_lost"  # the sandbox died under the harness
    MISSING_EXECUTABLE = "missing_executable"
    HARNESS_TIMEOUT = "harness_timeout"
    HARNESS_EXIT = "harness_exit"  # a command ended with a non-zero status
    HARNESS_ERROR = "harness_error"  # a python harness raised, a reply was unusable
    HARNESS_TRANSIENT = "harness_transient"  # connection, 429, 5xx of an http harness
    MISSING_RECORDING = "missing_recording"
    MISSING_SECRET = "missing_secret"
    COLLECT = "collect"  # the trace could not be pulled
    SINK = "sink"
    INTERNAL = "internal"  # weirbox's own fault
