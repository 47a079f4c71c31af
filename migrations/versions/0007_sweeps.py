"""Sweeps, their items, and the sweep that a job belongs to.

Revision: 0007, additive: the previous release runs the jobs of a sweep as any others, and leaves
their sweep empty in those that it accepts.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0007'
down_revision = '0006'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        'sweep',
        sa.Column('id', sa.String(), nullable=False),
        sa.Column('owner', sa.String(), nullable=False),
        sa.Column('label', sa.String(), nullable=True),
        sa.Column('fields', sa.Text(), nullable=False),
        sa.Column('options', sa.Text(), nullable=False),
        sa.Column('priority', sa.Integer(), nullable=False),
        sa.Column('wall_limit_s', sa.Double(), nullable=True),
        sa.Column('traceparent', sa.String(), nullable=True),
        sa.Column('state', sa.String(), nullable=False),
        sa.Column('items_total', sa.Integer(), nullable=False),
        sa.Column('created', sa.Double(), nullable=False),
        sa.Column('finished', sa.Double(), nullable=True),
        sa.Column('cancel_requested', sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_sweep')),
    )
    with op.batch_alter_table('sweep') as batch_op:
        for columns in (['owner', 'created'], ['state', 'created']):
            name = batch_op.f(f"ix_sweep_{'_'.join(columns)}")
            batch_op.create_index(name, columns, unique=False)
    op.create_table(
        'sweep_item',
        sa.Column('sweep_id', sa.String(), nullable=False),
        sa.Column('number', sa.Integer(), autoincrement=False, nullable=False),
        sa.Column('model_id', sa.String(), nullable=False),
        sa.Column('hardware_id', sa.String(), nullable=True),
        sa.Column('hardware_name', sa.String(), nullable=False),
        sa.Column('values', sa.Text(), nullable=False),
        sa.Column('on_chip_bytes', sa.BigInteger(), nullable=True),
        sa.Column('state', sa.String(), nullable=False),
        sa.Column('job_id', sa.String(), nullable=True),
        sa.Column('error', sa.Text(), nullable=True),
        sa.Column('latency_s', sa.Double(), nullable=True),
        sa.Column('energy_pj', sa.Double(), nullable=True),
        sa.Column('seconds', sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ['sweep_id'], ['sweep.id'], name=op.f('fk_sweep_item_sweep_id_sweep'),
            ondelete='CASCADE',
        ),
        sa.PrimaryKeyConstraint('sweep_id', 'number', name=op.f('pk_sweep_item')),
    )
    with op.batch_alter_table('sweep_item') as batch_op:
        for columns in (['sweep_id', 'state'], ['model_id'], ['job_id']):
            name = batch_op.f(f"ix_sweep_item_{'_'.join(columns)}")
            batch_op.create_index(name, columns, unique=False)
    with op.batch_alter_table('job') as batch_op:
        batch_op.add_column(sa.Column('sweep_id', sa.String(), nullable=True))
        batch_op.create_index(batch_op.f('ix_job_sweep_id'), ['sweep_id'], unique=False)


def downgrade() -> None:
    with op.batch_alter_table('job') as batch_op:
        batch_op.drop_index(batch_op.f('ix_job_sweep_id'))
        batch_op.drop_column('sweep_id')
    op.drop_table('sweep_item')
    op.drop_table('sweep')
