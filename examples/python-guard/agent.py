"""An agent of one's own making, guarded in process: no server, no keys. `python agent.py` shows it being stopped."""

from __future__ import annotations

from breakloop import Guard, LoopDetectedError

guard = Guard()  # the built-in protection; Guard("policy.yaml") for a policy of your own


@guard.tool
def search(query: str) -> str:
    """Look something up. This one never finds anything, and so a naive agent never stops."""
    return f"no results for {query!r}"


def stuck_model(_history: list[str]) -> tuple[str, str]:
    """Stands for a model that does not take a hint."""
    return "search", "refund policy"


def main() -> None:
    """The usual loop: ask the model, carry out what it wants, show it what came back."""
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
