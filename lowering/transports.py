"""What one step of a transport is: the algebra that one lowering serves.

    M_s = Diag(e^(log_s)) - scale_s w_s u_s^T             with a Repeat axis the product of several

    householder(w, beta)          w = u, scale = beta, no log
    identity - beta outer(w, u)   w, u, scale = beta, no log
    diagonal(log) - outer(w, u)   all of it
    L @ diagonal(log)             (I - s w u^T) D = D - s w (u e^log)^T
    diagonal(log) @ L             D (I - s w u^T) = D - s (w e^log) u^T
    diagonal(log)                 rank 0: no w, no u

Orthogonal steps that commute never come here: `dsl/canonical.py` makes them maps of q and k.
"""

from dataclasses import dataclass

from gnomon.dsl.kinds import kind
from gnomon.dsl.nodes import Apply, Constant, Contract, Diagonal, Expr, Heads, Outer


@dataclass(frozen=True, slots=True)
class Step:
    """One step as vectors of a token: scores of the IR, without a pair in them.

    w, u, scale  vectors [(repeat,) d] and a number [(repeat)], None where the rank is 0
    log          logarithms of the diagonal [d], None where it is the identity
    """

    w: Expr | None = None
    u: Expr | None = None
    scale: Expr | None = None
    log: Expr | None = None

    @property
    def flavour(self) -> str:
        """The name of its algebra: low_rank, gated, diagonal."""
        if self.w is None:
            return "diagonal"
        return "low_rank" if self.log is None else "gated"

    @property
    def parts(self) -> tuple[Expr, ...]:
        """The values that its stages read, in the order of their arguments."""
        return tuple(x for x in (self.w, self.u, self.scale, self.log) if x is not None)

    @property
    def is_symmetric(self) -> bool:
        """Whether u is w: I - beta w w^T, which for 0 <= beta |w|^2 <= 2 makes no row longer."""
        return self.w is not None and self.w == self.u

    @property
    def rank_is_repeated(self) -> bool:
        """Whether a token has several reflections."""
        return self.w is not None and len(kind(self.w).axes) > 1

    @property
    def is_constant(self) -> bool:
        """Whether every token has the same step, which is then one for each unit of distance."""
        return all(kind(x).place == "constant" for x in self.parts)

    @property
    def heads(self) -> Heads:
        """The finest head axis of its values."""
        found = {kind(x).heads for x in self.parts}
        return "Head" if "Head" in found else "KVHead"


def step_of(through: Expr) -> Step | None:
    """The step of a transport; None where no schedule knows it."""
    match through:
        case Diagonal(log):
            return Step(log=log)
        case Apply("-", (Diagonal(log), Outer(w, u, scale))):
            is_identity = isinstance(log, Constant) and log.value == 0
            made = Step(w, u, scale, None if is_identity else log)
            # which of several steps of a token the diagonal belongs to has no schedule
            return None if made.rank_is_repeated and made.log is not None else made
        case Contract(low, Diagonal(log)):
            inner = step_of(low)
            return None if inner is None else _times(inner, log, on_the_left=False)
        case Contract(Diagonal(log), low):
            inner = step_of(low)
            return None if inner is None else _times(inner, log, on_the_left=True)
    return None


def _times(inner: Step, log: Expr, *, on_the_left: bool) -> Step | None:
    """A low rank beside a diagonal, as a diagonal minus a low rank."""
    if inner.w is None or inner.u is None or inner.log is not None or inner.rank_is_repeated:
        return None
    factor = Apply("exp", (log,))
    if on_the_left:
        return Step(Apply("*", (inner.w, factor)), inner.u, inner.scale, log)
    return Step(inner.w, Apply("*", (inner.u, factor)), inner.scale, log)
