/** Prompts and messages of the AI SDK, which Mastra has as well, as chat completions. */
import { type ChatMessage, digested, toolCall } from "./guard.js";

interface PromptPart {
  type: string;
  text?: string;
  toolCallId?: string;
  toolName?: string;
  input?: unknown;
  args?: unknown;
  output?: unknown;
  result?: unknown;
  error?: unknown;
  data?: unknown;
  image?: unknown;
}

export interface PromptMessage {
  role: string;
  content: string | PromptPart[];
}

/** A message of the user with a text. */
export function userText(text: string): PromptMessage {
  return { role: "user", content: [{ type: "text", text }] };
}

export function chatOf(messages: readonly PromptMessage[]): ChatMessage[] {
  return messages.flatMap((message): ChatMessage[] => {
    const parts: PromptPart[] = typeof message.content === "string" ? [{ type: "text", text: message.content }] : (message.content ?? []);
    const text = parts.map(textOf).filter(Boolean).join("\n");
    if (message.role === "system" || message.role === "user") return [{ role: message.role, content: text }];
    const results = parts.filter(isResult).map((part): ChatMessage => ({ role: "tool", tool_call_id: part.toolCallId ?? "", content: resultOf(part) }));
    if (message.role === "tool") return results;
    const calls = parts.filter((part) => part.type === "tool-call").map((part) => toolCall(part.toolCallId ?? "", part.toolName ?? "", part.input ?? part.args));
    if (!text && calls.length === 0) return results;
    return [{ role: "assistant", content: text || null, ...(calls.length > 0 ? { tool_calls: calls } : {}) }, ...results];
  });
}

const isResult = (part: PromptPart): boolean => part.type === "tool-result" || part.type === "tool-error";

function textOf(part: PromptPart): string {
  if (part.type === "text") return part.text ?? "";
  const data = part.type === "file" ? part.data : part.type === "image" ? (part.image ?? part.data) : undefined;
  return data === undefined ? "" : digested(part.type, data);
}

/** The result of a tool as the model reads it. */
function resultOf(part: PromptPart): string {
  if (part.type === "tool-error") return `Error: ${part.error instanceof Error ? part.error.message : written(part.error)}`;
  const output = part.output ?? part.result;
  if (typeof output !== "object" || output === null || !("type" in output) || !("value" in output)) return written(output);
  if (output.type === "content" && Array.isArray(output.value)) {
    return output.value.map((one: PromptPart) => (one.type === "text" ? (one.text ?? "") : digested(one.type, one.data ?? one))).join("\n");
  }
  const said = written(output.value);
  return String(output.type).startsWith("error") ? `Error: ${said}` : said;
}

const written = (value: unknown): string => (typeof value === "string" ? value : (JSON.stringify(value) ?? ""));
