"""Pure functions on arrays: numpy and scipy only, no state, no input or output."""
