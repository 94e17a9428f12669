"""The database: the open file, its versions, and all SQL."""
