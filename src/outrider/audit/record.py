"""A report as a program reads it."""

from __future__ import annotations

from typing import Any

from outrider.audit.arms import Drafts
from outrider.audit.findings import Report, Retold, SampledFinding

__all__ = ["as_json"]


def as_json(report: Report) -> dict[str, Any]:
    """Everything in `report`, as plain values for a JSON file."""
    return {
        "verdict": report.verdict.value,
        "reasons": list(report.reasons),
        "url": report.url,
        "baseline": report.baseline,
        "model": report.model,
        "token_ids": report.ids,
        "samples": report.samples,
        "tokens": report.tokens,
        "alpha": report.alpha,
        "retries": report.retries,
        "drafted_without_speculation": report.plain_drafted,
        "sampled": [_sampled_json(finding) for finding in report.sampled],
        "together": {
            "g": report.together.g,
            "p_value": report.together.p_value,
            "adjusted_p_value": report.together.adjusted,
            "detectable_tv": report.together.detectable,
        },
        "greedy": [
            {
                "prompt": finding.name,
                **_retold_json(finding.retold),
                "repeats_without_speculation": finding.repeats,
            }
            for finding in report.greedy
        ],
        "greedy_drafts": _drafts_json(report.greedy_drafts),
        "seeded": [
            {
                "prompt": finding.name,
                "honoured": finding.honoured,
                "promised": finding.promised,
                **(_retold_json(finding.retold) if finding.retold is not None else {}),
            }
            for finding in report.seeded
        ],
    }


def _sampled_json(finding: SampledFinding) -> dict[str, Any]:
    compared = finding.comparison
    return {
        "prompt": finding.name,
        "drafts": _drafts_json(finding.drafts),
        "g": compared.g,
        "p_value": compared.p_value,
        "adjusted_p_value": finding.adjusted,
        "tv": compared.tv,
        "tv_floor": compared.tv_floor,
        "detectable_tv": finding.detectable,
        "cells": [
            {
                "begins": list(cell.pieces),
                "whole": cell.whole,
                "speculative": int(on),
                "plain": int(off),
            }
            for cell, on, off in zip(compared.cells, *compared.counts, strict=True)
        ],
    }


def _drafts_json(drafts: Drafts) -> dict[str, Any]:
    return {
        "told": drafts.told,
        "drafted": drafts.drafted,
        "accepted": drafts.accepted,
        "claims": [
            {"verification": method, "exact": exact, "reason": reason}
            for method, exact, reason in sorted(drafts.claims, key=str)
        ],
    }


def _retold_json(retold: Retold) -> dict[str, Any]:
    return {
        "length": retold.length,
        "differs_at": retold.differs_at,
        "speculative": retold.with_speculation,
        "plain": retold.without,
    }
