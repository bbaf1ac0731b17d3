"""Vision-language reward models of the Qwen3-VL family: one engine that runs them exactly, and fast."""
