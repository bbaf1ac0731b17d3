"""The built-in edits: `time` (which frames are visible), `splice` (two attempts joined) and `instruction`."""
