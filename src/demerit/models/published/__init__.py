"""models/published."""
