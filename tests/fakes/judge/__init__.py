"""A simulated judge: a local server that speaks the chat-completions protocol. A simulation, never a real model."""
