"""Test doubles and made-up data: tiny networks, a scripted chat server, a simulated judge, small datasets."""
