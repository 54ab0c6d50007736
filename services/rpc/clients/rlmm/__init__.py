"""The parts of RLMM's client, theme by theme as services.api has them."""
