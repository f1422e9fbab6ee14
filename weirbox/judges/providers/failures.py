"""What a provider's refusal to answer means: one table for all of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from weirbox.domain.trace import Usage
from weirbox.domain.words import Reason
from weirbox.errors import ProviderError

THROTTLED = frozenset({429, 529})
_RETRYABLE = frozenset({408, 429, 500, 502, 503, 504, 520, 522, 524, 529})
_MOST_CHARACTERS = 500  # of a provider's message
_URL = re.compile(r"\S+://\S+|www\.\S+")
_SPENT_CODES = re.compile(
    r"\b(insufficient_quota|billing_error|billing_hard_limit_reached|insufficient_balance"
    r"|insufficient_funds|insufficient_credits?|credits?_exhausted|quota_exhausted)\b"
)
_MEANS = r"quota|credits?|credit balance|account balance|prepaid balance|funds"
_GONE = (
    r"exceeded|exhausted|insufficient|spent|used up|ran out|run out|out of|depleted|too low"
    r"|not enough|no more|no remaining"
)
_SPENT_WORDS = re.compile(
    rf"\b(?:{_MEANS})\b.{{0,40}}\b(?:{_GONE})\b|\b(?:{_GONE})\b.{{0,40}}\b(?:{_MEANS})\b"
)
_RATE_WORDS = re.compile(r"\bper[ _-]?(?:second|sec|minute|min|hour)s?\b|\b[rt]pm\b")


def parse_retry_after(headers: Mapping[str, str], *, now: datetime | None = None) -> float | None:
    """Seconds the provider asks to wait, as it says; None when it does not say readably.

    The limiter floors and caps it.

    Args:
        headers: By lower-case name. ``retry-after`` is a number of seconds or an HTTP
            date (RFC 9110, 10.2.3); ``retry-after-ms`` is more exact and goes first.
        now: For tests.
    """
    exact = _seconds(headers.get("retry-after-ms", ""))
    if exact is not None:
        return exact / 1000
    text = headers.get("retry-after", "").strip()
    seconds = _seconds(text)
    if seconds is not None or not text:
        return seconds
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (aware - (now or datetime.now(UTC))).total_seconds())


def failure(
    status: int, message: str, *, who: str, retry_after: float | None = None, code: str = ""
) -> ProviderError:
    """The error that an HTTP status and the provider's message come to.

    Args:
        who: Whom to name, such as ``provider 'main' (gpt-5)``.
        code: The provider's own words for the kind of error.
    """
    text = f"{who}: HTTP {status}: {message[:_MOST_CHARACTERS] or 'no message'}"
    if status == 402 or (400 <= status < 500 and _is_spent(f"{code} {message}".casefold())):
        return ProviderError(text, reason=Reason.QUOTA)
    return ProviderError(
        text,
        retryable=status in _RETRYABLE,
        retry_after=retry_after,
        throttled=status in THROTTLED,
    )


def timed_out(seconds: float, *, who: str, usage: Usage | None = None) -> ProviderError:
    """The error of a call that took too long."""
    return ProviderError(
        f"{who}: no answer within {seconds:g} s",
        reason=Reason.TIMEOUT,
        retryable=True,
        usage=usage,
    )


def _is_spent(text: str) -> bool:
    if _SPENT_CODES.search(text):
        return True
    plain = _URL.sub("", text)
    return _SPENT_WORDS.search(plain) is not None and not _RATE_WORDS.search(plain)


def _seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
