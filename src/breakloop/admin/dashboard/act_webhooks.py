"""What an operator does with webhooks: add, give a new secret, remove, send a test, send again."""

from __future__ import annotations

from typing import ClassVar, Final

from breakloop.admin.actions import Actions
from breakloop.admin.dashboard.acts import Act, Asked, Input, Outcome, Question
from breakloop.admin.dashboard.views import words
from breakloop.errors import OrderError

_WHERE: Final = "/alerts"


class Add(Act):
    """Send events to a URL from now on."""

    name: ClassVar[str] = "webhook.add"

    def question(self, asked: Asked) -> Question:
        """Return what is asked."""
        inputs = (
            Input("url", "URL", asked.get("url", ""), "It gets a signed POST for each event.", required=True),
            Input("events", "Events", "loop.detected, agent.killed", "Names with commas between; empty: all events."),
            Input("allow_private", "The address may be a private one", kind="check"),
        )
        return Question("Add a webhook", "Its secret is shown once, on the next page.", "Add webhook", inputs=inputs)

    async def do(self, actions: Actions, form: Asked) -> Outcome:
        """Add it."""
        url, events = form.get("url", "").strip(), form.get("events", "").replace(",", " ").split()
        if not url.startswith(("http://", "https://")):
            raise OrderError(["url: must begin with http:// or https://"])
        made = await actions.add_webhook(url, events, allow_private=bool(form.get("allow_private")))
        return Outcome(f"Webhook {made['id']} is added.", _WHERE, secret=str(made["secret"]))


class Remove(Act):
    """Send nothing there any more."""

    name: ClassVar[str] = "webhook.remove"
    carries: ClassVar[tuple[str, ...]] = ("id",)

    def question(self, asked: Asked) -> Question:
        """Return what is asked."""
        says = "Nothing is sent there any more; what is still under way is given up."
        return Question(f"Remove webhook {words.shortened(asked.get('id', ''), 40)}?", says, "Remove", danger=True)

    async def do(self, actions: Actions, form: Asked) -> Outcome:
        """Remove it."""
        given = form.get("id", "")
        await actions.remove_webhook(given)
        return Outcome(f"Webhook {given} is removed.", _WHERE)


class Rotate(Act):
    """Give it a new secret."""

    name: ClassVar[str] = "webhook.rotate"
    carries: ClassVar[tuple[str, ...]] = ("id",)

    def question(self, asked: Asked) -> Question:
        """Return what is asked."""
        says = "The new secret is shown once, on the next page. For a day the old one signs beside it."
        return Question(f"New secret for {words.shortened(asked.get('id', ''), 40)}?", says, "Make a new secret")

    async def do(self, actions: Actions, form: Asked) -> Outcome:
        """Make one."""
        made = await actions.rotate_webhook(form.get("id", ""))
        return Outcome(f"Webhook {made['id']} has a new secret.", _WHERE, secret=str(made["secret"]))


class Again(Act):
    """Send again what was given up."""

    name: ClassVar[str] = "delivery.again"
    carries: ClassVar[tuple[str, ...]] = ("id",)

    def question(self, asked: Asked) -> Question:
        """Return what is asked."""
        says = "It is sent under the same id, so that a receiver that has it already can tell."
        return Question(f"Send {words.shortened(asked.get('id', ''), 40)} again?", says, "Send again")

    async def do(self, actions: Actions, form: Asked) -> Outcome:
        """Send it."""
        given = form.get("id", "")
        await actions.send_again(given)
        return Outcome(f"Delivery {given} is under way again.", _WHERE)


class Try(Act):
    """Send one event now."""

    name: ClassVar[str] = "webhook.test"
    carries: ClassVar[tuple[str, ...]] = ("id",)

    def question(self, asked: Asked) -> Question:
        """Return what is asked."""
        says = "It gets a test event, signed like the real ones."
        return Question(f"Send a test to {words.shortened(asked.get('id', ''), 40)}?", says, "Send test")

    async def do(self, actions: Actions, form: Asked) -> Outcome:
        """Send it."""
        given = form.get("id", "")
        came = await actions.test_webhook(given)
        status, error = came.get("status"), came.get("error")
        answered = f"it answered {status}" if status else words.shortened(error or "no answer came")
        return Outcome(f"Test to {given}: {answered}.", _WHERE, "good" if came.get("delivered") else "bad")
