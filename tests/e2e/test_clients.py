"""The client packages of providers that have their own APIs, through the real gateway by another address alone, streamed
and not: a loop is stopped with an error that reads well, thirty different steps pass, a landed agent gives an answer, and
tokens are counted."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from breakloop.gateway.aws_signature import AwsKey, AwsRequest, signature_lines
from breakloop.testing import Answer, SeenRequest, StandInLLM, call_tool, say
from tests.deadlines import DEADLINE_S
from tests.e2e.environments import program_of, variables
from tests.e2e.served import serving
from tests.redis_servers import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

STEPS = 30
FORMS = ("plain", "stream")
LANDING = {
    "bundle_version": 1,
    "policies": [],
    "defaults": {"loop_detection": {"similarity": "steps", "ladder": {"block": "land"}}},
}
FINAL = "I finish with what I have."  # of the stand-in, if tools are off
RUN = re.compile(rb"([a-z][a-z0-9-]*-(?:loop|work|land)-(?:plain|stream))")
# The error that each client raises for a denial.
ERRORS = {
    "ollama": "ollama._types.ResponseError",
    "cohere": "cohere.errors.bad_request_error.BadRequestError",
    "anthropic-vertex": "anthropic.RateLimitError",
    "anthropic-bedrock": "anthropic.RateLimitError",
    "converse": "botocore.errorfactory.ValidationException",
    "invoke": "botocore.errorfactory.ValidationException",
    "gemini-vertex": "google.genai.errors.ClientError",
    "azure-deployment": "openai.RateLimitError",
    "azure-v1": "openai.RateLimitError",
    "azure-responses": "openai.RateLimitError",
    "openrouter": "openai.RateLimitError",
    "mistral-agent": "mistralai.client.errors.sdkerror.SDKError",
    "mistral-conversation": "mistralai.client.errors.sdkerror.SDKError",
}
HELD = {"BREAKLOOP_UPSTREAM_KEYS": "bedrock=env:BEDROCK_KEYS", "BEDROCK_KEYS": "AKIAHELD:held/secret+:held-token=="}
KEY = ("AKIAHELD", "held/secret+", "held-token==")
UPSTREAMS = ("azure", "ollama", "cohere", "vertex", "bedrock", "openrouter", "mistral")


class Model:
    """Answers each run by its own count of requests. The name of a run is in the model, the path or the key."""

    def __init__(self) -> None:
        self.turns: Counter[str] = Counter()
        self.signed: list[SeenRequest] = []  # to Bedrock

    def __call__(self, seen: SeenRequest) -> Answer:
        if seen.path.startswith("/model/"):
            self.signed.append(seen)
        where = (seen.path.encode(), seen.body, (seen.header("authorization") or "").encode())
        found = next((match for part in where if (match := RUN.search(part))), None)
        assert found is not None, seen.path
        run = found[1].decode()
        self.turns[run] += 1
        query = f"item-{self.turns[run]}" if "-work-" in run else "again"
        answer = call_tool("look", {"query": query}) if self.turns[run] <= STEPS else say("Done.")
        return answer.with_usage(1000, 10)


class Outcome(NamedTuple):
    ended: dict[str, tuple[str, int]]  # what each run ended with, and how often its tool was run
    turns: Counter[str]  # requests of each run that reached the model
    counted: dict[str, int]  # tokens that the gateway has counted
    signed: list[SeenRequest]  # requests to Bedrock, as they arrived


def tokens(metrics: str) -> dict[str, int]:
    found = re.findall(r'^breakloop_tokens_total\{direction="(\w+)"\} ([0-9.e+]+)$', metrics, re.MULTILINE)
    return {direction: int(float(count)) for direction, count in found}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    python, folder, model = program_of("clients"), tmp_path_factory.mktemp("clients"), Model()
    script = Path(__file__).with_name("client_agents.py")
    home = folder / "home"
    with StandInLLM.in_thread(respond=model) as llm:
        upstreams = [part for name in UPSTREAMS for part in ("--upstream", f"{name}={llm.url}")]
        (folder / "landing").mkdir()
        (folder / "landing" / "policy.json").write_text(json.dumps(LANDING))
        admin = free_port()
        with (
            serving(folder, *upstreams, "--admin-port", str(admin), **HELD) as served,
            serving(folder / "landing", *upstreams, "--policy", "policy.json", **HELD) as landing,
        ):
            done = subprocess.run(
                [python, str(script), served.url, landing.url],
                env=variables(home),
                cwd=home,
                capture_output=True,
                text=True,
                check=False,
                timeout=250,
            )
            with urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=DEADLINE_S) as answer:
                metrics = answer.read().decode()
    assert done.returncode == 0, done.stderr[-3000:]
    ended: Any = json.loads(done.stdout.splitlines()[-1])
    return Outcome(
        {run: (said, times) for run, (said, times) in ended.items()}, model.turns, tokens(metrics), model.signed
    )


each_client = pytest.mark.parametrize("name", ERRORS)
each_form = pytest.mark.parametrize("form", FORMS)


@each_client
@each_form
def test_a_loop_is_stopped(outcome: Outcome, name: str, form: str) -> None:
    """The client raises its own error, which contains what was repeated; the tool is not run again (LD-4, A-3)."""
    said, times = outcome.ended[f"{name}-loop-{form}"]
    assert said.startswith(ERRORS[name]), said
    assert "Blocked: `look` returned the same" in said
    assert outcome.turns[f"{name}-loop-{form}"] == times == 5


@each_client
@each_form
def test_thirty_different_steps_pass(outcome: Outcome, name: str, form: str) -> None:
    """Nothing is denied, and the answer arrives (LD-4)."""
    run = f"{name}-work-{form}"
    assert (outcome.ended[run], outcome.turns[run]) == (("Done.", STEPS), STEPS + 1)


@each_client
@each_form
def test_a_landed_agent_answers(outcome: Outcome, name: str, form: str) -> None:
    """With its tools switched off, the model says what it has (LD-5)."""
    said, times = outcome.ended[f"{name}-land-{form}"]
    assert (said, times) == (FINAL, 5)


def test_tokens_are_counted(outcome: Outcome) -> None:
    """Those of every answer, in every API, streamed or not (A-5)."""
    answers = sum(count for run, count in outcome.turns.items() if "-land-" not in run)
    assert outcome.counted == {"input": 1000 * answers, "output": 10 * answers}


def by_botocore(asked: list[dict[str, Any]], home: Path) -> list[str]:
    """The signatures of botocore."""
    done = subprocess.run(
        [program_of("clients"), str(Path(__file__).with_name("aws_oracle.py"))],
        input=json.dumps(asked),
        env=variables(home),
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )
    found: list[str] = json.loads(done.stdout)
    return found


def test_bedrock_gets_signatures_that_hold(outcome: Outcome, tmp_path: Path) -> None:
    """For its own host and the body that is sent, also if a note was added, with the held key and not the client's: what
    arrives is signed as botocore signs it (D-2, Y-1)."""
    assert len(outcome.signed) > 200
    asked: list[dict[str, Any]] = []
    for seen in outcome.signed:
        fields = {name.decode().lower(): value.decode() for name, value in seen.headers}
        names = re.findall(r"SignedHeaders=([^,]+),", fields["authorization"])[0].split(";")
        url, body = f"http://{fields['host']}{seen.path}", seen.body.decode("latin-1")
        headers = {name: fields[name] for name in names}
        asked.append(
            {"method": "POST", "url": url, "headers": headers, "body": body, "key": KEY, "region": "eu-west-1"}
        )
        assert "AKIACLIENT" not in str(fields)
    assert any(b"[breakloop]" in seen.body for seen in outcome.signed)
    assert by_botocore(asked, tmp_path) == [seen.header("authorization") for seen in outcome.signed]


def test_signatures_are_those_of_botocore(tmp_path: Path) -> None:
    """Escaped and plain paths, queries, header fields with odd spaces, any body (D-2)."""
    key, now, host = AwsKey(*KEY), 1_700_000_000.0, "bedrock-runtime.us-east-1.amazonaws.com"
    asked: list[dict[str, Any]] = []
    ours: list[str] = []
    for target in ("/model/a.b-v1%3A0/converse", "/model/a.b-v1:0/invoke", "/a%20b/c~d/e%2Fg", "/x?b=2&a=1&c=%3A"):
        for body in ("", "{}", "\xff\x00 body"):
            for more in ({}, {"content-type": "application/json"}, {"x-amz-meta": " a   b "}):
                fields = {"host": host, **more}
                sent = AwsRequest("POST", target.encode(), list(fields.items()), body.encode("latin-1"))
                lines = dict(
                    line.split(": ", 1) for line in signature_lines(key, "us-east-1", sent, now).decode().splitlines()
                )
                ours.append(lines.pop("Authorization"))
                url = f"https://{host}{target}"
                headers = {**fields, **lines}
                asked.append(
                    {"method": "POST", "url": url, "headers": headers, "body": body, "key": KEY, "region": "us-east-1"}
                )
    assert by_botocore(asked, tmp_path) == ours
