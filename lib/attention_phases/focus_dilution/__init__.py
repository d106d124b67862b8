"""Part II: how attention learns in cycles of focus and dilution, on Markov chains.

After Chen, Lin, Xu, Luo, ICML 2026, arXiv 2605.01199, as its summaries describe it; the theory is derived here afresh.
"""

from attention_phases.errors import ConvergenceError
from attention_phases.focus_dilution.chains import balanced_chain, coupled_chain, nearly_symmetric_chain
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
from attention_phases.focus_dilution.linear_theory import (
    EmbeddingPrediction,
    LinearCondensation,
    contraction_rates,
    grown_scores,
    linear_condensation,
    mass_redistribution,
    parting_rate,
    predicted_embedding,
    symmetry_breaking_slope,
    unigram_spectrum,
)
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
from attention_phases.focus_dilution.weight_space import (
    GrowthRate,
    Projection,
    conserved_change,
    cosine,
    exact_weights,
    extreme_curvature,
    flatten,
    hessian_operator,
    local_growth_rate,
    project,
    rank_one_weights,
    unflatten,
)

__all__ = [
    "ConvergenceError",
    "Corpus",
    "EmbeddingPrediction",
    "Forces",
    "GrowthRate",
    "LinearCondensation",
    "MarkovChain",
    "Parameters",
    "Projection",
    "RankOnePoint",
    "RankOneTrajectory",
    "RestingPoint",
    "Stage",
    "TextTrajectory",
    "Trajectory",
    "attention",
    "balanced_chain",
    "condensation_rate",
    "condensing_direction",
    "conserved_change",
    "conserved_quantities",
    "contraction_rates",
    "cosine",
    "coupled_chain",
    "exact_weights",
    "excess_loss",
    "extreme_curvature",
    "find_stages",
    "flatten",
    "focus_rate",
    "forces",
    "gradient_flow",
    "grown_scores",
    "hessian_operator",
    "hessian_product",
    "linear_condensation",
    "load_corpus",
    "local_growth_rate",
    "mass_redistribution",
    "measure_on_text",
    "nearly_symmetric_chain",
    "parting_rate",
    "population_gradient",
    "population_loss",
    "predict_timeline",
    "predicted_embedding",
    "project",
    "rank_one_flow",
    "rank_one_weights",
    "resting_point",
    "symmetry_breaking_rate",
    "symmetry_breaking_slope",
    "train_transformer",
    "unflatten",
    "unigram_point",
    "unigram_profile",
    "unigram_spectrum",
]
