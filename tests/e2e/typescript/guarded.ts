// Agents with the package of packages/js, for test_js_package.py: `node guarded.js LLM GATEWAY TASK`. Every agent asks the LLM
// for its next step, and runs a tool; TASK is "stuck" (the same again and again) or "healthy" (thirty steps, each with a new
// result). Prints how each ended, as JSON.
import { generateText, isStepCount, streamText, tool as aiTool, wrapLanguageModel } from "ai";
import { createAgent, createMiddleware, tool as langchainTool } from "langchain";
import { createOpenAI } from "@ai-sdk/openai";
import { Agent } from "@mastra/core/agent";
import { createTool } from "@mastra/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import OpenAI from "openai";
import { z } from "zod";
import { deniedBy, type DeniedError, Guard, guardedFetch, type GuardOptions, LoopDetectedError } from "breakloop";
import { breakloopMiddleware, guardStep, loopDetected } from "breakloop/ai";
import { breakloopMiddleware as langchainMiddleware } from "breakloop/langchain";
import { breakloopProcessor } from "breakloop/mastra";

const [llm = "", url = "", task = ""] = process.argv.slice(2);
const baseURL = `${llm}/v1`;
const description = "Look something up.";
const query = z.object({ query: z.string() });
const most = isStepCount(50);

interface End {
  steps: number;
  warnings: string[];
  error?: DeniedError | undefined;
  text?: string;
}

type Run = (end: End, options: GuardOptions, look: (input: { query: string }) => Promise<string>) => Promise<string>;

const vercel = () => createOpenAI({ baseURL, apiKey: "sk-vercel" }).chat("m");
const vercelTools = (execute: (input: { query: string }) => Promise<string>) => ({ look: aiTool({ description, inputSchema: query, execute }) });

const runs: Record<string, Run> = {
  async middleware(_end, options, look) {
    const model = wrapLanguageModel({ model: vercel(), middleware: breakloopMiddleware(options) });
    return (await generateText({ model, prompt: task, tools: vercelTools(look), stopWhen: most })).text;
  },
  async streamed(_end, options, look) {
    const model = wrapLanguageModel({ model: vercel(), middleware: breakloopMiddleware(options) });
    let failed: unknown;
    const result = streamText({ model, prompt: task, tools: vercelTools(look), stopWhen: most, onError: ({ error }) => void (failed = error) });
    let text = "";
    for await (const part of result.textStream) text += part;
    if (failed !== undefined) throw failed;
    return text;
  },
  async prepared(_end, options, look) {
    return (await generateText({ model: vercel(), prompt: task, tools: vercelTools(look), stopWhen: most, prepareStep: guardStep(options) })).text;
  },
  async stopped(end, options, look) {
    const stop = loopDetected({ ...options, onDenied: (error) => void (end.error = error) });
    return (await generateText({ model: vercel(), prompt: task, tools: vercelTools(look), stopWhen: [most, stop] })).text;
  },
  async fetched(_end, options, look) {
    const model = createOpenAI({ baseURL, apiKey: "sk-vercel", fetch: guardedFetch(options) }).chat("m");
    return (await generateText({ model, prompt: task, tools: vercelTools(look), stopWhen: most })).text;
  },
  async openai(_end, options, look) {
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "sk-openai", fetch: guardedFetch({ ...options, upstream: llm }) });
    const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: "user", content: task }];
    for (let turn = 0; turn < 50; turn++) {
      const answer = await client.chat.completions.create({ model: "m", messages });
      const said = answer.choices[0]?.message;
      const call = said?.tool_calls?.[0];
      if (said === undefined || call?.type !== "function") return said?.content ?? "";
      messages.push(said, { role: "tool", tool_call_id: call.id, content: await look(JSON.parse(call.function.arguments)) });
    }
    return "";
  },
  async mastra(_end, options, look) {
    const lookUp = createTool({ id: "look", description, inputSchema: query, execute: look });
    const agent = new Agent({
      id: "a", name: "a", instructions: "Help.", model: { id: "openai/m", url: baseURL, apiKey: "sk-mastra" }, tools: { look: lookUp }, inputProcessors: [breakloopProcessor(options)],
    });
    return (await agent.generate(task, { maxSteps: 50 })).text;
  },
  async langchain(_end, options, look) {
    const model = new ChatOpenAI({ model: "m", apiKey: "sk-langchain", configuration: { baseURL } });
    const tools = [langchainTool(look, { name: "look", description, schema: query })];
    const agent = createAgent({ model, tools, middleware: [createMiddleware(langchainMiddleware(options))] });
    const ended = await agent.invoke({ messages: [{ role: "user", content: task }] }, { recursionLimit: 200 });
    return String(ended.messages.at(-1)?.content);
  },
  async own(_end, options, look) {
    const guard = new Guard(options);
    const messages: Parameters<Guard["check"]>[1][number][] = [{ role: "user", content: task }];
    for (let turn = 0; turn < (task === "stuck" ? 50 : 30); turn++) {
      await guard.check("m", messages);
      const call = { id: `c${turn}`, type: "function" as const, function: { name: "look", arguments: '{"query":"again"}' } };
      messages.push({ role: "assistant", content: null, tool_calls: [call] });
      messages.push({ role: "tool", tool_call_id: call.id, content: await look({ query: "again" }) });
    }
    return "All done.";
  },
};

const ends: Record<string, object> = {};
for (const [name, run] of Object.entries(runs)) {
  const end: End = { steps: 0, warnings: [] };
  const look = async (): Promise<string> => {
    end.steps++;
    return task === "stuck" ? "nothing" : `Chapter ${end.steps} is about ${end.steps * 7919} ships and ${end.steps * 104729} sailors.`;
  };
  const options = { url, agent: `${name}-${task}`, onWarning: (message: string) => void end.warnings.push(message) };
  try {
    end.text = await run(end, options, look);
  } catch (error) {
    end.error = deniedBy(error);
    if (end.error === undefined) end.text = `failed: ${String(error)}`;
  }
  const { error } = end;
  ends[name] = { ...end, loop: error instanceof LoopDetectedError, error: error && { ...error, message: error.message } };
}
console.log(JSON.stringify(ends));
process.exit(0); // frameworks may keep timers
