"""The compact reward model: a small network that reads frames and an instruction, and runs without PyTorch."""
