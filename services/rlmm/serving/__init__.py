"""The parts of RLMM's servicer, theme by theme as services.api has them."""
