"""Bodies made from the description, right and wrong: nothing fails, and every answer is as described."""

import asyncio
import json

import pytest
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.openapi import from_dict
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from proxy.openapi import description_text
from tests.proxy.small_gateway import NAME, TEXT, gateway, ids

EXAMPLES = 3
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def schema():
    return from_dict(json.loads(description_text()))


def asked(operation, url, mode):
    """Ask one operation some ways; return the statuses that came."""
    statuses = set()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case):
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict) and "model" in case.body:
            case.body["model"] = NAME
        answered = case.call(base_url=url, timeout=30)
        statuses.add(answered.status_code)
        case.validate_response(answered, checks=CHECKS)

    ask()
    return statuses


def all_asked(schema, url, mode):
    """Ask every operation; wrongly, only those that have a body to be wrong."""
    operations = [found.ok() for found in schema.get_all_operations()]
    return [
        asked(each, url, mode) for each in operations if mode is GenerationMode.POSITIVE or list(each.body)
    ]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])
async def test_every_answer_is_as_the_description_has_it(tmp_path, schema, mode):
    async with gateway(tmp_path) as here:
        await here.start_worker()
        here.answer = lambda submit: ids(TEXT)[: submit.max_tokens]
        statuses = set().union(*await asyncio.to_thread(all_asked, schema, here.url, mode))
        assert {200, 400} & statuses
        assert max(statuses) < 500
        await here.idle()
