"""Results that were produced elsewhere enter as a run: planned, driven, judged like any other."""

from weirbox.ingesting.sources import Results
from weirbox.ingesting.starting import aingest, ingest, plan_ingested

__all__ = ["Results", "aingest", "ingest", "plan_ingested"]
