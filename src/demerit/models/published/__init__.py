"""Published reward models on the Qwen3-VL engine: Robometer, RoboReward, TOPReward, Robo-Dopamine and VLAC.

Importing these modules needs no extra; making a model needs `demerit[vlm]`.
"""
