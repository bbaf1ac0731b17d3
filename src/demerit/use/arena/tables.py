"""The tables of the arena, in the database of people's work."""

from __future__ import annotations

import sqlalchemy as sa

from demerit.use.people.database import TABLES

POLICIES = sa.Table(
    "policies",
    TABLES,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(100), nullable=False, unique=True),
    sa.Column("address", sa.Text, nullable=False, default=""),  # ws://... of its server; sites never see it
    sa.Column("is_active", sa.Boolean, nullable=False, default=True),
)
TRIALS = sa.Table(
    "trials",
    TABLES,
    sa.Column("id", sa.String(36), primary_key=True),
    sa.Column("site", sa.ForeignKey("people.id"), nullable=False, index=True),
    sa.Column("first", sa.ForeignKey("policies.id"), nullable=False),  # runs first; the order is random
    sa.Column("second", sa.ForeignKey("policies.id"), nullable=False),
    sa.Column("started", sa.Float, nullable=False),
    sa.Column("ended", sa.Float),
    sa.Column("instruction", sa.Text, nullable=False, default=""),
    sa.Column("is_safe", sa.Boolean, nullable=False, default=False),  # the safety checklist is done
    sa.Column("is_reset", sa.Boolean, nullable=False, default=False),  # the scene looks like the photo again
    sa.Column("verdict", sa.String(6)),  # first, second or tie
    sa.Column("first_progress", sa.Float),
    sa.Column("second_progress", sa.Float),
    sa.Column("first_success", sa.Boolean),
    sa.Column("second_success", sa.Boolean),
    sa.Column("feedback", sa.Text, nullable=False, default=""),
    sa.Column("excluded", sa.Text, nullable=False, default=""),  # why it does not count
)
UPLOADS = sa.Table(
    "uploads",
    TABLES,
    sa.Column("id", sa.String(36), primary_key=True),
    sa.Column("trial", sa.ForeignKey("trials.id"), nullable=False, index=True),
    sa.Column("part", sa.String(6), nullable=False),  # photo, first or second
    sa.Column("camera", sa.String(5), nullable=False),  # left, right or wrist
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("is_complete", sa.Boolean, nullable=False, default=False),
    sa.UniqueConstraint("trial", "part", "camera"),
)
MODEL_SCORES = sa.Table(
    "model_scores",
    TABLES,
    sa.Column("trial", sa.ForeignKey("trials.id"), primary_key=True),
    sa.Column("part", sa.String(6), primary_key=True),
    sa.Column("model", sa.String(200), primary_key=True),
    sa.Column("value", sa.Float),  # none = unscored
    sa.Column("why_missing", sa.Text, nullable=False, default=""),
)
