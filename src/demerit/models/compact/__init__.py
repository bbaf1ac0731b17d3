"""models/compact."""
