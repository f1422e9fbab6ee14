"""When a registered suite is run by itself."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, field_validator, model_validator

from weirbox.domain.base import Frozen, Seconds
from weirbox.domain.words import RunKind

_CRON_FIELDS = 5
"""Minute, hour, day of the month, month, day of the week: programs that take a sixth one
do not agree on where the seconds stand."""

_NOT_EVERYWHERE = re.compile(r"LW|\dL")
"""The last weekday, and the last of a weekday: not every engine knows them."""


class Schedule(Frozen):
    """When a registered suite is run: by a cron line, or every so many seconds.

    Attributes:
        cron: Five fields: minute, hour, day of the month, month, day of the week.
        timezone: What the cron line's hours are of, such as ``Europe/Berlin``; UTC if absent.
        every_s: Seconds from one run to the next.
        kind: A scheduled delta takes the cases that are new or changed since any run of
            the suite: all of them where there is none.
    """

    cron: str | None = None
    timezone: str | None = None
    every_s: Seconds | None = Field(default=None, ge=1)
    kind: RunKind = RunKind.FULL

    @field_validator("cron")
    @classmethod
    def _is_cron(cls, cron: str | None) -> str | None:
        from cronsim import CronSim, CronSimError

        if cron is None:
            return None
        try:
            CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC))
            problem = ""
        except CronSimError as error:
            problem = str(error)
        if len(cron.split()) != _CRON_FIELDS or _NOT_EVERYWHERE.search(cron.upper()):
            problem = f"not {_CRON_FIELDS} fields that every engine knows"
        if problem:
            raise ValueError(
                f"{cron!r} is no cron line ({problem}); one is '0 2 * * 1-5': minute, hour, day of "
                "the month, month, day of the week"
            )
        return cron

    @field_validator("timezone")
    @classmethod
    def _is_timezone(cls, timezone: str | None) -> str | None:
        if timezone is not None:
            try:
                ZoneInfo(timezone)
            except (ZoneInfoNotFoundError, ValueError, OSError):
                raise ValueError(
                    f"there is no time zone {timezone!r}; one is 'Europe/Berlin'"
                ) from None
        return timezone

    @model_validator(mode="after")
    def _one_rhythm(self) -> Self:
        if (self.cron is None) == (self.every_s is None):
            raise ValueError("give exactly one of 'cron' and 'every_s'")
        if self.timezone is not None and self.cron is None:
            raise ValueError("'timezone' goes with 'cron' only: seconds are the same everywhere")
        return self

    @property
    def zone(self) -> str:
        """The time zone that holds."""
        return self.timezone or "UTC"

    def __str__(self) -> str:
        rhythm = f"every {self.every_s:g} s" if self.cron is None else f"{self.cron} {self.zone}"
        return rhythm if self.kind is RunKind.FULL else f"{rhythm}, {self.kind}"
