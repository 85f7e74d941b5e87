"""What a call is for, and what a short result says (LD-4)."""

from __future__ import annotations

import json

from breakloop.detect.steps.purposes import (
    BLOCKED,
    ENDED,
    LIMITED,
    LOOK,
    NO_EFFECT,
    NO_WAIT,
    NOTICED,
    ONGOING,
    PLAIN,
    TERMINAL,
    TIMED_OUT,
    WAIT,
    effect_by_name,
    says,
    waits,
    waits_by_name,
)
from tests.each import each
from tests.unit.detect.steps.stepping import called, prints


@each(
    "purpose, names",
    [
        (WAIT, "sleep wait Sleep mcp__clock__sleep pause wait_minutes ScheduleWakeup set_timer"),
        (WAIT, "sleep_seconds await_reply browser_sleep job_wait"),
        (LOOK, "job_status get_order_status poll list_alerts monitor health_check check_job deployment_progress"),
        (LOOK, "wait_for_job browser_wait_for BashOutput get_output TaskOutput read_terminal mcp__ci__build_status"),
        (TERMINAL, "write_stdin send_input"),
        (NO_WAIT, "get_job cronjob todo process search read_file pause_campaign get_wait_times get_sleep_log waitlist"),
        (NO_WAIT, "estimate_queue_wait"),  # the name of a value
        (NO_WAIT, "structured_output final_output update_status set_alert create_monitor run_in_terminal"),
    ],
)
def test_tools_that_wait_or_look(purpose: int, names: str) -> None:
    """Waiting is recognised by what is called (LD-4)."""
    assert {name: waits_by_name(name) for name in names.split()} == dict.fromkeys(names.split(), purpose)


@each(
    "purpose, command",
    [
        (WAIT, "sleep 60"),
        (WAIT, "sleep 2m && echo ready"),
        (WAIT, "bash -lc 'sleep 5'"),
        (LOOK, "sleep 45; ./check.sh"),
        (LOOK, "sleep 0.5; ./check.sh"),
        (LOOK, "for i in 1 2 3; do sleep 10; gh run view 1; done"),
        (LOOK, "gh run view 4411"),
        (LOOK, "cd app && gh pr checks 5 2>&1 | tail -3"),
        (LOOK, "gh run list --json status -q '.[] | .status'"),
        (LOOK, "kubectl -n prod get pods"),
        (LOOK, "kubectl rollout status deploy/web"),
        (LOOK, "docker ps | grep web"),
        (LOOK, "squeue -u me"),
        (LOOK, "systemctl status nginx"),
        (LOOK, "aws ecs describe-services --cluster a"),
        (LOOK, "curl -s http://train:8000/jobs/42"),
        (LOOK, "curl -sf localhost:8080/healthz"),
        (LOOK, "ps aux | grep make"),
        (LOOK, "tail -5 train.log"),
        (LOOK, "./pipeline status 7"),
        (TERMINAL, ""),
        (NO_WAIT, "\n"),  # a key that is pressed
        (NO_WAIT, "git status"),
        (NO_WAIT, "echo status"),
        (NO_WAIT, "echo status | grep -c ok"),
        (NO_WAIT, "kubectl apply -f app.yml"),
        (NO_WAIT, "curl -X POST http://train:8000/jobs/42"),
        (NO_WAIT, "curl -d x=1 http://train:8000/jobs"),
        (NO_WAIT, "pytest; gh run view 4"),
        (NO_WAIT, "gh run view 4; pytest"),
        (NO_WAIT, "python app.py | tail -5"),
        (NO_WAIT, "tail -50 app.py"),
        (NO_WAIT, "cat build.log"),
        (NO_WAIT, "make all"),
    ],
)
def test_commands_that_wait_or_look(purpose: int, command: str) -> None:
    """A command line is a wait if it only sleeps, and a look if it only looks, or looks after a sleep (LD-4)."""
    found, seconds = waits(NO_WAIT, json.dumps({"command": command}).encode(), runs=True)
    assert found == purpose
    assert (seconds > 0) if "sleep" in command else seconds == 0


def test_long_arguments_do_something_else() -> None:
    """Up to 600 bytes are read (LD-4)."""
    given = b'{"action": "poll", "id": "%b"}'
    for size, purpose in ((600, LOOK), (601, NO_WAIT)):
        arguments = given % (b"x" * (size - len(given) + 2))
        assert len(arguments) == size
        assert waits(NO_WAIT, arguments, runs=False) == (purpose, 0.0)


def test_how_long_a_wait_is() -> None:
    """By the first number, in its unit (LD-4)."""
    assert waits(WAIT, b'{"seconds":120}', runs=False) == (WAIT, 120)
    assert waits(WAIT, b'{"reason":"build","duration_ms":"1500"}', runs=False) == (WAIT, 1.5)
    assert waits(WAIT, b'{"minutes":2}', runs=False) == (WAIT, 120)
    assert waits(WAIT, b'{"hours":2.5}', runs=False) == (WAIT, 9000)
    assert waits(WAIT, b'{"milliseconds":250}', runs=False) == (WAIT, 0.25)
    assert waits(WAIT, b"{}", runs=False) == (WAIT, 0)
    assert waits(NO_WAIT, b'{"cmd":["bash","-lc","sleep 2m; sleep 5"]}', runs=True) == (WAIT, 125)
    assert waits(NO_WAIT, b"sleep ..s; sleep 3", runs=True) == (WAIT, 3)
    assert waits(NO_WAIT, b"sleep 5s && sleep 1h; sleep 2d", runs=True) == (WAIT, 5 + 3600 + 2 * 86400)
    assert waits(NO_WAIT, b"sleep 45 | ./check.sh", runs=True) == (LOOK, 45)


