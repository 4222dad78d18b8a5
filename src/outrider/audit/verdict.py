"""What follows from what an audit found, in sentences."""

from __future__ import annotations

from outrider.audit.findings import Report, Verdict

__all__ = ["judge"]

_COARSEST_TV = 0.3
"""An audit that would miss greater shifts than this says nothing."""


def judge(report: Report) -> tuple[Verdict, list[str]]:
    """The verdict, and why."""
    differences = _differences(report)
    if differences:
        return Verdict.DIFFERS, differences
    doubts = _doubts(report)
    if doubts:
        return Verdict.INCONCLUSIVE, doubts
    return Verdict.NO_DIFFERENCE, _meaning(report)


def _differences(report: Report) -> list[str]:
    found = [
        f"the distribution of the first {report.tokens} tokens differs on {finding.name!r} "
        f"(adjusted p = {finding.adjusted:.2g})"
        for finding in report.sampled
        if finding.adjusted <= report.alpha
    ]
    if not found and report.together.adjusted <= report.alpha:
        found.append(
            f"the distribution of the first {report.tokens} tokens differs over all prompts "
            f"together (adjusted p = {report.together.adjusted:.2g}), too little to show on one"
        )
    for greedy in report.greedy:
        if greedy.differs:
            found.append(f"greedy output differs on {greedy.name!r}{_claimed(report)}")
    for seeded in report.seeded:
        if seeded.differs:
            found.append(f"output with a seed differs on {seeded.name!r}, and is said not to")
    return found


def _claimed(report: Report) -> str:
    claims = report.greedy_drafts.claims
    if any(exact == "identical" and reason is None for _, exact, reason in claims):
        return ", and is said to be identical"
    reasons = sorted(reason for _, _, reason in claims if reason)
    return f" (the server claims equality {'; '.join(reasons)})" if reasons else ""


def _doubts(report: Report) -> list[str]:
    doubts = []
    if report.plain_drafted:
        why = (
            "the switch has no effect"
            if report.baseline is None
            else f"{report.baseline} speculates too"
        )
        doubts.append(
            f"{report.plain_drafted} tokens were drafted where speculation should be off, so both "
            f"arms are alike: {why}"
        )
    if report.drafts_told and not report.drafted:
        where = " while sampling" if report.greedy_drafts.drafted else ""
        doubts.append(
            f"nothing was drafted{where}, so this audit shows nothing of speculation: has the "
            "server a drafter, and has it something to go on? One that looks up the prompt "
            "needs prompts that repeat themselves (--prompts), and room (--generate)"
        )
    finest = min(finding.detectable for finding in report.sampled)
    if min(finest, report.together.detectable) > _COARSEST_TV:
        doubts.append(
            f"{report.samples} samples are too few: a shift below {finest:.0%} would probably be "
            "missed on every prompt; raise --samples"
        )
    return doubts


def _meaning(report: Report) -> list[str]:
    each = [finding.detectable for finding in report.sampled]
    span = f"{min(each):.1%}" if len(each) == 1 else f"{min(each):.1%} to {max(each):.1%}"
    alone = f"a shift by {span} (total variation) of the first {report.tokens} tokens of one prompt"
    if len(each) > 1:
        alone += f", or by {report.together.detectable:.1%} of every prompt's,"
    meaning = [
        f"{alone} would have been found in at least 8 cases of 10, roughly; an honest server is "
        f"accused in at most {report.alpha:.1%} of audits"
    ]
    if report.drafts_told:
        silent = [finding.name for finding in report.sampled if not finding.drafts.drafted]
        meaning.append(
            f"{report.drafted} drafted tokens were judged while sampling and {report.accepted} of "
            "them accepted"
            + (f"; none on {', '.join(silent)}, which show nothing" if silent else "")
        )
    else:
        meaning.append(
            "the server does not say whether it drafted: see its metrics, since without drafts "
            "this shows nothing of speculation"
        )
    odd = [finding.name for finding in report.greedy if finding.repeats is False]
    if odd:
        meaning.append(
            f"greedy output changes from run to run without speculation too, on {', '.join(odd)}"
        )
    if report.retries:
        meaning.append(
            f"{report.retries} requests failed and were sent again; if failures depend on what was "
            "drawn, the samples are no longer fair"
        )
    return meaning
