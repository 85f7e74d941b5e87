"""`breakloop run -- COMMAND`: run an agent behind a gateway of its own, and end it when it must end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from breakloop.cli.main import PROBLEM
from breakloop.cli.output import config_option
from breakloop.cli.serve import PortOrCount, failed
from breakloop.config.loader import load_settings
from breakloop.config.settings import Settings
from breakloop.errors import BundleError, FleetError, SettingsError
from breakloop.formatting import money, plural
from breakloop.model.decision import STOP_REASONS
from breakloop.model.upstream import BUILTIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from breakloop.model.call import Answer, Call, Usage
    from breakloop.model.counters import TraceCounters
    from breakloop.model.verdict import Verdict

# Exit codes by stop reason. Shells use 126 and above, agents small numbers, and programs of a system 64 to 78.
EXIT_CODES: Final = {"loop": 90, "budget": 91, "killed": 92, "limit": 93, "paused": 94}
NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126
DENIALS: Final = 5
_TERMINATE_S: Final = 5.0
_SHOWN_EVERY_S: Final = 1.0
_LINE_EVERY_S: Final = 30.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

# The variables by which clients are pointed at a provider, with the path that each one's value ends with: those of the
# providers' own SDKs, and those that LiteLLM prefers. A variable that is set already names the upstream.
_CLIENTS: Final[Mapping[str, Mapping[str, str]]] = {
    "openai": {"OPENAI_BASE_URL": "/v1", "OPENAI_API_BASE": "/v1"},
    "anthropic": {"ANTHROPIC_BASE_URL": "", "ANTHROPIC_API_BASE": ""},
    "gemini": {"GOOGLE_GEMINI_BASE_URL": "", "GEMINI_API_BASE": "/v1beta"},
}
_SETTINGS: Final[Mapping[str, object]] = {
    "host": "127.0.0.1", "port": 0, "admin_port": 0, "workers": 1, "mode": "proxy", "strict": True,
    "log_level": "error",
}  # fmt: skip
_SAVE_TITLE: Final = "\x1b[22;0t"
_RESTORE_TITLE: Final = "\x1b[23;0t"
_PR_SET_CHILD_SUBREAPER: Final = 36
_NO_PROXY: Final = ("NO_PROXY", "no_proxy")


class Spending(NamedTuple):
    calls: int = 0
    denied: int = 0
    tokens: int = 0
    microusd: int = 0
    landed: int = 0

    def __str__(self) -> str:
        what = (("landed", self.landed), ("denied", self.denied))
        more = "".join(f", {number} {done}" for done, number in what if number)
        return f"{money(self.microusd / 1e6)}, {plural(self.calls, 'call')}, {plural(self.tokens, 'token')}{more}"


class RunWatch:
    """Adds up what a run uses, and decides when it must end. It is called with every decision and answer."""

    def __init__(self, max_usd: float | None, max_denials: int) -> None:
        self.spent = Spending()
        self.stop_reason = ""  # of the last denial
        self.message = ""
        self.must_end = asyncio.Event()
        self._max_microusd = None if max_usd is None else max_usd * 1e6
        self._max_denials = max_denials
        self._in_a_row = 0
        self._cost_microusd: Callable[[Call, Usage], int] = lambda _call, _usage: 0
        self._traces: TraceCounters | None = None

    def attach(self, cost_microusd: Callable[[Call, Usage], int], traces: TraceCounters | None) -> None:
        """Set what an answer costs, and the tracing that is called as well."""
        self._cost_microusd = cost_microusd
        self._traces = traces

    def decided(self, call: Call, verdict: Verdict) -> None:
        """Count a decision. An allowed call means that the agent goes on with something else."""
        if self._traces is not None:
            self._traces.decided(call, verdict)
        spent = self.spent
        if verdict.allowed:
            self.spent = spent._replace(calls=spent.calls + 1, landed=spent.landed + verdict.landed)
            self._in_a_row = 0
            return
        self.spent = spent._replace(denied=spent.denied + 1)
        stop_reason = STOP_REASONS.get(verdict.reason, "")
        if not stop_reason or self.must_end.is_set():
            return
        self.stop_reason, self.message = stop_reason, _first_sentence(verdict.message)
        # Waiting ends a limit and a pause, so the agent may go on asking.
        waiting_helps = stop_reason == "limit" or (stop_reason == "paused" and verdict.retry_after_s is not None)
        self._in_a_row += not waiting_helps
        if self._in_a_row >= self._max_denials or stop_reason == "killed":
            self.must_end.set()

    def answered(self, call: Call, answer: Answer) -> None:
        if self._traces is not None:
            self._traces.answered(call, answer)
        usage, spent = answer.usage, self.spent
        if usage is None:
            return
        microusd = spent.microusd + self._cost_microusd(call, usage)
        tokens = spent.tokens + usage.input_tokens + usage.output_tokens
        self.spent = spent._replace(tokens=tokens, microusd=microusd)
        if self._max_microusd is not None and microusd >= self._max_microusd:
            self.stop_reason, self.message = "budget", f"it has spent {money(microusd / 1e6)}"
            self.must_end.set()

    def close(self) -> None:
        if self._traces is not None:
            self._traces.close()


def upstreams_in(env: Mapping[str, str], named: Sequence[str]) -> dict[str, str]:
    """Return the upstreams that variables of `env` name, except those in the settings (`named`, NAME=URL). The usual
    path at the end of a value is left out, because clients send it."""
    known = {one.partition("=")[0] for one in named}
    found = {}
    for name, variables in _CLIENTS.items():
        given = ((env[one].rstrip("/"), path) for one, path in variables.items() if env.get(one))
        url, path = next(given, ("", ""))
        base = url.removesuffix(path)
        if url and name not in known and base != BUILTIN[name]:
            found[name] = base
    return found


def client_environment(url: str, env: Mapping[str, str], upstreams: Mapping[str, str]) -> dict[str, str]:
    """Return `env` with the variables that point clients at the gateway. `upstreams` are those of `upstreams_in`: a URL
    that does not end with the usual path has another one, and clients add nothing to it."""
    changed = dict(env)
    for name, variables in _CLIENTS.items():
        upstream = upstreams.get(name)
        other = any(path and env.get(one, "").rstrip("/") == upstream for one, path in variables.items())
        changed |= {one: f"{url}/{name}{'' if other else path}" for one, path in variables.items()}
    # A proxy of the machine must not be asked for an address of this process.
    for name in _NO_PROXY:
        changed[name] = ",".join(filter(None, (env.get(name, ""), "127.0.0.1")))
    return changed


def _first_sentence(message: str) -> str:
    return message.partition(". ")[0].rstrip(".")


class AgentProcess:
    """The command, in a process group of its own, so that everything it starts ends with it. Coding agents run the
    commands of their model in sessions of their own; on Linux, these are ended as well."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: Popen[bytes] | None = None
        self._early_signals: list[int] = []
        self._others: set[int] = set()  # children of this process that are not the command's
        self._terminal = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None

    def start(self, env: Mapping[str, str]) -> None:
        """Start it. Raises `OSError`."""
        self._others = _children()
        _adopt_orphans()
        process = self._process = Popen(list(self._command), env=dict(env), process_group=0)  # noqa: S603 - as asked
        self._hand_over(os.getpgrp(), process.pid)
        for number in self._early_signals:
            self.signal(number)

    async def wait(self) -> int:
        """Return the exit code, as a shell does."""
        code = await asyncio.to_thread(self._wait)
        return 128 - code if code < 0 else code

    def _wait(self) -> int:
        """Wait until the command ends. If somebody at the terminal stops it (Ctrl-Z), stop as well, so that the shell
        is there again; `fg` continues both."""
        process = self._process
        assert process is not None  # noqa: S101 - it was started
        while True:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                process.returncode = os.waitstatus_to_exitcode(status)
                return process.returncode
            if self._terminal is None:
                continue
            if os.WSTOPSIG(status) not in {signal.SIGTTIN, signal.SIGTTOU} or self._owner() != process.pid:
                self._hand_over(process.pid, os.getpgrp())
                os.killpg(os.getpgrp(), signal.SIGSTOP)  # everything of this job; it goes on after this line
                self._hand_over(os.getpgrp(), process.pid)
            self.signal(signal.SIGCONT)  # after SIGTTIN: it used the terminal before it was handed over

    def signal(self, number: int) -> None:
        """Send a signal to the command and to what it has started; when it starts, if that is still to come."""
        if self._process is None:
            self._early_signals.append(number)
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def reap(self) -> None:
        """Remove adopted processes that have ended from the table of processes."""
        if sys.platform != "linux" or self._process is None:
            return
        with suppress(ChildProcessError):  # there is none
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid == self._process.pid:  # which `_wait` waits for
                    break
                os.waitpid(ended.si_pid, 0)

    def close(self) -> None:
        """End what the command has left behind, and take the terminal back."""
        if self._process is not None:
            self.signal(signal.SIGKILL)
            _end_children(self._others)
            self._hand_over(self._process.pid, os.getpgrp())

    def _hand_over(self, owner: int, group: int) -> None:
        """Make a process group the one that reads from the terminal, as a shell does, if `owner` is that group now. A
        job in the background has no terminal to give."""
        if self._terminal is None:
            return
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            if self._owner() == owner:
                os.tcsetpgrp(self._terminal, group)
        except OSError:  # the terminal was closed, or the command has ended already
            pass
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _owner(self) -> int:
        """Return the process group that reads from the terminal; -1 if the terminal was closed."""
        try:
            return -1 if self._terminal is None else os.tcgetpgrp(self._terminal)
        except OSError:
            return -1


