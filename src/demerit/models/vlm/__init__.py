"""The Qwen3-VL engine under the published models. It needs the extra `vlm`; importing this package does not.

hub, checkpoint     find a checkpoint, read any public layout strictly, merge LoRA adapters
config, backbone    the network's shape; an open checkpoint with its tokenizer, device and identity
prompt, images, video         prompts as token blocks, image and video preprocessing
prefix_tree         shared prefixes, packed into flat arrays
kernels, vision, language, network     the network itself, and greedy decoding
token_budget        how many tokens are computed together
robometer, grades, prefixes, pairwise  what the published models ask
"""
