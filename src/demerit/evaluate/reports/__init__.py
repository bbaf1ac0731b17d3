"""evaluate/reports."""
