"""What goes over the wire: strict pydantic models, one file a resource.

Requests forbid unknown fields and do not coerce types; answers are built from the store's frozen
records by `from_record`.  Nothing here touches the database.
"""
