"""A reward server and its client: models over HTTP and WebSockets. The client needs the core install only."""
