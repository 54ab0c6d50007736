"""What the command and the console show of the tier: facts, and their words."""
