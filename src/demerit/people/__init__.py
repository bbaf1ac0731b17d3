"""What the annotation app and the arena share: the database, accounts, and the guard of every request."""
