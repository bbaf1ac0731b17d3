"""Episodes scored as a robot writes them, with a live page, figures for Prometheus, and alarms."""
