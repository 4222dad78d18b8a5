"""Draft models for a target and its traffic: data, distillation, judgement, export."""
