"""One fixed message of every kind, whose frames golden_wire.txt keeps, and what is made of them."""

from dataclasses import fields

import msgpack
import pytest

from shared.codec import decode, encode
from shared.errors import FrameError
from shared.messages import (
    BackingOff,
    Cancel,
    Care,
    Exited,
    Failed,
    Finished,
    Hello,
    ManifestRow,
    Park,
    Parked,
    Ping,
    PrefillShare,
    Prefixes,
    Progress,
    Restart,
    RowLogprobs,
    Starting,
    Step,
    StepRow,
    Stop,
    Submit,
)
from shared.model_facts import ModelFacts
from shared.readings import EngineReading, MemoryReading, PrefixReading
from shared.sampling import LogitBias, Sampling

FACTS = ModelFacts(
    fingerprint="0123456789abcdef",
    family="llama",
    context_tokens=8192,
    vocabulary=49152,
    weights_bytes=269_060_552,
    kv_bytes_per_token=46_080,
    kv_pad_tokens=256,
    window_tokens=512,
    window_bytes_per_token=1024,
    fixed_bytes_per_row=0,
    batches=True,
    why_not="",
    caches="attention, window",
    kv_bits=8,
    reuse="checkpoints",
    shares_from=256,
    why_not_shared="its layers have windows",
)
SAMPLING = Sampling(
    temperature=0.7,
    top_p=0.9,
    top_k=40,
    min_p=0.05,
    seed=-7,
    choice=1,
    repetition_penalty=1.1,
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    logit_bias=(LogitBias(5, 2.5),),
    top_logprobs=2,
    grammar='start: "a"',
)

SAMPLES = (
    Submit(
        epoch=1_700_000_000_000,
        sequence="req_1/1/0",
        attempt=2,
        prompt_ids=(1, 128, 49_151),
        emitted_ids=(5,),
        max_tokens=64,
        stop_ids=(0, 2),
        sampling=SAMPLING,
        rank=1,
        quantum_ms=150.0,
        salt="k-1",
    ),
    Cancel(3, "req_1/1/0"),
    Ping(3, 12),
    Hello(
        epoch=3,
        worker="0",
        facts=FACTS,
        budget_bytes=8 << 30,
        slots=16,
        prefill_ms_per_token=0.75,
        decode_ms_per_step=18.5,
    ),
    Step(
        epoch=3,
        step=77,
        step_ms=21.5,
        row_ms=10.75,
        rows=(StepRow("a/0", 1, 0, 300), StepRow("b/0", 2, 9, 1)),
        prefills=(PrefillShare("c/0", 1, 200, 150.5, 64),),
        logprobs=(RowLogprobs(1, -0.25, (1, 7), (-0.25, -2.5)),),
    ),
    Finished(3, "a/0", 1, 10, "stop"),
    Failed(3, "a/0", 1, "too long"),
    Progress(
        epoch=3,
        step=78,
        phase="decode",
        expected_ms=25.0,
        ping=12,
        running=("a/0", "b/0"),
        kv_bytes=70_000,
        budget_bytes=90_000,
        tokens=41,
        answers=3,
        wants_recycle=False,
        memory=MemoryReading(1, 2, 3, 4),
        prefixes=PrefixReading(1, 2, 3, 4, 5, 6, 7, 8),
        engine=EngineReading(2, 1, 300, 499_000),
    ),
    Starting(3, Care(1, "closed")),
    Exited(3, "memory", "Unable to allocate", (ManifestRow("a/0", 1, 10, False),)),
    BackingOff(3, 1.5, Care(3, "open")),
    Park(3, "a/0"),
    Parked(3, "a/0", 1, 10),
    Restart(3),
    Stop(3),
    Prefixes(3, (1, (1 << 62) - 1), (7,)),
)


def sample_of(kind):
    return next(sample for sample in SAMPLES if isinstance(sample, kind))


def change(sample, **changes):
    """Return a frame of a message that could not be built: the fields are replaced behind its back."""
    parts = msgpack.unpackb(encode(sample))
    names = [field.name for field in fields(sample)]
    for name, value in changes.items():
        parts[2 + names.index(name)] = value
    return msgpack.packb(parts)


def refused(frame):
    with pytest.raises(FrameError) as problem:
        decode(frame)
    return str(problem.value)
