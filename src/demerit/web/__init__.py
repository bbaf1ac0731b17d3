"""The web floor: one server, one way to render pages, pictures and clips of episodes, uploads, metrics."""
