"""LeRobot beside a CPU build of torch: import this before LeRobot.

PyPI's torchvision is built for CUDA: beside a CPU torch, its operators must be declared, once, before it is imported.
"""

DECLARE = """
import torch
for name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
"""for processes of their own"""

exec(DECLARE)
