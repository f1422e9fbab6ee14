"""The database: the only place that knows SQLModel and SQLAlchemy."""
