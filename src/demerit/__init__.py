"""Robot rewards that know bad behaviour when they see it."""