def _adopt_orphans() -> None:
    """Become the parent of processes whose own parent has ended, instead of init. Linux has this, others do not."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - nothing else needs it

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_children(spared: set[int]) -> None:
    """End the children of this process, and what they have started, which becomes a child of this process then."""
    while children := _children() - spared:
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except PermissionError:  # of another user
                spared.add(pid)
            except (ProcessLookupError, ChildProcessError):  # somebody else has waited for it
                pass


def _children() -> set[int]:
    found: set[int] = set()
    for thread in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # it has ended
            found.update(map(int, thread.read_text().split()))
    return found


class Display:
    """Shows what is spent: in the title of a terminal, which disturbs no screen of the agent, else in lines."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._last = Spending()
        self._lines_due_s = _LINE_EVERY_S
        self._titled = False

    def update(self, spent: Spending, elapsed_s: float) -> None:
        """Show a change, if there is one and it is due."""
        if self._quiet or spent == self._last:
            return
        if self._terminal:
            saved = "" if self._titled else _SAVE_TITLE
            self._titled = True
            sys.stderr.write(f"{saved}\x1b]0;breakloop {spent}\x07")
            sys.stderr.flush()
        elif elapsed_s >= self._lines_due_s:
            self._lines_due_s = elapsed_s + _LINE_EVERY_S
            click.echo(f"breakloop: {spent}", err=True)
        else:
            return
        self._last = spent

    def say(self, text: str) -> None:
        """Print a line, whatever is set: it says why a run ended."""
        click.echo(f"breakloop: {text}", err=True)

    def end(self, spent: Spending) -> None:
        """Restore the title of the terminal, and show the sum."""
        if self._titled:
            sys.stderr.write(_RESTORE_TITLE)
        if not self._quiet:
            self.say(str(spent))


