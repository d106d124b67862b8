"""Part II: how attention learns in cycles of focus and dilution, on Markov chains.

After Chen, Lin, Xu, Luo, ICML 2026, arXiv 2605.01199, as its summaries describe it; the theory is derived here afresh.
"""

from attention_phases.errors import ConvergenceError
from attention_phases.focus_dilution.condensation import (
    condensation_rate,
    condensing_direction,
    unigram_point,
    unigram_profile,
)
from attention_phases.focus_dilution.corpora import Corpus, load_corpus
from attention_phases.focus_dilution.dilution import RankOnePoint, RankOneTrajectory, rank_one_flow
from attention_phases.focus_dilution.focus import focus_rate
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
from attention_phases.focus_dilution.stages import Stage, find_stages, predict_timeline
from attention_phases.focus_dilution.symmetry_breaking import RestingPoint, resting_point, symmetry_breaking_rate
from attention_phases.focus_dilution.train_transformer import TextTrajectory, measure_on_text, train_transformer

__all__ = [
    "ConvergenceError",
    "Corpus",
    "Forces",
    "MarkovChain",
    "Parameters",
    "RankOnePoint",
    "RankOneTrajectory",
    "RestingPoint",
    "Stage",
    "TextTrajectory",
    "Trajectory",
    "attention",
    "condensation_rate",
    "condensing_direction",
    "conserved_quantities",
    "excess_loss",
    "find_stages",
    "focus_rate",
    "forces",
    "gradient_flow",
    "hessian_product",
    "load_corpus",
    "measure_on_text",
    "population_gradient",
    "population_loss",
    "predict_timeline",
    "rank_one_flow",
    "resting_point",
    "symmetry_breaking_rate",
    "train_transformer",
    "unigram_point",
    "unigram_profile",
]
