"""The database engine of the site: DATABASES names this package."""
