"""models/taught."""
