"""Rewards and datasets used: `release` makes a dataset to share, `gym` rewards environments, `serve` serves models."""
