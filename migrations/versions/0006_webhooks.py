"""Webhooks: subscriptions of a project, messages to them, and every attempt to deliver one.

Revision: 0006, additive: a worker of the previous release ends jobs without telling anybody.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0006'
down_revision = '0005'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        'webhook',
        sa.Column('id', sa.String(), nullable=False),
        sa.Column('owner', sa.String(), nullable=False),
        sa.Column('name', sa.String(), nullable=False),
        sa.Column('url', sa.String(), nullable=False),
        sa.Column('events', sa.Text(), nullable=False),
        sa.Column('secret', sa.String(), nullable=False),
        sa.Column('former_secret', sa.String(), nullable=True),
        sa.Column('former_until', sa.Double(), nullable=True),
        sa.Column('created', sa.Double(), nullable=False),
        sa.Column('failing_since', sa.Double(), nullable=True),
        sa.Column('disabled', sa.Double(), nullable=True),
        sa.Column('disabled_why', sa.String(), nullable=True),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_webhook')),
    )
    op.create_index(op.f('ix_webhook_owner_created'), 'webhook', ['owner', 'created'])
    op.create_table(
        'webhook_delivery',
        sa.Column('id', sa.String(), nullable=False),
        sa.Column('webhook_id', sa.String(), nullable=False),
        sa.Column('job_id', sa.String(), nullable=True),
        sa.Column('type', sa.String(), nullable=False),
        sa.Column('body', sa.Text(), nullable=False),
        sa.Column('state', sa.String(), nullable=False),
        sa.Column('attempts', sa.BigInteger(), nullable=False),
        sa.Column('tries', sa.BigInteger(), nullable=False),
        sa.Column('not_before', sa.Double(), nullable=False),
        sa.Column('since', sa.Double(), nullable=False),
        sa.Column('fence', sa.BigInteger(), nullable=False),
        sa.Column('lease_until', sa.Double(), nullable=True),
        sa.Column('created', sa.Double(), nullable=False),
        sa.Column('finished', sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ['webhook_id'], ['webhook.id'], ondelete='CASCADE',
            name=op.f('fk_webhook_delivery_webhook_id_webhook'),
        ),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_webhook_delivery')),
    )
    for columns in (
        ['state', 'not_before'], ['state', 'lease_until'], ['webhook_id', 'created'],
        ['webhook_id', 'state', 'not_before'], ['job_id'],
    ):
        name = f"ix_webhook_delivery_{'_'.join(columns)}"
        op.create_index(op.f(name), 'webhook_delivery', columns)
    op.create_table(
        'webhook_attempt',
        sa.Column('delivery_id', sa.String(), nullable=False),
        sa.Column('number', sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column('started', sa.Double(), nullable=False),
        sa.Column('duration_s', sa.Double(), nullable=True),
        sa.Column('status', sa.Integer(), nullable=True),
        sa.Column('error', sa.String(), nullable=True),
        sa.ForeignKeyConstraint(
            ['delivery_id'], ['webhook_delivery.id'], ondelete='CASCADE',
            name=op.f('fk_webhook_attempt_delivery_id_webhook_delivery'),
        ),
        sa.PrimaryKeyConstraint('delivery_id', 'number', name=op.f('pk_webhook_attempt')),
    )


def downgrade() -> None:
    op.drop_table('webhook_attempt')
    op.drop_table('webhook_delivery')
    op.drop_table('webhook')
