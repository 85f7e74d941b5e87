// Agents in JavaScript for test_clients_stop.py: `node agents.mjs URL`. Prints how each ended, as JSON: its error, how
// often its tool was run, and how many requests it made. Nothing but the base URL differs from its documentation.
import { ChatOpenAI } from "@langchain/openai";
import { createOpenAI } from "@ai-sdk/openai";
import { createReactAgent } from "@langchain/langgraph/prebuilt";
import { generateText, isStepCount, tool as vercelTool } from "ai";
import { tool } from "@langchain/core/tools";
import { z } from "zod";

const baseURL = `${process.argv[2]}/v1`;
const description = "Look something up.";
const query = z.object({ query: z.string() });
const prompt = "Find the tree.";

function counted(ended) {
  ended.fetch = (...request) => {
    ended.requests++;
    return fetch(...request);
  };
  ended.look = async () => {
    ended.steps++;
    return "nothing";
  };
  return ended;
}

async function vercel({ fetch, look }) {
  const openai = createOpenAI({ baseURL, apiKey: "sk-vercel", fetch });
  const tools = { look: vercelTool({ description, inputSchema: query, execute: look }) };
  await generateText({ model: openai.chat("loop"), prompt, tools, stopWhen: isStepCount(20) });
}

async function langchain({ fetch, look }) {
  const llm = new ChatOpenAI({ model: "loop", apiKey: "sk-langchain", configuration: { baseURL, fetch } });
  const agent = createReactAgent({ llm, tools: [tool(look, { name: "look", description, schema: query })] });
  await agent.invoke({ messages: [{ role: "user", content: prompt }] }, { recursionLimit: 50 });
}

const ends = {};
for (const run of [vercel, langchain]) {
  const ended = counted({ error: "", steps: 0, requests: 0 });
  try {
    await run(ended);
  } catch (error) {
    ended.error = error.message;
  }
  ends[run.name] = ended;
}
console.log(JSON.stringify(ends));
