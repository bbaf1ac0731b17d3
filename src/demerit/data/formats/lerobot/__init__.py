"""data/formats/lerobot."""
