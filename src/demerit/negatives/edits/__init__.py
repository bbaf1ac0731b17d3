"""negatives/edits."""
