"""Readers of the dataset formats that robotics people have, one module each."""
