"""LeRobot datasets: reading v2.0, v2.1 and v3, writing v3.0, without the lerobot package."""
