"""The audit log, rates of keys, limits of projects.

Revision: 0005, additive: the previous release inserts keys without a rate of their own, and leaves
no rows in the audit log.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0005'
down_revision = '0004'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        'project_limit',
        sa.Column('owner', sa.String(), nullable=False),
        sa.Column('rate', sa.String(), nullable=True),
        sa.Column('max_active_jobs', sa.BigInteger(), nullable=True),
        sa.Column('max_bytes', sa.BigInteger(), nullable=True),
        sa.Column('changed', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('owner', name=op.f('pk_project_limit')),
    )
    op.create_table(
        'audit',
        sa.Column(
            'id', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), autoincrement=True,
            nullable=False,
        ),
        sa.Column('ts', sa.Double(), nullable=False),
        sa.Column('owner', sa.String(), nullable=False),
        sa.Column('key_id', sa.String(), nullable=True),
        sa.Column('who', sa.String(), nullable=False),
        sa.Column('route', sa.String(), nullable=False),
        sa.Column('subject', sa.String(), nullable=True),
        sa.Column('outcome', sa.String(), nullable=False),
        sa.Column('status', sa.BigInteger(), nullable=True),
        sa.Column('request_id', sa.String(), nullable=False),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_audit')),
    )
    with op.batch_alter_table('audit') as batch_op:
        batch_op.create_index(batch_op.f('ix_audit_ts'), ['ts'], unique=False)
        batch_op.create_index(batch_op.f('ix_audit_owner_id'), ['owner', 'id'], unique=False)
    with op.batch_alter_table('api_key') as batch_op:
        batch_op.add_column(sa.Column('rate', sa.String(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table('api_key') as batch_op:
        batch_op.drop_column('rate')
    op.drop_table('audit')
    op.drop_table('project_limit')
