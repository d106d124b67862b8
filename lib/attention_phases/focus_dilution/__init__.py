"""Part II: how attention learns in cycles of focus and dilution, on Markov chains.

After Chen, Lin, Xu, Luo, ICML 2026, arXiv 2605.01199, as its summaries describe it; the theory is derived here afresh.
"""

from attention_phases.errors import ConvergenceError
from attention_phases.focus_dilution.gradient_flow import Trajectory, gradient_flow
from attention_phases.focus_dilution.markov_transformer import (
    Forces,
    MarkovChain,
    Parameters,
    attention,
    conserved_quantities,
    excess_loss,
    forces,
    hessian_product,
    population_gradient,
    population_loss,
)
from attention_phases.focus_dilution.train_transformer import train_transformer

__all__ = [
    "ConvergenceError",
    "Forces",
    "MarkovChain",
    "Parameters",
    "Trajectory",
    "attention",
    "conserved_quantities",
    "excess_loss",
    "forces",
    "gradient_flow",
    "hessian_product",
    "population_gradient",
    "population_loss",
    "train_transformer",
]
