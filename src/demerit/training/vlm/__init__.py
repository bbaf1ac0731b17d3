"""Training the vision-language reward models: Robometer's three questions, and RoboReward's grades."""
