"""The compact network: an engine that runs it (ONNX, CPU), and the reward model `default` built on it."""

from demerit.models.compact.engine import Engine, NetworkInfo, NetworkOutputs
from demerit.models.compact.model import Compact

__all__ = ["Compact", "Engine", "NetworkInfo", "NetworkOutputs"]