async def supervise(agent: AgentProcess, watch: RunWatch, display: Display) -> int:
    """Wait for the command, or end it when it must end. Returns the exit code of `breakloop run`."""
    waiting = asyncio.create_task(agent.wait())
    ending = asyncio.create_task(watch.must_end.wait())
    elapsed_s = 0.0
    while not (waiting.done() or ending.done()):
        await asyncio.wait((waiting, ending), timeout=_SHOWN_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
        elapsed_s += _SHOWN_EVERY_S
        agent.reap()
        display.update(watch.spent, elapsed_s)
    ended = not waiting.done()
    if ended:
        display.say(f"ending the command ({watch.stop_reason}): {watch.message}")
        agent.signal(signal.SIGTERM)
        await asyncio.wait((waiting,), timeout=_TERMINATE_S)
        agent.signal(signal.SIGKILL)
    ending.cancel()
    code = await waiting
    if not ended and code and watch.stop_reason:
        display.say(f"the command failed with {code} after a denial ({watch.stop_reason}): {watch.message}")
    return EXIT_CODES[watch.stop_reason] if watch.stop_reason and (ended or code) else code


@contextmanager
def _forwarded(agent: AgentProcess) -> Iterator[None]:
    """Pass the signals that end a program on to the command."""
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, agent.signal, number)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


