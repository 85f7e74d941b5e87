import { type Denial, errorFor, readDenial } from "./errors.js";

export interface GuardOptions {
  /** The gateway or decision service; `BREAKLOOP_URL`, or http://127.0.0.1:8787. */
  url?: string;
  /** The key that identifies this program to it; `BREAKLOOP_TOKEN`. */
  token?: string;
  /** The name of the agent, for policies, limits and events. */
  agent?: string;
  /** The name of the run or conversation; without one, breakloop recognises conversations by their beginning. */
  session?: string;
  /** How long to wait for a decision, in milliseconds: 2000 by default. Then the request is allowed. */
  timeoutMs?: number;
  /** Is called when no decision could be made and the request was allowed: once a minute. `console.warn` by default. */
  onWarning?: (message: string) => void;
  /**
   * For `guardedFetch` with a client whose base URL is the gateway: the provider, such as https://api.openai.com. If the gateway
   * cannot be reached, requests go there.
   */
  upstream?: string;
  /** `fetch`, for tests and proxies. */
  fetch?: typeof fetch;
}

/** An allowed request. */
export interface Allowed {
  /** A message for the model, about what it repeats; "" if there is none. */
  readonly note: string;
  /** Whether the model is to finish: send the request with tools switched off. */
  readonly landed: boolean;
}

const NOTHING: Allowed = { note: "", landed: false };
const WARN_EVERY_MS = 60_000;
const WAIT_MAX_MS = 60_000;

type Variables = { process?: { env?: Record<string, string | undefined> } };

function variable(name: string): string {
  return (globalThis as Variables).process?.env?.[name]?.trim() ?? "";
}

/** Asks the decision service before requests. A fault of the service never stops a request. */
export class Guard {
  readonly url: string;
  readonly #options: GuardOptions;
  #warned = -Infinity;

  constructor(options: GuardOptions = {}) {
    this.#options = options;
    this.url = (options.url || variable("BREAKLOOP_URL") || "http://127.0.0.1:8787").replace(/\/+$/, "");
  }

  /** The header fields that name the agent and its session. */
  names(session = this.#options.session): Record<string, string> {
    const { agent } = this.#options;
    return { ...(agent ? { "X-Agent-Id": ascii(agent) } : {}), ...(session ? { "X-Agent-Session": ascii(session) } : {}) };
  }

  /** Asks about a chat. Throws a `DeniedError` (for loops a `LoopDetectedError`) if it must not be sent. */
  async check(model: string, messages: readonly ChatMessage[], session?: string): Promise<Allowed> {
    const token = this.#options.token || variable("BREAKLOOP_TOKEN");
    const headers = { "Content-Type": "application/json", ...this.names(session), ...(token ? { Authorization: `Bearer ${token}` } : {}) };
    return this.decide("/v1/chat/completions", headers, JSON.stringify({ model, messages }));
  }

  /** Asks about a request as a provider would get it. */
  async decide(target: string, headers: Record<string, string>, body: string): Promise<Allowed> {
    const { timeoutMs = 2000, fetch: ask = fetch } = this.#options;
    const token = this.#options.token || variable("BREAKLOOP_TOKEN");
    let denial: Denial | undefined;
    let allowed: Allowed;
    let delayMs: number;
    try {
      const answer = await ask(`${this.url}/v1/decision?wait=client`, {
        method: "POST",
        headers: { ...headers, "X-Original-Method": "POST", "X-Original-URI": target, ...(token ? { "X-Breakloop-Key": token } : {}) },
        body,
        signal: AbortSignal.timeout(timeoutMs),
      });
      denial = readDenial(answer.status, answer.headers, await answer.text());
      if (denial === undefined && (answer.status !== 200 || !answer.headers.has("x-breakloop-request-id"))) {
        throw new Error(`got status ${answer.status} instead of a decision`);
      }
      allowed = { note: answer.headers.get("x-breakloop-note") ?? "", landed: answer.headers.get("x-breakloop-action") === "land" };
      delayMs = Number(answer.headers.get("x-breakloop-loop-delay") ?? 0);
    } catch (error) {
      this.warn(error);
      return NOTHING;
    }
    if (denial !== undefined) throw errorFor(denial);
    if (delayMs > 0) await new Promise((resolve) => setTimeout(resolve, Math.min(delayMs, WAIT_MAX_MS)));
    return allowed;
  }

  /** Reports that requests are not checked, once a minute. */
  warn(error: unknown): void {
    const now = Date.now();
    if (now - this.#warned < WARN_EVERY_MS) return;
    this.#warned = now;
    const cause = error instanceof Error && error.cause instanceof Error ? error.cause.message : "";
    const why = cause || (error instanceof Error ? error.message : String(error));
    const { onWarning = (message: string) => console.warn(message) } = this.#options;
    onWarning(`breakloop: no decision from ${withoutPassword(this.url)} (${why}); requests are allowed unchecked`);
  }
}

/** A message in the format of OpenAI's chat completions, which breakloop reads. */
export interface ChatMessage {
  role: "system" | "user" | "assistant" | "tool";
  content: string | null;
  tool_calls?: { id: string; type: "function"; function: { name: string; arguments: string } }[];
  tool_call_id?: string;
}

export function toolCall(id: string, name: string, input: unknown): NonNullable<ChatMessage["tool_calls"]>[number] {
  return { id, type: "function", function: { name, arguments: typeof input === "string" ? input : (JSON.stringify(input) ?? "{}") } };
}

/** Stands for a picture or file: what is the same gets the same text, without sending its content. */
export function digested(kind: string, data: unknown): string {
  const content = typeof data === "string" ? data : data instanceof Uint8Array ? data : (JSON.stringify(data) ?? "");
  let hash = 0x811c9dc5;
  for (let at = 0; at < content.length; at++) {
    hash = Math.imul(hash ^ (typeof content === "string" ? content.charCodeAt(at) : (content[at] ?? 0)), 0x01000193);
  }
  return `[${kind} ${content.length} ${(hash >>> 0).toString(16)}]`;
}

function ascii(name: string): string {
  return name.replace(/[^\x20-\x7e]/g, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`).trim();
}

function withoutPassword(url: string): string {
  return url.replace(/\/\/[^/@]*@/, "//");
}
