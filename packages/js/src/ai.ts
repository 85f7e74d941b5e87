/** For the Vercel AI SDK (`ai` 5 and newer). Use one of the three: each asks about every step. */
import { DeniedError } from "./errors.js";
import { Guard, type GuardOptions } from "./guard.js";
import { chatOf, type PromptMessage, userText } from "./prompt.js";

interface CallParameters {
  prompt: readonly unknown[];
  toolChoice?: unknown;
}

/**
 * Middleware for `wrapLanguageModel`: asks before each call of the model, with `generateText` and `streamText`. A loop ends the
 * call with a `LoopDetectedError`. Notes for the model are added to the prompt; a run that is to land goes on without tools.
 */
export function breakloopMiddleware(options: GuardOptions = {}): {
  readonly specificationVersion: "v4";
  transformParams<P extends CallParameters>(call: { params: P; model: { modelId: string } }): Promise<P>;
} {
  const guard = new Guard(options);
  return {
    specificationVersion: "v4",
    async transformParams<P extends CallParameters>({ params, model }: { params: P; model: { modelId: string } }): Promise<P> {
      const { note, landed } = await guard.check(model.modelId, chatOf(params.prompt as PromptMessage[]));
      if (!note) return params;
      const prompt = [...params.prompt, userText(note)];
      return { ...params, prompt, ...(landed ? { toolChoice: { type: "none" } } : {}) };
    },
  };
}

/** For `prepareStep`: asks before each step. A loop ends the run with a `LoopDetectedError`. */
export function guardStep(
  options: GuardOptions = {},
): <M>(step: { messages: M[]; model: string | { modelId: string } }) => Promise<{ messages?: M[]; toolChoice?: "none" }> {
  const guard = new Guard(options);
  return async function <M>({ messages, model }: { messages: M[]; model: string | { modelId: string } }) {
    const name = typeof model === "string" ? model : model.modelId;
    const { note, landed } = await guard.check(name, chatOf(messages as PromptMessage[]));
    if (!note) return {};
    return { messages: [...messages, userText(note) as M], ...(landed ? { toolChoice: "none" as const } : {}) };
  };
}

interface Step {
  response: { messages?: readonly unknown[]; modelId?: string };
  toolResults?: readonly unknown[];
  content?: readonly unknown[];
}

/**
 * For `stopWhen`: ends the run after a step that repeats what was done before. The run ends without an error; `onDenied` gets
 * the `LoopDetectedError`. The task itself is not part of what is asked.
 */
export function loopDetected(
  options: GuardOptions & { onDenied?: (error: DeniedError) => void } = {},
): (state: { steps: readonly Step[] }) => Promise<boolean> {
  const guard = new Guard(options);
  const sessions = new WeakMap<object, string>(); // by the first step: it tells runs apart
  return async function ({ steps }) {
    const first = steps[0];
    if (first === undefined) return false;
    const session = options.session ?? sessions.get(first) ?? `run-${Math.random().toString(36).slice(2)}`;
    sessions.set(first, session);
    const made = steps.flatMap((step) => chatOfStep(step));
    try {
      await guard.check(steps.at(-1)?.response.modelId ?? "", [{ role: "user", content: "(the task)" }, ...made], session);
      return false;
    } catch (error) {
      if (!(error instanceof DeniedError)) throw error;
      options.onDenied?.(error);
      return true;
    }
  };
}

function chatOfStep(step: Step): ReturnType<typeof chatOf> {
  const parts = (step.content ?? []) as { type: string }[];
  const results = parts.filter((part) => part.type === "tool-result" || part.type === "tool-error");
  const said = parts.filter((part) => !results.includes(part));
  return chatOf([
    { role: "assistant", content: said },
    { role: "tool", content: results },
  ] as PromptMessage[]);
}