def test_looks_by_their_arguments() -> None:
    """An action that is a look, the address of a status, a terminal that is sent nothing (LD-4)."""
    assert waits(NO_WAIT, b'{"action":"poll","id":"p1"}', runs=False) == (LOOK, 0)
    assert waits(NO_WAIT, b'{"action":"list","status":"open"}', runs=False) == (NO_WAIT, 0)
    assert waits(NO_WAIT, b'{"url":"https://ci.example.com/api/builds/7"}', runs=False) == (LOOK, 0)
    assert waits(NO_WAIT, b'{"method":"POST","url":"https://ci.example.com/api/builds"}', runs=False) == (NO_WAIT, 0)
    assert waits(NO_WAIT, b'{"path":"/jobs/7"}', runs=False) == (NO_WAIT, 0)  # no address
    assert waits(NO_WAIT, b"/jobs/7 of the same host, by http", runs=False) == (LOOK, 0)
    assert waits(NO_WAIT, b'{"command":"make","directory":""}', runs=True) == (NO_WAIT, 0)
    assert waits(NO_WAIT, b'"command":""', runs=True) == (TERMINAL, 0)
    assert waits(TERMINAL, b'{"chars":"","session_id":7}', runs=False) == (TERMINAL, 0)
    assert waits(TERMINAL, b'{"chars":"y\\n","session_id":7}', runs=False) == (NO_WAIT, 0)
    long = b'{"action":"poll","text":"%s"}'
    assert waits(NO_WAIT, long % (b"x" * (600 - len(long) + 2)), runs=False) == (LOOK, 0)
    assert waits(NO_WAIT, long % (b"x" * (601 - len(long) + 2)), runs=False) == (NO_WAIT, 0)
    assert waits(LOOK, long % (b"x" * 600), runs=False) == (LOOK, 0)


@each(
    "meaning, text",
    [
        (ONGOING, '{"status": "running"}'),
        (ONGOING, "pipeline 4411: 3 of 7 stages done"),
        (PLAIN, "Not yet: the second chapter is too long."),
        (ONGOING, "completed 40 %"),
        (ENDED, "Process exited with code 0"),
        (ENDED, '{"state": "SUCCEEDED"}'),
        (ENDED, "session 7 not found"),
        (ENDED, "kill: no such process"),
        (TIMED_OUT, "status: timeout, no new output"),
        (LIMITED, "Error: 429 rate limit exceeded"),
        (LIMITED, "Too many requests, slow down."),
        (LIMITED, '{"error": "throttled", "retry_after": 3}'),
        (LIMITED, "HTTP 429"),
        (PLAIN, "429 rows"),
        (PLAIN, "[]"),
        (PLAIN, "no open alerts"),
        (PLAIN, "saved"),
    ],
)
def test_what_a_short_result_says(meaning: int, text: str) -> None:
    """It goes on, it has ended, or the tool is called too often (LD-4)."""
    assert says(text.encode()) == meaning


@each(
    "effect, names",
    [
        (BLOCKED, "send_email sendMail GMAIL_SEND_EMAIL email create_issue mcp__git__create_pull_request place_order"),
        (BLOCKED, "book_flight buy pay transfer_money transfer make_payment charge_card issue_refund schedule_meeting"),
        (BLOCKED, "send_email_to_customer create_calendar_event send_confirmation_sms submit_order"),
        (NOTICED, "send_message post_message SendMessage add_comment create_issue_comment notify_user add_item deploy"),
        (NOTICED, "publish_post reply create_user order_food send_event"),
        (
            NO_EFFECT,
            "write_file create_file edit apply_patch set_status todo_write save_memory create_plan update_issue",
        ),
        (NO_EFFECT, "press_key click send_keys send_input send_request submit submit_answer transfer_to_billing_agent"),
        (
            NO_EFFECT,
            "get_order search_mail book_search purchase_history refund_policy cancel_order create_email_template",
        ),
        (NO_EFFECT, "bash python create_branch make_account scroll_to_comment quick_pay"),
    ],
)
def test_effects_that_cannot_be_taken_back(effect: int, names: str) -> None:
    """Refused only if the name leaves no doubt that something leaves the house (LD-4)."""
    assert {name: effect_by_name(name) for name in names.split()} == dict.fromkeys(names.split(), effect)


@each("size, meaning", [(119, ONGOING), (120, ONGOING), (121, PLAIN)])
def test_how_long_a_result_is_that_says_something(size: int, meaning: int) -> None:
    """Up to 120 bytes; a longer one is a text about other things, too (LD-4)."""
    text = "the build is running ".ljust(size + 4, "x")  # without its four spaces
    assert prints(called(text=text)).pairs[0].says == meaning
