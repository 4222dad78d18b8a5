from __future__ import annotations

import pytest
from prometheus_client import generate_latest

from outrider.metrics import Metrics
from outrider.types import Verification

FAMILIES = {
    "speculative_decoding_accepted_tokens_total",
    "speculative_decoding_rejected_tokens_total",
    "speculative_decoding_step_acceptance_bucket",
    "speculative_decoding_verification_latency_seconds_bucket",
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_accepted_tokens_per_pos_total",
    "outrider_output_tokens_total",
    "outrider_prompt_tokens_total",
    "outrider_cached_prompt_tokens_total",
    "outrider_prefix_hits_total",
    "outrider_time_to_first_token_seconds_bucket",
    "outrider_inter_token_latency_seconds_bucket",
    "outrider_running",
    "outrider_queued",
}


def exposed(metrics: Metrics) -> dict[str, float]:
    lines = generate_latest(metrics.registry).decode().splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in lines
        if not line.startswith("#")
    }


@pytest.fixture
def metrics() -> Metrics:
    metrics = Metrics()
    first = Verification(1, 0, (1,), step_s=0.5)
    round_ = Verification(2, 1, (2, 3, 4), drafted=4, accepted=2, step_s=0.02)
    metrics.observe_answer(first, "ngram", 0.6)
    metrics.observe_answer(round_, "ngram", 0.03)
    return metrics


def test_every_promised_family_is_exposed(metrics) -> None:
    names = {sample.partition("{")[0] for sample in exposed(metrics)}
    assert names >= FAMILIES


def test_a_round_is_counted_once_in_each_family(metrics) -> None:
    found = exposed(metrics)
    assert found["speculative_decoding_accepted_tokens_total"] == 2
    assert found["speculative_decoding_rejected_tokens_total"] == 2
    assert found['spec_decode_num_drafts_total{drafter="ngram"}'] == 1
    assert found['spec_decode_num_draft_tokens_total{drafter="ngram"}'] == 4
    assert found['spec_decode_num_accepted_tokens_total{drafter="ngram"}'] == 2
    assert found['spec_decode_num_accepted_tokens_per_pos_total{position="0"}'] == 1
    assert found['spec_decode_num_accepted_tokens_per_pos_total{position="1"}'] == 1
    assert 'spec_decode_num_accepted_tokens_per_pos_total{position="2"}' not in found
    assert found["outrider_output_tokens_total"] == 4


def test_acceptance_buckets_go_from_0_to_16(metrics) -> None:
    found = exposed(metrics)
    edges = [
        key.split('"')[1]
        for key in found
        if key.startswith("speculative_decoding_step_acceptance_b")
    ]
    assert edges == [*(f"{edge}.0" for edge in range(17)), "+Inf"]
    assert found['speculative_decoding_step_acceptance_bucket{le="1.0"}'] == 0
    assert found['speculative_decoding_step_acceptance_bucket{le="2.0"}'] == 1


def test_latency_per_token_shares_the_interval_of_tokens_that_come_together(metrics) -> None:
    found = exposed(metrics)
    assert found["outrider_inter_token_latency_seconds_count"] == 3
    assert found["outrider_inter_token_latency_seconds_sum"] == pytest.approx(0.03)
    assert found["outrider_time_to_first_token_seconds_count"] == 1


def test_two_apps_in_one_process_do_not_share_counters(metrics) -> None:
    assert exposed(Metrics())["outrider_output_tokens_total"] == 0


def test_a_prompt_is_counted_with_what_was_there_already(metrics) -> None:
    metrics.observe_opening(100, 0)
    metrics.observe_opening(100, 64)
    found = exposed(metrics)
    assert found["outrider_prompt_tokens_total"] == 200
    assert found["outrider_cached_prompt_tokens_total"] == 64
    assert found["outrider_prefix_hits_total"] == 1
