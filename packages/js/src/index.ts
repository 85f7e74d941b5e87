/** breakloop for JavaScript: errors, a guarded `fetch`, and `Guard` for agent loops of your own. */
export { deniedBy, DeniedError, LoopDetectedError, type Denial } from "./errors.js";
export { guardedFetch } from "./fetch.js";
export { Guard, type Allowed, type ChatMessage, type GuardOptions } from "./guard.js";
