"""Coordination, rounds, registered suites and datasets, alerts."""

from __future__ import annotations

import sqlalchemy as sa
import sqlmodel
from alembic import op

import weirbox.store.types

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "auto_run",
        sa.Column("suite", sqlmodel.sql.sqltypes.AutoString(), nullable=False),
        sa.Column("dataset_digest", sqlmodel.sql.sqltypes.AutoString(), nullable=False),
        sa.Column("key", sqlmodel.sql.sqltypes.AutoString(), nullable=False),
        sa.Column("at", weirbox.store.types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("flow_run", sqlmodel.sql.sqltypes.AutoString(), nullable=True),
        sa.PrimaryKeyConstraint("suite", "dataset_digest"),
    )
    op.create_table(
        "dataset_version",
        sa.Column("name", sqlmodel.sql.sqltypes.AutoString(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("digest", sqlmodel.sql.sqltypes.AutoString(), nullable=False),
        sa.Column("records", sa.Integer(), nullable=False),
        sa.Column("source", weirbox.store.types.SafeText(), nullable=False),
        sa.Column("created_at", weirbox.store.types.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", "version"),
    )
    op.create_table(
        "registered_suite",
        sa.Column("name", sqlmodel.sql.sqltypes.AutoString(), nullable=False),
        sa.Column("body", weirbox.store.types.JsonText(), nullable=False),
        sa.Column("folder", weirbox.store.types.SafeText(), nullable=False),
        sa.Column("registered_at", weirbox.store.types.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "dataset_case",
        sa.Column("name", sqlmodel.sql.sqltypes.AutoString(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("case_key", sqlmodel.sql.sqltypes.AutoString(), nullable=False),
        sa.Column("case_digest", sqlmodel.sql.sqltypes.AutoString(), nullable=False),
        sa.ForeignKeyConstraint(
            ["case_digest"],
            ["payload.digest"],
        ),
        sa.ForeignKeyConstraint(
            ["name", "version"],
            ["dataset_version.name", "dataset_version.version"],
        ),
        sa.PrimaryKeyConstraint("name", "version", "position"),
    )
    op.create_table(
        "alert",
        sa.Column("run_id", sqlmodel.sql.sqltypes.AutoString(), nullable=False),
        sa.Column("kind", sqlmodel.sql.sqltypes.AutoString(), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("threshold", sa.Float(), nullable=True),
        sa.Column("message", weirbox.store.types.SafeText(), nullable=False),
        sa.Column("at", weirbox.store.types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("emitted_at", weirbox.store.types.UtcDateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id"],
            ["run.id"],
        ),
        sa.PrimaryKeyConstraint("run_id", "kind"),
    )
    op.create_table(
        "dispatch",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("run_id", sqlmodel.sql.sqltypes.AutoString(), nullable=False),
        sa.Column("key", sqlmodel.sql.sqltypes.AutoString(), nullable=False),
        sa.Column("flow_run", sqlmodel.sql.sqltypes.AutoString(), nullable=True),
        sa.Column("requested_at", weirbox.store.types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("started_at", weirbox.store.types.UtcDateTime(timezone=True), nullable=True),
        sa.Column("ended_at", weirbox.store.types.UtcDateTime(timezone=True), nullable=True),
        sa.Column("message", weirbox.store.types.SafeText(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"],
            ["run.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("key"),
    )
    with op.batch_alter_table("dispatch", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_dispatch_ended_at"), ["ended_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_dispatch_run_id"), ["run_id"], unique=False)

    op.create_table(
        "attempt",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("run_id", sqlmodel.sql.sqltypes.AutoString(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("stage", sqlmodel.sql.sqltypes.AutoString(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("claim", sa.BigInteger(), nullable=True),
        sa.Column("started_at", weirbox.store.types.UtcDateTime(timezone=True), nullable=True),
        sa.Column("ended_at", weirbox.store.types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("observation", sqlmodel.sql.sqltypes.AutoString(), nullable=True),
        sa.Column("error_kind", sqlmodel.sql.sqltypes.AutoString(), nullable=True),
        sa.Column("error_message", weirbox.store.types.SafeText(), nullable=True),
        sa.ForeignKeyConstraint(
            ["observation"],
            ["payload.digest"],
        ),
        sa.ForeignKeyConstraint(
            ["run_id", "seq"],
            ["trial.run_id", "trial.seq"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("attempt", schema=None) as batch_op:
        batch_op.create_index("ix_attempt_trial", ["run_id", "seq"], unique=False)

    op.create_table(
        "score_history",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("run_id", sqlmodel.sql.sqltypes.AutoString(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("name", weirbox.store.types.SafeText(), nullable=False),
        sa.Column("body", weirbox.store.types.JsonText(), nullable=False),
        sa.Column("why", weirbox.store.types.SafeText(), nullable=False),
        sa.Column("replaced_at", weirbox.store.types.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id", "seq"],
            ["trial.run_id", "trial.seq"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("score_history", schema=None) as batch_op:
        batch_op.create_index("ix_score_history_trial", ["run_id", "seq"], unique=False)

    with op.batch_alter_table("claim", schema=None) as batch_op:
        batch_op.add_column(sa.Column("dispatch", sa.BigInteger(), nullable=True))
        batch_op.add_column(sa.Column("stages", sa.Integer(), server_default="0", nullable=False))
        batch_op.add_column(sa.Column("reaped", sa.Boolean(), server_default="0", nullable=False))

    with op.batch_alter_table("judge_call", schema=None) as batch_op:
        batch_op.add_column(sa.Column("round", sa.Integer(), server_default="1", nullable=False))
        batch_op.add_column(sa.Column("key", sqlmodel.sql.sqltypes.AutoString(), nullable=True))
        batch_op.create_index(batch_op.f("ix_judge_call_key"), ["key"], unique=True)

    with op.batch_alter_table("reservation", schema=None) as batch_op:
        batch_op.add_column(sa.Column("key", sqlmodel.sql.sqltypes.AutoString(), nullable=True))

    with op.batch_alter_table("run", schema=None) as batch_op:
        batch_op.add_column(sa.Column("managed", sa.Boolean(), server_default="0", nullable=False))
        batch_op.add_column(sa.Column("origin", weirbox.store.types.JsonText(), nullable=True))
        batch_op.add_column(sa.Column("parent", sqlmodel.sql.sqltypes.AutoString(), nullable=True))
        batch_op.add_column(sa.Column("seen", sqlmodel.sql.sqltypes.AutoString(), nullable=True))
        batch_op.add_column(
            sa.Column("seen_at", weirbox.store.types.UtcDateTime(timezone=True), nullable=True)
        )
        batch_op.add_column(sa.Column("stalls", sa.Integer(), server_default="0", nullable=False))
        batch_op.add_column(
            sa.Column("settled_at", weirbox.store.types.UtcDateTime(timezone=True), nullable=True)
        )
        batch_op.create_index(batch_op.f("ix_run_parent"), ["parent"], unique=False)

    op.execute(
        "UPDATE run SET settled_at = completed_at"
        " WHERE status IN ('failed', 'cancelled', 'superseded')"
    )
    with op.batch_alter_table("trial", schema=None) as batch_op:
        batch_op.add_column(sa.Column("round", sa.Integer(), server_default="1", nullable=False))
        batch_op.add_column(sa.Column("redo", weirbox.store.types.SafeText(), nullable=True))
