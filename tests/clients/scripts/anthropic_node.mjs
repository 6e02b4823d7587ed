// anthropic node: messages, and its loop over tools.

import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import * as checks from "./checks.mjs";
import { check, expect, expectAnswer } from "./checks.mjs";

const real = new Anthropic({ baseURL: checks.REAL, apiKey: "none", maxRetries: 0 });
const talker = new Anthropic({ baseURL: checks.TALKER, apiKey: "none", maxRetries: 0 });
const user = (content) => [{ role: "user", content }];
const question = { model: checks.REAL_MODEL, messages: user(checks.QUESTION), max_tokens: 24 };
const textOf = (message) => message.content.map((block) => block.text ?? "").join("");

await check("plain", async () => expectAnswer(textOf(await real.messages.create(question))));

await check("stream", async () => {
  const pieces = [];
  const events = real.messages.stream(question).on("text", (piece) => pieces.push(piece));
  const text = await events.finalText();
  expect(pieces.join(""), text);
  expectAnswer(pieces.join(""), pieces.length);
});

await check("schema", async () => {
  const message = await real.messages.parse({
    ...question, max_tokens: 64, output_config: { format: zodOutputFormat(checks.City) },
  });
  checks.City.parse(message.parsed_output);
});

await check("tools", async () => {
  const run = async ({ a, b }) => String(a + b);
  const add = betaZodTool({ name: "add", description: "Adds.", inputSchema: checks.Numbers, run });
  for (const stream of [false, true]) {
    const last = await talker.beta.messages.toolRunner({
      model: checks.TALKER_MODEL, messages: user(checks.CALL), tools: [add], max_tokens: 200, stream,
    }).runUntilDone();
    expect(textOf(last), checks.RESULT);
  }
});

await check("abort", async () => {
  const events = await talker.messages.create({
    model: checks.TALKER_MODEL, messages: user(checks.COUNT), max_tokens: 4096, stream: true,
  });
  for await (const event of events) {
    if (event.type !== "content_block_delta") continue;
    await checks.expectRunning();
    break;
  }
  events.controller.abort();
  return await checks.expectIdle();
});