@click.command(
    name="run",
    context_settings={"allow_interspersed_args": False},
    epilog="Exit code: that of the command. If breakloop ended it, or it failed after a denial: 90 loop, 91 budget, "
    "92 killed, 93 limit, 94 paused. 1: the gateway could not start; 126 and 127: the command could not.",
)
@click.argument("agent", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--max-usd", type=click.FloatRange(min=0, min_open=True), metavar="USD", help="End the run at this cost.")
@click.option(
    "--max-denials",
    type=PortOrCount(1),
    default=DENIALS,
    show_default=True,
    metavar="N",
    help="End the run after this many denials in a row; one that ends by waiting does not count.",
)
@click.option("--policy", metavar="PATH|URL", help="Policy bundle.  [the built-in protection]")
@click.option("--upstream", multiple=True, metavar="NAME=URL", help="Where requests are sent. Repeatable.")
@config_option
@click.option("--quiet", is_flag=True, help="Print nothing but why the run was ended.")
def command(
    agent: tuple[str, ...],
    *,
    max_usd: float | None,
    max_denials: int,
    policy: str | None,
    upstream: tuple[str, ...],
    config: str,
    quiet: bool,
) -> int:
    """Run an agent behind a gateway of its own: its LLM calls are checked, its spending is shown, and it is ended if it
    goes on after being denied."""
    from breakloop.observe.log import Logging  # noqa: PLC0415 - `--help` needs none of this

    env = dict(os.environ)  # noqa: TID251 - the command gets it
    with tempfile.TemporaryDirectory(prefix="breakloop-run-") as data_dir:
        flags: dict[str, object] = {"policy": policy, "config": config or None, "data_dir": data_dir, **_SETTINGS}
        try:
            named = load_settings({**flags, "upstream": upstream}).settings.upstream
            found = upstreams_in(env, named)
            flags["upstream"] = (*named, *[f"{name}={url}" for name, url in found.items()])
            settings = load_settings(flags).settings
        except SettingsError as error:
            return failed(error)
        logging = Logging(sys.stderr, settings.log_level, settings.log_format)
        logging.start()
        try:
            watch = RunWatch(max_usd, max_denials)
            return _run(agent, settings, lambda url: client_environment(url, env, found), watch, Display(quiet=quiet))
        except (SettingsError, BundleError, FleetError) as error:
            return failed(error)
        finally:
            logging.stop()


def _run(
    command: Sequence[str],
    settings: Settings,
    environment: Callable[[str], Mapping[str, str]],
    watch: RunWatch,
    display: Display,
) -> int:
    """Run the gateway and, when it listens, the command. `environment` returns the variables for a URL."""
    from breakloop.app.build import run_event_loop  # noqa: PLC0415
    from breakloop.app.runtime import Runtime  # noqa: PLC0415
    from breakloop.app.state import open_state  # noqa: PLC0415

    class EmbeddedRuntime(Runtime):
        """The gateway of one run. Signals are for the agent."""

        def take_signals(self) -> None: ...

        def make_tracing(self) -> TraceCounters:
            watch.attach(self._cost_microusd, super().make_tracing())
            return watch

        def _cost_microusd(self, call: Call, usage: Usage) -> int:
            return self.engine.meter.cost_microusd(call, usage)

    async def run() -> int:
        runtime = EmbeddedRuntime(settings, opened=await open_state(settings))
        code = PROBLEM

        process = AgentProcess(command)

        async def agent(url: str) -> None:
            nonlocal code
            try:
                process.start(environment(url))
                code = await supervise(process, watch, display)
                display.end(watch.spent)
            except OSError as error:
                display.say(f"{command[0]} cannot be started: {error.strerror}")
                code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            finally:
                process.close()
                runtime.stop(hurry=True)

        tasks: list[asyncio.Task[None]] = []
        with _forwarded(process):
            await runtime.run(lambda url: tasks.append(asyncio.create_task(agent(url))))
            await asyncio.gather(*tasks)
        return code

    return run_event_loop(run())
