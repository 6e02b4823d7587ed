// openai-node: chat completions and responses.

import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import * as checks from "./checks.mjs";
import { check, expect, expectAnswer } from "./checks.mjs";

const real = new OpenAI({ baseURL: `${checks.REAL}/v1`, apiKey: "none", maxRetries: 0 });
const talker = new OpenAI({ baseURL: `${checks.TALKER}/v1`, apiKey: "none", maxRetries: 0 });
const model = checks.REAL_MODEL;
const user = (content) => [{ role: "user", content }];

await check("plain", async () => {
  const chat = await real.chat.completions.create({ model, messages: user(checks.QUESTION), max_tokens: 24 });
  expectAnswer(chat.choices[0].message.content);
  const answer = await real.responses.create({ model, input: checks.QUESTION, max_output_tokens: 24 });
  expectAnswer(answer.output_text);
});

await check("stream", async () => {
  let pieces = [];
  const chunks = await real.chat.completions.create({
    model, messages: user(checks.QUESTION), max_tokens: 24, stream: true,
  });
  for await (const chunk of chunks) pieces.push(chunk.choices[0]?.delta?.content || "");
  pieces = pieces.filter(Boolean);
  expectAnswer(pieces.join(""), pieces.length);
  const events = real.responses.stream({ model, input: checks.QUESTION, max_output_tokens: 24 });
  pieces = [];
  for await (const event of events) if (event.type === "response.output_text.delta") pieces.push(event.delta);
  expect(pieces.join(""), (await events.finalResponse()).output_text);
  expectAnswer(pieces.join(""), pieces.length);
});

await check("schema", async () => {
  const chat = await real.chat.completions.parse({
    model, messages: user(checks.QUESTION), max_tokens: 64, response_format: zodResponseFormat(checks.City, "city"),
  });
  checks.City.parse(chat.choices[0].message.parsed);
  const answer = await real.responses.parse({
    model, input: checks.QUESTION, max_output_tokens: 64, text: { format: zodTextFormat(checks.City, "city") },
  });
  checks.City.parse(answer.output_parsed);
});

await check("tools", async () => {
  const run = ({ a, b }) => String(a + b);
  const add = zodFunction({ name: "add", parameters: checks.Numbers, function: run });
  for (const stream of [false, true]) {
    const runner = talker.chat.completions.runTools({
      model: checks.TALKER_MODEL, messages: user(checks.CALL), tools: [add], stream,
    });
    expect(await runner.finalContent(), checks.RESULT);
  }
  const parameters = {
    type: "object", required: ["a", "b"], additionalProperties: false,
    properties: { a: { type: "integer" }, b: { type: "integer" } },
  };
  const tools = [{ type: "function", name: "add", parameters, strict: true }];
  const asked = { model: checks.TALKER_MODEL, tools };
  const first = await talker.responses.create({ ...asked, input: checks.CALL });
  const call = first.output.find((item) => item.type === "function_call");
  const output = { type: "function_call_output", call_id: call.call_id, output: run(JSON.parse(call.arguments)) };
  const second = await talker.responses.create({ ...asked, input: [...user(checks.CALL), ...first.output, output] });
  expect(second.output_text, checks.RESULT);
});

await check("abort", async () => {
  const chunks = await talker.chat.completions.create({
    model: checks.TALKER_MODEL, messages: user(checks.COUNT), stream: true,
  });
  let seen = 0;
  for await (const _ of chunks) if (++seen === 3) break;
  chunks.controller.abort();
  await checks.expectIdle();
  const events = await talker.responses.create({ model: checks.TALKER_MODEL, input: checks.COUNT, stream: true });
  for await (const event of events) {
    if (event.type !== "response.output_text.delta") continue;
    await checks.expectRunning();
    break;
  }
  events.controller.abort();
  return await checks.expectIdle();
});

await check("resume", async () => {
  const first = await talker.responses.create({ model: checks.TALKER_MODEL, input: checks.FIRST });
  const second = await talker.responses.create({
    model: checks.TALKER_MODEL, input: checks.SECOND, previous_response_id: first.id,
  });
  expect(second.output_text, checks.RECALLED);
});
