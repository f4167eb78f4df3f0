"""What clients see of kept beginnings over HTTP: of the gateway, and of mlx_lm.server beside it."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Final

from ops.figures.processes import gateway, mlx_lm_server
from ops.load.plan import run
from ops.load.statistics import median
from ops.prefixes.client import Chat, message
from ops.prefixes.plan import Measured, Plan, Scale, Values, in_turn
from ops.prefixes.prompts import Words

GATEWAY: Final = "gateway"
SERVER: Final = "mlx_lm.server"

_FIRST_TOKENS: Final = 4  # of an answer of which only the first counts
_WARM_UP_REQUESTS: Final = 2
_OPENING_TOKENS: Final = 300  # of a conversation's system prompt
_TASKS: Final = (
    "Tell me a story about the sea.", "What is bread made of?", "Describe a mountain in winter.",
    "Why is the moon bright?", "Write a letter to a friend.", "How does a clock work?",
    "List three kinds of horses.", "What do owls eat?", "Explain how a bridge is built.", "Name some rivers.",
    "How is honey made?", "What is a lighthouse for?",
)  # fmt: skip

# Where each of them listens, and by which name it knows the model.
Places = dict[str, tuple[int, str]]


@contextlib.contextmanager
def _both(plan: Plan, what: str) -> Iterator[Places]:
    """Start both, with their own defaults, in homes of their own."""
    scratch = plan.scratch / what
    scratch.mkdir()
    path = plan.served.path
    with (
        plan.progress.around("the gateway", gateway(path, scratch / "home")) as ours,
        plan.progress.around("mlx_lm.server", mlx_lm_server(path, scratch / "server.log")) as server_port,
    ):
        yield {GATEWAY: (ours.port, plan.served.name), SERVER: (server_port, str(path))}


# --- time to first token ----------------------------------------------------------------------------------


def ttft(plan: Plan) -> Values:
    """Ask short questions on one system prompt, one after the other; a new one in every run."""
    words = Words.of(plan.served.path)
    with _both(plan, "ttft") as places:
        return first_tokens(plan, words, places)


def first_tokens(plan: Plan, words: Words, places: Places) -> Values:
    def measure(name: str, number: int) -> Measured:
        requests = plan.scale.requests if number else _WARM_UP_REQUESTS
        system = words.text(plan.scale.system, "ttft", number)
        firsts = run(_first_tokens(*places[name], system, requests))
        return {"cold_s": firsts[0], "warm_s": median(firsts[1:])}

    return in_turn("ttft", (GATEWAY, SERVER), measure, plan)


async def _first_tokens(port: int, model: str, system: str, requests: int) -> list[float]:
    async with Chat(port, model) as chat:
        await chat.connect()
        return [
            (await chat.say([message("system", system), message("user", task)], _FIRST_TOKENS)).first_s
            for task in (_TASKS[number % len(_TASKS)] for number in range(requests))
        ]


# --- a conversation ---------------------------------------------------------------------------------------


def conversation(plan: Plan) -> Values:
    """Send a conversation that grows, turn by turn; count what of its prompts was computed again."""
    words = Words.of(plan.served.path)
    with _both(plan, "conversation") as places:
        return conversations(plan, words, places)


def conversations(plan: Plan, words: Words, places: Places) -> Values:
    def measure(name: str, number: int) -> Measured:
        return run(_converse(*places[name], functools.partial(_part, words, plan.scale, number), plan.scale))

    return in_turn("conversation", (GATEWAY, SERVER), measure, plan, warms_up=False)


def _part(words: Words, scale: Scale, number: int, turn: int) -> str:
    """Return what the user says in a turn; turn 0 is the system prompt."""
    if turn:
        return words.span(scale.turn, "turn", number, turn)
    return words.text(min(_OPENING_TOKENS, scale.system), "opening", number)


async def _converse(port: int, model: str, part: functools.partial[str], scale: Scale) -> Measured:
    """Return tokens, summed over the turns, and those of all turns but the first beside them.

    New in a turn is what is neither in the prompt before nor in the answer to it.
    """
    messages = [message("system", part(0))]
    prompts: list[int] = []
    computed: list[int] = []
    new: list[int] = []
    there = 0
    async with Chat(port, model) as chat:
        for turn in range(1, scale.turns + 1):
            messages.append(message("user", part(turn)))
            said = await chat.say(messages, scale.answer)
            messages.append(message("assistant", said.text))
            prompts.append(said.prompt_tokens)
            computed.append(said.prompt_tokens - said.cached_tokens)
            new.append(said.prompt_tokens - there)
            there = said.prompt_tokens + said.answer_tokens
    return {
        "prompt_tokens": float(sum(prompts)),
        "computed_tokens": float(sum(computed)),
        "new_tokens": float(sum(new)),
        "later_computed_tokens": float(sum(computed[1:])),
        "later_new_tokens": float(sum(new[1:])),
    }
