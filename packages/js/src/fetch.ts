import { DeniedError, errorFor, readDenial } from "./errors.js";
import { Guard, type GuardOptions } from "./guard.js";

const REPEATED_MS = 10_000;

/**
 * Returns a `fetch` for SDKs that accept one. Requests to the gateway itself get the names of agent and session, and a denial
 * of the gateway is thrown as a `DeniedError`. Before requests to other servers, the decision service is asked; if it cannot be
 * reached, they are sent anyway. If the gateway cannot be reached, requests go to `upstream`, if it is given.
 *
 * SDKs that retry after an error get the same error again, without another request, for ten seconds.
 */
export function guardedFetch(options: GuardOptions = {}): typeof fetch {
  const guard = new Guard(options);
  const send = options.fetch ?? fetch;
  let last: { url: string; body: string; until: number; error: DeniedError } | undefined;

  async function sent(input: RequestInfo | URL, url: string, init: RequestInit): Promise<Response> {
    try {
      return await send(input, init);
    } catch (error) {
      // A body that is a stream may have been read already.
      const again = options.upstream && isBelow(url, guard.url) && !init.signal?.aborted && (init.body == null || typeof init.body === "string");
      if (!again) throw error;
      guard.warn(error);
      const path = url.slice(guard.url.length).replace(/^\/agents\/[^/]+/, "");
      return await send(options.upstream?.replace(/\/+$/, "") + path, init);
    }
  }

  return async function (input: RequestInfo | URL, init?: RequestInit): Promise<Response> {
    const url = input instanceof Request ? input.url : String(input);
    const headers = new Headers(init?.headers ?? (input instanceof Request ? input.headers : undefined));
    for (const [name, value] of Object.entries(guard.names())) if (!headers.has(name)) headers.set(name, value);
    const body = typeof init?.body === "string" ? init.body : "";
    if (body && last?.url === url && last.body === body && Date.now() < last.until) throw last.error;
    try {
      if (!isBelow(url, guard.url) && body && (init?.method ?? "").toUpperCase() === "POST") {
        const { pathname, search } = new URL(url);
        await guard.decide(pathname + search, asked(headers), body);
      }
      const answer = await sent(input, url, { ...init, headers });
      if (answer.status < 400 || !answer.headers.has("x-breakloop-reason")) return answer;
      const denial = readDenial(answer.status, answer.headers, await answer.clone().text());
      // Where waiting helps, the SDK may wait.
      if (denial === undefined || (denial.stopReason === "limit" && denial.retryAfter !== undefined)) return answer;
      throw errorFor(denial);
    } catch (error) {
      if (error instanceof DeniedError) last = { url, body, until: Date.now() + REPEATED_MS, error };
      throw error;
    }
  };
}

function isBelow(url: string, base: string): boolean {
  return url === base || url.startsWith(`${base}/`);
}

/** The fields of a request that the service needs: names, and the key as the caller's identity, as a gateway would see it. */
function asked(headers: Headers): Record<string, string> {
  const kept: Record<string, string> = {};
  headers.forEach((value, name) => {
    if (!["host", "content-length", "connection", "accept", "accept-encoding", "expect", "transfer-encoding"].includes(name)) kept[name] = value;
  });
  return kept;
}
