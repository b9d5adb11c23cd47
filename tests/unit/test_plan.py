"""Launch plans as values."""

import json

from trainbox.plan import EnvVar, LaunchPlan, Process

PLAN = LaunchPlan(
    "torchrun", "algo-1", ("algo-1", "algo-2"), "algo-1", 4, 2,
    (Process("torchrun", ("python", "x"), (EnvVar("A", "1", "because"),), "/code", (0, 1), launches=True),),
)  # fmt: skip


def test_a_plan_can_be_written_as_json_and_keeps_its_reasons():
    value = json.loads(json.dumps(PLAN.to_json()))
    assert value["processes"][0]["env"] == [{"name": "A", "value": "1", "why": "because"}]
    assert value["processes"][0]["ranks"] == [0, 1]
    assert value["world"] == 4


def test_the_digest_is_that_of_the_job_and_not_of_the_host():
    assert PLAN.digest == PLAN._replace(host="algo-2", processes=()).digest
    assert PLAN.digest != PLAN._replace(world=2).digest
    assert PLAN.digest != PLAN._replace(hosts=("algo-1",)).digest
