/** For LangChain.js (`langchain` 1.x): `createMiddleware(breakloopMiddleware())`. */
import { type ChatMessage, digested, Guard, type GuardOptions, toolCall } from "./guard.js";

interface ModelRequest {
  messages: unknown[];
  model: unknown;
  toolChoice?: unknown;
}

/**
 * Returns what `createMiddleware` takes: it asks before each call of the model. A loop ends the run with a `LoopDetectedError`.
 * Notes for the model are added to the messages of that call; a run that is to land goes on without tools.
 */
export function breakloopMiddleware(options: GuardOptions = {}): {
  name: "breakloop";
  wrapModelCall<R extends ModelRequest, A>(request: R, handler: (request: R) => A): Promise<Awaited<A>>;
} {
  const guard = new Guard(options);
  return {
    name: "breakloop",
    async wrapModelCall<R extends ModelRequest, A>(request: R, handler: (request: R) => A): Promise<Awaited<A>> {
      const { note, landed } = await guard.check(nameOf(request.model), (request.messages as Message[]).map(chatOf));
      if (!note) return await handler(request);
      const messages = [...request.messages, { role: "user", content: note }];
      return await handler({ ...request, messages, ...(landed ? { toolChoice: "none", tools: [] } : {}) });
    },
  };
}

interface Message {
  content: unknown;
  tool_calls?: { id?: string; name: string; args: unknown }[];
  tool_call_id?: string;
  status?: string;
  type?: string;
  getType?(): string;
}

const ROLES: Record<string, ChatMessage["role"]> = { ai: "assistant", tool: "tool", system: "system" };

function chatOf(message: Message): ChatMessage {
  const role = ROLES[message.getType?.() ?? message.type ?? ""] ?? "user";
  const content = textOf(message.content);
  if (role === "tool") return { role, tool_call_id: message.tool_call_id ?? "", content: message.status === "error" ? `Error: ${content}` : content };
  const calls = (message.tool_calls ?? []).map((one) => toolCall(one.id ?? "", one.name, one.args));
  return { role, content, ...(calls.length > 0 ? { tool_calls: calls } : {}) };
}

function textOf(content: unknown): string {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return JSON.stringify(content) ?? "";
  return content.map((part: { type: string; text?: string }) => (part.type === "text" ? (part.text ?? "") : digested(part.type, part))).join("\n");
}

function nameOf(model: unknown): string {
  const fields = typeof model === "object" && model !== null ? (model as Record<string, unknown>) : {};
  return typeof model === "string" ? model : String(fields["model"] ?? fields["modelName"] ?? "");
}
