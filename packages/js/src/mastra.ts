/** For Mastra (`@mastra/core` 1.x): an input processor. */
import { Guard, type GuardOptions } from "./guard.js";
import { chatOf, type PromptMessage, userText } from "./prompt.js";

/**
 * Returns a processor for `inputProcessors` of an agent: it asks before each call of the model. A loop ends the run with a
 * `LoopDetectedError`. Notes for the model are added to the prompt of that call, and are not stored.
 */
export function breakloopProcessor(options: GuardOptions = {}): {
  readonly id: "breakloop";
  readonly name: "breakloop";
  processLLMRequest<M>(request: { prompt: M[]; model: unknown }): Promise<{ prompt: M[] } | undefined>;
} {
  const guard = new Guard(options);
  return {
    id: "breakloop",
    name: "breakloop",
    async processLLMRequest<M>({ prompt, model }: { prompt: M[]; model: unknown }) {
      const name = typeof model === "object" && model !== null && "modelId" in model ? String(model.modelId) : String(model);
      const { note } = await guard.check(name, chatOf(prompt as PromptMessage[]));
      return note ? { prompt: [...prompt, userText(note) as M] } : undefined;
    },
  };
}
