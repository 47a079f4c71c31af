"""Calibration arrays for partial quantisation.

Revision: 0002, additive: the previous release ignores the table.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0002'
down_revision = '0001'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('calibration',
    sa.Column('owner', sa.String(), nullable=False),
    sa.Column('blob_sha256', sa.String(), nullable=False),
    sa.Column('name', sa.String(), nullable=False),
    sa.Column('created', sa.Double(), nullable=False),
    sa.ForeignKeyConstraint(['blob_sha256'], ['blob.sha256'], name=op.f('fk_calibration_blob_sha256_blob')),
    sa.PrimaryKeyConstraint('owner', 'blob_sha256', name=op.f('pk_calibration'))
    )
    with op.batch_alter_table('calibration') as batch_op:
        batch_op.create_index(batch_op.f('ix_calibration_blob_sha256'), ['blob_sha256'], unique=False)


def downgrade() -> None:
    with op.batch_alter_table('calibration') as batch_op:
        batch_op.drop_index(batch_op.f('ix_calibration_blob_sha256'))

    op.drop_table('calibration')
