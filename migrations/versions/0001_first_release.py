"""Every table of the first release.

Revision: 0001, the first.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0001'
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('api_key',
    sa.Column('id', sa.String(), nullable=False),
    sa.Column('prefix', sa.String(), nullable=False),
    sa.Column('secret_sha256', sa.String(), nullable=False),
    sa.Column('owner', sa.String(), nullable=False),
    sa.Column('scopes', sa.Text(), nullable=False),
    sa.Column('created', sa.Double(), nullable=False),
    sa.Column('revoked', sa.Double(), nullable=True),
    sa.Column('last_used', sa.Double(), nullable=True),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_api_key')),
    sa.UniqueConstraint('prefix', name=op.f('uq_api_key_prefix'))
    )
    op.create_table('blob',
    sa.Column('sha256', sa.String(), nullable=False),
    sa.Column('size_bytes', sa.BigInteger(), nullable=False),
    sa.Column('media_type', sa.String(), nullable=False),
    sa.Column('created', sa.Double(), nullable=False),
    sa.Column('verified_at', sa.Double(), nullable=True),
    sa.PrimaryKeyConstraint('sha256', name=op.f('pk_blob'))
    )
    op.create_table('hw_spec',
    sa.Column('id', sa.String(), nullable=False),
    sa.Column('machine_digest', sa.String(), nullable=False),
    sa.Column('name', sa.String(), nullable=False),
    sa.Column('owner', sa.String(), nullable=False),
    sa.Column('document', sa.Text(), nullable=False),
    sa.Column('created', sa.Double(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_hw_spec'))
    )
    with op.batch_alter_table('hw_spec') as batch_op:
        batch_op.create_index(batch_op.f('ix_hw_spec_machine_digest'), ['machine_digest'], unique=False)

    op.create_table('idempotency',
    sa.Column('scope', sa.String(), nullable=False),
    sa.Column('key', sa.String(), nullable=False),
    sa.Column('request_sha256', sa.String(), nullable=False),
    sa.Column('resource_id', sa.String(), nullable=False),
    sa.Column('created', sa.Double(), nullable=False),
    sa.PrimaryKeyConstraint('scope', 'key', name=op.f('pk_idempotency'))
    )
    with op.batch_alter_table('idempotency') as batch_op:
        batch_op.create_index(batch_op.f('ix_idempotency_created'), ['created'], unique=False)

    op.create_table('upload',
    sa.Column('id', sa.String(), nullable=False),
    sa.Column('owner', sa.String(), nullable=False),
    sa.Column('name', sa.String(), nullable=False),
    sa.Column('expected_sha256', sa.String(), nullable=True),
    sa.Column('size_limit_bytes', sa.BigInteger(), nullable=False),
    sa.Column('received_bytes', sa.BigInteger(), nullable=False),
    sa.Column('state', sa.String(), nullable=False),
    sa.Column('created', sa.Double(), nullable=False),
    sa.Column('expires', sa.Double(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_upload'))
    )
    op.create_table('work_item',
    sa.Column('id', sa.String(), nullable=False),
    sa.Column('kind', sa.String(), nullable=False),
    sa.Column('state', sa.String(), nullable=False),
    sa.Column('priority', sa.Integer(), nullable=False),
    sa.Column('payload', sa.Text(), nullable=False),
    sa.Column('owner', sa.String(), nullable=True),
    sa.Column('fence', sa.BigInteger(), nullable=False),
    sa.Column('lease_until', sa.Double(), nullable=True),
    sa.Column('attempts', sa.BigInteger(), nullable=False),
    sa.Column('max_attempts', sa.BigInteger(), nullable=False),
    sa.Column('wall_limit_s', sa.Double(), nullable=False),
    sa.Column('not_before', sa.Double(), nullable=False),
    sa.Column('hard_deadline', sa.Double(), nullable=True),
    sa.Column('dispatched_at', sa.Double(), nullable=True),
    sa.Column('dispatches', sa.BigInteger(), nullable=False),
    sa.Column('result', sa.Text(), nullable=True),
    sa.Column('error', sa.Text(), nullable=True),
    sa.Column('created', sa.Double(), nullable=False),
    sa.Column('finished', sa.Double(), nullable=True),
    sa.CheckConstraint("state <> 'leased' OR (lease_until IS NOT NULL AND owner IS NOT NULL)", name=op.f('ck_work_item_leased_has_lease')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_work_item'))
    )
    with op.batch_alter_table('work_item') as batch_op:
        batch_op.create_index(batch_op.f('ix_work_item_state_dispatched_at'), ['state', 'dispatched_at'], unique=False)
        batch_op.create_index(batch_op.f('ix_work_item_state_lease_until'), ['state', 'lease_until'], unique=False)
        batch_op.create_index(batch_op.f('ix_work_item_state_priority_created'), ['state', 'priority', 'created'], unique=False)

    op.create_table('worker',
    sa.Column('id', sa.String(), nullable=False),
    sa.Column('host', sa.String(), nullable=False),
    sa.Column('pid', sa.BigInteger(), nullable=False),
    sa.Column('slots', sa.BigInteger(), nullable=False),
    sa.Column('version', sa.String(), nullable=False),
    sa.Column('sandbox_tier', sa.String(), nullable=False),
    sa.Column('started', sa.Double(), nullable=False),
    sa.Column('beat', sa.Double(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_worker'))
    )
    with op.batch_alter_table('worker') as batch_op:
        batch_op.create_index(batch_op.f('ix_worker_beat'), ['beat'], unique=False)

    op.create_table('artifact',
    sa.Column('item_id', sa.String(), nullable=False),
    sa.Column('name', sa.String(), nullable=False),
    sa.Column('file_name', sa.String(), nullable=False),
    sa.Column('blob_sha256', sa.String(), nullable=False),
    sa.Column('fence', sa.BigInteger(), nullable=False),
    sa.Column('created', sa.Double(), nullable=False),
    sa.ForeignKeyConstraint(['blob_sha256'], ['blob.sha256'], name=op.f('fk_artifact_blob_sha256_blob')),
    sa.ForeignKeyConstraint(['item_id'], ['work_item.id'], name=op.f('fk_artifact_item_id_work_item'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('item_id', 'name', name=op.f('pk_artifact'))
    )
    with op.batch_alter_table('artifact') as batch_op:
        batch_op.create_index(batch_op.f('ix_artifact_blob_sha256'), ['blob_sha256'], unique=False)

    op.create_table('attempt',
    sa.Column('item_id', sa.String(), nullable=False),
    sa.Column('fence', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column('worker_id', sa.String(), nullable=False),
    sa.Column('started', sa.Double(), nullable=False),
    sa.Column('ended', sa.Double(), nullable=True),
    sa.Column('outcome', sa.String(), nullable=True),
    sa.Column('cpu_s', sa.Double(), nullable=True),
    sa.Column('max_rss_bytes', sa.BigInteger(), nullable=True),
    sa.Column('log_sha256', sa.String(), nullable=True),
    sa.ForeignKeyConstraint(['item_id'], ['work_item.id'], name=op.f('fk_attempt_item_id_work_item'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['log_sha256'], ['blob.sha256'], name=op.f('fk_attempt_log_sha256_blob')),
    sa.PrimaryKeyConstraint('item_id', 'fence', name=op.f('pk_attempt'))
    )
    op.create_table('cache_entry',
    sa.Column('digest', sa.String(), nullable=False),
    sa.Column('kind', sa.String(), nullable=False),
    sa.Column('fields', sa.Text(), nullable=False),
    sa.Column('value', sa.LargeBinary(), nullable=True),
    sa.Column('blob_sha256', sa.String(), nullable=True),
    sa.Column('size_bytes', sa.BigInteger(), nullable=False),
    sa.Column('filled_by_job', sa.String(), nullable=True),
    sa.Column('created', sa.Double(), nullable=False),
    sa.Column('last_used', sa.Double(), nullable=False),
    sa.Column('hits', sa.BigInteger(), nullable=False),
    sa.CheckConstraint('(value IS NULL) <> (blob_sha256 IS NULL)', name=op.f('ck_cache_entry_one_place')),
    sa.ForeignKeyConstraint(['blob_sha256'], ['blob.sha256'], name=op.f('fk_cache_entry_blob_sha256_blob')),
    sa.PrimaryKeyConstraint('digest', name=op.f('pk_cache_entry'))
    )
    with op.batch_alter_table('cache_entry') as batch_op:
        batch_op.create_index(batch_op.f('ix_cache_entry_blob_sha256'), ['blob_sha256'], unique=False)
        batch_op.create_index(batch_op.f('ix_cache_entry_kind_last_used'), ['kind', 'last_used'], unique=False)

    op.create_table('dep',
    sa.Column('item_id', sa.String(), nullable=False),
    sa.Column('needs_id', sa.String(), nullable=False),
    sa.ForeignKeyConstraint(['item_id'], ['work_item.id'], name=op.f('fk_dep_item_id_work_item'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['needs_id'], ['work_item.id'], name=op.f('fk_dep_needs_id_work_item'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('item_id', 'needs_id', name=op.f('pk_dep'))
    )
    with op.batch_alter_table('dep') as batch_op:
        batch_op.create_index(batch_op.f('ix_dep_needs_id'), ['needs_id'], unique=False)

    op.create_table('model',
    sa.Column('id', sa.String(), nullable=False),
    sa.Column('owner', sa.String(), nullable=False),
    sa.Column('name', sa.String(), nullable=False),
    sa.Column('kind', sa.String(), nullable=False),
    sa.Column('blob_sha256', sa.String(), nullable=False),
    sa.Column('summary', sa.Text(), nullable=True),
    sa.Column('created', sa.Double(), nullable=False),
    sa.ForeignKeyConstraint(['blob_sha256'], ['blob.sha256'], name=op.f('fk_model_blob_sha256_blob')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_model')),
    sa.UniqueConstraint('owner', 'blob_sha256', name=op.f('uq_model_owner_blob_sha256'))
    )
    op.create_table('job',
    sa.Column('id', sa.String(), nullable=False),
    sa.Column('owner', sa.String(), nullable=False),
    sa.Column('model_id', sa.String(), nullable=False),
    sa.Column('hardware_id', sa.String(), nullable=False),
    sa.Column('options', sa.Text(), nullable=False),
    sa.Column('label', sa.String(), nullable=True),
    sa.Column('priority', sa.Integer(), nullable=False),
    sa.Column('state', sa.String(), nullable=False),
    sa.Column('stage', sa.String(), nullable=True),
    sa.Column('units_solved', sa.BigInteger(), nullable=False),
    sa.Column('units_cached', sa.BigInteger(), nullable=False),
    sa.Column('units_total', sa.BigInteger(), nullable=False),
    sa.Column('error', sa.Text(), nullable=True),
    sa.Column('summary', sa.Text(), nullable=True),
    sa.Column('bundle_digest', sa.String(), nullable=True),
    sa.Column('traceparent', sa.String(), nullable=True),
    sa.Column('cloned_from', sa.String(), nullable=True),
    sa.Column('wall_limit_s', sa.Double(), nullable=False),
    sa.Column('queue_deadline', sa.Double(), nullable=False),
    sa.Column('created', sa.Double(), nullable=False),
    sa.Column('started', sa.Double(), nullable=True),
    sa.Column('finished', sa.Double(), nullable=True),
    sa.Column('cancel_requested', sa.Double(), nullable=True),
    sa.Column('event_seq', sa.BigInteger(), nullable=False),
    sa.ForeignKeyConstraint(['hardware_id'], ['hw_spec.id'], name=op.f('fk_job_hardware_id_hw_spec')),
    sa.ForeignKeyConstraint(['model_id'], ['model.id'], name=op.f('fk_job_model_id_model')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_job'))
    )
    with op.batch_alter_table('job') as batch_op:
        batch_op.create_index(batch_op.f('ix_job_label_created'), ['label', 'created'], unique=False)
        batch_op.create_index(batch_op.f('ix_job_owner_created'), ['owner', 'created'], unique=False)
        batch_op.create_index(batch_op.f('ix_job_state_created'), ['state', 'created'], unique=False)

    op.create_table('event',
    sa.Column('id', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), autoincrement=True, nullable=False),
    sa.Column('job_id', sa.String(), nullable=False),
    sa.Column('seq', sa.BigInteger(), nullable=False),
    sa.Column('ts', sa.Double(), nullable=False),
    sa.Column('type', sa.String(), nullable=False),
    sa.Column('payload', sa.Text(), nullable=False),
    sa.ForeignKeyConstraint(['job_id'], ['job.id'], name=op.f('fk_event_job_id_job'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_event')),
    sa.UniqueConstraint('job_id', 'seq', name=op.f('uq_event_job_id_seq'))
    )
    op.create_table('job_item',
    sa.Column('job_id', sa.String(), nullable=False),
    sa.Column('item_id', sa.String(), nullable=False),
    sa.Column('role', sa.String(), nullable=False),
    sa.ForeignKeyConstraint(['item_id'], ['work_item.id'], name=op.f('fk_job_item_item_id_work_item'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['job_id'], ['job.id'], name=op.f('fk_job_item_job_id_job'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('job_id', 'item_id', name=op.f('pk_job_item'))
    )
    with op.batch_alter_table('job_item') as batch_op:
        batch_op.create_index(batch_op.f('ix_job_item_item_id'), ['item_id'], unique=False)



def downgrade() -> None:
    with op.batch_alter_table('job_item') as batch_op:
        batch_op.drop_index(batch_op.f('ix_job_item_item_id'))

    op.drop_table('job_item')
    op.drop_table('event')
    with op.batch_alter_table('job') as batch_op:
        batch_op.drop_index(batch_op.f('ix_job_state_created'))
        batch_op.drop_index(batch_op.f('ix_job_owner_created'))
        batch_op.drop_index(batch_op.f('ix_job_label_created'))

    op.drop_table('job')
    op.drop_table('model')
    with op.batch_alter_table('dep') as batch_op:
        batch_op.drop_index(batch_op.f('ix_dep_needs_id'))

    op.drop_table('dep')
    with op.batch_alter_table('cache_entry') as batch_op:
        batch_op.drop_index(batch_op.f('ix_cache_entry_kind_last_used'))
        batch_op.drop_index(batch_op.f('ix_cache_entry_blob_sha256'))

    op.drop_table('cache_entry')
    op.drop_table('attempt')
    with op.batch_alter_table('artifact') as batch_op:
        batch_op.drop_index(batch_op.f('ix_artifact_blob_sha256'))

    op.drop_table('artifact')
    with op.batch_alter_table('worker') as batch_op:
        batch_op.drop_index(batch_op.f('ix_worker_beat'))

    op.drop_table('worker')
    with op.batch_alter_table('work_item') as batch_op:
        batch_op.drop_index(batch_op.f('ix_work_item_state_priority_created'))
        batch_op.drop_index(batch_op.f('ix_work_item_state_lease_until'))
        batch_op.drop_index(batch_op.f('ix_work_item_state_dispatched_at'))

    op.drop_table('work_item')
    op.drop_table('upload')
    with op.batch_alter_table('idempotency') as batch_op:
        batch_op.drop_index(batch_op.f('ix_idempotency_created'))

    op.drop_table('idempotency')
    with op.batch_alter_table('hw_spec') as batch_op:
        batch_op.drop_index(batch_op.f('ix_hw_spec_machine_digest'))

    op.drop_table('hw_spec')
    op.drop_table('blob')
    op.drop_table('api_key')
