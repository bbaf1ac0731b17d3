"""Prompts that turn a vision-language model into a reward model, and the bad behaviour that goes into them."""
