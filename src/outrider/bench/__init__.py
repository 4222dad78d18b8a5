"""How fast are answers? Measured over HTTP or in this process, alone or one against another."""

from outrider.bench.answer import Answer, Chunk, Counting, Drafts
from outrider.bench.compare import Comparison, Grouping, Ratio, compare
from outrider.bench.endpoint import EndpointSubject
from outrider.bench.inprocess import Encoder, PipelineSubject, decode
from outrider.bench.record import as_json
from outrider.bench.recording import Block, Clock, Record, Recording, Subject
from outrider.bench.report import render
from outrider.bench.run import Progress, measure, warm_up
from outrider.bench.summary import Summary, summarize
from outrider.bench.workload import Prompt, Question, read_prompts

__all__ = [
    "Answer",
    "Block",
    "Chunk",
    "Clock",
    "Comparison",
    "Counting",
    "Drafts",
    "Encoder",
    "EndpointSubject",
    "Grouping",
    "PipelineSubject",
    "Progress",
    "Prompt",
    "Question",
    "Ratio",
    "Record",
    "Recording",
    "Subject",
    "Summary",
    "as_json",
    "compare",
    "decode",
    "measure",
    "read_prompts",
    "render",
    "summarize",
    "warm_up",
]
