"""Fits the shipped efficiencies to the eight measured times of Korthikanti et al. (2022), and tests what
comes out.

The fit minimises the largest relative error over `gemm`, `hbm`, `hb` and `nic`; the shipped set is the
result rounded to two digits. The runs of Megatron-LM (Narayanan et al. 2021) are held out. Flat directions
show as a small growth of the error where one share is fixed elsewhere.
"""

from scipy.optimize import differential_evolution

from engine.model.efficiency import Efficiency, shipped
from engine.reproduce.rail_only import fit_error, held_out

BOUNDS = {"gemm": (0.5, 0.95), "hbm": (0.5, 0.95), "hb": (0.5, 0.95), "nic": (0.5, 0.95)}


def fitted(**fixed: float) -> tuple[Efficiency, float]:
    """The set with the smallest largest error, and that error; shares in `fixed` stay as they are."""
    free = {name: bounds for name, bounds in BOUNDS.items() if name not in fixed}

    def worst(values: list[float]) -> float:
        return fit_error(Efficiency(**dict(zip(free, values, strict=True)), **fixed))

    best = differential_evolution(worst, list(free.values()), maxiter=40, popsize=8, seed=1, tol=1e-6)
    return Efficiency(**dict(zip(free, map(float, best.x), strict=True)), **fixed), float(best.fun)


def main() -> None:
    print(f"shipped {shipped()}: largest error {fit_error(shipped()):.2%}")
    for fixed in ({}, {"hb": 0.6}, {"hb": 0.7}, {"hbm": 0.85}, {"nic": 0.7}):
        efficiency, error = fitted(**fixed)
        print(f"fixed {fixed}: {efficiency}: largest error {error:.2%}")
    for run in held_out():
        print(f"held out: {run.name}: measured {run.measured:.4g} {run.unit}, ours {run.ours:.4g}")


if __name__ == "__main__":
    main()
