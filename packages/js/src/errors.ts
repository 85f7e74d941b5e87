/** What breakloop decided about a denied request. */
export interface Denial {
  /** One of a closed list, such as "loop_detected" or "budget_exceeded". */
  readonly reason: string;
  /** Why, for people and models. */
  readonly message: string;
  /** What ended the run: "loop", "budget", "killed", "paused", "limit", or "" if this ends no run. */
  readonly stopReason: string;
  readonly status: number;
  /** Seconds; undefined if waiting does not help. */
  readonly retryAfter: number | undefined;
  /** The kind of the loop, such as "repeat" or "cycle". */
  readonly kind: string;
  /** What is repeated, in words. */
  readonly evidence: string;
  readonly hitCount: number;
  readonly cooldownSeconds: number;
  readonly fingerprint: string;
  /** The id in log lines and events. */
  readonly requestId: string;
}

const NAMES = ["DeniedError", "LoopDetectedError"];

// Errors are recognised by their fields: a program may load this package twice, as ES module and as CommonJS, and frameworks
// such as Mastra pass on copies of errors.
function isDenial(value: unknown): value is Denial & { name: string } {
  const fields = typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
  return NAMES.includes(String(fields["name"])) && ["reason", "stopReason", "requestId"].every((name) => typeof fields[name] === "string");
}

/** A request was denied: by a limit, a budget, a kill switch, or as a `LoopDetectedError`. */
export class DeniedError extends Error implements Denial {
  override name = "DeniedError";
  readonly reason: string;
  readonly stopReason: string;
  readonly status: number;
  readonly retryAfter: number | undefined;
  readonly kind: string;
  readonly evidence: string;
  readonly hitCount: number;
  readonly cooldownSeconds: number;
  readonly fingerprint: string;
  readonly requestId: string;

  constructor(denial: Denial) {
    super(denial.message);
    this.reason = denial.reason;
    this.stopReason = denial.stopReason;
    this.status = denial.status;
    this.retryAfter = denial.retryAfter;
    this.kind = denial.kind;
    this.evidence = denial.evidence;
    this.hitCount = denial.hitCount;
    this.cooldownSeconds = denial.cooldownSeconds;
    this.fingerprint = denial.fingerprint;
    this.requestId = denial.requestId;
  }

  static override [Symbol.hasInstance](value: unknown): boolean {
    return isDenial(value);
  }
}

/** The agent repeats itself. Sending the same again does not help: it has to stop, or do something else. */
export class LoopDetectedError extends DeniedError {
  override name = "LoopDetectedError";

  static override [Symbol.hasInstance](value: unknown): boolean {
    return isDenial(value) && value.reason === "loop_detected";
  }
}

export function errorFor(denial: Denial): DeniedError {
  return denial.reason === "loop_detected" ? new LoopDetectedError(denial) : new DeniedError(denial);
}

/**
 * Returns the denial behind an error of an SDK or framework, which may have wrapped it, retried it, or made an error of its
 * own from the response; undefined if the error has another cause.
 */
export function deniedBy(error: unknown): DeniedError | undefined {
  const seen = new Set<unknown>();
  const left = [error];
  while (left.length > 0 && seen.size < 50) {
    const one = left.shift();
    if (one instanceof DeniedError) return one;
    if (typeof one !== "object" || one === null || seen.has(one)) continue;
    seen.add(one);
    const fields = one as Record<string, unknown>;
    const read = readDenial(fields["status"] ?? fields["statusCode"], fields["headers"] ?? fields["responseHeaders"], fields["responseBody"] ?? fields["error"]);
    if (read !== undefined) return errorFor(read);
    left.push(fields["cause"], fields["lastError"], fields["error"], ...(Array.isArray(fields["errors"]) ? fields["errors"] : []));
  }
  return undefined;
}

type Fields = (name: string) => string | undefined;

function fieldsOf(headers: unknown): Fields {
  if (headers instanceof Headers) return (name) => headers.get(name) ?? undefined;
  const found = typeof headers === "object" && headers !== null ? (headers as Record<string, unknown>) : {};
  return (name) => (typeof found[name] === "string" ? found[name] : undefined);
}

/** Returns the denial in a response of the gateway or the decision service; undefined if it is another response. */
export function readDenial(status: unknown, headers: unknown, body: unknown): Denial | undefined {
  const field = fieldsOf(headers);
  const reason = field("x-breakloop-reason");
  if (typeof status !== "number" || status < 400 || reason === undefined) return undefined;
  const content = objectIn(body);
  const detail = objectIn(content["detail"]);
  const shown = objectIn(content["error"] ?? content)["message"];
  const message = text(detail["message"]) || text(shown).replace(/ \([a-z_]+\)$/, "");
  const after = field("retry-after");
  return {
    reason,
    message: message || "Denied.",
    stopReason: field("x-breakloop-stop-reason") ?? (reason === "loop_detected" ? "loop" : ""),
    status,
    retryAfter: after !== undefined && /^\d+$/.test(after) ? Number(after) : undefined,
    kind: text(detail["kind"]),
    evidence: text(detail["evidence"]),
    hitCount: count(detail["hit_count"]),
    cooldownSeconds: count(detail["cooldown_seconds"]),
    fingerprint: text(detail["fingerprint"]),
    requestId: field("x-breakloop-request-id") ?? "",
  };
}

function objectIn(value: unknown): Record<string, unknown> {
  let found = value;
  if (typeof value === "string") {
    try {
      found = JSON.parse(value);
    } catch {
      return {};
    }
  }
  return typeof found === "object" && found !== null ? (found as Record<string, unknown>) : {};
}

const text = (value: unknown): string => (typeof value === "string" ? value : "");
const count = (value: unknown): number => (typeof value === "number" ? value : 0);
