"""Phases of Attention: how attention learns, derived and re-run."""
