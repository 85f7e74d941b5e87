"""A hand-written agent, guarded in process: no server, no keys. `python agent.py` shows how it is stopped."""

from __future__ import annotations

from breakloop import Guard, LoopDetectedError

guard = Guard()  # the built-in protection; Guard("policy.yaml") uses your own policy


@guard.tool
def search(query: str) -> str:
    """Look something up. It never finds anything, so a naive agent never stops."""
    return f"no results for {query!r}"


def stuck_model(_history: list[str]) -> tuple[str, str]:
    """Simulate a model that ignores warnings."""
    return "search", "refund policy"


def main() -> None:
    """The usual agent loop: call the model, run the tool, return the result to the model."""
    history: list[str] = []
    with guard.run(agent="support-bot"):
        for step in range(1, 1001):
            _tool, query = stuck_model(history)
            try:
                result = search(query)
            except LoopDetectedError as stop:
                print(f"step {step}: stopped, kind {stop.kind}: {stop.message}")
                return
            history.append(result)
            print(f"step {step}: {result}")


if __name__ == "__main__":
    main()
