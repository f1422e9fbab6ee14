"""Settings from the environment (WEIRBOX_*), loaded at the edges only."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

DAY_S = 86_400
"""More than a lease or a grace time can sensibly be, and far less than a date can hold."""


class Settings(BaseSettings):
    """What a process needs to know about its surroundings.

    Attributes:
        home: Where weirbox keeps its database and the state of local servers.
        database_url: SQLAlchemy URL; default: SQLite below `home`.
        lease_s: How long a driver's claim lasts without being renewed.
        grace_s: How long a draining driver lets in-flight trials go on.
        dashboard_url: Where people reach the dashboard; for links.
        deployment: The name of weirbox's deployments in Prefect; stores that share a
            Prefect server need different ones.
        stall_s: After how long without any change a run counts as stalled; three times
            in a row fail it.
        repair_s: How long a completed run may be without its scorecard before the
            coordinator has it finalized again.
    """

    model_config = SettingsConfigDict(env_prefix="WEIRBOX_", extra="ignore", env_ignore_empty=True)

    home: Path = Field(default_factory=lambda: Path.home() / ".weirbox")
    database_url: str | None = None
    secrets_dir: Path | None = None
    prompts_dir: Path | None = None
    lease_s: float = Field(default=30.0, gt=0, le=DAY_S)
    grace_s: float = Field(default=20.0, ge=0, le=DAY_S)
    deployment: str = Field(default="local", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    stall_s: float = Field(default=120.0, gt=0)
    repair_s: float = Field(default=60.0, ge=0)
    dashboard_url: str = "http://127.0.0.1:8501"

    @field_validator("home")
    @classmethod
    def _fits_a_url(cls, home: Path) -> Path:
        if "?" in str(home):
            raise ValueError("a path with '?' cannot stand in a database URL")
        return home

    @property
    def store_url(self) -> str:
        """The database in use."""
        if self.database_url:
            return self.database_url
        return f"sqlite:///{self.home.expanduser().absolute() / 'weirbox.db'}"
