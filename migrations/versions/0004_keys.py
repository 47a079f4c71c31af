"""Keys with a name and an end, specs that several projects have, cache entries of a project.

Revision: 0004, additive: the previous release knows no keys, and what it inserts belongs to the
project `local`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0004'
down_revision = '0003'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        'hw_owner',
        sa.Column('owner', sa.String(), nullable=False),
        sa.Column('hardware_id', sa.String(), nullable=False),
        sa.Column('created', sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ['hardware_id'], ['hw_spec.id'], name=op.f('fk_hw_owner_hardware_id_hw_spec')
        ),
        sa.PrimaryKeyConstraint('owner', 'hardware_id', name=op.f('pk_hw_owner')),
    )
    with op.batch_alter_table('hw_owner') as batch_op:
        batch_op.create_index(batch_op.f('ix_hw_owner_hardware_id'), ['hardware_id'], unique=False)
    with op.batch_alter_table('api_key') as batch_op:
        batch_op.add_column(sa.Column('name', sa.String(), nullable=False, server_default=''))
        batch_op.add_column(sa.Column('expires', sa.Double(), nullable=True))
    with op.batch_alter_table('cache_entry') as batch_op:
        batch_op.add_column(
            sa.Column('owner', sa.String(), nullable=False, server_default='local')
        )
        batch_op.create_index(
            batch_op.f('ix_cache_entry_owner_last_used'), ['owner', 'last_used'], unique=False
        )


def downgrade() -> None:
    with op.batch_alter_table('cache_entry') as batch_op:
        batch_op.drop_index(batch_op.f('ix_cache_entry_owner_last_used'))
        batch_op.drop_column('owner')
    with op.batch_alter_table('api_key') as batch_op:
        batch_op.drop_column('expires')
        batch_op.drop_column('name')
    op.drop_table('hw_owner')
