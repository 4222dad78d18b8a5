"""Is a server's output the same with and without speculation? Asked from outside, over HTTP."""

from outrider.audit.findings import Report, Verdict
from outrider.audit.plan import BUILT_IN_PROMPTS, AuditPlan, Prompt, load_prompts
from outrider.audit.record import as_json
from outrider.audit.report import render
from outrider.audit.run import Progress, run_audit

__all__ = [
    "BUILT_IN_PROMPTS",
    "AuditPlan",
    "Progress",
    "Prompt",
    "Report",
    "Verdict",
    "as_json",
    "load_prompts",
    "render",
    "run_audit",
]
