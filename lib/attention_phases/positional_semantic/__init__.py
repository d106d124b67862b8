"""Part I: positional and semantic learning in a solvable model of dot-product attention.

Cui, Behrens, Krzakala, Zdeborova, NeurIPS 2024, arXiv 2402.03902.
"""

from attention_phases.errors import ConvergenceError
from attention_phases.estimates import Estimate
from attention_phases.positional_semantic.averages import Overlaps
from attention_phases.positional_semantic.branch_ends import spinodal_alpha, stability_alpha
from attention_phases.positional_semantic.empirical_risk import EmpiricalRisk
from attention_phases.positional_semantic.gamp import GampOverlaps, GampRun, gamp
from attention_phases.positional_semantic.linear_baseline import (
    LinearBaseline,
    LinearFit,
    fit_linear,
    linear_baseline,
)
from attention_phases.positional_semantic.loss_landscape import (
    RiskPath,
    RiskPlane,
    lowest_curvatures,
    path_between,
    risk_on_plane,
)
from attention_phases.positional_semantic.minimization import Descent, Fit, minimize_risk
from attention_phases.positional_semantic.phase_transition import (
    ThresholdCurve,
    critical_alpha,
    critical_curve,
    linear_crossover_alpha,
    linear_crossover_curve,
)
from attention_phases.positional_semantic.proximal import ProximalPoint, proximal_map
from attention_phases.positional_semantic.replica_symmetry import distance_ratio
from attention_phases.positional_semantic.sample_loss import SampleLoss, attention
from attention_phases.positional_semantic.state_evolution import (
    FixedPoint,
    NoSuchPointError,
    NotFoundError,
    map_eigenvalues,
    solve_state_evolution,
    state_evolution_step,
)
from attention_phases.positional_semantic.teacher_student import (
    Dataset,
    OrderParameters,
    Task,
    generalization_error,
    order_parameters,
)
from attention_phases.positional_semantic.thresholds import NoThresholdError, Threshold

__all__ = [
    "ConvergenceError",
    "Dataset",
    "Descent",
    "EmpiricalRisk",
    "Estimate",
    "Fit",
    "FixedPoint",
    "GampOverlaps",
    "GampRun",
    "LinearBaseline",
    "LinearFit",
    "NoSuchPointError",
    "NoThresholdError",
    "NotFoundError",
    "OrderParameters",
    "Overlaps",
    "ProximalPoint",
    "RiskPath",
    "RiskPlane",
    "SampleLoss",
    "Task",
    "Threshold",
    "ThresholdCurve",
    "attention",
    "critical_alpha",
    "critical_curve",
    "distance_ratio",
    "fit_linear",
    "gamp",
    "generalization_error",
    "linear_baseline",
    "linear_crossover_alpha",
    "linear_crossover_curve",
    "lowest_curvatures",
    "map_eigenvalues",
    "minimize_risk",
    "order_parameters",
    "path_between",
    "proximal_map",
    "risk_on_plane",
    "solve_state_evolution",
    "spinodal_alpha",
    "stability_alpha",
    "state_evolution_step",
]
