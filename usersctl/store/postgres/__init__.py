"""The same database on a PostgreSQL server. Only a configuration that names one imports this package."""
