"""One fixed message of every kind, whose frames golden_wire.txt keeps."""

from shared.messages import (
    BackingOff,
    Cancel,
    Exited,
    Failed,
    Finished,
    Hello,
    MemoryReading,
    ModelFacts,
    Ping,
    Progress,
    Starting,
    Step,
    StepRow,
    Submit,
)
from shared.sampling import Sampling

FACTS = ModelFacts(
    fingerprint="0123456789abcdef",
    family="llama",
    context_tokens=8192,
    vocabulary=49152,
    weights_bytes=269_060_552,
    kv_bytes_per_token=46_080,
    kv_pad_tokens=256,
    kv_pad_rows=1,
    fixed_bytes_per_row=0,
    batches=True,
    why_not="",
)
SAMPLING = Sampling(temperature=0.7, top_p=0.9, top_k=40, min_p=0.05, seed=-7, choice=1)

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
    ),
    Cancel(3, "req_1/1/0"),
    Ping(3, 12),
    Hello(epoch=3, worker="0", facts=FACTS, budget_bytes=8 << 30, slots=16),
    Step(3, 77, 21.5, (StepRow("a/0", 1, 0, 300), StepRow("b/0", 2, 9, 1))),
    Finished(3, "a/0", 1, 10, "stop"),
    Failed(3, "a/0", 1, "too long"),
    Progress(3, 78, "decode", 25.0, 12, ("a/0", "b/0"), MemoryReading(1, 2, 3, 4)),
    Starting(3),
    Exited(3, "memory", "Unable to allocate"),
    BackingOff(3, 1.5),
)
