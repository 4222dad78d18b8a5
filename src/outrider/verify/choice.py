"""Which rule judges a request's drafts: one function, since exactness hangs on it."""

from outrider.types import DrafterInfo, SamplingParams, VerificationMethod

__all__ = ["choose_method"]


def choose_method(
    sampling: SamplingParams,
    drafter: DrafterInfo | None,
    preferred: VerificationMethod,
    *,
    trusted: bool,
) -> VerificationMethod:
    """The rule for one request, fixed before anything is drafted for it.

    Matching is exact for every draft, so it is where all doubts end. The ratio rules are exact
    only for tokens that were drawn from what the drafter declares and that are never dropped.

    Args:
        sampling: the request's parameters.
        drafter: None if nothing drafts.
        preferred: the rule for requests that leave a choice; `TOKEN` or `BLOCK` for ratios.
        trusted: the drafter's tokens have so far fitted what it declared: see `Calibration`.
    """
    if drafter is None:
        return VerificationMethod.NONE
    if sampling.greedy:
        # One token is right at each place, so there are no ratios to weigh.
        return VerificationMethod.GREEDY
    if (
        not preferred.ratio
        # A seed promises an output that depends on seed and target alone. Under ratios it would
        # depend on the draft too: equally distributed, but not the same.
        or sampling.seed is not None
        # Without the distribution that a token was drawn from there is no ratio; and a drafter
        # elsewhere may lose or delay drafts depending on what it drew.
        or not drafter.declares
        # Tokens that do not come from the declared distribution bias the output in silence.
        or not trusted
    ):
        return VerificationMethod.MATCHING
    return preferred
